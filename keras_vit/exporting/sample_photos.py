"""Real photos to compare a file with the model on, and to calibrate int8 on."""

import hashlib
import itertools
import math
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from keras_vit.annotations import Pair
from keras_vit.checks import ArgumentError, install_hint, with_parameters
from keras_vit.data.splits import evenly_spaced
from keras_vit.files import expand_path, file_sha256, missing_reason
from keras_vit.images.photo_files import HEIC, READABLE, PassedOver, near_names, photos_below
from keras_vit.images.pillow_formats import READABLE_KINDS, missing_package
from keras_vit.images.read import ImageError, read_image
from keras_vit.images.validation import BadImage, check_image, check_images, count_reasons
from keras_vit.pages.formatting import printable
from keras_vit.silence import silent_descriptor

_SAMPLES = ("china.jpg", "flower.jpg")  # the two photos that come with scikit-learn, 427 x 640
SAMPLE_PHOTOS = "parts of two photos of scikit-learn"
Photos: TypeAlias = str | Path | Sequence[str | Path | np.ndarray] | np.ndarray | None  # a folder, paths, arrays
_MOST_TRIED = 4  # files of a folder, for each photo that is wanted
_MAX_PIXELS = 2**20  # pixels of a photo: more than models take; 64 photos of a camera would take gigabytes


def load_photos(given: Photos, count: int, channels: int = 3) -> list[np.ndarray]:
    """Photos of many sizes.

    Args:
        given: a folder, with all that is below it that can be read; paths of files that `read_image` takes; arrays
            uint8 `(H, W, C)`, or one `(N, H, W, C)`. `None` stands for parts of the two photos that come with
            scikit-learn.
        count: largest number; a larger set is sampled evenly.
        channels: C of the images: 1 is grey, and above 3 the colours are repeated.

    Returns:
        At least one array uint8 `(H, W, C)`, of at most about a million pixels: larger photos are shrunk.

    Raises:
        TypeError: for another type.
        ValueError: for no photos, or a file or an array that is no image.
        FileNotFoundError: for a path without a file.
        ImportError: if nothing is given and scikit-learn is missing.

    Warns:
        UserWarning: for links, shards and other files of a folder that are passed over, and for those of its photos
            that cannot be read, in whose place others are taken.
    """
    if given is None:
        return [_fit_channels(photo, channels) for photo in _crop_samples(count)]
    if isinstance(given, (str, Path)):
        folder = expand_path(given)
        given = _files_below(folder, count, passed := PassedOver())
        for line in passed.notes():
            warnings.warn(line, UserWarning, stacklevel=2)
        given = given if folder.is_file() else _readable(folder, given, count)
    if not isinstance(given, (list, tuple, np.ndarray)):
        raise with_parameters(
            TypeError(f"`images` must be a folder, or a list of paths or arrays.\nReceived: images={given!r}."),
            "images",
        )
    if len(given) == 0:
        raise ArgumentError("`images` must hold at least one photo.\nReceived: none.")
    chosen = [given[number] for number in evenly_spaced(len(given), count)]
    return [
        _fit_channels(_shrink(_read(image) if isinstance(image, (str, Path)) else _check_photo(image)), channels)
        for image in chosen
    ]


def describe_photos(given: Photos) -> str:
    """A description of the photos that `load_photos` takes."""
    return SAMPLE_PHOTOS if given is None else "the photos given"


def photos_fingerprint(given: Photos, count: int) -> str:
    """SHA-256 of the files or arrays that `load_photos` takes.

    Raises:
        OSError, TypeError, ValueError: for photos that are none, or cannot be read.
    """
    found = hashlib.sha256()
    if given is None:
        return SAMPLE_PHOTOS
    if isinstance(given, (str, Path)):
        given = _files_below(expand_path(given), count, PassedOver())[:count]
    for number in evenly_spaced(len(given), count):
        if isinstance(given[number], (str, Path)):
            found.update(bytes.fromhex(file_sha256(given[number])))
        else:
            photo = _check_photo(given[number])
            found.update(str(photo.shape).encode() + photo.tobytes())
    return found.hexdigest()


def resize_photos(photos: Sequence[np.ndarray], image_size: Pair) -> np.ndarray:
    """Photos at one size, `(N, H, W, C)` uint8, whatever their aspect.

    Args:
        photos: arrays uint8 `(H, W, C)`.
        image_size: `(H, W)`.
    """
    import tensorflow as tf

    # One by one: as floats 64 photos of 1,024 pixels take 2.4 GB.
    floats = (tf.image.resize(photo, image_size, antialias=True) for photo in photos)
    return np.stack([tf.cast(tf.round(photo), tf.uint8).numpy() for photo in floats])


