"""The files of "How to train your ViT?" (arXiv:2106.10270): their names, their index, the best of them.

A name tells model, data, epochs, augmentation and regularisation, and for adapted files the dataset it
was fine-tuned on: `B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0--cifar100-steps_10k-lr_0.01-res_384`.
51,509 files are listed in `vit_models/augreg/index.csv`. Imports neither Keras nor TensorFlow.
"""

import csv
import dataclasses
import math
import os
import re
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from keras_vit.annotations import FilePath
from keras_vit.checks import did_you_mean
from keras_vit.config.variants import VARIANTS
from keras_vit.config.vit import ViTConfig
from keras_vit.files import FileKindError, expand_path, read_regular
from keras_vit.weights.hub.weights_record import FileSize, WeightsRecord, computed_size, make_record, squash

FOLDER = "vit_models/augreg/"
_MOST_BYTES = 1 << 28  # of the index, which has some 2e7
MODELS = {  # the part of a file's name before the first "-": variant
    "Ti_16": "Ti/16",
    "S_32": "S/32",
    "S_16": "S/16",
    "B_32": "B/32",
    "B_16": "B/16",
    "B_8": "B/8",
    "L_16": "L/16",
    "R_Ti_16": "R+Ti/16",
    "R26_S_32": "R26+S/32",
    "R50_L_32": "R50+L/32",
}
CLASSES = {
    "i21k": 21843,
    "i1k": 1000,
    "imagenet2012": 1000,
    "cifar100": 100,
    "oxford_iiit_pet": 37,
    "kitti": 4,
    "resisc45": 45,
}
_LEVELS = ("aug_none", "aug_light0", "aug_light1", "aug_medium1", "aug_medium2", "aug_strong1", "aug_strong2")
Grammar: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]  # each part of a name, and what may stand there
_UPSTREAM: Grammar = (  # the parts of a name in their order, and what may stand there
    ("model", tuple(MODELS)),
    ("data", ("i1k", "i21k")),
    ("epochs", ("30ep", "300ep")),
    ("learning rate", ("lr_0.001",)),
    ("augmentation", _LEVELS),
    ("weight decay", ("wd_0.03", "wd_0.1")),
    ("dropout", ("do_0.0", "do_0.1")),
    ("stochastic depth", ("sd_0.0", "sd_0.1")),
)
_ADAPTED: Grammar = (
    ("dataset", ("imagenet2012", "cifar100", "oxford_iiit_pet", "kitti", "resisc45")),
    ("steps", ("steps_0k", "steps_2k", "steps_10k", "steps_20k")),
    ("learning rate", ("lr_0.001", "lr_0.003", "lr_0.01", "lr_0.03")),
    ("resolution", ("res_224", "res_384")),
)
_LOOKS_LIKE_ONE = re.compile(r"-lr_|-aug_|-i21k-|-i1k-")


def looks_like_augreg(name: str) -> bool:
    """Whether `name` is meant as the name of an AugReg file, be it right or wrong."""
    return bool(_LOOKS_LIKE_ONE.search(name))


def augreg_record(file: str, name: str | None = None, **known: Any) -> WeightsRecord:
    """The record of an AugReg file.

    Args:
        file: as published, with or without `.npz`.
        name: of the record; by default the file's, without `.npz`.
        **known: `size`, `accuracy`, `accuracy_source` and `note`, where a source tells them.

    Raises:
        ValueError: for a name that cannot be one, saying which part is wrong and what may stand there.
    """
    stem = file.removesuffix(".npz")
    upstream, dashes, adapted = stem.partition("--")
    parts = _check_parts(file, upstream, _UPSTREAM)
    dataset, resolution = parts["data"], 224
    if (dataset, parts["epochs"]) == ("i1k", "30ep"):
        raise ValueError(f"AugReg's ImageNet-1k models were trained for 300 epochs only.\nReceived: {file!r}.")
    if dashes:
        adaptation = _check_parts(file, adapted, _ADAPTED)
        dataset, resolution = adaptation["dataset"], int(adaptation["resolution"].removeprefix("res_"))
    variant = MODELS[parts["model"]]
    if dataset == "i1k":  # some of these have pre_logits, some have not (arXiv:2106.10270, section 3.2)
        known = {"size": _size_with_or_without_pre_logits(VARIANTS[variant])} | known
    path, images = f"{FOLDER}{stem}.npz", squash(resolution)
    # Without dropout, as AugReg was fine-tuned (official configs/augreg.py).
    return make_record(name or stem, variant, path, CLASSES[dataset], images, dropout_rate=0.0, **known)


