"""Upright pixels of a photo without TensorFlow: those of `read_image`, which Pillow decodes here.

Limits and reasons are those of `photo_checks`, counted by plain Python. Pillow gets a file without the parts that do
not change its pixels: it would read them, warn of them, or refuse a file for them. Of 6,000 damaged JPEGs and PNGs,
5,996 had the same pixels or reason. TensorFlow refused three JPEGs that Pillow reads, and read one to other pixels.
"""

import io
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_vit.checks import check_installed
from keras_vit.images.by_pillow import PillowError, kind_for_pillow, pixels_by_pillow
from keras_vit.images.decode import MAX_PIXELS
from keras_vit.images.exif import jpeg_segments, orientation
from keras_vit.images.photo_checks import fault_of_header, reason_of_damage, reason_of_parts, reason_of_pixels
from keras_vit.images.segments import JPEG_START, MAX_STEPS, PNG_START, respects_limits

_KEPT_PARTS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_SKIPPED = {0xFE, *range(0xE1, 0xEE), 0xEF}  # comments and applications', but JFIF and Adobe, which tell the colours


def plain_pixels(data: bytes, channels: int = 3) -> np.ndarray:
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
    if kind := kind_for_pillow(data):
        pixels = pixels_by_pillow(data, kind)
    else:
        if reason := fault_of_header(data):
            raise PillowError(reason)
        pixels = _of_jpeg(data) if data.startswith(JPEG_START) else _of_png(data)
    pixels = _upright(pixels, orientation(data))
    return pixels if channels == 3 else _grey(pixels)


def _of_jpeg(data: bytes) -> np.ndarray:
    size, few = _size_of_jpeg(data), respects_limits(data)
    if size is None:
        raise PillowError(reason_of_damage(data) if few else reason_of_parts(data))
    _check(data, size[0] * size[1], few)
    return _decoded(data, _without_notes(data), "JPEG")


def _of_png(data: bytes) -> np.ndarray:
    width, height = (int.from_bytes(data[place : place + 4], "big") for place in (16, 20))
    chunks = list(_chunks(data))
    _check(data, width * height, len(chunks) <= MAX_STEPS)
    parts, kept = [PNG_START], (chunk for chunk in chunks if chunk[0] in _KEPT_PARTS)
    for kind, start, stop in kept:
        if zlib.crc32(data[start - 4 : stop]).to_bytes(4) != data[stop : stop + 4]:
            break
        parts.append(data[start - 8 : stop + 4])
        if kind == b"IEND":
            return _decoded(data, b"".join(parts), "PNG")
    raise PillowError(reason_of_damage(data))  # of a part, or without an end


def _check(data: bytes, pixels: int, few: bool) -> None:
    if not 0 < pixels <= MAX_PIXELS:
        raise PillowError(reason_of_pixels(pixels))
    if not few:
        raise PillowError(reason_of_parts(data))


def _decoded(data: bytes, stripped: bytes, kind: str) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(stripped), formats=(kind,)) as image:
            return _as_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # decoders of damaged bytes raise errors of many kinds
        raise PillowError(reason_of_damage(data)) from error


def _as_rgb(image: Any) -> np.ndarray:
    """uint8 `(H, W, 3)` by TensorFlow's rules: of 16 bits the high byte, and inks multiplied in whole numbers."""
    if image.mode == "CMYK":
        light = 255 - np.asarray(image).astype("uint16")
        return (light[..., :3] * light[..., 3:] // 255).astype("uint8")
    if image.mode.startswith("I"):
        return (np.asarray(image) >> 8).astype("uint8")[..., None].repeat(3, axis=-1)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _upright(pixels: np.ndarray, turn: int) -> np.ndarray:
    """Pixels turned and mirrored by an EXIF orientation, 1 to 8."""
    if turn >= 5:
        pixels = pixels.transpose(1, 0, 2)
    rows, columns = turn in (3, 4, 7, 8), turn in (2, 3, 6, 7)
    return pixels[:: -1 if rows else 1, :: -1 if columns else 1]


def _grey(pixels: np.ndarray) -> np.ndarray:
    """Luma of ITU-R 601 in Pillow's fixed point, `(H, W, 1)`."""
    weighed = pixels.astype("int32") @ np.array([19595, 38470, 7471], "int32")
    return ((weighed + 0x8000) >> 16).astype("uint8")[..., None]


def _size_of_jpeg(data: bytes) -> tuple[int, int] | None:
    """`(H, W)` of the first frame; `None` without one."""
    for marker, start, stop in jpeg_segments(data):
        if marker[0] in _FRAMES and start + 5 <= min(stop, len(data)):
            return int.from_bytes(data[start + 1 : start + 3]), int.from_bytes(data[start + 3 : start + 5])
    return None


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """`(kind, start, stop)` of each chunk of a PNG, one more than `MAX_STEPS` at most."""
    place = len(PNG_START)
    for _ in range(MAX_STEPS + 1):
        if place + 8 > len(data):
            break
        stop = place + 8 + int.from_bytes(data[place : place + 4])
        yield data[place + 4 : place + 8], place + 8, stop
        place = stop + 4


def _without_notes(data: bytes) -> bytes:
    """A JPEG without the segments that do not change its pixels, as EXIF and thumbnails."""
    skipped = [(start - 4, stop) for marker, start, stop in jpeg_segments(data) if marker[0] in _SKIPPED]
    if not skipped or skipped[-1][1] > len(data):
        return data
    starts, stops = [0, *(stop for _, stop in skipped)], [*(start for start, _ in skipped), len(data)]
    return b"".join(data[start:stop] for start, stop in zip(starts, stops, strict=True))
