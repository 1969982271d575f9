"""The model as functions of TensorFlow: pixels to logits, scores and features.

Scaling is inside, so that what is served takes pixels as they are; features are what the head reads.
"""

from typing import Any

from keras_vit.annotations import Tensor
from keras_vit.exporting.spec import ExportSpec
from keras_vit.images.preprocessing import scaled
from keras_vit.kernels.chunked_attention import without_blocks
from keras_vit.model.outputs import inference_model

OUTPUTS = ("logits", "scores", "features")  # in a file with an order of outputs the first one is the answer


def pixel_module(spec: ExportSpec) -> Any:
    """A `tf.Module` that tracks the weights and answers for pixels.

    Its method `answers` takes prepared floats `(B, H, W, C)`. Its function `pixels` takes what the spec says: these
    floats, or uint8 `(B, H, W, C)` at the model's size, which it scales by the model's record. Both return a dict of
    float32: `features` `(B, D)`, and with a head `scores` `(B, K)` and `logits` `(B, K)`, unless the model ends in
    scores.

    Args:
        spec: an `ExportSpec`.
    """
    import tensorflow as tf

    class PixelModule(tf.Module):
        """The network, and what is made of its answers."""

        def __init__(self) -> None:
            super().__init__()
            self.network = inference_model(spec.model)

        def answers(self, images: Tensor) -> dict[str, Tensor]:
            found = self.network(images, training=False)
            found = {name: tf.cast(tensor, tf.float32) for name, tensor in found.items()}
            if "logits" in found:
                found["scores"] = getattr(tf.nn, spec.activation)(found["logits"])
            return found

        @tf.function(input_signature=[input_spec(spec)])
        def pixels(self, pixels: Tensor) -> dict[str, Tensor]:
            with without_blocks():
                return self.answers(prepared(pixels, spec))

    return PixelModule()


def pixel_function(spec: ExportSpec) -> Any:
    """The function `pixels` of a `pixel_module`, with its module as the attribute `module`."""
    module = pixel_module(spec)
    function = module.pixels
    function.module = module  # its weights live as long as it
    return function


def input_spec(spec: ExportSpec) -> Any:
    """What a file takes: `pixels` in uint8 or `images` in float32, `(B, H, W, C)`."""
    import tensorflow as tf

    dtype = tf.uint8 if spec.takes == "pixels" else tf.float32
    return tf.TensorSpec((spec.batch_size, *spec.image_size, spec.channels), dtype, spec.takes)


def prepared(given: Tensor, spec: ExportSpec) -> Tensor:
    """The input of a file as the model takes it: pixels are scaled, images were scaled before."""
    import tensorflow as tf

    if spec.takes == "images":
        return given
    return scale_pixels(given, spec) if spec.scales else tf.cast(given, tf.float32)


def scale_pixels(pixels: Tensor, spec: ExportSpec) -> Tensor:
    """Pixels of any dtype, 0 to 255, as the model takes them, without a resize.

    Args:
        pixels: tensor `(..., H, W, C)`.
        spec: an `ExportSpec`.
    """
    import tensorflow as tf

    # LiteRT's converter takes one number for all channels into the first kernel, which then reads pixels up to 255.
    return scaled(tf.cast(pixels, tf.float32), spec.model.preprocessing, by_channel=True)
