"""The transformer block: equations 2 and 3 of arXiv:2010.11929, LayerNorm before each half.

Dropout stands where appendix B.1 has it: after the attention's output, after the MLP's activation
and after its second layer. LayerNorm's epsilon is 1e-6, the official code's, not Keras' 1e-3.
"""

from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice, check_number, check_positive_int
from keras_vit.config.parts import LAYER_SCALES, block_parts, mlp_parts
from keras_vit.config.records import ACTIVATIONS
from keras_vit.layers import fused, gradients
from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.attention_hooks import watcher
from keras_vit.layers.composite import CastingLayer, CompositeLayer, ConfiguredLayer, dense_of, rematerialized
from keras_vit.layers.dropout import Dropout

NORM_EPSILON = 1e-6


def layer_norm(dtype: Any, name: str, epsilon: float = NORM_EPSILON) -> keras.layers.LayerNormalization:
    """The LayerNorm of every place in the model."""
    return LayerNorm(epsilon=epsilon, dtype=dtype, name=name)


@keras.saving.register_keras_serializable("keras_vit")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras' LayerNormalization, which keeps less for the backward pass of TensorFlow.

    It takes the arguments of Keras' layer. Only over the last axis, with scale and offset, does it keep less.

    Call arguments:
        inputs: `(..., D)`.

    Returns:
        As `inputs`, in the precision of the layer.
    """

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        if not gradients.applies(training) or not gradients.usual(self, len(inputs.shape)):
            return super().call(inputs)
        wide = ops.cast(inputs, keras.backend.result_type(inputs.dtype, self.compute_dtype))
        return ops.cast(gradients.layer_norm(wide, self.gamma, self.beta, self.epsilon), self.compute_dtype)


@keras.saving.register_keras_serializable("keras_vit")
class LayerScale(ConfiguredLayer):
    """A learned factor for each channel, which lets a deep network begin near the identity.

    Args:
        init: first value of the factors.

    Call arguments:
        inputs: `(..., D)`.

    Returns:
        The shape of `inputs`.

    Source: arXiv:2103.17239, section 2.
    """

    def __init__(self, init: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_number("init", init)
        self.init = init

    def build(self, input_shape: Shape) -> None:
        first = keras.initializers.Constant(self.init)
        self.gamma = self.add_weight(name="gamma", shape=(input_shape[-1],), initializer=first)

    def call(self, inputs: Tensor) -> Tensor:
        return inputs * ops.cast(self.gamma, inputs.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


@keras.saving.register_keras_serializable("keras_vit")
class MlpBlock(CastingLayer):
    """Two dense layers with a GELU between them, applied to every token by itself.

    Args:
        hidden_size: D, size of a token.
        mlp_dim: M, size between the layers.
        dropout_rate: after the activation and after the second layer, in [0, 1).
        activation: `"gelu_tanh"` (the official code's tanh approximation), exact `"gelu"`, or `"quick_gelu"`.

    Call arguments:
        tokens: `(B, T, D)`.
        norm: a `LayerNorm` to apply first, which in training saves memory.

    Returns:
        `(B, T, D)`.

    Source: arXiv:2010.11929, section 3.1.
    """

    def __init__(
        self, hidden_size: int, mlp_dim: int, dropout_rate: float = 0.0, activation: str = "gelu_tanh", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        hidden_size, mlp_dim = check_positive_int("hidden_size", hidden_size), check_positive_int("mlp_dim", mlp_dim)
        check_choice("activation", activation, ACTIVATIONS)
        self.hidden_size = hidden_size
        self.mlp_dim = mlp_dim
        self.dropout_rate = dropout_rate
        self.activation = activation
        self.parts = mlp_parts(hidden_size, mlp_dim)
        small = keras.initializers.RandomNormal(stddev=1e-6)  # official code
        self.dense_1, self.dense_2 = (
            dense_of(part, self.dtype_policy, bias_initializer=small.clone()) for part in self.parts
        )
        self.dropout_1 = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout_1")
        self.dropout_2 = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout_2")

    def build(self, input_shape: Shape) -> None:
        self.build_inside((self.dense_1, (None, input_shape[-1])), (self.dense_2, (None, self.mlp_dim)))

    def call(self, tokens: Tensor, norm: keras.Layer | None = None, training: bool | None = None) -> Tensor:
        tokens = self.in_our_dtype(tokens)
        if gradients.applies(training):
            (x,) = gradients.norm_then_dense(norm, (self.dense_1,), tokens, training)  # (B*T, M)
            x = self._gelu_dense(x, training)
        else:
            x = tokens if norm is None else norm(tokens, training=training)
            x = fused.dense(self.dense_1, ops.reshape(x, (-1, x.shape[-1])), self.activation)  # (B*T, M)
            x = fused.dense(self.dense_2, self.dropout_1(x, training=training))
        x = self.dropout_2(x, training=training)  # (B*T, D)
        return ops.reshape(x, (-1, ops.shape(tokens)[1], self.hidden_size))  # (B, T, D)

    def _gelu_dense(self, x: Tensor, training: bool | None) -> Tensor:
        """Output of the second layer `(B*T, D)` from that of the first, `(B*T, M)`, in training on TensorFlow."""
        dense = self.dense_2
        if fused.plain(dense, self.compute_dtype) and not self.dropout_rate and self.activation != "quick_gelu":
            return gradients.gelu_dense(x, dense.kernel, dense.bias, self.activation == "gelu_tanh")
        return dense(self.dropout_1(fused.activate(x, self.activation), training=training))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.hidden_size)


@keras.saving.register_keras_serializable("keras_vit")
class GatedMlpBlock(CastingLayer):
    """SwiGLU: a dense layer times the SiLU of another one, and a third behind them, applied to every token by itself.

    Args:
        hidden_size: D, size of a token.
        mlp_dim: M, size of each of the two factors.
        dropout_rate: after the product and after the last layer, in [0, 1).

    Call arguments:
        tokens: `(B, T, D)`.
        norm: a `LayerNorm` to apply first, which in training saves memory.

    Returns:
        `(B, T, D)`.

    Source: arXiv:2002.05202, eq. 6.
    """

    def __init__(self, hidden_size: int, mlp_dim: int, dropout_rate: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        hidden_size, mlp_dim = check_positive_int("hidden_size", hidden_size), check_positive_int("mlp_dim", mlp_dim)
        self.hidden_size = hidden_size
        self.mlp_dim = mlp_dim
        self.dropout_rate = dropout_rate
        self.parts = mlp_parts(hidden_size, mlp_dim, gated_mlp=True)
        self.gate, self.up, self.down = (dense_of(part, self.dtype_policy) for part in self.parts)
        self.dropout_1 = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout_1")
        self.dropout_2 = Dropout(dropout_rate, dtype=self.dtype_policy, name="dropout_2")

    def build(self, input_shape: Shape) -> None:
        width = (None, input_shape[-1])
        self.build_inside((self.gate, width), (self.up, width), (self.down, (None, self.mlp_dim)))

    def call(self, tokens: Tensor, norm: keras.Layer | None = None, training: bool | None = None) -> Tensor:
        tokens = self.in_our_dtype(tokens)
        gate, x = gradients.norm_then_dense(norm, (self.gate, self.up), tokens, training)  # (B*T, M)
        x = fused.dense(self.down, self.dropout_1(ops.silu(gate) * x, training=training))
        x = self.dropout_2(x, training=training)  # (B*T, D)
        return ops.reshape(x, (-1, ops.shape(tokens)[1], self.hidden_size))  # (B, T, D)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.hidden_size)


@keras.saving.register_keras_serializable("keras_vit")
class TransformerBlock(CompositeLayer):
    """One encoder block: attention and MLP, each behind a LayerNorm and around a skip connection.

    Args:
        hidden_size: D, size of a token.
        num_heads: A; must divide `hidden_size`.
        mlp_dim: M, size inside the MLP.
        dropout_rate: of the dense layers' outputs, in [0, 1).
        attention_dropout_rate: of the attention weights, in [0, 1).
        stochastic_depth_rate: probability of leaving out each of the two branches, drawn for every
            example by itself, in [0, 1).
        activation: `"gelu_tanh"`, `"gelu"` or `"quick_gelu"`.
        num_output_tokens: k, to compute the first k tokens only (keys and values still come from all of
            them: the same numbers for less work), or `None` for all.
        layer_norm_epsilon: added to the variance in both LayerNorms.
        rematerialize: whether training keeps the block's input alone and computes what is inside once more on the
            way back. The numbers are the same, dropout's masks too.
        relative_patches: N, number of patches, for relative positions in the attention (`RelativePositions`); not with
            `num_output_tokens`.
        num_prefix_tokens: tokens before those patches.
        qkv_bias: which of query, key and value have a bias, `"all"` or `"none"`.
        gated_mlp: whether the MLP is a `GatedMlpBlock`, which has no use for `activation`.
        layer_scale: which branches end in a `LayerScale`: `"none"`, `"attention"` or `"both"`.
        layer_scale_init: first value of its factors.

    Call arguments:
        tokens: `(B, T, D)`.
        places: `(B, n)`, of the patches among the tokens, for relative positions where some patches are left out. Or
            these and the tokens before that, `(B, num_prefix_tokens + N, D)`, of which only N is read.

    Returns:
        `(B, T, D)`, or `(B, k, D)`.

    Attributes:
        asks: names of what a call takes beside the tokens: `"cut_map"`, what the patches were cut from, for their grid;
            `"places"` of the patches behind patch dropout; and what earlier blocks tell.
        tells: what a call gives behind the tokens, for the blocks that follow.

    Source: arXiv:2010.11929, eq. 2 and 3; stochastic depth: arXiv:1603.09382, as arXiv:2106.10270 uses it.
    """

    asks: tuple[str, ...] = ()
    tells: tuple[str, ...] = ()

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        stochastic_depth_rate: float = 0.0,
        activation: str = "gelu_tanh",
        num_output_tokens: int | None = None,
        layer_norm_epsilon: float = NORM_EPSILON,
        rematerialize: bool = False,
        relative_patches: int | None = None,
        num_prefix_tokens: int = 0,
        qkv_bias: str = "all",
        gated_mlp: bool = False,
        layer_scale: str = "none",
        layer_scale_init: float = 1e-5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("layer_scale", layer_scale, LAYER_SCALES)
        num_output_tokens = _checked_tokens(num_output_tokens, relative_patches)
        self.hidden_size = check_positive_int("hidden_size", hidden_size)
        self.num_heads = check_positive_int("num_heads", num_heads)
        self.mlp_dim = check_positive_int("mlp_dim", mlp_dim)
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.stochastic_depth_rate = stochastic_depth_rate
        self.activation = activation
        self.num_output_tokens = num_output_tokens
        self.layer_norm_epsilon = layer_norm_epsilon
        self.rematerialize = rematerialize
        self.relative_patches = relative_patches
        self.num_prefix_tokens = num_prefix_tokens
        self.qkv_bias = qkv_bias
        self.gated_mlp = gated_mlp
        self.layer_scale = layer_scale
        self.layer_scale_init = layer_scale_init
        self.parts = block_parts(self.hidden_size, self.mlp_dim, layer_scale, gated_mlp, qkv_bias)
        if relative_patches is not None:
            self.asks = ("places",)
        self._make_layers(self.dtype_policy)

    def _make_layers(self, dtype: Any) -> None:
        """The layers inside, in the order of the data."""
        self.norm_1 = layer_norm(dtype, "norm_1", self.layer_norm_epsilon)
        sizes = (self.hidden_size, self.num_heads, self.attention_dropout_rate)
        others = (self.relative_patches, self.num_prefix_tokens, self.qkv_bias)
        self.attention = MultiHeadAttention(*sizes, *others, dtype=dtype, name="attention")
        self.dropout = Dropout(self.dropout_rate, dtype=dtype, name="dropout")
        self.norm_2 = layer_norm(dtype, "norm_2", self.layer_norm_epsilon)
        sizes = (self.hidden_size, self.mlp_dim, self.dropout_rate)
        self.mlp = (
            GatedMlpBlock(*sizes, dtype=dtype, name="mlp")
            if self.gated_mlp
            else MlpBlock(*sizes, self.activation, dtype=dtype, name="mlp")
        )
        # Dropout with one draw for each example and branch is stochastic depth.
        self.stochastic_depth_1, self.stochastic_depth_2 = (
            Dropout(self.stochastic_depth_rate, noise_shape=(None, 1, 1), dtype=dtype, name=name)
            for name in ("stochastic_depth_1", "stochastic_depth_2")
        )
        self.layer_scale_1 = self.layer_scale_2 = None
        for part in self.parts:
            if part.scale is not None:
                setattr(self, part.scale, LayerScale(self.layer_scale_init, dtype=dtype, name=part.scale))

    def build(self, tokens_shape: Shape, places_shape: Any = None) -> None:
        inside = (self.norm_1, self.attention, self.norm_2, self.mlp, self.layer_scale_1, self.layer_scale_2)
        self.build_inside(*((layer, tokens_shape) for layer in inside if layer is not None))

    def call(self, tokens: Tensor, training: bool | None = None, places: Any = None) -> Tensor:
        known = self._known_places(places) if training else {}  # else every patch is there

        def compute(tokens: Tensor, training: bool | None = True) -> Tensor:
            return self._compute(tokens, training, **known)

        return rematerialized(self, compute)(tokens) if training and self.rematerialize else compute(tokens, training)

    def _known_places(self, places: Any) -> dict[str, Any]:
        """What attention is told of the patches that are there."""
        if not isinstance(places, (tuple, list)):
            return {"places": places}
        places, every_token = places
        return {"places": places, "num_patches": ops.shape(every_token)[1] - self.num_prefix_tokens}

    def _compute(self, tokens: Tensor, training: bool | None, **known: Any) -> Tensor:
        if self.num_output_tokens is None or watcher() is not None:
            return self.every_token(tokens, training, **known)
        x = self.norm_1(tokens, training=training)
        queries, tokens = x[:, : self.num_output_tokens], tokens[:, : self.num_output_tokens]  # (B, k, D)
        return self.add_branches(tokens, self.attention(x, queries, training=training), training)

    def every_token(self, tokens: Tensor, training: bool | None = None, **known: Any) -> Tensor:
        """What a call gives for all tokens, `(B, T, D)`, whatever `num_output_tokens` says."""
        x = self.attention(tokens, norm=self.norm_1, training=training, **known)
        return self.add_branches(tokens, x, training)

    def add_branches(self, tokens: Tensor, x: Tensor, training: bool | None) -> Tensor:
        """The two skip connections, from the attention's input `(B, T, D)` and its output `x`."""
        return self.add_mlp(self.add_attention(tokens, x, training), training)

    def add_attention(self, tokens: Tensor, x: Tensor, training: bool | None) -> Tensor:
        """The first skip connection."""
        x = self.dropout(x, training=training)
        x = x if self.layer_scale_1 is None else self.layer_scale_1(x)
        return tokens + self.stochastic_depth_1(x, training=training)

    def add_mlp(self, tokens: Tensor, training: bool | None) -> Tensor:
        """The second skip connection, around the MLP."""
        x = self.mlp(tokens, norm=self.norm_2, training=training)
        x = x if self.layer_scale_2 is None else self.layer_scale_2(x)
        return tokens + self.stochastic_depth_2(x, training=training)

    def compute_output_shape(self, tokens_shape: Shape, places_shape: Any = None) -> Any:
        batch, num_tokens, _ = tokens_shape
        return (batch, self.num_output_tokens or num_tokens, self.hidden_size)


def _checked_tokens(num_output_tokens: int | None, relative_patches: int | None) -> int | None:
    """`num_output_tokens` as an int or `None`."""
    if num_output_tokens is not None and relative_patches is not None:
        raise ValueError(
            "relative positions are those of all tokens to each other, so a block with them computes all.\n"
            f"Received: num_output_tokens={num_output_tokens}, relative_patches={relative_patches}."
        )
    return None if num_output_tokens is None else check_positive_int("num_output_tokens", num_output_tokens)
