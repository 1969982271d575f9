"""The layouts of EoMT (arXiv:2503.19108): the authors', on timm's DINOv2, and transformers', also on DINOv3.

The position table has no row of the class token. The authors' files on DINOv3 are differences to Meta's weights, and
are refused. `attn_mask_probs` is of training alone: its masked attention is off in what is published.
"""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np

from keras_vit.config.heads import MASKS
from keras_vit.weights.families.dense_heads import HeadLayout
from keras_vit.weights.families.dinov2 import HF_DINOV2_REGISTERS, add_empty_registers, drop_empty_registers
from keras_vit.weights.families.dinov3 import HF_DINOV3
from keras_vit.weights.families.layout import SCALED, SQUASHED_PHOTOS, SWITCHED, Arrays, Makers, ModelType, Names
from keras_vit.weights.families.renames import Layers
from keras_vit.weights.metadata.record import rope_fields

_TABLE, _CLASS = "embeddings.position_embeddings.weight", "embeddings.cls_token"
_OF_HEAD = (
    *(r"query\.weight", r"class_predictor\..*", r"mask_head\..*", r"upscale_block\..*"),
    *("attn_mask_probs", r"criterion\..*"),
)
_MOST_UPSCALES = 8


def _add_class_row(arrays: Arrays, num_patches: int | None) -> Arrays:
    """A table `(1, 1 + N, D)` with zeros for the class token, of one `(N, D)`."""
    table = arrays.get(_TABLE)
    if table is None or table.ndim != 2:
        return arrays
    return arrays | {_TABLE: np.concatenate([np.zeros_like(table[:1]), table])[None]}


def _drop_class_row(makers: Makers) -> Makers:
    """The reverse, with what the class token has learned there added to it."""
    table, token = makers.get(_TABLE), makers.get(_CLASS)
    if table is None or token is None:
        return makers
    return makers | {_TABLE: lambda: table()[0, 1:], _CLASS: functools.partial(_placed, token, table)}


def _placed(token: Callable[[], np.ndarray], table: Callable[[], np.ndarray]) -> np.ndarray:
    return token() + table()[:, :1]


_TOKENS: Layers = {
    "class_token/token": _CLASS,
    "register_tokens/tokens": "embeddings.register_tokens",
    "encoder_norm": "layernorm",
}
_BLOCK = ("block_{block:02}/", "layers.{block}.")
_OF_DINOV2 = HF_DINOV2_REGISTERS.names["block_{block:02}/", "encoder.layer.{block}."]
_ATTENTION: Layers = {f"attention/{part}": f"attention.{part[0]}_proj" for part in ("query", "key", "value")}
HF_EOMT = dataclasses.replace(
    HF_DINOV2_REGISTERS,
    folder=None,
    name="huggingface_eomt",
    model_types=("eomt",),
    requires=(
        *(r"embeddings\.patch_embeddings\.projection\.weight", r"embeddings\.position_embeddings\.weight"),
        *(r"embeddings\.cls_token", r"embeddings\.register_tokens", r"layernorm\.weight"),
        *(r"layers\.0\.attention\.q_proj\.weight", r"layers\.0\.layer_scale1\.lambda1"),
    ),
    ignores=_OF_HEAD,
    read_names=lambda names: str,
    written_names=lambda names: str,
    read_steps=(drop_empty_registers, _add_class_row),
    written_steps=(_drop_class_row, add_empty_registers),
    classifier={},
    names={
        ("", ""): {
            **_TOKENS,
            "position_embedding/table": _TABLE,
            "patch_embedding/projection": "embeddings.patch_embeddings.projection",
        },
        _BLOCK: {**_OF_DINOV2, **_ATTENTION, "attention/out": "attention.out_proj"},
    },
    parts={**HF_DINOV2_REGISTERS.parts, "qkv_bias": ("all",), "prefix_rows": ("none",)},
    preprocessing=SQUASHED_PHOTOS,
)
HF_EOMT_DINOV3 = dataclasses.replace(
    HF_DINOV3,
    name="huggingface_eomt_dinov3",
    model_types=("eomt_dinov3",),
    requires=(
        *(r"embeddings\.patch_embeddings\.weight", r"embeddings\.cls_token", r"layernorm\.weight"),
        *(r"embeddings\.register_tokens", r"layers\.0\.attention\.q_proj\.weight"),
    ),
    ignores=_OF_HEAD,
    written_steps=(add_empty_registers,),
    names={
        ("", ""): {**_TOKENS, "patch_embedding/projection": "embeddings.patch_embeddings"},
        _BLOCK: HF_DINOV3.names["block_{block:02}/", "layer.{block}."],
    },
    layer_norm_epsilon=1e-6,
    preprocessing=SQUASHED_PHOTOS,
)

TYPES = {
    "eomt": ModelType("Eomt", (HF_EOMT.name,), (*SCALED, "num_register_tokens")),
    "eomt_dinov3": ModelType(
        "EomtDinov3",
        (HF_EOMT_DINOV3.name,),
        SWITCHED,
        read=functools.partial(rope_fields, by_parameters=True),
    ),
}


def _names(queries: str, classes: str, masks: tuple[str, ...], upscale: str, norm: str) -> Names:
    """Names of the queries and of the layers of a `MaskHead`."""
    steps = {"deconv_{}": "conv1", "depthwise_{}": "conv2", "norm_{}": norm}
    return {
        ("", ""): {
            "query_tokens/queries": queries,
            "class_head": classes,
            **{f"mask_{number}": name for number, name in enumerate(masks, start=1)},
            **{
                here.format(i): f"{upscale}.{i}.{there}" for here, there in steps.items() for i in range(_MOST_UPSCALES)
            },
        }
    }


EOMT_MASKS = HeadLayout(
    "eomt",
    "the authors' EoMT",
    MASKS,
    requires=(r"network\.q\.weight", r"network\.class_head\.weight", r"network\.mask_head\.0\.weight"),
    names=_names(
        "network.q.weight",
        "network.class_head",
        tuple(f"network.mask_head.{number}" for number in (0, 2, 4)),
        "network.upscale",
        "norm",
    ),
    encoder=("network.encoder.backbone.",),
    encoder_layouts=("timm",),
    ignores=(r"network\.attn_mask_probs", r"network\.encoder\.pixel_(mean|std)", r"criterion\..*"),
    taps="last",
    pads="",
)
HF_EOMT_MASKS = dataclasses.replace(
    EOMT_MASKS,
    name="huggingface_eomt_masks",
    software="transformers",
    requires=(r"query\.weight", r"class_predictor\.weight", r"mask_head\.fc1\.weight"),
    names=_names(
        "query.weight",
        "class_predictor",
        ("mask_head.fc1", "mask_head.fc2", "mask_head.fc3"),
        "upscale_block.block",
        "layernorm2d",
    ),
    encoder=(),
    encoder_parts=("embeddings.", "layers.", "layernorm."),
    encoder_layouts=(HF_EOMT.name, HF_EOMT_DINOV3.name),
    ignores=("attn_mask_probs", r"criterion\..*"),
)
