"""Models whose every weight counts, at the width of published ones, and what Keras says of files."""

import keras
import numpy as np

import keras_vit
from keras_vit.runs.preparation import SMALL_MODELS

# Builder arguments of one model of each kind. The default run takes few layers, the slow one the published number.
KINDS = {
    "Ti/16": {"variant": "Ti/16", "input_shape": (224, 224, 3), "classes": 1000},
    "B/16": {"variant": "B/16", "input_shape": (224, 224, 3), "classes": 1000},
    "hybrid": {"variant": "R+Ti/16", "input_shape": (96, 128, 3), "classes": 11},
    "DeiT": {"variant": "Ti/16", "input_shape": (80, 112, 3), "classes": 13, "distilled": True},
    "digits": {"variant": SMALL_MODELS["tiny"].config, "input_shape": (24, 24, 1), "classes": 10},
}


def lively(kind, small=False):
    """A model of `KINDS` randomly initialised of every kind of weight, of the size that training leaves.

    Args:
        kind: its name.
        small: whether it has two layers, and smaller images.
    """
    arguments = dict(KINDS[kind])
    variant = arguments.pop("variant")
    if small:
        height, width, channels = arguments["input_shape"]
        small_shape = (height, width, channels) if height < 32 else (32, 64, channels)
        arguments |= {"num_layers": 2, "input_shape": small_shape, "classes": 10}
    model = keras_vit.build(variant, name="lively", **arguments)
    rng = np.random.default_rng(3)
    model.set_weights([_drawn(rng, weight) for weight in model.weights])
    return model


def _drawn(rng, weight):
    """Kernels keep the variance of what they are given, so that logits deviate by about 1; nothing is 0 or 1."""
    draw = rng.normal(size=weight.shape).astype("float32")
    if weight.path.endswith("gamma"):
        return 1 + 0.1 * draw
    if weight.path.endswith("kernel"):
        return draw / np.sqrt(np.prod(weight.shape[:-1]))
    return 0.2 * draw


def answers(model, images):
    """Logits `(B, K)`, scores and features `(B, D)` of Keras, for prepared images `(B, H, W, C)`."""
    network = keras.Model(model.input, [model.get_layer("head").input, model.output])
    features, logits = (keras.ops.convert_to_numpy(tensor) for tensor in network(images, training=False))
    return {"logits": logits, "features": features, "scores": keras.ops.convert_to_numpy(keras.ops.softmax(logits))}
