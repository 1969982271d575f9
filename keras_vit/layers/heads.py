"""What multi-head attention is made of: its projections and their norms."""

import functools
from typing import Any

from keras_vit.annotations import Shape, Variable
from keras_vit.checks import check_positive_int
from keras_vit.config.parts import attention_parts, key_size_of
from keras_vit.layers.configurable import CastingLayer, dense_of
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.norms import NORM_EPSILON, layer_norm
from keras_vit.layers.positions import RelativePositions


class Heads(CastingLayer):
    """Base of `MultiHeadAttention`, which has the equations.

    Args:
        hidden_size: D, size of a token.
        num_heads: A; must divide `hidden_size`.
        dropout_rate: on the attention weights, in [0, 1).
        relative_patches: N, number of patches with `RelativePositions`, the last of all tokens; `None` for none.
        num_prefix_tokens: tokens before those patches.
        qkv_bias: which of query, key and value have a bias, `"all"`, `"query_value"` or `"none"`.
        attention_norm: whether a LayerNorm stands before the last dense layer (arXiv:2210.06423, sub-LN).
        layer_norm_epsilon: added to the variance in every norm.
        rotary_layout: of the rotation by which queries and keys are turned, `"half"` or `"interleaved"`, or `None`.
        norm_kind: `"layer"` or `"rms"`, what norms are.
        proj_bias: whether the output has a bias.
        projects_query: whether there is a dense layer for queries; else `queries` are taken as they are.
        qk_norm: `"none"`, `"head"` or `"width"`, over which queries and keys are normed, before they are turned.
        kv_heads: heads of keys and values, each shared by a group of queries' heads (arXiv:2305.13245); `None` for A.
    """

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
        hidden_size, num_heads = _checked_heads(hidden_size, num_heads)
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.dropout_rate = dropout_rate
        self.relative_patches = relative_patches
        self.num_prefix_tokens = num_prefix_tokens
        self.qkv_bias = qkv_bias
        self.attention_norm = attention_norm
        self.layer_norm_epsilon = layer_norm_epsilon
        self.rotary_layout = rotary_layout
        self.norm_kind = norm_kind
        self.proj_bias = proj_bias
        self.projects_query = projects_query
        self.qk_norm = qk_norm
        self.kv_heads = kv_heads
        self.query_scale: float | None = (hidden_size // num_heads) ** -0.5  # `None` once folded into `scaled_weights`
        key_size = key_size_of(hidden_size, num_heads, kv_heads)
        self.parts = attention_parts(hidden_size, qkv_bias, proj_bias, attention_norm, projects_query, key_size)
        dense = {part.path: dense_of(part, self.dtype_policy) for part in self.parts}
        self.query: Any = dense.get("query")  # `None` takes queries as they are
        self.key, self.value, self.out = dense["key"], dense["value"], dense["out"]
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")
        norm = functools.partial(layer_norm, self.dtype_policy, epsilon=layer_norm_epsilon, norm=norm_kind)
        self.norm = norm("norm") if attention_norm else None
        self.query_norm = norm("query_norm") if qk_norm != "none" else None
        self.key_norm = norm("key_norm") if qk_norm != "none" else None
        self.relative = None
        if relative_patches is not None:
            sizes = (hidden_size, num_heads, relative_patches, num_prefix_tokens)
            self.relative = RelativePositions(*sizes, dtype=self.dtype_policy, name="relative")

    def build(self, tokens_shape: Shape, queries_shape: Shape | None = None) -> None:
        heads, width = self.num_heads, self.hidden_size // self.num_heads
        sublayers: list = [(getattr(self, part.path), (None, part.inputs)) for part in self.parts]
        sublayers.append((self.norm, (None, self.hidden_size)))
        for norm, count in ((self.query_norm, heads), (self.key_norm, self.kv_heads or heads)):
            sublayers.append((norm, (None, width * (1 if self.qk_norm == "head" else count))))
        sublayers.append((self.relative, (None, heads, None, width)))
        self.build_sublayers(*((layer, shape) for layer, shape in sublayers if layer is not None))

    @property
    def scaled_weights(self) -> list[Variable]:
        """The weights whose product with `query_scale` computes the same without it."""
        return (self.query if self.query_norm is None else self.query_norm).weights


def _checked_heads(hidden_size: int, num_heads: int) -> tuple[int, int]:
    hidden_size, num_heads = check_positive_int("hidden_size", hidden_size), check_positive_int("num_heads", num_heads)
    if hidden_size % num_heads:
        raise ValueError(
            "`hidden_size` must be a multiple of `num_heads`, so that every head has the same width.\n"
            f"Received: hidden_size={hidden_size}, num_heads={num_heads}."
        )
    return hidden_size, num_heads
