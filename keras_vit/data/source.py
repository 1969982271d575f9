"""`Source`: the description of a data set, whatever its kind."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_vit.annotations import FilePath, Splits
from keras_vit.checks import ArgumentError, check_choice, check_positive_int, check_seed, with_parameters
from keras_vit.data.splits import SPLIT_ALIASES
from keras_vit.images.validation import BadImage

ORDERS = ("balanced", "random")  # of a subset
_MOST_TRAINED = 50_000  # training labels that are read before a run
_STREAM = 7  # of random numbers of a subset, so that the division into splits has others


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """A labelled data set whose examples have been checked; `open_source` makes it.

    Example:
        >>> source = keras_vit.open_source(photos)
        >>> source.kind, source.class_names, sorted(source.splits)
        ('folder', ('disc', 'stripes', 'tiles'), ['test', 'train', 'validation'])
        >>> source.subset(6)
        Source('photos', kind='folder', classes=3, sizes={'train': 6, 'validation': 3, 'test': 3}, bad_images=0)

    Args:
        name: name of the data set.
        kind: `"folder"`, `"table"`, `"shards"`, `"arrays"`, `"digits"` or `"tensorflow_datasets"`.
        class_names: one name for each label, in the order of labels.
        splits: the existing ones of `"train"`, `"validation"` and `"test"`.
        bad_images: files that were left out, each with the reason.
        facts: further facts for a report, ready for JSON.
    """

    name: str
    kind: str
    class_names: tuple[str, ...]
    splits: Splits
    bad_images: tuple[BadImage, ...] = ()
    facts: Mapping[str, object] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        counts = f"classes={len(self.class_names)}, sizes={self.sizes}, bad_images={len(self.bad_images)}"
        return f"Source({self.name!r}, kind={self.kind!r}, {counts})"

    @property
    def sizes(self) -> dict[str, int]:
        """Number of examples of each split."""
        return {name: split.size for name, split in self.splits.items()}

    def split(self, name: str) -> Any:
        """The examples of a split, or of several, as `"train+validation"`.

        Raises:
            ValueError: for a split that does not exist, is empty, or is named twice.
            TypeError: for anything but a string.
        """
        parts = check_split(name)
        for part in parts:
            if part not in self.splits:
                measured = "" if part == "train" else f' To measure all of them, pass split="{"+".join(self.splits)}".'
                raise ArgumentError(
                    f"the data must have the split {part!r}.\nReceived: {self.name}, with {self.sizes}. Name files, "
                    f"folders or rows {part!r}, or leave splits out, so that a seed divides the data.{measured}",
                    parameters=("split",),
                )
        joined = self.splits[parts[0]]
        for part in parts[1:]:
            joined = joined.concatenate(self.splits[part])
        if joined.size == 0:
            raise ValueError(f"the {name} set is empty.\nReceived: {self.name}, with {self.sizes}.")
        return joined

    def subset(self, train_images: int, *, seed: int = 0, order: str = "balanced") -> "Source":
        """The same data with fewer training images, for a study of the amount of data.

        For one seed and order, every smaller set lies in each larger one, if both are subsets of the same source.
        The other splits do not change.

        Args:
            train_images: exact number of training images of the subset.
            seed: seed of the order in which images are taken, in [0, 2**31).
            order: `"balanced"` takes classes in turn, so that their counts differ by 1 at most, until a class has no
                image left. `"random"` takes any image, as arXiv:2010.11929, section 4.3, does.

        Raises:
            TypeError: for numbers that are not integers.
            ValueError: for more images than `train` has, for fewer than classes with `"balanced"`, and for an unknown
                order.
        """
        train_images, seed = check_positive_int("train_images", train_images), check_seed("seed", seed)
        check_choice("order", order, ORDERS)
        train = self.split("train")
        if train_images > train.size:
            raise ArgumentError(
                "`train_images` must be at most the number of training images.\n"
                f"Received: train_images={train_images:,}, for {train.size:,} images of {self.name}."
            )
        if order == "balanced" and np.ndim(train.labels) > 1:
            raise ArgumentError(
                "a balanced subset takes an image of each class in turn, so each image must have one class.\n"
                f'Received: order={order!r} for {self.name}, with a row of targets for each. Pass order="random".'
            )
        if order == "balanced" and train_images < (classes := len(np.unique(train.labels))):
            raise ArgumentError(
                "`train_images` must have one image for each class.\n"
                f"Received: train_images={train_images}, for {classes} classes of {self.name}."
            )
        splits = {**self.splits, "train": train.take(_choose(train, train_images, seed, order))}
        facts = {**self.facts, "subset": {"train_images": train_images, "seed": seed, "order": order}}
        return dataclasses.replace(self, splits=splits, facts=facts)

    def check_labels(self) -> None:
        """Reads the labels that `open_source` has not, those of a tensorflow-datasets set.

        Of the training split it reads 50,000, since all images of a large set would take minutes.

        Raises:
            ValueError: for a label that is no class, as -1 for a hidden one.
        """
        for name, split in self.splits.items():
            if hasattr(split, "check_labels"):
                split.check_labels(_MOST_TRAINED if name == "train" else split.size)

    def rows(self, split: str) -> list[dict]:
        """The facts about each example: `index`, `label`, `class` if the label is one, and `path` if it is a file."""
        examples = self.split(split)
        rows = [{"index": index, **examples.row(index)} for index in range(examples.size)]
        names = self.class_names
        return [row if isinstance(row["label"], list) else row | {"class": names[row["label"]]} for row in rows]

    def own_name(self, split: str) -> str:
        """What the data themselves call a split: `"validation"` may be what serves as `"test"`."""
        names = self.facts.get("splits")
        return str(names[split]) if isinstance(names, Mapping) else split

    def pixels(self, split: str, index: int) -> np.ndarray:
        """Pixels of one example, upright: uint8 `(H, W, C)`."""
        return self.split(split).pixels(index)

    def describe(self) -> dict:
        """Everything but the examples, ready for JSON."""
        return {
            "name": self.name,
            "kind": self.kind,
            "classes": len(self.class_names),
            "class_names": list(self.class_names),
            "sizes": self.sizes,
            "bad_images": [dataclasses.asdict(image) for image in self.bad_images],
            **self.facts,
        }


def split_to_measure(source: Source) -> str:
    """What is measured where no split is named: all examples of data without splits of their own, else `"test"`."""
    return "test" if source.facts.get("divided_by_seed") is None else "+".join(source.splits)


def check_split(name: str) -> list[str]:
    """The splits that a string names; raises for names that no data has."""
    if not isinstance(name, str):
        raise with_parameters(
            TypeError(f'`split` must be a text, as "train" or "train+validation".\nReceived: split={name!r}.'), "split"
        )
    parts = [SPLIT_ALIASES.get(part.strip(), part.strip()) for part in name.split("+")]
    for part in parts:
        check_choice("split", part, tuple(dict.fromkeys(SPLIT_ALIASES.values())))
    if len(set(parts)) < len(parts):
        raise ArgumentError(f"each split must be named once, or its examples count twice.\nReceived: split={name!r}.")
    return parts


def _choose(examples: Any, count: int, seed: int, order: str) -> np.ndarray:
    """Ascending numbers of `count` examples, the first in an order of the seed alone, so that subsets are nested.

    Sections 4.3 and 4.4 of arXiv:2010.11929 train on random subsets of one set.
    """
    rng = np.random.default_rng([seed, _STREAM])
    drawn = rng.permutation(examples.size)
    if order == "balanced":
        drawn = drawn[_round_robin(np.asarray(examples.labels)[drawn], rng)]
    return np.sort(drawn[:count])


def _round_robin(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Places of the first example of each class, then of the second, and so on; classes keep one random order."""
    by_class = np.argsort(labels, kind="stable")
    grouped = labels[by_class]
    turns = np.arange(len(labels)) - np.searchsorted(grouped, grouped)
    places = rng.permutation(grouped.max() + 1)[grouped]
    return by_class[np.lexsort((places, turns))]


