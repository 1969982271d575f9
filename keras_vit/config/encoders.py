"""The encoders that people take features from: in `encoders.csv` one row a family, then one for each of its models.

A name is that of the family and of the size, as `"dinov2/S14"`. Sizes and fields are those of the authors' code, from
the papers that each family names. What a single file has otherwise, as registers, is in its record. Imports no Keras.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit.config.records import PAPER_VALUES
from keras_vit.config.rows import read_rows, values_of
from keras_vit.config.vit import SIZES, ViTConfig


@dataclasses.dataclass(frozen=True)
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
    family, size = FAMILIES[family_of(name)], name.partition("/")[2]
    fields = {**family.fields, **family.of_size.get(size, {})}
    # A value of the paper's stays open to a file, as timm computes SigLIP with exact GELU.
    fields = {field: value for field, value in fields.items() if PAPER_VALUES.get(field) != value}
    return ViTConfig(*family.sizes[size], **fields)


def family_of(name: str) -> str:
    """The family in a name of `ENCODERS`."""
    return name.partition("/")[0]
