"""What decides the layers of a text tower: `TextConfig`, a frozen record. Nothing here imports Keras."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from keras_vit.checks import Count, PositiveInt, did_you_mean, one_of, validate
from keras_vit.config.records import check_epsilon, check_heads

TEXT_POOLINGS = ("argmax", "end", "last", "mean", "none")
TEXT_POSITIONS = ("learned", "sincos")
TEXT_ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu")
# Of transformers' CLIPTextConfig and CLIPVisionConfig, which MetaCLIP 2's repeat.
_CLIP: Mapping[str, Any] = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "num_hidden_layers": 12}
_CLIP_TOWERS: Mapping[str, Mapping[str, Any]] = {
    "text": {
        **_CLIP,
        **{"vocab_size": 49408, "max_position_embeddings": 77, "hidden_size": 512, "intermediate_size": 2048},
        **{"num_attention_heads": 8, "pad_token_id": 1, "bos_token_id": 49406, "eos_token_id": 49407},
    },
    "vision": {
        **_CLIP,
        **{"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12},
        **{"num_channels": 3, "image_size": 224, "patch_size": 32},
    },
}


@dataclasses.dataclass(frozen=True)
class TextConfig:
    """The sizes and switches of a text tower.

    Example:
        >>> config = keras_vit.TextConfig(49408, 77, 512, 12, 8, mlp_dim=2048)
        >>> config.replace(projection_size=512).pooling
        'argmax'

    Args:
        vocabulary_size: V, number of ids.
        max_length: T, ids of a text.
        hidden_size: D, size of a token.
        num_layers: number of transformer blocks.
        num_heads: A; must divide `hidden_size`.
        mlp_dim: M, width of a block's MLP.
        activation: of the MLPs, `"gelu"`, `"gelu_tanh"`, `"quick_gelu"` or `"relu"`.
        layer_norm_epsilon: of every LayerNorm; 1e-5 in CLIP and 1e-6 in SigLIP.
        causal: whether a place reads only itself and those before it, as in CLIP.
        positions: `"learned"` is a vector for each place; `"sincos"` is fixed, sines before cosines, as in TIPS.
        pooling: the place whose vector is the text's: `"argmax"`, that of the largest id; `"end"`, the first of
            `end_id`; `"last"`, the last of T; or `"mean"` of all that are no padding. `"none"` keeps all.
        end_id: id of the end, or `None`.
        pad_id: id that follows the end of a short text.
        mask_padding: whether no place reads padding, as in TIPS.
        scale_tokens: whether vectors of ids are multiplied by the root of D, as in TIPS.
        projection_size: E, size of the embedding that a dense layer makes of the pooled place; `None` for D without
            that layer.
        projection_bias: whether that layer has a bias, as in SigLIP.
        qkv_bias: which of query, key and value have a bias, `"all"` or `"none"`, as in dino.txt.
        layer_scale: which branches of a block end in a learned factor for each channel, `"both"` or `"none"`.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range, or values that contradict each other.

    Source: arXiv:2103.00020, section 2.4 (CLIP); arXiv:2303.15343 (SigLIP); arXiv:2410.16512 (TIPS).
    """

    vocabulary_size: PositiveInt
    max_length: PositiveInt
    hidden_size: PositiveInt
    num_layers: PositiveInt
    num_heads: PositiveInt
    mlp_dim: PositiveInt
    activation: Annotated[str, one_of(TEXT_ACTIVATIONS)] = "gelu"
    layer_norm_epsilon: Annotated[float, check_epsilon] = 1e-5
    causal: bool = True
    positions: Annotated[str, one_of(TEXT_POSITIONS)] = "learned"
    pooling: Annotated[str, one_of(TEXT_POOLINGS)] = "argmax"
    end_id: Count | None = None
    pad_id: Count = 0
    mask_padding: bool = False
    scale_tokens: bool = False
    projection_size: PositiveInt | None = None
    projection_bias: bool = False
    qkv_bias: Annotated[str, one_of(("all", "none"))] = "all"
    layer_scale: Annotated[str, one_of(("both", "none"))] = "none"

    def __post_init__(self) -> None:
        validate(self)
        check_heads(self)
        if self.pooling == "end" and self.end_id is None:
            raise ValueError('`pooling="end"` takes the place of an id, which must be given.\nReceived: end_id=None.')

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON."""
        return dataclasses.asdict(self)

    def replace(self, **changes: Any) -> "TextConfig":
        """The config with some fields changed."""
        for name in changes:
            if name not in TEXT_FIELDS:
                raise ValueError(
                    f"fields of `TextConfig` are {', '.join(TEXT_FIELDS)}.\n"
                    f"Received: {name}={changes[name]!r}.{did_you_mean(name, TEXT_FIELDS)}"
                )
        return dataclasses.replace(self, **changes)


TEXT_FIELDS = tuple(field.name for field in dataclasses.fields(TextConfig))


def merge_config_dicts(config: Mapping[str, Any]) -> dict[str, Any]:
    """A `config.json` of transformers' CLIP whose `text_config_dict` and `vision_config_dict`, if any, are followed.

    As in its `CLIPConfig`, their values replace those of `text_config` and `vision_config`, and so do the values of
    their class where they are silent.
    """
    merged, kind = dict(config), config.get("model_type")
    for tower, usual in _CLIP_TOWERS.items() if kind in ("clip", "metaclip_2") else ():
        older, newer = merged.get(f"{tower}_config_dict"), merged.get(f"{tower}_config")
        if isinstance(older, dict):
            older = {**usual, "model_type": f"{kind}_{tower}_model", **older}
            merged[f"{tower}_config"] = {**(newer if isinstance(newer, dict) else {}), **older}
    return merged
