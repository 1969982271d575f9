"""Maps `(B, h, w, C)` of other sizes: resizes as torch computes them, padding, and windows over large images.

No resize here antialiases. Each is two products with matrices, which every backend and export format has.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import keras
import numpy as np

from keras_vit.checks import ArgumentError, check_choice

_CUBIC = -0.75  # torch's and OpenCV's `a`; Keras and Pillow have -0.5
Size = tuple[int, int]
Method = Literal["bilinear", "bicubic", "nearest"]
Rule = Literal["mmseg", "dinov3", "segmenter", "eomt"]
Box = tuple[int, int, int, int]


class Padded(NamedTuple):
    """Images with zeros around them, and how many: `(top, bottom, left, right)`."""

    images: Any
    padding: tuple[int, int, int, int]


class Merged(NamedTuple):
    """Logits `(H, W, K)` of a whole photo, and its classes, int32 `(H, W)`."""

    result: Any
    classes: np.ndarray


def resize(maps: Any, size: Size, method: Method = "bilinear", align_corners: bool = False) -> Any:
    """Maps of another size, without antialiasing, as `torch.nn.functional.interpolate` gives them.

    Args:
        maps: `(B, h, w, C)`, an array or a tensor.
        size: `(H, W)`; integers, or scalar tensors of a graph.
        method: `"bilinear"`, `"bicubic"` with a = -0.75, or `"nearest"`.
        align_corners: whether the centres of the corner pixels stay where they are; otherwise the corners of pixels do.

    Returns:
        `(B, H, W, C)`: an array for an array, otherwise a tensor.

    Raises:
        ValueError: for an unknown method, a size below 1, and maps without four axes.

    Examples:
        >>> keras_vit.dense.resize(np.array([0.0, 1.0]).reshape(1, 1, 2, 1), (1, 3), align_corners=True)[0, 0, :, 0]
        array([0. , 0.5, 1. ])
    """
    check_choice("method", method, ("bilinear", "bicubic", "nearest"))
    maps, numeric = _as_maps(maps)
    if None in maps.shape[1:3] or not all(isinstance(side, (int, np.integer)) for side in size):
        return _resize_in_graph(maps, size, method, align_corners)
    if min(size) < 1:
        raise ArgumentError(f"`size` must be at least 1 by 1.\nReceived: size={tuple(size)}.")
    if tuple(maps.shape[1:3]) == tuple(size):
        return maps
    rows, columns = (_weights(n, m, method, align_corners) for n, m in zip(maps.shape[1:3], size, strict=True))
    return _product(maps, rows, columns, numeric)


def adaptive_pool(maps: Any, bins: int) -> Any:
    """Means of `bins` x `bins` windows that cover the maps and may overlap, as torch's `adaptive_avg_pool2d`.

    Args:
        maps: `(B, h, w, C)`, an array or a tensor.
        bins: windows of each axis; window i is from floor(i h / bins) to ceil((i + 1) h / bins).

    Returns:
        `(B, bins, bins, C)`.

    Raises:
        ValueError: for fewer than one bin, and maps without four axes.
    """
    maps, numeric = _as_maps(maps)
    if bins < 1:
        raise ArgumentError(f"`bins` must be at least 1.\nReceived: bins={bins}.")
    if None not in maps.shape[1:3]:
        return _product(maps, _means(maps.shape[1], bins), _means(maps.shape[2], bins), numeric)
    _, h, w, _ = keras.ops.shape(maps)
    return _graph_product(maps, _graph_means(h, bins), _graph_means(w, bins))


def pad_to_multiple(images: Any, multiple: int, where: Literal["centre", "end"] = "centre") -> Padded:
    """Images with zeros around them, so that patches of `multiple` pixels tile them.

    Args:
        images: `(B, H, W, C)`, prepared: zeros after normalisation.
        multiple: pixels.
        where: `"centre"` leaves the smaller half at top and left, as DINOv2; `"end"` pads at bottom and right, as
            Segmenter.

    Returns:
        `images` and `padding` as `(top, bottom, left, right)`.

    Raises:
        ValueError: for an unknown place, a multiple below 1, and images without four axes.
    """
    check_choice("where", where, ("centre", "end"))
    images, numeric = _as_maps(images)
    if multiple < 1:
        raise ArgumentError(f"`multiple` must be at least 1 pixel.\nReceived: multiple={multiple}.")
    missing = [-size % multiple for size in images.shape[1:3]]
    before = [each // 2 if where == "centre" else 0 for each in missing]
    (top, left), (bottom, right) = before, [each - one for each, one in zip(missing, before, strict=True)]
    return Padded(numeric.pad(images, ((0, 0), (top, bottom), (left, right), (0, 0))), (top, bottom, left, right))


def windows(size: Size, window: int | Size, stride: int | Size | None = None, rule: Rule = "mmseg") -> list[Box]:
    """Boxes that cover an image, rows first; the last of each axis is moved back into the image.

    Args:
        size: `(H, W)` of the image.
        window: side of a box, or `(rows, columns)`. An image that is smaller has one smaller box.
        stride: from box to box, or `(rows, columns)`; by default the window.
        rule: `"mmseg"` of mmsegmentation and DINOv2; `"dinov3"`, where an image smaller than the window on both sides
            has boxes of its shorter side; `"segmenter"`; `"eomt"`, with even overlaps along the longer side alone.

    Returns:
        `(y0, x0, y1, x1)` of each.

    Raises:
        ValueError: for an unknown rule, and sizes, windows or strides below 1.

    Examples:
        >>> keras_vit.dense.windows((512, 683), 512, 341)
        [(0, 0, 512, 512), (0, 171, 512, 683)]
    """
    check_choice("rule", rule, ("mmseg", "dinov3", "segmenter", "eomt"))
    sides = _pair(window)
    steps = sides if stride is None else _pair(stride)
    if min(*size, *sides, *steps) < 1:
        raise ArgumentError(
            f"sizes, windows and strides must be at least 1.\nReceived: size={tuple(size)}, window={window}, "
            f"stride={stride}."
        )
    if rule == "dinov3" and size[0] < sides[0] and size[1] < sides[1]:
        sides = (min(size), min(size))
    starts = [_starts(n, side, step, rule) for n, side, step in zip(size, sides, steps, strict=True)]
    ends = [[min(start + side, n) for start in of] for of, side, n in zip(starts, sides, size, strict=True)]
    rows, columns = (list(zip(of, to, strict=True)) for of, to in zip(starts, ends, strict=True))
    return [(y0, x0, y1, x1) for y0, y1 in rows for x0, x1 in columns]


def merge_windows(parts: Sequence[Any], boxes: Sequence[Box], size: Size, original_size: Size | None = None) -> Any:
    """Means of the windows' logits where they overlap.

    Args:
        parts: logits `(h, w, K)` of each window; those of another size than its box are resized to it, bilinear.
        boxes: of `windows`.
        size: `(H, W)` of the image that they cover.
        original_size: of the photo, to which the means are resized, bilinear.

    Returns:
        float32 `(H, W, K)`; with `original_size` a record of `result` and `classes`, int32 `(H, W)`.

    Raises:
        ValueError: if parts and boxes are not as many, or the boxes leave a pixel out.
    """
    if len(parts) != len(boxes) or not len(boxes):
        raise ArgumentError(
            f"each window must have its logits.\nReceived: {len(parts)} parts and {len(boxes)} boxes.",
            parameters=("parts", "boxes"),
        )
    total = np.zeros((*size, np.shape(parts[0])[-1]), "float32")
    count = np.zeros((*size, 1), "float32")
    for part, (y0, x0, y1, x1) in zip(parts, boxes, strict=True):
        found = keras.ops.convert_to_numpy(part)[None].astype("float32")
        total[y0:y1, x0:x1] += resize(found, (int(y1 - y0), int(x1 - x0)))[0]
        count[y0:y1, x0:x1] += 1
    if not count.all():
        raise ArgumentError(
            f"the boxes must cover the image.\nReceived: boxes that leave out {int((count == 0).sum())} pixels of "
            f"{size[0]} x {size[1]}.",
            parameters=("boxes",),
        )
    mean = total / count
    if original_size is None:
        return mean
    result = resize(mean[None], original_size)[0]
    return Merged(result, result.argmax(-1).astype("int32"))


def lower_bound_size(sizes: Any, target: int, multiple: int) -> np.ndarray:
    """Sizes at which Depth Anything's own code takes photos: no side is below `target`.

    Args:
        sizes: int `(N, 2)`, height and width of each photo.
        target: pixels of the shorter side.
        multiple: pixels of a patch.

    Returns:
        int64 `(N, 2)`.
    """
    sizes = np.asarray(sizes, "float64")
    return _to_multiple(sizes * (target / sizes).max(-1, keepdims=True), target, multiple)


def minimal_size(sizes: Any, target: int, multiple: int) -> np.ndarray:
    """Sizes at which transformers takes photos for DPT and Depth Anything: by the scale that changes a photo least.

    Args:
        sizes: int `(N, 2)`, height and width of each photo.
        target: pixels of the side that gets this size.
        multiple: pixels of a patch.

    Returns:
        int64 `(N, 2)`.
    """
    sizes = np.asarray(sizes, "float64")
    scales = target / sizes
    of_width = np.abs(1 - scales[:, 1]) < np.abs(1 - scales[:, 0])
    return _to_multiple(sizes * np.where(of_width, scales[:, 1], scales[:, 0])[:, None], 0, multiple)


def _to_multiple(sizes: np.ndarray, least: int, multiple: int) -> np.ndarray:
    rounded = np.round(sizes / multiple) * multiple  # half to even
    return np.where(rounded < least, np.ceil(sizes / multiple) * multiple, rounded).astype("int64")


def _as_maps(maps: Any) -> tuple[Any, Any]:
    """Maps, and the library that computes with them: NumPy for arrays, Keras for tensors."""
    numeric: Any = np if isinstance(maps, np.ndarray) else keras.ops
    maps = maps if numeric is np else keras.ops.convert_to_tensor(maps)
    if len(maps.shape) != 4:
        raise ArgumentError(
            f"maps must have the axes (B, h, w, C).\nReceived: an array of shape {tuple(maps.shape)}.",
            parameters=("maps", "images"),
        )
    return maps, numeric


def _product(maps: Any, rows: np.ndarray, columns: np.ndarray, numeric: Any) -> Any:
    """`rows` `(H, h)` times the maps `(B, h, w, C)` times `columns` `(W, w)`."""
    _, h, w, channels = maps.shape
    dtype = maps.dtype if numeric is np else keras.backend.standardize_dtype(maps.dtype)
    rows, columns = rows.astype(dtype), columns.astype(dtype)
    found = numeric.matmul(rows, numeric.reshape(maps, (-1, h, w * channels)))
    return numeric.matmul(columns, numeric.reshape(found, (-1, len(rows), w, channels)))


@functools.lru_cache(maxsize=64)
def axis_taps(
    n: int, size: int, method: str = "bilinear", align_corners: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Which of `n` pixels are in each of `size`, int `(size, taps)`, and how much of each, float64 `(size, taps)`."""
    places = np.arange(size, dtype="float64")
    if method == "nearest":
        return (np.arange(size) * n)[:, None] // size, np.ones((size, 1))
    if align_corners:
        places *= (n - 1) / (size - 1) if size > 1 else 0
    else:
        places = (places + 0.5) * n / size - 0.5
    if method == "bilinear":
        places = np.clip(places, 0, n - 1)
    first = np.floor(places).astype(int)[:, None]
    taps = first + np.array((-1, 0, 1, 2) if method == "bicubic" else (0, 1))
    distances = np.abs(places[:, None] - taps)
    return np.clip(taps, 0, n - 1), _cubic(distances) if method == "bicubic" else 1 - distances


