"""Tables of photos: CSV files in UTF-8 whose first line names the columns, one of them `path`; and Parquet with it."""

import contextlib
import csv
import io
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from keras_vit.checks import check_installed
from keras_vit.files import FileKindError, expand_path, open_regular
from keras_vit.images.photo_files import is_photo

_COLUMNS = ("path", "label", "labels", "split")  # also with capitals
DELIMITERS = {".csv": ",", ".tsv": "\t"}  # by suffix
_PARQUET = ".parquet"
_MOST_BYTES = 1 << 34
_SHOWN = 60  # letters of a line in an error
_URL = re.compile(r"file:|[a-z][a-z0-9+.-]+://", re.IGNORECASE)  # a single letter is a drive of Windows


def is_table(path: Path) -> bool:
    """Whether a file lists photos by their paths: by its name, or a Parquet file with `path` and without photos."""
    suffix = path.suffix.lower()
    if suffix == _PARQUET:
        return os.path.isfile(path) and _lists_paths(path)
    return suffix in DELIMITERS and not os.path.isdir(path)


def _lists_paths(path: Path) -> bool:
    try:
        import pyarrow.parquet
        import pyarrow.types as types
    except ImportError:
        return False  # the reader of shards names the extra
    try:
        schema = pyarrow.parquet.read_schema(path)
    except (pyarrow.ArrowException, OSError, ValueError):
        return False  # and says what is wrong
    kinds = {name: field.type for name, field in zip(known_names(schema.names), schema, strict=True)}
    bytes_in = (types.is_struct, types.is_binary, types.is_large_binary)
    return "path" in kinds and not any(is_kind(kind) for kind in kinds.values() for is_kind in bytes_in)


def row_word(path: Path) -> str:
    """What the number of a row in an error counts: `"line"` of a text, from 1, or `"row"`, from 0."""
    return "row" if path.suffix.lower() == _PARQUET else "line"


def path_cell(table: Path, number: int, row: Mapping[Any, Any]) -> str:
    """The path in a row, without spaces around it and with `~` expanded; `""` for none.

    Raises:
        ValueError: for what is no text, has a NUL, or is a URL, also of a file; the message names the row.
    """
    cell = "" if row["path"] is None else row["path"]
    place = f"{row_word(table)} {number} of {str(table)!r}"
    if not isinstance(cell, str) or "\0" in cell:
        raise ValueError(f"a path must be the name of a file, as text without NUL.\nReceived: {place}: {cell!r:.80}.")
    found = os.path.expanduser(cell.strip())
    if _URL.match(found) and not os.path.lexists(table.parent / found):
        raise ValueError(
            f"a path must be the name of a file, not a URL.\nReceived: {place}: {found!r:.80}. Leave out what stands "
            "before the path of the file, as file://, and download other photos first."
        )
    return found


def known_names(names: Sequence[str]) -> list[str]:
    """The names of columns, those that this package reads in small letters."""
    known = {name: name.lower() for name in names if name.lower() in _COLUMNS and name.lower() not in names}
    return [known.get(name, name) for name in names]


def _check_columns(path: Path, names: Sequence[str]) -> None:
    """Raises for two columns that are one name to this package, of which one would be passed over."""
    for known in _COLUMNS:
        same = [name for name in dict.fromkeys(names) if name.lower() == known]
        if len(same) > 1:
            raise ValueError(
                f"a table must have one column {known!r}, whose name may have capitals.\n"
                f"Received: {str(path)!r} with the columns {' and '.join(map(repr, same))}. Rename one of them."
            )


@contextlib.contextmanager
def open_table(path: Path, most_bytes: int = _MOST_BYTES) -> Iterator["PhotoTable | ParquetTable"]:
    """Opens a table.

    Raises:
        ValueError: for what is no regular file, cannot be read, is too large, or is no text in UTF-8; the message names
            the table.
    """
    try:
        if path.suffix.lower() == _PARQUET:
            with open_regular(path, most_bytes) as binary:
                yield ParquetTable(path, binary)
            return
        with open_regular(path, most_bytes) as binary, io.TextIOWrapper(binary, "utf-8-sig", newline="") as file:
            yield PhotoTable(path, file)
    except UnicodeDecodeError as error:
        raise ValueError(
            f"a table must be text in UTF-8.\nReceived: {str(path)!r}, whose byte {error.start} is not. Save it as CSV "
            "in UTF-8."
        ) from None
    except FileKindError as error:
        raise ValueError(f"{error}, at the place of the table {str(path)!r}.") from None
    except OSError as error:
        raise ValueError(f"a table must be readable.\nReceived: {str(path)!r}: {error.strerror or error}.") from error


class ParquetTable:
    """The rows of a Parquet table, whose cells are text, numbers or lists; `""` for none and for NaN.

    Raises:
        ValueError: for a damaged file, and for two columns of one known name, as `Label` and `label`.
        ImportError: without pyarrow.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        check_installed("pyarrow", "it reads Parquet", "shards")
        import pyarrow.parquet

        self._path = path
        with self._named_errors():
            self._file = pyarrow.parquet.ParquetFile(file)
        _check_columns(path, self._file.schema_arrow.names)
        self.columns = known_names(self._file.schema_arrow.names)

    def rows(self, columns: Sequence[str] = ("path",)) -> Iterator[tuple[int, dict[Any, Any]]]:
        """The number and the cells of each row; any of them may have several lines."""
        with self._named_errors():
            batches = (zip(*(column.to_pylist() for column in each), strict=True) for each in self._file.iter_batches())
            for number, row in enumerate(itertools.chain.from_iterable(batches)):
                cells = ("" if cell is None or cell != cell else cell for cell in row)
                yield number, dict(zip(self.columns, cells, strict=True))

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        import pyarrow

        try:
            yield
        except pyarrow.ArrowException as error:
            found = str(error).split("\n")[0].rstrip(". ")
            raise ValueError(f"a Parquet table must be whole.\nReceived: {str(self._path)!r}: {found}.") from error


class PhotoTable:
    """The rows of a table, whose quotes follow RFC 4180; of a `.tsv` there are tabs between the cells.

    A quote that lacks its end makes one cell of the rows that follow. So no cell may hold lines that name photos of
    their own. Other cells may have several lines, as captions do. The file is opened with `newline=""`.

    Raises:
        ValueError: if the cells of the first line have another sign than commas between them, and for two columns of
            one known name.
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
        _check_columns(self.path, names)
        return known_names(names)

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
        cells = [each for each in cells if len(each) > place]
        named = [each[place].strip(' "') for each in cells]
        photos = [name for name in named if self._may_be_photo(name)]
        if len(photos) > 1:
            raise self._quote_error(f"the row goes on to {photos[1]!r}")
        if place == 0 and named and (alike := self._like_first(named, cells)):
            raise self._quote_error(f"the row goes on to {alike!r}")

    def _like_first(self, named: Sequence[str], cells: Sequence[Sequence[str]]) -> str | None:
        """The missing photo of another row, without a suffix: it is in the folder of the first, or has a whole row."""
        folder, is_there = os.path.dirname(named[0]), self._may_be_photo(named[0])
        alike = (
            name
            for name, each in zip(named[1:], cells[1:], strict=True)
            if re.fullmatch(r"\S+", name) and os.path.dirname(name) == folder
            if folder or (len(each) == len(self.columns) and not is_there)
        )
        return next(alike, None)

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
