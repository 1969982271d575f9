"""RandAugment (arXiv:1909.13719) as the official code runs it: 16 operations, and only the drawn one is computed.

Operations and strengths are those of big_vision's `autoaugment.py`, which AugReg was trained with; numbers are
whole grey levels, as Pillow's `ImageOps` and `ImageEnhance` compute them. Lengths in pixels are those of a 224
image and grow with the shorter side, or a 32 image would be shifted out of itself. Contrast is about the mean
grey (the official code takes the number of pixels over 256 for it: 196 at 224). `keras.layers.RandAugment`
computes every operation for each image, in other strengths.
"""

import functools

from keras_vit.augmentation.seeds import integer, named_seed, sign
from keras_vit.augmentation.warps import turn, warp

_FULL = 10  # the magnitude at which an operation has the strength named beside it
_GREY = 128  # what fills empty pixels
_STANDARD_SIDE = 224
_LUMA = (19595, 38470, 7471)  # of 65536: red, green and blue in grey, ITU-R 601, as Pillow rounds them
_RADIANS = 3.141592653589793 / 180


def randaugment(image, record, seed):
    """Operations drawn with replacement, one after the other.

    Args:
        image: `(H, W, C)` floats in [0, 255], of 1 or 3 channels; rounded to grey levels first.
        record: `Augmentation`, for `randaugment_layers` and `randaugment_magnitude`.
        seed: `(2,)` integer tensor.

    Returns:
        float32 `(H, W, C)`, whole numbers in [0, 255].
    """
    import tensorflow as tf

    image = tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)
    for layer in range(record.randaugment_layers):
        image = apply_operation(
            image, integer(seed, 2 * layer, len(OPERATIONS)), record, named_seed(seed, 2 * layer + 1)
        )
    return tf.cast(image, tf.float32)


def apply_operation(image, index, record, seed):
    """Operation `index` of `OPERATIONS` on uint8 `(H, W, C)`."""
    import tensorflow as tf

    strength = record.randaugment_magnitude / _FULL
    branches = [functools.partial(operation, image, strength, seed) for operation in OPERATIONS.values()]
    result = tf.switch_case(index, branches)
    return tf.ensure_shape(result, image.shape)


def _autocontrast(image, strength, seed):
    """Each channel is stretched from its darkest and lightest grey level to 0 and 255."""
    import tensorflow as tf

    low, high = (tf.cast(reduce(image, (0, 1)), tf.float64) for reduce in (tf.reduce_min, tf.reduce_max))  # (C,)
    scale = 255 / tf.maximum(high - low, 1)
    levels = tf.range(256, dtype=tf.float64)[:, None]
    table = tf.clip_by_value(tf.floor(levels * scale - low * scale), 0, 255)
    return _look_up(image, tf.where(high > low, table, levels))


