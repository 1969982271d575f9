"""Targets that are a row of numbers for each image, read from the columns of a table, a shard or an array.

In a tar the JSON of a photo is an object whose fields are the columns, or the list in the column `labels`.
"""

import tarfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from keras_vit.checks import ArgumentError, did_you_mean
from keras_vit.data.label_checks import warn_doubtful_class_names, warn_similar_class_names
from keras_vit.data.shards.index import IndexedShard
from keras_vit.data.shards.tars import member_key
from keras_vit.data.source import Source
from keras_vit.data.targets import Targets
from keras_vit.files import parse_json
from keras_vit.images.photo_tables import row_word
from keras_vit.pages.formatting import printable

LISTS = ("labels", "label")  # columns that hold several labels; the first counts
_SEPARATORS = (";", "|")
_BITS = {"0": 0.0, "1": 1.0, "0.0": 0.0, "1.0": 1.0, "false": 0.0, "true": 1.0}
_LARGEST = float(np.finfo("float32").max)
_ROUNDING = 1e-6  # of a number's size: a deviation below it is no difference in float32
_CROWDED = 1e-3  # standard deviations of all numbers that those without the farthest few spread over
_NO_TARGETS = ("path", "split", "line", "key", "__key__", "file_name", "filename")


class Row(NamedTuple):
    """The cells of one image."""

    file: str  # path of the table or shard
    place: str  # of the image in it, as "line 3"
    cells: Mapping[str, Any]  # text, number or list by column

    def error(self, rule: str, column: str, found: object, remedy: str = "") -> ValueError:
        """An error that names file, row and column."""
        place = f"{self.place} of {printable(self.file)}, column {column!r}"
        return ValueError(f"{rule}.\nReceived: {place}: {found}.{remedy and f' {remedy}'}")

    def shown(self, column: str) -> str:
        """A cell as an error shows it."""
        cell = self.cells.get(column)
        return "an empty cell" if cell in ("", None) else repr(cell)


