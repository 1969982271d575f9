"""What decides the layers of a Vision Transformer: `ViTConfig`, a frozen record of frozen records.

A new switch is one field in one record, and one branch in the layer that it is about. Builders and files
take fields by their names, in whichever record they stand. Nothing here imports Keras.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from keras_vit.checks import did_you_mean
from keras_vit.config.constraints import CONSTRAINTS
from keras_vit.config.records import Blocks, Patches, Pooling, Positions, Tokens, set_field
from keras_vit.renamed import by_old_name, current_arguments
from keras_vit.synonyms import builder_option_hint

# By the kind of position: what the width of a token is a multiple of.
_MULTIPLES = {"sincos2d": 4, "sincos2d_mae": 4, "learned2d": 2}


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class ViTConfig:
    """The sizes and switches of a Vision Transformer: all that decides its layers, but image size and classes.

    Fields of the five records are read and given by their names, as `ViTConfig(16, 768, 12, 12, 3072, pooling="gap")`
    and `config.pooling`. A change is `config.replace(pooling="map")`.

    Example:
        >>> config = keras_vit.ViTConfig(16, 192, num_layers=12, num_heads=3, mlp_dim=768)
        >>> config == keras_vit.VARIANTS["Ti/16"]
        True
        >>> config.replace(pooling="gap", registers=4).registers
        4

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
        given = current_arguments(fields, stacklevel=2)
        given |= {name: size for name, size in zip(SIZES, sizes, strict=True) if size is not None}
        for name in given.keys() - {*RECORD_OF, *RECORDS}:
            raise TypeError(
                f"`ViTConfig` has the fields {', '.join(RECORD_OF)}.\n"
                f"Received: {name}={given[name]!r}.{builder_option_hint(name) or did_you_mean(name, RECORD_OF)}"
            )
        for name, record in RECORDS.items():
            known = given.pop(name, {})
            known = dict(known) if isinstance(known, dict) else _given(known)
            own = {field: given.pop(field) for field, place in RECORD_OF.items() if place == name and field in given}
            if missing := [size for size in SIZES if RECORD_OF[size] == name and size not in known | own]:
                raise TypeError(f"`ViTConfig` needs {', '.join(SIZES)}.\nReceived: nothing for {', '.join(missing)}.")
            set_field(self, name, record(**known | own))
        self._check_together()

    def __getattr__(self, name: str) -> Any:
        if name not in RECORD_OF:
            return by_old_name(self, name)
        return getattr(object.__getattribute__(self, RECORD_OF[name]), name)

    def __repr__(self) -> str:
        return f"ViTConfig({', '.join(f'{name}={value!r}' for name, value in self.as_dict().items())})"

    def as_dict(self) -> dict[str, Any]:
        """All fields by their names, as a file keeps them: `ViTConfig(**config.as_dict()) == config`.

        What was left open has its value, as of a model that is built.
        """
        return {name: getattr(self, name) for name in RECORD_OF}

    def replace(self, **changes: Any) -> "ViTConfig":
        """A config with other values for some fields; `dataclasses.replace` does the same."""
        unspecified = dict.fromkeys(self.blocks.unspecified)
        return ViTConfig(**self.as_dict() | unspecified | current_arguments(changes, stacklevel=2))

    def _check_together(self) -> None:
        if max(self.class_token_indices or (0,)) >= self.class_tokens:
            raise ValueError(
                "`class_token_indices` count the class tokens, from 0 to `class_tokens` - 1.\n"
                f"Received: class_token_indices={self.class_token_indices}, class_tokens={self.class_tokens}."
            )
        multiple = _MULTIPLES.get(self.position_embedding, 1)
        if self.hidden_size % multiple:
            raise ValueError(
                f"`position_embedding={self.position_embedding!r}` fills a token with parts of {multiple} kinds, so "
                f"`hidden_size` must be a multiple of {multiple}.\nReceived: hidden_size={self.hidden_size}."
            )
        if self.rotary != "none" and (self.hidden_size // self.num_heads) % 4:
            raise ValueError(
                "rotary positions turn pairs of a head's channels, half of them for each axis, so `hidden_size / "
                "num_heads` must be a multiple of 4.\n"
                f"Received: hidden_size={self.hidden_size}, num_heads={self.num_heads}."
            )
        if self.map_heads is not None and self.hidden_size % self.map_heads:
            raise ValueError(
                "`hidden_size` must be a multiple of `map_heads`, so that every head has the same width.\n"
                f"Received: hidden_size={self.hidden_size}, map_heads={self.map_heads}."
            )
        for constraint in CONSTRAINTS:
            constraint.check(self)

    @property
    def has_class_token(self) -> bool:
        """Whether a class token is prepended."""
        return self.pooling in ("token", "token_gap", "none") if self.class_token is None else self.class_token

    @property
    def prefix_tokens(self) -> tuple[str, ...]:
        """Names of the tokens before the patches, in order: `"class"`, `"distillation"`, each `"register"`."""
        return self.positioned_tokens + ("register",) * self.registers

    @property
    def positioned_tokens(self) -> tuple[str, ...]:
        """The `prefix_tokens` that have a row in the position table: each `"class"`, and `"distillation"`."""
        there = {"class": self.class_tokens if self.has_class_token else 0, "distillation": int(self.distilled)}
        return tuple(name for name, count in there.items() for _ in range(count))

    @property
    def pooled_tokens(self) -> tuple[str, ...]:
        """The `prefix_tokens` that the head reads; `()` where it reads the patches."""
        return self.positioned_tokens if self.pooling in ("token", "none") else ()

    @property
    def pooled_indices(self) -> tuple[int, ...]:
        """Places of the tokens that the head reads; `()` where it reads the patches."""
        if self.pooling != "token" or self.distilled:
            return tuple(range(len(self.pooled_tokens)))
        return tuple(range(self.class_tokens)) if self.class_token_indices is None else self.class_token_indices

    @property
    def pooled_size(self) -> int:
        """Size of the vector that is pooled from the tokens."""
        if self.pooling == "token_gap":
            return 2 * self.hidden_size
        joined = self.pooling == "token" and self.class_token_reduction == "concatenated"
        return self.hidden_size * (len(self.pooled_indices) if joined else 1)

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens before the patches."""
        return len(self.prefix_tokens)

    @property
    def num_pooled_tokens(self) -> int | None:
        """How many tokens the last block computes, the first ones, or `None` where it computes them all."""
        only_read = (
            self.pooling == "token" and self.last_block_outputs == "pooled" and self.position_embedding != "relative"
        )
        return max(self.pooled_indices) + 1 if only_read else None

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


def _given(record: Any) -> dict[str, Any]:
    """The fields of a record, without those of which nothing was said."""
    names = [field.name for field in dataclasses.fields(record)]
    return {name: getattr(record, name) for name in names if name not in getattr(record, "unspecified", ())}


SIZES = ("patch_size", "hidden_size", "num_layers", "num_heads", "mlp_dim")
RECORDS = {"patches": Patches, "tokens": Tokens, "positions": Positions, "blocks": Blocks, "pool": Pooling}
# field: its record; sizes first, as they are given
RECORD_OF = dict.fromkeys(SIZES, "") | {
    field.name: name for name, record in RECORDS.items() for field in dataclasses.fields(record)
}