def at_taps(pixels: np.ndarray, rows: Sequence[np.ndarray], columns: Sequence[np.ndarray]) -> np.ndarray:
    """A part of a resized map: float32 `(rows, columns, C)`, of which only the pixels that it needs are read.

    Args:
        pixels: `(h, w, C)`.
        rows: places and shares of `axis_taps`, or of some of them.
        columns: likewise.
    """
    (y, down), (x, along) = rows, columns
    left, right = x.min(), x.max() + 1
    lines = _sum_of_taps(pixels[:, left:right], y, down.astype("float32")[:, :, None, None], 0)
    return _sum_of_taps(lines, x - left, along.astype("float32")[:, :, None], 1)


def _sum_of_taps(pixels: np.ndarray, places: np.ndarray, shares: np.ndarray, axis: int) -> np.ndarray:
    total = np.zeros((), "float32")
    for tap in range(places.shape[1]):
        if shares[:, tap].any():
            total = total + pixels.take(places[:, tap], axis) * shares[:, tap]
    return total


@functools.lru_cache(maxsize=64)
def _weights(n: int, size: int, method: str, align_corners: bool) -> np.ndarray:
    """`(size, n)`: how much of each of `n` pixels is in each of `size`."""
    places, shares = axis_taps(n, size, method, align_corners)
    found = np.zeros((size, n))
    np.add.at(found, (np.arange(size)[:, None], places), shares)
    return found


