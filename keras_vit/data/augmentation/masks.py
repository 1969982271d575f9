"""Random changes of a photo and its map together: scale and crop, flip, and colours of the photo alone.

Source: mmsegmentation's pipeline of ADE20K (`RandomResize`, `RandomCrop`, `RandomFlip`, `PhotoMetricDistortion`), which
DINOv2's and DINOv3's linear heads are trained with.
"""

from collections.abc import Sequence

from keras_vit.annotations import Pair, Tensor
from keras_vit.data.augmentation.random_draws import coin, fold_seed, integer, uniform
from keras_vit.data.augmentation.records import Augmentation

# Numbers of the random draws for an image.
_SCALE, _CORNER, _FLIP, _COLORS = range(20, 24)
_DRAWS = 10  # more of a crop, until no class fills too much of it
_LONGEST = 4  # times the longer side of the result that a resized photo has at ratio 1 at most: (2048, 512)
_BRIGHTNESS, _CONTRAST, _HUE = 32.0, (0.5, 1.5), 0.1  # levels, factors (of saturation too), part of the colour circle


def augment_with_mask(
    pixels: Tensor,
    mask: Tensor,
    record: Augmentation,
    image_size: Pair,
    seed: Tensor,
    ignore_class: float,
    fill: Sequence[float] = (0.0,),
) -> tuple[Tensor, Tensor]:
    """Changes a training image and its mask or depths at random.

    Args:
        pixels: `(H, W, C)` tensor in [0, 255].
        mask: int32 `(H, W)` labels, or float32 depths.
        record: `Augmentation` with a crop of `MASK_CROPS`, which changes neither by other means.
        image_size: `(H, W)` of the result, ints.
        seed: `(2,)` integer tensor, different for every image and epoch.
        ignore_class: value of pixels that do not count, which padding gets.
        fill: grey levels of padding, one or C.

    Returns:
        float32 `image_size + (C,)` in [0, 255], and the map, `image_size`, of its type.
    """
    import tensorflow as tf

    channels = pixels.shape[-1]
    if record.crop == "scale_crop":
        levels, mask = scale_crop(pixels, mask, record, image_size, seed, ignore_class, fill)
    else:
        levels, mask = tf.image.resize(pixels, image_size), resize_mask(mask, image_size)
    if record.flip:
        mirrored = coin(seed, _FLIP)
        levels = tf.where(mirrored, tf.reverse(levels, [1]), levels)
        mask = tf.where(mirrored, tf.reverse(mask, [1]), mask)
    if record.colors:
        levels = distort_colors(levels, fold_seed(seed, _COLORS))
    return tf.ensure_shape(levels, (*image_size, channels)), tf.ensure_shape(mask, image_size)


def resize_mask(mask: Tensor, size: Sequence[Tensor]) -> Tensor:
    """`size`: the label or depth of the nearest pixel."""
    import tensorflow as tf

    return tf.image.resize(mask[..., None], size, "nearest")[..., 0]


def scale_crop(
    pixels: Tensor,
    mask: Tensor | None,
    record: Augmentation,
    image_size: Pair,
    seed: Tensor,
    ignore_class: float = -1,
    fill: Sequence[float] = (0.0,),
) -> tuple[Tensor, Tensor]:
    """A window of an image that was resized by a random ratio and keeps its aspect.

    At ratio 1 the image just covers `image_size`, but for very long ones. The window is drawn again up to 10 times,
    until at most `record.most_of_one_class` of its pixels that count are of one class. Where the image ends it is
    padded, at the bottom and right.

    Arguments and results are those of `augment_with_mask`. Of depths, and with no mask, the window is drawn once.
    """
    import tensorflow as tf

    sides = tf.cast(tf.shape(pixels)[:2], tf.float32)
    factor = tf.minimum(
        tf.reduce_max(tf.cast(image_size, tf.float32) / sides), _LONGEST * max(image_size) / tf.reduce_max(sides)
    )
    size = tf.round(sides * factor * uniform(seed, _SCALE, *record.scale))
    size = tf.maximum(tf.cast(size, tf.int32), 1)
    large = tf.image.resize(pixels, size)
    labels = tf.fill(size, ignore_class) if mask is None else resize_mask(mask, size)
    room, window = tf.maximum(size - image_size, 0), tf.minimum(size, image_size)

    def corner(draw: Tensor) -> Tensor:
        drawn = fold_seed(fold_seed(seed, _CORNER), draw)
        return tf.stack([integer(drawn, axis, room[axis] + 1) for axis in range(2)])

    def is_mixed(start: Tensor) -> Tensor:
        cut = tf.reshape(tf.slice(labels, start, window), [-1])
        counts = tf.math.bincount(tf.boolean_mask(cut, cut != ignore_class))
        most, all_ = tf.reduce_max(tf.concat([counts, [0]], 0)), tf.reduce_sum(counts)
        return tf.cast(most, tf.float32) <= record.most_of_one_class * tf.cast(all_, tf.float32) - 0.5 / 2**20

    draw, start = tf.constant(0), corner(tf.constant(0))
    if mask is not None and labels.dtype.is_integer and record.most_of_one_class < 1:
        draw, start = tf.while_loop(
            lambda draw, start: (draw < _DRAWS) & ~is_mixed(start),
            lambda draw, start: (draw + 1, corner(draw + 1)),
            (draw, start),
        )
    y, x = tf.unstack(start)
    levels = tf.cast(large, tf.float32)[y : y + window[0], x : x + window[1]]
    labels = tf.slice(labels, start, window)
    margin = tf.stack([tf.zeros(2, tf.int32), image_size - window], 1)
    levels = tf.pad(levels - fill, tf.concat([margin, [[0, 0]]], 0)) + fill
    return levels, tf.pad(labels, margin, constant_values=ignore_class)


def distort_colors(levels: Tensor, seed: Tensor) -> Tensor:
    """Brightness, contrast, saturation and hue changed at random, each with probability 0.5; contrast first or last.

    Levels are float32 `(H, W, C)` in [0, 255]; of other than 3 channels colours stay.
    """
    import tensorflow as tf

    def maybe(place: int, change: Tensor, value: Tensor, also: Tensor = True) -> Tensor:
        return tf.where(coin(seed, place) & also, tf.clip_by_value(change, 0.0, 255.0), value)

    contrast, is_first = uniform(seed, 4, *_CONTRAST), coin(seed, 8)
    levels = maybe(0, levels + uniform(seed, 5, -_BRIGHTNESS, _BRIGHTNESS), levels)
    levels = maybe(1, levels * contrast, levels, is_first)
    if levels.shape[-1] == 3:
        parts = tf.image.adjust_saturation(levels / 255, uniform(seed, 6, *_CONTRAST)) * 255
        levels = maybe(2, parts, levels)
        levels = maybe(3, tf.image.adjust_hue(levels / 255, uniform(seed, 7, -_HUE, _HUE)) * 255, levels)
    return maybe(1, levels * contrast, levels, ~is_first)
