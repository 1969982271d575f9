"""Token merging (ToMe, arXiv:2210.09461): each block joins the patches that are most alike, so the next has fewer.

What comes out is another function than the block's without merging, near to it: less work for some accuracy.
"""

from typing import Any, cast

import keras
from keras import ops

from keras_vit import kernels
from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_int
from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.encoder import TransformerBlock


@keras.saving.register_keras_serializable("keras_vit")
class MergingBlock(TransformerBlock):
    """A `TransformerBlock` that merges tokens between its attention and its MLP.

    Its weights are those of a `TransformerBlock`. A merged token counts in the attention as many times as it has
    patches. With neither merged tokens nor sizes above 1 it computes what a `TransformerBlock` does.

    Args:
        hidden_size: D, size of a token.
        num_heads: A; must divide `hidden_size`.
        mlp_dim: M, size inside the MLP.
        merged_tokens: r, how many fewer tokens come out, at most half of the patches; 0 for as many.
        **kwargs: as `TransformerBlock`. Prefix tokens are not merged.

    Call arguments:
        tokens: `(B, T, D)` with a known T.
        sizes: `(B, T, 1)`, patches in each token; 1 for each by default.

    Returns:
        Tokens `(B, T - r, D)`, or `(B, k, D)` of k queries, and their sizes.

    Raises:
        ValueError: for `rematerialize` or `relative_patches`, and when it is built, if T is unknown.

    Source: arXiv:2210.09461, section 3. As there, patches go into two parts by turns and are compared by the mean of
    their keys over the heads. Each patch of the first part may join its nearest of the second.

    Example:
        >>> block = keras_vit.layers.MergingBlock(12, 3, 48, 2, num_prefix_tokens=1)
        >>> tokens, sizes = block(keras.random.normal((2, 7, 12)))
        >>> tuple(tokens.shape), tuple(sizes.shape)
        ((2, 5, 12), (2, 5, 1))
    """

    extra_outputs: tuple[str, ...] = ("sizes",)

    def __init__(self, hidden_size: int, num_heads: int, mlp_dim: int, merged_tokens: int = 0, **kwargs: Any) -> None:
        super().__init__(hidden_size, num_heads, mlp_dim, **kwargs)
        self.optional_inputs = ("sizes",)
        self.merged_tokens = check_int("merged_tokens", merged_tokens, 0)
        if (
            self.rematerialize
            or self.relative_patches is not None
            or self.rotary_layout is not None
            or self.use_attention_bias
        ):
            raise ValueError(
                "a block that merges tokens has neither `rematerialize` nor relative or rotary positions.\n"
                f"Received: rematerialize={self.rematerialize}, relative_patches={self.relative_patches}, "
                f"rotary_layout={self.rotary_layout!r}, use_attention_bias={self.use_attention_bias}."
            )

    def build(self, tokens_shape: Shape, sizes_shape: Shape | None = None) -> None:
        if tokens_shape[1] is None:
            raise ValueError(
                "tokens are merged where their number is known, so the image must have a known size.\n"
                f"Received: tokens of shape {tokens_shape}. Pass `input_shape` with H and W."
            )
        super().build(tokens_shape)

    def call(  # type: ignore[override]  # takes no rotation
        self, tokens: Tensor, training: bool | None = None, num_queries: int | None = None, sizes: Tensor = None
    ) -> tuple[Tensor, Tensor]:
        tokens, sizes, count = self.cast_input(tokens), self.cast_input(sizes), num_queries or self.num_output_tokens
        sizes = ops.ones_like(tokens[..., :1]) if sizes is None else sizes
        norm_1, norm_2 = self.norms_before
        x = norm_1(tokens, training=training)
        x, keys = sized_attention(self.attention, x, sizes, None if count is None else x[:, :count], training)
        if count is not None:
            tokens, sizes = tokens[:, :count], sizes[:, :count]
        tokens = tokens + self.after_attention(x, training)
        if count is None:
            tokens, sizes = merged(tokens, sizes, keys, self._count(tokens.shape[1]), self.num_prefix_tokens)
        return tokens + self.after_mlp(kernels.after_norm(norm_2, self.mlp, tokens, training), training), sizes

    def _count(self, num_tokens: int) -> int:
        return min(self.merged_tokens, (num_tokens - self.num_prefix_tokens) // 2)

    def compute_output_shape(self, tokens_shape: Shape, sizes_shape: Shape | None = None) -> Any:
        batch, num_tokens = tokens_shape[0], cast(int, tokens_shape[1])
        left = self.num_output_tokens or num_tokens - self._count(num_tokens)
        return (batch, left, self.hidden_size), (batch, left, 1)

    def compute_output_spec(self, tokens: Tensor, num_queries: int | None = None, **optional: Any) -> Any:
        (batch, count, size), _ = self.compute_output_shape(tokens.shape)
        shapes = ((batch, num_queries or count, size), (batch, num_queries or count, 1))
        return tuple(keras.KerasTensor(shape, self.compute_dtype) for shape in shapes)


def sized_attention(
    attention: MultiHeadAttention, tokens: Tensor, sizes: Tensor, queries: Tensor = None, training: bool | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of tokens that stand for several each, and count as many times (arXiv:2210.09461, eq. 1).

    Args:
        attention: the layer.
        tokens: `(B, T, D)`.
        sizes: `(B, T, 1)`, how many each stands for.
        queries: `(B, Q, D)`; `tokens` themselves if not given.
        training: whether weights are dropped.

    Returns:
        `(B, Q, D)`, and the mean of the keys over the heads, `(B, T, D/A)`.
    """
    tokens, queries = (attention.cast_input(tensor) for tensor in (tokens, queries))
    query, key, value = attention.heads(*attention.project(tokens, queries))
    counts = ops.transpose(ops.cast(sizes, "float32"), (0, 2, 1))[:, None]  # (B, 1, 1, T)
    mixed = kernels.dot_product_attention(query, key, value, ops.log(counts), attention.dropout, training, attention)
    return attention.join(mixed, training), ops.mean(ops.transpose(key, (0, 2, 1, 3)), 1)


def merged(tokens: Tensor, sizes: Tensor, keys: Tensor, count: int, num_prefix_tokens: int) -> tuple[Tensor, Tensor]:
    """The tokens with the `count` most alike pairs as one each, their mean over all patches, and their sizes.

    Args:
        tokens: `(B, T, D)`.
        sizes: `(B, T, 1)`, patches in each.
        keys: `(B, T, E)`, which are compared by their cosine.
        count: how many, at most half of the patches.
        num_prefix_tokens: tokens before the patches, which stay as they are.

    Returns:
        `(B, T - count, D)`: prefix, then patches of the one part that stayed alone, then the other part. Then their
        sizes `(B, T - count, 1)`.

    Source: arXiv:2210.09461, section 3 and appendix D.
    """
    if not count:
        return tokens, sizes
    first = num_prefix_tokens + num_prefix_tokens % 2  # the patches at even places may leave, as in the paper's code
    second = num_prefix_tokens + 1 - num_prefix_tokens % 2
    keys = keys / ops.maximum(ops.norm(keys, axis=-1, keepdims=True), 1e-6)
    alike = ops.matmul(keys[:, first::2], ops.transpose(keys[:, second::2], (0, 2, 1)))  # (B, leaving, staying)
    # `top_k` of floats, since Keras sorts and finds maxima by operations that ONNX does not have.
    best, target = (each[..., 0] for each in ops.top_k(alike, 1))  # (B, leaving)
    order = ops.top_k(best, alike.shape[1])[1]  # the most alike first
    leaving = order[:, :count]
    target = ops.take_along_axis(target, leaving, axis=1)  # (B, count)
    sums = ops.concatenate([tokens * sizes, sizes], axis=-1)  # (B, T, D + 1)
    one, other = sums[:, first::2], sums[:, second::2]
    # Not transposed afterwards, since OpenVINO 2026.4 multiplies a transposed array by gathered rows wrongly.
    joins = ops.one_hot(target, alike.shape[-1], axis=1, dtype=sums.dtype)  # (B, staying, count)
    other = other + ops.matmul(joins, _rows(one, leaving))
    if count < alike.shape[1]:
        alone = -ops.top_k(-ops.cast(order[:, count:], "float32"), alike.shape[1] - count)[0]  # in their places' order
        other = ops.concatenate([_rows(one, ops.cast(alone, "int32")), other], axis=1)
    means = other[..., :-1] / other[..., -1:]
    together = [(tokens[:, :num_prefix_tokens], means), (sizes[:, :num_prefix_tokens], other[..., -1:])]
    return tuple(ops.concatenate(parts, axis=1) for parts in together)


def _rows(tokens: Tensor, places: Tensor) -> Tensor:
    """`(B, n, D)`: the tokens at `places` `(B, n)`."""
    return ops.take_along_axis(tokens, ops.expand_dims(places, -1), axis=1)
