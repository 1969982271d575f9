"""How a table of names translates weight paths to names in a file, and back.

`{internal: external}` names layers: here, and in a file. The name of a layer here decides which weights it has. The
style of the software decides what these are called in its files, and how their shapes differ. Arrays stay views as far
as NumPy can.
"""

import dataclasses
import functools
import re
import string
from collections.abc import Iterator, Mapping

import numpy as np

from keras_vit.weights.read import CheckpointError

Layers = Mapping[str | tuple[str, ...], str]  # {internal: external}; a tuple is one fused array in the file
MLP: Layers = {"mlp/dense_1": "mlp.fc1", "mlp/dense_2": "mlp.fc2"}


class Reshape:
    """How the shapes of an array here and in a file differ. This base class is for equal shapes."""

    def from_file(self, array: np.ndarray) -> np.ndarray:
        """The model's array. One of an unexpected rank stays as it is, and the check of the fit refuses it."""
        return array

    def to_file(self, array: np.ndarray, num_heads: int | None) -> np.ndarray:
        """The array as the file has it."""
        return array

    def read_num_heads(self, array: np.ndarray) -> int | None:
        """A, the number of heads, if the shape of the file's array has it."""
        return None


SAME = Reshape()


class OutputsFirst(Reshape):
    """The file has (out, in) or (out, in, height, width), the model (in, out) or (height, width, in, out)."""

    def from_file(self, array: np.ndarray) -> np.ndarray:
        return array.transpose({2: (1, 0), 4: (2, 3, 1, 0)}.get(array.ndim, range(array.ndim)))

    def to_file(self, array: np.ndarray, num_heads: int | None) -> np.ndarray:
        return array.transpose({2: (1, 0), 4: (3, 2, 0, 1)}[array.ndim])


class Depthwise(Reshape):
    """The kernel of a convolution of each channel: in the file (channels, 1, height, width)."""

    def from_file(self, array: np.ndarray) -> np.ndarray:
        return array.transpose(2, 3, 0, 1) if array.ndim == 4 else array

    def to_file(self, array: np.ndarray, num_heads: int | None) -> np.ndarray:
        return array.transpose(2, 3, 0, 1)


