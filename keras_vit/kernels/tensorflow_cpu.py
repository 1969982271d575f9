"""Products and softmax of TensorFlow, in the form that it joins or computes fastest on a CPU.

A GELU by itself takes 1 ms of a block of B/16 for one image in float32 on one core, 3 in bfloat16.
"""

import functools
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Tensor, Variable
from keras_vit.checks import processor_flags
from keras_vit.kernels import plain


def dense(layer: keras.layers.Dense, x: Tensor, activation: str | None = None) -> Tensor:
    """As `plain.dense`. TensorFlow joins product, bias and GELU where `BiasAdd` adds the bias, which Keras does not."""
    if not plain.is_unmodified(layer, x):
        return plain.dense(layer, x, activation)
    rows = product(plain.flat(x), layer.kernel, layer.bias if layer.use_bias else None)
    if activation is None or not use_onednn_matmul(rows.dtype.name):
        return plain.like(plain.activate(rows, activation), x)
    wide = ops.cast(rows, "float32")  # in bfloat16 a GELU by itself takes twice the time
    return plain.like(ops.cast(plain.activate(wide, activation), rows.dtype), x)


def product(x: Tensor, kernel: Variable, bias: Variable | None) -> Tensor:
    """`x @ kernel + bias`, in the precision of `x`.

    A product with `BiasAdd` after it becomes oneDNN's `inner_product`, which takes a gemm where the kernel is a
    variable. As a batch of one it stays oneDNN's `matmul`, which alone has AMX.

    Args:
        x: `(R, D)`.
        kernel: `(D, M)`, cast to the dtype of `x`.
        bias: `(M,)`, likewise, or `None`.

    Returns:
        `(R, M)`.
    """
    import tensorflow as tf

    kernel = ops.cast(kernel, x.dtype)
    if bias is None:
        return tf.matmul(x, kernel)
    in_batch = use_onednn_matmul(x.dtype.name)
    x = tf.squeeze(tf.matmul(x[None], kernel[None]), 0) if in_batch else tf.matmul(x, kernel)
    return tf.nn.bias_add(x, ops.cast(bias, x.dtype))


def use_onednn_matmul(dtype: str) -> bool:
    """Whether products of a precision gain by oneDNN's `matmul`: with AMX, and in no file."""
    return dtype == "bfloat16" and plain.current_level() == "fastest" and has_amx()


@functools.cache
def has_amx() -> bool:
    """Whether TensorFlow computes on a processor with AMX for bfloat16."""
    import tensorflow as tf

    return "amx_bf16" in processor_flags() and not tf.config.get_visible_devices("GPU")


def attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """As `plain.attention`, by the softmax below."""
    return plain.attention(query, key, value, **options, softmax=softmax)


def softmax(logits: Tensor, bias: Tensor = None) -> Tensor:
    """As `plain.softmax`, without its casts where this machine's softmax rounds once."""
    if bias is None and plain.current_level() == "fastest" and rounds_once(logits.dtype.name):
        return ops.softmax(logits, axis=-1)
    return plain.softmax(logits, bias)


@functools.cache
def rounds_once(dtype: str) -> bool:
    """Whether this machine's softmax of a lower precision is that of float32, rounded.

    oneDNN's is for bfloat16, so casts on both sides, a third of the time of attention, can be left out. TensorFlow's
    own is not.
    """
    if dtype != "bfloat16":
        return False
    import tensorflow as tf

    with tf.init_scope():
        logits = tf.cast(tf.random.stateless_normal((64, 1031), (1, 2), stddev=3.0), dtype)
        wide = tf.cast(tf.nn.softmax(tf.cast(logits, "float32")), dtype)
        return bool(tf.reduce_all(tf.nn.softmax(logits) == wide))
