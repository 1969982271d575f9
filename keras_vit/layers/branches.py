"""The sublayers of a transformer block, made from its switches. What they compute stands in `encoder.py`."""

import dataclasses
from typing import Any

import keras

from keras_vit.annotations import Arguments, Shape
from keras_vit.checks import check_positive_int
from keras_vit.config.parts import PART_FIELDS, block_parts
from keras_vit.config.records import ENCODER_FIELDS, PAPER_VALUES, Blocks
from keras_vit.layers.attention import MultiHeadAttention
from keras_vit.layers.configurable import CastingLayer
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.mlp import GatedMlpBlock, MlpBlock
from keras_vit.layers.norms import LayerScale, layer_norm
from keras_vit.renamed import current_arguments

_NOT_ARGUMENTS = (*ENCODER_FIELDS, "merged_tokens", "window_size")  # which blocks of other kinds take
# Fields of `Blocks` that a block takes, and the others that it takes by name, with their defaults.
SWITCHES = {field.name: field.default for field in dataclasses.fields(Blocks) if field.name not in _NOT_ARGUMENTS}
SWITCHES |= {
    **PAPER_VALUES,
    "relative_patches": None,
    "num_prefix_tokens": 0,
    "rotary_layout": None,
    "use_attention_bias": False,
}


class Branches(CastingLayer):
    """Base of `TransformerBlock`, which has the equations.

    Attributes:
        norm_1: and the other layers inside, in the order of the data; those that a switch leaves out are `None`.
        hidden_size: and the other arguments, which `Blocks` describes.
    """

    norm_1: keras.layers.Layer
    attention: MultiHeadAttention
    dropout: Dropout
    layer_scale_1: LayerScale | None
    stochastic_depth_1: Dropout
    norm_2: keras.layers.Layer
    mlp: MlpBlock | GatedMlpBlock
    layer_scale_2: LayerScale | None
    stochastic_depth_2: Dropout

    hidden_size: int
    num_heads: int
    mlp_dim: int
    dropout_rate: float
    attention_dropout_rate: float
    stochastic_depth_rate: float
    activation: str
    norm: str
    layer_norm_epsilon: float
    norm_position: str
    qkv_bias: str
    proj_bias: bool
    mlp_bias: bool
    gated_mlp: bool
    qk_norm: str
    kv_heads: int | None
    layer_scale: str
    layer_scale_init: float
    attention_norm: bool
    mlp_norm: bool
    rematerialize: bool
    relative_patches: int | None
    num_prefix_tokens: int
    rotary_layout: str | None
    use_attention_bias: bool

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        mlp_dim: int,
        dropout_rate: float = 0.0,
        attention_dropout_rate: float = 0.0,
        stochastic_depth_rate: float = 0.0,
        **kwargs: Any,
    ) -> None:
        sizes = {"hidden_size": hidden_size, "num_heads": num_heads, "mlp_dim": mlp_dim}
        rates = {"dropout_rate": dropout_rate, "attention_dropout_rate": attention_dropout_rate}
        rates["stochastic_depth_rate"] = stochastic_depth_rate
        kwargs = current_arguments(kwargs, stacklevel=2) | sizes | rates
        arguments = {name: kwargs.pop(name, default) for name, default in SWITCHES.items()}
        num_output_tokens = kwargs.pop("num_output_tokens", None)  # of files until 0.6; now `num_queries` of a call
        super().__init__(**kwargs)
        arguments |= {name: check_positive_int(name, size) for name, size in sizes.items()}
        self.__dict__.update(arguments)  # plain values, in which Keras need not look for weights
        self.num_output_tokens = None
        if num_output_tokens is not None:
            self.num_output_tokens = check_positive_int("num_output_tokens", num_output_tokens)
        self.parts = block_parts(self.hidden_size, self.mlp_dim, **{name: arguments[name] for name in PART_FIELDS})
        inputs = {"patch_indices": self.relative_patches, "rotation": self.rotary_layout}
        inputs |= {"bias": self.use_attention_bias or None}
        # At most one: the config's constraints forbid two together. The order is that of saved blocks.
        self.optional_inputs = tuple(name for name, reason in inputs.items() if reason is not None)[:1]
        self._make_layers(self.dtype_policy)

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*super().arguments(), *SWITCHES)))

    def _make_layers(self, dtype: Any) -> None:
        """The layers inside, in the order of the data, by which optimizers of earlier runs know their weights."""
        norm, rate = (self.layer_norm_epsilon, self.norm), self.stochastic_depth_rate
        depth = {"noise_shape": (None, 1, 1), "dtype": dtype}  # one draw for each example: stochastic depth
        self.norm_1 = layer_norm(dtype, "norm_1", *norm)
        shared = {"layer_norm_epsilon": self.layer_norm_epsilon, "norm_kind": self.norm, "dtype": dtype}
        self.attention = MultiHeadAttention(
            self.hidden_size,
            self.num_heads,
            self.attention_dropout_rate,
            relative_patches=self.relative_patches,
            num_prefix_tokens=self.num_prefix_tokens,
            qkv_bias=self.qkv_bias,
            attention_norm=self.attention_norm,
            rotary_layout=self.rotary_layout,
            proj_bias=self.proj_bias,
            qk_norm=self.qk_norm,
            kv_heads=self.kv_heads,
            name="attention",
            **shared,
        )
        self.dropout = Dropout(self.dropout_rate, dtype=dtype, name="dropout")
        self.norm_2 = layer_norm(dtype, "norm_2", *norm)
        sizes, shared = (self.hidden_size, self.mlp_dim, self.dropout_rate), shared | {"mlp_bias": self.mlp_bias}
        shared |= {"mlp_norm": self.mlp_norm, "name": "mlp"}
        self.mlp = GatedMlpBlock(*sizes, **shared) if self.gated_mlp else MlpBlock(*sizes, self.activation, **shared)
        self.stochastic_depth_1 = Dropout(rate, name="stochastic_depth_1", **depth)
        self.stochastic_depth_2 = Dropout(rate, name="stochastic_depth_2", **depth)
        scaled = {part.scale for part in self.parts}
        self.layer_scale_1, self.layer_scale_2 = (
            LayerScale(self.layer_scale_init, dtype=dtype, name=name) if name in scaled else None
            for name in ("layer_scale_1", "layer_scale_2")
        )

    def build(self, tokens_shape: Shape) -> None:
        sublayers = (self.norm_1, self.attention, self.norm_2, self.mlp, self.layer_scale_1, self.layer_scale_2)
        self.build_sublayers(*((layer, tokens_shape) for layer in sublayers if layer is not None))

    def get_config(self) -> Arguments:
        known = {} if self.num_output_tokens is None else {"num_output_tokens": self.num_output_tokens}
        return {**super().get_config(), **known}
