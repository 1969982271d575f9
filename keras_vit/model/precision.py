"""The model in another precision: a copy with weights of its own, and the original as it was."""

import warnings
from typing import TypeVar

import keras

from keras_vit.layers.configurable import flatten_layers
from keras_vit.model.copies import with_dtype
from keras_vit.model.freezing import merge_lora
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import is_quantized, lora_layers

_Model = TypeVar("_Model", bound=ImageModel)
_rounding: dict[str, tuple] = {}  # switches of products: "user" before, and "package" as last set; empty if never set


def in_precision(model: _Model, precision: str) -> _Model:
    """A model with the same weights that computes in another precision.

    Args:
        model: a `VisionTransformer`; it is not changed.
        precision: `"float32"`, or `"bfloat16"` or `"float16"` for weights and all but softmax, LayerNorm and head.
            `"int8"` is for the kernels of dense layers, whose inputs are rounded to 8 bits in each call.

    Returns:
        A `VisionTransformer` without LoRA; `model` itself where it is so already.

    Raises:
        ValueError: if the model is quantised and another precision is given.
    """
    if lora_layers(model):
        model = merge_lora(model)
    if is_quantized(model):
        if precision == "int8":
            return model
        raise ValueError(
            "a quantised model has lost what other precisions would need.\n"
            f'Received: precision="{precision}", {model.name!r}. Pass precision="int8", or the model that it '
            "was made from."
        )
    if precision == "int8":
        copy = with_dtype(model, "float32")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Layer .* does not have a `quantize` method")  # and needs none
            copy.quantize("int8")
        return copy
    return model if layer_dtypes(model) == {precision} else with_dtype(model, precision)


def round_products(precision: str) -> None:
    """Sets for this process how float32 products are computed on a GPU, by default in TensorFloat-32.

    Args:
        precision: `"float32"`, or `"tensorfloat32"`, whose factors have 10 bits of mantissa. Any other puts back what
            the user had, if this function has changed it.
    """
    is_set_here = precision in ("float32", "tensorfloat32")
    if not _rounding and not is_set_here:
        return
    now = _rounding_now()
    if not _rounding or now != _rounding["package"]:  # the user has set it since
        _rounding["user"] = now
    if is_set_here:
        _set_rounding(_values_of(precision))
    elif now != _rounding["user"]:
        _set_rounding(_rounding["user"])
    _rounding["package"] = _rounding_now()


def _values_of(precision: str) -> tuple:
    exact = precision == "float32"
    values = {"tensorflow": (not exact,), "jax": (precision,), "torch": ("highest" if exact else "high", not exact)}
    return values.get(keras.backend.backend(), ())


def _rounding_now() -> tuple:
    """The backend's switches of float32 products, as `_set_rounding` takes them."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return (tf.config.experimental.tensor_float_32_execution_enabled(),)
    if keras.backend.backend() == "jax":
        import jax

        return (jax.config.jax_default_matmul_precision,)
    if keras.backend.backend() == "torch":
        import torch

        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    return ()


def _set_rounding(values: tuple) -> None:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(*values)
    elif keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_default_matmul_precision", *values)
    elif keras.backend.backend() == "torch":
        import torch

        torch.set_float32_matmul_precision(values[0])
        torch.backends.cudnn.allow_tf32 = values[1]


def layer_dtypes(model: keras.Model) -> set[str]:
    """Precisions of all computations and weights; the input has the global policy, and computes nothing."""
    nothing = (keras.Model, keras.layers.InputLayer)
    parts = [layer for layer in flatten_layers(model) if not isinstance(layer, nothing)]
    return {layer.compute_dtype for layer in parts} | {layer.variable_dtype for layer in parts}
