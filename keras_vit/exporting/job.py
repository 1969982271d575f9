"""What a format's writer gets, and the model as functions of TensorFlow: pixels to logits, scores and features.

Scaling is inside, so that what is served takes pixels as they are; features are what the head reads.
"""

import dataclasses

import keras
import numpy as np

import keras_vit
from keras_vit.vit import VisionTransformer

ACTIVATIONS = ("softmax", "sigmoid")


@dataclasses.dataclass(frozen=True)
class Job:
    """One model to be written in one format.

    Attributes:
        model: in the asked precision for a SavedModel, in float32 for other formats.
        precision: `"float32"`, `"bfloat16"`, `"float16"` or `"int8"`.
        labels: K names in the order of the classes; `None` without a head.
        top_k: how many classes an answer names, at most K.
        activation: what makes scores of logits, `"softmax"` or `"sigmoid"`; `"none"` if the model ends in scores.
        name: of the served model, of letters, digits, `_`, `.` and `-`.
        max_bytes: of one image file.
        max_pixels: of one image.
        opset: of ONNX.
        jit_compile: whether the network of a SavedModel is compiled by XLA.
        representative: uint8 `(N, H, W, C)`, photos of the model's size, on which quantisation learns its ranges.
    """

    model: VisionTransformer
    precision: str
    labels: tuple[str, ...] | None
    top_k: int
    activation: str
    name: str
    max_bytes: int
    max_pixels: int
    opset: int
    jit_compile: bool
    representative: np.ndarray

    @property
    def image_size(self) -> tuple[int | None, int | None]:
        """`(H, W)` that the model takes; `None` where it takes any."""
        return tuple(self.model.input_shape[1:3])

    @property
    def channels(self) -> int:
        """C of the images."""
        return self.model.input_shape[-1]

    def metadata(self) -> dict:
        """What a file should say of itself, ready for JSON."""
        return {
            "name": self.name,
            "labels": self.labels and list(self.labels),
            "preprocessing": dataclasses.asdict(self.model.preprocessing),
            "image_size": list(self.image_size),
            "channels": self.channels,
            "activation": self.activation,
            "top_k": self.top_k,
            "precision": self.precision,
            "keras_vit": keras_vit.__version__,
        }


def answering_network(model) -> keras.Model:
    """The layers of `model` as a network from prepared images to a dict of its answers.

    Args:
        model: a `VisionTransformer`.

    Returns:
        A `keras.Model` with outputs `features` `(B, D)` and, if there is a head, `logits` `(B, K)`, or `scores` where
        an activation follows the head.
    """
    heads = [layer for layer in model.layers if layer.name == "head"]
    if not heads:
        return keras.Model(model.input, {"features": model.output})
    outputs = "logits" if ends_in_logits(model) else "scores"
    return keras.Model(model.input, {"features": heads[0].input, outputs: model.output})


def has_head(model) -> bool:
    """Whether the model tells classes."""
    return any(layer.name == "head" for layer in model.layers)


def ends_in_logits(model) -> bool:
    """Whether no activation follows the head."""
    head = model.get_layer("head")
    return head.activation is keras.activations.linear and all(layer.name != "activation" for layer in model.layers)


def pixel_module(job):
    """A `tf.Module` that tracks the weights and answers for pixels.

    Its method `answers` takes prepared floats `(B, H, W, C)`; its function `pixels` uint8 `(B, H, W, C)` at the
    model's size, which it scales by the model's record. Both return a dict of float32: `features` `(B, D)`, and with
    a head `scores` `(B, K)` and `logits` `(B, K)`, unless the model ends in scores.

    Args:
        job: a `Job`.
    """
    import tensorflow as tf

    class PixelModule(tf.Module):
        """The network, and what is made of its answers."""

        def __init__(self):
            super().__init__()
            self.network = answering_network(job.model)

        def answers(self, images):
            found = self.network(images, training=False)
            found = {name: tf.cast(tensor, tf.float32) for name, tensor in found.items()}
            if "logits" in found:
                found["scores"] = getattr(tf.nn, job.activation)(found["logits"])
            return found

        @tf.function(input_signature=[tf.TensorSpec((None, *job.image_size, job.channels), tf.uint8, "pixels")])
        def pixels(self, pixels):
            return self.answers(scaled(pixels, job))

    return PixelModule()


def pixel_function(job):
    """The function `pixels` of a `pixel_module`, with its module as the attribute `module`."""
    module = pixel_module(job)
    function = module.pixels
    function.module = module  # its weights live as long as it
    return function


def scaled(pixels, job):
    """Pixels of any dtype, 0 to 255, as the model takes them, without a resize.

    Args:
        pixels: tensor `(..., H, W, C)`.
        job: a `Job`.
    """
    import tensorflow as tf

    record = job.model.preprocessing
    mean, std = (np.asarray(stat, "float32") * np.float32(255) for stat in (record.mean, record.std))
    return (tf.cast(pixels, tf.float32) - mean) / std
