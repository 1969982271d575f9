"""Tables: CSV files of paths and labels, with or without a column for the split."""

import csv
import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit.data.image_folder import source_of_files
from keras_vit.data.source import Source
from keras_vit.data.splits import SPELLINGS
from keras_vit.files import FileKindError, expand_path, open_regular
from keras_vit.pages.formatting import printable

_MOST_BYTES = 1 << 30  # of a table; that of ImageNet-21k's 14 million files has about 0.6e9
_MOST_DIGITS = 18  # of a class that is a number


def open_table(path: Path, seed: int, on_bad_image: str) -> Source:
    """A `Source` of the files that a table lists; see `open_source`.

    The first line names the columns: `path` (relative to the table's folder), `label` (a class name or number)
    and optionally `split`. Classes are sorted by name, with numbers first and in their order. Quotes follow RFC 4180.

    Raises:
        ValueError: for a missing file, missing columns, empty cells, or unknown splits. Also for a file with two labels
            and for fewer than two classes.

    Warns:
        UserWarning: for files that are listed more than once.
    """
    rows = _rows(path)
    _check_repeats(path, rows)
    names = sorted({row["label"] for row in rows}, key=_number_first)
    if len(names) < 2:
        raise ValueError(
            "a table must have rows of at least two classes.\n"
            f"Received: {str(path)!r} with {len(rows)} row(s) and {len(names)} class(es) {names}."
        )
    numbers = {name: number for number, name in enumerate(names)}
    files = [str(path.parent / expand_path(row["path"])) for row in rows]
    labels = [numbers[row["label"]] for row in rows]
    splits = [SPELLINGS[row["split"].lower()] for row in rows] if "split" in rows[0] else None
    return source_of_files(path, "table", names, files, labels, splits, seed, on_bad_image)


def _rows(path: Path) -> list[dict[str, Any]]:
    if not os.path.exists(path):
        raise ValueError(f"there is no such table.\nReceived: {str(path)!r}.")
    try:
        with open_regular(path, _MOST_BYTES) as binary, io.TextIOWrapper(binary, "utf-8-sig", newline="") as file:
            return _checked_rows(path, csv.DictReader(file, skipinitialspace=True))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"a table must be text in UTF-8.\nReceived: {str(path)!r}, which is not at byte {error.start}."
        ) from None
    except FileKindError as error:
        raise ValueError(f"{error}, at the place of the table {str(path)!r}.") from None
    except OSError as error:
        raise ValueError(f"a table must be readable.\nReceived: {str(path)!r}: {error.strerror}.") from error


def _checked_rows(path: Path, reader: csv.DictReader) -> list[dict[str, Any]]:
    try:
        columns = reader.fieldnames or []
        if not {"path", "label"} <= set(columns) or len(set(columns)) < len(columns):
            raise ValueError(
                "the first line of a table must name the columns path, label, and perhaps split, each once.\n"
                f"Received: {str(path)!r} with the columns {columns}."
            )
        return [_checked(path, reader.line_num, row, "split" in columns) for row in reader]
    except csv.Error as error:
        raise ValueError(
            "a table must be a CSV file of cells that are no longer than a name or a path.\n"
            f"Received: line {reader.reader.line_num} of {str(path)!r}: {error}. A quote may lack its end."
        ) from None


def _checked(path: Path, line: int, row: dict[Any, Any], has_split: bool) -> dict[str, Any]:
    """The checked cells of a row, stripped, with the number of its line."""
    if None in row:
        raise ValueError(
            'a row must have a cell for each column; a comma inside a cell needs quotes, as "cat, tabby".\n'
            f"Received: line {line} of {str(path)!r} with {row[None]} too many."
        )
    wanted = ["path", "label"] + ["split"] * has_split
    cells = {name: (row[name] or "").strip() for name in wanted}
    for name, cell in cells.items():
        if not cell:
            raise ValueError(
                f"every row of a table must have a {name}.\nReceived: line {line} of {str(path)!r}: {cells}."
            )
    if "\0" in cells["path"]:
        raise ValueError(
            "a path must be the name of a file, which has no NUL.\n"
            f"Received: line {line} of {str(path)!r}: {cells['path']!r}."
        )
    if has_split and cells["split"].lower() not in SPELLINGS:
        raise ValueError(
            f"`split` must be train, validation or test.\nReceived: line {line} of {str(path)!r}: {cells['split']!r}."
        )
    return {**cells, "line": line}


def _check_repeats(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Refuses a file with two labels, and warns of one that a split lists twice."""
    by_file: dict[str, dict] = {}
    by_split: dict[tuple, dict] = {}
    again = []
    for row in rows:
        file = os.path.realpath(path.parent / expand_path(row["path"]))
        first = by_file.setdefault(file, row)
        if first["label"] != row["label"]:
            raise ValueError(
                "a file must have one label, as only one can be learned.\n"
                f"Received: {str(path)!r}, where {row['path']!r} is {first['label']!r} on line {first['line']} and "
                f"{row['label']!r} on line {row['line']}. Remove the wrong line."
            )
        same = by_split.setdefault((file, SPELLINGS.get(row.get("split", "").lower())), row)
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


def _number_first(name: str) -> tuple[int, int, str]:
    """The sort key of a class: numbers come first, by value, then names."""
    is_number = name.isdecimal() and len(name) <= _MOST_DIGITS
    return (0, int(name), name) if is_number else (1, 0, name)
