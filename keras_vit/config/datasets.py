"""The data sets of the paper and the 19 tasks of VTAB-1k, the rows of `datasets.csv`: names and official splits.

Splits are written as tensorflow-datasets slices them. `train` is what final runs train on, `dev_train` and `dev`
are its two parts by which hyper-parameters are chosen, `test` is what is reported.
"""

import dataclasses
import os
import re
from collections.abc import Iterable
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, check_choice, check_positive_int, did_you_mean
from keras_vit.config.rows import read_rows, value_of
from keras_vit.files import expand_path

_NAME = re.compile(r"[A-Za-z][\w-]*(/[\w.-]+)?(:[\d.*]+)?")
VTAB_PREFIX = "vtab/"
PROTOCOLS = ("linear", "finetune")  # of VTAB
SHARD_FORMATS = ("tar", "tfrecord", "parquet")  # that `pack` writes
SHARD_BYTES = 2**28  # of photos in a shard, by default
_FEWEST_BYTES = 2**10


def check_shard_bytes(shard_bytes: int) -> None:
    """Raises unless it is a size of a shard."""
    if check_positive_int("shard_bytes", shard_bytes) < _FEWEST_BYTES:
        raise ArgumentError(f"`shard_bytes` must be at least {_FEWEST_BYTES:,}.\nReceived: shard_bytes={shard_bytes}.")


@dataclasses.dataclass(frozen=True)
class DatasetRecord:
    """Where a data set is, how it is split, and what an example's label is.

    Args:
        name: in tensorflow-datasets, with its configuration.
        classes: K.
        train: split that final runs train on.
        dev_train: split to train on while hyper-parameters are chosen.
        dev: split to choose them by.
        test: split that is reported.
        source: where the splits come from.
        group: `"transfer"`, or of VTAB `"natural"`, `"specialised"` or `"structured"`.
        label: key of the label among the features; or of a rule of `data.tensorflow_datasets.LABEL_RULES`.
        label_classes: how many values the stored label has, where they are merged evenly into K; else `None`.
        image: key of the image.
        white: value of white in the stored image.
        crop: whether training images are cropped at random.
        flip: whether training images are flipped at random.
    """

    name: str
    classes: int
    train: str
    dev_train: str
    dev: str
    test: str
    source: str
    group: str = "transfer"
    label: str = "label"
    label_classes: int | None = None
    image: str = "image"
    white: int = 255
    crop: bool = True
    flip: bool = True


_ROWS = read_rows(__file__, "datasets.csv")


def _record(row: dict[str, str]) -> DatasetRecord:
    values = {name: value_of(word) for name, word in row.items() if word and name not in ("key", "hub", "source")}
    return DatasetRecord(**values, source=row["source"])


OFFICIAL_DATASETS = {row["key"]: _record(row) for row in _ROWS if not row["group"]}
# Names on the Hugging Face Hub, of those sets that are there in their own name: what a model card may link.
HUB_DATASETS = {row["key"]: row["hub"] for row in _ROWS if row["hub"]}
# 800 images train, 200 choose hyper-parameters. Without a validation split, the 200 start where the protocol's share of
# `train` ends: 90 % of 3,060 images for Caltech-101, 50,000 for CIFAR-100 and 73,257 for SVHN, 80 % of 3,680 for Pets,
# 60 % of 27,000 for EuroSAT and 31,500 for Resisc45 (whose last 20 % are tested), 90 % of 70,000 for CLEVR, 80 % of
# 737,280 for dSprites (whose last 10 % are tested); small NORB's are the first of its test images, whose second half is
# tested.
VTAB_TASKS = {row["key"]: _record(row) for row in _ROWS if row["group"]}


def find_dataset(name: str) -> DatasetRecord:
    """Finds a data set of the paper by its name, and gives its record.

    Example:
        >>> record = keras_vit.find_dataset("cifar10")
        >>> record.classes, record.train, record.test
        (10, 'train', 'test')

    Args:
        name: a key of `OFFICIAL_DATASETS`, as `"cifar10"`, or of `VTAB_TASKS`, as `"vtab/caltech101"`.

    Raises:
        ValueError: for another name; the error lists the nearest ones.
    """
    records = OFFICIAL_DATASETS | VTAB_TASKS
    if name not in records:
        raise ValueError(
            f"the name must be one of the paper's data sets: {', '.join(records)}.\n"
            f"Received: {name!r}.{did_you_mean(name, records)}"
        )
    return records[name]


def vtab_names(tasks: str | Iterable[str] | None) -> list[str]:
    """Names of tasks of VTAB without `vtab/`, by default of all; raises for another name, or one that comes twice."""
    if tasks is None:
        return [name.removeprefix(VTAB_PREFIX) for name in VTAB_TASKS]
    names = [vtab_name(task) for task in ([tasks] if isinstance(tasks, str) else tasks)]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"`tasks` must name tasks of VTAB, each once.\nReceived: tasks={tasks!r}.")
    return names


def vtab_name(task: str) -> str:
    """The name of a task without `vtab/`."""
    known = [name.removeprefix(VTAB_PREFIX) for name in VTAB_TASKS]
    name = str(task).removeprefix(VTAB_PREFIX)
    if name not in known:
        raise ValueError(
            f"a task must be one of VTAB's: {', '.join(known)}.\nReceived: {task!r}.{did_you_mean(name, known)}"
        )
    return name


def check_protocol(protocol: str, out: FilePath | None, changes: Any = None) -> None:
    """Raises for arguments of `vtab` that the protocol lacks, or has no use for."""
    check_choice("protocol", protocol, PROTOCOLS)
    if protocol == "finetune" and out is None:
        raise ArgumentError(
            "`out` must be a folder, which gets the run of each task.\nReceived: protocol='finetune', out=None."
        )
    if protocol == "linear" and (out is not None or changes):
        wrong = "out" if out is not None else "changes"
        raise ArgumentError(
            "a linear probe trains no model and writes no run.\n"
            f"Received: protocol='linear' with {wrong}. Leave it out."
        )
    if out is not None and os.path.isfile(expand_path(str(out))):
        raise ArgumentError(
            f"`out` must be a folder, which gets the run of each task.\nReceived: {str(out)!r}, a file."
        )


def may_be_a_name(what: Any) -> bool:
    """Whether this is spelt as tensorflow-datasets' names are: `name`, `name/config`, `name/config:1.0.0`."""
    return isinstance(what, str) and _NAME.fullmatch(what) is not None
