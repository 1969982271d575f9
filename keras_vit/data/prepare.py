"""Preparation of one image for a model inside a `tf.data` pipeline, whatever backend Keras runs on.

Evaluation computes exactly what `preprocessing(pixels)` does, by the same code in `keras_vit.images.resizing`. That
code gets TensorFlow's operations here, since `keras.ops` of another backend does not work in a `tf.data` graph.
"""

import functools
import types
from typing import cast

from keras_vit.annotations import Pair, Tensor
from keras_vit.data.augmentation.masks import augment_with_mask, resize_mask
from keras_vit.data.augmentation.records import Augmentation
from keras_vit.data.augmentation.transforms import augment_image, crop_window
from keras_vit.images.decode import decode_image, decode_window
from keras_vit.images.preprocessing import Preprocessing, fit_channels, scaled
from keras_vit.images.resizing import gives_whole_levels, resize_and_crop


def prepare(pixels: Tensor, record: Preprocessing) -> Tensor:
    """The result of `record(pixels)` in a graph, float32, of a tensor `(H, W, C)`, uint8 or float32 in [0, 255]."""
    levels, _ = resize_image(pixels, record)
    return scaled(levels, record) if record.image_size is None else scale_image(levels, record)


def resize_image(pixels: Tensor, record: Preprocessing) -> tuple[Tensor, bool]:
    """Grey levels of `image_size`, float32, not scaled yet, and whether all are whole numbers from 0 to 255.

    Pixels are as for `prepare`. Whole ones stay whole where no resize comes, and where its rule rounds.
    """
    import tensorflow as tf

    whole = pixels.dtype == tf.uint8
    pixels = fit_channels(pixels, len(record.mean), tf)
    if record.resize == "none" or record.image_size is None:
        return tf.cast(pixels, "float32"), whole
    same_size = record.resize == "squash" and record.image_size == tuple(pixels.shape[:2])
    if record.resize == "squash" and record.interpolation == "bilinear":
        # Scaling after the resize gives the same numbers but for rounding, and a photo has many times the pixels.
        levels = tf.cast(tf.image.resize(pixels, record.image_size, antialias=record.antialias), "float32")
    elif same_size:
        levels = tf.cast(pixels, "float32")
    else:
        levels = resize_and_crop(tf.cast(pixels, "float32"), pixels.dtype.is_integer, record, tensorflow_ops())
    levels = tf.ensure_shape(levels, (*record.image_size, len(record.mean)))
    return levels, whole and (same_size or gives_whole_levels(record))


def decode_example(example: dict[str, Tensor], channels: int) -> Tensor:
    """The upright image of an example, a dict of `"pixels"`, or of `"bytes"` and perhaps `"orientation"`.

    A file is decoded to grey for a model of one channel, otherwise to RGB.
    """
    if "bytes" in example:
        return decode_image(example["bytes"], example.get("orientation"), 1 if channels == 1 else 3)
    return example["pixels"]


def augment_example(
    example: dict[str, Tensor], record: Preprocessing, augmentation: Augmentation, seed: Tensor
) -> tuple[Tensor, bool]:
    """A training image, changed at random and resized: its grey levels, as `resize_image` gives them.

    The crop `"none"` crops and resizes as evaluation does. The record has an `image_size`; the seed is int64 `(2,)`.
    """
    import tensorflow as tf

    channels, whole = len(record.mean), False
    if augmentation.crop == "inception" and "bytes" in example:
        window = functools.partial(crop_window, record=augmentation, seed=seed)
        pixels = decode_window(example["bytes"], window, example.get("orientation"), 1 if channels == 1 else 3)
    else:
        pixels = decode_example(example, channels)
    if augmentation.crop == "none":
        pixels, whole = resize_image(pixels, record)
    pixels = fit_channels(pixels, channels, tf)
    cropped = augmentation.crop == "inception" and "bytes" in example
    image_size = cast(Pair, record.image_size)  # which every record for training has
    levels = augment_image(pixels, augmentation, image_size, seed, cropped=cropped)
    if augmentation.whole_levels:
        levels = tf.clip_by_value(tf.round(levels), 0, 255)
    return levels, augmentation.gives_whole(whole)


def with_map(
    example: dict[str, Tensor],
    record: Preprocessing,
    augmentation: Augmentation | None,
    seed: Tensor,
    map_type: str,
    ignore_class: float,
) -> tuple[Tensor, bool, Tensor]:
    """An image and its map, a mask or depths, both changed at random and resized, or resized alone.

    A value of the map is that of the nearest pixel. What is resized shows things larger or smaller, and depths stay.

    Args:
        example: as for `decode_example`; `"label"` has the map as bytes of `map_type`, `"map_size"` `(H, W)`.
        record: resizes the whole photo, or nothing.
        augmentation: moves masks, or is `None`.
        seed: int64 `(2,)`.
        map_type: `"uint16"` of labels, or `"float32"` of depths.
        ignore_class: value of pixels that do not count.

    Returns:
        Grey levels and what is known of them, as `resize_image` gives both, and a map of the same size: int32 labels,
        or float32 depths.

    Raises:
        ValueError: for a record that cuts photos, and an augmentation of photos alone.
    """
    import tensorflow as tf

    channels, size = len(record.mean), record.image_size
    if record.resize not in ("squash", "none") or not (augmentation is None or augmentation.moves_masks):
        found = f"augmentation={augmentation}" if record.resize in ("squash", "none") else f"resize={record.resize!r}"
        raise ValueError(
            "what is done to a photo must be done to its map: photos are resized whole, and changed by the crops "
            f"scale_crop and none, flips and colors alone.\nReceived: {found}."
        )
    pixels = decode_example(example, channels)
    values = tf.reshape(tf.io.decode_raw(example["label"], map_type, little_endian=True), example["map_size"])
    mask = tf.cast(values, tf.int32) if values.dtype.is_integer else values
    if augmentation is None or size is None:
        levels, whole = resize_image(pixels, record)
        return levels, whole, mask if size is None or record.resize == "none" else resize_mask(mask, size)
    if augmentation.crop == "none":
        pixels, _ = resize_image(pixels, record)
    pixels, fill = fit_channels(pixels, channels, tf), [255 * mean for mean in record.mean]  # 0 once it is scaled
    levels, mask = augment_with_mask(pixels, mask, augmentation, size, seed, ignore_class, fill)
    if augmentation.whole_levels:
        levels = tf.clip_by_value(tf.round(levels), 0, 255)
    return levels, augmentation.whole_levels, mask


def scale_image(image: Tensor, record: Preprocessing) -> Tensor:
    """`scaled` of one image, along lines where the graph knows its size, which is faster."""
    import tensorflow as tf

    height, width, channels = image.shape
    if None in (height, width):
        return scaled(tf.cast(image, "float32"), record)
    lines = tf.reshape(tf.cast(image, "float32"), (height, width * channels))
    return tf.reshape(scaled(lines, record, width=width), image.shape)


def tensorflow_ops() -> types.SimpleNamespace:
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
