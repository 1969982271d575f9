"""Random changes of an image (crop, affine change, flip, RandAugment, erasing) and of a batch (MixUp, CutMix)."""

import math
from collections.abc import Sequence

from keras_vit.annotations import Pair, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.data.augmentation.masks import distort_colors, scale_crop
from keras_vit.data.augmentation.randaugment import randaugment, rotation_matrix, warp
from keras_vit.data.augmentation.random_draws import coin, fold_seed, integer, uniform
from keras_vit.data.augmentation.records import Augmentation

# Numbers of the random draws for a batch, and for an image:
_WHICH, _SHARE, _CUT_ROW, _CUT_COLUMN = range(4)
_WINDOW, _ROW, _COLUMN = range(3)
_FLIP, _AFFINE, _RANDAUGMENT, _ERASING, _COLORS = range(10, 15)
ASPECTS = (0.75, 1.33)  # of a crop, width over height: TensorFlow's defaults, as in the official code
ENLARGED = 448 / 384  # of `image_size` before "resize_crop" and "resmall_crop" cut (big_vision `transfer.py`)
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
        image = _affine(image, record.affine, image_size, fold_seed(seed, _AFFINE))
    if record.flip:
        image = tf.cond(coin(seed, _FLIP), lambda: tf.reverse(image, [1]), lambda: image)
    if record.colors:
        image = distort_colors(image, fold_seed(seed, _COLORS))
    if record.randaugment_layers:
        image = randaugment(image, record, fold_seed(seed, _RANDAUGMENT))
    if record.erasing_probability:
        erasing = fold_seed(seed, _ERASING)
        drawn = coin(erasing, 4, record.erasing_probability)
        image = tf.cond(drawn, lambda: _erase(image, image_size, erasing), lambda: image)
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
    rows = rotation_matrix(angle)
    scales = (1 + zoom_y, 1 + zoom_x)
    rows = [[scale * value for value in row] for scale, row in zip(scales, rows, strict=True)]
    return warp(image, rows, (down, right), "BILINEAR", 0.0)


def _erase(image: Tensor, image_size: Pair, seed: Tensor) -> Tensor:
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


