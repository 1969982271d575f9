"""The layout of Sapiens2 in timm's class `Eva` (arXiv:2604.21681).

RMSNorm, normed queries and keys, keys and values that groups of heads share, and DINOv3's rotary positions.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_vit.weights.dialects.dialect import Makers, Names
from keras_vit.weights.dialects.dinov3_names import ROTARY
from keras_vit.weights.dialects.eva_names import BLOCK, TIMM_EVA
from keras_vit.weights.dialects.renames import Layers


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


_QK_NORMS: Layers = {f"attention/{part}_norm": f"attn.{part[0]}_norm" for part in ("query", "key")}
_ENDS = ("class_token/token", "register_tokens/tokens", "patch_embedding/projection", "encoder_norm", "head")
_NAMES: Names = {
    ("", ""): {ours: theirs for ours, theirs in TIMM_EVA.names["", ""].items() if ours in _ENDS},
    ("block_{block:02}/", "blocks.{block}."): {
        **{ours: theirs for ours, theirs in BLOCK.items() if ours not in ("attention/norm", "mlp/norm")},
        **_QK_NORMS,
    },
}
TIMM_SAPIENS2 = dataclasses.replace(
    TIMM_EVA,
    name="timm_sapiens2",
    requires=(
        *(r"patch_embed\.proj\.weight", "reg_token", r"blocks\.0\.attn\.q_norm\.weight"),
        r"blocks\.0\.attn\.q_proj\.weight",
    ),
    forbids=("pos_embed", r"blocks\.0\.attn\.q_norm\.bias"),
    names=_NAMES,
    computes=_computes,
    position_embedding="none",
    written_steps=(_packed,),
)
