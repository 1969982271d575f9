"""Decodes a JPEG or PNG to RGB pixels by TensorFlow's operations, so also in a pipeline or a SavedModel.

The header is read first, so that a small file that declares a huge picture is refused before it takes memory. Grey,
palette, CMYK, 16-bit and RGBA files all become 8-bit RGB. Of 16 bits the high byte is kept, and alpha is dropped. JPEG
is decoded with the accurate integer transform, which gives the same numbers as Pillow.
"""

import functools
import os

from keras_vit.annotations import Pair, Tensor
from keras_vit.images.headers import JPEG_START, is_jpeg, is_png, stored_size, without_texts

MAX_PIXELS = 64 * 2**20  # of one picture by default, which takes 192 MB when decoded
PIXELS_VARIABLE = "KERAS_VIT_MAX_PIXELS"  # of the environment, which worker processes inherit; it sets the limit
_MOST_PIXELS = 2**29 // 3  # that TensorFlow decodes, and Pillow opens
MAX_BYTES = 2**30  # of one file; a PNG of `MAX_PIXELS` with 4 channels of 16 bits takes 0.5 GB without compression
RATIOS = (8, 4, 2, 1)  # of the sides of a JPEG as stored to those that libjpeg decodes it to
_EXACT = "INTEGER_ACCURATE"
# Steps of each EXIF orientation, in order: t transposes, y mirrors top to bottom, x mirrors left to right.
_TURNS = {1: "", 2: "x", 3: "yx", 4: "y", 5: "t", 6: "tx", 7: "tyx", 8: "ty"}


def max_pixels() -> int:
    """The most pixels of a photo that is read, 67,108,864 or what `KERAS_VIT_MAX_PIXELS` says.

    Raises:
        ValueError: if that is no number from 1 to 178,956,970.
    """
    value = os.environ.get(PIXELS_VARIABLE) or str(MAX_PIXELS)
    if not (value.isascii() and value.isdecimal() and len(value) < 18 and 0 < int(value) <= _MOST_PIXELS):
        raise ValueError(
            f"{PIXELS_VARIABLE} must be a number of pixels from 1 to {_MOST_PIXELS:,}, the most that is decoded.\n"
            f"Received: {PIXELS_VARIABLE}={value}."
        )
    return int(value)


def decode_image(data: Tensor, orientation: Tensor | None = None, channels: int = 3, ratio: int = 1) -> Tensor:
    """Pixels of one file, upright.

    Args:
        data: string scalar, the bytes of a JPEG or PNG.
        orientation: int scalar, EXIF orientation 1 to 8; `None` leaves the pixels as stored.
        channels: 3 for RGB, 1 for grey with the weights of Pillow.
        ratio: of `RATIOS`, by which a JPEG is decoded smaller: means of squares of pixels, from fewer frequencies.

    Returns:
        uint8 `(H, W, channels)`; both sides of a JPEG are divided by `ratio`, and rounded up.

    Raises:
        tf.errors.InvalidArgumentError: for other formats, damaged files, and more than `max_pixels()` pixels.
    """
    return _finish(stored_pixels(_check_header(data), ratio), orientation, channels)


def shrink_ratio(data: bytes, orientation: int, least: Pair) -> int:
    """The largest of `RATIOS` by which a file is decoded to at least `least`, (H, W) upright; 1 for what is no JPEG.

    A ratio divides both sides, as those of cameras' photos are by 8, so that no pixel shifts.
    """
    if not data.startswith(JPEG_START):
        return 1
    sides = stored_size(data).numpy().tolist()[:: -1 if orientation >= 5 else 1]

    def fits(ratio: int) -> bool:
        return all(side % ratio == 0 and side >= ratio * needed for side, needed in zip(sides, least, strict=True))

    return next(filter(fits, RATIOS), 1)


def decode_window(data: Tensor, window: Tensor, orientation: Tensor | None = None, channels: int = 3) -> Tensor:
    """The result of `decode_image(...)[y : y + h, x : x + w]`; of a JPEG only the window is decoded to pixels.

    If a JPEG stores colours at half the size, the last row and column of the window may differ by some levels. There
    libjpeg interpolates colours without their neighbours outside the window.

    Args:
        data, orientation, channels: as for `decode_image`.
        window: `(y, x, h, w)`, int32 scalars, in the upright picture; or a function that returns them for its H and W.
    """
    import tensorflow as tf

    data = _check_header(data)
    size = _upright_size(stored_size(data), orientation)
    window = window(*size) if callable(window) else window
    window = tf.stack(window if orientation is None else stored_window(window, size, orientation))
    pixels = tf.cond(
        is_jpeg(data),
        lambda: tf.io.decode_and_crop_jpeg(data, window, 3, dct_method=_EXACT),
        lambda: tf.slice(_decode_png(data), [window[0], window[1], 0], [window[2], window[3], 3]),
    )
    return _finish(pixels, orientation, channels)


