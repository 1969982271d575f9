"""`read_image`: upright pixels of one file, equal to those of training, of export checks and of a SavedModel."""

import os

import numpy as np

from keras_vit.checks import check_process
from keras_vit.files import FileKindError, user_path
from keras_vit.images.by_pillow import READABLE_KINDS, as_png
from keras_vit.images.decode import decode_image
from keras_vit.images.exif import orientation
from keras_vit.images.photo_checks import fault_of
from keras_vit.images.slices import PhotoPlace, photo_bytes
from keras_vit.pages.escaping import printable


class ImageError(ValueError):
    """A file that cannot be decoded as an image.

    Attributes:
        reason: a few words, as "truncated JPEG".
    """

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(
            f"a photo must be a {READABLE_KINDS} that can be decoded.\nReceived: {printable(path)}: {reason}."
        )
        self.reason = reason


def read_image(path: str | os.PathLike, channels: int = 3) -> np.ndarray:
    """Pixels of a photo, turned upright by its EXIF orientation.

    Args:
        path: a JPEG, PNG, WebP, BMP or HEIC file.
        channels: 3 for RGB, 1 for grey (luma of ITU-R 601, as in Pillow).

    Returns:
        uint8 `(H, W, channels)`, 0 to 255. Of 16 bits the high byte is kept, and alpha is dropped.

    Raises:
        TypeError: if `path` is not a path.
        ValueError: for an empty path or another number of channels.
        ImageError: a `ValueError`, for a folder, another format, a damaged file, or more than 64 Mpx.
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
    path = user_path(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"`path` must be that of a photo.\nReceived: {path}, where nothing is.")
    if os.path.isdir(path):
        raise ImageError(path, "a folder, not an image")
    return read_photo(str(path), channels)


def read_photo(place: PhotoPlace, channels: int = 3) -> np.ndarray:
    """As `read_image`, of a file that is there or of a slice of a shard."""
    try:
        data = photo_bytes(place)
    except FileKindError as error:
        raise ImageError(place, error.reason) from None
    check_process()
    decoded = []
    reason = fault_of(data, lambda data: decoded.append(decode_image(as_png(data), orientation(data), channels)))
    if reason is not None:
        raise ImageError(place, reason)
    return decoded[0].numpy()
