"""The published models: of the paper's kind one row each in `variants.csv`, and encoders in `encoders.csv`.

Names are spelled as in the papers; `R50x1` has the 50 layers of arXiv:1512.03385 at once its width. ResNets are the
baselines of arXiv:2010.11929, section 4.1, as arXiv:1912.11370 builds them. An encoder is named by family and size, as
`"dinov2/S14"`. Its sizes and fields are those of the authors' code; what a single file has otherwise, as registers, is
in its record.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit.checks import ArgumentError, check_number, check_positive_int, did_you_mean
from keras_vit.config.records import PAPER_VALUES
from keras_vit.config.rows import read_rows, values_of
from keras_vit.config.vit import SIZES, ViTConfig
from keras_vit.synonyms import find_resnets

DEFAULT_IMAGE_SIZE = 224  # pixels, the resolution of pre-training
DEFAULT_CLASSES = 1000
GROUPS = 32  # of every GroupNorm, in all published models


@dataclasses.dataclass(frozen=True)
class ResNetConfig:
    """The sizes of a ResNet baseline: all that decides its layers, but image size and classes.

    Example:
        >>> keras_vit.RESNETS["R50x1"]
        ResNetConfig(stages=(3, 4, 6, 3), width_factor=1)
        >>> small = keras_vit.ResNetConfig(stages=(1, 1, 1, 1), width_factor=0.5)
        >>> keras_vit.build_resnet(small, classes=10).count_params()
        2017578

    Args:
        stages: residual units in each stage.
        width_factor: 1 is a root of 64 channels, and 2,048 channels after four stages.

    Raises:
        TypeError: for a value of the wrong type.
        ValueError: for a value out of range.
    """

    stages: tuple[int, ...]
    width_factor: float = 1

    def __post_init__(self) -> None:
        if not isinstance(self.stages, (tuple, list)) or not self.stages:
            raise TypeError(f"`stages` must be a tuple of unit counts, one or more.\nReceived: stages={self.stages!r}.")
        object.__setattr__(self, "stages", tuple(check_positive_int("stages", units) for units in self.stages))
        check_number("width_factor", self.width_factor)
        width = 64 * self.width_factor
        if not (width >= GROUPS and width % GROUPS == 0):
            raise ValueError(
                f"GroupNorm has {GROUPS} groups, so 64 * `width_factor` must be a positive multiple of {GROUPS}.\n"
                f"Received: width_factor={self.width_factor}."
            )

    def as_dict(self) -> dict[str, Any]:
        """The fields by their names, as a file keeps them."""
        return dataclasses.asdict(self)

    @property
    def width(self) -> int:
        """Channels of the root, and F of the first stage."""
        return int(64 * self.width_factor)

    @property
    def features(self) -> int:
        """D, channels of the last feature map and size of the representation."""
        return 4 * self.width * 2 ** (len(self.stages) - 1)

    @property
    def stride(self) -> int:
        """Side in image pixels of what one place of the last feature map covers."""
        return 2 ** (len(self.stages) + 1)  # root and pooling halve, and every stage after the first

    @property
    def side_unit(self) -> int:
        """Pixels of which an image's height and width are multiples: padding takes every side."""
        return 1

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """`(h, w)` of the last feature map for an image of `height` x `width` pixels."""
        return math.ceil(height / self.stride), math.ceil(width / self.stride)


@dataclasses.dataclass(frozen=True, eq=False)
class EncoderFamily:
    """Models that differ in size alone.

    Attributes:
        title: as people write it.
        builder: what the names of its builders begin with.
        papers: arXiv numbers.
        sizes: `{name: (P, D, L, A, M)}`.
        fields: of `ViTConfig`, which all its models have.
        of_size: `{name of a size: fields}` that this one has besides.
    """

    title: str
    builder: str
    papers: tuple[str, ...]
    sizes: dict[str, tuple[int, ...]]
    fields: Mapping[str, Any]
    of_size: dict[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)


def _read_families() -> dict[str, EncoderFamily]:
    """The families; of each the first row has what all its models have, and the others have a size each."""
    found: dict[str, EncoderFamily] = {}
    for row in read_rows(__file__, "encoders.csv"):
        name, size, fields = row["family"], row["size"], values_of(row["fields"])
        if not size:
            found[name] = EncoderFamily(row["title"], row["builder"], tuple(row["papers"].split()), {}, fields, {})
            continue
        found[name].sizes[size] = tuple(int(row[column]) for column in SIZES)
        if fields:
            found[name].of_size[size] = fields
    return found


FAMILIES: Mapping[str, EncoderFamily] = _read_families()
ENCODERS = {
    f"{name}/{size}": family.builder + size for name, family in FAMILIES.items() for size in family.sizes
}  # {name: that of its builder}