def _files_below(folder: Path, count: int, passed: PassedOver) -> list[Path]:
    """The photos in a folder: `count` that are spread evenly, then some that may take the place of these."""
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise with_parameters(
            FileNotFoundError(
                f"`images` must be a folder of photos.\nReceived: {folder}, which is not there.{near_names(folder)}"
            ),
            "images",
        )
    files = sorted(photos_below(folder, passed=passed))
    passed.check()
    if not files:
        raise ArgumentError(f"`images` must hold at least one photo.\nReceived: {folder}, without a photo.")
    kinds = ("", *READABLE) if missing_package("HEIC") else ("", *READABLE, *HEIC)
    likely = [file for file in files if file.suffix.lower() in kinds]  # to be read; a GIF comes last
    spread = [likely[number] for number in evenly_spaced(len(likely), count)] if likely else []
    return list(itertools.islice(dict.fromkeys([*spread, *likely, *files]), _MOST_TRIED * count))


def _readable(folder: Path, files: Sequence[Path], count: int) -> list[Path]:
    """The first `count` of these that can be decoded, sorted; warns of the others before them."""
    good: list[Path] = []
    bad: list[BadImage] = []
    with silent_descriptor(2, sys.stderr):  # libjpeg writes a line to it for each damaged file
        for file in files:
            if len(good) == count:
                break
            image = check_image(str(file))
            if isinstance(image, BadImage):
                bad.append(image)
            else:
                good.append(file)
    if not good:
        raise ArgumentError(
            "`images` must hold at least one photo that can be decoded.\n"
            f"Received: {printable(folder)}, where none can: {count_reasons(bad)}."
        )
    check_images([], others=bad)  # warns of these
    return sorted(good)


def _read(path: str | Path) -> np.ndarray:
    try:
        return read_image(path)
    except FileNotFoundError:
        raise with_parameters(
            FileNotFoundError(
                f"`images` must be files that are there.\nReceived: {path}: {missing_reason(str(path))}."
            ),
            "images",
        ) from None
    except ImageError as error:
        raise ArgumentError(
            f"`images` must be valid {READABLE_KINDS} files.\nReceived: {path}: {error.reason}."
        ) from None


def _check_photo(image: np.ndarray) -> np.ndarray:
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or 0 in image.shape:
        raise ArgumentError(
            "`images` must be photos as uint8 (H, W, C), or paths of files.\n"
            f"Received: {image.dtype} of shape {image.shape}."
        )
    return image


def _shrink(photo: np.ndarray) -> np.ndarray:
    """A photo with too many pixels, shrunk by averaging squares of them."""
    side = math.ceil(math.sqrt(photo.shape[0] * photo.shape[1] / _MAX_PIXELS))
    height, width = (max(length // side, 1) for length in photo.shape[:2])
    if side == 1 or side > min(photo.shape[:2]):
        return photo
    squares = photo[: height * side, : width * side].reshape(height, side, width, side, -1)
    return np.round(squares.mean(axis=(1, 3), dtype="float32")).astype("uint8")


def _fit_channels(photo: np.ndarray, channels: int) -> np.ndarray:
    if photo.shape[-1] == channels:
        return photo
    if channels == 1:
        return np.round(photo.mean(axis=-1, keepdims=True)).astype(np.uint8)
    return photo[..., [channel % photo.shape[-1] for channel in range(channels)]]


def _crop_samples(count: int) -> list[np.ndarray]:
    """Crops of the two photos with sides of 160 to 420 pixels, by a fixed seed; every fourth is mirrored."""
    try:
        from sklearn.datasets import load_sample_image

        wholes = [load_sample_image(name) for name in _SAMPLES]
    except ImportError as error:
        raise with_parameters(
            ImportError(
                "the photos that an export is tested on come with scikit-learn and are read by Pillow, one of which is "
                f"missing: {install_hint('export')}, or pass `images=`"
            ),
            "images",
        ) from error
    rng, parts = np.random.default_rng(0), []
    for number in range(count):
        height, width = rng.integers(160, 420, 2)
        whole = wholes[number % len(wholes)]
        top, left = (rng.integers(0, whole.shape[axis] - side) for axis, side in ((0, height), (1, width)))
        part = whole[top : top + height, left : left + width]
        parts.append(np.ascontiguousarray(part[:, ::-1] if number % 4 == 3 else part))
    return parts
