"""A photo to pixels and to a model's input by Pillow and NumPy, without TensorFlow and Keras.

Limits and reasons are those of `validation`, counted by plain Python. Pillow gets a file without the parts that do
not change its pixels, since it would warn of them or refuse the file. Of 6,000 damaged JPEGs and PNGs,
5,996 had the same pixels or reason. TensorFlow refused three JPEGs that Pillow reads, and read one to other pixels.
"""

import functools
import math
import types
import zlib
from typing import Any

import numpy as np

from keras_vit.checks import check_installed
from keras_vit.images.headers import JPEG_START, PNG_START, exif_orientation, jpeg_segments, png_chunks
from keras_vit.images.pillow_formats import PillowError, decode_by_pillow, open_with_pillow, pillow_format
from keras_vit.images.preprocessing import Preprocessing, fit_channels, scaled
from keras_vit.images.resizing import covering_size, resize_matrix, whole_levels
from keras_vit.images.validation import damage_error, header_error, limits_error

_KEPT_PARTS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_SKIPPED = {0xFE, *range(0xE1, 0xEE), 0xEF}  # comments and applications', but not JFIF and Adobe, of the colours
_TOGETHER = 16  # columns or rows of the result that one product makes, of the few pixels that they need
_STRIP = 2**22  # numbers that are floats at a time


def decode_photo(data: bytes, channels: int = 3) -> np.ndarray:
    """Pixels of a photo, turned upright by its EXIF orientation.

    Args:
        data: the bytes of a JPEG, PNG, WebP, BMP or HEIC.
        channels: 3 for RGB, 1 for grey.

    Returns:
        uint8 `(H, W, channels)`, as `keras_vit.read_image` gives them.

    Raises:
        PillowError: for other bytes; its text is the reason, in the words of `read_image`.
        ImportError: without Pillow, or the plugin of a HEIC.
    """
    check_installed("PIL", "it decodes photos", "data")
    kind = pillow_format(data)
    pixels = decode_by_pillow(data, kind) if kind else _decode_stored(data)
    pixels = _turn_upright(pixels, exif_orientation(data))
    return pixels if channels == 3 else _to_grey(pixels)


def _decode_stored(data: bytes) -> np.ndarray:
    """Pixels of a JPEG or PNG as stored."""
    if reason := header_error(data):
        raise PillowError(reason)
    is_jpeg = data.startswith(JPEG_START)
    sides = _jpeg_size(data) if is_jpeg else [int.from_bytes(data[place : place + 4]) for place in (16, 20)]
    reason = limits_error(data, math.prod(sides) if sides else 1)
    if reason or not sides:
        raise PillowError(reason or damage_error(data))
    try:
        stripped = _strip_metadata(data) if is_jpeg else _strip_png(data)
        with open_with_pillow(stripped, "JPEG" if is_jpeg else "PNG") as image:
            return _as_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders of damaged bytes raise errors of many kinds
        raise PillowError(damage_error(data)) from error


def _strip_png(data: bytes) -> bytes:
    """A PNG of the chunks that make its pixels; raises for one with another checksum, and without an end."""
    parts = [PNG_START]
    for kind, start, stop in png_chunks(data):
        if kind in _KEPT_PARTS:
            if zlib.crc32(data[start - 4 : stop]).to_bytes(4) != data[stop : stop + 4]:
                break
            parts.append(data[start - 8 : stop + 4])
            if kind == b"IEND":
                return b"".join(parts)
    raise ValueError("a chunk is damaged, or the last one is missing")


