"""What the examples of a data set are labelled with, and how that is read from its table.

Of a class, a label is its number, int64 `(n,)`. Of other targets a label is a row of K numbers, float32 `(n, K)`, with
one for each output of a model. The names of a `Source` are those of the classes or of the K numbers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_vit.data.label_checks import (
    HIDDEN,
    check_trained_classes,
    warn_conflicting_labels,
    warn_doubtful_class_names,
    warn_similar_class_names,
)
from keras_vit.data.shards.rows import label_text
from keras_vit.images.photo_tables import row_word
from keras_vit.images.validation import ValidImage

_MOST_DIGITS = 18  # of a class that is a number


class Targets:
    """Targets of one kind: what a table must have, and what is refused or warned of once photos were checked.

    A kind of its own overrides `columns` and `of_table`, and of the rest what it has to say.
    """

    are_texts: ClassVar[bool] = False  # then a file may have several, and a cell of a table several lines

    def open(self, path: Path, seed: int, on_bad_image: str) -> Any:
        """The `Source` of a path that these targets alone open, arguments as of `open_source`; `None` for others."""
        return None

    def complete(self, source: Any, folder: Path) -> Any:
        """A `Source` of a table in this folder, with what is read of its targets once the photos were checked."""
        return source

    def columns(self, path: Path, header: Sequence[str]) -> Sequence[str]:
        """The columns of a table that hold targets, without `path` and `split`; raises if they are not there."""
        raise NotImplementedError

    def of_table(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], np.ndarray]:
        """The names of the K outputs, and int64 `(n,)` or float32 `(n, K)`, of rows: cells by column, and their `line`.

        Raises:
            ValueError: with file, line and column of a cell that is no target.
        """
        raise NotImplementedError

    def of_shards(self, shards: Sequence[Any]) -> tuple[Sequence[str], Sequence[np.ndarray]] | None:
        """Names, and the labels of the photos of each shard; `None` where they are the classes that its index has."""
        return None

    def of_array(
        self, split: str, values: np.ndarray, names: Sequence[str] | None
    ) -> tuple[Sequence[str], np.ndarray] | None:
        """Names and labels of a split that is given as arrays; `None` where these are classes."""
        return None

    def check_source(self, source: Any) -> None:
        """Refuses an opened `Source` of other targets."""

    def strata(self, labels: np.ndarray) -> np.ndarray:
        """int64 `(n,)`: what is divided evenly over the splits of data without splits; by default nothing."""
        return np.zeros(len(labels), "int64")

    def check_names(self, names: Sequence[str]) -> None:
        """Warns of names that are most likely mistakes, before photos are read."""

    def check_kept(self, path: Path, names: Sequence[str], labels: np.ndarray, num_bad: int) -> None:
        """Refuses labels that cannot be learned, of the photos that can be decoded."""

    def check_splits(self, labels: Mapping[str, np.ndarray], names: Sequence[str]) -> None:
        """Refuses or warns of labels of one split, of data that have splits."""

    def check_copies(self, images: Sequence[ValidImage], labels: np.ndarray, names: Sequence[str]) -> None:
        """Warns of files with equal bytes and different labels."""


class ClassLabels(Targets):
    """One class of each example: the column `label` of a table."""

    def columns(self, path: Path, header: Sequence[str]) -> Sequence[str]:
        if "label" not in header:
            raise ValueError(
                "the first line of a table must name the columns path, label, and perhaps split, each once.\n"
                f"Received: {str(path)!r} with the columns {list(header)}.{_other_task(header)}"
            )
        return ("label",)

    def of_table(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], np.ndarray]:
        labels = [_label_in(path, row) for row in rows]
        names = sorted(set(labels), key=_number_first)
        if len(names) < 2:
            raise ValueError(
                "a table must have rows of at least two classes.\n"
                f"Received: {str(path)!r} with {len(rows)} row(s) and {len(names)} class(es) {names}."
            )
        others = {*names} - {HIDDEN}
        if HIDDEN in names and others != {"1"} and all(map(str.isdecimal, others)):  # -1 and 1 are two classes
            place = f"{row_word(path)} {rows[labels.index(HIDDEN)]['line']} of {str(path)!r}"
            rule = "labels that are numbers must be so from 0 on, and -1, which stands for a hidden label, is no class"
            words = "Leave such rows out, or give the classes names."
            raise ValueError(f"{rule}.\nReceived: {place} with '{HIDDEN}'. {words}")
        warn_doubtful_class_names(names)
        numbers = {name: number for number, name in enumerate(names)}
        return names, np.array([numbers[label] for label in labels], "int64")

    def strata(self, labels: np.ndarray) -> np.ndarray:
        return labels

    def check_names(self, names: Sequence[str]) -> None:
        warn_similar_class_names(names)

    def check_kept(self, path: Path, names: Sequence[str], labels: np.ndarray, num_bad: int) -> None:
        found = set(labels.tolist())
        if missing := [name for label, name in enumerate(names) if label not in found]:
            raise ValueError(
                "every class that has a name must have at least one image that can be decoded.\n"
                f"Received: {str(path)!r} with none for {', '.join(map(repr, missing[:5]))}, "
                f"and {num_bad} bad image(s)."
            )

    def check_splits(self, labels: Mapping[str, np.ndarray], names: Sequence[str]) -> None:
        check_trained_classes({name: set(of_split.tolist()) for name, of_split in labels.items()}, names)

    def check_copies(self, images: Sequence[ValidImage], labels: np.ndarray, names: Sequence[str]) -> None:
        warn_conflicting_labels(images, labels, names)


CLASS_LABELS = ClassLabels()


def _label_in(path: Path, row: Mapping[str, Any]) -> str:
    """The label of a row as text; that of Parquet may be a number."""
    label = row["label"] if isinstance(row["label"], str) else label_text(row["label"])
    if label is None:
        place = f"{row_word(path)} {row['line']} of {str(path)!r}"
        raise ValueError(f"a label must be text or a whole number.\nReceived: {place}: {row['label']!r}.")
    return label


def _other_task(header: Sequence[str]) -> str:
    """What to do with a table that has targets of another kind, after a space; or `''`."""
    if not set(header) - {"path", "split"} or "path" not in header:
        return ""
    kind = "" if "labels" in header else ", and one of numbers with `--task regression`"
    return (
        f" A table of several labels for a photo is opened with `--task multi-label`{kind}; in Python with "
        '`task="multi-label"`, or `targets=keras_vit.tasks.find_task("multi-label").targets()`. Probes take one class '
        "for each photo."
    )


def _number_first(name: str) -> tuple[int, int, str]:
    """The sort key of a class: numbers come first, by value, then names."""
    is_number = name.isdecimal() and len(name) <= _MOST_DIGITS
    return (0, int(name), name) if is_number else (1, 0, name)
