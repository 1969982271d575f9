"""Parquet with a column of photos, as Hugging Face's `datasets` writes it: a struct of bytes and path.

Where a column is not compressed, photos are read by their places in the file. Otherwise a copy of them is made in the
cache, since reading one photo would mean to unpack a whole group of rows.
"""

import json
import os
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from keras_vit.checks import check_installed
from keras_vit.data.shards.records import IMAGES
from keras_vit.data.shards.rows import LABELS, Row, Rows, ShardError, label_text, read_at
from keras_vit.files import FileKindError, atomic_write, open_regular
from keras_vit.pages.formatting import printable

_KEYS = ("key", "__key__", "file_name", "filename")
_AT_ONCE = 64  # rows
_WINDOW = 1 << 16  # bytes that are searched at once
_START = 64  # bytes of a photo by which its place is found
_LARGE_PHOTO = 1 << 26  # bytes, the mean of a group of rows; also those that are read at once
_SIGNATURE = 28  # bytes, of a legible footer over encrypted columns: a nonce and a tag
_NEEDS_CACHE = "the photos of a compressed Parquet file are copied into the cache, which must be writable"
_ONLY_PATHS = "Photos are read by paths from one file, as the table set.csv or set.parquet, with a column path."
# Of what a column inflates to and its size in the file, above `_ROOM` bytes; photos are compressed already. A group of
# rows is held to less, as it may be one page, which is in memory some three times while it is read.
_RATIO, _GROUP_RATIO, _ROOM = 50, 8, 1 << 28


def read_rows(path: str, copy: Callable[[], Path]) -> Rows:
    """The photos of a Parquet file.

    `copy` gives the place of a copy of the photos, which is made if they are compressed.

    Raises:
        ShardError: for a damaged or encrypted file, one without an image column, one whose photos inflate to much more
            than its size, and a cache that cannot be written.
        ImportError: without pyarrow.

    Warns:
        UserWarning: for a second column of photos or of labels.
    """
    check_installed("pyarrow", "it reads Parquet", "shards")
    import pyarrow
    import pyarrow.parquet

    try:
        with open_regular(path) as opened, pyarrow.parquet.ParquetFile(opened) as file:
            _check_plain(path, opened, file)
            image, label, key, names = _columns(path, file.schema_arrow)
            _check_inflated(path, file, [image, *filter(None, (label, key))])
            kind = file.schema_arrow.field(label).type if label else ""
            rows = list(_rows(path, file, image, label, key))
            places = _places(path, file, image)
            copied = places is None
            if copied:
                places = _copy_photos(path, file, image, copy)
    except (ShardError, FileKindError, MemoryError):
        raise
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        if getattr(error, "errno", None):  # of the disk; those of pyarrow have none
            raise
        found = str(error).split("\n")[0].rstrip(". ")
        if "encrypted" in found:
            raise ShardError(*_encrypted(path)) from error
        raise ShardError("a Parquet file must be whole", path, found, "Bring it again.") from error
    if places and not any(size for _, size in places):
        raise ShardError(
            "a Parquet file must hold the bytes of photos", path, f"whose column {image} has none", _ONLY_PATHS
        )
    found_rows = [Row(name, of, *place) for (name, of), place in zip(rows, places or (), strict=True)]
    return Rows(found_rows, f"{image}, {label or 'no label'} {kind}".strip(), names, copied)


def _check_plain(path: str, opened: BinaryIO, file: Any) -> None:
    """Refuses a file with encrypted columns whose footer is legible: pyarrow ends the process where it meets one.

    Such a footer is followed by its signature, which the length in the file counts and the parsed metadata does not.
    """
    opened.seek(-8, os.SEEK_END)
    length = int.from_bytes(opened.read(4), "little")
    if length - file.metadata.serialized_size == _SIGNATURE:
        raise ShardError(*_encrypted(path))


def _encrypted(path: str) -> tuple[str, str, str, str]:
    return "a Parquet file must not be encrypted", path, "an encrypted one", "Write it again without encryption."


