"""The transformer block: equations 2 and 3 of arXiv:2010.11929.

Dropout stands where appendix B.1 has it: after the attention's output, after the MLP's activation and after its second
layer. What makes a block fast, or keep less, stands in `keras_vit.kernels`.
"""

import functools
from typing import Any

import keras

from keras_vit import kernels
from keras_vit.annotations import Shape, Tensor
from keras_vit.layers.branches import Branches
from keras_vit.layers.configurable import recomputed
from keras_vit.layers.dropout import Dropout


@keras.saving.register_keras_serializable("keras_vit")
class TransformerBlock(Branches):
    """One encoder block: attention and MLP, each after a norm and inside a skip connection.

    Args:
        hidden_size: D, size of a token.
        num_heads: A; must divide `hidden_size`.
        mlp_dim: M, size inside the MLP.
        dropout_rate: of the dense layers' outputs, in [0, 1).
        attention_dropout_rate: of the attention weights, in [0, 1).
        stochastic_depth_rate: of leaving out each of both branches, drawn for every example, in [0, 1).
        **kwargs: fields of `keras_vit.config.records.Blocks`, which says what each is, as `activation`, `norm`,
            `norm_position`, `gated_mlp`, `layer_scale` and `rematerialize`; `kv_heads` is one number. And
            `relative_patches`, the number of patches with `RelativePositions`; `num_prefix_tokens` before them;
            `rotary_layout` of a `RotaryPositions`; and `use_attention_bias`, whether a call is given one.

    Call arguments:
        tokens: `(B, T, D)`.
        num_queries: k, to compute the first k tokens only, `(B, k, D)`. Keys and values still come from all of them.
        patch_indices: as for `RelativePositions`, after patch dropout.
        rotation: of a `RotaryPositions`, where there is a `rotary_layout`.
        bias: of a `RelativeBias`, where `use_attention_bias` is set.

    Attributes:
        optional_inputs: names of what a call takes after the tokens, as `"rotation"`, or the `"feature_map"` of axial
            attention, or `extra_outputs` of the block before.
        extra_outputs: names of what a call gives after the tokens, for the blocks that follow.

    Source: arXiv:2010.11929, eq. 2 and 3; stochastic depth: arXiv:1603.09382, as arXiv:2106.10270 uses it.

    Example:
        >>> block = keras_vit.layers.TransformerBlock(12, num_heads=3, mlp_dim=48)
        >>> tuple(block(keras.random.normal((2, 7, 12))).shape)
        (2, 7, 12)
    """

    optional_inputs: tuple[str, ...] = ()
    extra_outputs: tuple[str, ...] = ()

    def forward(
        self, tokens: Tensor, training: bool | None = None, num_queries: int | None = None, **optional: Any
    ) -> Tensor:
        """Equations 2 and 3, in the plain form that every kernel is held to; of so many tokens, or of all."""
        norm_1, norm_2 = self.norms_before
        x = norm_1(tokens, training=training)
        if num_queries is not None:
            optional["queries"], tokens = x[:, :num_queries], tokens[:, :num_queries]
        x = tokens + self.after_attention(self.attention(x, training=training, **optional), training)  # eq. 2
        return x + self.after_mlp(self.mlp(norm_2(x, training=training), training=training), training)  # eq. 3

    def call(
        self,
        tokens: Tensor,
        training: bool | None = None,
        num_queries: int | None = None,
        patch_indices: Any = None,
        rotation: Tensor = None,
        bias: Tensor = None,
    ) -> Tensor:
        num_queries = None if kernels.current_hook() is not None else num_queries or self.num_output_tokens
        patch_indices = patch_indices if training else None  # else every patch is there
        forward = kernels.block(self, training) or self.forward  # `None` at inference: the forward above
        forward = functools.partial(forward, training=training, num_queries=num_queries, patch_indices=patch_indices)
        optional = {name: x for name, x in {"rotation": rotation, "bias": bias}.items() if x is not None}
        remat = kernels.remat(self.rematerialize, training)
        return recomputed(self, forward, remat, self.cast_input(tokens), **optional)

    @property
    def norms_before(self) -> tuple[Any, Any]:
        """The norms before attention and MLP; none where they stand after them, inside of the skip connections."""
        return (self.norm_1, self.norm_2) if self.norm_position == "pre" else (_identity, _identity)

    def after_attention(self, x: Tensor, training: bool | None) -> Tensor:
        """What stands between attention and its skip connection."""
        x = self.dropout(x, training=training)
        return self._finish(x, self.norm_1, self.layer_scale_1, self.stochastic_depth_1, training)

    def after_mlp(self, x: Tensor, training: bool | None) -> Tensor:
        """The same after the MLP, which ends in a dropout of its own."""
        return self._finish(x, self.norm_2, self.layer_scale_2, self.stochastic_depth_2, training)

    def _finish(self, x: Tensor, norm: Any, scale: Any, depth: Dropout, training: bool | None) -> Tensor:
        x = x if self.norm_position == "pre" else norm(x, training=training)
        return depth(x if scale is None else scale(x), training=training)

    def compute_output_shape(self, tokens_shape: Shape) -> Any:
        return (tokens_shape[0], self.num_output_tokens or tokens_shape[1], self.hidden_size)

    def compute_output_spec(self, tokens: Tensor, num_queries: int | None = None, **optional: Any) -> Any:
        batch, num_tokens, size = self.compute_output_shape(tokens.shape)
        return keras.KerasTensor((batch, num_queries or num_tokens, size), self.compute_dtype)


def _identity(x: Tensor, training: bool | None = None) -> Tensor:
    return x
