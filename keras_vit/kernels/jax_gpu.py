"""Several steps in one kernel, where a backend has one; the numbers are those of the steps.

Attention that never holds all its weights: JAX and torch on a GPU. TensorFlow has none; see `blockwise` for many tokens
on a CPU. Every head width of the published models meets cuDNN's rule, a multiple of 8 up to 128.

A dense layer and the GELU behind it: TensorFlow on a CPU.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Tensor, Variable
from keras_vit.processor import processor_flags

_portable: contextvars.ContextVar[bool] = contextvars.ContextVar("portable", default=False)
KEPT = ("dense", "attention")  # names of what a block keeps for the backward pass where `keeps_less`


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


def attention(
    query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, int] | None = None, scale: float = 1.0
) -> Tensor:
    """`softmax(scale * query @ key) @ value`.

    Args:
        query: `(B, A, Q, D/A)`.
        key: `(B, A, D/A, T)`.
        value: `(B, A, T, D/A)`.
        lengths: how many queries and keys there are, on JAX, where the last of each may be one that `evened` added.
        scale: a factor of the logits.

    Returns:
        `(B, A, Q, D/A)`.
    """
    query, value = (ops.transpose(each, (0, 2, 1, 3)) for each in (query, value))  # (B, T, A, D/A), as for the key
    key = ops.transpose(key, (0, 3, 1, 2))
    if lengths is None:
        mixed = ops.dot_product_attention(query, key, value, scale=scale)
    else:
        mixed = _up_to_lengths(query, key, value, lengths, scale)
    return ops.transpose(mixed, (0, 2, 1, 3))


def softmax(logits: Tensor, added: Tensor = None) -> Tensor:
    """Softmax over the last axis of logits and what is added to them, in at least float32, of the logits' precision."""
    if added is None and not _portable.get() and _rounds_once(keras.backend.standardize_dtype(logits.dtype)):
        return ops.softmax(logits, axis=-1)
    wide = ops.cast(logits, keras.backend.result_type(logits.dtype, "float32"))
    weights = ops.softmax(wide if added is None else wide + ops.cast(added, wide.dtype), axis=-1)
    return ops.cast(weights, logits.dtype)


@contextlib.contextmanager
def portable() -> Iterator[None]:
    """Inside, what is traced has no step that is as exact as it must be on this machine alone."""
    token = _portable.set(True)
    try:
        yield
    finally:
        _portable.reset(token)


@functools.cache
def _rounds_once(dtype: str) -> bool:
    """Whether this machine's softmax of a lower precision is that of float32, rounded.

    oneDNN's is for bfloat16, so casts on both sides, a third of the time of attention, can be left out. TensorFlow's
    own is not.
    """
    if dtype != "bfloat16" or keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    with tf.init_scope():
        logits = tf.cast(tf.random.stateless_normal((64, 1031), (1, 2), stddev=3.0), dtype)
        wide = tf.cast(tf.nn.softmax(tf.cast(logits, "float32")), dtype)
        return bool(tf.reduce_all(tf.nn.softmax(logits) == wide))


def _up_to_lengths(query: Tensor, key: Tensor, value: Tensor, lengths: tuple[int, int], scale: float) -> Tensor:
    """`(B, Q, A, D/A)` by cuDNN; by plain products where it refuses, as a width of heads that it does not have."""
    import jax

    known: dict[str, Any] = {"scale": scale}
    if lengths != (query.shape[1], key.shape[1]):
        names = ("query_seq_lengths", "key_value_seq_lengths")
        counts = (jax.numpy.full(query.shape[:1], count, "int32") for count in lengths)
        known |= zip(names, counts, strict=True)
    try:
        return jax.nn.dot_product_attention(query, key, value, implementation="cudnn", **known)
    except (NotImplementedError, RuntimeError, ValueError):
        return jax.nn.dot_product_attention(query, key, value, implementation="xla", **known)


