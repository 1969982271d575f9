"""Random changes of one image, in this order: crop, affine change, flip, RandAugment, erasing."""

import math

from keras_vit.annotations import Pair, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.data.augmentation.augmentation_records import Augmentation
from keras_vit.data.augmentation.crops import crop_and_resize
from keras_vit.data.augmentation.randaugment import randaugment
from keras_vit.data.augmentation.seeds import coin, named_seed, uniform
from keras_vit.data.augmentation.warps import turn, warp

_FLIP, _AFFINE, _RANDAUGMENT, _ERASING = range(10, 14)  # numbers of the random draws; `crops` uses those below 10
ERASED_AREA = (0.02, 0.4)  # of the image (arXiv:1708.04896, section 5.2)
ERASED_ASPECT = 0.3  # height over width of the flattest rectangle; the reciprocal is the tallest


def augment_image(
    pixels: Tensor, record: Augmentation, image_size: Pair, seed: Tensor, cropped: bool = False
) -> Tensor:
    """Changes one training image at random and resizes it.

    Args:
        pixels: `(H, W, C)` tensor, integers or floats in [0, 255]; H and W may be known to the graph only.
        record: `Augmentation`; `augment_batch` applies its fields for batches.
        image_size: `(H, W)` of the result, ints.
        seed: `(2,)` integer tensor, different for every image and epoch.
        cropped: whether `pixels` are already the `crop_window` of the same record and seed.

    Returns:
        float32 `image_size + (C,)` in [0, 255].

    Raises:
        ValueError: for another rank, an unknown number of channels, or RandAugment of neither 1 nor 3 channels.

    Source: official code, `input_pipeline.py` (bilinear without antialias, crop before flip).
    """
    import tensorflow as tf

    pixels = tf.convert_to_tensor(pixels)
    _check(pixels, record, image_size)
    image = crop_and_resize(pixels, record, image_size, seed, cropped)  # (H, W, C)
    if any(record.affine):
        image = _affine(image, record.affine, image_size, named_seed(seed, _AFFINE))
    if record.flip:
        image = tf.cond(coin(seed, _FLIP), lambda: tf.reverse(image, [1]), lambda: image)
    if record.randaugment_layers:
        image = randaugment(image, record, named_seed(seed, _RANDAUGMENT))
    if record.erasing_probability:
        erasing = named_seed(seed, _ERASING)
        drawn = coin(erasing, 4, record.erasing_probability)
        image = tf.cond(drawn, lambda: _erased(image, image_size, erasing), lambda: image)
    return tf.ensure_shape(image, (*image_size, pixels.shape[-1]))


def _check(pixels: Tensor, record: Augmentation, image_size: Pair) -> None:
    for side in image_size:
        check_positive_int("image_size", side)
    if pixels.shape.rank != 3 or pixels.shape[-1] is None:
        raise ValueError(
            "one image must have shape (H, W, C) with a known number of channels, which the graph is built for.\n"
            f"Received: shape {pixels.shape}."
        )
    if record.randaugment_layers and pixels.shape[-1] not in (1, 3):
        raise ValueError(
            "RandAugment changes colours, so images must have 3 channels, or 1 of grey.\n"
            f"Received: shape {pixels.shape}. Take an augmentation with randaugment_layers=0 for other channels."
        )


def _affine(image: Tensor, affine: tuple[float, float, float], image_size: Pair, seed: Tensor) -> Tensor:
    """A random shift, turn and zoom about the centre; each is drawn uniformly between its limit's two signs."""
    height, width = image_size
    down, right, angle, zoom_y, zoom_x = (
        uniform(seed, place, -limit, limit)
        for place, limit in enumerate(
            (affine[0] * height, affine[0] * width, affine[1] * 2 * math.pi, affine[2], affine[2])
        )
    )
    rows = turn(angle)
    scales = (1 + zoom_y, 1 + zoom_x)
    rows = [[scale * value for value in row] for scale, row in zip(scales, rows, strict=True)]
    return warp(image, rows, (down, right), "BILINEAR", 0.0)


def _erased(image: Tensor, image_size: Pair, seed: Tensor) -> Tensor:
    """The image with uniform noise in a rectangle of random area, aspect and place.

    Source: arXiv:1708.04896, algorithm 1, which draws until the rectangle fits. Here one draw suffices, since the
    aspect is drawn from those that fit.
    """
    import tensorflow as tf

    height, width = image_size
    area = uniform(seed, 0, *ERASED_AREA) * (height * width)
    lowest = tf.maximum(math.log(ERASED_ASPECT), tf.math.log(area / width**2))  # of log(h/w)
    highest = tf.minimum(-math.log(ERASED_ASPECT), tf.math.log(height**2 / area))
    aspect = tf.exp(lowest + uniform(seed, 1) * (highest - lowest))
    inside = tf.ones(image_size, tf.bool)
    for axis, side, length in ((0, tf.sqrt(area * aspect), height), (1, tf.sqrt(area / aspect), width)):
        side = tf.clip_by_value(tf.round(side), 1, length)
        start = tf.floor(uniform(seed, 2 + axis) * (length - side + 1))
        places = tf.range(length, dtype=tf.float32)
        inside &= tf.expand_dims((places >= start) & (places < start + side), 1 - axis)
    noise = tf.floor(uniform(seed, 5, 0.0, 256.0, shape=tf.shape(image)))
    return tf.where(tf.expand_dims(inside, -1), noise, image)
