"""The model as a TensorFlow function from pixels to logits, scores and features, for all formats.

Pixels are scaled inside. Features are the input of the head. Of a text tower it is one from ids to embeddings.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import kernels
from keras_vit.annotations import Tensor
from keras_vit.config.heads import UNITS
from keras_vit.exporting.spec import ExportSpec
from keras_vit.images.preprocessing import scaled
from keras_vit.model.layer_access import layer_named
from keras_vit.model.outputs import inference_model


def pixel_module(spec: ExportSpec) -> Any:
    """A `tf.Module` that tracks the weights and computes the outputs.

    Its method `answers` takes prepared floats `(B, H, W, C)`. Its function `pixels` takes these, or uint8
    `(B, H, W, C)` at the model's size, as `spec.takes` says. Both return a dict of float32: `features` `(B, D)`, with a
    head `scores` `(B, K)`, and `logits` `(B, K)` if the model ends in them; or `numbers` `(B, K)`. A model of
    pixels gives `logits` `(B, H, W, K)` or `depths` `(B, H, W)` alone. Both take ids `(B, T)` of a text tower, and
    return `embeddings` `(B, E)`.

    Args:
        spec: an `ExportSpec`.
    """
    import tensorflow as tf

    class PixelModule(tf.Module):
        """The network, and its outputs by name."""

        def __init__(self) -> None:
            super().__init__()
            self.network = _network(spec)

        def answers(self, images: Tensor) -> dict[str, Tensor]:
            if spec.takes == "ids":
                return _embeddings(self.network, images, spec)
            found = self.network(images, training=False)
            found = {name: tf.cast(tensor, tf.float32) for name, tensor in found.items()}
            if "logits" in found and spec.activation != "none":
                found["scores"] = getattr(tf.nn, spec.activation)(found["logits"])
            return found

        @tf.function(input_signature=[input_spec(spec)])
        def pixels(self, pixels: Tensor) -> dict[str, Tensor]:
            with kernels.use("plain"):
                return self.answers(prepare_input(pixels, spec))

    return PixelModule()


def _network(spec: ExportSpec) -> Any:
    """The model by its outputs."""
    if spec.takes == "ids":
        return keras.Model(spec.model.input, {"embeddings": spec.model.output})
    network, units = inference_model(spec.model), layer_named(spec.model, UNITS)
    if units is None or spec.precision not in ("int8", "float16"):
        return network
    return keras.Model(network.input, network.output | {"numbers": _in_units(units)})


def _embeddings(network: Any, ids: Tensor, spec: ExportSpec) -> dict[str, Tensor]:
    """The embedding of each text; NaN where an id is none of the vocabulary.

    Runtimes differ in what they read there: another row, zeros, or an error for the whole batch.
    """
    import tensorflow as tf

    last = spec.model.config.vocabulary_size - 1
    known = tf.reduce_all((ids >= 0) & (ids <= last), axis=1, keepdims=True)
    found = tf.cast(network(tf.clip_by_value(ids, 0, last), training=False)["embeddings"], tf.float32)
    return {"embeddings": tf.where(known, found, np.float32(np.nan))}


def _in_units(units: Any) -> Tensor:
    """What the layer of units puts out, by constants that float16 can hold, and apart from the head.

    Converters join a product with the dense layer before it. In int8 all columns would then share one scale: one of
    1e5 would leave nothing of one of 3. A layer that two others read is not joined. In float16 constants end at 65,504
    and have 11 bits: a year of 1990 would be off by one. So the offset is a difference of two, times a power of 2.
    """
    scale, offset = np.array(units.scale, "float64"), np.array(units.offset, "float64")
    exponent = np.ceil(np.log2(np.maximum(np.abs(scale), np.abs(offset)))) - 13
    power = 2.0 ** np.clip(exponent, -14, 15)
    rounded = (offset / power).astype("float16").astype("float64")
    head = ops.relu(units.input) - ops.relu(-units.input)  # the head's own numbers
    numbers = head * (scale / power).astype("float32")
    above = ops.relu(numbers) + rounded.astype("float32")
    below = ops.relu(-numbers) + (rounded - offset / power).astype("float32")
    return (above - below) * power.astype("float32")


def pixel_function(spec: ExportSpec) -> Any:
    """The function `pixels` of a `pixel_module`; its attribute `module` holds the module."""
    module = pixel_module(spec)
    function = module.pixels
    function.module = module  # keeps the weights alive
    return function


def input_spec(spec: ExportSpec) -> Any:
    """The input of a file: `pixels` in uint8 or `images` in float32, `(B, H, W, C)`; or `ids` in int32, `(B, T)`."""
    import tensorflow as tf

    if spec.takes == "ids":
        return tf.TensorSpec((spec.batch_size, spec.model.config.max_length), tf.int32, spec.takes)
    dtype = tf.uint8 if spec.takes == "pixels" else tf.float32
    return tf.TensorSpec((spec.batch_size, *spec.image_size, spec.channels), dtype, spec.takes)


def prepare_input(given: Tensor, spec: ExportSpec) -> Tensor:
    """The input of a file as the model takes it: pixels are scaled, images are scaled already."""
    import tensorflow as tf

    if spec.takes != "pixels":
        return given
    return scale_pixels(given, spec) if spec.scales else tf.cast(given, tf.float32)


def scale_pixels(pixels: Tensor, spec: ExportSpec) -> Tensor:
    """Pixels of any dtype, 0 to 255, as the model takes them, without a resize.

    Args:
        pixels: tensor `(..., H, W, C)`.
        spec: an `ExportSpec`.
    """
    import tensorflow as tf

    # LiteRT's converter folds one number for all channels into the first kernel, which then takes pixels up to 255.
    return scaled(tf.cast(pixels, tf.float32), spec.model.preprocessing, by_channel=True)