@dataclasses.dataclass(frozen=True)
class Heads(Reshape):
    """The file has an axis for the attention heads, as (D, A, D/A), where the model has (D, D)."""

    axis: int
    rank: int  # of the file's array

    def from_file(self, array: np.ndarray) -> np.ndarray:
        if array.ndim != self.rank:
            return array
        heads, size = array.shape[self.axis : self.axis + 2]
        return array.reshape(*array.shape[: self.axis], heads * size, *array.shape[self.axis + 2 :])

    def to_file(self, array: np.ndarray, num_heads: int | None) -> np.ndarray:
        if num_heads is None:
            raise TypeError("an axis for the heads needs their number.\nReceived: num_heads=None.")
        before, after = array.shape[: self.axis], array.shape[self.axis + 1 :]
        return array.reshape(*before, num_heads, array.shape[self.axis] // num_heads, *after)

    def read_num_heads(self, array: np.ndarray) -> int | None:
        return array.shape[self.axis] if array.ndim == self.rank else None


@dataclasses.dataclass(frozen=True)
class UnitAxes(Reshape):
    """Axes of length 1 stand before the file's array, as (1, 1, 1, C). A file without them is read too."""

    count: int
    rank: int  # of the model's array
    written: bool = True

    def from_file(self, array: np.ndarray) -> np.ndarray:
        has_them = array.ndim == self.count + self.rank and array.shape[: self.count] == (1,) * self.count
        return array.reshape(array.shape[self.count :]) if has_them else array

    def to_file(self, array: np.ndarray, num_heads: int | None) -> np.ndarray:
        return array.reshape(*(1,) * self.count, *array.shape) if self.written else array


@dataclasses.dataclass(frozen=True)
class NoUnitAxes(Reshape):
    """The file's array lacks the leading axes of length 1."""

    count: int

    def from_file(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(*(1,) * self.count, *array.shape)

    def to_file(self, array: np.ndarray, num_heads: int | None) -> np.ndarray:
        return array.reshape(array.shape[self.count :])


@dataclasses.dataclass(frozen=True)
class Style:
    """The names that a software gives to the weights of a layer, and their shapes.

    Attributes:
        separator: between a layer and its weight.
        leaves: `{weight here: weight in the file}`.
        reshapes: by the weight here, or by a kind of layer and the weight, as `"query/kernel"`.
    """

    separator: str
    leaves: Mapping[str, str]
    reshapes: Mapping[str, Reshape]

    def renames(self, internal: str | tuple[str, ...], external: str, prefix: str) -> Iterator["Rename"]:
        """The renames of a layer's weights, or of several layers that are fused in the file."""
        parts = (internal,) if isinstance(internal, str) else internal
        kind, leaves = _kind(prefix + parts[0])
        if not leaves:
            yield Rename(parts, external, self.reshapes.get(kind, SAME))
        for leaf in leaves:
            reshape = self.reshapes.get(f"{kind}/{leaf}") or self.reshapes.get(leaf, SAME)
            names = tuple(f"{part}/{leaf}" for part in parts)
            yield Rename(names, external + self.separator + self.leaves[leaf], reshape)


def _kind(layer: str) -> tuple[str, tuple[str, ...]]:
    """The kind of the layer at a path, and the names of its weights. A path of a weight itself has none."""
    last = layer.rpartition("/")[2]
    if last in ("kernel", "bias"):
        return "weight", ()
    if last in (
        "token",
        "tokens",
        "embeddings",
        "table",
        "rows",
        "columns",
        "probe",
        "queries",
        "gamma",
        "frequencies",
        "periods",
        "class_angles",
    ):
        return last, ()
    if last.startswith("batch_norm"):
        return "batch_norm", ("gamma", "beta", "moving_mean", "moving_variance")
    if "norm" in last:
        return "group_norm" if layer.startswith("resnet_") else "norm", ("gamma", "beta")
    if last.startswith("conv"):
        return "conv", ("kernel",)
    if last.startswith("depthwise"):
        return "depthwise", ("kernel",)
    return "query" if last in ("key", "value") else last, ("kernel", "bias")


TORCH = Style(
    ".",
    {
        **{"gamma": "weight", "beta": "bias", "kernel": "weight", "bias": "bias"},
        **{"moving_mean": "running_mean", "moving_variance": "running_var"},
    },
    {"kernel": OutputsFirst(), "depthwise/kernel": Depthwise()},
)
FLAX = Style(
    "/",
    {"gamma": "scale", "beta": "bias", "kernel": "kernel", "bias": "bias"},
    {"query/kernel": Heads(1, 3), "query/bias": Heads(0, 2), "out/kernel": Heads(0, 3)},
)


def with_units(style: Style, written: bool = True) -> Style:
    """The style with GroupNorm of shape (1, 1, 1, C) in some files; `written` is whether files are written so."""
    units = UnitAxes(3, 1, written)
    return dataclasses.replace(style, reshapes={**style.reshapes, "group_norm/gamma": units, "group_norm/beta": units})


@dataclasses.dataclass(frozen=True)
class Rename:
    """The name of an array in the file, and the paths of its weights: several where the file fuses them."""

    internal: tuple[str, ...]
    external: str
    reshape: Reshape = SAME

    def from_file(self, name: str, array: np.ndarray) -> list[np.ndarray]:
        """The array of the file as one array for each internal path."""
        count = len(self.internal)
        if count > 1 and (array.ndim == 0 or array.shape[0] % count):
            raise CheckpointError(
                f"a fused matrix must have {count} equal parts in its rows.\nReceived: {name}, shape {array.shape}."
            )
        return [self.reshape.from_file(part) for part in (np.split(array, count) if count > 1 else [array])]

    def to_file(self, tensors: Mapping[str, np.ndarray], num_heads: int | None) -> np.ndarray:
        """The internal arrays among `tensors` as the one of the file."""
        arrays = [self.reshape.to_file(tensors[path], num_heads) for path in self.internal]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


class Group:
    """Layers below an internal prefix and one of the file, both with the same numbers.

    `{block}` in a prefix stands for a number, `{block:02}` for one of at least two digits. All but blocks are counted
    from 1; `{stage-1}` counts them from 0.
    """

    def __init__(self, internal: str, external: str, layers: Layers, style: Style) -> None:
        self._prefixes = {"internal": internal, "external": external}
        renames = [rename for names in layers.items() for rename in style.renames(*names, internal)]
        self._renames = {
            "internal": {part: rename for rename in renames for part in rename.internal},
            "external": {rename.external: rename for rename in renames},
        }

    def find(self, name: str, side: str) -> Rename | None:
        """The rename in which `name` stands on this side, `"internal"` or `"external"`, with whole names on both."""
        prefix = self._prefixes[side]
        numbers = _numbers(prefix, name)
        if numbers is None:
            return None
        rename = self._renames[side].get(name.removeprefix(prefix.format_map(numbers)))
        if rename is None:
            return None
        internal, external = (prefix.format_map(numbers) for prefix in self._prefixes.values())
        return Rename(tuple(internal + part for part in rename.internal), external + rename.external, rename.reshape)


def _numbers(prefix: str, name: str) -> dict[str, int] | None:
    """The numbers by which `name` begins with `prefix`, if they are spelled as it spells them."""
    pattern, fields = _compiled(prefix)
    match = pattern.match(name)
    if match is None:
        return None
    numbers: dict[str, int] = {}
    for field, digits in zip(fields, match.groups(), strict=True):
        counted = field.removesuffix("-1")
        number = int(digits) + (counted != field)
        numbers |= {counted: number, f"{counted}-1": number - 1}
        if counted != "block" and not number:
            return None
    return numbers if name.startswith(prefix.format_map(numbers)) else None  # encoderblock_00 is not block 0


@functools.cache
def _compiled(prefix: str) -> tuple[re.Pattern, tuple[str, ...]]:
    parts = [(literal, field) for literal, field, *_ in string.Formatter().parse(prefix)]
    pattern = "".join(re.escape(literal) + ("([0-9]{1,9})" if field else "") for literal, field in parts)
    return re.compile(pattern), tuple(field for _, field in parts if field)
