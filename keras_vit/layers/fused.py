"""Attention in one kernel that never holds all its weights, where a backend has one: JAX and torch on a GPU.

TensorFlow has none, and on a CPU plain products are as fast. The numbers are those of the plain products, which a test
holds both to; every head width of the published models meets cuDNN's rule, a multiple of 8 up to 128.
"""

import keras
from keras import ops

from keras_vit.annotations import Tensor


def applies() -> bool:
    """Whether this process computes where there is such a kernel."""
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