def _size_with_or_without_pre_logits(config: ViTConfig) -> FileSize:
    uncertain = (config.hidden_size + 1) * config.hidden_size
    return computed_size(config, 224, CLASSES["i1k"], uncertain_parameters=uncertain)


def _check_parts(name: str, text: str, grammar: Grammar) -> dict[str, str]:
    """The parts of `text` by what they mean; a part holds no "-"."""
    parts = text.split("-")
    for (meaning, choices), part in zip(grammar, parts, strict=False):
        if part not in choices:
            raise ValueError(
                f"the {meaning} in an AugReg name must be one of {', '.join(choices)}.\n"
                f"Received: {part!r} in {name!r}.{did_you_mean(part, choices)}"
            )
    if len(parts) != len(grammar):
        raise ValueError(
            f"an AugReg name has {len(_UPSTREAM)} parts joined by '-': {', '.join(part for part, _ in _UPSTREAM)}. "
            f"That of an adapted file has '--' and {len(_ADAPTED)} more: {', '.join(part for part, _ in _ADAPTED)}.\n"
            f"Received: {len(parts)} parts instead of {len(grammar)} in {text!r}, of {name!r}."
        )
    return {meaning: part for (meaning, _), part in zip(grammar, parts, strict=True)}


@dataclasses.dataclass(frozen=True)
class AugRegRow:
    """One line of `index.csv`: an upstream file, and one of its adaptations. Accuracies are in [0, 1].

    The columns are the file's own, explained in the official `vit_jax/checkpoint.py`; an empty cell is `None`.
    """

    name: str
    ds: str
    epochs: float | None
    lr: float | None
    aug: str
    wd: float | None
    do: float | None
    sd: float | None
    best_val: float | None
    final_val: float | None
    final_test: float | None
    adapt_ds: str
    adapt_lr: float | None
    adapt_steps: int | None
    adapt_resolution: int | None
    adapt_final_val: float | None
    adapt_final_test: float | None
    params: float | None
    infer_samples_per_sec: float | None
    filename: str
    adapt_filename: str


