"""Which implementation computes: one table of rows, each with its reason, and the functions that layers call.

A layer calls a kernel here with plain tensors, and does not know which file computes it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.kernels import capture, chunked_attention, jax_gpu, plain, tensorflow_cpu, tensorflow_training

Forward = Callable[..., Tensor]


@dataclasses.dataclass(frozen=True)
class Choice:
    """The implementation of a kernel, by its file in this room, and why it is that one."""

    name: str
    why: str


Facts = Mapping[str, Any]


def _tensorflow(facts: Facts) -> bool:
    return keras.backend.backend() == "tensorflow"


def _jax(facts: Facts) -> bool:
    return keras.backend.backend() == "jax"


def _trains_on_tensorflow(facts: Facts) -> bool:
    return bool(facts.get("training")) and _tensorflow(facts)


def _trains_on_accelerated_jax(facts: Facts) -> bool:
    return bool(facts.get("training")) and jax_gpu.uses_checkpoint_policy()


def _nothing_between(facts: Facts) -> bool:
    """Whether attention has nothing but the softmax between its two products."""
    return facts.get("bias") is None and not facts.get("rate")


# kernel: rows of (implementation, whether it is the one, why). The first that applies is taken, else the plain one.
_ROWS: Mapping[str, tuple[tuple[str, Callable[[Facts], Any], str], ...]] = {
    "dense": (
        ("tensorflow_cpu", _tensorflow, "TensorFlow joins product, bias and activation in this form"),
        ("jax_gpu", _jax, "it names the array that training on an accelerator keeps, and else changes nothing"),
    ),
    "layer_norm": (("tensorflow_training", _trains_on_tensorflow, "training keeps its input alone"),),
    "norm_dense": (("tensorflow_training", _trains_on_tensorflow, "training keeps the norm's input alone"),),
    "mlp": (("tensorflow_training", _trains_on_tensorflow, "training computes GELU again"),),
    "block": (
        ("tensorflow_training", _trains_on_tensorflow, "a norm and its product are one step, GELU is computed again"),
        ("jax_gpu", _trains_on_accelerated_jax, "training keeps named arrays, of an even number of tokens"),
    ),
    "remat": (("jax_gpu", _trains_on_accelerated_jax, "training keeps named arrays alone"),),
    "attention": (
        ("plain", lambda facts: capture.current_hook() is not None, "a hook looks at the weights"),
        (
            "chunked_attention",
            lambda facts: facts.get("many", False) is not False,  # a tensor where only the graph knows
            "so many weights are never held at once",
        ),
        (
            "tensorflow_training",
            lambda facts: _trains_on_tensorflow(facts) and _nothing_between(facts),
            "training computes the weights again",
        ),
        (
            "jax_gpu",
            lambda facts: jax_gpu.is_available() and _nothing_between(facts),
            "one kernel, which never holds all weights",
        ),
        ("tensorflow_cpu", _tensorflow, "its softmax goes without casts where it rounds once"),
    ),
    "patch_rows": (("jax_gpu", lambda facts: jax_gpu.use_patch_rows(facts.get("training")), "one product is faster"),),
}


def select(kernel: str, **facts: Any) -> Choice:
    """Which implementation of a kernel computes here, and why.

    Args:
        kernel: `"dense"`, `"layer_norm"`, `"norm_dense"`, `"mlp"`, `"block"`, `"remat"`, `"attention"` or
            `"patch_rows"`.
        **facts: what the rows of that kernel read, as `training`.
    """
    if plain.current_level() == "plain":
        return Choice("plain", 'inside of `kernels.use("plain")`')
    rows = (Choice(name, why) for name, applies, why in _ROWS[kernel] if applies(facts))
    return next(rows, Choice("plain", "nothing else is faster or keeps less here"))


def dense(layer: keras.layers.Dense, x: Tensor, activation: str | None = None) -> Tensor:
    """`activation(x @ kernel + bias)`: what a dense layer and a GELU make of `(..., D)`, `(..., M)`.

    Args:
        layer: a layer without activation.
        x: `(..., D)`.
        activation: `"gelu_tanh"`, `"gelu"`, `"quick_gelu"` or `None`.
    """
    ways = {"tensorflow_cpu": tensorflow_cpu.dense, "jax_gpu": jax_gpu.dense, "plain": plain.dense}
    return ways[select("dense").name](layer, x, activation)


def norm_dense(norm: keras.Layer | None, layer: keras.layers.Dense, x: Tensor, training: bool | None) -> Tensor:
    """What a dense layer makes of `norm(x)`, `(..., M)`; of `(..., D)` as it is without a norm."""
    if norm is not None and select("norm_dense", training=training).name == "tensorflow_training":
        return tensorflow_training.norm_dense(norm, (layer,), x, training)[0]
    return dense(layer, x if norm is None else norm(x, training=training))


def layer_norm(norm: Any, rank: int, training: bool | None) -> Forward | None:
    """What computes a LayerNorm of inputs with so many axes, or `None` for Keras' own way."""
    if select("layer_norm", training=training).name == "plain" or not tensorflow_training.is_plain_norm(norm, rank):
        return None
    return functools.partial(tensorflow_training.normalized, norm)


def dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor = None,
    dropout: Any = None,
    training: bool | None = False,
    layer: Any = None,
) -> Tensor:
    """`dropout(softmax(query @ key + bias)) @ value`, the softmax in at least float32.

    Args:
        query: `(B, Q, A, D/A)`, scaled.
        key: `(B, T, A, D/A)`.
        value: `(B, T, A, D/A)`.
        bias: `(1 or B, 1 or A, 1 or Q, T)`, added to the logits, or `None`.
        dropout: a `keras_vit.layers` dropout of the weights, or `None`.
        training: whether it drops.
        layer: the `MultiHeadAttention` that a hook of `capture` is given.

    Returns:
        `(B, Q, A, D/A)`.
    """
    rate, hook = dropout.rate if training and dropout is not None else 0, capture.current_hook()
    many = chunked_attention.is_worthwhile(ops.shape(query)[1], ops.shape(key)[1], rate)
    choose = functools.partial(select, "attention", training=training, bias=bias, rate=rate)
    name = choose(many=many).name
    if name == "jax_gpu":
        return _named(jax_gpu.attention(query, key, value, training))
    options: dict[str, Any] = {"bias": bias, "dropout": dropout, "training": training}
    ways: dict[str, Forward] = {
        "plain": functools.partial(plain.attention, **options, hook=hook and functools.partial(hook, layer)),
        "tensorflow_cpu": functools.partial(tensorflow_cpu.attention, **options),
        "tensorflow_training": tensorflow_training.attention,
    }
    if name == "chunked_attention":
        few = ways[choose(many=False).name]
        ways[name] = functools.partial(chunked_attention.attention_where, many, few, **options)
    mixed = ways[name](*plain.as_matrices(query, key, value))
    return _named(ops.transpose(mixed, (0, 2, 1, 3)))


def _named(mixed: Tensor) -> Tensor:
    """What training on an accelerator keeps of attention."""
    return jax_gpu.checkpoint_name(mixed, "attention") if _jax({}) else mixed


def attention_weights(query: Tensor, key: Tensor, bias: Tensor = None) -> Tensor:
    """`softmax(query @ key + bias)`, `(B, A, Q, T)`, of `(B, Q, A, D/A)` and `(B, T, A, D/A)`."""
    query, key, _ = plain.as_matrices(query, key, key)
    return plain.attention_weights(query, key, bias)


def patch_rows(images: Tensor, convolution: keras.layers.Conv2D, training: bool | None) -> Tensor:
    """Tokens `(B, N, D)` of images `(B, H, W, C)`, by a convolution whose stride is its kernel's side."""
    rows = jax_gpu.patch_rows if select("patch_rows", training=training).name == "jax_gpu" else plain.patch_rows
    return rows(images, convolution)


def mlp(layer: Any, training: bool | None) -> Forward | None:
    """What computes an MLP of this package in place of its `forward`, with the same arguments, or `None`."""
    if select("mlp", training=training).name == "plain":
        return None
    return functools.partial(tensorflow_training.mlp, layer)


def after_norm(norm: Any, layer: Any, tokens: Tensor, training: bool | None) -> Tensor:
    """`layer(norm(tokens))`, of attention or an MLP of this package."""
    if select("norm_dense", training=training).name == "tensorflow_training":
        return tensorflow_training.after_norm(norm, layer, tokens, training)
    return layer(norm(tokens, training=training), training=training)


def block(layer: Any, training: bool | None) -> Forward | None:
    """What computes a `TransformerBlock` in place of its `forward`, with the same arguments, or `None`."""
    name = select("block", training=training).name
    forms = {"tensorflow_training": tensorflow_training.block, "jax_gpu": jax_gpu.block}
    return functools.partial(forms[name], layer) if name in forms else None


def remat(rematerialize: bool, training: bool | None) -> Callable[[Forward], Forward] | None:
    """What has a function of tensors keep less for the backward pass, or `None`."""
    if training and rematerialize:
        return keras.remat
    return None if select("remat", training=training).name == "plain" else jax_gpu.remat