def _equalize(image, strength, seed):
    """Each channel's grey levels become evenly frequent; the last level's count sets no step, as in Pillow."""
    import tensorflow as tf

    channels = image.shape[-1]
    flat = tf.transpose(tf.reshape(tf.cast(image, tf.int32), (-1, channels)))  # (C, HW)
    counts = tf.math.bincount(flat, minlength=256, maxlength=256, axis=-1)  # (C, 256)
    total = tf.reduce_sum(counts, -1, keepdims=True)
    lightest = tf.cast(tf.reduce_max(flat, -1), tf.int32)
    step = (total - tf.gather(counts, lightest[:, None], batch_dims=1)) // 255
    table = (tf.cumsum(counts, -1, exclusive=True) + step // 2) // tf.maximum(step, 1)
    table = tf.where(step > 0, tf.clip_by_value(table, 0, 255), tf.range(256))
    return _look_up(image, tf.transpose(table))


def _look_up(image, table):
    """`table` `(256, C)` at every grey level, a column per channel."""
    import tensorflow as tf

    channels = image.shape[-1]
    places = tf.cast(image, tf.int32) * channels + tf.range(channels)
    return tf.gather(tf.reshape(tf.cast(table, tf.uint8), (-1,)), places)


def _invert(image, strength, seed):
    return 255 - image


def _posterize(image, strength, seed):
    """Keeps 4 bits at full strength, more beyond it (8 at 20), and one at none, as 8-bit shifts officially do."""
    bits = min(max(int(strength * 4), 1), 8)
    return image & (256 - 2 ** (8 - bits))


def _solarize(image, strength, seed):
    """Inverts what is as light as the threshold: nothing at full strength, all at none."""
    import tensorflow as tf

    return tf.where(tf.cast(image, tf.int32) < int(strength * 256), image, 255 - image)


def _solarize_add(image, strength, seed):
    """Lightens the darker half by 110 grey levels."""
    import tensorflow as tf

    lighter = tf.cast(tf.minimum(tf.cast(image, tf.int32) + int(strength * 110), 255), tf.uint8)
    return tf.where(image < 128, lighter, image)


def _color(image, strength, seed):
    return _blend(_grey(image), image, strength)


def _contrast(image, strength, seed):
    import tensorflow as tf

    mean = tf.reduce_mean(tf.cast(_grey(image), tf.float64))
    return _blend(tf.cast(tf.floor(mean + 0.5), tf.uint8), image, strength)


def _brightness(image, strength, seed):
    return _blend(0, image, strength)


def _sharpness(image, strength, seed):
    return _blend(_smooth(image), image, strength)


def _blend(other, image, strength):
    """Between another image (at 0) and this one (at 1), and beyond it; 1.9 at full strength, 0.1 at none."""
    import tensorflow as tf

    other, image = tf.cast(other, tf.float32), tf.cast(image, tf.float32)
    return tf.cast(tf.clip_by_value(other + (0.1 + 1.8 * strength) * (image - other), 0, 255), tf.uint8)


def _grey(image):
    """`(H, W, 1)` grey levels."""
    import tensorflow as tf

    if image.shape[-1] == 1:
        return image
    weighted = tf.reduce_sum(tf.cast(image, tf.int32) * tf.constant(_LUMA), -1, keepdims=True)
    return tf.cast((weighted + 32768) // 65536, tf.uint8)


def _smooth(image):
    """The mean of a pixel, five times, and its eight neighbours; pixels of the border stay."""
    import tensorflow as tf

    values = tf.cast(image, tf.int32)
    rows = values[:-2] + values[1:-1] + values[2:]
    total = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:] + 4 * values[1:-1, 1:-1]  # (H-2, W-2, C)
    inside = tf.pad(tf.ones_like(total, tf.bool), [(1, 1), (1, 1), (0, 0)])
    mean = tf.pad((2 * total + 13) // 26, [(1, 1), (1, 1), (0, 0)])  # rounded
    return tf.cast(tf.where(inside, mean, values), tf.uint8)


def _rotate(image, strength, seed):
    return _warp(image, turn(30 * _RADIANS * strength * sign(seed, 0)), (0.0, 0.0))


def _shear_x(image, strength, seed):
    return _warp(image, [[1.0, 0.0], [0.3 * strength * sign(seed, 0), 1.0]], (0.0, 0.0), centred=False)


def _shear_y(image, strength, seed):
    return _warp(image, [[1.0, 0.3 * strength * sign(seed, 0)], [0.0, 1.0]], (0.0, 0.0), centred=False)


def _translate_x(image, strength, seed):
    return _warp(image, [[1.0, 0.0], [0.0, 1.0]], (0.0, _length(image, 100, strength) * sign(seed, 0)))


def _translate_y(image, strength, seed):
    return _warp(image, [[1.0, 0.0], [0.0, 1.0]], (_length(image, 100, strength) * sign(seed, 0), 0.0))


def _warp(image, rows, shift, centred=True):
    return warp(image, rows, shift, "NEAREST", _GREY, centred)


def _cutout(image, strength, seed):
    """Grey in a square of twice 40 pixels about a random one, cut off at the borders."""
    import tensorflow as tf

    half = tf.cast(_length(image, 40, strength), tf.int32)
    rows, columns = (tf.range(side) for side in tf.unstack(tf.shape(image)[:2]))
    near = [
        (places >= centre - half) & (places < centre + half)
        for places, centre in ((rows, integer(seed, 0, tf.size(rows))), (columns, integer(seed, 1, tf.size(columns))))
    ]
    return tf.where((near[0][:, None] & near[1])[..., None], tf.constant(_GREY, tf.uint8), image)


def _length(image, pixels, strength):
    """float32 pixels of this image, for `pixels` of a standard one."""
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
