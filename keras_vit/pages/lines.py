"""Lines for a terminal or a log of 80 columns: facts behind their names, tables, durations."""

import datetime
import re
import textwrap
from collections.abc import Iterator, Sequence

from keras_vit.pages.escaping import printable

WIDTH = 79  # letters of a line, so that none wraps in 80 columns
_NAME = 10  # letters of a fact's name and the space behind it
_NUMBER = re.compile(r"-|none|[\d.,]+(e[-+]\d+)?%?")


def fact_lines(name: str, text: str, indent: int = _NAME) -> Iterator[str]:
    """Lines that tell a fact: its name, and the text in a column of its own. A word that is too long stays whole.

    Args:
        name: of at most `indent - 1` letters.
        text: what is said, broken at its spaces.
        indent: letters before the text.
    """
    lines = textwrap.wrap(text, WIDTH - indent, break_long_words=False, break_on_hyphens=False) or [""]
    for number, line in enumerate(lines):
        yield f"{'' if number else name:{indent}}{line}".rstrip()


def titled_facts(title: str, facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    """A title, and under it facts, whose texts have one column."""
    indent = max(len(name) for name, _ in facts) + 4
    yield printable(title)
    for name, text in facts:
        yield from fact_lines(f"  {name}", printable(text), indent)


def columns(rows: Sequence[Sequence[str]], most: int | None = None) -> Iterator[str]:
    """Lines of a table; columns of numbers stand to the right, but for the first one, which names the row.

    Args:
        rows: of equally many cells.
        most: letters of a line, for which the first cells are cut; by default as many as there are.
    """
    turned = [*zip(*rows, strict=True)]
    widths = [max(map(len, column)) for column in turned]
    if most is not None:
        widths[0] = max(min(widths[0], most - sum(width + 2 for width in widths[1:])), 3)
    numeric = [len(rows) > 1 and all(map(_NUMBER.fullmatch, column[1:])) for column in turned]
    numeric[:1] = [False]
    for row in rows:
        cells = zip([_cut(row[0], widths[0]), *row[1:]], widths, numeric, strict=True)
        yield "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip()


def duration(seconds: float | None) -> str:
    """Seconds as `0:01:05`; `?` for `None`."""
    return "?" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))


def until(seconds: float) -> str:
    """The time of day in so many seconds, as `14:32`, with the day where that is another one."""
    now = datetime.datetime.now()
    end = now + datetime.timedelta(seconds=seconds)
    return f"{end:%H:%M}" if end.date() == now.date() else f"{end:%Y-%m-%d %H:%M}"


def count_of(number: int, name: str) -> str:
    """A number of things, as `1 part` and `1,200 parts`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."
