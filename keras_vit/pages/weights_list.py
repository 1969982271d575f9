"""The list of published weights as a person reads it in a terminal: names whole, under their model and licence."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

_HEADER = ("name", "pixels", "classes", "MB", "accuracy")
_INDENT = "  "  # of the files of a model


def weights_lines(records: Sequence[Any], width: int) -> Iterator[str]:
    """Lines of a list in columns. A name that leaves no room for the others stands on a line of its own.

    Args:
        records: as of `list_weights`, in its order.
        width: of the terminal; lines are shorter, unless a name alone is not.
    """
    if not records:
        yield "No weights are published for this model."
        return
    cells = [(f"{_INDENT}{record.name}", *_cells(record)) for record in records]
    widths = [max(map(len, column)) for column in zip(_HEADER, *cells, strict=True)]
    widths[0] = min(widths[0], width - 1 - sum(2 + each for each in widths[1:]))
    yield _row(_HEADER, widths)
    rows = zip(records, cells, strict=True)
    for (variant, license), group in itertools.groupby(rows, lambda row: (row[0].variant, row[0].license)):
        yield f"{variant}, {license}"
        for _, (name, *others) in group:
            if len(name) > widths[0]:
                yield name
                name = ""
            yield _row((name, *others), widths)
    files = f"{len(records):,} file{'s' * (len(records) != 1)}"
    yield f"{files}. Accuracy without a name is top-1; ? is not published."
    yield "keras-vit weights info NAME prints all facts of a file."


def _cells(record: Any) -> tuple[str, ...]:
    megabytes = "?" if record.bytes is None else f"{record.bytes / 1e6:.0f}"
    if record.accuracy is None:
        accuracy = "zero head" if record.head == "zero" else "?"
    else:
        accuracy = f"{record.accuracy:.1f}" + ("" if record.measure == "top-1" else f" {record.measure}")
    return str(record.resolution), str(record.classes or "-"), megabytes, accuracy


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers, accuracy = cells
    right = (number.rjust(width) for number, width in zip(numbers, widths[1:-1], strict=True))
    return "  ".join([name.ljust(widths[0]), *right, accuracy]).rstrip()
