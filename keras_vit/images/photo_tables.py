"""Tables of photos: CSV files in UTF-8 whose first line names the columns, one of them `path`."""

import contextlib
import csv
import io
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from keras_vit.files import FileKindError, expand_path, open_regular
from keras_vit.images.photo_files import is_photo

_COLUMNS = ("path", "label", "labels", "split")  # also with capitals
DELIMITERS = {".csv": ",", ".tsv": "\t"}  # by suffix
_MOST_BYTES = 1 << 34
_SHOWN = 60  # letters of a line in an error


@contextlib.contextmanager
def open_table(path: Path, most_bytes: int = _MOST_BYTES) -> Iterator["PhotoTable"]:
    """Opens a table.

    Raises:
        ValueError: for what is no regular file, cannot be read, is too large, or is no text in UTF-8; the message names
            the table.
    """
    try:
        with open_regular(path, most_bytes) as binary, io.TextIOWrapper(binary, "utf-8-sig", newline="") as file:
            yield PhotoTable(path, file)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"a table must be text in UTF-8.\nReceived: {str(path)!r}, which is not at byte {error.start}."
        ) from None
    except FileKindError as error:
        raise ValueError(f"{error}, at the place of the table {str(path)!r}.") from None
    except OSError as error:
        raise ValueError(f"a table must be readable.\nReceived: {str(path)!r}: {error.strerror}.") from error


class PhotoTable:
    """The rows of a table, whose quotes follow RFC 4180; of a `.tsv` there are tabs between the cells.

    A quote that lacks its end makes one cell of the rows that follow. So no cell may hold lines that name photos of
    their own. Other cells may have several lines, as captions do.

    Args:
        path: of the table, for errors.
        file: its text, opened with `newline=""`.

    Raises:
        ValueError: if the cells of the first line have another sign than commas between them.
    """

    def __init__(self, path: Path, file: TextIO) -> None:
        self.path, self._file = path, file
        self._lines: list[str] = []  # of the row that is being read
        self._is_at_end = False
        self._format: dict[str, Any] = {"delimiter": DELIMITERS.get(path.suffix.lower(), ","), "skipinitialspace": True}
        self._reader = csv.DictReader(self._physical_lines(), **self._format)
        with self._named_errors():
            self.columns = self._reader.fieldnames = self._column_names(self._reader.fieldnames or [])
        self._check_quotes(dict.fromkeys(self.columns), self.columns)

    def rows(self, columns: Sequence[str] = ("path",)) -> Iterator[tuple[int, dict[Any, Any]]]:
        """The number of its last line and the cells of each row; under `None` those that have no column.

        Args:
            columns: whose cells have one line.

        Raises:
            ValueError: for a quote without its end; the message names the line.
        """
        self._lines.clear()
        with self._named_errors():
            for row in self._reader:
                self._check_quotes(row, columns)
                yield self._reader.line_num, row
                self._lines.clear()

    def _physical_lines(self) -> Iterator[str]:
        for line in self._file:
            self._lines.append(line)
            yield line
        self._is_at_end = True  # a row that needs more than the last line has an open quote

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except csv.Error as error:  # also of a cell of 131,073 letters
            raise self._quote_error(f"{error}") from None

    def _column_names(self, header: Sequence[str]) -> list[str]:
        """The names without spaces around them; those that this package reads in small letters."""
        names = [name.strip() for name in header]
        if len(names) == 1 and (sign := next((sign for sign in ";\t|" if sign in names[0]), "")):
            raise ValueError(
                "the cells of a table must have commas between them.\n"
                f"Received: {str(self.path)!r}, whose first line has {sign!r} between them: {names[0]!r}. Write "
                "commas, as in 'path,label'."
            )
        known = {name: name.lower() for name in names if name.lower() in _COLUMNS and name.lower() not in names}
        return [known.get(name, name) for name in names]

    def _check_quotes(self, row: dict[Any, Any], columns: Sequence[str]) -> None:
        """Raises for a row of several lines that is most likely several rows."""
        if self._is_at_end and self._lines:
            raise self._quote_error("the table ends within this cell")
        if '"' in "".join(self._lines):
            plain = (
                re.sub(r'" +(?=[,\t\r\n]|$)', '"', line) for line in self._lines
            )  # spaces before a comma are no fault
            for _ in csv.reader(plain, **self._format, strict=True):
                pass
        if len(self._lines) < 2:
            return
        if broken := next((name for name in columns if re.search(r"[\r\n]", f"{name}{row.get(name) or ''}")), None):
            raise self._quote_error(f"the cell {broken[:_SHOWN]!r} has several lines")
        place = self.columns.index("path") if "path" in self.columns else 0
        cells = [*csv.reader(self._lines, quoting=csv.QUOTE_NONE, **self._format)]
        named = [each[place].strip(' "') for each in cells if len(each) > place]
        photos = [name for name in named if self._may_be_photo(name)]
        if len(photos) > 1:
            raise self._quote_error(f"the row goes on to {photos[1]!r}")

    def _may_be_photo(self, name: str) -> bool:
        return is_photo(os.path.basename(name)) or (
            name != "" and os.path.lexists(self.path.parent / expand_path(name))
        )

    def _quote_error(self, found: str) -> ValueError:
        lines = [*itertools.dropwhile(str.isspace, self._lines)]
        first = self._reader.reader.line_num - len(lines) + 1
        shown = lines[0].rstrip()[:_SHOWN] if lines else ""
        return ValueError(
            "a quote that begins a cell of a CSV table must have its end, or the rows after it would be lost.\n"
            f"Received: line {first} of {str(self.path)!r}: {shown!r}; {found}. A quote may lack its end. Write one "
            'within a cell twice, and the cell in quotes, as "5"" wide".'
        )
