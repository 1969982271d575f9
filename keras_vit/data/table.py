"""Tables: CSV files of paths and labels, with or without a column for the split."""

import csv
import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit.data.image_folder import source_from_files
from keras_vit.data.source import Source
from keras_vit.data.splits import SPLIT_ALIASES
from keras_vit.data.targets import CLASS_LABELS, Targets
from keras_vit.files import FileKindError, expand_path, open_regular
from keras_vit.pages.formatting import printable

_MOST_BYTES = 1 << 30  # of a table; that of ImageNet-21k's 14 million files has about 0.6e9


def open_table(path: Path, seed: int, on_bad_image: str, targets: Targets = CLASS_LABELS) -> Source:
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
    _check_repeats(path, rows)
    names, labels = targets.of_table(path, rows)
    files = [str(path.parent / expand_path(row["path"])) for row in rows]
    splits = [SPLIT_ALIASES[row["split"].lower()] for row in rows] if "split" in rows[0] else None
    return source_from_files(path, "table", names, files, labels, splits, seed, on_bad_image, targets=targets)


def _rows(path: Path, targets: Targets) -> list[dict[str, Any]]:
    if not os.path.exists(path):
        raise ValueError(f"there is no such table.\nReceived: {str(path)!r}.")
    try:
        with open_regular(path, _MOST_BYTES) as binary, io.TextIOWrapper(binary, "utf-8-sig", newline="") as file:
            return _checked_rows(path, csv.DictReader(file, skipinitialspace=True), targets)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"a table must be text in UTF-8.\nReceived: {str(path)!r}, which is not at byte {error.start}."
        ) from None
    except FileKindError as error:
        raise ValueError(f"{error}, at the place of the table {str(path)!r}.") from None
    except OSError as error:
        raise ValueError(f"a table must be readable.\nReceived: {str(path)!r}: {error.strerror}.") from error


def _checked_rows(path: Path, reader: csv.DictReader, targets: Targets) -> list[dict[str, Any]]:
    try:
        columns = list(reader.fieldnames or [])
        wanted = ["path", *targets.columns(path, columns), *(["split"] if "split" in columns else [])]
        if "path" not in columns or len(set(columns)) < len(columns):
            raise ValueError(
                f"the first line of a table must name the columns {', '.join(wanted)}, each once.\n"
                f"Received: {str(path)!r} with the columns {columns}."
            )
        return [_checked(path, reader.line_num, row, wanted) for row in reader]
    except csv.Error as error:
        raise ValueError(
            "a table must be a CSV file of cells that are no longer than a name or a path.\n"
            f"Received: line {reader.reader.line_num} of {str(path)!r}: {error}. A quote may lack its end."
        ) from None


def _checked(path: Path, line: int, row: dict[Any, Any], wanted: Sequence[str]) -> dict[str, Any]:
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
            f"`split` must be train, validation or test.\nReceived: line {line} of {str(path)!r}: {cells['split']!r}."
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
