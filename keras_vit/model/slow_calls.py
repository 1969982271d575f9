"""What is said of a model that computes far slower than it could here."""

import warnings

import keras

from keras_vit.layers.sublayers import flatten_layers

_LARGE = 1_000_000  # parameters; a smaller model takes little time in any way
_told: set[str] = set()  # once in a process


def has_accelerator() -> bool:
    """Whether something faster than the processor computes."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_physical_devices("GPU") or tf.config.list_physical_devices("TPU"))
    if backend == "jax":
        import jax

        return jax.default_backend() != "cpu"
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    return False


def warn_of_integers(model: keras.Model) -> None:
    """Says once in a process that a model after Keras' `quantize` is slow on a CPU, and what is fast.

    Keras multiplies integers without the processor's instructions for them. On a core with AMX, B/16 took 22 to 33
    times as long as in int8 of OpenVINO.

    Warns:
        UserWarning: of such a model of a million parameters or more.
    """
    if "int8" in _told or model.count_params() < _LARGE or has_accelerator():
        return
    if all(layer.quantization_mode != "int8" for layer in flatten_layers(model)):
        return
    _told.add("int8")
    warnings.warn(
        f"{model.name!r} was quantised by Keras, which takes 8 to 33 times as long on a CPU as int8 of an engine. "
        'Of the model before `quantize`, `keras_vit.accelerate(model, "openvino", "int8")` opens one here, and '
        '`keras_vit.export(..., precision="int8")` writes a file.',
        stacklevel=4,
    )
