"""The layout of timm's Vision Transformers: kernels as torch has them, and query, key and value in one matrix."""

import re
from collections.abc import Callable, Collection

import numpy as np

from keras_vit.config.posembed import square_grid
from keras_vit.weights.dialects.dialect import Arrays, Dialect, Folder
from keras_vit.weights.dialects.renames import TORCH, Layers
from keras_vit.weights.reader import CheckpointError
from keras_vit.weights.sidecar.folder_json import timm_files, timm_opening

_BACKBONE = "patch_embed.backbone."
_MLP: Layers = {"mlp/dense_1": "mlp.fc1", "mlp/dense_2": "mlp.fc2"}


def _with_stem(names: Collection[str]) -> Callable[[str], str]:
    """In timm a root without stages is the backbone itself, and not its `stem`."""
    return lambda name: re.sub(rf"^({re.escape(_BACKBONE)})(conv|norm)\.", r"\1stem.\2.", name)


def _without_stem(names: Collection[str]) -> Callable[[str], str]:
    has_stages = any(name.startswith(f"{_BACKBONE}stages.") for name in names)
    return lambda name: name if has_stages else name.replace(f"{_BACKBONE}stem.", _BACKBONE)


def _with_prefix_rows(arrays: Arrays, num_patches: int | None) -> Arrays:
    """Adds rows of zeros for the prefix tokens to a table without them, as timm's `no_embed_class` makes it.

    Without `num_patches`, a table of a square number of rows is taken to have none, unless the rest is square too.
    """
    table, prefix = arrays.get("pos_embed"), sum(name in arrays for name in ("cls_token", "dist_token"))
    if table is None or table.ndim != 3 or not prefix:
        return arrays
    rows = table.shape[1]
    without = rows == num_patches if num_patches else not square_grid(rows - prefix) and square_grid(rows)
    zeros = np.zeros((1, prefix, table.shape[2]), table.dtype)
    return arrays | {"pos_embed": np.concatenate([zeros, table], axis=1)} if without else arrays  # (1, T, D)


def _norm_before_pooling(arrays: Arrays, num_patches: int | None) -> Arrays:
    if any(name.startswith("fc_norm.") for name in arrays):
        raise CheckpointError(
            "the file is of a timm model with `fc_norm`, which normalises after its mean pooling; here, as in the "
            "official code, the LayerNorm comes first, and the two are different functions."
        )
    return arrays


TIMM = Dialect(
    "timm",
    "timm",
    ".safetensors",
    TORCH,
    requires=(r"patch_embed\.proj\.weight",),
    names={
        ("", ""): {
            "class_token/token": "cls_token",
            "distillation_token/token": "dist_token",
            "position_embedding/table": "pos_embed",
            "patch_embedding/projection": "patch_embed.proj",
            "encoder_norm": "norm",
            "head": "head",
            "head_distillation": "head_dist",
        },
        ("block_{block:02}/", "blocks.{block}."): {
            "norm_1": "norm1",
            ("attention/query", "attention/key", "attention/value"): "attn.qkv",
            "attention/out": "attn.proj",
            "norm_2": "norm2",
            **_MLP,
        },
        ("pooling/", "attn_pool."): {
            "probe": "latent",
            "attention/query": "q",
            ("attention/key", "attention/value"): "kv",
            "attention/out": "proj",
            "norm": "norm",
            **_MLP,
        },
        ("resnet_root/", f"{_BACKBONE}stem."): {"conv": "conv", "norm": "norm"},
        ("resnet_stage_{stage}_unit_{unit}/", _BACKBONE + "stages.{stage-1}.blocks.{unit-1}."): {
            **{f"{kind}_{part}": f"{kind}{part}" for kind in ("conv", "norm") for part in "123"},
            **{f"{kind}_proj": f"downsample.{kind}" for kind in ("conv", "norm")},
        },
    },
    also={("", ""): {"pre_logits": "pre_logits.fc"}},  # its models have them no more
    read_names=_with_stem,
    written_names=_without_stem,
    read_steps=(_norm_before_pooling, _with_prefix_rows),
    activation="gelu",
    layer_norm_epsilon=1e-6,
    resize_method="bicubic_antialias",
    normalises_means=True,
    folder=Folder(timm_files, timm_opening, always_resizes=True),
)
