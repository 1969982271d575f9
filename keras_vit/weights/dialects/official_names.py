"""The layouts of the official `.npz` files: as published, and with the Linen names of today's code.

Published files number the parts of a block by their place, Linen by class. No array is transposed: heads are an axis
of their own there. Old hybrids store GroupNorm as (1, 1, 1, C).
"""

import dataclasses

from keras_vit.weights.dialects.dialect import Dialect, Names
from keras_vit.weights.dialects.renames import FLAX, Layers, with_units

TABLE, LINEN_MLP = "Transformer/posembed_input/pos_embedding", ".*/MlpBlock_0/.*"
# Where a trainer or a two-tower model puts the weights, most specific first.
PREFIXES = ("params/img/", "params/", "opt/target/img/", "opt/target/", "img/", "")
BLOCKS = ("block_{block:02}/", "Transformer/encoderblock_{block}/")
ENDS: Layers = {
    "class_token/token": "cls",
    "patch_embedding/projection": "embedding",
    "encoder_norm": "Transformer/encoder_norm",
    "pre_logits": "pre_logits",
    "head": "head",
}
_NAMES: Names = {("", ""): {**ENDS, "position_embedding/table": TABLE}}
STEM: Names = {
    ("resnet_root/", ""): {"conv": "conv_root", "norm": "gn_root"},
    ("resnet_stage_{stage}_unit_{unit}/", "block{stage}/unit{unit}/"): {
        **{f"conv_{part}": f"conv{part}" for part in "123"},
        **{f"norm_{part}": f"gn{part}" for part in "123"},
        "conv_proj": "conv_proj",
        "norm_proj": "gn_proj",
    },
}


def attention_and_mlp(attention: str, mlp: str) -> Layers:
    """The layers of attention and MLP, in a block or in attention pooling, which have these names there."""
    parts: Layers = {f"attention/{part}": f"{attention}/{part}" for part in ("query", "key", "value", "out")}
    return {**parts, "mlp/dense_1": f"{mlp}/Dense_0", "mlp/dense_2": f"{mlp}/Dense_1"}


OFFICIAL = Dialect(
    "official",
    "the official code",
    ".npz",
    with_units(FLAX),
    requires=("embedding/kernel",),
    names={
        **_NAMES,
        BLOCKS: {
            "norm_1": "LayerNorm_0",
            "norm_2": "LayerNorm_2",
            **attention_and_mlp("MultiHeadDotProductAttention_1", "MlpBlock_3"),
        },
        **STEM,
    },
    prefixes=PREFIXES,
    activation="gelu_tanh",
    layer_norm_epsilon=1e-6,
)
LINEN_BLOCK: Layers = {
    "norm_1": "LayerNorm_0",
    "norm_2": "LayerNorm_1",
    **attention_and_mlp("MultiHeadDotProductAttention_0", "MlpBlock_0"),
}
LINEN = dataclasses.replace(
    OFFICIAL,
    name="linen",
    style=with_units(FLAX, written=False),
    requires=("embedding/kernel", LINEN_MLP, TABLE),
    names={**_NAMES, BLOCKS: LINEN_BLOCK, **STEM},
)
