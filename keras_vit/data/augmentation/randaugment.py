"""RandAugment (arXiv:1909.13719) with the 16 operations of the official code; only the drawn ones are computed.

Operations and strengths are those of big_vision's `autoaugment.py`, used by AugReg. Results are whole grey levels, as
in Pillow's `ImageOps` and `ImageEnhance`. Lengths in pixels hold at 224 and grow with the shorter side. Contrast is
about the mean grey; the official code takes the number of pixels / 256 (196 at 224). `keras.layers.RandAugment` has
other strengths and computes every operation.
"""

import functools
from collections.abc import Sequence

from keras_vit.annotations import Tensor
from keras_vit.data.augmentation.random_draws import fold_seed, integer, sign
from keras_vit.data.augmentation.records import Augmentation

_FULL = 10  # the magnitude of full strength
_GREY = 128  # grey level of empty pixels
_STANDARD_SIDE = 224
_LUMA = (19595, 38470, 7471)  # of 65536: weights of red, green and blue in grey, ITU-R 601, rounded as in Pillow
_RADIANS = 3.141592653589793 / 180


def randaugment(image: Tensor, record: Augmentation, seed: Tensor) -> Tensor:
    """The image after some operations, which are drawn with replacement and applied in sequence.

    It is `(H, W, C)` in [0, 255], of 1 or 3 channels, and rounded to grey levels first. The result is float32, of whole
    numbers.
    """
    import tensorflow as tf

    image = tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)
    for layer in range(record.randaugment_layers):
        image = apply_operation(
            image, integer(seed, 2 * layer, len(OPERATIONS)), record, fold_seed(seed, 2 * layer + 1)
        )
    return tf.cast(image, tf.float32)


def apply_operation(image: Tensor, index: Tensor, record: Augmentation, seed: Tensor) -> Tensor:
    """Applies operation number `index` of `OPERATIONS` to uint8 `(H, W, C)`."""
    import tensorflow as tf

    strength = record.randaugment_magnitude / _FULL
    branches = [functools.partial(operation, image, strength, seed) for operation in OPERATIONS.values()]
    result = tf.switch_case(index, branches)
    return tf.ensure_shape(result, image.shape)


