"""What decides the layers of a Vision Transformer: `ViTConfig`, a frozen record of frozen records.

A new switch is one field in one record, and one branch in the layer that it is about. Builders, files and
command lines take fields by their names, in whichever record they stand. Nothing here imports Keras.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from keras_vit.checks import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_positive_int,
    check_rate,
    did_you_mean,
)
from keras_vit.config import ablations
from keras_vit.config.parts import Part, block_parts

POOLINGS = ("token", "gap", "map", "none")
ACTIVATIONS = ("gelu_tanh", "gelu")
POSITION_EMBEDDINGS = ("learned", "sincos2d", *ablations.POSITION_EMBEDDINGS, "none")
POSITION_INJECTIONS = ("stem", *ablations.POSITION_INJECTIONS)
ATTENTIONS = ("global", *ablations.ATTENTIONS)
LAST_BLOCKS = ("pooled", "all")
ADDED_POSITIONS = ("learned", "learned2d", "sincos2d")  # kinds that are a table which is added to tokens
_MULTIPLES = {"sincos2d": 4, "learned2d": 2}  # kind of position: what the width of a token is a multiple of

_MEAN, _FIRST = '"gap" is the mean of the patch tokens.', '"token" takes the class token.'
_OTHER_POOLINGS = dict.fromkeys(("avg", "average", "mean", "global_average"), _MEAN)  # what others call them
_OTHER_POOLINGS |= dict.fromkeys(("max", "maximum"), f"There is no maximum; {_MEAN}")
_OTHER_POOLINGS |= dict.fromkeys(("cls", "tok", "first", "class_token"), _FIRST)


@dataclasses.dataclass(frozen=True)
class Patches:
    """How an image is cut.

    Args:
        patch_size: P, side of a patch in pixels of what is cut: the image, or the ResNet's feature map.
        resnet_stages: blocks in each ResNet stage of a hybrid, `()` for its root alone, `None` for no ResNet.
        resnet_width_factor: 1.0 is a root of 64 channels.
    """

    patch_size: int
    resnet_stages: tuple[int, ...] | None = None
    resnet_width_factor: float = 1.0

    def __post_init__(self) -> None:
        _set(self, "patch_size", check_positive_int("patch_size", self.patch_size))
        if self.resnet_stages is not None:
            _set(self, "resnet_stages", _check_stages(self.resnet_stages))
        check_number("resnet_width_factor", self.resnet_width_factor)
        width = 64 * self.resnet_width_factor
        if self.resnet_stages is not None and not (width >= 32 and width % 32 == 0):
            raise ValueError(
                "the ResNet's GroupNorm has 32 groups, so 64 * `resnet_width_factor` must be a positive "
                f"multiple of 32.\nReceived: resnet_width_factor={self.resnet_width_factor}."
            )

    @property
    def resnet_width(self) -> int:
        """Channels of the ResNet's root."""
        return int(64 * self.resnet_width_factor)

    @property
    def stride(self) -> int:
        """Side in image pixels of what one patch token covers, so the unit of the input's height and width."""
        if self.resnet_stages is None:
            return self.patch_size
        # The root's convolution and pooling halve once each, every stage after the first halves again.
        return self.patch_size * 4 * 2 ** max(len(self.resnet_stages) - 1, 0)


@dataclasses.dataclass(frozen=True)
class Tokens:
    """Which tokens there are.

    Args:
        class_token: whether a class token is prepended. `None` means with `"token"` and `"none"`
            pooling, and not with the others.
        distilled: whether a distillation token follows the class token, with a head of its own; the
            logits are the average of both heads (DeiT, arXiv:2012.12877).
        patch_dropout_rate: share of the patch tokens that training leaves out, before the first block, in [0, 1).
    """

    class_token: bool | None = None
    distilled: bool = False
    patch_dropout_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.class_token is not None and not isinstance(self.class_token, bool):
            raise TypeError(f"`class_token` must be True, False or None.\nReceived: class_token={self.class_token!r}.")
        check_flag("distilled", self.distilled)
        check_rate("patch_dropout_rate", self.patch_dropout_rate)


@dataclasses.dataclass(frozen=True)
class Positions:
    """How the model knows where its patches are.

    Args:
        position_embedding: `"learned"` is a vector for each patch, `"learned2d"` half a vector for each column and
            each row. `"relative"` is by how far apart two patches are in reading order, in every block. All three are
            of appendix D.4. `"sincos2d"` is fixed (arXiv:2205.01580). `"none"` is no position.
        position_injection: where positions are added: once behind the `"stem"`; before each of the `"blocks"`, each
            with its own table; or there with one table, `"blocks_shared"`. Appendix D.4, table 8.
    """

    position_embedding: str = "learned"
    position_injection: str = "stem"

    def __post_init__(self) -> None:
        check_choice("position_embedding", self.position_embedding, POSITION_EMBEDDINGS)
        check_choice("position_injection", self.position_injection, POSITION_INJECTIONS)