def _columns(path: str, schema: Any) -> tuple[str, str | None, str | None, tuple[str, ...] | None]:
    """Names of the columns of photos, of labels and of keys, and class names if the file has them."""
    import pyarrow.types as types

    features = _features(schema)
    pictures = [name for name, kind in features.items() if kind.get("_type") == "Image" and name in schema.names]
    for field in schema:
        is_struct = types.is_struct(field.type) and any(part.name == "bytes" for part in field.type)
        is_bytes = types.is_binary(field.type) or types.is_large_binary(field.type)
        if is_struct or (is_bytes and field.name in IMAGES):
            pictures.append(field.name)
    if not pictures:
        known = ", ".join(f"{field.name} ({field.type})" for field in list(schema)[:8])
        raise ShardError(
            "a Parquet file of photos must have a column of bytes and path, or one of bytes that is called image",
            path,
            f"with the columns {known}",
            _ONLY_PATHS,
        )
    image = next((name for name in IMAGES if name in pictures), pictures[0])
    classes = [name for name, kind in features.items() if kind.get("_type") == "ClassLabel" and name in schema.names]
    label = next((name for name in (*LABELS, *classes) if name in schema.names), None)
    if label == next(iter(classes), None) and len(classes) > 1 and label not in LABELS:
        raise ShardError("a Parquet file must have one column of labels, or one called label", path, f"with {classes}")
    key = next((name for name in _KEYS if name in schema.names), None)
    if twice := [name for name in (image, label, key) if name and schema.names.count(name) > 1]:
        rule = "the columns of a Parquet file must have names of their own"
        raise ShardError(rule, path, f"two columns {twice[0]!r}")
    _warn_unused_columns("photos", image, pictures)
    alike = [name for name in schema.names if label and name.lower() in LABELS]
    _warn_unused_columns("labels", label, [*(name for name in (*LABELS, *classes) if name in schema.names), *alike])
    if "split" in map(str.lower, schema.names):
        words = "Parquet shards have a column split, which is not read: names of files or folders say the split."
        warnings.warn(words, stacklevel=2)
    named = [name for name, kind in features.items() if kind.get("_type") == "ClassLabel"]
    if label and len(named) == 1 and named[0] not in schema.names:
        words = f"class names of Parquet shards are those of a column {named[0]!r} that is not there, and not read."
        warnings.warn(printable(f"{words} Call it {label!r} in the metadata."), stacklevel=2)
    names = features.get(label or "", {}).get("names")
    if names and (not isinstance(names, list) or not all(isinstance(name, str) for name in names)):
        words = f"class names of Parquet shards not understood ({str(names)[:40]}): taken as not there."
        warnings.warn(printable(words), stacklevel=2)
        names = None
    return image, label, key, tuple(names) if names else None


def _warn_unused_columns(what: str, taken: str | None, columns: Sequence[str]) -> None:
    """Warns of columns that are not read; in words that are the same for all shards, so that they come once."""
    others = [name for name in dict.fromkeys(columns) if name != taken]
    if others:
        words = f"Parquet shards have several columns of {what}: {taken} is read, and {', '.join(others)} left out."
        warnings.warn(printable(words), stacklevel=2)


def _features(schema: Any) -> dict[str, dict]:
    """What `datasets` has written of its columns; empty without it."""
    try:
        found = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return {}
    return {name: kind for name, kind in found.items() if isinstance(kind, dict)} if isinstance(found, dict) else {}


def _rows(path: str, file: Any, image: str, label: str | None, key: str | None) -> Iterator[tuple[str, str | None]]:
    """Key and label of every row."""
    import pyarrow.types as types

    is_struct = types.is_struct(file.schema_arrow.field(image).type)
    named = is_struct and any(part.name == "path" for part in file.schema_arrow.field(image).type)
    columns = [*filter(None, (label, key)), *([f"{image}.path"] if named else [])]
    number = 0
    for batch in file.iter_batches(columns=columns) if columns else ():
        of_batch = batch.to_pylist()
        for row in of_batch:
            name = row.get(key) if key else (row.get(image) or {}).get("path")
            yield str(name or f"{number:09}"), label_text(row.get(label)) if label else None
            number += 1
    yield from ((f"{number:09}", None) for number in range(number, file.metadata.num_rows))


def _check_inflated(path: str, file: Any, columns: Sequence[str]) -> None:
    """Refuses a file whose photos inflate to much more than its size, by its footer, before any is read."""
    whole = os.path.getsize(path)
    for name in columns:
        chunks = [chunk for group in range(file.num_row_groups) for chunk in _chunks(file, group, name)]
        _check_size(path, sum(chunk.total_uncompressed_size for chunk in chunks), whole)
        for chunk in chunks:
            _check_size(path, chunk.total_uncompressed_size, chunk.total_compressed_size, _GROUP_RATIO)


