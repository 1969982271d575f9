"""`open_shards`, which makes a `Source` of photos in shards, and `shard_photos`, which gives them without labels."""

import functools
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.data.image_folder import source_from_files
from keras_vit.data.label_checks import warn_doubtful_class_names, warn_numbered_class_names, warn_numbers_for_names
from keras_vit.data.shards.finding import common_folder, find_shards, shard_splits
from keras_vit.data.shards.index import CHECK_BYTES, IndexedShard, read_index, save_checks
from keras_vit.data.shards.rows import Row, ShardError, is_number
from keras_vit.data.source import Source
from keras_vit.data.splits import SPLIT_ALIASES
from keras_vit.data.targets import CLASS_LABELS, Targets
from keras_vit.files import FileKindError, expand_path, parse_json, read_regular
from keras_vit.images.byte_ranges import ByteRange, close_shards, photo_bytes
from keras_vit.images.photo_files import PassedOver, entries_in
from keras_vit.images.preprocessing import only_count
from keras_vit.images.validation import ValidImage, check_image, mark_validated
from keras_vit.pages.formatting import printable

CLASSES = ("labels.json", "classes.txt")  # in the folder of the shards; of several all must be equal
_LIKE_CLASSES = re.compile(
    r"(class(es)?|labels?|names|(class|label)[-_ ]?(names?|map)|synsets?|class_to_idx|id2label|label2id)"
    r"\.(txt|json|names|pbtxt)",
    re.IGNORECASE,
)
_EQUAL_NAMES = "all lists of class names of a data set must be equal"
_MOST_BYTES = 1 << 26
_LABEL = (
    "A label is one whole number or one name, not null; in a tar, that of a .cls or of the field label of a .json. "
    "Several of a photo are read with --task multi-label."
)


def open_shards(
    what: FilePath, files: Sequence[Path], seed: int, on_bad_image: str, targets: Targets = CLASS_LABELS
) -> Source:
    """A `Source` of the photos in shards; see `open_source`.

    Photos come in the order of their keys, whatever their order in the shards is. So those that `pack` has numbered
    come as in the data that were packed.

    Raises:
        ValueError: for a shard that cannot be read, a photo without a label, a label beyond the classes, and shards
            that do not fit each other.
    """
    path = expand_path(what)
    top = path if path.is_dir() else common_folder(files)
    splits = shard_splits(files, path if path.is_dir() else None)
    close_shards()
    shards = read_index(files)
    _warn_of_copies(shards, splits)
    names, of_shard = targets.of_shards(shards) or _classes(what, top, shards)
    slices = [[_slice(shard, row) for row in shard.rows.rows] for shard in shards]
    mark_validated(_checked_images(shards, slices))
    order = sorted(
        (row.key.split("/"), number, place)
        for number, shard in enumerate(shards)
        for place, row in enumerate(shard.rows.rows)
    )
    photos = [slices[number][place] for _, number, place in order]
    labels = [of_shard[number][place] for _, number, place in order]
    of_split = None if splits is None else [splits[number] for _, number, _ in order]
    place = path if path.exists() else top
    source = source_from_files(place, "shards", names, photos, labels, of_split, seed, on_bad_image, targets=targets)
    save_checks(
        shards, [np.array([_check_record(place) for place in own], "uint8").reshape(-1, CHECK_BYTES) for own in slices]
    )
    return source


def _classes(what: FilePath, top: Path, shards: Sequence[IndexedShard]) -> tuple[Sequence[str], Sequence[np.ndarray]]:
    """Class names, and the class of each photo of each shard."""
    _check_schemas(shards)
    numbers, names = _numbers(shards, _class_names(top, shards))
    if len(names) < 2:
        raise ShardError("shards must hold photos of at least two classes", what, f"with {len(names)} class(es)")
    return names, [np.array([numbers.get(str(row.label), 0) for row in shard.rows.rows], "int64") for shard in shards]


