"""The layout of Sapiens2 in timm's class `Eva` (arXiv:2604.21681).

RMSNorm, normed queries and keys, keys and values that groups of heads share, and DINOv3's rotary positions.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_vit.weights.dialects.dialect import Makers
from keras_vit.weights.dialects.dinov3_names import ROTARY
from keras_vit.weights.dialects.eva_names import TIMM_EVA


def _computes(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return dict(ROTARY)  # in float32; the authors' code makes the angles in bfloat16


def _packed(makers: Makers) -> Makers:
    """The gate of an MLP and its value in one matrix, whose last layer is `fc2`."""
    found: Makers = {}
    for name, make in makers.items():
        if ".mlp.fc1_g." in name:
            found[name.replace("fc1_g", "fc1")] = _joined(make, makers[name.replace("fc1_g", "fc1_x")])
        elif ".mlp.fc1_x." not in name:
            found[name] = make
    return found


def _joined(*makers: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
    return lambda: np.concatenate([make() for make in makers])


TIMM_SAPIENS2 = dataclasses.replace(
    TIMM_EVA,
    name="timm_sapiens2",
    requires=(
        *(r"patch_embed\.proj\.weight", "reg_token", r"blocks\.0\.attn\.q_norm\.weight"),
        r"blocks\.0\.attn\.q_proj\.weight",
    ),
    forbids=("pos_embed", r"blocks\.0\.attn\.q_norm\.bias"),
    computes=_computes,
    position_embedding="none",
    written_steps=(_packed,),
)
