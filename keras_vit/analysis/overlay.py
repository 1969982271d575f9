"""A map laid over a photo, as an array: what the map has little of is dark."""

import numpy as np

_EVEN = 1e-6  # of the largest value: a map of less than that is even


def overlay(photo: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A photo, darker where a map has less: uint8 `(H, W, 3)`.

    The map is spread from 0 to 1, enlarged by Lanczos' filter, blurred by the side of a patch, and spread again. The
    paper's author divides by the largest value at first, which is the same but for maps that are nearly even.

    Args:
        photo: `(H, W, 3)` or `(H, W)`, integers of [0, 255].
        weights: `(h, w)`; one that is even leaves the photo as it is.
    """
    from PIL import Image, ImageFilter

    photo, weights = coloured(photo), np.asarray(weights, "float64")
    if weights.ndim != 2 or not np.isfinite(weights).all():
        raise ValueError(f"a map must be (h, w) of finite numbers.\nReceived: shape {weights.shape}.")
    height, width = photo.shape[:2]
    mask = Image.fromarray(_spread(weights).astype("float32")).resize((width, height), Image.Resampling.LANCZOS)
    levels = Image.fromarray(np.uint8(np.clip(np.asarray(mask), 0, 1) * 255))
    blurred = np.asarray(levels.filter(ImageFilter.GaussianBlur(height / weights.shape[0])), "float32")
    return np.rint(photo * _spread(blurred)[..., None]).astype("uint8")


def coloured(photo: np.ndarray) -> np.ndarray:
    """uint8 `(H, W, 3)` of a photo that may be grey."""
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


def _spread(values: np.ndarray) -> np.ndarray:
    """From 0 to 1; all 1 if they are equal."""
    if np.ptp(values) <= _EVEN * np.abs(values).max():
        return np.ones_like(values)
    return (values - values.min()) / np.ptp(values)
