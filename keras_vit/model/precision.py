"""The model in the precision that is asked for: a copy with weights of its own, and the original as it was."""

import warnings
from typing import TypeVar

import keras

from keras_vit.layers.nested import flatten_layers
from keras_vit.model.copies import with_dtype
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_lookup import lora_layers
from keras_vit.model.lora import merge_lora

_Model = TypeVar("_Model", bound=ImageModel)


def in_precision(model: _Model, precision: str) -> _Model:
    """A model with the same weights that computes in another precision.

    Args:
        model: a `VisionTransformer`; it is not changed.
        precision: `"float32"`, or `"bfloat16"` or `"float16"` for weights and all but softmax, LayerNorm and head.
            `"int8"` is for the kernels of dense layers, whose inputs are rounded to 8 bits in each call.

    Returns:
        A `VisionTransformer` without LoRA; `model` itself where it is so already.

    Raises:
        ValueError: if the model is quantised and another precision is asked for.
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
    return model if _dtypes(model) == {precision} else with_dtype(model, precision)


def round_products(precision: str) -> None:
    """Sets for this process how float32 products are computed on a GPU, by default in TensorFloat-32.

    Args:
        precision: `"float32"`, or `"tensorfloat32"`, whose factors have 10 bits of mantissa.
    """
    exact = precision == "float32"
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        tf.config.experimental.enable_tensor_float_32_execution(not exact)
    elif keras.backend.backend() == "jax":
        import jax

        jax.config.update("jax_default_matmul_precision", precision)
    elif keras.backend.backend() == "torch":
        import torch

        torch.set_float32_matmul_precision("highest" if exact else "high")
        torch.backends.cudnn.allow_tf32 = not exact


def is_quantized(model: keras.Model) -> bool:
    """Whether any layer holds integers in place of its kernel."""
    return any(layer.quantization_mode for layer in flatten_layers(model))


def _dtypes(model: keras.Model) -> set[str]:
    """Precisions of all computations and weights; the input has the global policy, and computes nothing."""
    nothing = (keras.Model, keras.layers.InputLayer)
    parts = [layer for layer in flatten_layers(model) if not isinstance(layer, nothing)]
    return {layer.compute_dtype for layer in parts} | {layer.variable_dtype for layer in parts}