class RowTargets(Targets):
    """Rows of numbers, float32 `(n, K)`. A kind of its own says in `of_rows` how cells become numbers.

    Args:
        names: of the K targets in their order, as a model knows them, or of the columns to take; by default those
            that the data have.
    """

    noun: ClassVar[str]
    example: ClassVar[tuple[str, str]]  # first line and a row of a table, for errors
    member: ClassVar[str] = ".json"  # that has those of a photo of a tar
    also: Sequence[str] = ()  # columns of Parquet that may hold bytes

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.names = None if names is None else tuple(names)

    def of_rows(self, rows: Sequence[Row]) -> tuple[Sequence[str], np.ndarray]:
        """Names and float32 `(n, K)` of some rows.

        Raises:
            ValueError: with file, row and column of a cell that is no target.
        """
        raise NotImplementedError

    def check_names(self, names: Sequence[str]) -> None:
        warn_similar_class_names(names, self.noun)

    def columns(self, path: Path, header: Sequence[str]) -> Sequence[str]:
        found = [column for column in header if column not in _NO_TARGETS]
        wanted = found if self.names is None else self.names
        if "" in wanted:
            raise ValueError(
                f"every column of a table must have a name.\nReceived: {str(path)!r} with the columns {list(header)}. "
                "pandas writes no index with index=False."
            )
        missing = [column for column in wanted if column not in header]
        if missing or not wanted:
            raise ValueError(
                f"a table must have the columns of its {self.noun} in addition to the path.\n"
                f"Received: {str(path)!r} with the columns {list(header)}"
                f"{f' and without {missing[0]!r}.{did_you_mean(missing[0], header)}' if missing else '.'}"
            )
        return wanted

    def of_table(self, path: Path, rows: Sequence[Mapping[str, Any]]) -> tuple[Sequence[str], np.ndarray]:
        if not rows:
            raise ValueError(f"a table must have rows.\nReceived: {str(path)!r}, whose first line is its only one.")
        return self.of_rows([Row(str(path), f"{row_word(path)} {row['line']}", _targets_in(row)) for row in rows])

    def of_shards(self, shards: Sequence[IndexedShard]) -> tuple[Sequence[str], Sequence[np.ndarray]]:
        rows = [self.rows_of(shard) for shard in shards]
        names, values = self.of_rows([row for of_shard in rows for row in of_shard])
        return names, np.split(values, np.cumsum([len(of_shard) for of_shard in rows])[:-1])

    def rows_of(self, shard: IndexedShard) -> list[Row]:
        """A row for each photo of a shard."""
        path = str(shard.path)
        if shard.path.suffix == ".parquet":
            rows = enumerate(_parquet_rows(path, self.also))
            return [Row(path, f"row {number}", _targets_in(cells, self.also)) for number, cells in rows]
        if shard.path.suffix != ".tar":
            raise ValueError(
                f"{self.noun} are read from .tar and .parquet shards.\n"
                f"Received: {printable(path)}. Pack the photos as tars, with a {self.member} for each."
            )
        return [Row(path, f"member {name!r}", cells) for name, cells in self.tar_cells(path, shard)]

    def tar_cells(self, path: str, shard: IndexedShard) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and cells of the member next to each photo of a tar."""
        found = tar_members(path, ".json", parse_json)
        for row in shard.rows.rows:
            name, cells = found.get(member_key(row.key)[0], (row.key, None))
            if not isinstance(cells, (list, dict)):
                kind = "none" if cells is None else f"member {name!r}, which is neither"
                raise ValueError(
                    "every photo of a tar must have a .json with a list of labels, or with an object of fields.\n"
                    f"Received: {printable(path)}, photo {row.key!r}: {kind}."
                )
            yield name, {LISTS[0]: cells} if isinstance(cells, list) else _targets_in(cells)

    def of_array(
        self, split: str, values: np.ndarray, names: Sequence[str] | None
    ) -> tuple[Sequence[str], np.ndarray] | None:
        table = values[:, None] if values.ndim == 1 else values
        known = names or self.names or tuple(map(str, range(table.shape[-1])))
        if table.ndim != 2 or table.dtype.kind not in "buif" or len(known) != table.shape[1]:
            raise ValueError(
                f"{self.noun} must be an array of numbers (n,) or (n, K), with one of `class_names` for each column.\n"
                f"Received: shape {values.shape} of {values.dtype} for {split}, and {len(known)} names."
            )
        cells = (dict(zip(known, row, strict=True)) for row in table.tolist())
        return self.of_rows([Row(split, f"row {number}", row) for number, row in enumerate(cells)])

    def needs_table(self, source: Source) -> ValueError:
        """The error for data with another kind of targets, as a folder of class folders."""
        header, row = self.example
        return ValueError(
            f"each image must have {self.noun}, which come from a table, tars, Parquet or arrays.\n"
            f"Received: {printable(source.name)} ({source.kind}), with {len(source.class_names):,} classes. Write a "
            f".csv file whose first line is '{header}', with a row for each photo, as '{row}'."
        )

    def check_source(self, source: Any) -> None:
        if any(np.ndim(split.labels) != 2 for split in source.splits.values()):
            raise self.needs_table(source)
        if self.names is not None and self.names != source.class_names:
            raise ValueError(
                "the data must have the targets that the model was trained with, in the same order.\n"
                f"Received: {list(source.class_names[:10])}; the model has {list(self.names[:10])}."
            )


def _targets_in(cells: Mapping[str, Any], also: Sequence[str] = ()) -> dict[str, Any]:
    return {column: cell for column, cell in cells.items() if column in also or column not in _NO_TARGETS}


def tar_members(path: str, kind: str, parse: Callable[[bytes], Any]) -> dict[str, tuple[str, Any]]:
    """Name and value of every member of a tar with the suffix `kind`, by the key of its photo.

    `parse` makes the value of the bytes, and raises a `ValueError` for others.
    """
    found = {}
    with tarfile.open(path) as tar:
        for member in tar:
            key, suffix = member_key(member.name)
            if suffix == kind and (file := tar.extractfile(member)) is not None:
                try:
                    found[key] = (member.name, parse(file.read()))
                except (ValueError, RecursionError) as error:
                    place = f"{printable(path)}, member {member.name!r}: {str(error).partition(';')[0]}"
                    words = {".json": "JSON in UTF-8"}.get(kind, "text in UTF-8")
                    raise ValueError(f"a {kind} of a tar must be {words}.\nReceived: {place}.") from None
    return found


def _parquet_rows(path: str, also: Sequence[str]) -> list[dict[str, Any]]:
    """The cells of every row of a Parquet file, but those of bytes in other columns than `also`."""
    import pyarrow.parquet
    import pyarrow.types as types

    kinds = (types.is_struct, types.is_binary, types.is_large_binary)
    schema = pyarrow.parquet.read_schema(path)
    wanted = [field.name for field in schema if field.name in also or not any(is_kind(field.type) for is_kind in kinds)]
    return pyarrow.parquet.read_table(path, columns=wanted).to_pylist()


class NumberTargets(RowTargets):
    """One or several numbers of an image: columns of a table, by default all except `path` and `split`."""

    noun, example = "numbers", ("path,age", "1.jpg,31.5")

    def of_rows(self, rows: Sequence[Row]) -> tuple[Sequence[str], np.ndarray]:
        columns = _columns_of(rows) if self.names is None else self.names
        values = np.array([[_number(row, column) for column in columns] for row in rows], "float32")
        for column, numbers in zip(columns, values.T, strict=True):
            _warn_of_outliers(rows, column, numbers.astype("float64"))
        return columns, values


def _columns_of(rows: Sequence[Row]) -> list[str]:
    """The columns of the first row; raises for a row that has a further one, which the members of a tar may have."""
    columns = list(rows[0].cells)
    known = set(columns)
    for row in rows:
        if more := next((column for column in row.cells if column not in known), None):
            rule = "all rows must have the same columns, those of the first one"
            remedy = "Give it to all photos or to none, or name the columns to learn."
            raise row.error(rule, more, f"{row.shown(more)}, where {rows[0].place} has no such column", remedy)
    return columns


def _warn_of_outliers(rows: Sequence[Row], column: str, values: np.ndarray) -> None:
    """Warns of few numbers so far off that the others are nearly equal in standard deviations."""
    few = max(len(values) // 100, min(len(values) // 4, 3), 1)
    order = np.abs(values - np.median(values)).argsort(kind="stable")
    rest, far = values[order[:-few]], order[: -few - 1 : -1]
    if len(rest) < 2 or not 0 < rest.std() < _CROWDED * values.std():
        return
    far = far[np.abs(values[far] - rest.mean()) > rest.std() / _CROWDED]
    row, others = rows[far[0]], np.delete(values, far)
    warnings.warn(
        f"{len(far)} of {len(values):,} numbers are so far off that the others are equal to a model, which learns them "
        f"in standard deviations: {row.place} of {printable(row.file)}, column {column!r}: {row.shown(column)}, where "
        f"the others are {others.min():.5g} to {others.max():.5g}. Correct it, or leave the row out.",
        stacklevel=2,
    )


class LabelTargets(RowTargets):
    """Any number of labels of an image, as rows of 0 and 1.

    A column `labels` has names with `;` or `|` between them, or a list of names. Otherwise each column is a label.

    Args:
        names: of the K labels in their order, as a model knows them; by default those that the data have.
        chosen: columns to take.
    """

    noun, example = "labels", ("path,labels", "1.jpg,car;red")

    def __init__(self, names: Sequence[str] | None = None, chosen: Sequence[str] | None = None) -> None:
        super().__init__(chosen if names is None else names)
        self._chosen = chosen if names is None else None

    def columns(self, path: Path, header: Sequence[str]) -> Sequence[str]:
        listing = next((column for column in LISTS if column in header), None)
        by_column = listing is None or (self.names is not None and set(self.names) <= set(header))
        if self._chosen is not None and not by_column:
            raise ArgumentError(
                f"`columns` are those of 0 and 1, and the labels of a table with a column {listing!r} stand there.\n"
                f"Received: columns={','.join(self._chosen)} for {str(path)!r} with the columns {list(header)}. Leave "
                "`columns` out."
            )
        return super().columns(path, header) if by_column else (str(listing),)

    def of_rows(self, rows: Sequence[Row]) -> tuple[Sequence[str], np.ndarray]:
        cells = rows[0].cells
        listing = next((column for column in LISTS if column in cells), None)
        if listing is None or (self.names is not None and set(self.names) <= set(cells)):
            columns = _columns_of(rows) if self.names is None else self.names
            if joined := next((column for column in columns if ";" in column), None):
                words = "Replace the ; in it, which stands between the labels of an answer."
                raise rows[0].error("the name of a label must be one label", joined, repr(joined), words)
            return columns, np.array([[_bit(row, column) for column in columns] for row in rows], "float32")
        separator = _separator(rows, listing)
        lists = [_labels_in(row, listing, separator) for row in rows]
        names = self.names or sorted({name for found in lists for name in found})
        warn_doubtful_class_names(names, "put ; or | between them.")
        places = {name: place for place, name in enumerate(names)}
        values = np.zeros((len(rows), len(names)), "float32")
        for number, (row, found) in enumerate(zip(rows, lists, strict=True)):
            for name in found:
                if name not in places:
                    known = did_you_mean(name, names) or f" It knows {', '.join(names[:10])}."
                    rule = "a label must be one of those that are known"
                    raise row.error(rule, listing, repr(name), known.strip())
                values[number, places[name]] = 1
        return names, values

    def strata(self, labels: np.ndarray) -> np.ndarray:
        counts = np.where(labels > 0, labels.sum(axis=0), np.inf)  # of the labels that each image has
        none = np.isinf(counts.min(axis=1))
        return np.where(none, labels.shape[1], counts.argmin(axis=1))  # the rarest label of each image


def _number(row: Row, column: str) -> float:
    cell = row.cells.get(column)
    try:
        value = float("text" if "_" in str(cell) else cell)  # type: ignore[arg-type]  # 1_000 is a number to Python only
    except (TypeError, ValueError):
        comma = isinstance(cell, str) and cell.count(",") == 1 and "." not in cell
        remedy = (
            "Write numbers with a point for decimals, and nothing between thousands."
            if comma
            else "Leave the row out, or name the columns to learn."
        )
        raise row.error("a target must be a number", column, row.shown(column), remedy) from None
    if not abs(value) <= _LARGEST:
        raise row.error("a target must be a finite number in float32", column, row.shown(column), "Leave the row out.")
    return value


def _bit(row: Row, column: str) -> float:
    value = _BITS.get(str(row.cells.get(column)).strip().lower())
    if value is None:
        remedy = "A column of several names is called labels."
        raise row.error("the column of a label must hold 0 or 1", column, row.shown(column), remedy)
    return value


def _separator(rows: Sequence[Row], column: str) -> str:
    """`;` or `|`, whichever stands in the column."""
    having: dict[str, Row] = {}
    for row in rows:
        text = row.cells.get(column)
        for sign in _SEPARATORS:
            if isinstance(text, str) and sign in text:
                having.setdefault(sign, row)
    if len(having) > 1:
        first, row = having.values()
        found = f"{row.shown(column)}, and {first.place} has {first.shown(column)}"
        raise row.error("labels must have ; between them or |, the same in every row", column, found)
    return next(iter(having), _SEPARATORS[0])


def _labels_in(row: Row, column: str, separator: str) -> list[str]:
    cell = row.cells.get(column)
    if cell in ("", None):
        remedy = "If an image may have none of the labels, write one column of 0 and 1 for each label."
        raise row.error("every row must have a label", column, row.shown(column), remedy)
    found = cell.split(separator) if isinstance(cell, str) else cell
    if not isinstance(found, list) or not all(isinstance(name, (str, int)) for name in found):
        raise row.error("labels must be a list of names", column, row.shown(column))
    names = [str(name).strip() for name in found]
    if not all(names):
        raise row.error("a label must have a name", column, f"{row.shown(column)}, with an empty one")
    return names


def warn_of_constant_labels(source: Source) -> None:
    """Warns of labels that no training image has, or that all have: nothing can be learned of them.

    Raises:
        ValueError: for a split in which no image has a label, of which nothing can be measured.
    """
    for split, examples in source.splits.items():
        if not examples.labels.any():
            raise ValueError(
                "some image of each split must have a label, or nothing can be measured.\n"
                f"Received: {printable(source.name)}, where none of the {len(examples.labels)} images of {split} has "
                "one."
            )
    labels = source.split("train").labels
    none, all_ = labels.max(axis=0) == 0, labels.min(axis=0) == 1
    for which, words in ((none, "no training image has"), (all_, "all training images have")):
        if which.any():
            names = [printable(source.class_names[place]) for place in np.flatnonzero(which)[:5]]
            warnings.warn(f"{words} {which.sum()} label(s) of {source.name}, as {names}.", stacklevel=2)


def mean_and_deviation(source: Source) -> tuple[list[float], list[float]]:
    """The mean and the standard deviation of every target over the training images.

    Raises:
        ValueError: for a target that has one value, or values that float32 hardly tells apart.
    """
    values = source.split("train").labels.astype("float64")
    means, deviations = values.mean(axis=0), values.std(axis=0)
    for name, column, mean, deviation in zip(source.class_names, values.T, means, deviations, strict=True):
        if column.min() == column.max():
            raise ValueError(
                "a target must differ between training images, or there is nothing to learn.\n"
                f"Received: {source.name!r}, column {name!r}: {column[0]:.9g} in all {len(column):,} training images, "
                "in float32. Leave the column out; or subtract an offset, if its numbers differ by less than float32 "
                "holds."
            )
        if deviation <= _ROUNDING * abs(mean):
            raise ValueError(
                "the spread of a target must not be too small for float32.\n"
                f"Received: {source.name!r}, column {name!r}: {column.min():.9g} to {column.max():.9g}, with a "
                f"standard deviation of {deviation:.3g}. Subtract an offset from the column, as {column.min():.9g}."
            )
    return means.tolist(), deviations.tolist()
