"""Training steps of TensorFlow that keep less for the backward pass.

They are LayerNorm and GELU, with the dense layers after them, and attention. TensorFlow keeps each intermediate array
until its gradient has been computed, for one GELU five of the MLP's width. Here a gradient keeps the input and computes
the rest again. A control dependency holds that back until the backward pass, and from being merged with the forward
pass. Another has what a layer hands back wait for the gradients of its own weights, so that what they read is freed.
XLA, and so JAX, chooses by itself what to keep.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
from keras import ops

from keras_vit.annotations import Tensor, Variable
from keras_vit.kernels import plain, tensorflow_cpu

WithGradient: TypeAlias = tuple[Any, Callable[..., tuple[Tensor, ...]]]  # as `tf.custom_gradient` takes it

_SLOPE = math.sqrt(2 / math.pi)  # of the tanh approximation, arXiv:1606.08415
_CUBIC = 0.044715


def is_plain_norm(norm: Any, rank: int) -> bool:
    """Whether a layer normalizes over the last of so many axes alone, with a scale and an offset."""
    if not isinstance(norm, keras.layers.LayerNormalization) or norm.rms_scaling:
        return False
    return norm.axis in ([-1], [rank - 1]) and norm.gamma is not None and norm.beta is not None


def normalized(norm: keras.layers.LayerNormalization, x: Tensor) -> Tensor:
    """What a LayerNorm makes of `(..., D)`, in its precision."""
    wide = ops.cast(x, keras.backend.result_type(x.dtype, norm.compute_dtype))
    return ops.cast(layer_norm(wide, norm.gamma, norm.beta, norm.epsilon), norm.compute_dtype)


def norm_dense(norm: Any, layers: Sequence[Any], x: Tensor, training: bool | None) -> list[Tensor]:
    """What dense layers make of `norm(x)`, `(..., M)` each; one step where all of them are usual."""
    return [plain.like(rows, x) for rows in norm_dense_rows(norm, layers, x, training)]


def norm_dense_rows(norm: Any, layers: Sequence[Any], x: Tensor, training: bool | None) -> list[Tensor]:
    """The same as rows `(R, M)`."""
    joined = is_plain_norm(norm, len(x.shape)) and norm.compute_dtype == x.dtype.name
    if not joined or not all(layer.use_bias and plain.is_unmodified(layer, x) for layer in layers):
        rows = plain.flat(x if norm is None else norm(x, training=training))
        return [tensorflow_cpu.dense(layer, rows) for layer in layers]
    gamma, beta = (ops.cast(weight, x.dtype) for weight in (norm.gamma, norm.beta))
    kernels, biases = [layer.kernel for layer in layers], [layer.bias for layer in layers]
    return norm_products(x, gamma, beta, norm.epsilon, kernels, biases)


def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """LayerNorm over the last axis; computes in at least float32.

    Args:
        x: `(..., D)`.
        gamma: `(D,)`, of any floating dtype.
        beta: `(D,)`, likewise.
        epsilon: added to the variance.

    Returns:
        As `x`.
    """
    import tensorflow as tf

    @tf.custom_gradient
    def normalise(x: Tensor, gamma: Tensor, beta: Tensor) -> WithGradient:
        statistics = _statistics(x, epsilon)

        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            return _norm_gradient(_recomputed(x, upstream), gamma, beta, statistics, upstream)

        return _normal(x, gamma, beta, statistics), gradient

    return normalise(*map(tf.convert_to_tensor, (x, gamma, beta)))


def norm_products(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, kernels: Sequence[Variable], biases: Sequence[Variable]
) -> list[Tensor]:
    """`layer_norm(x) @ kernel + bias` for each kernel and bias.

    Args:
        x: `(B, T, D)`, or `(B*T, D)`.
        gamma: `(D,)`.
        beta: `(D,)`.
        epsilon: added to the variance.
        kernels: a list of `(D, M)`, cast to the dtype of `x`, anew on the way back, so that no copy is kept.
        biases: a list of `(M,)`, likewise.

    Returns:
        A list of `(B*T, M)`.
    """
    import tensorflow as tf

    width, count = x.shape[-1], len(kernels)
    learn = [_learns(weight) for weight in (*kernels, *biases)]

    @tf.custom_gradient
    def apply(x: Tensor, gamma: Tensor, beta: Tensor, *weights: Tensor) -> WithGradient:
        statistics, kernels, biases = _statistics(x, epsilon), weights[:count], weights[count:]

        def gradient(*upstreams: Tensor) -> tuple[Tensor, ...]:
            late = _recomputed(x, upstreams[0])
            normal = tf.reshape(_normal(late, gamma, beta, statistics), (-1, width))
            back = sum(_from_product(up, kernel) for up, kernel in zip(upstreams, kernels, strict=True))
            slopes = _norm_gradient(late, gamma, beta, statistics, tf.reshape(back, tf.shape(x)))
            dkernels = [_to_kernel(normal, up, kernel) for up, kernel in zip(upstreams, kernels, strict=True)]
            dbiases = [tf.cast(tf.reduce_sum(up, 0), bias.dtype) for up, bias in zip(upstreams, biases, strict=True)]
            wanted = [slope for slope, wants in zip(dkernels + dbiases, learn, strict=True) if wants]
            return _after(wanted, slopes[0]), *slopes[1:], *dkernels, *dbiases

        normal = tf.reshape(_normal(x, gamma, beta, statistics), (-1, width))
        return [
            tensorflow_cpu.product(normal, kernel, bias) for kernel, bias in zip(kernels, biases, strict=True)
        ], gradient

    return apply(*map(tf.convert_to_tensor, (x, gamma, beta, *kernels, *biases)))


def gelu_dense(x: Tensor, kernel: Variable, bias: Variable, approximate: bool) -> Tensor:
    """`gelu(x) @ kernel + bias`.

    Args:
        x: `(R, M)`.
        kernel: `(M, D)`, cast to the dtype of `x` as in `norm_dense`.
        bias: `(D,)`, likewise.
        approximate: whether GELU is the tanh approximation.

    Returns:
        `(R, D)`.
    """
    import tensorflow as tf

    learn = _learns(kernel), _learns(bias)

    @tf.custom_gradient
    def apply(x: Tensor, kernel: Tensor, bias: Tensor) -> WithGradient:
        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            late = _recomputed(x, upstream)
            share, slope = _gelu_share_and_slope(late, approximate)
            dx = _from_product(upstream, kernel) * slope
            with tf.control_dependencies([dx]):  # by now what made the slope is gone
                active = late * share
            dweights = _to_kernel(active, upstream, kernel), tf.cast(tf.reduce_sum(upstream, 0), bias.dtype)
            wanted = [slope for slope, wants in zip(dweights, learn, strict=True) if wants]
            return _after(wanted, dx), *dweights

        return tensorflow_cpu.product(ops.gelu(x, approximate=approximate), kernel, bias), gradient

    return apply(*map(tf.convert_to_tensor, (x, kernel, bias)))


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """`softmax(query @ key) @ value`; the softmax runs in at least float32.

    Args:
        query: `(B, A, Q, D/A)`, scaled.
        key: `(B, A, D/A, T)`.
        value: `(B, A, T, D/A)`.

    Returns:
        `(B, A, Q, D/A)`.
    """
    import tensorflow as tf

    dtype = keras.backend.result_type(query.dtype.name, "float32")

    def softmax(query: Tensor, key: Tensor) -> Tensor:
        return tf.nn.softmax(tf.cast(tf.matmul(query, key), dtype))  # (B, A, Q, T)

    @tf.custom_gradient
    def attend(query: Tensor, key: Tensor, value: Tensor) -> WithGradient:
        def gradient(upstream: Tensor) -> tuple[Tensor, ...]:
            weights = softmax(_recomputed(query, upstream), key)
            dweights = tf.cast(tf.matmul(upstream, value, transpose_b=True), dtype)
            dlogits = weights * (dweights - tf.reduce_sum(weights * dweights, -1, keepdims=True))
            weights, dlogits = (tf.cast(x, query.dtype) for x in (weights, dlogits))
            dvalue = tf.matmul(weights, upstream, transpose_a=True)
            return tf.matmul(dlogits, key, transpose_b=True), tf.matmul(query, dlogits, transpose_a=True), dvalue

        return tf.matmul(tf.cast(softmax(query, key), query.dtype), value), gradient

    return attend(query, key, value)


def block(
    layer: Any, tokens: Tensor, training: bool | None = None, num_queries: int | None = None, **optional: Any
) -> Tensor:
    """A `TransformerBlock` in training: each norm is one step with the product after it, and GELU with the next."""
    norm_1, norm_2 = layer.norms_before
    if num_queries is None:
        x = after_norm(norm_1, layer.attention, tokens, training, **optional)
    else:
        x = norm_1(tokens, training=training)
        queries, tokens = x[:, :num_queries], tokens[:, :num_queries]
        x = layer.attention(x, queries, training=training, **optional)
    x = tokens + layer.after_attention(x, training)
    return x + layer.after_mlp(after_norm(norm_2, layer.mlp, x, training), training)


def after_norm(norm: Any, layer: Any, tokens: Tensor, training: bool | None, **optional: Any) -> Tensor:
    """What a `MultiHeadAttention`, `MlpBlock` or `GatedMlpBlock` makes of `norm(tokens)` in training."""
    if not hasattr(layer, "attend"):
        return mlp(layer, tokens, training, norm)
    projections = (layer.query, layer.key, layer.value)
    return layer.attend(*norm_dense(norm, projections, layer.cast_input(tokens), training), training, **optional)


def mlp(layer: Any, tokens: Tensor, training: bool | None = None, norm: Any = None) -> Tensor:
    """What a `MlpBlock` or `GatedMlpBlock` makes of `norm(tokens)` in training."""
    tokens = layer.cast_input(tokens)
    first, last = layer.dense_layers[:-1], layer.dense_layers[-1]
    # Rows, since a shape between product and GELU would keep TensorFlow from joining them.
    rows = norm_dense_rows(norm, first, tokens, training)  # (B*T, M)
    recomputed = len(rows) == 1 and layer.activation in ("gelu", "gelu_tanh") and layer.mlp_bias
    if recomputed and not layer.dropout_rate and layer.norm is None and plain.is_unmodified(last, rows[0]):
        x = gelu_dense(rows[0], last.kernel, last.bias, layer.activation == "gelu_tanh")
        return plain.like(layer.dropout_2(x, training=training), tokens)
    x = ops.silu(rows[0]) * rows[1] if len(rows) == 2 else plain.activate(rows[0], layer.activation)
    return plain.like(layer.finish(x, training), tokens)


def _recomputed(x: Tensor, upstream: Tensor) -> Tensor:
    """`x` for use in the backward pass alone."""
    return _after([upstream], x)


def _learns(weight: Variable) -> bool:
    """Whether a variable is one that learns: of others no gradient is asked, and so none must be waited for."""
    return getattr(weight, "trainable", True)


def _after(others: Sequence[Tensor], x: Tensor) -> Tensor:
    """`x`, once the other tensors have been computed."""
    import tensorflow as tf

    with tf.control_dependencies(others):
        return tf.identity(x)


def _from_product(upstream: Tensor, kernel: Tensor) -> Tensor:
    """Gradient of `x @ kernel` with respect to `x`."""
    import tensorflow as tf

    with tf.control_dependencies(
        [upstream]
    ):  # of the cast itself: one of `_recomputed` would be moved before it and merged
        kernel = tf.cast(kernel, upstream.dtype)
    return tf.matmul(upstream, kernel, transpose_b=True)


def _to_kernel(x: Tensor, upstream: Tensor, kernel: Tensor) -> Tensor:
    """Gradient of `x @ kernel` with respect to `kernel`."""
    import tensorflow as tf

    return tf.cast(tf.matmul(x, upstream, transpose_a=True), kernel.dtype)


def _statistics(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Mean and inverse deviation, `(..., 1)`, in at least float32."""
    import tensorflow as tf

    wide = tf.cast(x, keras.backend.result_type(x.dtype.name, "float32"))
    mean = tf.reduce_mean(wide, -1, keepdims=True)
    return mean, tf.math.rsqrt(tf.reduce_mean(tf.math.squared_difference(wide, mean), -1, keepdims=True) + epsilon)


