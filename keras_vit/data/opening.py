"""`open_source`, which opens a data set of any kind; tables, CSV files of paths and labels, are read here."""

import glob
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_vit.checks import check_choice, check_process, check_seed, did_you_mean
from keras_vit.config.datasets import OFFICIAL_DATASETS, VTAB_TASKS, may_be_a_name
from keras_vit.data import arrays, image_folder, tensorflow_datasets
from keras_vit.data.image_folder import source_from_files
from keras_vit.data.shards.finding import find_shards
from keras_vit.data.shards.opening import open_shards
from keras_vit.data.source import Data, Source
from keras_vit.data.splits import SPLIT_ALIASES
from keras_vit.data.targets import CLASS_LABELS, Targets
from keras_vit.files import access_error, expand_path
from keras_vit.images.photo_files import near_names
from keras_vit.images.photo_tables import DELIMITERS, open_table
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
            a `.csv` file with the columns `path`, `label`, and perhaps `split`, or a `.tsv` with tabs between them;
            shards of photos: a folder of them, a file or a pattern, as `"shards/*.tar"`, of `.tar` files as WebDataset
            writes them, or of `.tfrecord`, `.parquet` or `.array_record` files;
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
    seed = check_seed(seed)
    check_choice("on_bad_image", on_bad_image, ("skip", "raise"))
    source = what if isinstance(what, Source) else _opened(what, seed, on_bad_image, download, targets)
    targets.check_source(source)
    return source


def _opened(what: Data, seed: int, on_bad_image: str, download: bool, targets: Targets) -> Source:
    check_process()
    if isinstance(what, (tuple, list, Mapping)):
        return arrays.open_arrays(what, seed, targets=targets)
    if not isinstance(what, (str, os.PathLike)):
        raise TypeError(
            "data must be a name, a path, (images, labels), or a dict of those by split.\n"
            f"Received: an object of type {type(what).__name__}."
        )
    path = expand_path(what)
    if what == DIGITS:  # even if a folder `digits` exists, as a run may have written; `./digits` opens it
        return arrays.open_digits(seed)
    prepared = _prepared_folder(path)
    if prepared is not None:
        return tensorflow_datasets.open_prepared(prepared)
    if files := find_shards(what):
        return open_shards(what, files, seed, on_bad_image, targets)
    if os.path.isdir(path):
        return image_folder.open_folder(path, seed, on_bad_image)
    if path.suffix.lower() in DELIMITERS:
        return _open_table(path, seed, on_bad_image, targets)
    if not os.path.exists(path) and glob.has_magic(str(path)) and not may_be_a_name(what):
        fitting = glob.glob(str(path), recursive=True)
        found = f"which fits {len(fitting):,} file(s) or folder(s), as {fitting[0]!r}" if fitting else "which fits none"
        raise ValueError(
            "a pattern of data must fit shards alone, which are .tar, .tfrecord, .parquet or .array_record files.\n"
            f"Received: {os.fspath(what)!r}, {found}. Pass one as 'shards/*.tar', or a folder without a pattern."
        )
    if os.path.exists(path) or not may_be_a_name(what):
        found = "a file of another kind" if os.path.exists(path) else "and there is no such file or folder"
        found = f"which cannot be reached: {denied}" if (denied := access_error(path)) else found
        near = "" if os.path.exists(path) else near_names(path)
        hint = near or did_you_mean(what, [DIGITS, *OFFICIAL_DATASETS, *VTAB_TASKS])
        raise ValueError(
            "data must be a folder of class folders, a .csv file, shards, or the name of a data set.\n"
            f"Received: {os.fspath(what)!r}, {found}.{hint} "
            "Put the photos of each class into a folder of its own, and pass the folder above these."
        )
    return tensorflow_datasets.load_any(os.fspath(what), download)


def _prepared_folder(path: Path) -> Path | None:
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

    Raises:
        ValueError: for a missing file, missing columns, empty cells, or unknown splits. Also for a file with two labels
            and for fewer than two classes.

    Warns:
        UserWarning: for files that are listed more than once.
    """
    rows = _rows(path, targets)
    if not targets.are_texts:
        _check_repeats(path, rows)
    names, labels = targets.of_table(path, rows)
    files = [str(path.parent / expand_path(row["path"])) for row in rows]
    splits = [SPLIT_ALIASES[row["split"].lower()] for row in rows] if "split" in rows[0] else None
    return source_from_files(path, "table", names, files, labels, splits, seed, on_bad_image, targets=targets)


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
    cells = {name: (row[name] or "").strip() for name in wanted}
    for name, cell in cells.items():
        if not cell:
            raise ValueError(
                f"every row of a table must have its {name}.\nReceived: line {line} of {str(path)!r}: {cells}."
            )
    if "\0" in cells["path"]:
        raise ValueError(
            "a path must be the name of a file, which has no NUL.\n"
            f"Received: line {line} of {str(path)!r}: {cells['path']!r}."
        )
    if "split" in wanted and cells["split"].lower() not in SPLIT_ALIASES:
        raise ValueError(
            "a split in a table must be train, validation or test.\n"
            f"Received: line {line} of {str(path)!r}: {cells['split']!r}."
        )
    return {**cells, "line": line}


def _check_repeats(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Refuses a file with two labels, and warns of one that a split lists twice."""
    targets = [name for name in rows[0] if name not in ("path", "split", "line")] if rows else []
    by_file: dict[str, dict] = {}
    by_split: dict[tuple, dict] = {}
    again = []
    for row in rows:
        file = os.path.realpath(path.parent / expand_path(row["path"]))
        first = by_file.setdefault(file, row)
        if other := next((name for name in targets if first[name] != row[name]), None):
            raise ValueError(
                f"a file must have one {other}, as only one can be learned.\n"
                f"Received: {str(path)!r}, where {row['path']!r} is {first[other]!r} on line {first['line']} and "
                f"{row[other]!r} on line {row['line']}. Remove the wrong line."
            )
        same = by_split.setdefault((file, SPLIT_ALIASES.get(row.get("split", "").lower())), row)
        if same is not row:
            again.append((same, row))
    if again:
        same, row = again[0]
        warnings.warn(
            f"{len(again)} line(s) of {printable(path)} list a file once more, so that it counts more than once, as "
            f"{row['path']!r} on lines {same['line']} and {row['line']}.",
            UserWarning,
            stacklevel=2,
        )
