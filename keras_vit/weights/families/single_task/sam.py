"""The layouts of SAM's image encoder (arXiv:2304.02643): transformers', the authors' and timm's.

Its position table is a map of a square grid. What stands next to it, as prompt encoder and mask decoder, is set aside.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.weights.families.layout import PLAIN_PARTS, SCALED, SQUASHED_PHOTOS, Arrays, Layout, Makers, ModelType
from keras_vit.weights.families.renames import TORCH, Layers
from keras_vit.weights.read import CheckpointError

_TABLE = "pos_embed"
_QKV: tuple[str, ...] = ("attention/query", "attention/key", "attention/value")


def _rows_of_table(arrays: Arrays, num_patches: int | None) -> Arrays:
    """The table `(1, h, w, D)` as `(1, N, D)`."""
    table = arrays.get(_TABLE)
    if table is None or table.ndim != 4:
        return arrays
    if table.shape[1] != table.shape[2]:
        raise CheckpointError(
            "the position table of a SAM must be of a square grid.\n"
            f"Received: {_TABLE} of shape {table.shape}. Bring the file again."
        )
    return arrays | {_TABLE: table.reshape(len(table), -1, table.shape[-1])}


def _map_of_table(makers: Makers) -> Makers:
    """The reverse."""
    make = makers.get(_TABLE)
    return makers if make is None else makers | {_TABLE: lambda: _squared(make())}


def _squared(table: np.ndarray) -> np.ndarray:
    side = math.isqrt(table.shape[1])
    if side * side != table.shape[1]:
        raise CheckpointError(
            "SAM's software has position tables of square grids alone.\n"
            f"Received: a table of {table.shape[1]} patches. Save a model for square images, or as .keras."
        )
    return table.reshape(len(table), side, side, -1)


def _defaults(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {"pooling": "none"} if "neck/conv_1/kernel" in tensors else {}


def _names(
    patches: str, block: str, norms: tuple[str, str], mlp: tuple[str, str], neck: tuple[str, ...]
) -> dict[tuple[str, str], Layers]:
    """By what a software calls patches, blocks, norms, dense layers of the MLP, and the neck."""
    parts = ("conv_1", "norm_1", "conv_2", "norm_2")
    return {
        ("", ""): {
            "position_embedding/table": _TABLE,
            "patch_embedding/projection": patches,
            **{f"neck/{here}": f"neck.{there}" for here, there in zip(parts, neck, strict=True)},
        },
        ("block_{block:02}/", block): {
            **dict(zip(("norm_1", "norm_2"), norms, strict=True)),
            _QKV: "attn.qkv",
            "attention/out": "attn.proj",
            **{f"positions/{here}": f"attn.rel_pos_{there}" for here, there in (("rows", "h"), ("columns", "w"))},
            **{f"mlp/dense_{number}": name for number, name in enumerate(mlp, start=1)},
        },
    }


_OF_ALL = (r"neck\..+\.weight", r"pos_embed")
HF_SAM = Layout(
    "huggingface_sam",
    "transformers",
    ".safetensors",
    TORCH,
    requires=(
        *(r"patch_embed\.projection\.weight", r"layers\.0\.attn\.qkv\.weight", r"layers\.0\.attn\.rel_pos_h"),
        *(r"layers\.0\.mlp\.lin1\.weight", *_OF_ALL),
    ),
    names=_names(
        "patch_embed.projection",
        "layers.{block}.",
        ("layer_norm1", "layer_norm2"),
        ("mlp.lin1", "mlp.lin2"),
        ("conv1", "layer_norm1", "conv2", "layer_norm2"),
    ),
    model_types=("sam", "sam_vision_model"),
    prefix="vision_encoder.",
    read_steps=(_rows_of_table,),
    written_steps=(_map_of_table,),
    defaults=_defaults,
    parts={
        **PLAIN_PARTS,
        **{"qkv_bias": ("all", "none"), "class_token": (False,), "final_norm": ("none",), "attention": ("windowed",)},
    },
    activation="gelu",
    layer_norm_epsilon=1e-6,
    resize_method="bicubic",
    unsupported=("model without positions",),
    preprocessing=SQUASHED_PHOTOS,
)
_BLOCK = "blocks.{block}."
SAM = dataclasses.replace(
    HF_SAM,
    name="sam",
    software="the authors' SAM",
    requires=(
        *(r"patch_embed\.proj\.weight", r"blocks\.0\.attn\.qkv\.weight", r"blocks\.0\.attn\.rel_pos_h"),
        *(r"blocks\.0\.mlp\.lin1\.weight", *_OF_ALL),
    ),
    names=_names("patch_embed.proj", _BLOCK, ("norm1", "norm2"), ("mlp.lin1", "mlp.lin2"), ("0", "1", "2", "3")),
    model_types=("sam_authors",),
    prefix="image_encoder.",
)
TIMM_SAM = dataclasses.replace(
    SAM,
    name="timm_sam",
    software="timm",
    requires=(*SAM.requires[:3], r"blocks\.0\.mlp\.fc1\.weight", *_OF_ALL),
    names=_names("patch_embed.proj", _BLOCK, ("norm1", "norm2"), ("mlp.fc1", "mlp.fc2"), ("0", "1", "2", "3")),
    model_types=(),
    prefix="",
    resize_method="bicubic_antialias",
)


def _read(config: dict[str, Any], place: Path) -> dict[str, Any]:
    """Sides of windows, blocks without them, and channels of the map."""
    words = {"mlp_dim": "mlp_dim", "window_size": "window_size", "output_channels": "neck_size"}
    fields: dict[str, Any] = {field: config[word] for word, field in words.items() if isinstance(config.get(word), int)}
    numbers = config.get("global_attn_indexes")
    fields |= {"global_blocks": tuple(n + 1 for n in numbers)} if isinstance(numbers, list) else {}
    used = (config.get("use_rel_pos", True), config.get("use_abs_pos", True))
    return fields | ({} if all(used) else {"attention": "windowed, without positions"})


_TYPE = ModelType("Sam", (HF_SAM.name,), (*SCALED, "qkv_bias"), {"qkv_bias": True}, _read)
TYPES = {
    **dict.fromkeys(("sam", "sam_vision_model"), _TYPE),
    "sam_authors": ModelType("", (SAM.name, TIMM_SAM.name), read=_read),  # which a user writes
}
