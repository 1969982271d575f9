"""`open_source`, which opens a data set of any kind."""

import glob
import os
import re
from collections.abc import Mapping
from pathlib import Path

from keras_vit.checks import check_choice, check_process, check_seed, did_you_mean
from keras_vit.config.datasets import OFFICIAL_DATASETS, VTAB_TASKS
from keras_vit.data import arrays, image_folder, table, tensorflow_datasets
from keras_vit.data.shards.finding import find_shards
from keras_vit.data.shards.opening import open_shards
from keras_vit.data.source import Data, Source
from keras_vit.data.targets import CLASS_LABELS, Targets
from keras_vit.files import expand_path
from keras_vit.pages.formatting import printable

DIGITS = "digits"  # the data set of scikit-learn
_NAME = re.compile(r"[A-Za-z][\w-]*(/[\w.-]+)?(:[\d.*]+)?")
_INFO = "dataset_info.json"  # what tensorflow-datasets writes into the folder of a version


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
            a `.csv` file with the columns `path`, `label`, and perhaps `split`;
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
    if path.suffix.lower() == ".csv":
        return table.open_table(path, seed, on_bad_image, targets)
    if not os.path.exists(path) and glob.has_magic(str(path)) and not _may_be_a_name(what):
        fitting = glob.glob(str(path), recursive=True)
        found = f"which fits {len(fitting):,} file(s) or folder(s), as {fitting[0]!r}" if fitting else "which fits none"
        raise ValueError(
            "a pattern of data must fit shards alone, which are .tar, .tfrecord, .parquet or .array_record files.\n"
            f"Received: {os.fspath(what)!r}, {found}. Pass one as 'shards/*.tar', or a folder without a pattern."
        )
    if os.path.exists(path) or not _may_be_a_name(what):
        found = "a file of another kind" if os.path.exists(path) else "and there is no such file or folder"
        raise ValueError(
            "data must be a folder of class folders, a .csv file, shards, or the name of a data set.\n"
            f"Received: {os.fspath(what)!r}, {found}.{did_you_mean(what, [DIGITS, *OFFICIAL_DATASETS, *VTAB_TASKS])} "
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


def _may_be_a_name(what: Data) -> bool:
    """Whether this is spelt as tensorflow-datasets' names are: `name`, `name/config`, `name/config:1.0.0`."""
    return isinstance(what, str) and _NAME.fullmatch(what) is not None
