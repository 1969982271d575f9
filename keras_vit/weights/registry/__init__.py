"""The table of published checkpoints: what `weights="..."` can name, and where each file is.

`list_weights` shows it, `find_weights` looks one up. Imports neither Keras nor TensorFlow.
"""

import functools
import html
import re
from collections.abc import Collection, Iterable, Iterator

from keras_vit.checks import ArgumentError, check_choice, did_you_mean
from keras_vit.config.variants import BUILDERS, ENCODERS, RESNETS, VARIANTS, builder_name
from keras_vit.config.vit import ViTConfig
from keras_vit.synonyms import find_hub_weights
from keras_vit.weights.registry.augreg import augreg_record, looks_like_augreg
from keras_vit.weights.registry.record import WeightsRecord, read_records

__all__ = ["WeightsRecord", "all_records", "builder_name", "find_weights", "list_weights"]
_ALIASES = {
    "imagenet21k+imagenet2012-384": "imagenet21k+imagenet2012",
    "augreg-imagenet21k+imagenet2012": "augreg-imagenet21k+imagenet2012-384",
    "flexivit-imagenet2012-1200ep": "flexivit-imagenet2012",
}


def all_records() -> tuple[WeightsRecord, ...]:
    """Every record of the table."""
    return read_records("vit.csv") + read_records("encoders.csv")


@functools.cache
def _by_name() -> dict[tuple[str, str], WeightsRecord]:
    return {(record.name, record.variant): record for record in all_records()}


def find_weights(name: str, variant: str | None = None) -> WeightsRecord:
    """Finds a published checkpoint by its name, and gives its record.

    Example:
        >>> record = keras_vit.find_weights("augreg-imagenet21k", "B/16")
        >>> record.classes, record.resolution, record.license
        (21843, 224, 'Apache-2.0')

    Args:
        name: as in the table (`list_weights`), a published AugReg file name with or without `.npz`, or
            `"hf:owner/repository"` of a repository in the table.
        variant: a key of `keras_vit.VARIANTS`, e.g. `"B/16"`, of `keras_vit.RESNETS`, or an encoder as `"dinov2/S14"`.
            It may be left out where one model alone has weights of that name.

    Raises:
        ValueError: for a name that is unknown, or not of this variant; it lists the nearest names. Also for a name
            that several models have weights of, without `variant`.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of published weights must be a string.\nReceived: {name!r}.")
    if variant is None:
        return _only(name)
    check_choice("variant", variant, (*VARIANTS, *RESNETS, *ENCODERS))
    record = _by_name().get((_ALIASES.get(name, name), variant))
    if record is None and name.startswith("hf:"):
        record = next((record for record in all_records() if record.hf_repo == name[len("hf:") :]), None)
    if record is None and not name.startswith("hf:") and looks_like_augreg(name):
        record = _augreg(name)
    if record is None:
        raise ValueError(_unknown(name, variant))
    if record.variant != variant:
        raise ValueError(
            "published weights belong to one variant.\n"
            f"Received: {name!r} for {variant}, and it is {record.variant}: use {builder_name(record.variant)}."
        )
    return record


def _augreg(name: str) -> WeightsRecord:
    record = augreg_record(name)
    return next((known for known in read_records("vit.csv") if known.path == record.path), record)


def _only(name: str) -> WeightsRecord:
    """The one record of a name."""
    if looks_like_augreg(name) and not name.startswith("hf:"):
        return _augreg(name)
    found = [r for r in all_records() if r.name == _ALIASES.get(name, name) or f"hf:{r.hf_repo}" == name]
    if not found:
        names = sorted({record.name for record in all_records()})
        raise ValueError(
            "published weights must be named as in the table, keras_vit.list_weights(), or be the name of an AugReg "
            f"file.\nReceived: {name!r}.{near(name, names)}"
        )
    if len(found) > 1:
        raise ArgumentError(
            "several models have weights of that name, so the model must be named too.\n"
            f"Received: {name!r}, which is of {', '.join(record.variant for record in found)}.",
            parameters=("config",),
        )
    return found[0]


def _unknown(name: str, variant: str) -> str:
    names = [record.name for record in all_records() if record.variant == variant]
    names += [alias for alias, target in _ALIASES.items() if target in names]
    if not names:
        return f"no weights are published for {variant}.\nReceived: {name!r}. `keras_vit.list_weights()` has all."
    others = (_ALIASES.get(name, name), find_hub_weights(name))
    elsewhere = ", ".join(record.variant for record in all_records() if record.name in others)
    return (
        "published weights must be named as in the table, "
        f"keras_vit.list_weights({builder_name(variant)!r}), or be the name of an AugReg file.\n"
        f"Received: {name!r} for {variant}.{_classes_named(name, variant) or near(name, names)}"
        + (f" Weights of that name are published for {elsewhere}." if elsewhere else "")
    )


def _classes_named(name: str, variant: str) -> str:
    """`' Did you mean ...?'` for weights with the classes that a name of ImageNet means elsewhere, or `''`."""
    words = re.fullmatch(r"(?:in|imagenet|ilsvrc)[-_]?(1k|21k|22k|2012)?(?:_v\d)?|default|pretrained|true", name, re.I)
    count = 21843 if words and str(words[1]).lower() in ("21k", "22k") else 1000
    names = [r.name for r in all_records() if r.variant == variant and r.classes == count]
    if words is None or not names or name.lower() in names:
        return ""
    names.sort(key=lambda name: (not name.startswith(("augreg", "bit")), name.startswith("hf:"), name))
    return f" Did you mean {' or '.join(map(repr, names[:3]))}, with {count:,} classes?"


def near(name: str, names: Collection[str]) -> str:
    """`' Did you mean ...?'` for the nearest names, or some of them if none is near."""
    for on_the_hub in (find_hub_weights(name), f"hf:{name}"):
        if on_the_hub in names:
            return f" Did you mean {on_the_hub!r}?"
    return did_you_mean(name, names) or f" Some of them: {', '.join(sorted(names)[:5])}."


def suggest_model(name: str) -> str:
    """`' Did you mean ...?'` for a name of weights or of a repository where a model's is asked for, or `''`."""
    found = [r for r in all_records() if name in (r.name, r.hf_repo, f"hf:{r.hf_repo}")]
    if not found:
        return ""
    record = found[0]
    return f" Did you mean {record.variant!r}, with `weights={record.name!r}`?"


