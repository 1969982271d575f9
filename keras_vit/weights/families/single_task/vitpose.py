"""The layouts of ViTPose (arXiv:2204.12484) of transformers: the encoder, and both of its heads.

There is no class token. Its row of the position table is there, and is added to every patch.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.config.heads import KEYPOINTS
from keras_vit.weights.families.dense_heads import HeadLayout
from keras_vit.weights.families.layout import OWN_WORDS, SCALED, SQUASHED_PHOTOS, Arrays, Makers, ModelType
from keras_vit.weights.families.renames import MLP
from keras_vit.weights.families.transformers import HUGGINGFACE

_TABLE = "embeddings.position_embeddings"
_OFFSET = "embeddings.position_of_class_token"  # a name between a file's and ours
_PADDING = 2  # pixels, in the code of the authors and of transformers


def _split_table(arrays: Arrays, num_patches: int | None) -> Arrays:
    """The first row of the table as an array of its own."""
    table = arrays.get(_TABLE)
    if table is None or table.ndim != 3:
        return arrays
    return arrays | {_OFFSET: table[:, :1], _TABLE: table[:, 1:]}


def _join_table(makers: Makers) -> Makers:
    """The reverse."""
    table, offset = makers.get(_TABLE), makers.get(_OFFSET)
    if table is None or offset is None:
        return makers
    others = {name: make for name, make in makers.items() if name != _OFFSET}
    return others | {_TABLE: lambda: np.concatenate([offset(), table()], axis=1)}


def _defaults(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {"patch_padding": _PADDING}


_BLOCK = ("block_{block:02}/", "encoder.layer.{block}.")
HF_VITPOSE = dataclasses.replace(
    HUGGINGFACE,
    name="huggingface_vitpose",
    model_types=("vitpose_backbone",),
    requires=(
        *(r"embeddings\.patch_embeddings\.projection\.weight", r"embeddings\.position_embeddings"),
        *(r"encoder\.layer\.0\.layernorm_before\.weight", r"encoder\.layer\.0\.mlp\.fc1\.weight"),
        r"layernorm\.weight",
    ),
    forbids=(r"embeddings\.cls_token",),
    ignores=(),
    names={
        ("", ""): {
            "position_embedding/table": _TABLE,
            "position_offset/token": _OFFSET,
            "patch_embedding/projection": "embeddings.patch_embeddings.projection",
            "encoder_norm": "layernorm",
        },
        _BLOCK: {**HUGGINGFACE.names[_BLOCK], **MLP},
    },
    also={},
    read_names=lambda names: str,
    written_names=lambda names: str,
    read_steps=(_split_table,),
    written_steps=(_join_table,),
    defaults=_defaults,
    parts={**HUGGINGFACE.parts, "class_token": (False,), "class_tokens": (1,), "position_offset": (True,)},
    preprocessing=SQUASHED_PHOTOS,
    unsupported=("model without positions",),
    folder=None,
)
TYPES = {
    "vitpose": ModelType("VitPose", words=OWN_WORDS),  # whose encoder has a config of its own
    "vitpose_backbone": ModelType("VitPose", (HF_VITPOSE.name,), (*SCALED, "qkv_bias"), {"qkv_bias": True}),
}
HF_VITPOSE_SIMPLE = HeadLayout(
    "huggingface_vitpose_simple",
    "transformers",
    KEYPOINTS,
    requires=(r"head\.conv\.weight",),
    names={("", ""): {"classifier": "head.conv"}},
    encoder=("backbone.",),
    encoder_layouts=(HF_VITPOSE.name,),
    task=KEYPOINTS,
    taps="last",
    pads="",
    photos="boxes",
)
HF_VITPOSE_CLASSIC = dataclasses.replace(
    HF_VITPOSE_SIMPLE,
    name="huggingface_vitpose_classic",
    requires=(r"head\.deconv1\.weight", r"head\.conv\.weight"),
    names={
        ("", ""): {
            "classifier": "head.conv",
            **{f"conv_up_{number}": f"head.deconv{number}" for number in (1, 2)},
            **{f"batch_norm_{number}": f"head.batchnorm{number}" for number in (1, 2)},
        }
    },
)
