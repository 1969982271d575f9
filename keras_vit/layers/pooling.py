"""From encoded tokens to one representation: class token, mean, or attention pooling."""

from collections.abc import Sequence
from typing import Any, cast

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.config.parts import pooling_parts
from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.configurable import CompositeLayer, ConfiguredLayer
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.norms import NORM_EPSILON, layer_norm


@keras.saving.register_keras_serializable("keras_vit")
class TokenPooling(ConfiguredLayer):
    """Reads the representation off the encoded tokens.

    Args:
        kind: `"token"` takes the class token, or several of them; `"distillation"` token 1, which DeiT adds;
            `"gap"` the mean of the patch tokens; `"token_gap"` token 0 and that mean, one after the other.
        num_prefix_tokens: tokens before the patches, which the mean leaves out.
        class_token_indices: places of the tokens that `"token"` takes.
        class_token_reduction: of several, their `"mean"`, or one vector with all of them, `"concatenated"`.

    Call arguments:
        tokens: `(B, T, D)`.
        sizes: `(B, T, 1)`, how many patches a token stands for, as `MergingBlock` and `PatchMask` give them; 1 for each
            by default.

    Returns:
        `(B, D)`, or `(B, k D)` of k tokens that are concatenated, 2 of `"token_gap"`.

    Source: arXiv:2010.11929, eq. 4 and appendix D.3; distillation: arXiv:2012.12877, section 4; several class tokens:
    their mean arXiv:2512.15715, concatenated arXiv:2601.17237; token and mean arXiv:2304.07193.

    Example:
        >>> tokens = keras.random.normal((2, 7, 12))
        >>> tuple(keras_vit.layers.TokenPooling("gap", num_prefix_tokens=1)(tokens).shape)
        (2, 12)
    """

    def __init__(
        self,
        kind: str,
        num_prefix_tokens: int = 0,
        class_token_indices: Sequence[int] = (0,),
        class_token_reduction: str = "mean",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("kind", kind, ("token", "distillation", "gap", "token_gap"))
        self.kind = kind
        self.num_prefix_tokens = num_prefix_tokens
        self.class_token_indices = tuple(class_token_indices)
        self.class_token_reduction = class_token_reduction

    def call(self, tokens: Tensor, sizes: Tensor = None) -> Tensor:
        if self.kind in ("token", "distillation"):
            read = [
                tokens[:, place] for place in (self.class_token_indices if self.kind == "token" else (1,))
            ]  # (B, D)
            if len(read) == 1:
                return read[0]
            joined = self.class_token_reduction == "concatenated"
            return ops.concatenate(read, axis=-1) if joined else ops.mean(ops.stack(read), axis=0)
        mean = self._mean(tokens[:, self.num_prefix_tokens :], sizes)
        return mean if self.kind == "gap" else ops.concatenate([tokens[:, 0], mean], axis=-1)  # (B, 2 D)

    def _mean(self, patches: Tensor, sizes: Tensor) -> Tensor:
        if sizes is None:
            return ops.mean(patches, axis=1)  # (B, D)
        sizes = sizes[:, self.num_prefix_tokens :]
        return ops.sum(patches * sizes, axis=1) / ops.maximum(ops.sum(sizes, axis=1), 1)  # of padding alone it is 0

    def compute_output_shape(self, tokens_shape: Shape, sizes_shape: Shape | None = None) -> Shape:
        joined = self.kind == "token" and self.class_token_reduction == "concatenated"
        count = 2 if self.kind == "token_gap" else len(self.class_token_indices) if joined else 1
        return (tokens_shape[0], cast(int, tokens_shape[-1]) * count)


@keras.saving.register_keras_serializable("keras_vit")
class AttentionPooling(CompositeLayer):
    """A learned probe reads from all patch tokens by attention, followed by an MLP with a skip connection.

    Args:
        hidden_size: D, size of a token.
        num_heads: A; must divide `hidden_size`.
        mlp_dim: M, size inside the MLP.
        activation: `"gelu_tanh"`, `"gelu"` or `"quick_gelu"`.
        layer_norm_epsilon: added to the variance in the LayerNorm.
        num_prefix_tokens: tokens at the front that are left out, as mean pooling leaves out those before the patches.
        kind: `"map"`, or `"attentive"`, which takes the probe for the query as it is, without biases but the output's,
            and has no MLP.
        norm_kind: what the norm is, `"layer"` or `"rms"`.

    Call arguments:
        tokens: `(B, T, D)`.
        bias: `(B, 1, 1, T)`, added to the scaled logits, as `PatchMask` gives it; by default nothing.

    Returns:
        `(B, D)`.

    Source: "MAP" head of arXiv:2106.04560 (Scaling Vision Transformers), as big_vision has it; timm's
    `VisionTransformer.pool` leaves prefix tokens out too. The attentive one is AIMv2's (arXiv:2411.14402).

    Example:
        >>> pool = keras_vit.layers.AttentionPooling(12, num_heads=3, mlp_dim=48)
        >>> tuple(pool(keras.random.normal((2, 7, 12))).shape)
        (2, 12)
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        mlp_dim: int,
        activation: str = "gelu_tanh",
        layer_norm_epsilon: float = NORM_EPSILON,
        num_prefix_tokens: int = 0,
        kind: str = "map",
        norm_kind: str = "layer",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("kind", kind, ("map", "attentive"))
        self.hidden_size = check_positive_int("hidden_size", hidden_size)
        self.num_heads = check_positive_int("num_heads", num_heads)
        self.mlp_dim = check_positive_int("mlp_dim", mlp_dim)
        self.activation = activation
        self.layer_norm_epsilon = layer_norm_epsilon
        self.num_prefix_tokens = num_prefix_tokens
        self.kind = kind
        self.norm_kind = norm_kind
        self.parts = pooling_parts(self.hidden_size, self.mlp_dim, kind)
        policy, is_map = self.dtype_policy, kind == "map"
        bare: dict[str, Any] = {} if is_map else {"qkv_bias": "none", "projects_query": False}
        self.attention = MultiHeadAttention(hidden_size, num_heads, dtype=policy, name="attention", **bare)
        self.norm = layer_norm(policy, "norm", layer_norm_epsilon, norm_kind) if is_map else None
        self.mlp = MlpBlock(hidden_size, mlp_dim, activation=activation, dtype=policy, name="mlp") if is_map else None

    def build(self, input_shape: Shape) -> None:
        width = cast(int, input_shape[-1])
        self.probe = self.add_weight(name="probe", shape=(1, 1, width), initializer=self._probe_initializer(width))
        one_token = (input_shape[0], 1, width)
        inside = (self.attention, self.norm, self.mlp)
        self.build_sublayers(*((layer, one_token) for layer in inside if layer is not None))

    @staticmethod
    def _probe_initializer(size: int) -> keras.initializers.Initializer:
        limit = (6.0 / (1 + size)) ** 0.5  # Xavier uniform on the (1, D) matrix
        return keras.initializers.RandomUniform(-limit, limit)

    def call(self, tokens: Tensor, training: bool | None = None, bias: Tensor = None) -> Tensor:
        probe = ops.cast(self.probe, tokens.dtype)
        probe = ops.broadcast_to(probe, (ops.shape(tokens)[0], 1, self.hidden_size))  # (B, 1, D)
        bias = None if bias is None else bias[..., self.num_prefix_tokens :]
        x = self.attention(tokens[:, self.num_prefix_tokens :], probe, training=training, bias=bias)
        if self.norm is not None and self.mlp is not None:
            x = x + self.mlp(self.norm(x), training=training)
        return x[:, 0]  # (B, D)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (input_shape[0], self.hidden_size)
