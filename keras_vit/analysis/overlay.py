"""A photo under a map, whose small values are dark; masks as colours, over a photo and next to it."""

from collections.abc import Sequence

import numpy as np

_EVEN = 1e-6  # smallest spread of a map, relative to its largest value; below it the map counts as even


def overlay(photo: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A photo that is darker where a map has smaller values: uint8 `(H, W, 3)`.

    The map is scaled to [0, 1], enlarged by Lanczos' filter, blurred by the side of a patch, and scaled again. The
    paper's author first divides by the largest value, which differs for nearly even maps only.

    Example:
        >>> pixels = keras_vit.read_image(photos / "disc" / "0.jpg")
        >>> weights = np.array([[0.0, 0.2], [0.1, 1.0]])  # one number for each patch
        >>> keras_vit.analysis.overlay(pixels, weights).shape
        (76, 71, 3)

    Args:
        photo: `(H, W, 3)` or `(H, W)`, integers in [0, 255].
        weights: `(h, w)`; an even map leaves the photo unchanged.
    """
    from PIL import Image, ImageFilter

    photo, weights = colorize(photo), np.asarray(weights, "float64")
    if weights.ndim != 2 or not np.isfinite(weights).all():
        raise ValueError(f"a map must be (h, w) of finite numbers.\nReceived: shape {weights.shape}.")
    height, width = photo.shape[:2]
    mask = Image.fromarray(_scale_to_unit(weights).astype("float32")).resize((width, height), Image.Resampling.LANCZOS)
    levels = Image.fromarray(np.uint8(np.clip(np.asarray(mask), 0, 1) * 255))
    blurred = np.asarray(levels.filter(ImageFilter.GaussianBlur(height / weights.shape[0])), "float32")
    return np.rint(photo * _scale_to_unit(blurred)[..., None]).astype("uint8")


def colorize(photo: np.ndarray) -> np.ndarray:
    """A photo in colour or grey as uint8 `(H, W, 3)`."""
    photo = np.asarray(photo)
    if (
        photo.dtype.kind not in "iu"
        or photo.ndim not in (2, 3)
        or photo.shape[2:] not in ((), (1,), (3,))
        or not photo.size
    ):
        raise ValueError(
            "a photo must be (H, W, 3) or (H, W) of integers in [0, 255], as `read_image` gives it.\n"
            f"Received: {photo.dtype} of shape {photo.shape}."
        )
    if photo.min() < 0 or photo.max() > 255:
        raise ValueError(f"a photo must be of [0, 255].\nReceived: values from {photo.min()} to {photo.max()}.")
    photo = photo if photo.ndim == 3 else photo[..., None]
    return np.ascontiguousarray(np.broadcast_to(photo, (*photo.shape[:2], 3)), "uint8")


def _scale_to_unit(values: np.ndarray) -> np.ndarray:
    """Values scaled to [0, 1]; all 1 if they are equal."""
    if np.ptp(values) <= _EVEN * np.abs(values).max():
        return np.ones_like(values)
    return (values - values.min()) / np.ptp(values)


_WRONG, _RIGHT, _IGNORED = (220, 30, 30), (60, 170, 90), (0, 0, 0)
_OPAQUE = 0.6  # of colours over a photo
_GAP = 4  # white pixels between pictures


def class_colors(count: int, colors: Sequence[str] | None = None) -> np.ndarray:
    """uint8 `(count, 3)`: given colours, as `"#ff8800"`, or those of PASCAL VOC's palette, by the bits of each number.

    Args:
        count: of classes.
        colors: one for each class.
    """
    if colors is not None:
        return np.array([[int(color[place : place + 2], 16) for place in (1, 3, 5)] for color in colors], "uint8")
    numbers = np.arange(count)[:, None]
    places = np.arange(8)
    found = [(((numbers >> (3 * places + channel)) & 1) << (7 - places)).sum(axis=1) for channel in range(3)]
    return np.stack(found, 1).astype("uint8")


def paint(classes: np.ndarray, colors: np.ndarray, photo: np.ndarray | None = None) -> np.ndarray:
    """Classes as colours: uint8 `(H, W, 3)`; what is no class is black, or the photo.

    Args:
        classes: int `(H, W)`.
        colors: uint8 `(K, 3)`.
        photo: uint8 `(H, W, 3)`, over which the colours lie.
    """
    known = (classes >= 0) & (classes < len(colors))
    painted = np.where(known[..., None], colors[np.where(known, classes, 0)], np.uint8(0))
    if photo is None:
        return painted
    mixed = _OPAQUE * painted + (1 - _OPAQUE) * photo
    return np.where(known[..., None], np.rint(mixed), photo).astype("uint8")


def side_by_side(
    photo: np.ndarray, mask: np.ndarray, answer: np.ndarray, colors: np.ndarray, ignore_class: int
) -> np.ndarray:
    """A photo, its mask, the answer over the photo, and the error: uint8 `(h, 4 w + 12, 3)` at the size of the mask.

    Wrong pixels are red, right ones green, and those that do not count black.

    Args:
        photo: uint8 `(H, W, C)`.
        mask: int `(h, w)`.
        answer: int `(h, w)`.
        colors: uint8 `(K, 3)`.
        ignore_class: label of pixels that do not count.
    """
    from PIL import Image

    height, width = mask.shape
    photo = np.asarray(Image.fromarray(colorize(photo)).resize((width, height)))
    error = np.where((mask == answer)[..., None], np.array(_RIGHT, "uint8"), np.array(_WRONG, "uint8"))
    error = np.where((mask == ignore_class)[..., None], np.array(_IGNORED, "uint8"), error)
    pictures = [photo, paint(mask, colors), paint(answer, colors, photo), error]
    gap = np.full((height, _GAP, 3), 255, "uint8")
    return np.concatenate([part for picture in pictures for part in (gap, picture)][1:], axis=1)