@dataclasses.dataclass(frozen=True)
class Blocks:
    """What every transformer block is.

    Args:
        hidden_size: D, size of a token.
        num_layers: number of transformer blocks.
        num_heads: A; must divide `hidden_size`.
        mlp_dim: M, width of a block's MLP.
        dropout_rate: after the position embedding and every dense layer but q, k, v (appendix B.1), in [0, 1).
        attention_dropout_rate: on the attention weights, in [0, 1).
        stochastic_depth_rate: of the last block; block l of L has l/(L-1) of it, in [0, 1).
        activation: `"gelu_tanh"` as the official weights need it, or exact `"gelu"`.
        layer_norm_epsilon: of every LayerNorm; 1e-6 in the official code and timm, 1e-12 in transformers.
        rematerialize: whether training computes every block again on the way back instead of keeping what is
            inside it. The numbers are the same, it takes about a third more time, and far less memory.
        attention: `"global"`, or `"axial"`: each block attends along rows, then along columns, with an MLP behind
            each, so without a class token (appendix D.6).
        merged_tokens: how many pairs of like patches each block merges into one (ToMe, arXiv:2210.09461), at most half
            of them: less work, and approximately the same answers.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_dim: int
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    stochastic_depth_rate: float = 0.0
    activation: str = "gelu_tanh"
    layer_norm_epsilon: float = 1e-6
    rematerialize: bool = False
    attention: str = "global"
    merged_tokens: int = 0

    def __post_init__(self) -> None:
        for field in ("hidden_size", "num_layers", "num_heads", "mlp_dim"):
            _set(self, field, check_positive_int(field, getattr(self, field)))
        if self.hidden_size % self.num_heads:
            raise ValueError(
                "`hidden_size` must be a multiple of `num_heads`, so that every head has the same width.\n"
                f"Received: hidden_size={self.hidden_size}, num_heads={self.num_heads}."
            )
        for field in ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate"):
            check_rate(field, getattr(self, field))
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("attention", self.attention, ATTENTIONS)
        check_flag("rematerialize", self.rematerialize)
        _set(self, "merged_tokens", check_int("merged_tokens", self.merged_tokens, 0))
        check_number("layer_norm_epsilon", self.layer_norm_epsilon)
        if not 0 < self.layer_norm_epsilon < 1:
            raise ValueError(
                "`layer_norm_epsilon` is added to a variance, so it must be small and positive.\n"
                f"Received: layer_norm_epsilon={self.layer_norm_epsilon}."
            )

    @property
    def kind(self) -> str:
        """Which block it is: `"global"`, or one of the ablations' kinds."""
        return "merging" if self.merged_tokens else self.attention

    @property
    def parts(self) -> tuple[Part, ...]:
        """The dense kernels of a block that attends once."""
        return block_parts(self.hidden_size, self.mlp_dim)


