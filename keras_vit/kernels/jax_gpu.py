"""What is for XLA's compiler: attention by cuDNN, patches as rows, and what training keeps of a block.

Attention that never holds all its weights: every head width of the published models meets cuDNN's rule, a multiple of 8
up to 128. Torch has such a kernel too. Figures are of an H100 and B/16.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.kernels import capture, plain

SAVED_NAMES = ("dense", "attention")  # of what a block keeps for the backward pass under `uses_checkpoint_policy`


def is_available() -> bool:
    """Whether this process computes where there is a kernel for attention: JAX or torch on a GPU."""
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        return jax.default_backend() == "gpu"
    if backend == "torch":
        import torch

        return torch.cuda.is_available()
    return False


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    training: bool | None = False,
    lengths: tuple[int, int] | None = None,
    scale: float = 1.0,
) -> Tensor:
    """`softmax(scale * query @ key) @ value`.

    Args:
        query: `(B, Q, A, D/A)`.
        key: `(B, T, A, D/A)`.
        value: `(B, T, A, D/A)`.
        training: whether there will be a gradient, for which lengths are made even.
        lengths: how many queries and keys there are, where the last of each may be one that `pad_to_even` added.
        scale: a factor of the logits.

    Returns:
        `(B, Q, A, D/A)`.
    """
    if not needs_even_length(keras.backend.standardize_dtype(query.dtype), training):
        return ops.dot_product_attention(query, key, value, scale=scale)
    given = query.shape[1]
    lengths = (given, key.shape[1]) if lengths is None else lengths
    return _up_to_lengths(pad_to_even(query), pad_to_even(key), pad_to_even(value), lengths, scale)[:, :given]


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


def needs_even_length(dtype: str, training: bool | None) -> bool:
    """Whether a token has to be added to an odd number of them, so that cuDNN's attention has a gradient.

    JAX takes every call for one with a bias, for which cuDNN wants even lengths (0.11.2 and before). Keras would fall
    back to plain products, with which a block takes 4.0 ms where it takes 2.9.
    """
    return bool(training) and dtype in ("float16", "bfloat16") and keras.backend.backend() == "jax"


def pad_to_even(x: Tensor | None, axis: int = 1) -> Tensor | None:
    """`x` with zeros after it where its length is odd."""
    if x is None or x.shape[axis] % 2 == 0:
        return x
    return ops.pad(x, [(0, int(index == axis)) for index in range(len(x.shape))])


def dense(layer: keras.layers.Dense, x: Tensor, activation: str | None = None, save_after_bias: bool = False) -> Tensor:
    """As `plain.dense`, of which `remat` keeps one array.

    Args:
        layer: a dense layer.
        x: `(..., D)`.
        activation: as for `plain.activate`.
        save_after_bias: whether what is kept has the bias. What adds it is a pass over memory where the sum goes into a
            kernel of its own, as attention's, and else a part of the kernel that follows.
    """
    rows = plain.flat(x)
    if not plain.is_unmodified(layer, x):
        rows = checkpoint_name(layer(rows), "dense")
        return plain.like(plain.activate(rows, activation), x)
    rows = ops.matmul(rows, ops.cast(layer.kernel, rows.dtype))
    rows = rows if save_after_bias else checkpoint_name(rows, "dense")
    rows = add_bias(rows, ops.cast(layer.bias, rows.dtype)) if layer.use_bias else rows
    rows = checkpoint_name(rows, "dense") if save_after_bias else rows
    return plain.like(plain.activate(rows, activation), x)


def add_bias(x: Tensor, bias: Tensor) -> Tensor:
    """The sum. The gradient of the bias, a sum over all tokens, is formed in float32 and in a kernel of its own.

    XLA would put it into the kernel before it, which then takes half as long again (a block 3.19 ms where it took
    3.30), and would sum in half precision.
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


def use_patch_rows(training: bool | None) -> bool:
    """Whether patches are cut out and multiplied by one matrix, by JAX on a GPU.

    256 images take 20.8 ms where they take 22.2 by the convolution, and a training step of 128 images 1.1 ms less. In
    training XLA must be given the layout of the tokens in memory. Else it turns them around in each block, which takes
    longer than the convolution. Of several devices it would gather all tokens for that, so there the convolution stays.
    """
    return keras.backend.backend() == "jax" and is_available() and (not training or _one_device())


def _one_device() -> bool:
    import jax

    return jax.device_count() == 1