def encoder(name: str) -> ViTConfig:
    """The `ViTConfig` of a name of `ENCODERS`, as `"dinov2/S14"`."""
    return _encoder(FAMILIES[family_of(name)], name.partition("/")[2])


@functools.cache
def _encoder(family: EncoderFamily, size: str) -> ViTConfig:
    fields = {**family.fields, **family.of_size.get(size, {})}
    # A value of the paper's stays open to a file, as timm computes SigLIP with exact GELU.
    fields = {field: value for field, value in fields.items() if PAPER_VALUES.get(field) != value}
    return ViTConfig(*family.sizes[size], **fields)


def family_of(name: str) -> str:
    """The family in a name of `ENCODERS`."""
    return name.partition("/")[0]


_ROWS = {row["name"]: row for row in read_rows(__file__, "variants.csv")}
VARIANTS = {
    name: ViTConfig(*(int(row[size]) for size in SIZES), **values_of(row["fields"]))
    for name, row in _ROWS.items()
    if row["patch_size"]
}
RESNETS = {name: ResNetConfig(**values_of(row["fields"])) for name, row in _ROWS.items() if not row["patch_size"]}


def variant(name: str) -> ViTConfig:
    """The `ViTConfig` of a published model.

    Args:
        name: a key of `VARIANTS`, as `"B/16"` or `"R50+L/32"`, or an encoder, as `"dinov2/S14"`.

    Raises:
        ValueError: for an unknown name; the error lists the nearest ones.
    """
    if name in ENCODERS:
        return encoder(name)
    if name not in VARIANTS:
        raise ValueError(
            f"`name` must be one of {', '.join(VARIANTS)}, or an encoder of a family: {', '.join(FAMILIES)}, with its "
            f"size, as 'dinov2/S14'.\nReceived: {name!r}.{_hint(name)}"
        )
    return VARIANTS[name]


def resnet(name: str) -> ResNetConfig:
    """The `ResNetConfig` of a model of the papers.

    Args:
        name: a key of `RESNETS`, as `"R50x1"`.

    Raises:
        ValueError: for an unknown name; the error lists the nearest ones.
    """
    if name not in RESNETS:
        raise ValueError(
            f"`name` must be one of {', '.join(RESNETS)}.\nReceived: {name!r}.{did_you_mean(name, RESNETS)}"
        )
    return RESNETS[name]


def _hint(name: str) -> str:
    if isinstance(name, str) and (resnets := find_resnets(name, RESNETS)):
        return f" keras_vit.build_resnet({resnets[0]!r}) builds the ResNet."
    return did_you_mean(name, (*VARIANTS, *ENCODERS))


def builder_name(name: str) -> str:
    """The builder of a model: `"ViTB16"` for `"B/16"`, `"R50ViTL32"` for `"R50+L/32"`, `"DINOv2S14"`, `"R50x1"`."""
    if name in ENCODERS or name in RESNETS:
        return ENCODERS.get(name, name)
    hybrid, _, size = name.rpartition("+")
    return f"{hybrid}ViT{size.replace('/', '')}"


BUILDERS = {builder_name(name): name for name in VARIANTS}  # builder: variant


def check_image_size(size: Any, config: ViTConfig | ResNetConfig) -> tuple:
    """`size`, a side or (H, W), as (H, W) of ints; raises unless the sides are unknown or tiled by the patches."""
    given = size if isinstance(size, (tuple, list)) else (size, size)
    if len(given) != 2:
        raise ArgumentError(f"`image_size` must be one side, or (H, W).\nReceived: image_size={size!r}.")
    sides = [side if side is None else check_positive_int("image_size", side) for side in given]
    check_tiled("image_size", size, sides, config)
    return tuple(sides)


def check_tiled(
    name: str,
    given: Any,
    sides: Sequence[int | None],
    config: ViTConfig | ResNetConfig,
    channels: Sequence[int | None] = (),
) -> None:
    """Raises unless the sides of `given`, argument `name`, are unknown or tiled by the config's patches."""
    step = config.side_unit
    if isinstance(config, ResNetConfig) or not any(side is not None and side % step for side in sides):
        return  # a ResNet takes images of any size
    nearest = (*(side and max(round(side / step), 1) * step for side in sides), *channels)
    unit = f"patch_size={config.patch_size}"
    if step != config.patch_size:
        unit += f" after a ResNet, {step} pixels in all"
    raise ArgumentError(
        f"`{name}` must be a multiple of `patch_size` on both sides, so that patches tile the image.\n"
        f"Received: {name}={given}, {unit}. Nearest: {nearest if isinstance(given, (tuple, list)) else nearest[0]}."
    )