def crop_window(
    height: Tensor, width: Tensor, record: Augmentation, seed: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The window of an image that `augment_image` uses with the same record and seed, so that only it is decoded.

    Returns:
        `(y, x, h, w)`, int32 scalars, in the order of `tf.io.decode_and_crop_jpeg`. The random window for
        `"inception"`; the whole image of H and W for other crops, which cut after the resize.

    Source: official code, `input_pipeline.py`: area 0.05 to 1, aspect 0.75 to 1.33, anywhere.
    """
    import tensorflow as tf

    height, width = tf.cast(height, tf.int32), tf.cast(width, tf.int32)
    if record.crop != "inception":
        return tf.constant(0), tf.constant(0), height, width
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.stack([height, width, 1]),
        tf.zeros((1, 0, 4)),
        fold_seed(seed, _WINDOW),
        min_object_covered=0.0,
        aspect_ratio_range=ASPECTS,
        area_range=record.crop_area,
        use_image_if_no_bounding_boxes=True,
    )
    return begin[0], begin[1], size[0], size[1]


def crop_and_resize(pixels: Tensor, record: Augmentation, image_size: Pair, seed: Tensor, cropped: bool) -> Tensor:
    """float32 image of `image_size`; resized bilinearly without antialias, as in the official code."""
    import tensorflow as tf

    if record.crop == "scale_crop":
        return scale_crop(pixels, None, record, image_size, seed)[0]
    height, width = tf.unstack(tf.shape(pixels)[:2])
    if record.crop == "inception" and not cropped:
        y, x, h, w = crop_window(height, width, record, seed)
        pixels = pixels[y : y + h, x : x + w]
    if record.crop in ("inception", "none"):
        return tf.image.resize(pixels, image_size)
    large: Sequence[Tensor] = [round(side * ENLARGED) for side in image_size]
    if record.crop == "resmall_crop":  # covers that size, and rounds as "crop" does in evaluation
        large = [tf.maximum(large[0], large[1] * height // width), tf.maximum(large[1], large[0] * width // height)]
    pixels = tf.image.resize(pixels, tf.stack(large))
    corner = [integer(seed, place, large[axis] - image_size[axis] + 1) for axis, place in enumerate((_ROW, _COLUMN))]
    return tf.slice(pixels, [*corner, 0], [*image_size, pixels.shape[-1]])


def augment_batch(images: Tensor, one_hot: Tensor, record: Augmentation, seed: Tensor) -> tuple[Tensor, ...]:
    """MixUp or CutMix of each image with its predecessor in the batch.

    One share s per batch is drawn from Beta(alpha, alpha). MixUp weights an image by the larger of s and 1 - s. CutMix
    pastes a rectangle of the area 1 - s, clipped at the borders, and labels get the exact shares of pixels.

    `keras.layers.MixUp` and `CutMix` draw a share per image, and shuffle. That `CutMix` draws alpha as well, and its
    labels differ from the shares of pixels by a rounding error.

    Args:
        images: `(B, H, W, C)` floats, scaled or not.
        one_hot: `(B, K)` floats, a distribution per row.
        record: `Augmentation`, for `mixup_alpha` and `cutmix_alpha`.
        seed: `(2,)` integer tensor, different for every batch.

    Returns:
        `(images, one_hot)` of the same shapes and types.

    Raises:
        ValueError: for images or labels of another rank or of an integer type.

    Source: MixUp arXiv:1710.09412, as big_vision `utils.py` runs it; CutMix arXiv:1905.04899, section 3.1.
    """
    import tensorflow as tf

    images, one_hot = tf.convert_to_tensor(images), tf.convert_to_tensor(one_hot)
    _check_batch(images, one_hot)
    if not record.mixes:
        return images, one_hot
    if not record.cutmix_alpha:
        return _mixup(images, one_hot, record.mixup_alpha, seed)
    if not record.mixup_alpha:
        return _cutmix(images, one_hot, record.cutmix_alpha, seed)
    return tf.cond(
        coin(seed, _WHICH),
        lambda: _mixup(images, one_hot, record.mixup_alpha, seed),
        lambda: _cutmix(images, one_hot, record.cutmix_alpha, seed),
    )


def _check_batch(images: Tensor, one_hot: Tensor) -> None:
    if (
        images.shape.rank != 4
        or one_hot.shape.rank != 2
        or not (images.dtype.is_floating and one_hot.dtype.is_floating)
    ):
        raise ValueError(
            "mixing needs float images (B, H, W, C) and float one-hot labels (B, K), as parts of them are added.\n"
            f"Received: images {images.shape} {images.dtype.name}, labels {one_hot.shape} {one_hot.dtype.name}."
        )


def _mixup(images: Tensor, one_hot: Tensor, alpha: float, seed: Tensor) -> tuple[Tensor, ...]:
    import tensorflow as tf

    share = _beta(alpha, seed)
    share = tf.maximum(share, 1 - share)
    return tuple(_mix(values, tf.roll(values, 1, 0), share) for values in (images, one_hot))


def _mix(values: Tensor, others: Tensor, share: Tensor) -> Tensor:
    import tensorflow as tf

    share = tf.cast(share, values.dtype)
    return share * values + (1 - share) * others


def _cutmix(images: Tensor, one_hot: Tensor, alpha: float, seed: Tensor) -> tuple[Tensor, ...]:
    import tensorflow as tf

    height, width = tf.unstack(tf.shape(images)[1:3])
    side = tf.sqrt(1 - _beta(alpha, seed))
    rows = _segment(height, side, integer(seed, _CUT_ROW, height))
    columns = _segment(width, side, integer(seed, _CUT_COLUMN, width))
    pasted = (rows[:, None] & columns)[..., None]  # (H, W, 1)
    share = 1 - tf.reduce_mean(tf.cast(pasted, tf.float64))
    return tf.where(pasted, tf.roll(images, 1, 0), images), _mix(one_hot, tf.roll(one_hot, 1, 0), share)


def _segment(length: Tensor, side: Tensor, centre: Tensor) -> Tensor:
    """Booleans `(length,)`: which places lie in a segment about `centre` whose length is the part `side` of all."""
    import tensorflow as tf

    size = tf.cast(side * tf.cast(length, side.dtype), tf.int32)
    places = tf.range(length)
    start = centre - size // 2
    return (places >= start) & (places < start + size)


def _beta(alpha: float, seed: Tensor) -> Tensor:
    """A draw from Beta(alpha, alpha) by two gamma draws, in float64, since float32 fails for small alpha."""
    import tensorflow as tf

    draws = tf.random.stateless_gamma((2,), fold_seed(seed, _SHARE), tf.constant(alpha, tf.float64), dtype=tf.float64)
    return draws[0] / (draws[0] + draws[1])