def _upright_size(size: Tensor, orientation: Tensor | None) -> tuple[Tensor, Tensor]:
    """`(H, W)` of the upright picture, int32 scalars."""
    import tensorflow as tf

    if orientation is not None:
        size = tf.where(orientation >= 5, size[::-1], size)
    return size[0], size[1]


def apply_orientation(pixels: Tensor, orientation: Tensor) -> Tensor:
    """Turns and mirrors a picture `(H, W, C)` by its EXIF orientation, 1 to 8; other values count as 1."""
    import tensorflow as tf

    def turned(steps: str) -> Tensor:
        turned = tf.transpose(pixels, (1, 0, 2)) if "t" in steps else pixels
        axes = ["yx".index(step) for step in steps if step != "t"]
        return tf.reverse(turned, axes) if axes else turned

    branches = [lambda: pixels] + [lambda steps=steps: turned(steps) for steps in _TURNS.values()]
    result = tf.switch_case(tf.where((orientation >= 1) & (orientation <= 8), orientation, 0), branches)
    return tf.ensure_shape(result, (None, None, pixels.shape[-1]))


def _check_header(data: Tensor) -> Tensor:
    """The same bytes; refuses a file whose header is not that of a JPEG or PNG of allowed size."""
    import tensorflow as tf

    readable = is_jpeg(data) | is_png(data)
    start = tf.io.decode_raw(
        tf.strings.substr(data, 0, 8), "uint8"
    )  # numbers, since the text of an error must be UTF-8
    known = tf.debugging.Assert(readable, ["only JPEG and PNG are decoded; a file starts with the bytes", start])
    with tf.control_dependencies([known] if known is not None else []):
        size = tf.cast(stored_size(tf.identity(data)), "int64")
    count = size[0] * size[1]
    most = max_pixels()
    right = (size[0] > 0) & (size[1] > 0) & (count <= most)
    fits = tf.debugging.Assert(right, [f"a picture must have 1 to {most} pixels; a file declares (H, W)", size])
    with tf.control_dependencies([fits] if fits is not None else []):
        return tf.identity(data)


def stored_pixels(data: Tensor, ratio: int = 1) -> Tensor:
    """Pixels as stored, uint8 `(H, W, 3)`, of a file that `is_jpeg` or `is_png`; without limits of size."""
    import tensorflow as tf

    jpeg = functools.partial(tf.io.decode_jpeg, data, 3, ratio, dct_method=_EXACT)
    pixels = tf.cond(is_jpeg(data), jpeg, lambda: _decode_png(data))
    return tf.ensure_shape(pixels, (None, None, 3))


def stored_window(window: Tensor, size: tuple[Tensor, Tensor], orientation: Tensor) -> Tensor:
    """The window `(y, x, h, w)` of the stored picture, int32 `(4,)`, for one of the upright picture of `size`."""
    import tensorflow as tf

    height, width = size
    y, x, h, w = window
    mirrored_y = tf.reduce_any(orientation == [o for o, steps in _TURNS.items() if "y" in steps])
    mirrored_x = tf.reduce_any(orientation == [o for o, steps in _TURNS.items() if "x" in steps])
    y = tf.where(mirrored_y, height - y - h, y)
    x = tf.where(mirrored_x, width - x - w, x)
    return tf.where(orientation >= 5, tf.stack([x, y, w, h]), tf.stack([y, x, h, w]))


def _decode_png(data: Tensor) -> Tensor:
    """Pixels of a PNG without its texts, which libpng would unpack to a thousand times their size."""
    import tensorflow as tf

    return tf.io.decode_png(without_texts(data), 3)


def _finish(pixels: Tensor, orientation: Tensor | None, channels: int) -> Tensor:
    import tensorflow as tf

    pixels = tf.ensure_shape(pixels, (None, None, 3))
    if orientation is not None:
        pixels = apply_orientation(pixels, orientation)
    return pixels if channels == 3 else grey(pixels)


def grey(pixels: Tensor) -> Tensor:
    """uint8 `(..., 3)` to `(..., 1)`: luma of ITU-R 601 in Pillow's fixed point, which keeps grey unchanged."""
    import tensorflow as tf

    weighed = tf.cast(pixels, "int32") * (19595, 38470, 7471)
    return tf.cast((tf.reduce_sum(weighed, axis=-1, keepdims=True) + 0x8000) // 0x10000, "uint8")
