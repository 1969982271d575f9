"""Pixels of one photo to what a model takes, by NumPy alone: the numbers of `Preprocessing` but for rounding.

A resize reads only the pixels that count. So a photo of a camera takes little memory, and no library has to be loaded
that computes models.
"""

import functools
from typing import Any

import numpy as np

from keras_vit.images.preprocessing import Preprocessing, fit_channels, scaled
from keras_vit.images.resizing import covering_size, resize_matrix, whole_levels

_TOGETHER = 16  # columns or rows of the result that one product makes, of the few pixels that they need
_STRIP = 2**22  # numbers that are floats at a time


def prepared(pixels: np.ndarray, record: Preprocessing) -> np.ndarray:
    """What `record(pixels)` gives, without Keras.

    Args:
        pixels: uint8 `(H, W, C)`.
        record: a `Preprocessing`.

    Returns:
        float32 `(H, W, C)`. Bicubic rounds to grey levels, where another order of sums may turn a half the other way.
    """
    pixels = fit_channels(pixels, len(record.mean), np)
    size = record.image_size
    if size is None or record.resize == "none" or (record.resize == "squash" and size == pixels.shape[:2]):
        return scaled(pixels.astype("float32"), record)
    if is_of_four(record):
        return _between_four(pixels, record)
    return scaled(_by_matrices(pixels, record), record)


def is_of_four(record: Preprocessing) -> bool:
    """Whether each new pixel lies between four old ones; `prepared` then has the record's numbers on TensorFlow."""
    squashes = record.resize == "squash" and record.image_size is not None
    return squashes and record.interpolation == "bilinear" and not record.antialias


def grey_levels(pixels: np.ndarray, record: Preprocessing) -> np.ndarray:
    """Pixels resized as a record says and not scaled, in whole grey levels: what an exported file takes.

    Args:
        pixels: uint8 `(H, W, C)`.
        record: a `Preprocessing`, of these levels: mean 0, and a deviation that stands for one level.
    """
    return np.clip(np.rint(prepared(pixels, record)), 0, 255).astype("uint8")


def _between_four(pixels: np.ndarray, record: Preprocessing) -> np.ndarray:
    """Bilinear without antialias, as TensorFlow computes it: each new pixel lies between four old ones."""
    (top, bottom, down), (left, right, along) = (
        _neighbours(old, new) for old, new in zip(pixels.shape[:2], record.image_size or (), strict=True)
    )
    down, along = down[:, None, None], along[:, None]

    def line(rows: np.ndarray) -> np.ndarray:
        lines = pixels[rows]
        near, far = (scaled(lines[:, columns].astype("float32"), record) for columns in (left, right))
        return near + (far - near) * along

    above = line(top)
    return above + (line(bottom) - above) * down


@functools.lru_cache(64)
def _neighbours(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each new place along an axis the old ones before and behind it, and how far it is between them."""
    scale = np.float32(old) / np.float32(new)
    place = (np.arange(new, dtype="float32") + np.float32(0.5)) * scale - np.float32(0.5)
    low = np.floor(place)
    return np.maximum(low, 0).astype(int), np.minimum(np.ceil(place), old - 1).astype(int), place - low


def _by_matrices(pixels: np.ndarray, record: Preprocessing) -> np.ndarray:
    """As `resize_and_cut`: columns, then rows, each by one matrix."""
    size = record.image_size or ()
    covering = size if record.resize == "squash" else covering_size(pixels.shape[:2], record, np)
    rows, columns = (
        _matrix(old, new, kept, record) for old, new, kept in zip(pixels.shape[:2], covering, size, strict=True)
    )
    used = _span(rows)
    pixels, rows = pixels[used], rows[:, used]
    height, width, channels = pixels.shape
    narrow = np.empty((height, len(columns), channels), "float32")
    step = max(1, _STRIP // (width * channels))
    for start in range(0, height, step):
        strip = pixels[start : start + step].transpose(0, 2, 1).astype("float32")  # (h, C, W)
        narrow[start : start + step] = _levels(_product(columns, strip), record).transpose(0, 2, 1)
    lines = narrow.reshape(height, -1).T  # each is a column of pixels
    resized = _levels(_product(rows, lines), record).T.reshape(len(rows), len(columns), channels)
    return np.asarray(whole_levels(np.ascontiguousarray(resized), record, np))


def _product(matrix: np.ndarray, lines: np.ndarray) -> np.ndarray:
    """`lines @ matrix.T`, without the products with zeros that a narrow kernel has most of."""
    found = np.empty((*lines.shape[:-1], len(matrix)), "float32")
    for start in range(0, len(matrix), _TOGETHER):
        part = matrix[start : start + _TOGETHER]
        used = _span(part)
        found[..., start : start + _TOGETHER] = lines[..., used] @ part[:, used].T
    return found


def _levels(values: np.ndarray, record: Preprocessing) -> np.ndarray:
    """Bicubic values clipped and rounded to grey levels, as 8-bit images are; others as they are."""
    return np.rint(np.clip(values, 0.0, 255.0)) if record.interpolation == "bicubic" else values


def _span(matrix: np.ndarray) -> slice:
    """The columns of a matrix from the first to the last that is not zero."""
    used = np.flatnonzero(matrix.any(axis=0))
    return slice(used[0], used[-1] + 1)


@functools.lru_cache(64)
def _matrix(old: int, new: int, kept: int, record: Preprocessing) -> np.ndarray:
    return np.asarray(resize_matrix(old, new, kept, record, _Float32), "float32")


class _Float32:
    """The part of `keras.ops` that a matrix is made by, in NumPy."""

    abs, maximum, minimum, where, sum, expand_dims = np.abs, np.maximum, np.minimum, np.where, np.sum, np.expand_dims

    @staticmethod
    def cast(values: Any, dtype: str) -> Any:
        return np.asarray(values).astype(dtype)[()]

    @staticmethod
    def arange(stop: int, dtype: str = "int32") -> np.ndarray:
        return np.arange(stop, dtype=dtype)