def patch_rows(images: Tensor, convolution: keras.layers.Conv2D) -> Tensor:
    """What a convolution whose stride is its kernel's side makes of images, as rows.

    Args:
        images: `(B, H, W, C)`, sides that are known.
        convolution: of kernel `(P, P, C, D)`.

    Returns:
        `(B, N, D)`.
    """
    from jax.experimental.layout import Layout, with_layout_constraint

    x = plain.patch_product(images, convolution)
    return with_layout_constraint(x, Layout(major_to_minor=(0, 1, 2))) if _one_device() else x


def uses_checkpoint_policy() -> bool:
    """Whether training keeps the tensors of `SAVED_NAMES` alone: on JAX with an accelerator.

    An image in mixed bfloat16 then keeps 36 MB, where XLA would keep 186. A step of 128 images takes 37.8 ms and
    7.2 GB, where XLA's choice takes some 11 GB. On a CPU XLA takes as much memory with it as without, and a step of
    S/16 5 % longer in bfloat16.
    """
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() != "cpu"


def checkpoint_name(x: Tensor, name: str) -> Tensor:
    """`x` under a name by which `remat` keeps it."""
    import jax

    return jax.ad_checkpoint.checkpoint_name(x, name)


def remat(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`compute`, of whose tensors JAX keeps those of `SAVED_NAMES` for the backward pass, and computes the rest again.

    cuDNN's attention is kept too, as its gradient reads what it gave, and so are the sums of a norm, a few numbers a
    token.
    """
    import jax

    by_name = jax.checkpoint_policies.save_only_these_names(*SAVED_NAMES)

    def is_kept(operation: Any, *inputs: Any, **options: Any) -> Any:
        kept_anyway = "dot_product_attention" in operation.name or operation.name in ("reduce_sum", "rsqrt")
        return kept_anyway or by_name(operation, *inputs, **options)

    return jax.checkpoint(compute, policy=is_kept)


def block(
    layer: Any, tokens: Tensor, training: bool | None = None, num_queries: int | None = None, **optional: Any
) -> Tensor:
    """A `TransformerBlock` in training: names of what is kept, and one token more where their number is odd.

    The whole block has that token. Added and taken away around attention alone, it costs more passes over memory on the
    way back. Dropout would draw for it, so there attention alone has it.
    """
    norm_1, norm_2 = layer.norms_before
    count, length = tokens.shape[1], None
    if num_queries is None and not layer.dropout_rate and _is_even_only(layer.attention, training, optional):
        tokens, length = pad_to_even(tokens), count
        optional["rotation"] = pad_to_even(optional.get("rotation"), axis=2)
    x = norm_1(tokens, training=training)
    queries = None if num_queries is None else x[:, :num_queries]
    x = _attention(layer.attention, x, queries, training, length, **optional)
    x = tokens[:, :num_queries] + layer.after_attention(x, training)
    x = x + layer.after_mlp(layer.mlp(norm_2(x, training=training), training=training), training)
    return x if length is None else x[:, :count]


def _is_even_only(attention: Any, training: bool | None, optional: dict[str, Any]) -> bool:
    """Whether an attention layer calls cuDNN, and that with an even number of tokens alone."""
    needs_weights = capture.current_hook() is not None or attention.dropout_rate or attention.relative is not None
    if needs_weights or optional.get("bias") is not None or not is_available():
        return False
    return needs_even_length(attention.compute_dtype, training)


def _attention(
    layer: Any,
    tokens: Tensor,
    queries: Tensor,
    training: bool | None,
    length: int | None,
    rotation: Tensor = None,
    **optional: Any,
) -> Tensor:
    """A `MultiHeadAttention` whose projections are kept with their bias; of `length` tokens if one was added before."""
    tokens, given = layer.cast_input(tokens), (tokens if queries is None else queries).shape[1]
    project = functools.partial(dense, save_after_bias=True)
    if not _is_even_only(layer, training, optional):
        projected = layer.project(tokens, queries, project)
        return layer.attend(*projected, training=training, rotation=rotation, **optional)
    lengths = (given, tokens.shape[1]) if length is None else (length, length)
    tokens, queries, rotation = pad_to_even(tokens), pad_to_even(queries), pad_to_even(rotation, axis=2)
    query, key, value = layer.heads(*layer.project(tokens, queries, project), rotation, scaled=False)
    scale = 1.0 if layer.query_scale is None else layer.query_scale
    mixed = attention(query, key, value, training, lengths, scale)
    return layer.join(checkpoint_name(mixed, "attention"), training)[:, :given]
