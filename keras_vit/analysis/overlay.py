"""A photo under a map, whose small values are dark; masks and depths as colours, over a photo and next to it."""

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
    return _in_a_row([photo, paint(mask, colors), paint(answer, colors, photo), error])


def _in_a_row(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures of one size with white between them."""
    gap = np.full((len(pictures[0]), _GAP, 3), 255, "uint8")
    return np.concatenate([part for picture in pictures for part in (gap, picture)][1:], axis=1)


_FAR_TO_NEAR = (  # colours of depths, evenly spaced
    *((0, 0, 4), (40, 11, 84), (101, 21, 110), (159, 42, 99)),
    *((212, 72, 66), (245, 125, 21), (250, 193, 39), (252, 255, 164)),
)
_ERRORS, _LARGE_ERROR = (_RIGHT, (250, 193, 39), _WRONG), 0.2  # of depths; part of one
_UNKNOWN = np.uint8(128)
_EXTREMES = (2, 98)  # percentiles of what is painted darkest and brightest


def paint_depths(values: np.ndarray, unit: str) -> np.ndarray:
    """Depths as colours, from dark where it is far to bright where it is near, with a scale below.

    Args:
        values: float `(H, W)`.
        unit: `"metres"`, or `"inverse"` of depths that are largest where it is near.

    Returns:
        uint8 `(H', W', 3)`.
    """
    low, high = np.percentile(values, _EXTREMES)
    far, near = (low, high) if unit == "inverse" else (high, low)
    table = _interpolated(_FAR_TO_NEAR)
    words = "" if unit == "inverse" else " m"
    shown = [
        (tuple(table[255 * step // 4].tolist()), f"{far + (near - far) * step / 4:.3g}{words}") for step in range(5)
    ]
    return with_legend(_between(values, far, near, table), shown)


def depths_side_by_side(photo: np.ndarray, target: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """A photo, its depths, the answer in the same colours, and the error: uint8 `(h, 4 w + 12, 3)`, the map's size.

    Depths are bright where it is near. An error is green at 0, yellow at 10 % of the depth and red from 20 % on. Pixels
    that do not count are grey.

    Args:
        photo: uint8 `(H, W, C)`.
        target: float `(h, w)`, 0 where it does not count.
        answer: float `(h, w)`.
    """
    from PIL import Image

    height, width = target.shape
    valid = target > 0
    near, far = np.percentile(target[valid], _EXTREMES) if valid.any() else (0.0, 1.0)
    shown = np.asarray(Image.fromarray(colorize(photo)).resize((width, height)))
    table = _interpolated(_FAR_TO_NEAR)
    error = _between(np.abs(answer - target) / np.where(valid, target, 1), 0, _LARGE_ERROR, _interpolated(_ERRORS))
    maps = [_between(target, far, near, table), _between(answer, far, near, table), error]
    known, given, wrong = (np.where((valid | (one is maps[1]))[..., None], one, _UNKNOWN) for one in maps)
    return _in_a_row([shown, known, given, wrong])


def _between(values: np.ndarray, first: float, last: float, table: np.ndarray) -> np.ndarray:
    """Values as the colours of a table, whose ends stand for two values."""
    spread = last - first if last != first else 1e-30
    return table[np.rint(255 * np.clip((values - first) / spread, 0, 1)).astype(int)]


def _interpolated(colors: Sequence[tuple[int, int, int]]) -> np.ndarray:
    """uint8 `(256, 3)` from evenly spaced colours."""
    places = np.linspace(0, 255, len(colors))
    table = np.stack([np.interp(np.arange(256), places, channel) for channel in zip(*colors, strict=True)], 1)
    return np.rint(table).astype("uint8")


_GOOD_TO_FLAWED = (
    (110, 110, 160),
    (70, 150, 200),
    (250, 200, 60),
    (240, 110, 30),
    (180, 0, 30),
)  # the third at the threshold
_MOST_OPAQUE = 0.75  # of colours over the photo


def anomaly_limits(median_distance: float, threshold: float) -> tuple[float, float]:
    """Distances of the first and the last colour of `paint_anomalies`; the threshold is in the middle.

    Args:
        median_distance: of patches of good photos.
        threshold: above which a score is that of a flawed photo.
    """
    return median_distance, median_distance + max(2 * (threshold - median_distance), 1e-6)


def paint_anomalies(anomaly_map: np.ndarray, limits: tuple[float, float], photo: np.ndarray) -> np.ndarray:
    """A photo under the colours of its anomaly map: as it is where it is like the good ones, red where it is not.

    Args:
        anomaly_map: float `(H, W)`.
        limits: distances of the first and the last colour.
        photo: uint8 `(H, W, 3)` or `(H, W, 1)`.

    Returns:
        uint8 `(H, W, 3)`.
    """
    levels = np.clip((anomaly_map - limits[0]) / (limits[1] - limits[0]), 0, 1)
    painted = _interpolated(_GOOD_TO_FLAWED)[np.rint(255 * levels).astype(int)]
    opaque = _MOST_OPAQUE * np.clip(2 * levels, 0, 1)[..., None]
    return np.rint(opaque * painted + (1 - opaque) * colorize(photo)).astype("uint8")


def anomaly_scale(limits: tuple[float, float]) -> np.ndarray:
    """The colours of `paint_anomalies` with their distances: uint8 `(H, W, 3)`.

    Args:
        limits: distances of the first and the last colour.
    """
    table = _interpolated(_GOOD_TO_FLAWED)
    strip = np.repeat(np.repeat(table[None], 16, axis=0), 2, axis=1)
    values = np.linspace(*limits, 5)
    return with_legend(strip, [(tuple(table[255 * n // 4].tolist()), f"{values[n]:.3g}") for n in range(5)])


def with_legend(picture: np.ndarray, rows: Sequence[tuple[tuple[int, ...], str]]) -> np.ndarray:
    """A picture above squares of colours with words: uint8 `(H + legend, max(W, 240), 3)`.

    Args:
        picture: uint8 `(H, W, 3)`.
        rows: a colour and words for each.
    """
    from PIL import Image, ImageDraw, ImageFont

    height, width = picture.shape[0], max(picture.shape[1], 240)
    size = max(12, width // 60)
    font, line = ImageFont.load_default(size), size + size // 2
    draw = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    places, x, y = [], 0, 0
    for _, words in rows:
        length = 2 * size + int(draw.textlength(words, font))
        x, y = (0, y + line) if x and x + length > width else (x, y)
        places.append((x, y))
        x += length + size
    image = Image.new("RGB", (width, height + y + line + size // 2), "white")
    image.paste(Image.fromarray(picture))
    draw = ImageDraw.Draw(image)
    for (color, words), (x, y) in zip(rows, places, strict=True):
        top = height + y + size // 2
        draw.rectangle((x + size // 4, top, x + size + size // 4, top + size), color, "black")
        draw.text((x + 2 * size, top + size // 2), words, "black", font, "lm")
    return np.asarray(image)
