"""Multi-head attention: appendix A of arXiv:2010.11929.

Products are `keras.layers.Dense` on tokens flattened to two axes. TensorFlow fuses that form with bias and activation
on a CPU (12-20 % faster in bfloat16), and it brings Keras' LoRA and quantisation along. Queries, keys and values have a
kernel each, as in the checkpoints.
"""

import functools
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor, Variable
from keras_vit.checks import check_positive_int
from keras_vit.config.parts import attention_parts, key_size_of
from keras_vit.kernels import chunked_attention as blockwise
from keras_vit.kernels import jax_gpu as fused
from keras_vit.kernels import tensorflow_training as gradients
from keras_vit.kernels.capture import watcher
from keras_vit.layers.configurable import CastingLayer, dense_of
from keras_vit.layers.dropout import Dropout, draws
from keras_vit.layers.norms import NORM_EPSILON, layer_norm
from keras_vit.layers.relative import RelativePositions
from keras_vit.layers.rotary import rotated


@keras.saving.register_keras_serializable("keras_vit")
class MultiHeadAttention(CastingLayer):
    """Lets every query token read from all tokens, in several heads.

    Queries are scaled before the product and the softmax runs in at least float32,
    so that half precision neither overflows nor loses the small weights.

    Args:
        hidden_size: D, size of a token.
        num_heads: A; must divide `hidden_size`.
        dropout_rate: on the attention weights, in [0, 1).
        relative_patches: N, number of patches with relative positions, the last ones of all tokens; or `None` for
            attention that sees no places. Only without `queries`.
        num_prefix_tokens: tokens before those patches.
        qkv_bias: which of query, key and value have a bias, `"all"`, `"query_value"` or `"none"`.
        attention_norm: whether a LayerNorm stands before the last dense layer (arXiv:2210.06423, sub-LN).
        layer_norm_epsilon: added to its variance.
        rotary_layout: of the rotation by which queries and keys are turned, `"half"` or `"interleaved"`, or `None`.
        norm_kind: `"layer"` or `"rms"`, what that norm is.
        proj_bias: whether the output has a bias.
        qk_norm: `"none"`, `"head"` or `"width"`, over which queries and keys are normed, before they are turned.
        kv_heads: heads of keys and values, each shared by a group of queries' heads (arXiv:2305.13245, GQA); `None` for
            as many as queries have.
        projects_query: whether there is a dense layer for queries; else `queries` are taken as they are.

    Call arguments:
        tokens: `(B, T, D)`, from which keys and values come.
        queries: `(B, Q, D)`; `tokens` themselves if not given.
        norm: a `LayerNorm` to apply to tokens (without queries) first, which in training saves memory.
        places: `(B, n)`, of the patches among the tokens, for relative positions where some patches are left out.
        num_patches: N of these images, beside `places`; by default `relative_patches`.
        rotation: of a `RotaryPositions`, for the tokens and for queries, which are the first of them.
        bias: `(1 or B, A, T, T)`, added to the scaled logits; of queries the first rows.
        length: how many of the tokens count, where `wants_even_lengths` had a caller add one. Without `queries`.

    Returns:
        `(B, Q, D)`.

    Source: arXiv:2010.11929, appendix A, eq. 5-8.

    Example:
        >>> attention = keras_vit.layers.MultiHeadAttention(12, num_heads=3)
        >>> tokens = keras.random.normal((2, 7, 12))
        >>> tuple(attention(tokens).shape), tuple(attention.scores(tokens).shape)
        ((2, 7, 12), (2, 3, 7, 7))
    """

    query: Any  # a dense layer, or `None`
    key: keras.layers.Dense
    value: keras.layers.Dense
    out: keras.layers.Dense

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        dropout_rate: float = 0.0,
        relative_patches: int | None = None,
        num_prefix_tokens: int = 0,
        qkv_bias: str = "all",
        attention_norm: bool = False,
        layer_norm_epsilon: float = NORM_EPSILON,
        rotary_layout: str | None = None,
        norm_kind: str = "layer",
        proj_bias: bool = True,
        projects_query: bool = True,
        qk_norm: str = "none",
        kv_heads: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size, self.num_heads = _checked_heads(hidden_size, num_heads)
        self.dropout_rate = dropout_rate
        self.relative_patches, self.num_prefix_tokens = relative_patches, num_prefix_tokens
        self.qkv_bias, self.proj_bias, self.projects_query = qkv_bias, proj_bias, projects_query
        self.attention_norm = attention_norm
        self.layer_norm_epsilon, self.norm_kind = layer_norm_epsilon, norm_kind
        self.rotary_layout = rotary_layout
        self.qk_norm, self.kv_heads = qk_norm, kv_heads
        self.query_scale: float | None = (self.hidden_size // self.num_heads) ** -0.5  # `None`: the kernel has it
        key_size = key_size_of(self.hidden_size, self.num_heads, kv_heads)
        self.parts = attention_parts(self.hidden_size, qkv_bias, proj_bias, attention_norm, projects_query, key_size)
        self._make_layers(self.dtype_policy)

    def _make_layers(self, dtype: Any) -> None:
        self.query = None
        for part in self.parts:
            setattr(self, part.path, dense_of(part, dtype))
        self.dropout = Dropout(self.dropout_rate, dtype=dtype, name="dropout")
        self.norm = layer_norm(dtype, "norm", self.layer_norm_epsilon, self.norm_kind) if self.attention_norm else None
        self.query_norm, self.key_norm = (
            None if self.qk_norm == "none" else layer_norm(dtype, name, self.layer_norm_epsilon, self.norm_kind)
            for name in ("query_norm", "key_norm")
        )
        self.relative = None
        if self.relative_patches is not None:
            sizes = (self.hidden_size, self.num_heads, self.relative_patches, self.num_prefix_tokens)
            self.relative = RelativePositions(*sizes, dtype=dtype, name="relative")

    def build(self, tokens_shape: Shape, queries_shape: Shape | None = None) -> None:
        heads = self.num_heads
        inside: list = [(getattr(self, part.path), (None, part.inputs)) for part in self.parts]
        if self.norm is not None:
            inside.append((self.norm, (None, self.hidden_size)))
        for norm, count in ((self.query_norm, heads), (self.key_norm, self.kv_heads or heads)):
            if norm is not None:
                inside.append((norm, (None, self.hidden_size // heads * (1 if self.qk_norm == "head" else count))))
        if self.relative is not None:
            inside.append((self.relative, (None, heads, None, self.hidden_size // heads)))
        self.build_inside(*inside)

    def call(
        self,
        tokens: Tensor,
        queries: Tensor = None,
        norm: keras.Layer | None = None,
        training: bool | None = None,
        places: Tensor = None,
        num_patches: Any = None,
        rotation: Tensor = None,
        bias: Tensor = None,
        length: int | None = None,
    ) -> Tensor:
        tokens, queries = (self.in_our_dtype(tensor) for tensor in (tokens, queries))
        if self.wants_even_lengths(training, bias):
            return self._fused_of_even_lengths(tokens, queries, norm, training, rotation, length)
        query, key, value = self._project(tokens, queries, norm, training, rotation)
        added = None if bias is None else bias[:, :, : ops.shape(query)[2]]  # queries are the first tokens
        relative = self._relative(query, queries, places=places, num_patches=num_patches)
        mixed = self._mixed(query, key, value, added, relative, training)
        return self._join(fused.named(mixed, "attention"), tokens if queries is None else queries, training)

    def wants_even_lengths(self, training: bool | None, bias: Tensor = None) -> bool:
        """Whether a call adds a token where their number is odd. A caller may have done that: see `length`."""
        unseen = watcher() is None and self.relative is None and bias is None and not (training and self.dropout_rate)
        return unseen and fused.applies() and fused.wants_even_lengths(self.compute_dtype, training)

    def _fused_of_even_lengths(
        self,
        tokens: Tensor,
        queries: Tensor,
        norm: keras.Layer | None,
        training: bool | None,
        rotation: Tensor,
        length: int | None,
    ) -> Tensor:
        """A call by fused attention of tokens whose number is even, or made so here and again odd behind it."""
        given = (tokens if queries is None else queries).shape[1]
        lengths = (given, tokens.shape[1]) if length is None else (length, length)
        tokens, queries, rotation = fused.evened(tokens), fused.evened(queries), fused.evened(rotation, axis=2)
        projected = self._project(tokens, queries, norm, training, rotation, scaled=False)
        mixed = fused.attention(*projected, lengths, 1.0 if self.query_scale is None else self.query_scale)
        return self._join(mixed, tokens if queries is None else queries, training)[:, :given]

    def with_sizes(
        self, tokens: Tensor, sizes: Tensor, queries: Tensor = None, training: bool | None = None
    ) -> tuple[Tensor, Tensor]:
        """A call for tokens that stand for several each, and count as many times (arXiv:2210.09461, eq. 1).

        Args:
            tokens: `(B, T, D)`.
            sizes: `(B, T, 1)`, how many each stands for.
            queries: `(B, Q, D)`; `tokens` themselves if not given.
            training: whether weights are dropped.

        Returns:
            `(B, Q, D)`, and the mean of the keys over the heads, `(B, T, D/A)`.
        """
        tokens, queries = (self.in_our_dtype(tensor) for tensor in (tokens, queries))
        query, key, value = self._project(tokens, queries, training=training)
        counts = ops.transpose(ops.cast(sizes, "float32"), (0, 2, 1))[:, None]  # (B, 1, 1, T)
        relative = self._relative(query, queries)
        mixed = self._mixed(query, key, value, ops.log(counts), relative, training)
        mixed = self._join(mixed, tokens if queries is None else queries, training)
        return mixed, ops.mean(ops.transpose(key, (0, 1, 3, 2)), 1)

    def _join(self, mixed: Tensor, queries: Tensor, training: bool | None) -> Tensor:
        """The heads `(B, A, Q, D/A)` through the last dense layer."""
        mixed = ops.transpose(mixed, (0, 2, 1, 3))  # (B, Q, A, D/A)
        mixed = ops.reshape(mixed, (-1, self.hidden_size))
        (mixed,) = gradients.norm_then_dense(self.norm, (self.out,), mixed, training)  # (B*Q, D)
        return ops.reshape(mixed, (-1, ops.shape(queries)[1], self.hidden_size))  # (B, Q, D)

    def scores(self, tokens: Tensor, queries: Tensor = None, rotation: Tensor = None) -> Tensor:
        """The attention weights `(B, A, Q, T)` of each head: every row sums to 1.

        Takes the arguments of a call, so in a `TransformerBlock` the tokens behind its first LayerNorm.
        """
        query, key, _ = self._project(tokens, queries, rotation=rotation)
        return self._weights(query, key, None, self._relative(query, queries))

    def _mixed(
        self, query: Tensor, key: Tensor, value: Tensor, added: Tensor, relative: Tensor, training: bool | None
    ) -> Tensor:
        """`(B, A, Q, D/A)` of what `_project` gives, in blocks where there are many weights that nobody looks at.

        `added`, float32, and `relative` go to the logits.
        """
        many = watcher() is None and blockwise.applies(ops.shape(query)[2], ops.shape(value)[2])

        def in_blocks() -> Tensor:
            both = relative if added is None else added if relative is None else added + relative
            draw = draws(self.dropout.seed_generator) if training and self.dropout_rate else None
            rate = 0.0 if draw is None else self.dropout_rate
            return blockwise.attention(query, key, value, both, rate, draw, training)

        def at_once() -> Tensor:
            watch, dropped = watcher(), training and self.dropout_rate
            unseen = watch is None and relative is None and added is None and not dropped
            if unseen and gradients.applies(training):
                return gradients.attention(query, key, value)
            if unseen and fused.applies():
                return fused.attention(query, key, value)
            weights = self._weights(query, key, added, relative)
            weights = weights if watch is None else watch(self, weights)
            return ops.matmul(self.dropout(weights, training=training), value)

        if isinstance(many, bool):
            return in_blocks() if many else at_once()
        if training and self.dropout_rate:  # a seed moves on, which no branch may do where `rematerialize` maps seeds
            return in_blocks()
        return ops.cond(many, in_blocks, at_once)

    def _weights(self, query: Tensor, key: Tensor, added: Tensor, relative: Tensor) -> Tensor:
        """`(B, A, Q, T)`."""
        logits = ops.matmul(query, key)  # (B, A, Q, T)
        return fused.softmax(logits if relative is None else logits + relative, added)

    def _relative(self, query: Tensor, queries: Tensor, **places: Any) -> Tensor:
        """What relative positions add to the logits, or `None`; `queries` are those of the call."""
        if self.relative is not None and queries is not None:
            raise ValueError(
                "relative positions are those of tokens to each other, so there can be no `queries` beside them.\n"
                f"Received: queries of shape {queries.shape}, relative_patches={self.relative_patches}."
            )
        return None if self.relative is None else self.relative(query, **places)

    def _project(
        self,
        tokens: Tensor,
        queries: Tensor = None,
        norm: keras.Layer | None = None,
        training: bool | None = None,
        rotation: Tensor = None,
        scaled: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Query `(B, A, Q, D/A)`, scaled or not, key `(B, A, D/A, T)` and value `(B, A, T, D/A)`."""
        project = functools.partial(gradients.norm_then_dense, training=training, kept_with_bias=True)  # (B*T, D)
        if queries is None:
            queries = tokens
            flat = project(norm, (self.query, self.key, self.value), tokens)
        else:
            flat = project(None, (self.query,), queries) if self.projects_query else [queries]
            flat += project(None, (self.key, self.value), tokens)
        query, key, value = (self._heads(x, y) for x, y in zip(flat, (queries, tokens, tokens), strict=True))
        query, key = self._normed(query, self.query_norm), self._normed(key, self.key_norm)
        query = query * self.query_scale if scaled and self.query_scale is not None else query
        if (rotation is None) != (self.rotary_layout is None):
            raise ValueError(
                "tokens are turned by a rotation in the layout that it has, so there must be both or neither.\n"
                f"Received: rotary_layout={self.rotary_layout!r}, rotation={rotation!r:.80}."
            )
        if self.rotary_layout is not None:
            query = rotated(query, rotation[:, :, : ops.shape(query)[1]], self.rotary_layout)
            key = rotated(key, rotation, self.rotary_layout)
        if self.kv_heads is not None:
            key, value = (ops.repeat(x, self.num_heads // self.kv_heads, axis=2) for x in (key, value))
        return ops.transpose(query, (0, 2, 1, 3)), ops.transpose(key, (0, 2, 3, 1)), ops.transpose(value, (0, 2, 1, 3))

    def _normed(self, x: Tensor, norm: keras.layers.Layer | None) -> Tensor:
        """Queries or keys `(B, T, A, D/A)` behind their norm."""
        if norm is None or self.qk_norm == "head":
            return x if norm is None else norm(x)
        return ops.reshape(norm(ops.reshape(x, (-1, x.shape[2] * x.shape[3]))), ops.shape(x))

    @property
    def scaled_weights(self) -> list[Variable]:
        """The weights whose product with `query_scale` computes the same without it."""
        return (self.query if self.query_norm is None else self.query_norm).weights

    def _heads(self, flat: Tensor, tokens: Tensor) -> Tensor:
        size = self.hidden_size // self.num_heads
        shape = (-1, ops.shape(tokens)[1], flat.shape[-1] // size, size)
        return ops.reshape(flat, shape)  # (B, T, A, D/A)

    def compute_output_shape(self, tokens_shape: Shape, queries_shape: Shape | None = None) -> Shape:
        return (*(tokens_shape if queries_shape is None else queries_shape)[:2], self.hidden_size)


def _checked_heads(hidden_size: int, num_heads: int) -> tuple[int, int]:
    hidden_size = check_positive_int("hidden_size", hidden_size)
    num_heads = check_positive_int("num_heads", num_heads)
    if hidden_size % num_heads:
        raise ValueError(
            "`hidden_size` must be a multiple of `num_heads`, so that every head has the same width.\n"
            f"Received: hidden_size={hidden_size}, num_heads={num_heads}."
        )
    return hidden_size, num_heads