def _cubic(distance: Any, where: Any = np.where) -> Any:
    """Keys' kernel."""
    near = ((_CUBIC + 2) * distance - (_CUBIC + 3)) * distance**2 + 1
    far = ((_CUBIC * distance - 5 * _CUBIC) * distance + 8 * _CUBIC) * distance - 4 * _CUBIC
    return where(distance <= 1, near, far)


def _resize_in_graph(maps: Any, size: Sequence[Any], method: str, align_corners: bool) -> Any:
    """As `resize`, of sizes that only a running graph knows; float32 places instead of float64."""
    _, h, w, _ = keras.ops.shape(maps)
    rows, columns = (_graph_weights(n, m, method, align_corners) for n, m in zip((h, w), size, strict=True))
    return _graph_product(maps, rows, columns)


def _graph_product(maps: Any, rows: Any, columns: Any) -> Any:
    """As `_product`, with matrices of a graph."""
    batch, h, w, channels = keras.ops.shape(maps)
    rows, columns = (keras.ops.cast(each, maps.dtype) for each in (rows, columns))
    found = keras.ops.matmul(rows, keras.ops.reshape(maps, (batch, h, w * channels)))
    return keras.ops.matmul(columns, keras.ops.reshape(found, (batch, keras.ops.shape(rows)[0], w, channels)))


