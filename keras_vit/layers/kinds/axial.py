"""Axial attention: along the rows of the patch grid, then along its columns, which costs less than all with all.

Section D.6 of arXiv:2010.11929. It says nothing of a class token, which would be in no row, so there is none.
"""

import functools
from typing import Any

import keras
from keras import ops

from keras_vit import kernels
from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice
from keras_vit.config.parts import inside
from keras_vit.layers.configurable import CompositeLayer, recomputed
from keras_vit.layers.encoder import TransformerBlock
from keras_vit.layers.norms import NORM_EPSILON

AXES = ("row", "column")


@keras.saving.register_keras_serializable("keras_vit")
class AxialHalfBlock(TransformerBlock):
    """A transformer block whose tokens attend to those of their own row, or of their own column.

    Args:
        axis: `"row"` or `"column"`.
        patch_size: P, side of a patch in pixels of the map that the patches were cut from.
        **kwargs: as `TransformerBlock`, without relative positions.

    Call arguments:
        tokens: `(B, N, D)`, patches in reading order.
        feature_map: `(B, H, W, ...)`, what the patches were cut from; only H and W are read.

    Returns:
        `(B, N, D)`.

    Source: arXiv:2010.11929, section D.6.
    """

    def __init__(self, axis: str, patch_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("axis", axis, AXES)
        if self.num_output_tokens is not None or self.relative_patches is not None:
            raise ValueError(
                "axial attention computes every token, and has no relative positions.\n"
                f"Received: num_output_tokens={self.num_output_tokens}, relative_patches={self.relative_patches}."
            )
        self.axis = axis
        self.patch_size = patch_size

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        return tuple(name for name in super().arguments() if name not in _NOT_AXIAL)

    def call(  # type: ignore[override]  # takes no rotation
        self, tokens: Tensor, training: bool | None = None, feature_map: Tensor = None
    ) -> Tensor:
        height, width = (side // self.patch_size for side in ops.shape(feature_map)[1:3])
        compute = functools.partial(self.forward, training=training, height=height, width=width)
        return recomputed(self, compute, keras.remat if training and self.rematerialize else None, tokens)

    def forward(  # type: ignore[override]
        self, tokens: Tensor, training: bool | None = None, *, height: Any, width: Any
    ) -> Tensor:
        """Equations 2 and 3, with attention along lines."""
        (norm_1, norm_2), size = self.norms_before, self.hidden_size
        if self.axis == "row":
            rows = ops.reshape(tokens, (-1, width, size))  # (B*h, w, D)
            x = kernels.after_norm(norm_1, self.attention, rows, training)
            x = ops.reshape(x, (-1, height * width, size))
        else:
            columns = ops.reshape(_turned(tokens, height, width, size), (-1, height, size))  # (B*w, h, D)
            x = _turned(kernels.after_norm(norm_1, self.attention, columns, training), width, height, size)
        x = tokens + self.after_attention(x, training)  # (B, N, D)
        return x + self.after_mlp(kernels.after_norm(norm_2, self.mlp, x, training), training)


_NOT_AXIAL = ("relative_patches", "num_prefix_tokens", "rotary_layout", "use_attention_bias")


def _turned(tokens: Tensor, height: int, width: int, size: int) -> Tensor:
    """Tokens of a grid in the reading order of the transposed grid: `(B, h*w, D)` to `(B, w*h, D)`."""
    grid = ops.transpose(ops.reshape(tokens, (-1, height, width, size)), (0, 2, 1, 3))
    return ops.reshape(grid, (-1, height * width, size))


@keras.saving.register_keras_serializable("keras_vit")
class AxialBlock(CompositeLayer):
    """Two transformer blocks, of which the first attends along rows and the second along columns.

    Every patch so reaches every other. There are two MLPs, and twice the weights of a `TransformerBlock`.

    Args:
        hidden_size: D, size of a token.
        num_heads: A; must divide `hidden_size`.
        mlp_dim: M, size inside each MLP.
        patch_size: P, side of a patch in pixels of the map that the patches were cut from.
        dropout_rate: as for `TransformerBlock`, and what follows.
        attention_dropout_rate: of the attention weights, in [0, 1).
        stochastic_depth_rate: of each of the four branches, in [0, 1).
        activation: `"gelu_tanh"` or `"gelu"`.
        layer_norm_epsilon: added to the variance in every LayerNorm.
        rematerialize: whether training keeps the inputs of both halves alone.

    Call arguments:
        tokens: `(B, N, D)`, patches in reading order.
        feature_map: `(B, H, W, ...)`, what the patches were cut from; only H and W are read.

    Returns:
        `(B, N, D)`.

    Source: arXiv:2010.11929, section D.6.

    Example:
        >>> block = keras_vit.layers.AxialBlock(12, 3, mlp_dim=48, patch_size=16)
        >>> tuple(block(keras.random.normal((2, 6, 12)), images).shape)
        (2, 6, 12)
    """

    optional_inputs: tuple[str, ...] = ("feature_map",)
    extra_outputs: tuple[str, ...] = ()

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        mlp_dim: int,
        patch_size: int,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        stochastic_depth_rate: float = 0.0,
        activation: str = "gelu_tanh",
        layer_norm_epsilon: float = NORM_EPSILON,
        rematerialize: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.mlp_dim = mlp_dim
        self.patch_size = patch_size
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.stochastic_depth_rate = stochastic_depth_rate
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.rematerialize = rematerialize
        arguments = {name: getattr(self, name) for name in self.arguments()}
        self.row, self.column = (AxialHalfBlock(axis, dtype=self.dtype_policy, name=axis, **arguments) for axis in AXES)
        self.parts = tuple(part for half in (self.row, self.column) for part in inside(half.name, half.parts))

    def build(self, tokens_shape: Shape, feature_map_shape: Shape | None = None) -> None:
        self.build_sublayers((self.row, tokens_shape), (self.column, tokens_shape))

    def call(self, tokens: Tensor, feature_map: Tensor, training: bool | None = None) -> Tensor:
        tokens = self.row(tokens, feature_map=feature_map, training=training)
        return self.column(tokens, feature_map=feature_map, training=training)

    def compute_output_shape(self, tokens_shape: Shape, feature_map_shape: Shape | None = None) -> Shape:
        return tuple(tokens_shape)
