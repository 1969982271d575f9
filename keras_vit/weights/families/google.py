"""The layouts of Google's `.npz` files: the official code, big_vision, and BiT's ResNet baselines.

Published files of the official code number the parts of a block by their place, today's Linen names by class. No array
is transposed: heads are an axis of their own. big_vision has the Linen names; its blocks may be scanned, one array with
a leading axis for all blocks, and its position table has no row for the class token. Published names of BiT are
TensorFlow's below `resnet/`.
"""

import dataclasses
import re
from collections.abc import Callable, Collection

import numpy as np

from keras_vit.config.position_tables import square_grid
from keras_vit.weights.families.layout import PLAIN_PARTS, Arrays, Layout, Makers, Names
from keras_vit.weights.families.renames import FLAX, Layers, Style, UnitAxes, with_units
from keras_vit.weights.read import CheckpointError

TABLE, LINEN_MLP = "Transformer/posembed_input/pos_embedding", ".*/MlpBlock_0/.*"
# Where a trainer or a two-tower model puts the weights, most specific first.
PREFIXES = ("params/img/", "params/", "opt/target/img/", "opt/target/", "img/", "")
BLOCKS = ("block_{block:02}/", "Transformer/encoderblock_{block}/")
ENDS: Layers = {
    "class_token/token": "cls",
    "patch_embedding/projection": "embedding",
    "encoder_norm": "Transformer/encoder_norm",
    "pre_logits": "pre_logits",
    "head": "head",
}
_NAMES: Names = {("", ""): {**ENDS, "position_embedding/table": TABLE}}
STEM: Names = {
    ("resnet_root/", ""): {"conv": "conv_root", "norm": "gn_root"},
    ("resnet_stage_{stage}_unit_{unit}/", "block{stage}/unit{unit}/"): {
        **{f"conv_{part}": f"conv{part}" for part in "123"},
        **{f"norm_{part}": f"gn{part}" for part in "123"},
        "conv_proj": "conv_proj",
        "norm_proj": "gn_proj",
    },
}


def _attention_and_mlp(attention: str, mlp: str) -> Layers:
    """The layers of attention and MLP, in a block or in attention pooling, which have these names there."""
    parts: Layers = {f"attention/{part}": f"{attention}/{part}" for part in ("query", "key", "value", "out")}
    return {**parts, "mlp/dense_1": f"{mlp}/Dense_0", "mlp/dense_2": f"{mlp}/Dense_1"}


OFFICIAL = Layout(
    "official",
    "the official code",
    ".npz",
    with_units(FLAX),
    requires=("embedding/kernel",),
    names={
        **_NAMES,
        BLOCKS: {
            "norm_1": "LayerNorm_0",
            "norm_2": "LayerNorm_2",
            **_attention_and_mlp("MultiHeadDotProductAttention_1", "MlpBlock_3"),
        },
        **STEM,
    },
    prefixes=PREFIXES,
    parts={**PLAIN_PARTS, "class_token": (True, False)},
    activation="gelu_tanh",
    layer_norm_epsilon=1e-6,
)
LINEN_BLOCK: Layers = {
    "norm_1": "LayerNorm_0",
    "norm_2": "LayerNorm_1",
    **_attention_and_mlp("MultiHeadDotProductAttention_0", "MlpBlock_0"),
}
LINEN = dataclasses.replace(
    OFFICIAL,
    name="linen",
    style=with_units(FLAX, written=False),
    requires=("embedding/kernel", LINEN_MLP, TABLE),
    names={**_NAMES, BLOCKS: LINEN_BLOCK, **STEM},
)


_VISION_TABLE, _OLD_TABLE, _TOKEN = "pos_embedding", "Transformer/pos_embedding", "cls"
_SCANNED = "Transformer/encoderblock/"
_POOLING: Layers = {
    "probe": "probe",
    "norm": "LayerNorm_0",
    **_attention_and_mlp("MultiHeadDotProductAttention_0", "MlpBlock_0"),
}


def _split_blocks(arrays: Arrays, num_patches: int | None) -> Arrays:
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


