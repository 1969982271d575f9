"""The layout of TIPS (arXiv:2410.16512) and TIPSv2 (arXiv:2604.12012): DINOv2's block with two class tokens.

The second class token is `register_tokens`, and is a register here. transformers' Tipsv2VisionModel keeps the names of
the authors' PyTorch code. Those of a gated MLP are DINOv2's too, whose files have another number of registers. With
one register a `config.json` tells them apart.
"""

import dataclasses
from collections.abc import Iterable

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.dialects.dialect import shape_among
from keras_vit.weights.dialects.dinov2_names import DINOV2_REGISTERS


def _has_one_register(arrays: Iterable[str]) -> bool:
    """Whether there are the tokens of TIPS, or an MLP that DINOv2 does not have."""
    shape = shape_among(arrays, "register_tokens")
    return shape is None or shape[1:-1] == (1,) or any(".c_fc." in name for name in arrays)


_BLOCK = ("block_{block:02}/", "blocks.{block}.")
HF_TIPSV2 = dataclasses.replace(
    DINOV2_REGISTERS,
    name="huggingface_tipsv2",
    software="transformers",
    model_types=("tipsv2_vision_model", "tipsv2"),
    like=("dinov2_registers",),
    fits=_has_one_register,
    requires=tuple(name for name in DINOV2_REGISTERS.requires if "qkv" not in name),
    forbids=(r"blocks\.0\.mlp\.fc1\.weight",),
    names={
        **DINOV2_REGISTERS.names,
        _BLOCK: {
            **DINOV2_REGISTERS.names[_BLOCK],
            "mlp/dense_1": "mlp.c_fc",
            "mlp/dense_2": "mlp.c_proj",
        },
    },
    resize_method="bilinear_antialias",
    preprocessing=Preprocessing(image_size=None, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), antialias=True),
)
TIPS = dataclasses.replace(HF_TIPSV2, name="tips", software="the authors' TIPS", suffix=".npz", model_types=(), like=())
