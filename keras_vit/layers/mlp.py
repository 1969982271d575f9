"""The MLP of a transformer block, plain and gated: each token by itself, `(B, T, D)` to `(B, T, D)`."""

from typing import Any

import keras
from keras import ops

from keras_vit import kernels
from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.config.parts import mlp_parts
from keras_vit.config.text import TEXT_ACTIVATIONS
from keras_vit.layers.configurable import CastingLayer, dense_of
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.norms import NORM_EPSILON, layer_norm


class TokenMlp(CastingLayer):
    """Base of both.

    Args:
        hidden_size: D, size of a token.
        mlp_dim: M, width of what stands before the last layer.
        dropout_rate: before and after the last layer, in [0, 1).
        mlp_norm: whether a LayerNorm stands before the last layer (arXiv:2210.06423, sub-LN; arXiv:2303.11331).
        layer_norm_epsilon: added to its variance.
        norm_kind: `"layer"` or `"rms"`, what that norm is.
        mlp_bias: whether all dense layers have a bias.
    """

    gated_mlp = False

    def __init__(
        self,
        hidden_size: int,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        mlp_norm: bool = False,
        layer_norm_epsilon: float = NORM_EPSILON,
        norm_kind: str = "layer",
        mlp_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        hidden_size, mlp_dim = check_positive_int("hidden_size", hidden_size), check_positive_int("mlp_dim", mlp_dim)
        self.hidden_size = hidden_size
        self.mlp_dim = mlp_dim
        self.dropout_rate = dropout_rate
        self.mlp_norm = mlp_norm
        self.layer_norm_epsilon = layer_norm_epsilon
        self.norm_kind = norm_kind
        self.mlp_bias = mlp_bias
        self.parts = mlp_parts(hidden_size, mlp_dim, self.gated_mlp, mlp_norm, mlp_bias)
        self._make_dense()
        self.norm = layer_norm(self.dtype_policy, "norm", layer_norm_epsilon, norm_kind) if mlp_norm else None
        self.dropout_1 = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout_1")
        self.dropout_2 = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout_2")

    @property
    def dense_layers(self) -> tuple[Any, ...]:
        """In the order of the data."""
        return tuple(getattr(self, part.path) for part in self.parts)

    def build(self, input_shape: Shape) -> None:
        *first, last = self.dense_layers
        hidden = [(layer, (None, self.mlp_dim)) for layer in (self.norm, last) if layer is not None]
        self.build_sublayers(*((layer, (None, input_shape[-1])) for layer in first), *hidden)

    def call(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        forward = kernels.mlp(self, training) or self.forward
        return forward(self.cast_input(tokens), training)

    def forward(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        """What the layer computes, in the plain form that every kernel is held to."""
        raise NotImplementedError

    def finish(self, x: Tensor, training: bool | None) -> Tensor:
        """The last dense layer, after the activation: `(B, T, M)` to `(B, T, D)`."""
        x = self.dropout_1(x, training=training)
        x = kernels.norm_dense(self.norm, self.dense_layers[-1], x, training)
        return self.dropout_2(x, training=training)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.hidden_size)


@keras.saving.register_keras_serializable("keras_vit")
class MlpBlock(TokenMlp):
    """Two dense layers with a GELU between them, applied to every token by itself.

    Args:
        hidden_size: D, size of a token.
        mlp_dim: M, size between the layers.
        dropout_rate: after the activation and after the second layer, in [0, 1).
        activation: `"gelu_tanh"` (the official code's tanh approximation), exact `"gelu"`, or `"quick_gelu"`.
        **kwargs: `mlp_norm`, `layer_norm_epsilon`, `norm_kind` and `mlp_bias`, as `TokenMlp` says.

    Call arguments:
        tokens: `(B, T, D)`.

    Returns:
        `(B, T, D)`.

    Source: arXiv:2010.11929, section 3.1.

    Example:
        >>> tokens = keras.random.normal((2, 7, 12))
        >>> tuple(keras_vit.layers.MlpBlock(12, mlp_dim=48)(tokens).shape)
        (2, 7, 12)
    """

    def __init__(
        self, hidden_size: int, mlp_dim: int, dropout_rate: float = 0.0, activation: str = "gelu_tanh", **kwargs: Any
    ) -> None:
        super().__init__(hidden_size, mlp_dim, dropout_rate, **kwargs)
        check_choice("activation", activation, TEXT_ACTIVATIONS)
        self.activation = activation

    def _make_dense(self) -> None:
        small = keras.initializers.RandomNormal(stddev=1e-6)  # official code
        self.dense_1, self.dense_2 = (
            dense_of(part, self.dtype_policy, bias_initializer=small.clone()) for part in self.parts
        )

    def forward(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        x = kernels.dense(self.dense_1, tokens, self.activation)  # (B, T, M)
        return self.finish(x, training)  # (B, T, D)


@keras.saving.register_keras_serializable("keras_vit")
class GatedMlpBlock(TokenMlp):
    """SwiGLU: a dense layer times the SiLU of another one, and a third after them, applied to every token by itself.

    Args:
        hidden_size: D, size of a token.
        mlp_dim: M, size of each of the two factors.
        dropout_rate: after the product and after the last layer, in [0, 1).
        **kwargs: `mlp_norm`, `layer_norm_epsilon`, `norm_kind` and `mlp_bias`, as `TokenMlp` says.

    Call arguments:
        tokens: `(B, T, D)`.

    Returns:
        `(B, T, D)`.

    Source: arXiv:2002.05202, eq. 6.

    Example:
        >>> tokens = keras.random.normal((2, 7, 12))
        >>> tuple(keras_vit.layers.GatedMlpBlock(12, mlp_dim=32)(tokens).shape)
        (2, 7, 12)
    """

    gated_mlp = True

    def _make_dense(self) -> None:
        self.gate, self.up, self.down = (dense_of(part, self.dtype_policy) for part in self.parts)

    def forward(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        x = ops.silu(kernels.dense(self.gate, tokens)) * kernels.dense(self.up, tokens)  # (B, T, M)
        return self.finish(x, training)  # (B, T, D)
