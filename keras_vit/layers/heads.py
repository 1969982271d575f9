"""What multi-head attention is made of: its projections, their norms, and how they are cut into heads."""

from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor, Variable
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

    query: Any = None  # a dense layer, or `None`

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
        self.keep(locals())
        self.query_scale: float | None = (hidden_size // num_heads) ** -0.5  # `None`: the kernel has it
        key_size = key_size_of(hidden_size, num_heads, kv_heads)
        self.parts = attention_parts(hidden_size, qkv_bias, proj_bias, attention_norm, projects_query, key_size)
        for part in self.parts:
            setattr(self, part.path, dense_of(part, self.dtype_policy))
        self.dropout = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout")
        normed = {"norm": attention_norm, "query_norm": qk_norm != "none", "key_norm": qk_norm != "none"}
        for name, wanted in normed.items():
            norm = layer_norm(self.dtype_policy, name, layer_norm_epsilon, norm_kind) if wanted else None
            setattr(self, name, norm)
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

    def split(self, x: Tensor, norm: keras.Layer | None = None) -> Tensor:
        """`(B, T, D)` by heads, after their norm: of each head, or of all of them together."""
        width = self.hidden_size // self.num_heads
        x = norm(x) if norm is not None and self.qk_norm == "width" else x
        x = ops.reshape(x, (-1, ops.shape(x)[1], x.shape[-1] // width, width))  # (B, T, A, D/A)
        return norm(x) if norm is not None and self.qk_norm == "head" else x

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