@dataclasses.dataclass(frozen=True)
class Pooling:
    """What becomes of the encoded tokens.

    Args:
        pooling: `"token"` (the class token), `"gap"` (mean of the patch tokens), `"map"` (attention pooling,
            arXiv:2106.04560) or `"none"` (all tokens stay).
        representation_size: width of the tanh layer before the head (section 3.1), or `None` for none.
        last_block: `"pooled"` computes in the last block only the tokens that the pooling reads (the
            same numbers in less time), `"all"` computes every token.
    """

    pooling: str = "token"
    representation_size: int | None = None
    last_block: str = "pooled"

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, POOLINGS, _OTHER_POOLINGS)
        check_choice("last_block", self.last_block, LAST_BLOCKS)
        if self.representation_size is not None:
            size = check_positive_int("representation_size", self.representation_size)
            _set(self, "representation_size", size)


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class ViTConfig:
    """Everything that decides the layers of one Vision Transformer, but its image size and classes.

    Fields of the five records are read and given by their names, as `ViTConfig(16, 768, 12, 12, 3072, pooling="gap")`
    and `config.pooling`. A change is `config.replace(pooling="map")`.

    Args:
        patch_size: P, side of a patch in pixels.
        hidden_size: D, size of a token.
        num_layers: number of transformer blocks.
        num_heads: A; must divide `hidden_size`.
        mlp_dim: M, width of a block's MLP.
        **fields: all other fields of `Patches`, `Tokens`, `Positions`, `Blocks` and `Pooling`; or whole records, as
            `tokens=Tokens(distilled=True)`.

    Raises:
        TypeError: for a value of the wrong type, an unknown name, or a size that is not given.
        ValueError: for a value out of range, or values that contradict each other.
    """

    patches: Patches
    tokens: Tokens
    positions: Positions
    blocks: Blocks
    pool: Pooling
    if TYPE_CHECKING:  # what `__getattr__` gives
        patch_size: int
        hidden_size: int
        num_layers: int
        num_heads: int
        mlp_dim: int
        pooling: str

    def __init__(
        self,
        patch_size: int | None = None,
        hidden_size: int | None = None,
        num_layers: int | None = None,
        num_heads: int | None = None,
        mlp_dim: int | None = None,
        **fields: Any,
    ) -> None:
        sizes = (patch_size, hidden_size, num_layers, num_heads, mlp_dim)
        given = fields | {name: size for name, size in zip(SIZES, sizes, strict=True) if size is not None}
        for name, record in RECORDS.items():
            known = given.pop(name, {})
            known = dict(known) if isinstance(known, dict) else vars(known)
            own = {field: given.pop(field) for field, place in RECORD_OF.items() if place == name and field in given}
            _set(self, name, record(**known | own))
        if given:
            name = next(iter(given))
            raise TypeError(
                f"`ViTConfig` has the fields {', '.join(RECORD_OF)}.\n"
                f"Received: {name}={given[name]!r}.{did_you_mean(name, RECORD_OF)}"
            )
        self._check_together()

    def __getattr__(self, name: str) -> Any:
        if name not in RECORD_OF:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(object.__getattribute__(self, RECORD_OF[name]), name)

    def __repr__(self) -> str:
        return f"ViTConfig({', '.join(f'{name}={value!r}' for name, value in self.as_dict().items())})"

    def as_dict(self) -> dict[str, Any]:
        """All fields by their names, as a file keeps them: `ViTConfig(**config.as_dict()) == config`."""
        return {name: getattr(self, name) for name in RECORD_OF}

    def replace(self, **changes: Any) -> "ViTConfig":
        """A config with other values for some fields; `dataclasses.replace` does the same."""
        return ViTConfig(**self.as_dict() | changes)

    def _check_together(self) -> None:
        multiple = _MULTIPLES.get(self.position_embedding, 1)
        if self.hidden_size % multiple:
            raise ValueError(
                f"`position_embedding={self.position_embedding!r}` fills a token with parts of {multiple} kinds, so "
                f"`hidden_size` must be a multiple of {multiple}.\nReceived: hidden_size={self.hidden_size}."
            )
        for rule in (*_RULES, *ablations.RULES):
            rule.check(self)

    @property
    def has_class_token(self) -> bool:
        """Whether a class token is prepended."""
        return self.pooling in ("token", "none") if self.class_token is None else self.class_token

    @property
    def prefix_tokens(self) -> tuple[str, ...]:
        """Names of the tokens before the patches, in their order: of `"class"` and `"distillation"`."""
        there = {"class": self.has_class_token, "distillation": self.distilled}
        return tuple(name for name, wanted in there.items() if wanted)

    @property
    def read_tokens(self) -> tuple[str, ...]:
        """The `prefix_tokens` that the head reads; `()` where it reads the patches."""
        return self.prefix_tokens if self.pooling in ("token", "none") else ()

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches."""
        return len(self.prefix_tokens)

    @property
    def num_read_tokens(self) -> int | None:
        """How many tokens the last block computes, the first ones, or `None` where it computes them all."""
        only_read = self.pooling == "token" and self.last_block == "pooled" and self.position_embedding != "relative"
        return self.num_prefix_tokens if only_read else None

    @property
    def resnet_width(self) -> int:
        """Channels of the ResNet's root."""
        return self.patches.resnet_width

    @property
    def stride(self) -> int:
        """Side in image pixels of what one patch token covers, so the unit of the input's height and width."""
        return self.patches.stride

    @property
    def side_unit(self) -> int:
        """Pixels of which an image's height and width are multiples, so that patches tile it."""
        return self.stride

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """`(h, w)`: patches on each side of an image of `height` x `width` pixels."""
        return height // self.stride, width // self.stride


SIZES = ("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim")
RECORDS = {"patches": Patches, "tokens": Tokens, "positions": Positions, "blocks": Blocks, "pool": Pooling}
# field: its record; sizes first, as they are given
RECORD_OF = dict.fromkeys(SIZES, "") | {
    field.name: name for name, record in RECORDS.items() for field in dataclasses.fields(record)
}
_RULES = (
    ablations.Rule(
        '`pooling="token"` reads the class token, so there must be one.',
        {"pooling": ("token",)},
        {"class_token": (None, True)},
        'Pass `pooling="gap"`, or leave `class_token` out.',
    ),
    ablations.Rule(
        "`distilled=True` reads a class token and a distillation token, each with a head of its own.",
        {"distilled": (True,)},
        {"pooling": ("token", "none"), "class_token": (None, True), "representation_size": (None,)},
        'Pass `pooling="token"` without `representation_size`.',
    ),
)


def _set(record: Any, field: str, value: Any) -> None:
    """Gives a frozen record the checked value of a field."""
    object.__setattr__(record, field, value)


def _check_stages(stages: Any) -> tuple[int, ...]:
    if not isinstance(stages, (tuple, list)):
        raise TypeError(
            f"`resnet_stages` must be None or a tuple of block counts.\nReceived: resnet_stages={stages!r}."
        )
    return tuple(check_positive_int("resnet_stages", blocks) for blocks in stages)
