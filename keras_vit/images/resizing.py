"""Resizes an image to a record's size and cuts out its centre, with the same numbers on every backend.

A resize multiplies by one matrix for the columns and one for the rows. `ops` is `keras.ops`, or TensorFlow's operations
inside `tf.data`. `record` is a `Preprocessing` with the size, the kernel and the rules of rounding.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_vit.annotations import Pair, Tensor
from keras_vit.config.position_tables import cubic, triangle

RESIZES = ("squash", "crop", "squash_crop", "none")
CUTS_CENTRE = ("crop", "squash_crop")
INTERPOLATIONS = ("bilinear", "bicubic", "area")
ROUNDINGS = ("timm", "transformers", "big_vision")
_FLOAT_ERROR = 1e-3  # grey levels; it keeps 99.9999, which stands for 100, from being truncated to 99


def resize_and_crop(pixels: Tensor, whole: bool, record: Any, ops: Any) -> Tensor:
    """Resizes and cuts the centre out in one step, with the same kernel on every backend and in any graph.

    Columns are resized before rows, as in Pillow up to 12; Pillow 13 starts with the rows of some images. After each
    step bicubic values are clipped to black and white, and rounded to a grey level if the pixels are integers.
    `ops.image.resize` never clips and needs sizes that the graph knows. Its bicubic without antialias has another
    kernel on torch (a = -0.75).
    """
    old = ops.shape(pixels)[-3:-1]  # (H, W), tensors where the graph does not know them
    for axis in (1, 0):
        pixels = resize_axis(pixels, axis, old, whole, record, ops)
    return pixels


def resize_axis(pixels: Tensor, axis: int, old: Sequence[Tensor], whole: bool, record: Any, ops: Any) -> Tensor:
    """One of two steps, columns (axis 1) before rows (axis 0), for pixels whose original (H, W) was `old`."""
    new = record.image_size if record.resize == "squash" else covering_size(old, record, ops)
    matrix = resize_matrix(old[axis], new[axis], record.image_size[axis], record, ops)  # (kept, old)
    # This order of operands needs no transposition: rows are multiplied in place, columns from the right.
    pixels = ops.einsum("...hwc,vw->...hvc" if axis else "...hwc,uh->...uwc", pixels, matrix)
    if record.interpolation == "bicubic":
        pixels = ops.clip(pixels, 0.0, 255.0)
        pixels = ops.round(pixels) if whole else pixels
    return whole_levels(pixels, record, ops) if whole and axis == 0 else pixels


def whole_levels(pixels: Tensor, record: Any, ops: Any) -> Tensor:
    """Resized integer pixels truncated to grey levels, as big_vision's cast does; others are returned unchanged."""
    if record.resize != "crop" or record.rounding != "big_vision":
        return pixels
    return ops.floor(pixels + _FLOAT_ERROR)


def gives_whole_levels(record: Any) -> bool:
    """Whether `resize_and_crop` gives whole grey levels of whole pixels: bicubic rounds, and big_vision truncates."""
    return record.interpolation == "bicubic" or (record.resize == "crop" and record.rounding == "big_vision")


def resize_matrix(old: Tensor, new: Tensor, kept: int, record: Any, ops: Any, rows: Tensor | None = None) -> Tensor:
    """The matrix `(kept, old)` that resizes one axis to `new` and keeps the centre; or only its `rows`, floats."""
    margin = new - kept
    odd = (
        margin // 2 % 2 if record.rounding == "timm" else 0
    )  # a half is rounded to even for timm (torchvision's CenterCrop), else down
    corner = (margin + odd) // 2
    scale = ops.cast(old, "float32") / ops.cast(new, "float32")
    rows = ops.arange(kept, dtype="float32") if rows is None else rows
    positions = (rows + ops.cast(corner, "float32") + 0.5) * scale - 0.5
    distances = ops.expand_dims(positions, 1) - ops.cast(ops.expand_dims(ops.arange(old, dtype="int32"), 0), "float32")
    if record.interpolation == "area":  # a new pixel covers `scale` old ones
        weights = ops.maximum((scale + 1.0) / 2.0 - ops.abs(distances), 0.0)
        weights = ops.minimum(weights, ops.minimum(scale, 1.0))
        return weights / ops.sum(weights, axis=1, keepdims=True)
    if record.antialias:
        distances = distances / ops.maximum(scale, 1.0)
    weights = cubic(distances, -0.5, ops) if record.interpolation == "bicubic" else triangle(distances, ops)
    return weights / ops.sum(weights, axis=1, keepdims=True)


def covering_size(old: Sequence[Tensor], record: Any, ops: Any) -> tuple[Tensor, ...]:
    """Size that keeps the aspect of `old` (H, W) and covers `image_size / crop_fraction`; that itself to squash.

    Rounding follows the record's library, so that no pixel shifts. The side to cover is floor(side / crop_fraction)
    (timm `transforms_factory.py`); big_vision rounds it. The other side is int(side * long / short) (torchvision
    `Resize`; transformers). timm rounds it if the sides to cover differ (`ResizeKeepRatio`). big_vision takes
    round(long * (side / short)) in float32 (`resize_small`).
    """
    known = all(isinstance(side, int) for side in old)
    larger = max if known else ops.maximum
    height, width = sides_to_cover(record, record.image_size)
    if record.resize == "squash_crop":
        return height, width
    if record.rounding == "big_vision":
        return _size_by_factor(old, (height, width), np if known else ops, larger)
    divided = _round_divide if record.rounding == "timm" and height != width else (lambda one, other, ops: one // other)
    return larger(height, divided(width * old[0], old[1], ops)), larger(width, divided(height * old[1], old[0], ops))


def sides_to_cover(record: Any, image_size: Pair) -> tuple[int, ...]:
    """`image_size / crop_fraction` in whole pixels, for a model that takes `image_size`."""
    whole = math.floor if record.rounding == "timm" else round  # the fraction of transformers is of two whole numbers
    return tuple(whole(side / record.crop_fraction) for side in image_size)


def least_size(record: Any) -> Pair | None:
    """(H, W) to which a photo may be decoded smaller: twice the sides that it is resized to, over each other.

    `None` where that would be another picture: nothing is resized, or each new pixel is made of four old ones.
    """
    if record.image_size is None or record.resize == "none":
        return None
    if not record.antialias and record.interpolation != "area":
        return None
    height, width = sides_to_cover(record, record.image_size) if record.resize in CUTS_CENTRE else record.image_size
    return 2 * height, 2 * width


def _size_by_factor(
    old: Sequence[Tensor], sides: Sequence[int], xp: Any, larger: Callable[..., Tensor]
) -> tuple[Tensor, ...]:
    cast = (lambda x: np.float32(x)) if xp is np else (lambda x: xp.cast(x, "float32"))
    factor = larger(*(cast(side) / cast(length) for side, length in zip(sides, old, strict=True)))
    lengths = [xp.round(cast(length) * factor) for length in old]
    whole = [int(length) for length in lengths] if xp is np else [xp.cast(length, "int32") for length in lengths]
    return tuple(larger(side, length) for side, length in zip(sides, whole, strict=True))


def _round_divide(dividend: Tensor, divisor: Tensor, ops: Any) -> Tensor:
    """The quotient of ints or int tensors, rounded to even as by Python's `round`."""
    up = (2 * dividend + divisor) // (2 * divisor)
    tie = (2 * dividend + divisor) % (2 * divisor) == 0
    tie = int(tie) if isinstance(tie, bool) else ops.cast(tie, "int32")
    return up - tie * (up % 2)
