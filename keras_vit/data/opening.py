"""`open_source`, which opens a data set of any kind; tables of paths and labels, and arrays, are read here."""

import dataclasses
import glob
import itertools
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from keras_vit.checks import check_choice, check_process, check_seed, did_you_mean, install_hint
from keras_vit.config.datasets import OFFICIAL_DATASETS, VTAB_TASKS, may_be_a_name
from keras_vit.data import image_folder, tensorflow_datasets
from keras_vit.data.image_folder import source_from_files
from keras_vit.data.label_checks import check_trained_classes, warn_similar_class_names
from keras_vit.data.shards.finding import find_shards
from keras_vit.data.shards.opening import open_shards
from keras_vit.data.source import Data, Source
from keras_vit.data.splits import SPLIT_ALIASES, ArraySplit, divide
from keras_vit.data.targets import CLASS_LABELS, Targets
from keras_vit.files import access_error, expand_path
from keras_vit.images.photo_files import near_names
from keras_vit.images.photo_tables import is_table, open_table, path_cell, row_word
from keras_vit.images.preprocessing import check_levels
from keras_vit.pages.formatting import printable

DIGITS = "digits"  # the data set of scikit-learn
_INFO = "dataset_info.json"  # what tensorflow-datasets writes into the folder of a version
_MOST_TABLE_BYTES = 1 << 30  # of a table; that of ImageNet-21k's 14 million files has about 0.6e9


def open_source(
    what: Data,
    *,
    seed: int = 0,
    on_bad_image: str = "skip",
    download: bool = False,
    targets: Targets = CLASS_LABELS,
) -> Source:
    """Opens a data set and checks all of it, so that errors appear before the first training step.

    Example:
        >>> keras_vit.open_source(photos)
        Source('photos', kind='folder', classes=3, sizes={'train': 24, 'validation': 3, 'test': 3}, bad_images=0)
        >>> pixels = np.zeros((6, 8, 8, 3), "uint8")
        >>> keras_vit.open_source({"train": (pixels, [0, 1, 0, 1, 0, 1])}).class_names
        ('0', '1')

    Args:
        what: one of
            a folder of `{train,validation,test}/{class}/` folders, or of class folders alone, which are divided
            80/10/10 by `seed`, evenly in every class;
            a `.csv` file with the columns `path`, `label`, and perhaps `split`, a `.tsv` with tabs between them, or a
            `.parquet` file with these columns;
            shards of photos: a folder of them, a file or a pattern, as `"shards/*.tar"`, of `.tar` files as WebDataset
            writes them, or of `.tfrecord` or `.parquet` files;
            `"digits"`, 1,797 scanned digits that come with scikit-learn (a folder of that name is `"./digits"`);
            a tensorflow-datasets name, as `"cifar10"`;
            a folder in which tensorflow-datasets has prepared a set: that of one version, or the folder above it if
            there is only one version;
            a VTAB task, as `"vtab/caltech101"`;
            `(images, labels)`, with images `(n, H, W, C)` of uint8 or floats in [0, 255], and labels int `(n,)` or
            one-hot `(n, K)`;
            a dict of such pairs by split, which may also have `"class_names"`;
            a `Source`, which is returned unchanged.
        seed: divides data without splits, in [0, 2**31).
        on_bad_image: `"skip"` warns of files that cannot be decoded and lists them in `bad_images`; `"raise"` refuses
            them. Folders, tables and shards alone are checked. An undecodable image of a tensorflow-datasets set, or a
            file that disappears later, ends the pass with TensorFlow's error.
        download: whether a tensorflow-datasets set that has not been prepared may be fetched.
        targets: what examples are labelled with: `task.targets` of a task; by default one class each.

    Returns:
        A `Source`.

    Raises:
        ValueError: for data that does not exist, an empty set, a single class, or a class without an example. Also for
            labels or a seed out of range, and for bad files with `on_bad_image="raise"`.
        TypeError: for an argument of any other type.
        ImportError: where the extra `data` is needed and not installed.

    Warns:
        UserWarning: for files that were left out, files in two splits or under two classes, and splits without labels.
            Also for classes that differ only in case, spaces or Unicode form, or that have no training example.
    """
    seed = check_seed("seed", seed)
    check_choice("on_bad_image", on_bad_image, ("skip", "raise"))
    source = what if isinstance(what, Source) else _opened(what, seed, on_bad_image, download, targets)
    _check_names(source)
    targets.check_source(source)
    return source


