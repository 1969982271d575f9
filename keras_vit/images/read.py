"""`read_image`: upright pixels of one file, equal to those of training, of export checks and of a SavedModel."""

import os
from typing import cast

import numpy as np

from keras_vit.annotations import Pair
from keras_vit.checks import as_sides, check_process, check_sides
from keras_vit.files import FileKindError, expand_path
from keras_vit.images.byte_ranges import PhotoLocation, photo_bytes
from keras_vit.images.decode import PIXELS_VARIABLE, decode_image, shrink_ratio
from keras_vit.images.headers import exif_orientation
from keras_vit.images.pillow_formats import READABLE_KINDS, to_png
from keras_vit.images.validation import decode_error, reading_error, reason_by_suffix
from keras_vit.pages.formatting import printable


class ImageError(ValueError):
    """A file that cannot be decoded as an image.

    Attributes:
        reason: a few words, as "truncated JPEG".
    """

    def __init__(self, path: object, reason: str) -> None:
        rule = f"a photo must be a {READABLE_KINDS} that can be decoded"
        rule = "a photo must not be too large to be decoded" if PIXELS_VARIABLE in reason else rule
        super().__init__(f"{rule}.\nReceived: {printable(path)}: {reason}.")
        self.reason = reason


def read_image(path: str | os.PathLike, channels: int = 3, least_size: int | Pair | None = None) -> np.ndarray:
    """Reads a photo as pixels, turned upright by its EXIF orientation.

    Example:
        >>> pixels = keras_vit.read_image(photos / "disc" / "0.jpg")
        >>> pixels.shape, pixels.dtype
        ((76, 71, 3), dtype('uint8'))

    Args:
        path: a JPEG, PNG, WebP, BMP or HEIC file.
        channels: 3 for RGB, 1 for grey (luma of ITU-R 601, as in Pillow).
        least_size: a side, or `(H, W)`, that a large JPEG may be made smaller to as it is decoded: to a half, a quarter
            or an eighth of its sides, where these can be divided so. `None`, the default, gives every pixel.

    Returns:
        uint8 `(H, W, channels)`, 0 to 255. Of 16 bits the high byte is kept, and alpha is dropped.

    Raises:
        TypeError: if `path` is not a path, or `least_size` no size.
        ValueError: for an empty path, another number of channels, or a side below 1.
        ImageError: a `ValueError`, for a folder, another format, a damaged file, or more than 67,108,864 pixels (the
            variable `KERAS_VIT_MAX_PIXELS` of the environment sets another limit, up to 178,956,970).
        FileNotFoundError: if the file does not exist.
        RuntimeError: in a process that was forked from one in which photos were read.
        ImportError: for a WebP or BMP without Pillow, and for a HEIC without its plugin `pillow-heif`.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"`path` must be that of a photo, a str or a path object.\nReceived: path={path!r}.")
    if not os.fspath(path):
        raise ValueError("`path` must be that of a photo.\nReceived: path=''.")
    if channels not in (1, 3):
        raise ValueError(f"a photo has three channels, or one of grey.\nReceived: channels={channels!r}.")
    least = None if least_size is None else as_sides(cast(Pair, check_sides("least_size", least_size)))
    path = expand_path(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"`path` must be that of a photo.\nReceived: {path}, where nothing is.")
    if os.path.isdir(path):
        raise ImageError(path, "a folder, not an image")
    return read_photo(str(path), channels, least)


def read_photo(place: PhotoLocation, channels: int = 3, least: Pair | None = None) -> np.ndarray:
    """As `read_image`, of a file that is there or of a slice of a shard."""
    try:
        data = photo_bytes(place)
    except FileNotFoundError:
        raise
    except (OSError, FileKindError) as error:
        raise ImageError(place, reading_error(str(place), error)) from None
    check_process()
    decoded, turn = [], exif_orientation(data)

    def decode(data: bytes) -> None:
        ratio = 1 if least is None else shrink_ratio(data, turn, least)
        decoded.append(decode_image(to_png(data), turn, channels, ratio))

    reason = decode_error(data, decode)
    if reason is not None:
        raise ImageError(place, reason_by_suffix(str(place), reason))
    return decoded[0].numpy()
