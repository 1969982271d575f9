"""The layouts of BiT's ResNet baselines in `.npz` files, translated to our weight paths and back.

`"bit"` is the published one: TensorFlow's names below `resnet/`, of which some files number the convolutions, as
`standardized_conv2d_7`. `"bit_paper"` is big_vision's. Both keep kernels as they are here, but for the published head:
a 1x1 convolution. big_vision keeps GroupNorm as (1, 1, 1, C), the published files as (C,).
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from keras_vit.weights.reader import CheckpointError

DIALECTS = ("bit", "bit_paper")

_NUMBER = re.compile(r"/(standardized_conv2d|group_norm|conv2d)_\d+/")
_UNIT = "resnet_stage_{stage}_unit_{unit}/"
_PLAIN = {  # ours: (published, big_vision)
    "resnet_root/conv/kernel": ("root_block/standardized_conv2d/kernel", "root_block/conv_root/kernel"),
    "resnet_norm/gamma": ("group_norm/gamma", "norm-pre-head/scale"),
    "resnet_norm/beta": ("group_norm/beta", "norm-pre-head/bias"),
    "head/kernel": ("head/conv2d/kernel", "head/kernel"),
    "head/bias": ("head/conv2d/bias", "head/bias"),
}
_PARTS = {  # below a unit, ours: (published, big_vision)
    "conv_proj/kernel": ("a/proj/standardized_conv2d/kernel", "conv_proj/kernel"),
    **{
        f"conv_{number}/kernel": (f"{letter}/standardized_conv2d/kernel", f"conv{number}/kernel")
        for number, letter in enumerate("abc", start=1)
    },
    **{
        f"norm_{number}/{ours}": (f"{letter}/group_norm/{ours}", f"gn{number}/{theirs}")
        for number, letter in enumerate("abc", start=1)
        for ours, theirs in (("gamma", "scale"), ("beta", "bias"))
    },
}
PREFIX = "resnet/"  # of the published names
MARKS = {dialect: _PLAIN["resnet_root/conv/kernel"][index] for index, dialect in enumerate(DIALECTS)}


def recognise(names) -> str | None:
    """Which of the two layouts the names are of, `resnet/` or another prefix taken off, or `None`."""
    names = {_NUMBER.sub(r"/\1/", name) for name in names}
    return next((dialect for dialect, mark in MARKS.items() if mark in names), None)


def from_bit(arrays: Mapping[str, np.ndarray], dialect: str) -> dict[str, np.ndarray]:
    """`{name without prefix: array}` to `{our path: array}`; names it does not know are kept as they are.

    Raises:
        CheckpointError: if two names are one without their number.
    """
    tensors: dict[str, np.ndarray] = {}
    for name, array in arrays.items():
        path = our_path(_NUMBER.sub(r"/\1/", f"/{name}").removeprefix("/"), dialect) or name
        if path in tensors:
            raise CheckpointError(
                "names in the published layout of BiT may carry a number that says nothing, so without it each must "
                f"stand once.\nReceived: {name} and another name for {path}."
            )
        tensors[path] = _folded(path, array)
    return tensors


def to_bit(tensors: Mapping[str, np.ndarray], dialect: str) -> Iterator[tuple[str, np.ndarray]]:
    """`{our path: array}` to pairs of foreign name and array, one at a time.

    Raises:
        CheckpointError: for a path that the layout has no name for.
    """
    for path, array in tensors.items():
        name = _bit_name(path, dialect)
        if dialect == "bit":
            yield PREFIX + name, array[None, None] if path == "head/kernel" else array
        else:
            yield name, array.reshape(1, 1, 1, -1) if _is_norm(path) else array


def our_path(name: str, dialect: str) -> str | None:
    """Our path for a name without prefix and number, or `None`."""
    index = DIALECTS.index(dialect)
    if plain := next((ours for ours, theirs in _PLAIN.items() if theirs[index] == name), None):
        return plain
    match = re.fullmatch(r"block([1-9]\d*)/unit(\d\d+)/(.+)", name)
    part = match and next((ours for ours, theirs in _PARTS.items() if theirs[index] == match[3]), None)
    return _UNIT.format(stage=match[1], unit=int(match[2])) + part if match and part else None


def _bit_name(path, dialect):
    index = DIALECTS.index(dialect)
    if path in _PLAIN:
        return _PLAIN[path][index]
    match = re.fullmatch(r"resnet_stage_(\d+)_unit_(\d+)/(.+)", path)
    if match and match[3] in _PARTS:
        return f"block{match[1]}/unit{int(match[2]):02}/{_PARTS[match[3]][index]}"
    raise CheckpointError(
        f"the {dialect} layout has no place for this weight.\nReceived: {path}. It is that of BiT's ResNets."
    )


def _folded(path, array):
    """An array of a file as ours: the head's kernel (D, K), GroupNorm a vector."""
    if path == "head/kernel" and array.shape[:-2] == (1, 1):
        return array[0, 0]
    if _is_norm(path) and array.shape[:-1] == (1, 1, 1):
        return array.reshape(-1)
    return array


def _is_norm(path):
    return path.endswith(("/gamma", "/beta"))
