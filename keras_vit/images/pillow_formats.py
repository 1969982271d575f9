"""WebP, BMP and HEIC, which TensorFlow's graphs do not decode: Pillow converts them to PNGs of the same pixels.

So training, prediction and the comparison of exports share all later steps. Of an animation the first picture counts,
and alpha is dropped. HEIC needs the plugin `pillow-heif`, which turns its pictures upright by itself.
"""

import contextlib
import io
import struct
import warnings
import zlib
from typing import Any

import numpy as np

from keras_vit.annotations import Tensor
from keras_vit.checks import install_hint
from keras_vit.images.decode import MAX_PIXELS, PIXELS_VARIABLE, max_pixels
from keras_vit.images.headers import JPEG_START, PNG_START

READABLE_KINDS = "JPEG, PNG, WebP, BMP or HEIC"
_HEIC = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}  # brands of ISO 23008-12
_AVIF = {b"avif", b"avis"}
_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)  # bytes; text that begins with BM has other ones
_NEEDED = {"WebP": ("PIL", "Pillow", "data"), "BMP": ("PIL", "Pillow", "data")}
_NEEDED |= {"HEIC": ("pillow_heif", "pillow-heif", "heic")}


class PillowError(ValueError):
    """A file that Pillow cannot decode; the text is the reason, in a few words."""


def pillow_format(data: bytes) -> str | None:
    """`"WebP"`, `"BMP"` or `"HEIC"`, by the first bytes of a file; `None` for one that TensorFlow decodes."""
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WebP"
    if data.startswith(b"BM") and int.from_bytes(data[14:18], "little") in _BMP_HEADERS:
        return "BMP"
    return "HEIC" if container_format(data) == "HEIC" else None


def container_format(data: bytes) -> str | None:
    """`"HEIC"`, `"AVIF"` or `"video"` for a file of the ISO base media format, by its brands; else `None`."""
    if data[4:8] != b"ftyp":
        return None
    box = data[8 : min(int.from_bytes(data[:4], "big"), 256)]
    brands = {box[place : place + 4] for place in range(0, len(box), 4)}
    return "AVIF" if brands & _AVIF else "HEIC" if brands & _HEIC else "video"


def missing_package(kind: str) -> str | None:
    """The package that a kind of `pillow_format` needs and that cannot be imported, as `"pillow-heif"`."""
    module, package, _ = _NEEDED[kind]
    try:
        __import__(module)
    except ImportError:
        return package
    return None


def decode_by_pillow(data: bytes, kind: str) -> np.ndarray:
    """uint8 `(H, W, 3)` of a file of a `pillow_format`, as stored; HEIC is upright.

    Raises:
        PillowError: for a damaged file, or one with more than `max_pixels()`.
        ImportError: without the package that it needs.
    """
    if package := missing_package(kind):
        raise ImportError(f"{kind} needs {package}, which is missing: {install_hint(_NEEDED[kind][2])}")
    max_pixels()  # a wrong value of which is no fault of the photo
    try:
        size = _stored_size(data, kind)
        if size is not None:  # Pillow warns of large pictures, and of the size before it decodes
            _check_size(*size)
        with _open(data, kind) as image:
            _check_size(*image.size)
            image = image if image.mode == "RGB" else image.convert("RGBA").convert("RGB")
            return np.asarray(image)
    except (PillowError, MemoryError):
        raise
    except Exception as error:  # decoders of damaged bytes raise errors of many kinds
        raise PillowError(f"damaged or truncated {kind}") from error


def to_png(data: bytes) -> bytes:
    """A PNG without compression, with the pixels of a WebP, BMP or HEIC as stored; other bytes as they are.

    Raises:
        PillowError, ImportError: as `decode_by_pillow`.
    """
    kind = pillow_format(data)
    return _encode_png(decode_by_pillow(data, kind)) if kind else data


def _encode_png(pixels: np.ndarray) -> bytes:
    """A PNG of uint8 `(H, W, 3)`, whose rows are neither filtered nor compressed; Pillow takes 15 times as long."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), "uint8")  # the number of the filter stands before each row
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 0)), (b"IEND", b""))
    parts = [PNG_START]
    for kind, content in chunks:
        crc = zlib.crc32(content, zlib.crc32(kind))
        parts += [struct.pack(">I", len(content)), kind, content, struct.pack(">I", crc)]
    return b"".join(parts)


def to_png_in_graph(data: Tensor) -> Tensor:
    """`to_png` in the graph of a pipeline, for a string scalar; JPEG and PNG do not leave the graph."""
    import tensorflow as tf

    def written(given: Any) -> np.ndarray:  # bytes from a graph, and an array of them outside of one
        return np.array(to_png(given if isinstance(given, bytes) else given.item()), object)

    def converted() -> Tensor:
        return tf.numpy_function(written, [data], tf.string, stateful=False)

    start = tf.strings.substr(data, 0, len(PNG_START))
    known = (tf.strings.substr(start, 0, len(JPEG_START)) == JPEG_START) | (start == PNG_START)
    return tf.ensure_shape(tf.cond(known, lambda: data, converted), ())


def _open(data: bytes, kind: str) -> Any:
    if kind == "HEIC":
        import pillow_heif

        file = pillow_heif.open_heif(io.BytesIO(data), convert_hdr_to_8bit=True)
        _check_size(*file.size)
        return file.to_pillow()
    return open_with_pillow(data, kind)


def open_with_pillow(data: bytes, kind: str) -> Any:
    """Pillow's image of a file whose number of pixels was checked, so that Pillow's own lower limit is of no use."""
    from PIL import Image

    with warnings.catch_warnings() if max_pixels() > MAX_PIXELS else contextlib.nullcontext():
        if max_pixels() > MAX_PIXELS:
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(data), formats=(kind.upper(),))


def _check_size(width: int, height: int) -> None:
    if reason := size_error(width * height):
        raise PillowError(reason)


def size_error(pixels: int) -> str | None:
    """The reason for a picture of too many pixels, or of none; else `None`."""
    if pixels > (most := max_pixels()):
        return f"{pixels:,} pixels, more than the {most:,} of {PIXELS_VARIABLE}"
    return None if pixels > 0 else "no pixels"


def _stored_size(data: bytes, kind: str) -> tuple[int, int] | None:
    """Width and height from the header of a WebP or BMP; `None` for HEIC, whose library reads it.

    Sources: RFC 9649, sections 2.5 to 2.7; Microsoft, BITMAPINFOHEADER and BITMAPCOREHEADER.
    """
    if kind == "BMP":
        width, height = struct.unpack_from("<HH" if data[14] == 12 else "<ii", data, 18)
        return abs(width), abs(height)
    if kind == "HEIC":
        return None
    if data[12:16] == b"VP8X":
        width, height = (int.from_bytes(data[place : place + 3], "little") + 1 for place in (24, 27))
    elif data[12:16] == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (part & 0x3FFF for part in struct.unpack_from("<HH", data, 26))
    return width, height
