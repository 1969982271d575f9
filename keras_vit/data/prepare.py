"""Preparation of one image for a model inside a `tf.data` pipeline, whatever backend Keras runs on.

Evaluation computes exactly what `preprocessing(pixels)` does, by the same code in `keras_vit.images.resizing`. That
code gets TensorFlow's operations here, since `keras.ops` of another backend does not work in a `tf.data` graph.
"""

import dataclasses
import functools
import types
from typing import cast

from keras_vit.annotations import Pair, Tensor
from keras_vit.data.augmentation import Augmentation, augment_image, crop_window
from keras_vit.images.decode import decode_image, decode_window
from keras_vit.images.preprocessing import Preprocessing, fit_channels, scaled
from keras_vit.images.resizing import resize_and_cut


def prepare(pixels: Tensor, record: Preprocessing) -> Tensor:
    """The result of `record(pixels)`, in a graph.

    Args:
        pixels: `(H, W, C)` tensor, uint8 or float32 in [0, 255].
        record: `Preprocessing`.

    Returns:
        float32 `image_size + (C,)`.
    """
    import tensorflow as tf

    whole = pixels.dtype.is_integer
    pixels = fit_channels(pixels, len(record.mean), tf)
    if record.resize == "none" or record.image_size is None:
        return scaled(tf.cast(pixels, "float32"), record)
    if record.resize == "squash" and record.interpolation == "bilinear":
        # Scaling after the resize gives the same numbers but for rounding, and a photo has many times the pixels.
        resized = tf.cast(tf.image.resize(pixels, record.image_size, antialias=record.antialias), "float32")
    elif record.resize == "squash" and record.image_size == tuple(pixels.shape[:2]):
        resized = tf.cast(pixels, "float32")
    else:
        resized = resize_and_cut(tf.cast(pixels, "float32"), whole, record, operations())
    return _scaled(tf.ensure_shape(resized, (*record.image_size, len(record.mean))), record)


def pixels_of(example: dict[str, Tensor], channels: int) -> Tensor:
    """The upright image of an example, as a split's reader gives it.

    Args:
        example: dict of `"pixels"`, or `"bytes"` and perhaps `"orientation"`.
        channels: C of the model; a file is decoded to grey for 1, otherwise to RGB.
    """
    if "bytes" in example:
        return decode_image(example["bytes"], example.get("orientation"), 1 if channels == 1 else 3)
    return example["pixels"]


def augmented(example: dict[str, Tensor], record: Preprocessing, augmentation: Augmentation, seed: Tensor) -> Tensor:
    """A training image: changed at random, resized and scaled.

    Args:
        example: as for `pixels_of`.
        record: `Preprocessing` with an `image_size`.
        augmentation: `Augmentation`; its crop `"none"` crops and resizes as evaluation does.
        seed: int64 `(2,)`.
    """
    import tensorflow as tf

    channels = len(record.mean)
    if augmentation.crop == "inception" and "bytes" in example:
        window = functools.partial(crop_window, record=augmentation, seed=seed)
        pixels = decode_window(example["bytes"], window, example.get("orientation"), 1 if channels == 1 else 3)
    else:
        pixels = pixels_of(example, channels)
    if augmentation.crop == "none":
        # This mean and deviation keep pixels in [0, 255], the range that `augment_image` takes.
        pixels = prepare(pixels, dataclasses.replace(record, mean=(0.0,) * channels, std=(1.0 / 255,) * channels))
    pixels = fit_channels(pixels, channels, tf)
    cropped = augmentation.crop == "inception" and "bytes" in example
    image_size = cast(Pair, record.image_size)  # which every record for training has
    return _scaled(augment_image(pixels, augmentation, image_size, seed, cropped=cropped), record)


def _scaled(image: Tensor, record: Preprocessing) -> Tensor:
    """`scaled` along lines, which is faster, for an image whose size the graph knows."""
    import tensorflow as tf

    height, width, channels = image.shape
    lines = tf.reshape(image, (height, width * channels))
    return tf.reshape(scaled(lines, record, width=width), image.shape)


def operations() -> types.SimpleNamespace:
    """What `keras_vit.images.resizing` uses of `keras.ops`, on TensorFlow."""
    import tensorflow as tf

    names = ("einsum", "round", "floor", "cast", "expand_dims", "maximum", "minimum", "abs", "where")
    return types.SimpleNamespace(
        **{name: getattr(tf, name) for name in names},
        shape=lambda tensor: tuple(tf.unstack(tf.shape(tensor))),
        clip=tf.clip_by_value,
        sum=tf.reduce_sum,
        arange=lambda stop, dtype="int32": tf.cast(tf.range(stop), dtype),
    )
