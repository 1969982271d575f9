"""Several steps in one kernel, where a backend has one; the numbers are those of the steps.

Attention that never holds all its weights: JAX and torch on a GPU. TensorFlow has none, and on a CPU plain products are
as fast. Every head width of the published models meets cuDNN's rule, a multiple of 8 up to 128.

A dense layer and the GELU behind it: TensorFlow on a CPU.
"""

import keras
from keras import ops

from keras_vit.annotations import Tensor


def applies() -> bool:
    """Whether this process computes where there is a kernel for attention."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.default_backend() == "gpu"
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    return False


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """`softmax(query @ key) @ value`.

    Args:
        query: `(B, A, Q, D/A)`, scaled.
        key: `(B, A, D/A, T)`.
        value: `(B, A, T, D/A)`.

    Returns:
        `(B, A, Q, D/A)`.
    """
    query, value = (ops.transpose(each, (0, 2, 1, 3)) for each in (query, value))  # (B, T, A, D/A), as for the key
    mixed = ops.dot_product_attention(query, ops.transpose(key, (0, 3, 1, 2)), value, scale=1.0)
    return ops.transpose(mixed, (0, 2, 1, 3))


def plain(dense: keras.layers.Dense, dtype: str) -> bool:
    """Whether a dense layer is a product and a bias in this precision, and nothing else."""
    return not (dense.lora_enabled or dense.quantization_mode) and dense.compute_dtype == dtype


def dense(layer: keras.layers.Dense, x: Tensor, activation: str | None = None) -> Tensor:
    """What a dense layer makes of `x`, and a GELU of that.

    TensorFlow joins the three steps only where the bias is added by `BiasAdd`, and Keras' layer adds it by another
    operation. A GELU by itself takes 1 ms of a block of B/16 for one image in float32 on one core, 3 in bfloat16.

    Args:
        layer: a layer without activation.
        x: `(R, D)`.
        activation: `"gelu_tanh"`, `"gelu"`, `"quick_gelu"` or `None`.

    Returns:
        `(R, M)`.
    """
    if keras.backend.backend() == "tensorflow" and plain(layer, keras.backend.standardize_dtype(x.dtype)):
        import tensorflow as tf

        x = tf.matmul(x, ops.cast(layer.kernel, x.dtype))
        x = tf.nn.bias_add(x, ops.cast(layer.bias, x.dtype)) if layer.use_bias else x
    else:
        x = layer(x)
    return x if activation is None else activate(x, activation)


def activate(x: Tensor, activation: str) -> Tensor:
    """What `"gelu_tanh"`, `"gelu"` or `"quick_gelu"` makes of a tensor of any shape."""
    if activation == "quick_gelu":
        return x * ops.sigmoid(1.702 * x)
    return ops.gelu(x, approximate=activation == "gelu_tanh")
