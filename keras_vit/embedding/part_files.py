"""Parts of an embedding as files: written atomically, with the same bytes each time, and checked when read.

A part has the columns `photo`, `status`, and the vectors under the name of the outputs. Parquet needs pyarrow; `.npz`
holds the same three arrays for NumPy.
"""

import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import check_installed
from keras_vit.embedding.embedder import OK
from keras_vit.embedding.manifest import Manifest, read_manifest
from keras_vit.files import FileKindError, atomic_write, expand_path, missing_reason, open_regular
from keras_vit.pages.formatting import printable

_MARK = "keras_vit_part"  # key of a file's job, number and digest
_MISSING = "which is missing"
_COMPRESSED = "which is compressed, and the job writes no such parts"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of all members of a ZIP archive, so that its bytes are the same


class Part(NamedTuple):
    """Rows of an embedding."""

    photos: np.ndarray  # n names
    status: np.ndarray  # n texts, "ok" or a reason
    vectors: np.ndarray  # float32 `(n, D)`, with NaN where a photo could not be read


class PartError(ValueError):
    """A part that is missing, damaged or of another job; `description` has its file, its rows, and what is wrong."""

    def __init__(self, path: Path, rows: range, reason: str) -> None:
        what = f", rows {rows[0]:,} to {rows[-1]:,}, {reason}"
        self.description, self.is_missing = printable(path.name) + what, reason == _MISSING
        after = "The" if self.is_missing else "Move it away; the"
        super().__init__(
            "every part must be as the job wrote it.\n"
            f"Received: {printable(path)}{what}. {after} same command computes it."
        )


def check_form(form: str) -> None:
    """Raises an `ImportError` that names the extra, if pyarrow is needed and missing."""
    if form == "parquet":
        try:
            check_installed("pyarrow", "parts are Parquet files", "shards")
        except ImportError as error:
            raise ImportError(f"{error} Or pass --format npz, which needs NumPy alone.") from None


def write_part(folder: Path, manifest: Manifest, number: int, part: Part) -> None:
    """Writes a part whole or not at all."""
    names = np.array([*map(_in_utf8, part.photos.tolist())], object)
    part = Part(names, part.status, np.ascontiguousarray(part.vectors, "float32"))
    about = json.dumps({"job": manifest.fingerprint, "part": number, "sha256": _rows_sha256(part)})
    with atomic_write(folder / manifest.name(number)) as place:
        (_write_parquet if manifest.form == "parquet" else _write_npz)(place, part, manifest.outputs, about)


def read_part(folder: Path, manifest: Manifest, number: int, photos: Sequence[str] | None = None) -> Part:
    """The rows of a part, all of which are checked.

    `photos` are the names of its rows, for a part of an earlier version, which has no digest of its rows.

    Raises:
        PartError: if it is missing, damaged or of another job; the message names the file and the rows.
    """
    path = folder / manifest.name(number)
    try:
        columns, about = _read(path, manifest.form, ["photo", "status", manifest.outputs])
        part = Part(*columns)
        _check(about, manifest, number, len(part.photos), part.vectors.shape)
        _check_rows(part, about.get("sha256"), photos)
        return part
    except Exception as error:  # pyarrow and zipfile have many
        raise PartError(path, manifest.rows(number), _reason(path, error)) from None


def part_error(folder: Path, manifest: Manifest, number: int) -> PartError | None:
    """The fault of an existing part, by the end of its file; `None` for a valid one. Vectors are not read."""
    path = folder / manifest.name(number)
    try:
        if manifest.form == "parquet":
            import pyarrow.parquet

            with open_regular(path) as opened, pyarrow.parquet.ParquetFile(opened) as file:
                about, rows = file.schema_arrow.metadata or {}, file.metadata.num_rows
                _check(json.loads(about.get(_MARK.encode(), b"{}")), manifest, number, rows)
        else:
            with _open_npz(path) as file:
                _check(json.loads(file.comment or b"{}"), manifest, number, len(manifest.rows(number)))
    except Exception as error:  # pyarrow and zipfile have many
        return PartError(path, manifest.rows(number), _reason(path, error))
    return None