def _check_size(path: str, size: int, compressed: int, ratio: int = _RATIO) -> None:
    if size > _ROOM and size > ratio * compressed:
        raise ShardError(
            f"what a Parquet file holds may be {_RATIO} times as large as the file, and a group of rows of more than "
            f"{_ROOM:,} bytes {_GROUP_RATIO} times as large as in the file",
            path,
            f"whose columns inflate from {compressed:,} to {size:,} bytes or more",
            "Write such photos without compression, or in smaller groups of rows.",
        )


def _chunks(file: Any, group: int, name: str) -> list[Any]:
    """What the footer says of a column, or of the fields of one, in a group of rows."""
    found = file.metadata.row_group(group)
    columns = [found.column(number) for number in range(found.num_columns)]
    return [column for column in columns if f"{column.path_in_schema}.".startswith(f"{name}.")]


def _rows_at_once(file: Any, image: str, group: int) -> int:
    """How many rows of a group to read together: few where photos are large."""
    chunks = _chunks(file, group, image)
    size = sum(chunk.total_uncompressed_size for chunk in chunks)
    may_repeat = any(chunk.has_dictionary_page for chunk in chunks)  # then each row may be as large as all are here
    mean = size // (1 if may_repeat else max(file.metadata.row_group(group).num_rows, 1))
    return max(min(_AT_ONCE, _LARGE_PHOTO // max(mean, 1)), 1)


def _photos(file: Any, image: str, group: int) -> Iterator[bytes | None]:
    """The bytes of every row of a group."""
    for batch in file.iter_batches(_rows_at_once(file, image, group), row_groups=[group], columns=[image]):
        column = batch.column(0)
        yield from (column.field("bytes") if hasattr(column, "field") else column).to_pylist()


def _places(path: str, file: Any, image: str) -> list[tuple[int, int]] | None:
    """Offset and size of every photo; `None` where the file does not hold them as they are.

    The plain encoding writes the length of a value in four bytes, and then the value. So each is searched for after the
    previous one, by all of its bytes.
    """
    found: list[tuple[int, int]] = []
    with open_regular(path) as opened:  # not mapped, since a file that gets shorter would end the process
        whole = True
        for group in range(file.num_row_groups):
            place, stop = _column_chunk(file.metadata.row_group(group), image)
            for photo in _photos(file, image, group):
                if not photo:  # of a failed download, a bad image of no bytes
                    found.append((0, 0))
                    continue
                start = struct.pack("<I", len(photo)) + photo[:_START] if whole else b""
                place = _find(opened, start, place, stop) + 4
                whole = whole and place >= 4 and read_at(opened, place, len(photo)) == photo
                found.append((place, len(photo)))
                place += len(photo)
    return found if whole else None


def _find(file: BinaryIO, start: bytes, place: int, stop: int) -> int:
    """Where some bytes begin first between two places of a file; -1 if they do not."""
    for offset in range(place, stop, _WINDOW):
        found = read_at(file, offset, min(_WINDOW + len(start), stop - offset)).find(start)
        if found >= 0:
            return offset + found
    return -1


def _column_chunk(group: Any, image: str) -> tuple[int, int]:
    """Where the bytes of the photos of a group of rows begin and end in the file; nothing if they are compressed."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema in (image, f"{image}.bytes"):
            starts = filter(None, (column.dictionary_page_offset, column.data_page_offset))
            start = min(starts)
            return (start, start + column.total_compressed_size) if column.compression == "UNCOMPRESSED" else (0, 0)
    return 0, 0


def _copy_photos(path: str, file: Any, image: str, copy: Callable[[], Path]) -> list[tuple[int, int]]:
    """Writes the photos one after the other, and gives the offset and size of each."""
    found, place, whole = [], 0, os.path.getsize(path)
    try:
        target = copy()
    except ValueError as error:  # without a home folder
        raise ShardError(_NEEDS_CACHE, path, f"and {error}") from None
    try:
        folder = target.parent
        os.makedirs(folder, exist_ok=True)
        with atomic_write(target) as temporary, open(temporary, "wb") as opened:
            for photo in (each or b"" for group in range(file.num_row_groups) for each in _photos(file, image, group)):
                opened.write(photo)
                found.append((place, len(photo)))
                place += len(photo)
                _check_size(path, place, whole)  # a dictionary of one photo serves any number of rows
    except OSError as error:
        if not error.errno:
            raise
        raise ShardError(
            _NEEDS_CACHE,
            path,
            f"and {error.strerror} at {error.filename or folder}",
            "Set KERAS_VIT_CACHE to a folder of yours, or write the file without compression.",
        ) from None
    return found