def _check_names(source: Source) -> None:
    if twice := [name for name, count in Counter(source.class_names).items() if count > 1]:
        raise ValueError(
            "the names of classes or targets must differ, to tell these apart.\n"
            f"Received: {source.name!r} with {', '.join(map(repr, twice[:5]))} more than once. Name each once."
        )
    names = source.class_names
    if empty := [number for number, name in enumerate(names) if not name.strip() or "\0" in name]:
        raise ValueError(
            "each class or target must have a name that is not empty and has no NUL.\n"
            f"Received: {source.name!r} with {source.class_names[empty[0]]!r} for class {empty[0]}. Name it."
        )


def _opened(what: Data, seed: int, on_bad_image: str, download: bool, targets: Targets) -> Source:
    check_process()
    if isinstance(what, (tuple, list, Mapping)):
        return open_arrays(what, seed, targets=targets)
    if not isinstance(what, (str, os.PathLike)):
        raise TypeError(
            "data must be a name, a path, (images, labels), or a dict of those by split.\n"
            f"Received: an object of type {type(what).__name__}."
        )
    path = expand_path(what)
    if what == DIGITS:  # even if a folder `digits` exists, as a run may have written; `./digits` opens it
        return open_digits(seed)
    if (source := targets.open(path, seed, on_bad_image)) is not None:
        return source
    prepared = prepared_folder(path)
    if prepared is not None:
        return tensorflow_datasets.open_prepared(prepared)
    if is_table(path):
        return _open_table(path, seed, on_bad_image, targets)
    if files := find_shards(what):
        return open_shards(what, files, seed, on_bad_image, targets)
    if os.path.isdir(path):
        return image_folder.open_folder(path, seed, on_bad_image)
    if not os.path.exists(path) and glob.has_magic(str(path)) and not may_be_a_name(what):
        fitting = glob.glob(str(path), recursive=True)
        found = f"which fits {len(fitting):,} file(s) or folder(s), as {fitting[0]!r}" if fitting else "which fits none"
        raise ValueError(
            "a pattern of data must fit shards alone, which are .tar, .tfrecord or .parquet files.\n"
            f"Received: {os.fspath(what)!r}, {found}. Pass one as 'shards/*.tar', or a folder without a pattern."
        )
    if os.path.exists(path) or not may_be_a_name(what):
        found = "a file of another kind" if os.path.exists(path) else "and there is no such file or folder"
        found = f"which cannot be reached: {denied}" if (denied := access_error(path)) else found
        hint = near_names(path) or did_you_mean(what, [DIGITS, *OFFICIAL_DATASETS, *VTAB_TASKS], 0.75)
        raise ValueError(
            "data must be a folder of class folders, a .csv file, shards, or the name of a data set.\n"
            f"Received: {os.fspath(what)!r}, {found}.{hint} "
            "Put the photos of each class into a folder of its own, and pass the folder above these."
        )
    return tensorflow_datasets.load_any(os.fspath(what), download)


def prepared_folder(path: Path) -> Path | None:
    """This folder, or the only one in it, if tensorflow-datasets has written a version of a set there; else `None`."""
    if os.path.isfile(path / _INFO):  # `Path` raises an error for a name that is too long
        return path
    versions = sorted(file.parent for file in path.glob(f"*/{_INFO}")) if os.path.isdir(path) else []
    if len(versions) > 1:
        names = printable(", ".join(version.name for version in versions[:10]))
        raise ValueError(
            "a folder of a prepared data set must be that of one version.\n"
            f"Received: {str(path)!r}, which holds {names}. Pass one."
        )
    return versions[0] if versions else None


