"""A photo under a map: parts with small values of the map are dark."""

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