def config_of_timm(architecture: str) -> ViTConfig | None:
    """The config of an architecture of timm, which its own `config.json` does not say; `None` if no record has it."""
    found = (record.config for record in _of_timm().get(architecture.replace("_quickgelu", ""), ()))
    return next((config for config in found if isinstance(config, ViTConfig)), None)


@functools.cache
def _of_timm() -> dict[str, list[WeightsRecord]]:
    """The records of timm's repositories by architecture."""
    found: dict[str, list[WeightsRecord]] = {}
    for record in all_records():
        owner, _, name = (record.hf_repo or "").partition("/")
        if owner == "timm":
            found.setdefault(name.partition(".")[0], []).append(record)
    return found


def variant_of(model: str) -> str:
    """The variant of a builder's name or a variant's own; ValueError for another, with the nearest."""
    builders = BUILDERS | {builder: name for name, builder in ENCODERS.items()}
    known = (*builders, *VARIANTS, *RESNETS, *ENCODERS)
    if model not in known:
        raise ArgumentError(
            "`model` must be one of the builders, as 'ViTB16', 'R50x1' or 'DINOv2S14', or of the variants, as 'B/16' "
            f"or 'dinov2/S14'.\nReceived: model={model!r}.{near(str(model), known)}"
        )
    return builders.get(model, model)


class WeightsTable(tuple):
    """Records of checkpoints, printed as a table; else a tuple of `WeightsRecord`."""

    _HEADER = ("name", "variant", "resolution", "classes", "head", "MB", "accuracy", "licence", "text")
    __slots__ = ()

    def _cells(self) -> Iterator[tuple[str, ...]]:
        for record in self:
            accuracy = "?" if record.accuracy is None else f"{record.accuracy:.1f}"
            accuracy += "" if accuracy == "?" or record.measure == "top-1" else f" {record.measure}"
            numbers, text = (str(record.resolution), str(record.classes)), "yes" * record.has_text
            first = (record.name, record.variant, *numbers, record.head, record.megabytes)
            yield *first, accuracy, record.license, text

    def __str__(self) -> str:
        lines = [self._HEADER, *self._cells()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        def row(cells: Iterable[str], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = "".join(row(cells, "td") for cells in self._cells())
        return f"<table><thead>{row(self._HEADER, 'th')}</thead><tbody>{body}</tbody></table>"


def _check_family(family: str) -> None:
    models = [name for name in ENCODERS if isinstance(family, str) and name.startswith(f"{family}/")]
    known = tuple(dict.fromkeys(record.family for record in all_records()))
    if models and family not in known:
        raise ArgumentError(
            "the table has no weights of this family, whose models take a file or folder all the same.\n"
            f"Received: family={family!r}. As an example, `keras_vit.build({models[0]!r}, weights=...)`."
        )
    check_choice("family", family, known)


def list_weights(model: str | None = None, family: str | None = None) -> WeightsTable:
    """Lists the published checkpoints as a table.

    A size as `~88` is computed from the parameters, since no source has that of the file.

    Example:
        >>> keras_vit.list_weights("dinov2/S14")
        name                              variant     resolution  classes  head  MB   accuracy  licence     text
        dinov2                            dinov2/S14  224         0        none  ~88  79.0 kNN  Apache-2.0
        ...
        >>> keras_vit.list_weights(family="siglip")[0].name
        'siglip-224'

    Args:
        model: a builder's name as `"ViTB16"`, `"R50x1"` or `"DINOv2S14"`, a variant as `"B/16"` or `"dinov2/S14"`, or
            `None` for all.
        family: whose weights, as `"augreg"`, `"dinov2"` or `"siglip"`; `None` for all.

    Raises:
        ValueError: for an unknown model or family; it lists the nearest.
    """
    variant = None if model is None else variant_of(model)
    if family is not None:
        _check_family(family)
    return WeightsTable(r for r in all_records() if variant in (None, r.variant) and family in (None, r.family))


_USUAL = ("augreg-imagenet21k+imagenet2012-224", "bit-imagenet21k+imagenet2012")  # of a variant, of a ResNet


def usual_weights(variant: str) -> str:
    """Weights that a name alone gets: of an encoder those that stand first in the table, of others ImageNet's."""
    if variant in ENCODERS:
        return next((record.name for record in list_weights(variant)), _USUAL[0])
    return _USUAL[variant in RESNETS]