def _graph_weights(n: Any, size: Any, method: str, align_corners: bool) -> Any:
    """As `_weights`, by operations of a graph."""
    ops = keras.ops
    old, new = (ops.cast(each, "float32") for each in (n, size))
    places, sources = ops.arange(size, dtype="float32"), ops.arange(n, dtype="float32")
    if method == "nearest":
        return ops.cast(ops.floor(places * old / new)[:, None] == sources, "float32")
    places = places * (old - 1) / ops.maximum(new - 1, 1) if align_corners else (places + 0.5) * old / new - 0.5
    if method == "bilinear":
        return ops.maximum(1 - ops.abs(ops.clip(places, 0, old - 1)[:, None] - sources), 0)
    first = ops.floor(places)
    shares: Any = 0
    for tap in (-1, 0, 1, 2):
        of_tap = ops.cast(ops.clip(first + tap, 0, old - 1)[:, None] == sources, "float32")
        shares = shares + of_tap * _cubic(ops.abs(places - first - tap), ops.where)[:, None]
    return shares


def _graph_means(n: Any, bins: int) -> Any:
    """As `_means`, by operations of a graph."""
    ops = keras.ops
    places, sources = ops.arange(bins, dtype="int32"), ops.arange(n, dtype="int32")
    starts, ends = places * n // bins, ((places + 1) * n + bins - 1) // bins
    inside = (sources >= starts[:, None]) & (sources < ends[:, None])
    return ops.cast(inside, "float32") / ops.cast(ends - starts, "float32")[:, None]


def _means(n: int, bins: int) -> np.ndarray:
    found = np.zeros((bins, n))
    for index in range(bins):
        start, end = index * n // bins, math.ceil((index + 1) * n / bins)
        found[index, start:end] = 1 / (end - start)
    return found


def _pair(value: int | Size) -> Size:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _starts(n: int, side: int, step: int, rule: str) -> list[int]:
    """Where the boxes of one axis start."""
    if rule == "eomt":
        count = math.ceil(n / side)
        overlap = (count * side - n) / (count - 1) if count > 1 else 0
        return [int(number * (side - overlap)) for number in range(count)]
    last = max(n - side, 0)
    return [*range(0, last, step), last]
