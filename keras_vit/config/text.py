"""What decides the layers of a text tower: `TextConfig`, a frozen record. Nothing here imports Keras."""

import dataclasses
from typing import Any

from keras_vit.checks import check_choice, check_flag, check_int, check_positive_int, did_you_mean
from keras_vit.config.records import check_epsilon, set_field

TEXT_POOLINGS = ("argmax", "end", "last", "mean", "none")
TEXT_POSITIONS = ("learned", "sincos")
TEXT_ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu")


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

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range, or values that contradict each other.

    Source: arXiv:2103.00020, section 2.4 (CLIP); arXiv:2303.15343 (SigLIP); arXiv:2410.16512 (TIPS).
    """

    vocabulary_size: int
    max_length: int
    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    activation: str = "gelu"
    layer_norm_epsilon: float = 1e-5
    causal: bool = True
    positions: str = "learned"
    pooling: str = "argmax"
    end_id: int | None = None
    pad_id: int = 0
    mask_padding: bool = False
    scale_tokens: bool = False
    projection_size: int | None = None
    projection_bias: bool = False
    qkv_bias: str = "all"

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "max_length", "hidden_size", "num_layers", "num_heads", "mlp_dim"):
            set_field(self, name, check_positive_int(name, getattr(self, name)))
        if self.projection_size is not None:
            set_field(self, "projection_size", check_positive_int("projection_size", self.projection_size))
        if self.end_id is not None:
            set_field(self, "end_id", check_int("end_id", self.end_id, 0))
        set_field(self, "pad_id", check_int("pad_id", self.pad_id, 0))
        check_choice("activation", self.activation, TEXT_ACTIVATIONS)
        check_choice("positions", self.positions, TEXT_POSITIONS)
        check_choice("pooling", self.pooling, TEXT_POOLINGS)
        check_choice("qkv_bias", self.qkv_bias, ("all", "none"))
        check_epsilon(self.layer_norm_epsilon)
        for name in ("causal", "mask_padding", "scale_tokens", "projection_bias"):
            check_flag(name, getattr(self, name))
        if self.hidden_size % self.num_heads:
            raise ValueError(
                "`hidden_size` must be a multiple of `num_heads`, so that every head has the same width.\n"
                f"Received: hidden_size={self.hidden_size}, num_heads={self.num_heads}."
            )
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
