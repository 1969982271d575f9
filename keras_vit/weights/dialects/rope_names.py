"""The layouts of timm's class `Eva` for RoPE-ViT (arXiv:2403.13298), and for timm's own models with rotary positions.

Only the learned frequencies of RoPE-ViT's mixed models are a tensor, `rope.freqs`, of all blocks together.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from keras_vit.weights.dialects.dialect import Arrays, Makers
from keras_vit.weights.dialects.eva_names import EVA_ENDS, PLAIN_BLOCK, TIMM_EVA, apart, qkv_together
from keras_vit.weights.dialects.timm_names import TOKENS, with_prefix_rows
from keras_vit.weights.reader import CheckpointError

_GRID: Mapping[str, Any] = {"rotary_layout": "interleaved", "rotary_coordinates": "grid"}
AXIAL: Mapping[str, Any] = {"rotary": "axial", "rotary_theta": 100.0, "rotary_axes": "xy", **_GRID}
MIXED: Mapping[str, Any] = {"rotary": "mixed", "rotary_theta": 10.0, "rotary_axes": "xy", **_GRID}
OF_TIMM: Mapping[str, Any] = {  # timm's own models
    **{"rotary": "axial", "rotary_theta": 10000.0, "rotary_axes": "yx", "rotary_reference": 16, **_GRID}
}
_FREQUENCIES = "rotary_positions_00/frequencies"
_OF_ALL = "rope.freqs"
_BLOCK = ("block_{block:02}/", "blocks.{block}.")


def _of_each_block(arrays: Arrays, num_patches: int | None) -> Arrays:
    """The learned frequencies, `(2, L, A, D/A/2)` in the file, as an array for each block."""
    found = dict(arrays)
    frequencies = found.pop(_OF_ALL, None)
    if frequencies is None:
        return found
    if frequencies.ndim != 4 or len(frequencies) != 2:
        raise CheckpointError(
            "the learned frequencies must be those of 2 axes, all blocks, heads and pairs of channels.\n"
            f"Received: {_OF_ALL}, shape {frequencies.shape}."
        )
    return found | {f"{_OF_ALL}.{block}.f": frequencies[:, block] for block in range(frequencies.shape[1])}


def _of_all_blocks(makers: Makers) -> Makers:
    names = [name for name in makers if name.startswith(f"{_OF_ALL}.")]
    if not names:
        return makers
    parts = [makers[f"{_OF_ALL}.{block}.f"] for block in range(len(names))]
    others = {name: make for name, make in makers.items() if name not in names}
    return others | {_OF_ALL: lambda: np.stack([part() for part in parts], axis=1)}


def _without_class_row(makers: Makers) -> Makers:
    """Adds the class token's row of the table to the token, since timm's table has none."""
    token, table = makers.get("cls_token"), makers.get("pos_embed")
    if token is None or table is None:
        return makers
    return makers | {"cls_token": functools.partial(_placed, token, table), "pos_embed": lambda: table()[:, 1:]}


def _placed(token: Callable[[], np.ndarray], table: Callable[[], np.ndarray]) -> np.ndarray:
    return token() + table()[:, :1]


def _computes(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return dict(MIXED if _FREQUENCIES in tensors else AXIAL)


TIMM_ROPE = dataclasses.replace(
    TIMM_EVA,
    name="timm_rope",
    folder=None,
    requires=(r"patch_embed\.proj\.weight", "cls_token", r"blocks\.0\.gamma_1", r"blocks\.0\.attn\.qkv\.bias"),
    forbids=("reg_token", r".*relative_position_bias_table", r"norm_pre\.weight"),
    names={
        ("", ""): {ours: TOKENS[ours] for ours in ("class_token/token", "position_embedding/table", *EVA_ENDS)},
        _BLOCK: PLAIN_BLOCK,
        ("rotary_positions_{block:02}/", f"{_OF_ALL}.{{block}}."): {"frequencies": "f"},
    },
    read_steps=(with_prefix_rows, apart, _of_each_block),
    written_steps=(qkv_together, _without_class_row, _of_all_blocks),
    computes=_computes,
    position_embedding="none",
)
TIMM_ROPE_REGISTERS = dataclasses.replace(
    TIMM_EVA,
    name="timm_rope_registers",
    folder=None,
    requires=(r"patch_embed\.proj\.weight", "reg_token", r"blocks\.0\.gamma_1", r"blocks\.0\.attn\.qkv\.weight"),
    forbids=(
        "cls_token",
        "pos_embed",
        r".*relative_position_bias_table",
        r"norm_pre\.weight",
        r"blocks\.0\.attn\.qkv\.bias",
    ),
    names={
        ("", ""): {ours: TOKENS[ours] for ours in ("register_tokens/tokens", *EVA_ENDS)},
        _BLOCK: PLAIN_BLOCK,
    },
    read_steps=(apart,),
    written_steps=(qkv_together,),
    computes=lambda tensors: dict(OF_TIMM),
    position_embedding="none",
)
