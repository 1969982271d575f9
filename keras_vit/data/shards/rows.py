"""What an index knows of a photo in a shard, and the words about a shard that is no good."""

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from keras_vit.pages.formatting import printable

_MOST_DIGITS = 18  # of a number of a class
LABELS = ("label", "cls", "class", "target")  # fields of JSON, Parquet and records that hold one


class Row(NamedTuple):
    """One photo."""

    key: str  # its name in the shard
    label: str | None  # number or name of its class, as text; `None` without one
    offset: int  # of its first byte
    size: int  # in bytes


@dataclasses.dataclass(frozen=True)
class Rows:
    """The photos of a shard."""

    rows: list[Row]  # in the order of the shard
    schema: str = ""  # the fields that were read, equal for all shards of a set
    class_names: tuple[str, ...] | None = None  # in the order of labels, where the shard itself has them
    copied: bool = False  # whether offsets count in a copy of the photos, since the shard is compressed
    # What a check found of each photo, uint8 `(n, 17)`: EXIF orientation, and 16 bytes of digest. Zeros stand for a
    # photo that is to be checked again: a bad one, and one for Pillow, which another machine may lack.
    checks: np.ndarray | None = None
    further: Sequence[str] = ()  # members of a tar with further images, as x.seg.png; the index has none
    hidden: Sequence[str] = ()  # paths in a tar of hidden photos, and of hidden and system folders with photos
    unread: Sequence[str] = ()  # members of a tar, or fields of records, that are or may hold photos, and are not read
    # Of each class number the names that stand next to it, two at most.
    names_beside: dict[str, list[str]] = dataclasses.field(default_factory=dict)

    def note_name(self, label: str | None, name: str | None) -> None:
        """Keeps the name that stands next to a class number."""
        if name and label and is_number(label):
            known = self.names_beside.setdefault(label, [])
            known += [name] if name not in known and len(known) < 2 else []


class ShardError(ValueError):
    """A shard that cannot be read; the message names the file and the place in it."""

    def __init__(self, rule: str, path: object, found: str, remedy: str = "") -> None:
        remedy = f" {remedy}" if remedy else ""
        super().__init__(f"{rule}.\nReceived: {printable(path)}, {printable(found)}.{remedy}")


def with_unique_keys(rows: Rows) -> Rows:
    """The same with the number of each row before its key, if a key stands twice, as many a Parquet has paths."""
    if len({row.key for row in rows.rows}) == len(rows.rows):
        return rows
    numbered = [Row(f"{number:09}-{row.key}", *row[1:]) for number, row in enumerate(rows.rows)]
    return dataclasses.replace(rows, rows=numbered)


def check_fields(path: str, number: int, fields: str, before: str) -> None:
    """Refuses a record that has other fields than those before it; empty for none."""
    if before not in ("", fields):
        found = f"record {number:,} with {fields}, and {before} before"
        raise ShardError("the records of a shard must have the same fields", path, found)


def read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    """Bytes of an open file from a place on."""
    if hasattr(os, "pread"):
        return os.pread(file.fileno(), size, offset)
    file.seek(offset)  # Windows
    return file.read(size)


def label_text(value: Any) -> str | None:
    """A label as text: numbers in decimal digits, texts without white space at their ends; `None` for no label.

    A list of one counts as its item, bytes as UTF-8, and a float that is whole, which pandas makes of integers, as an
    integer.
    """
    if isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            value = value.decode()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if not isinstance(value, (str, int)):
        return None
    return str(value).strip() or None


def is_number(label: str) -> bool:
    """Whether a label is a number of a class, and no name."""
    digits = label.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS
