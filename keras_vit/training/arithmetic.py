"""The arithmetic of one optimizer step, in as few passes over memory as a backend allows."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Tensor, Variable


def on_tensorflow() -> bool:
    return keras.backend.backend() == "tensorflow"


def before_cast(gradient: Tensor) -> Tensor:
    """A gradient before its cast from half precision, if a graph of TensorFlow has computed it so; else as it is.

    Whoever needs float32 casts it anew: the same numbers, and of all gradients together half the memory.
    """
    if not on_tensorflow():
        return gradient
    import tensorflow as tf

    if tf.executing_eagerly() or not isinstance(gradient, tf.Tensor) or gradient.op.type != "Cast":
        return gradient
    (source,) = gradient.op.inputs
    return source if source.dtype in (tf.bfloat16, tf.float16) and gradient.dtype == tf.float32 else gradient


def square_sum(gradient: Tensor) -> Tensor:
    if on_tensorflow():
        import tensorflow as tf

        return 2 * tf.nn.l2_loss(tf.cast(gradient, tf.float32))  # one pass, no second tensor
    return ops.sum(ops.square(ops.cast(gradient, "float32")))


def scaled(gradient: Tensor, scale: Tensor) -> Tensor:
    """`gradient * scale`, and 0 where `scale` is 0, whatever the gradient: 0 times infinity would be NaN."""
    gradient = ops.cast(gradient, "float32")
    if on_tensorflow():
        import tensorflow as tf

        return tf.math.multiply_no_nan(gradient, scale)  # one pass
    return ops.where(scale == 0, 0.0, gradient * scale)


def decayed(accumulator: Variable, decay: Tensor) -> Tensor:
    """The accumulator times a decay that optax rounds to its dtype: 0.9 is 0.8984375 in bfloat16, say golden files."""
    decay = ops.cast(ops.cast(decay, accumulator.dtype), "float32")
    return decay * ops.cast(accumulator, "float32")


def bias_correction(beta: float, steps: Tensor) -> Tensor:
    """`1 - beta ** steps` for the float32 nearest to `beta`; float32's own difference would be off by 1e-4."""
    beta = float(np.float32(beta))
    return -ops.expm1(steps * math.log(beta)) if beta else ops.ones_like(steps)


def has_kernel(*variables: Variable) -> bool:
    """Whether TensorFlow can do the whole step in one pass: its kernels want one dtype."""
    return on_tensorflow() and all(keras.backend.standardize_dtype(v.dtype) == "float32" for v in variables)


def tensorflow_sgd(
    variable: Variable, accumulator: Variable, gradient: Tensor, rate: Tensor, momentum: Tensor
) -> Tensor:
    import tensorflow as tf

    return tf.raw_ops.ResourceApplyMomentum(
        var=_handle(variable), accum=_handle(accumulator), lr=rate, grad=gradient, momentum=momentum
    )


def tensorflow_adam(
    variable: Variable,
    first: Variable,
    second: Variable,
    gradient: Tensor,
    rate: Tensor,
    beta_1: Tensor,
    beta_2: Tensor,
    epsilon: Tensor,
) -> Tensor:
    import tensorflow as tf

    none = tf.zeros(())  # the powers of beta: the rate has their part already
    return tf.raw_ops.ResourceApplyAdam(
        var=_handle(variable),
        m=_handle(first),
        v=_handle(second),
        beta1_power=none,
        beta2_power=none,
        lr=rate,
        beta1=beta_1,
        beta2=beta_2,
        epsilon=epsilon,
        grad=gradient,
    )


def _handle(variable: Variable) -> Any:
    """Of a variable of Keras, or of TensorFlow's on one device."""
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle
