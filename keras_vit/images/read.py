"""`read_image`: upright pixels of one file, equal to those of training, of export checks and of a SavedModel."""

import contextlib
import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import install_hint
from keras_vit.files import FileKindError, read_regular
from keras_vit.images.decode import MAX_BYTES, MAX_PIXELS, decode_image, grey
from keras_vit.images.exif import orientation
from keras_vit.images.photo_checks import fault_of
from keras_vit.images.segments import JPEG_START, PNG_START
from keras_vit.pages.escaping import printable

_BY_PILLOW = ("WEBP", "BMP")  # formats that TensorFlow's graphs do not decode


class ImageError(ValueError):
    """A file that cannot be decoded as an image.

    Attributes:
        reason: a few words, as "truncated JPEG".
    """

    def __init__(self, path: FilePath, reason: str) -> None:
        super().__init__(
            f"a photo must be a JPEG, PNG, WebP or BMP that can be decoded.\nReceived: {printable(path)}: {reason}."
        )
        self.reason = reason


def read_image(path: str | os.PathLike, channels: int = 3) -> np.ndarray:
    """Pixels of a photo, turned upright by its EXIF orientation.

    Args:
        path: a JPEG, PNG, WebP or BMP file.
        channels: 3 for RGB, 1 for grey (luma of ITU-R 601, as in Pillow).

    Returns:
        uint8 `(H, W, channels)`, 0 to 255. Of 16 bits the high byte is kept, and alpha is dropped.

    Raises:
        TypeError: if `path` is not a path.
        ValueError: for an empty path or another number of channels.
        ImageError: a `ValueError`, for a folder, another format, a damaged file, or more than 64 Mpx.
        FileNotFoundError: if the file does not exist.
        ImportError: for a WebP or BMP without Pillow.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"`path` must be that of a photo, a str or a path object.\nReceived: path={path!r}.")
    if not os.fspath(path):
        raise ValueError("`path` must be that of a photo.\nReceived: path=''.")
    if channels not in (1, 3):
        raise ValueError(f"a photo has three channels, or one of grey.\nReceived: channels={channels!r}.")
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"`path` must be that of a photo.\nReceived: {path}, where nothing is.")
    if path.is_dir():
        raise ImageError(path, "a folder, not an image")
    try:
        data = read_regular(path, MAX_BYTES)
    except FileKindError as error:
        raise ImageError(path, error.reason) from None
    if not data.startswith((JPEG_START, PNG_START)):
        pixels = _by_pillow(path, data)
        return pixels if channels == 3 else grey(pixels).numpy()
    decoded = []
    reason = fault_of(data, lambda data: decoded.append(decode_image(data, orientation(data), channels)))
    if reason is not None:
        raise ImageError(path, reason)
    return decoded[0].numpy()


def _by_pillow(path: Path, data: bytes) -> np.ndarray:
    """uint8 `(H, W, 3)` of a WebP or BMP file, decoded by Pillow."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError as error:
        raise ImportError(f"WebP and BMP need Pillow, which is missing: {install_hint('data')}") from error
    try:
        with _no_warning_of_size(), Image.open(io.BytesIO(data), formats=_BY_PILLOW) as image:
            if image.width * image.height > MAX_PIXELS:
                raise ImageError(path, f"{image.width} x {image.height} pixels, more than {MAX_PIXELS >> 20} Mpx")
            image.load()
            return np.asarray(ImageOps.exif_transpose(image).convert("RGBA").convert("RGB"))
    except UnidentifiedImageError:
        raise ImageError(path, "not a JPEG, PNG, WebP or BMP image") from None
    except Image.DecompressionBombError:
        raise ImageError(path, f"more than {MAX_PIXELS >> 20} Mpx") from None
    except (OSError, SyntaxError) as error:
        raise ImageError(path, f"damaged or cut short ({error})") from None


@contextlib.contextmanager
def _no_warning_of_size() -> Iterator[None]:
    """Silences Pillow's warning from 89 Mpx on, since larger files than 64 Mpx are refused anyway."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        yield
