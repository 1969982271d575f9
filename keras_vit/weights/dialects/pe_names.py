"""The layouts of Perception Encoder (arXiv:2504.13181): the authors' files, with OpenCLIP's names, and timm's.

Core pools by attention behind a last LayerNorm, Lang and Spatial have neither, so each is a row of its own. All turn
queries and keys by rotary positions, of which no tensor tells. The authors' coordinates are those of the grid as it is,
timm's are scaled to the grid of the table.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.config.posembed import square_grid
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.dialects.clip_names import OPEN_CLIP
from keras_vit.weights.dialects.dialect import Dialect, Names
from keras_vit.weights.dialects.eva_names import TIMM_EVA
from keras_vit.weights.dialects.renames import Layers

_PHOTOS = Preprocessing(image_size=None, interpolation="bilinear", antialias=True, resize="squash")
_BLOCK = ("block_{block:02}/", "transformer.resblocks.{block}.")
_SCALES: Layers = {"layer_scale_1/gamma": "ls_1.gamma", "layer_scale_2/gamma": "ls_2.gamma"}


def rotary_of(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What the authors compute of these tensors by our paths, and none of them tells."""
    has_class = "class_token/token" in tensors
    return {
        "rotary": "axial",
        "rotary_theta": 10000.0,
        "rotary_layout": "interleaved",
        "rotary_axes": "xy",
        "rotary_coordinates": "grid",
        "rotary_offset": 1.0 if has_class else 0.0,
        **({"map_heads": 8, "map_prefix": has_class} if "pooling/probe" in tensors else {"pooling": "gap"}),
    }


def _scaled_rotary_of(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The same of timm, which scales coordinates to the grid that the table is of."""
    prefix, table = int("class_token/token" in tensors), tensors.get("position_embedding/table", np.empty((1, 0, 0)))
    grid = square_grid(table.shape[-2] - prefix)
    return rotary_of(tensors) | {"rotary_reference": None if grid is None else grid[0]}


def _without_end(row: Dialect) -> Names:
    """The names of a row without those of the last LayerNorm and the pooling."""
    names = {prefixes: layers for prefixes, layers in row.names.items() if prefixes[0] != "pooling/"}
    return names | {("", ""): {ours: theirs for ours, theirs in names["", ""].items() if ours != "encoder_norm"}}


PE_CORE = dataclasses.replace(
    OPEN_CLIP,
    name="pe_core",
    software="the authors' Perception Encoder",
    requires=(
        *(r"conv1\.weight", r"transformer\.resblocks\.0\.ln_1\.weight", r"ln_pre\.weight", r"ln_post\.weight"),
        *(r"attn_pool\.probe", r"attn_pool\.attn\.in_proj_weight"),
    ),
    forbids=(),
    prefix="",
    names={
        **OPEN_CLIP.names,
        _BLOCK: {**OPEN_CLIP.names[_BLOCK], **_SCALES},
        ("pooling/", "attn_pool."): {
            "probe": "probe",
            ("attention/query", "attention/key", "attention/value"): "attn.in_proj",
            "attention/out": "attn.out_proj",
            "norm": "layernorm",
            "mlp/dense_1": "mlp.c_fc",
            "mlp/dense_2": "mlp.c_proj",
        },
    },
    computes=rotary_of,
    resize_method="bilinear",
    preprocessing=_PHOTOS,
)
PE = dataclasses.replace(
    PE_CORE,
    name="pe",
    requires=PE_CORE.requires[:3],
    forbids=(r"ln_post\.weight", r"attn_pool\..*"),
    names=_without_end(PE_CORE),
)
TIMM_PE_CORE = dataclasses.replace(
    TIMM_EVA,
    name="timm_pe_core",
    requires=(r"patch_embed\.proj\.weight", r"norm_pre\.weight", r"norm\.weight", r"attn_pool\.latent"),
    forbids=(r"blocks\.0\.attn\.(q_bias|q_proj\.weight)",),
    computes=_scaled_rotary_of,
    layer_norm_epsilon=1e-5,
    preprocessing=_PHOTOS,
)
TIMM_PE = dataclasses.replace(
    TIMM_PE_CORE,
    name="timm_pe",
    requires=TIMM_PE_CORE.requires[:2],
    forbids=(*TIMM_PE_CORE.forbids, r"norm\.weight", r"attn_pool\..*"),
    names=_without_end(TIMM_PE_CORE),
)