def _open_table(path: Path, seed: int, on_bad_image: str, targets: Targets = CLASS_LABELS) -> Source:
    """A `Source` of the files that a table lists; see `open_source`.

    The first line names the columns: `path` (relative to the table's folder), those of the targets (of classes
    `label`, a name or number), and optionally `split`. Classes are sorted by name, with numbers first and in their
    order. Quotes follow RFC 4180.
    """
    rows = _rows(path, targets)
    if not targets.are_texts:
        _check_repeats(path, rows)
    names, labels = targets.of_table(path, rows)
    files = [str(path.parent / row["path"]) for row in rows]
    splits = [SPLIT_ALIASES[row["split"].lower()] for row in rows] if "split" in rows[0] else None
    places = [f"{row_word(path)} {row['line']} of {path.name}" for row in rows]
    source = source_from_files(
        path, "table", names, files, labels, splits, seed, on_bad_image, targets=targets, rows=places
    )
    return targets.complete(source, path.parent)


def _rows(path: Path, targets: Targets) -> list[dict[str, Any]]:
    if not os.path.lexists(path) and not access_error(path):
        raise ValueError(f"there is no such table.\nReceived: {str(path)!r}.")
    with open_table(path, _MOST_TABLE_BYTES) as table:
        columns = table.columns
        wanted = ["path", *targets.columns(path, columns), *(["split"] if "split" in columns else [])]
        if "path" not in columns or len(set(columns)) < len(columns):
            raise ValueError(
                f"the first line of a table must name the columns {', '.join(wanted)}, each once.\n"
                f"Received: {str(path)!r} with the columns {columns}."
            )
        return [
            _checked_row(path, line, row, wanted)
            for line, row in table.rows(("path", "split") if targets.are_texts else wanted)
        ]


