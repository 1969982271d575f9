"""A CSV file of paths and labels, with or without a column that says which split."""

import csv
from pathlib import Path

from keras_vit.data.folder import source_of_files
from keras_vit.data.source import Source
from keras_vit.data.splits import SPELLINGS


def open_table(path: Path, seed: int, on_bad_image: str) -> Source:
    """A `Source` of the files in a table; see `open_source`.

    The first line names the columns: `path` (relative ones start at the table's folder), `label` (a class name or
    number) and, if there, `split`. Classes are sorted by name, or as numbers if all are. Quoting is as in RFC 4180.

    Raises:
        ValueError: for no such file, missing columns, empty cells, unknown splits, or fewer than two classes.
    """
    rows = _rows(path)
    names = sorted({row["label"] for row in rows}, key=_number_first)
    if len(names) < 2:
        raise ValueError(
            "a table must have rows of at least two classes.\n"
            f"Received: {str(path)!r} with {len(rows)} row(s) and {len(names)} class(es) {names}."
        )
    numbers = {name: number for number, name in enumerate(names)}
    files = [str(path.parent / row["path"]) for row in rows]
    labels = [numbers[row["label"]] for row in rows]
    splits = [SPELLINGS[row["split"].lower()] for row in rows] if "split" in rows[0] else None
    return source_of_files(path, "table", names, files, labels, splits, seed, on_bad_image)


def _rows(path):
    if not path.is_file():
        raise ValueError(f"there is no such table.\nReceived: {str(path)!r}.")
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        columns = reader.fieldnames or []
        if not {"path", "label"} <= set(columns):
            raise ValueError(
                "the first line of a table must name the columns `path`, `label`, and perhaps `split`.\n"
                f"Received: {str(path)!r} with the columns {columns}."
            )
        return [_checked(path, reader.line_num, row, "split" in columns) for row in reader]


def _checked(path, line, row, has_split):
    """The row's cells without blanks around them."""
    wanted = ["path", "label"] + ["split"] * has_split
    cells = {name: (row[name] or "").strip() for name in wanted}
    for name, cell in cells.items():
        if not cell:
            raise ValueError(
                f"every row of a table must have a {name}.\nReceived: line {line} of {str(path)!r}: {cells}."
            )
    if has_split and cells["split"].lower() not in SPELLINGS:
        raise ValueError(
            f"`split` must be train, validation or test.\nReceived: line {line} of {str(path)!r}: {cells['split']!r}."
        )
    return cells


def _number_first(name):
    return (0, int(name), name) if name.isdecimal() else (1, 0, name)