def _as_rgb(image: Any) -> np.ndarray:
    """uint8 `(H, W, 3)` by TensorFlow's rules: of 16 bits the high byte, and inks multiplied in whole numbers."""
    if image.mode == "CMYK":
        light = 255 - np.asarray(image).astype("uint16")
        return (light[..., :3] * light[..., 3:] // 255).astype("uint8")
    if image.mode.startswith("I"):
        return (np.asarray(image) >> 8).astype("uint8")[..., None].repeat(3, axis=-1)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _turn_upright(pixels: np.ndarray, turn: int) -> np.ndarray:
    """Pixels turned and mirrored by an EXIF orientation, 1 to 8."""
    if turn >= 5:
        pixels = pixels.transpose(1, 0, 2)
    rows, columns = turn in (3, 4, 7, 8), turn in (2, 3, 6, 7)
    return pixels[:: -1 if rows else 1, :: -1 if columns else 1]


def _to_grey(pixels: np.ndarray) -> np.ndarray:
    """Luma of ITU-R 601 in Pillow's fixed point, `(H, W, 1)`."""
    weighed = pixels.astype("int32") @ np.array([19595, 38470, 7471], "int32")
    return ((weighed + 0x8000) >> 16).astype("uint8")[..., None]


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    """`(H, W)` of the first frame; `None` without one."""
    for marker, start, stop in jpeg_segments(data):
        if marker[0] in _FRAMES and start + 5 <= min(stop, len(data)):
            return int.from_bytes(data[start + 1 : start + 3]), int.from_bytes(data[start + 3 : start + 5])
    return None


def _strip_metadata(data: bytes) -> bytes:
    """A JPEG without the segments that do not change its pixels, as EXIF and thumbnails."""
    skipped = [(start - 4, stop) for marker, start, stop in jpeg_segments(data) if marker[0] in _SKIPPED]
    if not skipped or skipped[-1][1] > len(data):
        return data
    starts, stops = [0, *(stop for _, stop in skipped)], [*(start for start, _ in skipped), len(data)]
    return b"".join(data[start:stop] for start, stop in zip(starts, stops, strict=True))


def preprocess(pixels: np.ndarray, record: Preprocessing) -> np.ndarray:
    """What `record(pixels)` gives of uint8 `(H, W, C)`, float32, without Keras.

    Bicubic rounds to grey levels, where another order of sums may turn a half the other way.
    """
    pixels = fit_channels(pixels, len(record.mean), np)
    size = record.image_size
    if size is None or record.resize == "none" or (record.resize == "squash" and size == pixels.shape[:2]):
        return scaled(pixels.astype("float32"), record)
    if record.resize == "squash" and record.interpolation == "bilinear" and not record.antialias:
        return _bilinear(pixels, record)  # the record's numbers on TensorFlow: each lies between four old pixels
    return scaled(_by_matrices(pixels, record), record)


def resize_to_levels(pixels: np.ndarray, record: Preprocessing) -> np.ndarray:
    """Pixels in whole grey levels, resized by a record with mean 0 and a deviation of one level: for exported files."""
    return np.clip(np.rint(preprocess(pixels, record)), 0, 255).astype("uint8")


def _bilinear(pixels: np.ndarray, record: Preprocessing) -> np.ndarray:
    """Bilinear without antialias, as TensorFlow computes it: each new pixel lies between four old ones."""
    (top, bottom, down), (left, right, along) = (
        _pixels_around(old, new) for old, new in zip(pixels.shape[:2], record.image_size or (), strict=True)
    )
    down, along = down[:, None, None], along[:, None]

    def line(rows: np.ndarray) -> np.ndarray:
        lines = pixels[rows]
        near, far = (scaled(lines[:, columns].astype("float32"), record) for columns in (left, right))
        return near + (far - near) * along

    above = line(top)
    return above + (line(bottom) - above) * down


@functools.lru_cache(64)
def _pixels_around(old: int, new: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each new position on an axis: the old positions before and after it, and its distance between them."""
    scale = np.float32(old) / np.float32(new)
    place = (np.arange(new, dtype="float32") + np.float32(0.5)) * scale - np.float32(0.5)
    low = np.floor(place)
    return np.maximum(low, 0).astype(int), np.minimum(np.ceil(place), old - 1).astype(int), place - low


def _by_matrices(pixels: np.ndarray, record: Preprocessing) -> np.ndarray:
    """As `resize_and_crop`: columns, then rows, each by one matrix."""
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
    return np.asarray(resize_matrix(old, new, kept, record, _OPS), "float32")


# The part of `keras.ops` that a matrix is made by, in NumPy.
_OPS = types.SimpleNamespace(
    **{name: getattr(np, name) for name in ("abs", "maximum", "minimum", "where", "sum", "expand_dims")},
    cast=lambda values, dtype: np.asarray(values).astype(dtype)[()],
    arange=lambda stop, dtype="int32": np.arange(stop, dtype=dtype),
)