def read_augreg_index(path_or_text: FilePath) -> list[AugRegRow]:
    """Reads AugReg's `index.csv`.

    Args:
        path_or_text: the path of the file, or its text (recognised by a line break).

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for a column that is missing, a line of another length, or a cell that is no number; the
            error names the line.
    """
    source, text = _text(path_or_text)
    reader = csv.reader(text.splitlines(), strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise ValueError(
            f"the index must be a CSV file.\nReceived: {source}, line {reader.line_num}: {error}."
        ) from None
    header = lines[0][1] if lines else []
    missing = [field.name for field in dataclasses.fields(AugRegRow) if field.name not in header]
    if missing:
        raise ValueError(
            f"the first line of AugReg's index must name its columns.\nReceived: {source} without {', '.join(missing)}."
        )
    return [_row(source, header, number, cells) for number, cells in lines[1:]]


def _text(path_or_text: FilePath) -> tuple[str, str]:
    if isinstance(path_or_text, str) and "\n" in path_or_text:
        return "the text", path_or_text.removeprefix("\ufeff")
    if not isinstance(path_or_text, (str, os.PathLike)):
        raise TypeError(f"`path_or_text` must be a path or a string.\nReceived: {path_or_text!r}.")
    source = str(expand_path(path_or_text))
    if not os.path.isfile(source):
        raise FileNotFoundError(f"the index must be a file.\nReceived: {source!r}, and there is no such file.")
    try:
        return source, read_regular(source, _MOST_BYTES).decode("utf-8-sig")
    except FileKindError as error:
        raise ValueError(f"the index must be a text file.\nReceived: {source!r}: {error.reason}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"the index must be a text file.\nReceived: {source!r}: {error}.") from None


def _row(source: str, header: list[str], number: int, cells: list[str]) -> AugRegRow:
    if len(cells) != len(header):
        raise ValueError(
            "every line of AugReg's index must have as many cells as its first.\n"
            f"Received: {source}, line {number}: {len(cells)} cells, and {len(header)} columns."
        )
    named = dict(zip(header, cells, strict=True))
    values: dict[str, Any] = {}
    for field in dataclasses.fields(AugRegRow):
        try:
            values[field.name] = _cell(named[field.name].strip(), field.type)
        except ValueError:
            raise ValueError(
                f"`{field.name}` must be {'a whole number' if field.type == int | None else 'a number'} or empty.\n"
                f"Received: {source}, line {number}: {named[field.name]!r}."
            ) from None
    return AugRegRow(**values)


def _cell(text: str, kind: Any) -> str | float | None:
    if kind is str:
        return text
    number = float(text or "nan")
    if math.isnan(number):
        return None
    if math.isinf(number) or (kind == int | None and not number.is_integer()):
        raise ValueError
    return int(number) if kind == int | None else number


def best_augreg(
    rows: Sequence[AugRegRow],
    model: str,
    ds: str = "i21k",
    adapt_dataset: str | None = None,
    resolution: int | None = None,
) -> AugRegRow:
    """The recommended checkpoint by the official rule (arXiv:2106.10270, section 4.5).

    The upstream file with the highest `final_val` among those of `model` and `ds`; with `adapt_dataset`,
    of that file's adaptations to it (at `resolution`, if given) the one with the highest `adapt_final_val`.
    Rows without that accuracy are passed over; of equals the first by file name is taken, in whatever
    order the rows come.

    Args:
        rows: as `read_augreg_index` gives them.
        model: a variant as `"B/16"`, or its name in files as `"B_16"`.
        ds: `"i21k"`, `"i21k_30"` or `"i1k"`.
        adapt_dataset: e.g. `"imagenet2012"`; `None` for the upstream file.
        resolution: of the adaptation in pixels.

    Returns:
        The row; its `filename` or, with `adapt_dataset`, its `adapt_filename` is the file.

    Raises:
        ValueError: if no row fits.
    """
    stem = {variant: stem for stem, variant in MODELS.items()}.get(model, model)
    upstream = [row for row in rows if row.filename.split("-")[0] == stem and row.ds == ds]
    best = _highest(upstream, "final_val", "filename")
    if best is not None and adapt_dataset is not None:
        adapted = [row for row in upstream if row.filename == best.filename and row.adapt_ds == adapt_dataset]
        adapted = [row for row in adapted if resolution in (None, row.adapt_resolution)]
        best = _highest(adapted, "adapt_final_val", "adapt_filename")
    if best is None:
        raise ValueError(
            "no row of the index fits, with the accuracy by which the best is chosen.\n"
            f"Received: model={model!r}, ds={ds!r}, adapt_dataset={adapt_dataset!r}, resolution={resolution}; "
            f"models in the index: {', '.join(sorted({row.filename.split('-')[0] for row in rows})) or 'none'}."
        )
    return best


def _highest(rows: Iterable[AugRegRow], accuracy: str, filename: str) -> AugRegRow | None:
    known = [row for row in rows if getattr(row, accuracy) is not None]
    return min(known, key=lambda row: (-getattr(row, accuracy), getattr(row, filename)), default=None)
