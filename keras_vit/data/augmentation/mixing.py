"""MixUp and CutMix: images of a batch and their labels are mixed with those of their neighbours."""

from keras_vit.annotations import Tensor
from keras_vit.data.augmentation.random_draws import coin, fold_seed, integer
from keras_vit.data.augmentation.records import Augmentation

_WHICH, _SHARE, _ROW, _COLUMN = range(4)  # numbers of the random draws


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
    _check(images, one_hot)
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


def _check(images: Tensor, one_hot: Tensor) -> None:
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
    rows = _segment(height, side, integer(seed, _ROW, height))
    columns = _segment(width, side, integer(seed, _COLUMN, width))
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
