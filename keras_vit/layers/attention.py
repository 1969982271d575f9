"""Multi-head attention: appendix A of arXiv:2010.11929. Queries, keys and values have a kernel each, as in files."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit import kernels
from keras_vit.annotations import Shape, Tensor
from keras_vit.layers.heads import Heads
from keras_vit.layers.rotary import rotated


@keras.saving.register_keras_serializable("keras_vit")
class MultiHeadAttention(Heads):
    """Lets every query token read from all tokens, in several heads.

    Queries are scaled before the product, and the softmax is computed in at least float32. So half precision neither
    overflows nor loses the small weights.

    Args:
        hidden_size: D, size of a token.
        num_heads: A; must divide `hidden_size`.
        dropout_rate: on the attention weights, in [0, 1).
        **kwargs: the switches of `Heads`, as `qkv_bias`, `qk_norm`, `kv_heads` and `relative_patches`.

    Call arguments:
        tokens: `(B, T, D)`, from which keys and values come.
        queries: `(B, Q, D)`; `tokens` themselves if not given. Not with relative positions.
        patch_indices: as for `RelativePositions`, where some patches are left out.
        rotation: of a `RotaryPositions`, for the tokens and for queries, which are the first of them.
        bias: `(1 or B, A, T, T)`, added to the scaled logits; of queries the first rows.

    Returns:
        `(B, Q, D)`.

    Source: arXiv:2010.11929, appendix A, eq. 5-8.

    Example:
        >>> attention = keras_vit.layers.MultiHeadAttention(12, num_heads=3)
        >>> tokens = keras.random.normal((2, 7, 12))
        >>> tuple(attention(tokens).shape), tuple(attention.scores(tokens).shape)
        ((2, 7, 12), (2, 3, 7, 7))
    """

    def call(
        self,
        tokens: Tensor,
        queries: Tensor = None,
        training: bool | None = None,
        patch_indices: Any = None,
        rotation: Tensor = None,
        bias: Tensor = None,
    ) -> Tensor:
        query, key, value = self.project(self.cast_input(tokens), self.cast_input(queries))
        return self.attend(query, key, value, training, rotation, bias, patch_indices)

    def project(
        self, tokens: Tensor, queries: Tensor = None, dense: Callable[..., Tensor] = kernels.dense
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, `(B, T, D)` each: eq. 5, by one way or another to compute a dense layer."""
        if self.relative is not None and queries is not None:
            raise ValueError(
                "relative positions are those of tokens to each other, so there can be no other `queries`.\n"
                f"Received: queries of shape {queries.shape}, relative_patches={self.relative_patches}."
            )
        queries = tokens if queries is None else queries
        query = queries if self.query is None else dense(self.query, queries)
        return query, dense(self.key, tokens), dense(self.value, tokens)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        training: bool | None = None,
        rotation: Tensor = None,
        bias: Tensor = None,
        patch_indices: Any = None,
    ) -> Tensor:
        """What the layer makes of its projections: eq. 6 to 8."""
        query, key, value = self.heads(query, key, value, rotation)
        bias = self._logit_bias(query, bias, patch_indices)
        # eq. 6 and 7, as plain.attention
        mixed = kernels.dot_product_attention(query, key, value, bias, self.dropout, training, self)
        return self.join(mixed, training)

    def heads(
        self, query: Tensor, key: Tensor, value: Tensor, rotation: Tensor = None, scaled: bool = True
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value by heads, `(B, T, A, D/A)` each, normed, scaled or not, and turned."""
        if (rotation is None) != (self.rotary_layout is None):
            raise ValueError(
                "tokens are turned by a rotation in the layout that it has, so there must be both or neither.\n"
                f"Received: rotary_layout={self.rotary_layout!r}, rotation={rotation!r:.80}."
            )
        query, key = self.split(query, self.query_norm), self.split(key, self.key_norm)
        query = query * self.query_scale if scaled and self.query_scale is not None else query  # 1/sqrt(D_h) of eq. 6
        if rotation is not None and self.rotary_layout is not None:
            query = rotated(query, rotation[:, :, : ops.shape(query)[1]], self.rotary_layout)
            key = rotated(key, rotation, self.rotary_layout)
        value, groups = self.split(value), self.num_heads // (self.kv_heads or self.num_heads)
        key, value = (x if self.kv_heads is None else ops.repeat(x, groups, axis=2) for x in (key, value))
        return query, key, value

    def split(self, x: Tensor, norm: keras.Layer | None = None) -> Tensor:
        """`(B, T, D)` by heads, after their norm: of each head, or of all of them together."""
        width = self.hidden_size // self.num_heads
        x = norm(x) if norm is not None and self.qk_norm == "width" else x
        x = ops.reshape(x, (-1, ops.shape(x)[1], x.shape[-1] // width, width))  # (B, T, A, D/A)
        return norm(x) if norm is not None and self.qk_norm == "head" else x

    def _logit_bias(self, query: Tensor, bias: Tensor, patch_indices: Any = None) -> Tensor:
        """What is added to the logits of the queries, or `None`."""
        bias = None if bias is None else bias[:, :, : ops.shape(query)[1]]  # queries are the first tokens
        if self.relative is None:
            return bias
        query = ops.transpose(query, (0, 2, 1, 3))  # (B, A, T, D/A)
        relative = self.relative(query, patch_indices=patch_indices)
        return relative if bias is None else bias + relative

    def join(self, mixed: Tensor, training: bool | None) -> Tensor:
        """The heads `(B, Q, A, D/A)` through the last dense layer: eq. 8."""
        mixed = ops.reshape(mixed, (-1, ops.shape(mixed)[1], self.hidden_size))
        return kernels.norm_dense(self.norm, self.out, mixed, training)  # (B, Q, D)

    def scores(self, tokens: Tensor, queries: Tensor = None, rotation: Tensor = None) -> Tensor:
        """The attention weights `(B, A, Q, T)` of each head: every row sums to 1.

        Takes the arguments of a call, so in a `TransformerBlock` the tokens after its first LayerNorm.
        """
        query, key, value = self.project(tokens, queries)
        query, key, _ = self.heads(query, key, value, rotation)
        return kernels.attention_weights(query, key, self._logit_bias(query, None))

    def compute_output_shape(self, tokens_shape: Shape, queries_shape: Shape | None = None) -> Shape:
        return (*(tokens_shape if queries_shape is None else queries_shape)[:2], self.hidden_size)