def _add_class_row(arrays: Arrays, num_patches: int | None) -> Arrays:
    """Adds the row of zeros that a class token has here; a row that is there already stays."""
    name = _VISION_TABLE if _VISION_TABLE in arrays else _OLD_TABLE
    table = arrays.get(name)
    if table is None or table.ndim != 3 or _TOKEN not in arrays:
        return arrays
    rows = table.shape[1]
    if num_patches == rows - 1 or (num_patches is None and not square_grid(rows) and square_grid(rows - 1)):
        return arrays  # of an older big_vision, which had the row
    return arrays | {name: np.concatenate([np.zeros_like(table[:, :1]), table], axis=1)}  # (1, T, D)


def _fold_class_row(makers: Makers) -> Makers:
    """Adds the class token's row of the table to the token itself, so that the encoder gets the same input."""
    if not {_VISION_TABLE, _TOKEN} <= makers.keys():
        return makers
    table, token = makers[_VISION_TABLE], makers[_TOKEN]
    return makers | {_VISION_TABLE: lambda: table()[:, 1:], _TOKEN: lambda: token() + table()[:, :1]}


BIG_VISION = Layout(
    "big_vision",
    "big_vision",
    ".npz",
    with_units(FLAX, written=False),
    # Without a table, positions are sines and cosines; then Linen names distinguish it from a published file.
    requires=("embedding/kernel", rf"{_VISION_TABLE}|{_OLD_TABLE}|(MAPHead_0/)?probe|{_SCANNED}.*|{LINEN_MLP}"),
    forbids=(TABLE,),
    names={
        ("", ""): {**ENDS, "position_embedding/table": _VISION_TABLE},
        BLOCKS: LINEN_BLOCK,
        ("pooling/", "MAPHead_0/"): _POOLING,
    },
    also={("pooling/", ""): _POOLING, ("position_embedding/", "Transformer/"): {"table": "pos_embedding"}, **STEM},
    prefixes=PREFIXES,
    prefix="params/",
    read_steps=(_split_blocks, _add_class_row),
    written_steps=(_fold_class_row,),
    parts={
        **PLAIN_PARTS,
        "class_token": (True, False),
        "position_table": (True, False),
        "prefix_rows": ("none", "all"),
    },
    activation="gelu_tanh",
    layer_norm_epsilon=1e-6,
    position_embedding="sincos2d",
    void_is_bfloat16=True,
)


_NUMBER = re.compile(r"(^|/)(standardized_conv2d|group_norm|conv2d)_\d+/")
_UNITS = ("resnet_stage_{stage}_unit_{unit}/", "block{stage}/unit{unit:02}/")
_CONV, _BIT_PARTS = "standardized_conv2d", {"1": "a", "2": "b", "3": "c"}
_KERAS = Style("/", {leaf: leaf for leaf in ("gamma", "beta", "kernel", "bias")}, {"head/kernel": UnitAxes(2, 2)})


def _strip_numbers(names: Collection[str]) -> Callable[[str], str]:
    return lambda name: _NUMBER.sub(r"\1\2/", name)


BIT = Layout(
    "bit",
    "BiT's code",
    ".npz",
    with_units(_KERAS, written=False),
    requires=(r"root_block/standardized_conv2d(_\d+)?/kernel",),
    names={
        ("", ""): {"resnet_root/conv": f"root_block/{_CONV}", "resnet_norm": "group_norm", "head": "head/conv2d"},
        _UNITS: {
            "conv_proj": f"a/proj/{_CONV}",
            **{f"conv_{number}": f"{letter}/{_CONV}" for number, letter in _BIT_PARTS.items()},
            **{f"norm_{number}": f"{letter}/group_norm" for number, letter in _BIT_PARTS.items()},
        },
    },
    prefixes=(*(f"{prefix}resnet/" for prefix in PREFIXES), *PREFIXES),
    prefix="resnet/",
    read_names=_strip_numbers,
)
BIT_PAPER = dataclasses.replace(
    BIT,
    name="bit_paper",
    software="big_vision",
    style=with_units(FLAX),
    requires=("root_block/conv_root/kernel",),
    names={
        ("", ""): {"resnet_root/conv": "root_block/conv_root", "resnet_norm": "norm-pre-head", "head": "head"},
        _UNITS: {
            "conv_proj": "conv_proj",
            **{f"conv_{number}": f"conv{number}" for number in _BIT_PARTS},
            **{f"norm_{number}": f"gn{number}" for number in _BIT_PARTS},
        },
    },
    prefix="",
    void_is_bfloat16=True,
)