def read_statuses(folder: Path, manifest: Manifest, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The columns `photo` and `status` of a part that is known to be whole, without its vectors."""
    photos, status = _read(folder / manifest.name(number), manifest.form, ["photo", "status"])[0]
    return photos, status


def read_vectors(folder: FilePath) -> Iterator[Part]:
    """The parts of a finished job, in the order of its rows.

    Raises:
        ValueError: for another folder, and for a part that is missing or damaged.
    """
    place = expand_path(folder)
    manifest = read_manifest(place)
    check_form(manifest.form)
    for number in range(manifest.parts):
        yield read_part(place, manifest, number)


def _check(about: dict[str, Any], manifest: Manifest, number: int, rows: int, shape: Sequence[int] = ()) -> None:
    if about.get("job") != manifest.fingerprint:
        raise ValueError("which is of another job, or of something else")
    if about.get("part") != number or rows != len(manifest.rows(number)):
        raise ValueError(f"which says that it is part {about.get('part')}, of {rows:,} rows")
    if shape and shape[-1] != manifest.width:
        raise ValueError(f"whose vectors have {shape[-1]} numbers and not {manifest.width}")


def _check_rows(part: Part, digest: str | None, photos: Sequence[str] | None) -> None:
    if digest is not None and digest != _rows_sha256(part):
        raise ValueError("which has other rows than the job wrote")
    if digest is None and photos is not None:
        if part.photos.tolist() != [*map(_in_utf8, photos)]:
            raise ValueError("whose photos are not those of the job's list")
        if ((part.status == OK) == np.isnan(part.vectors).all(axis=1)).any():
            raise ValueError("whose status says ok where the vector is NaN, or is a reason where it is not")


def _rows_sha256(part: Part) -> str:
    found = hashlib.sha256(json.dumps([part.photos.tolist(), part.status.tolist()]).encode())
    found.update(np.ascontiguousarray(part.vectors).data)
    return found.hexdigest()


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return f"which is {missing_reason(str(path))}" if path.is_symlink() else _MISSING
    if isinstance(error, FileKindError):
        return f"which is {error.reason}"
    text = " ".join(str(error).split())
    return text if text.startswith(("which ", "whose ")) else f"which is damaged: {text[:200].rstrip('.')}"


def _write_parquet(place: str, part: Part, outputs: str, about: str) -> None:
    import pyarrow
    import pyarrow.parquet

    numbers = pyarrow.array(part.vectors.reshape(-1))
    vectors = pyarrow.FixedSizeListArray.from_arrays(numbers, part.vectors.shape[1])
    photos, status = (pyarrow.array(texts.tolist(), pyarrow.string()) for texts in (part.photos, part.status))
    columns = {"photo": photos, "status": status, outputs: vectors}
    table = pyarrow.table(columns).replace_schema_metadata({_MARK: about})
    named = {"use_dictionary": ["status"], "write_statistics": False, "write_page_checksum": True}
    pyarrow.parquet.write_table(table, place, compression="none", **named)


def _read(path: Path, form: str, names: list[str]) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Columns of a part, of which the third has vectors, and what its file says of itself."""
    if form == "npz":
        with _open_npz(path) as archive:
            found = [np.load(io.BytesIO(archive.read(f"{name}.npy"))) for name in names]
            return found, json.loads(archive.comment or b"{}")
    table = _table(path, names)
    found = [np.array(table[name].to_pylist(), object) for name in names[:2]]
    found += [table[name].combine_chunks().values.to_numpy().reshape(len(table), -1) for name in names[2:]]
    return found, json.loads((table.schema.metadata or {}).get(_MARK.encode(), b"{}"))


def _table(path: Path, columns: list[str]) -> Any:
    """A table, read by this thread alone; with the vectors its pages are compared with their checksums.

    A thread of pyarrow that gives a Python file back while the process ends aborts it, with -6 after its last line.
    """
    import pyarrow.parquet

    checked = {"page_checksum_verification": len(columns) > 2}
    with open_regular(path) as opened, pyarrow.parquet.ParquetFile(opened, pre_buffer=False, **checked) as file:
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        chunks = (group.column(number) for group in groups for number in range(group.num_columns))
        if any(chunk.compression != "UNCOMPRESSED" for chunk in chunks):  # a small file might inflate to gigabytes
            raise ValueError(_COMPRESSED)
        return file.read(columns=columns, use_threads=False)


def _write_npz(place: str, part: Part, outputs: str, about: str) -> None:
    arrays = {"photo": part.photos.tolist(), "status": part.status.tolist()}
    with zipfile.ZipFile(place, "w") as archive:
        for name, values in {**arrays, outputs: part.vectors}.items():
            file = io.BytesIO()
            np.save(file, np.asarray(values, "float32" if name == outputs else str))
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), file.getvalue())
        archive.comment = about.encode()


@contextlib.contextmanager
def _open_npz(path: Path) -> Iterator[zipfile.ZipFile]:
    with open_regular(path) as opened, zipfile.ZipFile(opened) as archive:
        for member in archive.infolist():  # before it inflates to gigabytes
            if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                raise ValueError(_COMPRESSED)
        yield archive


def _in_utf8(name: str) -> str:
    """A name of a file as text that can be stored; bytes that are not UTF-8 are written as `\\xff`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")