def wants_even_lengths(dtype: str, training: bool | None) -> bool:
    """Whether a token has to be added to an odd number of them, so that fused attention has a gradient.

    JAX takes every call for one with a bias, for which cuDNN wants even lengths (0.11.2 and before). Keras would fall
    back to plain products, with which a block of B/16 takes 4.0 ms on an H100 where it takes 2.9.
    """
    return bool(training) and dtype in ("float16", "bfloat16") and keras.backend.backend() == "jax"


def evened(x: Tensor | None, axis: int = 1) -> Tensor | None:
    """`x` with zeros behind it where its length is odd."""
    if x is None or x.shape[axis] % 2 == 0:
        return x
    return ops.pad(x, [(0, int(index == axis)) for index in range(len(x.shape))])


def plain(dense: keras.layers.Dense, dtype: str) -> bool:
    """Whether a dense layer is a product and a bias in this precision, and nothing else."""
    return not (dense.lora_enabled or dense.quantization_mode) and dense.compute_dtype == dtype


def dense(layer: keras.layers.Dense, x: Tensor, activation: str | None = None, kept_with_bias: bool = False) -> Tensor:
    """What a dense layer makes of `x`, and a GELU of that.

    TensorFlow joins the three steps only where the bias is added by `BiasAdd`, and Keras' layer adds it by another
    operation. A GELU by itself takes 1 ms of a block of B/16 for one image in float32 on one core, 3 in bfloat16.

    Args:
        layer: a layer without activation.
        x: `(R, D)`.
        activation: `"gelu_tanh"`, `"gelu"`, `"quick_gelu"` or `None`.
        kept_with_bias: whether what `keeps_less` keeps has the bias. What adds it is a pass over memory where the
            sum goes into a kernel of its own, as attention's, and else a part of the kernel that follows.

    Returns:
        `(R, M)`.
    """
    backend, is_plain = keras.backend.backend(), plain(layer, keras.backend.standardize_dtype(x.dtype))
    if backend == "tensorflow" and is_plain:
        x = product(x, layer.kernel, layer.bias if layer.use_bias else None)
        if activation is not None and by_matmul(x.dtype.name):  # in bfloat16 a GELU by itself takes twice the time
            return ops.cast(activate(ops.cast(x, "float32"), activation), x.dtype)
    elif backend == "jax" and is_plain:
        x = ops.matmul(x, ops.cast(layer.kernel, x.dtype))
        x = x if kept_with_bias else named(x, "dense")
        x = _plus(x, ops.cast(layer.bias, x.dtype)) if layer.use_bias else x
        x = named(x, "dense") if kept_with_bias else x
    else:
        x = named(layer(x), "dense")
    return x if activation is None else activate(x, activation)