def _normal(x: Tensor, gamma: Tensor, beta: Tensor, statistics: tuple[Tensor, Tensor]) -> Tensor:
    """LayerNorm of `x`, of its dtype."""
    import tensorflow as tf

    mean, scale = statistics
    wide, gamma, beta = (tf.cast(tensor, mean.dtype) for tensor in (x, gamma, beta))
    return tf.cast((wide - mean) * scale * gamma + beta, x.dtype)


def _norm_gradient(
    x: Tensor, gamma: Tensor, beta: Tensor, statistics: tuple[Tensor, Tensor], upstream: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of LayerNorm with respect to `x`, `gamma` and `beta`."""
    import tensorflow as tf

    mean, scale = statistics
    upstream = tf.cast(upstream, mean.dtype)
    normal = (tf.cast(x, mean.dtype) - mean) * scale
    inner = upstream * tf.cast(gamma, mean.dtype)
    offset, slope = (tf.reduce_mean(part, -1, keepdims=True) for part in (inner, inner * normal))
    axes = list(range(x.shape.rank - 1))
    dgamma, dbeta = tf.reduce_sum(upstream * normal, axes), tf.reduce_sum(upstream, axes)
    dx = (inner - offset - normal * slope) * scale
    return tf.cast(dx, x.dtype), tf.cast(dgamma, gamma.dtype), tf.cast(dbeta, beta.dtype)


def _gelu_share_and_slope(x: Tensor, approximate: bool) -> tuple[Tensor, Tensor]:
    """GELU over its input, and its derivative."""
    import tensorflow as tf

    if approximate:
        square = tf.square(x)
        share = 0.5 + 0.5 * tf.tanh(x * (_SLOPE + (_SLOPE * _CUBIC) * square))
        bend = x * (2 * _SLOPE + (6 * _SLOPE * _CUBIC) * square)
        return share, share * (1 + (1 - share) * bend)
    share = 0.5 + 0.5 * tf.math.erf(x * math.sqrt(0.5))
    density = tf.exp(-0.5 * tf.square(x)) * (1 / math.sqrt(2 * math.pi))
    return share, share + x * density
