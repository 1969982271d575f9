"""The layout of big_vision's `.npz` files.

Blocks have the Linen names of the official code, and may be scanned: one array with a leading axis for all blocks. The
position table has no row for the class token. Attention pooling is `MAPHead_0`.
"""

import numpy as np

from keras_vit.config.posembed import square_grid
from keras_vit.weights.dialects.dialect import Arrays, Dialect, Makers
from keras_vit.weights.dialects.official_names import (
    BLOCKS,
    ENDS,
    LINEN_BLOCK,
    LINEN_MLP,
    PREFIXES,
    STEM,
    TABLE,
    attention_and_mlp,
)
from keras_vit.weights.dialects.renames import FLAX, Layers, with_units
from keras_vit.weights.reader import CheckpointError

_TABLE, _OLD_TABLE, _TOKEN = "pos_embedding", "Transformer/pos_embedding", "cls"
_SCANNED = "Transformer/encoderblock/"
_POOLING: Layers = {
    "probe": "probe",
    "norm": "LayerNorm_0",
    **attention_and_mlp("MultiHeadDotProductAttention_0", "MlpBlock_0"),
}


def _blocks_apart(arrays: Arrays, num_patches: int | None) -> Arrays:
    """Splits scanned arrays into one for each block. We write blocks apart, since every reader takes them."""
    apart = {}
    for name, array in arrays.items():
        if not name.startswith(_SCANNED):
            apart[name] = array
            continue
        if array.ndim == 0:
            raise CheckpointError(
                f"a scanned array must have the blocks as its first axis.\nReceived: {name}, shape ()."
            )
        for index, part in enumerate(array):
            apart[f"Transformer/encoderblock_{index}/{name.removeprefix(_SCANNED)}"] = part
    return apart


def _with_class_row(arrays: Arrays, num_patches: int | None) -> Arrays:
    """Adds the row of zeros that a class token has here; a row that is there already stays."""
    name = _TABLE if _TABLE in arrays else _OLD_TABLE
    table = arrays.get(name)
    if table is None or table.ndim != 3 or _TOKEN not in arrays:
        return arrays
    rows = table.shape[1]
    if num_patches == rows - 1 or (num_patches is None and not square_grid(rows) and square_grid(rows - 1)):
        return arrays  # of an older big_vision, which had the row
    return arrays | {name: np.concatenate([np.zeros_like(table[:, :1]), table], axis=1)}  # (1, T, D)


def _without_class_row(makers: Makers) -> Makers:
    """Adds the class token's row of the table to the token itself, so that the encoder gets the same input."""
    if not {_TABLE, _TOKEN} <= makers.keys():
        return makers
    table, token = makers[_TABLE], makers[_TOKEN]
    return makers | {_TABLE: lambda: table()[:, 1:], _TOKEN: lambda: token() + table()[:, :1]}


BIG_VISION = Dialect(
    "big_vision",
    "big_vision",
    ".npz",
    with_units(FLAX, written=False),
    # Without a table, positions are sines and cosines; then Linen names tell it from a published file.
    requires=("embedding/kernel", rf"{_TABLE}|{_OLD_TABLE}|(MAPHead_0/)?probe|{_SCANNED}.*|{LINEN_MLP}"),
    forbids=(TABLE,),
    names={
        ("", ""): {**ENDS, "position_embedding/table": _TABLE},
        BLOCKS: LINEN_BLOCK,
        ("pooling/", "MAPHead_0/"): _POOLING,
    },
    also={("pooling/", ""): _POOLING, ("position_embedding/", "Transformer/"): {"table": "pos_embedding"}, **STEM},
    prefixes=PREFIXES,
    prefix="params/",
    read_steps=(_blocks_apart, _with_class_row),
    written_steps=(_without_class_row,),
    activation="gelu_tanh",
    layer_norm_epsilon=1e-6,
    position_embedding="sincos2d",
    void_is_bfloat16=True,
)