def _autocontrast(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    """Each channel is stretched from its darkest and lightest grey level to 0 and 255."""
    import tensorflow as tf

    low, high = (tf.cast(level, tf.float64) for level in _extremes(image))  # (C,)
    scale = tf.where(high > low, 255 / tf.maximum(high - low, 1), 1)
    shift = tf.where(high > low, low * scale, 0)
    levels = tf.cast(_lines(image), tf.float64) * _for_lines(scale, image) - _for_lines(shift, image)
    return tf.reshape(tf.cast(tf.clip_by_value(tf.floor(levels), 0, 255), tf.uint8), tf.shape(image))


def _equalize(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    """Makes the grey levels of each channel evenly frequent. As in Pillow, the lightest level does not count."""
    import tensorflow as tf

    channels = image.shape[-1]
    places = tf.cast(_lines(image), tf.int32) + _for_lines(256 * tf.range(channels), image)
    counts = tf.math.bincount(tf.reshape(places, (-1,)), minlength=256 * channels, maxlength=256 * channels)
    counts = tf.reshape(counts, (channels, 256))
    lightest = tf.cast(_extremes(image)[1], tf.int32)
    step = (tf.reduce_sum(counts, -1) - tf.gather(counts, lightest, batch_dims=1))[:, None] // 255
    table = (tf.cumsum(counts, -1, exclusive=True) + step // 2) // tf.maximum(step, 1)
    table = tf.where(step > 0, tf.clip_by_value(table, 0, 255), tf.range(256))
    found = tf.gather(tf.reshape(tf.cast(table, tf.uint8), (-1,)), places)
    return tf.reshape(found, tf.shape(image))


def _extremes(image: Tensor) -> list[Tensor]:
    """The darkest and the lightest grey level of each channel, `(C,)`."""
    import tensorflow as tf

    shape, both = (-1, image.shape[-1]), (tf.reduce_min, tf.reduce_max)
    return [reduce(tf.reshape(reduce(_lines(image), 0), shape), 0) for reduce in both]


def _lines(image: Tensor) -> Tensor:
    """The image as `(H, W * C)`, since arithmetic along lines is several times as fast as along few channels."""
    import tensorflow as tf

    return tf.reshape(image, (tf.shape(image)[0], -1))


def _for_lines(values: Tensor, image: Tensor) -> Tensor:
    """Values of channels, `(C,)`, repeated to `(W * C,)` for `_lines`."""
    import tensorflow as tf

    return tf.tile(values, [tf.shape(image)[1]])


def _invert(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    import tensorflow as tf

    return tf.bitwise.invert(image)


def _posterize(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    """Keeps 1 bit at magnitude 0, 4 at 10 and 8 at 20, as the shifts of the official code do."""
    bits = min(max(int(strength * 4), 1), 8)
    return image & (256 - 2 ** (8 - bits))


def _solarize(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    """Inverts levels from a threshold on: none at full strength, all at strength 0."""
    import tensorflow as tf

    threshold = int(strength * 256)
    if threshold > 255:
        return image
    return tf.bitwise.bitwise_xor(image, 255 * tf.cast(image >= threshold, tf.uint8))


def _solarize_add(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    """Lightens the darker half by 110 grey levels."""
    import tensorflow as tf

    levels = tf.cast(image, tf.float32)
    levels += int(strength * 110) * tf.cast(image < 128, tf.float32)
    return tf.cast(tf.minimum(levels, 255), tf.uint8)


def _color(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    import tensorflow as tf

    levels = tf.cast(image, tf.float32)
    return _blend(_grey(levels), levels, strength)


def _contrast(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    import tensorflow as tf

    levels = tf.cast(image, tf.float32)
    mean = tf.reduce_mean(tf.cast(_grey(levels), tf.float64))
    return _blend(tf.cast(tf.floor(mean + 0.5), tf.float32), levels, strength)


def _brightness(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    import tensorflow as tf

    return _blend(0.0, tf.cast(image, tf.float32), strength)


def _sharpness(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    """Blends each inner pixel with a mean in which it counts five times and its eight neighbours once."""
    import tensorflow as tf

    channels = image.shape[-1]
    stored = _lines(image)
    levels = tf.cast(stored, tf.float32)
    columns = levels[:-2] + levels[1:-1] + levels[2:]
    inside = levels[1:-1, channels:-channels]
    total = columns[:, : -2 * channels] + columns[:, channels:-channels] + columns[:, 2 * channels :] + 4 * inside
    inside = _blend(tf.floor((2 * total + 13) / 26), inside, strength)  # the mean is rounded
    middle = tf.concat([stored[1:-1, :channels], inside, stored[1:-1, -channels:]], 1)
    return tf.reshape(tf.concat([stored[:1], middle, stored[-1:]], 0), tf.shape(image))


def _blend(other: Tensor, levels: Tensor, strength: float) -> Tensor:
    """uint8 blend of two images: factor 0 is `other`, 1 is `levels`. The factor is 0.1 + 1.8 times the strength."""
    import tensorflow as tf

    return tf.cast(tf.clip_by_value(other + (0.1 + 1.8 * strength) * (levels - other), 0, 255), tf.uint8)


def _grey(levels: Tensor) -> Tensor:
    """float32 `(H, W, C)` with the grey level in every channel; exact, since all numbers are integers below 2**24."""
    import tensorflow as tf

    channels = levels.shape[-1]
    if channels == 1:
        return levels
    weights = tf.repeat(tf.constant(_LUMA, tf.float32)[:, None], channels, 1)
    weighted = tf.matmul(tf.reshape(levels, (-1, channels)), weights)
    return tf.reshape(tf.floor((weighted + 32768) / 65536), tf.shape(levels))


def _rotate(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    return _warp(image, rotation_matrix(30 * _RADIANS * strength * sign(seed, 0)), (0.0, 0.0))


def _shear_x(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    return _warp(image, [[1.0, 0.0], [0.3 * strength * sign(seed, 0), 1.0]], (0.0, 0.0), centred=False)


def _shear_y(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    return _warp(image, [[1.0, 0.3 * strength * sign(seed, 0)], [0.0, 1.0]], (0.0, 0.0), centred=False)


def _translate_x(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    return _warp(image, [[1.0, 0.0], [0.0, 1.0]], (0.0, _length(image, 100, strength) * sign(seed, 0)))


def _translate_y(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    return _warp(image, [[1.0, 0.0], [0.0, 1.0]], (_length(image, 100, strength) * sign(seed, 0), 0.0))


def _warp(
    image: Tensor, rows: Sequence[Sequence[Tensor]], shift: tuple[Tensor, Tensor], centred: bool = True
) -> Tensor:
    """`warp` with the nearest pixel; the channels of a pixel are read together, as one int32."""
    import tensorflow as tf

    channels = image.shape[-1]
    padded = tf.pad(image, [(0, 0), (0, 0), (0, 4 - channels)])
    fill = int.from_bytes([_GREY] * channels, "little")  # below 2**24, so a float32 holds it
    warped = warp(tf.bitcast(padded, tf.int32)[..., None], rows, shift, "NEAREST", fill, centred)
    return tf.bitcast(warped[..., 0], tf.uint8)[..., :channels]


def _cutout(image: Tensor, strength: float, seed: Tensor) -> Tensor:
    """Fills a square of 80 pixels a side, at full strength, with grey; it may lie partly outside."""
    import tensorflow as tf

    half = tf.cast(_length(image, 40, strength), tf.int32)
    near = []
    for axis, side in enumerate(tf.unstack(tf.shape(image)[:2])):
        places, centre = tf.range(side), integer(seed, axis, side)
        near.append(tf.cast((places >= centre - half) & (places < centre + half), tf.uint8))
    lines = _lines(image)
    inside = near[0][:, None] * tf.repeat(near[1], image.shape[-1])
    return tf.reshape(lines + inside * (_GREY - lines), tf.shape(image))


def _length(image: Tensor, pixels: float, strength: float) -> Tensor:
    """A length in pixels of this image, float32, for `pixels` of an image of 224."""
    import tensorflow as tf

    side = tf.reduce_min(tf.shape(image)[:2])
    return pixels * strength * tf.cast(side, tf.float32) / _STANDARD_SIDE


OPERATIONS = {
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": _invert,
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "color": _color,
    "contrast": _contrast,
    "brightness": _brightness,
    "sharpness": _sharpness,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "cutout": _cutout,
    "solarize_add": _solarize_add,
}


def rotation_matrix(angle: Tensor) -> list[list[Tensor]]:
    """The matrix that turns an image counter-clockwise by `angle` radians, as rows for `warp`."""
    import tensorflow as tf

    return [[tf.cos(angle), tf.sin(angle)], [-tf.sin(angle), tf.cos(angle)]]


def warp(
    image: Tensor,
    rows: Sequence[Sequence[Tensor]],
    shift: tuple[Tensor, Tensor],
    interpolation: str,
    fill: float,
    centred: bool = True,
) -> Tensor:
    """Reads the result's pixel (y, x) at `rows @ (y, x) + shift`, relative to the centre or to the top left pixel.

    Args:
        image: `(H, W, C)`, uint8 or float32.
        rows: `[[yy, yx], [xy, xx]]`, numbers or scalar tensors.
        shift: `(y, x)` in pixels.
        interpolation: `"NEAREST"` or `"BILINEAR"`.
        fill: value of pixels that are read from outside the image.
        centred: whether coordinates are relative to the centre, which only the shift then moves.
    """
    import tensorflow as tf

    size = tf.shape(image)[:2]
    middle = (tf.cast(size, tf.float32) - 1) / 2 if centred else tf.zeros(2)
    (yy, yx), (xy, xx) = rows
    y = middle[0] - yy * middle[0] - yx * middle[1] + shift[0]
    x = middle[1] - xy * middle[0] - xx * middle[1] + shift[1]
    transform = tf.stack([tf.cast(value, tf.float32) for value in (xx, xy, x, yx, yy, y, 0.0, 0.0)])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=transform[None],
        output_shape=size,
        fill_value=tf.cast(fill, tf.float32),
        interpolation=interpolation,
        fill_mode="CONSTANT",
    )[0]
