"""The transformer block: equations 2 and 3 of arXiv:2010.11929, LayerNorm before each half, or behind it.

Dropout stands where appendix B.1 has it: after the attention's output, after the MLP's activation
and after its second layer.
"""

from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.config.parts import LAYER_SCALES, NORM_POSITIONS, PART_FIELDS, block_parts
from keras_vit.kernels import jax_gpu as fused
from keras_vit.kernels.capture import watcher
from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.configurable import CastingLayer, rematerialized
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.mlp import GatedMlpBlock, MlpBlock
from keras_vit.layers.norms import NORM_EPSILON, LayerScale, layer_norm


@keras.saving.register_keras_serializable("keras_vit")
class TransformerBlock(CastingLayer):
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
        norm: what every norm is, `"layer"` or `"rms"`.
        layer_norm_epsilon: added to the variance in every norm.
        rematerialize: whether training keeps the block's input alone and computes what is inside once more on the
            way back. The numbers are the same, dropout's masks too.
        relative_patches: N, number of patches, for relative positions in the attention (`RelativePositions`); not with
            `num_output_tokens`.
        num_prefix_tokens: tokens before those patches.
        qkv_bias: which of query, key and value have a bias, `"all"`, `"query_value"` or `"none"`.
        proj_bias: whether the attention's output has a bias.
        mlp_bias: whether the dense layers of the MLP have a bias.
        gated_mlp: whether the MLP is a `GatedMlpBlock`, which has no use for `activation`.
        qk_norm: `"none"`, `"head"` or `"width"`, over which queries and keys are normed.
        kv_heads: heads of keys and values, or `None` for as many as queries have.
        layer_scale: which branches end in a `LayerScale`: `"none"`, `"attention"` or `"both"`.
        layer_scale_init: first value of its factors.
        attention_norm: whether a LayerNorm stands before the last dense layer of the attention.
        mlp_norm: whether one stands before that of the MLP.
        rotary_layout: of the rotation that queries and keys are turned by, `"half"` or `"interleaved"`, or `None` for
            none; see `RotaryPositions`.
        takes_bias: whether a bias is added to the logits of attention, as `RelativeBias` gives it.
        norm_position: `"pre"`, norms before attention and MLP, or `"post"`, after them and inside the skip connections
            (arXiv:2303.15389); not with a `layer_scale`.

    Call arguments:
        tokens: `(B, T, D)`.
        places: `(B, n)`, of the patches among the tokens, for relative positions where some patches are left out. Or
            these and the tokens before that, `(B, num_prefix_tokens + N, D)`, of which only N is read.
        rotation: of a `RotaryPositions`, where there is a `rotary_layout`.
        bias: of a `RelativeBias`, where `takes_bias` is set.

    Returns:
        `(B, T, D)`, or `(B, k, D)`.

    Attributes:
        asks: names of what a call takes beside the tokens: `"cut_map"`, what the patches were cut from, for their grid;
            `"places"` of the patches behind patch dropout; the `"rotation"`; and what earlier blocks tell.
        tells: what a call gives behind the tokens, for the blocks that follow.

    Source: arXiv:2010.11929, eq. 2 and 3; stochastic depth: arXiv:1603.09382, as arXiv:2106.10270 uses it.

    Example:
        >>> block = keras_vit.layers.TransformerBlock(12, num_heads=3, mlp_dim=48)
        >>> tuple(block(keras.random.normal((2, 7, 12))).shape)
        (2, 7, 12)
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
        attention_norm: bool = False,
        mlp_norm: bool = False,
        rotary_layout: str | None = None,
        norm: str = "layer",
        proj_bias: bool = True,
        mlp_bias: bool = True,
        takes_bias: bool = False,
        qk_norm: str = "none",
        kv_heads: int | None = None,
        norm_position: str = "pre",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        _check_branches(layer_scale, norm_position)
        self.hidden_size = check_positive_int("hidden_size", hidden_size)
        self.num_heads, self.kv_heads = check_positive_int("num_heads", num_heads), kv_heads
        self.mlp_dim = check_positive_int("mlp_dim", mlp_dim)
        self.dropout_rate, self.attention_dropout_rate = dropout_rate, attention_dropout_rate
        self.stochastic_depth_rate, self.activation = stochastic_depth_rate, activation
        self.num_output_tokens = _checked_tokens(num_output_tokens, relative_patches)
        self.norm, self.layer_norm_epsilon, self.qk_norm = norm, layer_norm_epsilon, qk_norm
        self.rematerialize, self.gated_mlp, self.relative_patches = rematerialize, gated_mlp, relative_patches
        self.rotary_layout, self.num_prefix_tokens = rotary_layout, num_prefix_tokens
        self.qkv_bias, self.proj_bias, self.mlp_bias = qkv_bias, proj_bias, mlp_bias
        self.layer_scale, self.layer_scale_init, self.norm_position = layer_scale, layer_scale_init, norm_position
        self.attention_norm, self.mlp_norm, self.takes_bias = attention_norm, mlp_norm, takes_bias
        self._make_layers(self.dtype_policy)

    def _make_layers(self, dtype: Any) -> None:
        """The layers inside, in the order of the data, by which optimizers of earlier runs know their weights."""
        if self.relative_patches is not None:
            self.asks = ("places",)
        elif self.rotary_layout is not None:
            self.asks = ("rotation",)
        elif self.takes_bias:
            self.asks = ("bias",)
        kinds = {name: getattr(self, name) for name in PART_FIELDS}
        self.parts = block_parts(self.hidden_size, self.mlp_dim, **kinds)
        norm = (self.layer_norm_epsilon, self.norm)
        self.norm_1 = layer_norm(dtype, "norm_1", *norm)
        self.attention = self._inside(MultiHeadAttention, "attention", dropout_rate=self.attention_dropout_rate)
        self.dropout = Dropout(self.dropout_rate, dtype=dtype, name="dropout")
        self.norm_2 = layer_norm(dtype, "norm_2", *norm)
        self.mlp = self._inside(GatedMlpBlock if self.gated_mlp else MlpBlock, "mlp")
        # Dropout with one draw for each example and branch is stochastic depth.
        self.stochastic_depth_1, self.stochastic_depth_2 = (
            Dropout(self.stochastic_depth_rate, noise_shape=(None, 1, 1), dtype=dtype, name=name)
            for name in ("stochastic_depth_1", "stochastic_depth_2")
        )
        self.layer_scale_1 = self.layer_scale_2 = None
        for part in self.parts:
            if part.scale is not None:
                setattr(self, part.scale, LayerScale(self.layer_scale_init, dtype=dtype, name=part.scale))

    def _inside(self, kind: type[CastingLayer], name: str, **others: Any) -> Any:
        """A layer of that kind, with all arguments that this one has under the same names."""
        known = {argument: getattr(self, argument) for argument in kind.arguments() if hasattr(self, argument)}
        return kind(**known | {"norm_kind": self.norm} | others, dtype=self.dtype_policy, name=name)

    def build(self, tokens_shape: Shape) -> None:
        inside = (self.norm_1, self.attention, self.norm_2, self.mlp, self.layer_scale_1, self.layer_scale_2)
        self.build_inside(*((layer, tokens_shape) for layer in inside if layer is not None))

    def call(
        self,
        tokens: Tensor,
        training: bool | None = None,
        places: Any = None,
        rotation: Tensor = None,
        bias: Tensor = None,
    ) -> Tensor:
        known = self._known_places(places) if training else {}  # else every patch is there
        beside = {name: x for name, x in {"rotation": rotation, "bias": bias}.items() if x is not None}

        def compute(tokens: Tensor, *tensors: Tensor) -> Tensor:
            return self._compute(tokens, training=training, **known, **dict(zip(beside, tensors, strict=True)))

        if training and self.rematerialize:
            compute = rematerialized(self, compute)
        elif training and fused.keeps_less():
            compute = rematerialized(self, compute, kept=fused.KEPT)
        return compute(self.in_our_dtype(tokens), *beside.values())

    def _known_places(self, places: Any) -> dict[str, Any]:
        """What attention is told of the patches that are there."""
        if not isinstance(places, (tuple, list)):
            return {"places": places}
        places, every_token = places
        return {"places": places, "num_patches": ops.shape(every_token)[1] - self.num_prefix_tokens}

    def _compute(self, tokens: Tensor, training: bool | None = None, **known: Any) -> Tensor:
        if self.num_output_tokens is None or watcher() is not None:
            if self.dropout_rate == 0 and self.attention.wants_even_lengths(training, known.get("bias")):
                return self._every_token_evened(tokens, training, **known)
            return self.every_token(tokens, training, **known)
        x = self.normed(tokens, training)
        queries, tokens = x[:, : self.num_output_tokens], tokens[:, : self.num_output_tokens]  # (B, k, D)
        x = self.attention(x, queries, training=training, **known)
        return self.add_branches(tokens, x, training)

    def every_token(self, tokens: Tensor, training: bool | None = None, **known: Any) -> Tensor:
        """What a call gives for all tokens, `(B, T, D)`, whatever `num_output_tokens` says.

        Args:
            tokens: `(B, T, D)`.
            training: as in a call.
            **known: what attention takes beside them: `places`, `num_patches`, `rotation` and `bias`.
        """
        x = self.attention(tokens, norm=self.norms_before[0], training=training, **known)
        return self.add_branches(tokens, x, training)

    def _every_token_evened(
        self, tokens: Tensor, training: bool | None, rotation: Tensor = None, **known: Any
    ) -> Tensor:
        """`every_token` with one token more where their number is odd.

        The whole block has it. Added and taken away around attention alone, it costs more passes over memory on the way
        back.
        """
        length, rotation = tokens.shape[1], fused.evened(rotation, axis=2)
        tokens = self.every_token(fused.evened(tokens), training, rotation=rotation, length=length, **known)
        return tokens[:, :length]

    @property
    def norms_before(self) -> tuple[keras.layers.Layer | None, keras.layers.Layer | None]:
        """The norms that stand before attention and before the MLP, `None` where they stand behind."""
        return (self.norm_1, self.norm_2) if self.norm_position == "pre" else (None, None)

    def normed(self, tokens: Tensor, training: bool | None) -> Tensor:
        """What attention reads of the tokens `(B, T, D)`."""
        return self.norm_1(tokens, training=training) if self.norm_position == "pre" else tokens

    def add_branches(self, tokens: Tensor, x: Tensor, training: bool | None) -> Tensor:
        """The two skip connections, from the attention's input `(B, T, D)` and its output `x`."""
        return self.add_mlp(self.add_attention(tokens, x, training), training)

    def add_attention(self, tokens: Tensor, x: Tensor, training: bool | None) -> Tensor:
        """The first skip connection."""
        x = self.dropout(x, training=training)
        x = x if self.norm_position == "pre" else self.norm_1(x, training=training)
        x = x if self.layer_scale_1 is None else self.layer_scale_1(x)
        return tokens + self.stochastic_depth_1(x, training=training)

    def add_mlp(self, tokens: Tensor, training: bool | None) -> Tensor:
        """The second skip connection, around the MLP."""
        x = self.mlp(tokens, norm=self.norms_before[1], training=training)
        x = x if self.norm_position == "pre" else self.norm_2(x, training=training)
        x = x if self.layer_scale_2 is None else self.layer_scale_2(x)
        return tokens + self.stochastic_depth_2(x, training=training)

    def compute_output_shape(self, tokens_shape: Shape) -> Any:
        batch, num_tokens, _ = tokens_shape
        return (batch, self.num_output_tokens or num_tokens, self.hidden_size)


def _check_branches(layer_scale: str, norm_position: str) -> None:
    check_choice("layer_scale", layer_scale, LAYER_SCALES)
    check_choice("norm_position", norm_position, NORM_POSITIONS)
    if norm_position == "post" and layer_scale != "none":
        raise ValueError(
            "a norm at the end of a branch has a factor for each channel already.\n"
            f"Received: norm_position={norm_position!r}, layer_scale={layer_scale!r}."
        )


def _checked_tokens(num_output_tokens: int | None, relative_patches: int | None) -> int | None:
    """`num_output_tokens` as an int or `None`."""
    if num_output_tokens is not None and relative_patches is not None:
        raise ValueError(
            "relative positions are those of all tokens to each other, so a block with them computes all.\n"
            f"Received: num_output_tokens={num_output_tokens}, relative_patches={relative_patches}."
        )
    return None if num_output_tokens is None else check_positive_int("num_output_tokens", num_output_tokens)
