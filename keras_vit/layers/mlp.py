"""The MLP of a transformer block, plain and gated: each token by itself, `(B, T, D)` to `(B, T, D)`."""

from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.config.parts import mlp_parts
from keras_vit.config.records import ACTIVATIONS
from keras_vit.kernels import jax_gpu as fused
from keras_vit.kernels import tensorflow_training as gradients
from keras_vit.layers.configurable import CastingLayer, dense_of
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.norms import NORM_EPSILON, layer_norm


@keras.saving.register_keras_serializable("keras_vit")
class MlpBlock(CastingLayer):
    """Two dense layers with a GELU between them, applied to every token by itself.

    Args:
        hidden_size: D, size of a token.
        mlp_dim: M, size between the layers.
        dropout_rate: after the activation and after the second layer, in [0, 1).
        activation: `"gelu_tanh"` (the official code's tanh approximation), exact `"gelu"`, or `"quick_gelu"`.
        mlp_norm: whether a LayerNorm stands before the second layer (arXiv:2210.06423, sub-LN).
        layer_norm_epsilon: added to its variance.
        norm_kind: `"layer"` or `"rms"`, what that norm is.
        mlp_bias: whether both layers have a bias.

    Call arguments:
        tokens: `(B, T, D)`.
        norm: a `LayerNorm` to apply first, which in training saves memory.

    Returns:
        `(B, T, D)`.

    Source: arXiv:2010.11929, section 3.1.

    Example:
        >>> tokens = keras.random.normal((2, 7, 12))
        >>> tuple(keras_vit.layers.MlpBlock(12, mlp_dim=48)(tokens).shape)
        (2, 7, 12)
    """

    def __init__(
        self,
        hidden_size: int,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        activation: str = "gelu_tanh",
        mlp_norm: bool = False,
        layer_norm_epsilon: float = NORM_EPSILON,
        norm_kind: str = "layer",
        mlp_bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        hidden_size, mlp_dim = check_positive_int("hidden_size", hidden_size), check_positive_int("mlp_dim", mlp_dim)
        check_choice("activation", activation, ACTIVATIONS)
        self.hidden_size = hidden_size
        self.mlp_dim = mlp_dim
        self.dropout_rate = dropout_rate
        self.activation = activation
        self.mlp_norm = mlp_norm
        self.layer_norm_epsilon, self.norm_kind = layer_norm_epsilon, norm_kind
        self.mlp_bias = mlp_bias
        self.parts = mlp_parts(hidden_size, mlp_dim, False, mlp_norm, mlp_bias)
        small = keras.initializers.RandomNormal(stddev=1e-6)  # official code
        self.dense_1, self.dense_2 = (
            dense_of(part, self.dtype_policy, bias_initializer=small.clone()) for part in self.parts
        )
        self.norm = layer_norm(self.dtype_policy, "norm", layer_norm_epsilon, norm_kind) if mlp_norm else None
        self.dropout_1 = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout_1")
        self.dropout_2 = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout_2")

    def build(self, input_shape: Shape) -> None:
        hidden = [(layer, (None, self.mlp_dim)) for layer in (self.norm, self.dense_2) if layer is not None]
        self.build_inside((self.dense_1, (None, input_shape[-1])), *hidden)

    def call(self, tokens: Tensor, norm: keras.Layer | None = None, training: bool | None = None) -> Tensor:
        tokens = self.in_our_dtype(tokens)
        if gradients.applies(training):
            (x,) = gradients.norm_then_dense(norm, (self.dense_1,), tokens, training)  # (B*T, M)
            x = self._gelu_dense(x, training)
        else:
            x = tokens if norm is None else norm(tokens, training=training)
            x = fused.dense(self.dense_1, ops.reshape(x, (-1, x.shape[-1])), self.activation)  # (B*T, M)
            x = self._second_dense(x, training)
        x = self.dropout_2(x, training=training)  # (B*T, D)
        return ops.reshape(x, (-1, ops.shape(tokens)[1], self.hidden_size))  # (B, T, D)

    def _gelu_dense(self, x: Tensor, training: bool | None) -> Tensor:
        """Output of the second layer `(B*T, D)` from that of the first, `(B*T, M)`, in training on TensorFlow."""
        dense, between = self.dense_2, self.dropout_rate or self.norm is not None
        known = self.activation != "quick_gelu" and self.mlp_bias
        if fused.plain(dense, self.compute_dtype) and not between and known:
            return gradients.gelu_dense(x, dense.kernel, dense.bias, self.activation == "gelu_tanh")
        return self._second_dense(fused.activate(x, self.activation), training)

    def _second_dense(self, x: Tensor, training: bool | None) -> Tensor:
        """Output of the second layer `(B*T, D)` from what is behind the GELU, `(B*T, M)`."""
        x = self.dropout_1(x, training=training)
        return gradients.norm_then_dense(self.norm, (self.dense_2,), x, training)[0]

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.hidden_size)


@keras.saving.register_keras_serializable("keras_vit")
class GatedMlpBlock(CastingLayer):
    """SwiGLU: a dense layer times the SiLU of another one, and a third behind them, applied to every token by itself.

    Args:
        hidden_size: D, size of a token.
        mlp_dim: M, size of each of the two factors.
        dropout_rate: after the product and after the last layer, in [0, 1).
        mlp_norm: whether a LayerNorm stands before the last layer (arXiv:2303.11331, section 2.1).
        layer_norm_epsilon: added to its variance.
        norm_kind: `"layer"` or `"rms"`, what that norm is.
        mlp_bias: whether the three layers have a bias.

    Call arguments:
        tokens: `(B, T, D)`.
        norm: a `LayerNorm` to apply first, which in training saves memory.

    Returns:
        `(B, T, D)`.

    Source: arXiv:2002.05202, eq. 6.

    Example:
        >>> tokens = keras.random.normal((2, 7, 12))
        >>> tuple(keras_vit.layers.GatedMlpBlock(12, mlp_dim=32)(tokens).shape)
        (2, 7, 12)
    """

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
        self.layer_norm_epsilon, self.norm_kind = layer_norm_epsilon, norm_kind
        self.mlp_bias = mlp_bias
        self.parts = mlp_parts(hidden_size, mlp_dim, True, mlp_norm, mlp_bias)
        self.gate, self.up, self.down = (dense_of(part, self.dtype_policy) for part in self.parts)
        self.norm = layer_norm(self.dtype_policy, "norm", layer_norm_epsilon, norm_kind) if mlp_norm else None
        self.dropout_1 = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout_1")
        self.dropout_2 = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout_2")

    def build(self, input_shape: Shape) -> None:
        width = (None, input_shape[-1])
        hidden = [(layer, (None, self.mlp_dim)) for layer in (self.norm, self.down) if layer is not None]
        self.build_inside((self.gate, width), (self.up, width), *hidden)

    def call(self, tokens: Tensor, norm: keras.Layer | None = None, training: bool | None = None) -> Tensor:
        tokens = self.in_our_dtype(tokens)
        gate, x = gradients.norm_then_dense(norm, (self.gate, self.up), tokens, training)  # (B*T, M)
        x = self.dropout_1(ops.silu(gate) * x, training=training)
        (x,) = gradients.norm_then_dense(self.norm, (self.down,), x, training)
        x = self.dropout_2(x, training=training)  # (B*T, D)
        return ops.reshape(x, (-1, ops.shape(tokens)[1], self.hidden_size))  # (B, T, D)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.hidden_size)
