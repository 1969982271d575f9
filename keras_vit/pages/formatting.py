"""Text for terminals, logs, Markdown and CSV: what comes from outside is escaped, facts and tables have 80 columns.

Messages of servers, names of files and of classes come from outside.
"""

import datetime
import json
import os
import re
import tempfile
import textwrap
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from keras_vit.checks import ArgumentError
from keras_vit.files import read_head

FIRST_LINE, _MINUTE = 10, 60  # seconds to the first line on the speed, and between those that follow
WIDTH = 79  # letters of a line, so that none wraps in 80 columns
_NAME = 10  # letters of a fact's name and the space after it
_NUMBER = re.compile(r"-|none|[\d.,]+(e[-+]\d+)?%?")
_FULL_WIDTH = 0xFEE0  # distance of an ASCII character to its full-width form
_FORMULAS = ("\t", "\r", *(chr(ord(each) + width) for each in "=+-@" for width in (0, _FULL_WIDTH)))

# Characters with a meaning in a line of Markdown, including tables and bare links. An underscore inside a word has
# none.
_MARKDOWN = re.compile(r"[&<>\\`*\[\]|~$:@#{}^]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.", re.IGNORECASE)


def printable(text: object) -> str:
    """Text in one line without control characters, line ends or lone bytes, which are escaped as in Python.

    Args:
        text: text from outside, or an object, as a path.

    Returns:
        The same text if every character is printable. Otherwise others are escaped, as `\\x1b` or `\\u2028`, and
        backslashes are doubled.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() and each != "\\" else _escaped(each) for each in text)


def printable_json(facts: object) -> str:
    """Indented JSON in which letters are kept and unprintable characters are escaped."""
    text = json.dumps(facts, indent=2, ensure_ascii=False)
    return "".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text)


def spreadsheet_cell(text: object) -> str:
    """Printable text for a cell of a CSV file, with `'` in front of a formula."""
    cell = printable(text)
    return f"'{cell}" if str(text).startswith(_FORMULAS) else cell


def check_table_place(path: Path, columns: Iterable[str]) -> None:
    """Raises unless a CSV file with these first columns can be written: it replaces only one that has them too.

    Raises:
        ArgumentError: about `out`.
    """
    if os.path.isdir(path) or not os.path.isdir(path.absolute().parent):
        raise ArgumentError(
            f"`out` must be a file, in a folder that is there.\nReceived: {printable(path)}. Choose another name."
        )
    if os.path.lexists(path) and not (read_head(path) or b"").startswith(",".join(columns).encode()):
        raise ArgumentError(
            "`out` replaces only a table that the same command wrote.\n"
            f"Received: {printable(path)}, which is something else. Move it away, or choose another name."
        )
    try:  # in a file of no name, before the work
        with tempfile.TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise ArgumentError(
            "`out` must be a file in a folder that can be written.\n"
            f"Received: {printable(path)}: {error.strerror}. Choose another folder."
        ) from None


def table_cell(text: str) -> str:
    """Text for a cell of a Markdown table that is also read on a terminal: one line, with bars escaped."""
    return " ".join(text.replace("|", "\\|").split())


def markdown_text(text: object) -> str:
    """Printable text for a line or table cell of Markdown, which is shown literally.

    Characters of markup or HTML become character references, which CommonMark never takes for structure.
    """
    return _MARKDOWN.sub(lambda found: f"&#{ord(found[0])};", printable(text))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; its cells must be escaped already."""
    lines = (header, ["---"] * len(header), *rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of texts below their head, as a table in Markdown that a terminal shows too."""
    return table([*map(table_cell, head)], [[*map(table_cell, row)] for row in rows])


def format_facts(name: str, text: str, indent: int = _NAME) -> Iterator[str]:
    """Lines of a fact: its name, and the text in a second column. A word that is too long stays whole.

    Args:
        name: of at most `indent - 1` letters.
        text: of the fact, wrapped at its spaces.
        indent: letters before the text.
    """
    lines = textwrap.wrap(text, WIDTH - indent, break_long_words=False, break_on_hyphens=False) or [""]
    for number, line in enumerate(lines):
        yield f"{'' if number else name:{indent}}{line}".rstrip()


def format_titled(title: str, facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    """A title, and under it facts, whose texts have one column."""
    indent = max(len(name) for name, _ in facts) + 4
    yield printable(title)
    for name, text in facts:
        yield from format_facts(f"  {name}", printable(text), indent)


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


def clock_time(seconds: float) -> str:
    """The time of day after so many seconds, as `14:32`, with the date if it is another day."""
    now = datetime.datetime.now()
    end = now + datetime.timedelta(seconds=seconds)
    return f"{end:%H:%M}" if end.date() == now.date() else f"{end:%Y-%m-%d %H:%M}"


class Pace:
    """Lines on how far a job is: ten seconds after its first batch, which may be compiled, and then once a minute.

    Args:
        total: of what is to be done.
        unit: in words, as `"photos"`.
    """

    def __init__(self, total: int, unit: str) -> None:
        self._total, self._unit = total, unit
        self._first: tuple[float, int] | None = None  # when the first batch was there, and what was done then

    def lines(self, done: int) -> Iterator[str]:
        """The line, if it is time for one."""
        now = time.monotonic()
        if done and self._first is None:
            self._first, self._next = (now, done), now + FIRST_LINE
        elif self._first and now >= self._next and done > self._first[1]:
            self._next = now + _MINUTE
            speed = (done - self._first[1]) / (now - self._first[0])
            left = (self._total - done) / speed
            end = f"{duration(left)} left, until {clock_time(left)}"
            yield f"{done:,} of {self._total:,} {self._unit}, {speed:,.1f} a second, {end}"


def plural(number: int, name: str) -> str:
    """A number with a noun, as `1 part` and `1,200 parts`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _cut(text: str, width: int) -> str:
    """A text shortened in its middle, since names often differ at their ends."""
    end = (width - 3) // 2
    return text if len(text) <= width else f"{text[: width - 3 - end]}...{text[len(text) - end :]}"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