Data: TypeAlias = FilePath | Sequence[Any] | Mapping[str, Any] | Source  # the argument of `open_source`


def fingerprint(source: Source) -> str:
    """SHA-256 of the examples of every split.

    Files count by their labels, orientations and paths below their common folder, not by their bytes; photos in shards
    by the names of the shards and their own in these. So a data set
    may be moved, and a run goes on with it. Arrays count by all values. A set of tensorflow-datasets counts by its
    name, its version and the numbers of its examples.
    """
    found = hashlib.sha256()
    top = common_top(source)
    for name, split in source.splits.items():
        found.update(f"{name} {split.size}\n".encode())
        for part in _parts(split, top):
            found.update(part)
    return found.hexdigest()


def _parts(split: Any, top: str) -> Iterator[Any]:
    """Bytes that differ if the examples differ."""
    if hasattr(split, "paths"):
        yield from (f"{os.path.relpath(str(path), top)}\n".encode(errors="surrogateescape") for path in split.paths)
        yield from (_label_bytes(split.labels), np.ascontiguousarray(split.orientations))
    elif hasattr(split, "images"):
        yield str((split.images.shape, split.images.dtype.name)).encode()
        yield from (np.ascontiguousarray(split.images), _label_bytes(split.labels))
    else:
        yield f"{split.builder.info.full_name} {split.name}".encode()
        yield b"" if split.numbers is None else np.ascontiguousarray(split.numbers)


def _label_bytes(labels: np.ndarray) -> Any:
    """Labels as bytes; texts are objects, whose memory says nothing of them."""
    return json.dumps(labels.tolist()).encode() if labels.dtype == object else np.ascontiguousarray(labels)


def common_top(source: Source) -> str:
    """The common folder of all files of a source; empty without files."""
    paths = [str(path) for split in source.splits.values() for path in getattr(split, "paths", ())]
    return os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
