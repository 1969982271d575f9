"""The layout of big_vision's `.npz` files, translated to our weight paths and back.

Blocks have the Linen names of the official code; what differs is translated to those first: the position
table has no row for the class token, blocks may be scanned (one array with a leading axis for all), and
attention pooling is `MAPHead_0`. Where the trainer keeps its own state beside the weights, they are below
`params/` or `opt/target/`; the image tower of a two-tower model is below `img/`.
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from keras_vit.config.posembed import square_grid
from keras_vit.weights.dialects.official import fold_heads, from_official, heads_of, to_official, unfold_heads
from keras_vit.weights.reader import CheckpointError

_TABLE, _OFFICIAL_TABLE = "pos_embedding", "Transformer/posembed_input/pos_embedding"
_POOLING = {  # below MAPHead_0: below our `pooling`
    "probe": "probe",
    "LayerNorm_0/scale": "norm/gamma",
    "LayerNorm_0/bias": "norm/beta",
    **{
        f"MultiHeadDotProductAttention_0/{part}/{leaf}": f"attention/{part}/{leaf}"
        for part in ("query", "key", "value", "out")
        for leaf in ("kernel", "bias")
    },
    **{f"MlpBlock_0/Dense_{i}/{leaf}": f"mlp/dense_{i + 1}/{leaf}" for i in (0, 1) for leaf in ("kernel", "bias")},
}
_TO_POOLING = {ours: theirs for theirs, ours in _POOLING.items()}
_INLINED_HEAD = re.compile(r"(probe|LayerNorm_0|MultiHeadDotProductAttention_0|MlpBlock_0)(/|$)")


def recognise(names) -> bool:
    """Whether the names, their prefix taken off, are of this layout."""
    if "embedding/kernel" not in names or _OFFICIAL_TABLE in names:
        return False
    marks = (_TABLE, "Transformer/pos_embedding", "probe", "MAPHead_0/probe")
    scanned = any(name.startswith("Transformer/encoderblock/") for name in names)
    linen = any("/MlpBlock_0/" in name for name in names)  # without a table: sin-cos positions
    return scanned or linen or any(mark in names for mark in marks)


def from_big_vision(
    arrays: dict[str, np.ndarray], num_patches: int | None = None
) -> tuple[dict[str, np.ndarray], int | None]:
    """`{name without prefix: array}` to `{our path: array}` and the number of heads."""
    arrays = dict(_unscanned(arrays))
    heads = heads_of(arrays)
    table = arrays.pop(_TABLE, None)
    table = arrays.pop("Transformer/pos_embedding", None) if table is None else table  # of an older big_vision
    pooling = {name: array for name, array in arrays.items() if _is_pooling(name)}
    tensors = from_official({name: array for name, array in arrays.items() if name not in pooling}, "linen")
    for name, array in pooling.items():
        tensors[_pooling_path(name)] = fold_heads(name, array)
    if table is not None:
        tensors["position_embedding/table"] = _with_class_row(table, tensors, num_patches)
    return tensors, heads


def to_big_vision(tensors: Mapping[str, np.ndarray], num_heads: int) -> Iterator[tuple[str, np.ndarray]]:
    """`{our path: array}` to pairs of name below `params/` and array.

    The class token's row of the position table is added to the class token, so the sum that enters the
    encoder stays the same while the two numbers do not come back apart.

    Raises:
        CheckpointError: for a path that the layout has no name for.
    """
    if any(path.startswith("resnet_") for path in tensors):
        raise CheckpointError("the big_vision layout has no place for a ResNet stem. Save as official or timm.")
    table, token = tensors.get("position_embedding/table"), tensors.get("class_token/token")
    if table is not None:
        yield f"params/{_TABLE}", table if token is None else table[:, 1:]
    if token is not None:
        yield "params/cls", token if table is None else token + table[:, :1]
    rest = [path for path in tensors if path not in ("position_embedding/table", "class_token/token")]
    for path in rest:
        if path.startswith("pooling/"):
            yield _pooling_name(path), unfold_heads(path, tensors[path], num_heads)
        else:
            yield _linen(path, tensors[path], num_heads)


def _unscanned(arrays):
    for name, array in arrays.items():
        if not name.startswith("Transformer/encoderblock/"):
            yield name, array
            continue
        rest = name.removeprefix("Transformer/encoderblock/")
        if array.ndim == 0:
            raise CheckpointError(
                f"a scanned array must have the blocks as its first axis.\nReceived: {name}, shape ()."
            )
        for index in range(array.shape[0]):
            yield f"Transformer/encoderblock_{index}/{rest}", array[index]


def _is_pooling(name):
    return name.startswith("MAPHead_0/") or _INLINED_HEAD.match(name) is not None


def _linen(path, array, num_heads):
    try:
        ((name, array),) = to_official({path: array}, num_heads, "linen")
    except CheckpointError as error:
        raise CheckpointError(str(error).replace("the linen layout", "the big_vision layout")) from error
    return f"params/{name}", array


def _pooling_path(name):
    ours = _POOLING.get(name.removeprefix("MAPHead_0/"))
    return name if ours is None else f"pooling/{ours}"


def _pooling_name(path):
    theirs = _TO_POOLING.get(path.removeprefix("pooling/"))
    if theirs is None:
        raise CheckpointError(f"the big_vision layout has no place for this weight.\nReceived: {path}.")
    return f"params/MAPHead_0/{theirs}"


def _with_class_row(table, tensors, num_patches):
    """The table with the row of zeros that a class token has with us; rows it has already stay."""
    if "class_token/token" not in tensors or table.ndim != 3:
        return table
    rows = table.shape[1]
    if num_patches == rows - 1 or (num_patches is None and not square_grid(rows) and square_grid(rows - 1)):
        return table  # of an older big_vision, which had the row
    return np.concatenate([np.zeros_like(table[:, :1]), table], axis=1)  # (1, T, D)