def _checked_images(shards: Sequence[IndexedShard], slices: Sequence[Sequence[ByteRange]]) -> Iterator[ValidImage]:
    """The photos that an earlier process has checked and found good."""
    for shard, own in zip(shards, slices, strict=True):
        if shard.rows.checks is not None:
            for place, (turn, *digest) in zip(own, shard.rows.checks.tolist(), strict=True):
                if turn:
                    yield ValidImage(place, turn, bytes(digest))


def _check_record(place: ByteRange) -> list[int]:
    """The result of a check as numbers; zeros for a photo that must be checked again."""
    image = check_image(place)
    if isinstance(image, ValidImage) and not image.needs_pillow:
        return [image.orientation, *image.digest]
    return [0] * CHECK_BYTES


def shard_photos(what: FilePath) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Reads the photos of shards one after the other, with or without labels.

    Example:
        >>> shards = keras_vit.pack(photos, "shards")
        >>> key, read = next(keras_vit.shard_photos("shards"))
        >>> key, type(read())
        ('test-00000.tar:000000029.jpg', <class 'bytes'>)

    Args:
        what: a folder, a file or a pattern, as in `open_source`.

    Yields:
        A key, unique among all, as `"train-00000.tar:000000012.jpg"`, and a function that gives the photo's bytes. The
        function can be pickled.

    Raises:
        ValueError: if no shards are there, and for a shard that cannot be read.
    """
    files = find_shards(what, by_split=False)
    if not files:
        raise ShardError("shards must be .tar, .tfrecord or .parquet files", what, "where none are")
    return ((key, functools.partial(photo_bytes, place)) for key, place in shard_ranges(files))


def shard_ranges(files: Sequence[Path]) -> Iterator[tuple[str, ByteRange]]:
    """The photos in shards as `shard_photos` has them: a key, and where the photo lies."""
    folder = common_folder(files)
    close_shards()
    shards = read_index(files)
    _warn_of_copies(shards)
    for shard in shards:
        name = os.path.relpath(os.path.abspath(shard.path), folder)
        for row in shard.rows.rows:
            yield f"{name}:{row.key}", _slice(shard, row)


def _warn_of_copies(shards: Sequence[IndexedShard], splits: Sequence[str] | None = None) -> None:
    """Warns of shards of a split that are copies of others by their sizes, first and last bytes, and photos."""
    known: dict[tuple[str, ...], IndexedShard] = {}
    copies = []
    for shard, split in zip(shards, splits or [""] * len(shards), strict=True):
        size, _, ends = shard.stamp.split()
        first = known.setdefault((split, size, ends), shard)
        if first is not shard and shard.rows.rows and _places(shard) == _places(first):
            copies.append((shard, first))
    if copies:
        copy, first = copies[0]
        warnings.warn(
            f"{len(copies):,} shard(s) are copies of others, so that their photos count more than once, as "
            f"{printable(copy.path)} of {printable(first.path)}. Remove one of them.",
            stacklevel=3,
        )


def _places(shard: IndexedShard) -> list[tuple[str, int]]:
    return [(row.key, row.size) for row in shard.rows.rows]


def _slice(shard: IndexedShard, row: Row) -> ByteRange:
    return ByteRange(str(shard.photos), row.offset, row.size, f"{shard.path}:{row.key}", shard.state)


def _check_schemas(shards: Sequence[IndexedShard]) -> None:
    """Refuses shards that were read from other fields, or have other class names, than the first."""
    filled = [shard for shard in shards if shard.rows.rows]
    for shard in filled[1:]:
        first = filled[0]
        for fields, expected in zip(_schema(shard), _schema(first), strict=True):
            if fields == expected:
                continue
            found = f"with {fields}, and {first.path.name} with {expected}"
            if isinstance(fields, tuple) and isinstance(expected, tuple) and set(fields) != set(expected):
                own = {shard.path.name: set(fields) - set(expected), first.path.name: set(expected) - set(fields)}
                named = [f"{name} alone has {', '.join(sorted(names)[:10])}" for name, names in own.items() if names]
                found = f"of {len(fields):,} classes, and {first.path.name} of {len(expected):,}: {'; '.join(named)}"
            raise ShardError("the shards of a data set must have the same fields and classes", shard.path, found)


def _schema(shard: IndexedShard) -> tuple[str, Any]:
    return shard.rows.schema or "no fields", shard.rows.class_names or "no class names"


def _class_names(top: Path, shards: Sequence[IndexedShard]) -> tuple[str, ...] | None:
    """From a file in their folder or above their splits, or from the shards themselves; else `None`."""
    own = {shard.path.parent for shard in shards}
    folders = [top, *sorted(own), *sorted(folder.parent for folder in own if folder.name.lower() in SPLIT_ALIASES)]
    paths = [folder / name for folder in dict.fromkeys(folders) for name in CLASSES if os.path.lexists(folder / name)]
    if not paths:
        entries = [entry for folder in dict.fromkeys(folders) for entry in entries_in(str(folder), PassedOver())]
        if like := sorted(entry.path for entry in entries if _LIKE_CLASSES.fullmatch(entry.name)):
            words = f"{printable(like[0])} is not read. If it lists the names of the classes, call it"
            warnings.warn(f"{words} {' or '.join(CLASSES)}.", stacklevel=3)
        own_names = shards[0].rows.class_names
        if own_names is not None and len(set(own_names)) < len(own_names):
            raise ShardError("class names must differ", shards[0].path, "with one name twice")
        return own_names
    names = _read_class_names(paths[0])
    warn_numbered_class_names(names, paths[0])
    if other := next((path for path in paths[1:] if _read_class_names(path) != names), None):
        found = f"which differs from {paths[0]}"
        raise ShardError(_EQUAL_NAMES, other, found, "Remove the wrong one.")
    own_names = shards[0].rows.class_names
    if own_names is not None and own_names != names and not only_count(own_names):
        found = f"which differs from the names in {shards[0].path}"
        raise ShardError(_EQUAL_NAMES, paths[0], found, "Remove the wrong list, or write the shards again.")
    return names


def _read_class_names(path: Path) -> tuple[str, ...]:
    rule = "class names of shards must be a line each in UTF-8, or a list or an object of numbers in JSON"
    try:
        if path.suffix == ".json":
            names = _from_json(path)
        else:
            text = read_regular(path, _MOST_BYTES).decode("utf-8-sig")
            names = [line.strip() for line in text.rstrip().splitlines()]
            if "" in names:  # left out, it would move all names after it
                raise ValueError(f"whose line {names.index('') + 1} is empty")
    except FileKindError as error:
        raise ShardError(rule, path, error.reason) from None
    except OSError as error:
        raise ShardError("class names of shards must be readable", path, f"{error.strerror or error}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise ShardError(rule, path, str(error).partition("\n")[0] or "which is neither") from None
    if len(set(names)) < len(names):
        raise ShardError("class names must differ", path, "with one name twice")
    return tuple(names)


def _from_json(path: Path) -> list[str]:
    """A list of names, or an object from names to numbers or from numbers to names."""
    found = parse_json(read_regular(path, _MOST_BYTES).decode("utf-8-sig"))
    if isinstance(found, dict):
        pairs = [(int(name), of) if isinstance(of, str) else (of, name) for name, of in found.items()]
        found = [name for _, name in sorted(pairs)]
        if [number for number, _ in sorted(pairs)] != list(range(len(pairs))):
            raise ValueError("whose numbers are not 0, 1, 2, ...")
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise ValueError("which is neither")
    names = [name.strip() for name in found]
    if "" in names:
        raise ValueError(f"whose name of class {names.index('')} is empty")
    return names


def _numbers(shards: Sequence[IndexedShard], names: tuple[str, ...] | None) -> tuple[dict[str, int], tuple[str, ...]]:
    """The number of each label as it stands in the shards, and the class names in their order.

    Raises:
        ShardError: for a photo without a label, names mixed with numbers, a negative label, and one beyond the classes.
    """
    where: dict[str, tuple[IndexedShard, str]] = {}
    for shard in shards:
        for row in shard.rows.rows:
            if row.label is None and row.size == 0:  # without a photo it is left out
                continue
            if row.label is None:
                found = _describe_row(shard, row.key) + (
                    f", read from {shard.rows.schema}" if shard.rows.schema else ""
                )
                raise ShardError("every photo of a shard must have a label", shard.path, found, _LABEL)
            if row.label not in where:
                where[row.label] = (shard, row.key)
    numeric = [label for label in where if is_number(label)]
    are_numbers = len(numeric) == len(where)
    if numeric and not are_numbers and not (names and set(where) <= set(names)):
        shard, key = where[other := next(label for label in where if label not in numeric)]
        found = f"{_describe_row(shard, key)} with {other!r}, and {where[numeric[0]][0].path.name} with {numeric[0]!r}"
        raise ShardError("labels must be numbers or names throughout", shard.path, found)
    low = next((label for label in where if are_numbers and int(label) < 0), None)
    if low is not None:
        shard, key = where[low]
        rule = "labels in shards must be numbers from 0 on, and -1, which stands for a hidden label, is no class"
        raise ShardError(rule, shard.path, f"{_describe_row(shard, key)} with {low!r}", "Leave such photos out.")
    if names is None:
        warn_doubtful_class_names(where if not numeric or _are_padded(numeric) else [])
        names = tuple(sorted(where, key=lambda label: (int(label), label)) if numeric else sorted(where))
        numbers = {label: number for number, label in enumerate(names)}
        names = _names_beside(shards, names) or names
    else:
        by_number = are_numbers and not (_are_padded(numeric) and set(where) <= set(names))
        numbers = {name: number for number, name in enumerate(names)}
        if by_number:
            numbers = {label: int(label) for label in where if int(label) < len(names)}
            if shards[0].rows.class_names is None and not any(any(_beside(shards, label)) for label in numbers):
                warn_numbers_for_names(numbers, names)
        _check_names_beside(shards, names if by_number else ())
    wrong = next((label for label in where if label not in numbers), None)
    if wrong is not None:
        shard, key = where[wrong]
        rule = f"a label must be that of one of the {len(names):,} classes"
        remedy = "Labels that are numbers count the names from 0." if are_numbers else ""
        raise ShardError(rule, shard.path, f"{_describe_row(shard, key)} with {wrong!r}", remedy)
    return numbers, names


def _are_padded(numeric: Sequence[str]) -> bool:
    """Whether numbers are written with zeros in front, as names are."""
    return any(label != str(int(label)) for label in numeric)


def _names_beside(shards: Sequence[IndexedShard], numbers: Sequence[str]) -> tuple[str, ...] | None:
    """The class names that stand next to these numbers; `None` without any, and with a warning if they contradict."""
    found = [list(dict.fromkeys(_beside(shards, number))) for number in numbers]
    if not any(found):
        return None
    first: dict[str, str] = {}
    for number, names in zip(numbers, found, strict=True):
        other = first.setdefault(names[0], number) if names else number
        if len(names) == 1 and other == number:
            continue
        how = f"class {number} has " + (" and ".join(map(ascii, names[:2])) or "none")
        how = how if len(names) != 1 else f"classes {other} and {number} both have {names[0]!a}"
        words = f"the names next to class numbers are not used, as {how}. Numbers are the class names"
        warnings.warn(f"{words}; to have others, list them in {CLASSES[0]}.", stacklevel=3)
        return None
    return tuple(names[0] for names in found)


def _check_names_beside(shards: Sequence[IndexedShard], names: Sequence[str]) -> None:
    """Refuses a list that has a name of a class for another; names that it does not have may be other words."""
    for number, name in enumerate(names):
        if other := next((own for own in _beside(shards, str(number)) if own != name and own in names), None):
            found = f"class {number} is {other!r}, and {name!r} in the list"
            raise ShardError(_EQUAL_NAMES, shards[0].path, found, "Remove the wrong list, or write the shards again.")


def _beside(shards: Sequence[IndexedShard], number: str) -> Iterator[str]:
    return (name for shard in shards for name in shard.rows.names_beside.get(number, ()))


def _describe_row(shard: IndexedShard, key: str) -> str:
    return f"member {key!r}" if shard.path.suffix == ".tar" else f"row {key!r}"
