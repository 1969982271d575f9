"""The reference: what every kernel computes, written with `keras.ops`. It is always there.

`use("plain")` has all kernels computed so. Every other implementation is held to these by `tests/kernels`.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable, Iterator

import keras
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.checks import check_choice
from keras_vit.keras_private import is_exported_to_onnx

# Which implementations may be chosen: the reference alone; those that are as exact on every machine; or all.
LEVELS = ("plain", "portable", "fastest")
_level: contextvars.ContextVar[str] = contextvars.ContextVar("level", default="fastest")


@contextlib.contextmanager
def use(level: str) -> Iterator[None]:
    """Inside, what is traced is computed by these implementations alone.

    Args:
        level: `"plain"`, the reference, whose products the runtimes of exported files recognize and join. Or
            `"portable"`, all that is as exact on every machine, for a file of TensorFlow.
    """
    check_choice("level", level, LEVELS)
    token = _level.set(level)
    try:
        yield
    finally:
        _level.reset(token)


def current_level() -> str:
    """One of `LEVELS`."""
    return _level.get()


def flat(x: Tensor) -> Tensor:
    """`(..., D)` as `(R, D)`. TensorFlow joins a product of two axes with its bias and activation on a CPU."""
    return x if len(x.shape) == 2 else ops.reshape(x, (-1, x.shape[-1]))


def like(rows: Tensor, x: Tensor) -> Tensor:
    """`(R, M)` as `(..., M)`, with the axes that `x` has before its last."""
    return rows if len(x.shape) == 2 else ops.reshape(rows, (-1, *ops.shape(x)[1:-1], rows.shape[-1]))


def activate(x: Tensor, activation: str | None) -> Tensor:
    """What `"gelu_tanh"`, `"gelu"`, `"quick_gelu"` or `"relu"` makes of a tensor of any shape; `None` leaves it."""
    if activation is None:
        return x
    if activation == "relu":
        return ops.relu(x)
    if activation == "quick_gelu":
        return x * ops.sigmoid(1.702 * x)
    if activation == "gelu" and is_exported_to_onnx():
        return 0.5 * x * (1 + ops.erf(x * math.sqrt(0.5)))
    return ops.gelu(x, approximate=activation == "gelu_tanh")


def is_unmodified(layer: keras.layers.Dense, x: Tensor) -> bool:
    """Whether a dense layer is a product and a bias in the precision of `x`, and nothing else."""
    dtype = keras.backend.standardize_dtype(x.dtype)
    return not (layer.lora_enabled or layer.quantization_mode) and layer.compute_dtype == dtype


def dense(layer: keras.layers.Dense, x: Tensor, activation: str | None = None) -> Tensor:
    """`activation(x @ kernel + bias)` of `(..., D)`, with LoRA and quantization as Keras has them."""
    return like(activate(layer(flat(x)), activation), x)


def softmax(logits: Tensor, bias: Tensor = None) -> Tensor:
    """Softmax over the last axis of logits and a bias, in at least float32, of the logits' precision."""
    wide = ops.cast(logits, keras.backend.result_type(logits.dtype, "float32"))
    weights = ops.softmax(wide if bias is None else wide + ops.cast(bias, wide.dtype), axis=-1)
    return ops.cast(weights, logits.dtype)


def as_matrices(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Heads `(B, T, A, D/A)` as their products take them: `(B, A, Q, D/A)`, `(B, A, D/A, T)` and `(B, A, T, D/A)`."""
    axes = ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    query, key, value = (ops.transpose(x, axis) for x, axis in zip((query, key, value), axes, strict=True))
    return query, key, value


def attention_weights(
    query: Tensor, key: Tensor, bias: Tensor = None, softmax: Callable[[Tensor, Tensor], Tensor] = softmax
) -> Tensor:
    """`(B, A, Q, T)`: `softmax(query @ key + bias)`. A bias of the logits' own precision is added in it.

    Args:
        query: `(B, A, Q, D/A)`, scaled.
        key: `(B, A, D/A, T)`.
        bias: `(1 or B, 1 or A, 1 or Q, T)`, or `None`.
        softmax: of logits and a bias.
    """
    logits = ops.matmul(query, key)  # (B, A, Q, T), eq. 6
    if bias is not None and bias.dtype == logits.dtype:
        logits, bias = logits + bias, None
    return softmax(logits, bias)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor = None,
    dropout: keras.layers.Dropout | None = None,
    training: bool | None = False,
    hook: Callable[[Tensor], Tensor] | None = None,
    softmax: Callable[[Tensor, Tensor], Tensor] = softmax,
) -> Tensor:
    """`dropout(softmax(query @ key + bias)) @ value`, `(B, A, Q, D/A)`, of `as_matrices`.

    A hook gets the weights and returns others.
    """
    weights = attention_weights(query, key, bias, softmax)
    weights = weights if hook is None else hook(weights)
    return ops.matmul(weights if dropout is None else dropout(weights, training=training), value)  # eq. 7


def patch_rows(images: Tensor, convolution: keras.layers.Conv2D) -> Tensor:
    """Tokens `(B, N, D)` of images `(B, H, W, C)`, by a convolution whose stride is its kernel's side.

    By torch it is a product: oneDNN's convolution is off by 1.0e-6 of the largest number, the product by 2.8e-7. Four
    blocks of SAM make ten times as much of it.
    """
    if keras.backend.backend() == "torch":
        return patch_product(images, convolution)
    tokens = convolution(images)  # (B, h, w, D)
    shape = ops.shape(tokens)
    return ops.reshape(tokens, (-1, shape[1] * shape[2], tokens.shape[-1]))


def patch_product(images: Tensor, convolution: keras.layers.Conv2D) -> Tensor:
    """The same by one product with the patches, which are cut out; sides are multiples of the kernel's."""
    (side, _), (_, height, width, channels) = convolution.kernel_size, ops.shape(images)
    rows, columns = height // side, width // side
    x = ops.cast(images, convolution.compute_dtype)
    x = ops.transpose(ops.reshape(x, (-1, rows, side, columns, side, channels)), (0, 1, 3, 2, 4, 5))
    kernel = ops.cast(ops.reshape(convolution.kernel, (-1, convolution.filters)), x.dtype)
    x = ops.matmul(ops.reshape(x, (-1, kernel.shape[0])), kernel)  # (B*N, D)
    x = x + ops.cast(convolution.bias, x.dtype) if convolution.use_bias else x
    return ops.reshape(x, (-1, rows * columns, convolution.filters))