def _checked_row(path: Path, line: int, row: dict[Any, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """The checked cells of a row, stripped, with the number of its line."""
    if None in row:
        raise ValueError(
            'a row must have a cell for each column; a comma inside a cell needs quotes, as "cat, tabby".\n'
            f"Received: line {line} of {str(path)!r} with {row[None]} too many."
        )
    place = f"{row_word(path)} {line} of {str(path)!r}"
    found = {name: "" if row[name] is None else row[name] for name in wanted} | {"path": path_cell(path, line, row)}
    cells = {name: cell.strip() if isinstance(cell, str) else cell for name, cell in found.items()}
    for name, cell in cells.items():
        if cell == "":
            raise ValueError(f"every row of a table must have its {name}.\nReceived: {place}: {cells}.")
    if "split" in wanted and str(cells["split"]).lower() not in SPLIT_ALIASES:
        raise ValueError(
            f"a split in a table must be train, validation or test.\nReceived: {place}: {cells['split']!r}."
        )
    return {**cells, "line": line}


def _check_repeats(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Refuses a file with two labels, and warns of one that a split lists twice."""
    targets = [name for name in rows[0] if name not in ("path", "split", "line")] if rows else []
    word = row_word(path)
    by_file: dict[str, dict] = {}
    by_split: dict[tuple, dict] = {}
    again = []
    for row in rows:
        file = os.path.realpath(path.parent / row["path"])
        first = by_file.setdefault(file, row)
        if other := next((name for name in targets if first[name] != row[name]), None):
            raise ValueError(
                f"a file must have one value of {other!r}, as only one can be learned.\n"
                f"Received: {str(path)!r}, where {row['path']!r} is {first[other]!r} on {word} {first['line']} and "
                f"{row[other]!r} on {word} {row['line']}. Remove the wrong one."
            )
        same = by_split.setdefault((file, SPLIT_ALIASES.get(row.get("split", "").lower())), row)
        if same is not row:
            again.append((same, row))
    if again:
        same, row = again[0]
        warnings.warn(
            f"{len(again)} {word}(s) of {printable(path)} list a file once more, so that it counts more than once, as "
            f"{row['path']!r} on {word}s {same['line']} and {row['line']}.",
            stacklevel=2,
        )


_Parts: TypeAlias = dict[Any, tuple[np.ndarray, np.ndarray]]  # images and labels by split; `None` if not divided yet


def open_arrays(what: Any, seed: int, name: str = "arrays", targets: Targets = CLASS_LABELS) -> Source:
    """A `Source` of arrays, with a name for the data set; see `open_source`.

    Raises:
        ValueError: for an empty set, images of another shape or range, and labels out of range. Also for a name of two
            classes, and for a class without an example that neither names nor one-hot rows declare.
        TypeError: for anything but pairs, or class names that are not strings.
    """
    given = dict(what) if isinstance(what, Mapping) else {None: what}
    names = _checked_names(given.pop("class_names", None))
    parts: _Parts = {_split_name(split): _pair(pair, split or "training") for split, pair in given.items()}
    rows = {split: targets.of_array(split or "training", labels, names) for split, (_, labels) in parts.items()}
    if None not in parts and "train" not in parts:
        raise ValueError(f"a dict of arrays must have a split `train`.\nReceived: the keys {sorted(map(str, given))}.")
    class_names: Sequence[str] = ()
    for split, found in rows.items():
        if found is not None:
            class_names, parts[split] = found[0], (parts[split][0], found[1])
    class_names = class_names or _checked_classes(parts, names)
    if None in parts:
        images, labels = parts[None]
        members = divide(targets.strata(labels), seed)
        parts = {split: (images[numbers], labels[numbers]) for split, numbers in members.items()}
    channels = {images.shape[-1] for images, _ in parts.values()}
    if len(channels) > 1:
        raise ValueError(f"images must have the same channels in every split.\nReceived: {sorted(channels)}.")
    facts = {"divided_by_seed": seed if None in given else None}
    splits = {split: ArraySplit(*pair) for split, pair in parts.items()}
    return Source(name, "arrays", tuple(class_names), splits, facts=facts)


def _checked_classes(parts: _Parts, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Makes all labels int64 in [0, K), in place, and gives the K names."""
    for split, (_, labels) in parts.items():
        _check_form(labels, split or "training")
    classes = _class_count(parts, names)
    declared = names is not None or any(labels.ndim == 2 for _, labels in parts.values())
    for split, (images, labels) in parts.items():
        parts[split] = (images, class_labels(labels, classes, split or "training"))
    if classes < 2:
        raise ValueError(f"there must be at least two classes.\nReceived: {classes}.")
    _check_examples(parts, classes, declared)
    class_names = names or tuple(map(str, range(classes)))
    check_trained_classes({split or "train": _labels_in(labels) for split, (_, labels) in parts.items()}, class_names)
    return class_names


def open_digits(seed: int) -> Source:
    """1,797 digits of 8 x 8 grey pixels, written by 43 people; the test set that scikit-learn carries.

    Raises:
        ImportError: without scikit-learn.

    Source: UCI Machine Learning Repository, "Optical Recognition of Handwritten Digits".
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(f"the digits come with scikit-learn: {install_hint('data')}") from error
    digits = load_digits()
    images = np.round(digits.images[..., None] * (255 / 16)).astype("uint8")  # the file has levels 0 to 16
    return dataclasses.replace(open_arrays((images, digits.target), seed, "digits"), kind="digits")


def _split_name(split: str | None) -> str | None:
    if split is not None and split not in SPLIT_ALIASES:
        raise ValueError(f"a split must be train, validation or test.\nReceived: {split!r}.")
    return None if split is None else SPLIT_ALIASES[split]


def _pair(pair: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as uint8 or float32, and labels, whose form is not checked yet."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"arrays must come as (images, labels).\nReceived: {type(pair).__name__} for {split}.")
    images, labels = pair
    # The pairs of training and test set, as `keras.datasets` returns them, look like images and labels.
    if isinstance(labels, (tuple, list)) and len(labels) and getattr(labels[0], "ndim", 0) > 2:
        raise TypeError(
            "arrays must come as (images, labels), and several splits as a dict.\n"
            f'Received: images for labels in {split}. Pass a dict by split: {{"train": (images, labels), ...}}.'
        )
    for what, values in (("images", images), ("labels", labels)):
        if np.ma.is_masked(values):
            raise ValueError(
                f"{what} must not be masked, as a mask would be lost.\n"
                f"Received: {np.ma.count_masked(values):,} masked values in {split}. Leave these examples out."
            )
    images = np.asarray(images)
    has_text = isinstance(labels, (tuple, list)) and any(isinstance(label, str) for label in labels)
    labels = np.asarray(labels, object if has_text else None)  # of texts and numbers NumPy would make texts
    if len(images) == 0 or len(labels) == 0:
        raise ValueError(f"the {split} set is empty.\nReceived: {len(images)} images and {len(labels)} labels.")
    if images.ndim != 4 or images.shape[-1] not in (1, 3, 4) or images.dtype.kind not in "uif" or images.size == 0:
        raise ValueError(
            "images must have shape (n, H, W, C) with 1, 3 or 4 channels, as integers or floats.\n"
            f"Received: shape {images.shape} of {images.dtype} for {split}."
        )
    check_levels(images, 0, f"pixel values of {split}")
    if len(images) != len(labels):
        raise ValueError(
            f"each image needs one label.\nReceived: {len(images)} images, {len(labels)} labels for {split}."
        )
    return images.astype("float32" if images.dtype.kind == "f" else "uint8"), labels


def _check_form(labels: np.ndarray, split: str) -> None:
    """Refuses arrays whose shape or type cannot be labels, before the number of classes is known."""
    rows = labels.ndim == 2 and labels.shape[1] > 1
    if labels.dtype.kind in ("buif" if rows else "uif") and (labels.ndim == 1 or rows) and np.isfinite(labels).all():
        return
    column = " Pass labels.ravel()." if labels.ndim == 2 and not rows else ""
    finite = labels.dtype.kind != "f" or np.isfinite(labels).all()
    raise ValueError(
        "labels must be whole numbers of shape (n,), from 0 and one for each class, or one-hot rows of shape (n, K).\n"
        f"Received: labels of {split} with shape {labels.shape} of {labels.dtype}"
        f"{'' if finite else ', not all of them finite'}.{column}"
    )


def _checked_names(names: Any) -> tuple[str, ...] | None:
    """The class names as a tuple, or `None`."""
    if names is None:
        return None
    several = isinstance(names, (tuple, list, np.ndarray))
    if not several or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`class_names` must be a list of texts, one for each class.\nReceived: class_names={names!r}.")
    names = tuple(map(str, names))
    warn_similar_class_names(names)
    return names


def _class_count(parts: _Parts, names: Sequence[str] | None) -> int:
    """The number of classes: that of the names, of the one-hot columns, or the greatest training label plus one."""
    widths = {labels.shape[1] for _, labels in parts.values() if labels.ndim == 2}
    if len(widths) > 1:
        raise ValueError(
            f"one-hot labels must have the same classes in every split.\nReceived: widths {sorted(widths)}."
        )
    if names is not None:
        return len(names)
    first = parts[None if None in parts else "train"][1]
    # `class_labels` refuses a label beyond the cap as out of range.
    return widths.pop() if widths else min(max(int(first.max()) + 1, 1), 2**31)


def _check_examples(parts: _Parts, classes: int, declared: bool) -> None:
    """Refuses a class without a training example, unless names or one-hot rows declare it.

    A gap in plain integer labels is most likely a mistake.
    """
    trained = _labels_in(parts[None if None in parts else "train"][1])
    if not declared and len(trained) < classes:
        missing = list(itertools.islice((label for label in range(classes) if label not in trained), 5))
        raise ValueError(
            "every class from 0 to the greatest label must have an example to train on.\n"
            f"Received: labels to {classes - 1} with none of {', '.join(map(str, missing))}"
            f"{', ...' if classes - len(trained) > 5 else ''}. Number the classes from 0 without gaps, or pass one-hot "
            "rows or a dict with `class_names` if classes may be empty."
        )


def _labels_in(labels: np.ndarray) -> set[int]:
    return set(np.unique(labels).tolist())


def class_labels(labels: np.ndarray, classes: int, split: str) -> np.ndarray:
    """Labels as int64 in [0, classes); one-hot rows become their class.

    Raises:
        ValueError: for other labels; the message has the least and the greatest label and the number of classes.
    """
    if labels.ndim == 2 and labels.dtype.kind in "buif":
        one_hot = labels.shape[1] == classes and np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all()
        if one_hot:
            return labels.argmax(axis=1).astype("int64")
    whole = labels.ndim == 1 and labels.dtype.kind in "uif" and np.isfinite(labels).all()
    if not whole or (labels != np.floor(labels)).any() or labels.min() < 0 or labels.max() >= classes:
        numbers = f", from {labels.min()} to {labels.max()}" if labels.dtype.kind in "uif" and labels.size else ""
        raise ValueError(
            f"labels must be whole numbers in [0, {classes}), or one-hot rows of {classes}, one for each class.\n"
            f"Received: labels of {split} with shape {labels.shape} and {labels.dtype}{numbers}, for {classes} classes."
        )
    return labels.astype("int64")