def product(x: Tensor, kernel: Variable, bias: Variable | None) -> Tensor:
    """`x @ kernel + bias` by TensorFlow, in the precision of `x`.

    A product with `BiasAdd` behind it becomes oneDNN's `inner_product`, which takes a gemm where the kernel is a
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
    in_batch = by_matmul(x.dtype.name)
    x = tf.squeeze(tf.matmul(x[None], kernel[None]), 0) if in_batch else tf.matmul(x, kernel)
    return tf.nn.bias_add(x, ops.cast(bias, x.dtype))


def by_matmul(dtype: str) -> bool:
    """Whether TensorFlow's products of a precision gain by oneDNN's `matmul`: with AMX, and in no file."""
    return dtype == "bfloat16" and not _portable.get() and _has_amx()


@functools.cache
def _has_amx() -> bool:
    """Whether TensorFlow computes on a processor with AMX for bfloat16."""
    import tensorflow as tf

    return "amx_bf16" in processor_flags() and not tf.config.get_visible_devices("GPU")


def _plus(x: Tensor, bias: Tensor) -> Tensor:
    """The sum. The gradient of the bias, a sum over all tokens, is formed in float32 and in a kernel of its own.

    XLA would put it into the kernel before it, which then takes half as long again (a block of B/16 on an H100 3.19 ms,
    where it took 3.30), and would sum in half precision.
    """
    import jax

    @jax.custom_vjp
    def plus(x: Tensor, bias: Tensor) -> Tensor:
        return x + bias

    def backward(_: None, upstream: Tensor) -> tuple[Tensor, Tensor]:
        total = jax.numpy.sum(jax.lax.optimization_barrier(upstream), 0, dtype="float32")
        return upstream, total.astype(upstream.dtype)

    plus.defvjp(lambda x, bias: (x + bias, None), backward)
    return plus(x, bias)


def activate(x: Tensor, activation: str) -> Tensor:
    """What `"gelu_tanh"`, `"gelu"` or `"quick_gelu"` makes of a tensor of any shape."""
    if activation == "quick_gelu":
        return x * ops.sigmoid(1.702 * x)
    return ops.gelu(x, approximate=activation == "gelu_tanh")


def patches_are_rows(training: bool | None) -> bool:
    """Whether patches are cut out and multiplied by one matrix, by JAX on a GPU.

    256 images of B/16 take 20.8 ms on an H100 where they take 22.2 by the convolution, and a training step of 128
    images 1.1 ms less. In training XLA must be told how the tokens lie in memory. Else it turns them around in each
    block, which takes longer than the convolution. Of several devices it would gather all tokens to be told, so there
    the convolution stays.
    """
    return keras.backend.backend() == "jax" and applies() and (not training or _one_device())


def _one_device() -> bool:
    import jax

    return jax.device_count() == 1


def patch_tokens(images: Tensor, convolution: keras.layers.Conv2D) -> Tensor:
    """What a convolution whose stride is its kernel's side makes of images, as rows, by JAX.

    Args:
        images: `(B, H, W, C)`, sides that are known.
        convolution: of kernel `(P, P, C, D)`.

    Returns:
        `(B, N, D)`.
    """
    from jax.experimental.layout import Layout, with_layout_constraint

    (side, _), (height, width, channels) = convolution.kernel_size, images.shape[1:]
    rows, columns = height // side, width // side
    x = ops.cast(images, convolution.compute_dtype)
    x = ops.transpose(ops.reshape(x, (-1, rows, side, columns, side, channels)), (0, 1, 3, 2, 4, 5))
    kernel = ops.cast(ops.reshape(convolution.kernel, (-1, convolution.filters)), x.dtype)
    x = ops.matmul(ops.reshape(x, (-1, kernel.shape[0])), kernel)  # (B*N, D)
    x = x + ops.cast(convolution.bias, x.dtype) if convolution.use_bias else x
    x = ops.reshape(x, (-1, rows * columns, convolution.filters))
    return with_layout_constraint(x, Layout(major_to_minor=(0, 1, 2))) if _one_device() else x


def keeps_less() -> bool:
    """Whether training keeps the tensors of `KEPT` alone: on JAX with an accelerator.

    An image of B/16 in mixed bfloat16 then keeps 36 MB, where XLA would keep 186. On an H100 a step of 128 images takes
    37.8 ms and 7.2 GB, where XLA's choice takes some 11 GB. On a CPU XLA takes as much memory with it as without, and a
    step of S/16 5 % longer in bfloat16.
    """
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() != "cpu"


def named(x: Tensor, name: str) -> Tensor:
    """`x` under a name by which `checkpointed` keeps it. Only JAX has such names."""
    if keras.backend.backend() != "jax":
        return x
    import jax

    return jax.ad_checkpoint.checkpoint_name(x, name)


def checkpointed(compute: Callable[..., Tensor], kept: tuple[str, ...]) -> Callable[..., Tensor]:
    """`compute`, of whose tensors JAX keeps for the backward pass those with these names, and computes the rest again.

    cuDNN's attention is kept too, as its gradient reads what it gave, and so are the sums of a norm, a few numbers a
    token.
    """
    import jax

    by_name = jax.checkpoint_policies.save_only_these_names(*kept)

    def is_kept(operation: Any, *inputs: Any, **options: Any) -> Any:
        kept_anyway = "dot_product_attention" in operation.name or operation.name in ("reduce_sum", "rsqrt")
        return kept_anyway or by_name(operation, *inputs, **options)

    return jax.checkpoint(compute, policy=is_kept)
