"""Parts of an embedding as files: written atomically, with the same bytes each time, and checked when read.

A part has the columns `photo`, `status`, and the vectors under the name of the outputs. Parquet needs pyarrow; `.npz`
holds the same three arrays for NumPy.
"""

import contextlib
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
from keras_vit.embedding.manifest import Manifest, read_manifest
from keras_vit.files import FileKindError, atomic_write, expand_path, open_regular
from keras_vit.pages.formatting import printable

FORMS = ("parquet", "npz")
_MARK = "keras_vit_part"  # key of a file's job and number
_MISSING = "which is missing"
_COMPRESSED = "which is compressed, and the job writes no such parts"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the time of all members of a ZIP archive, so that its bytes are the same


class Part(NamedTuple):
    """Rows of an embedding.

    Attributes:
        photos: n names.
        status: n texts, `"ok"` or a reason.
        vectors: float32 `(n, D)`, with NaN where a photo could not be read.
    """

    photos: np.ndarray
    status: np.ndarray
    vectors: np.ndarray


class PartError(ValueError):
    """A part that is missing, damaged or of another job.

    Args:
        path: of its file.
        rows: that it has.
        reason: what is wrong, as `which is missing`.

    Attributes:
        description: the file's name, its rows, and what is wrong.
        is_missing: whether no file is there.
    """

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
    about = json.dumps({"job": manifest.fingerprint, "part": number})
    with atomic_write(folder / manifest.name(number)) as place:
        (_write_parquet if manifest.form == "parquet" else _write_npz)(place, part, manifest.outputs, about)


def read_part(folder: Path, manifest: Manifest, number: int) -> Part:
    """The rows of a part, all of which are checked.

    Raises:
        PartError: if it is missing, damaged or of another job; the message names the file and the rows.
    """
    path = folder / manifest.name(number)
    try:
        read = _read_parquet if manifest.form == "parquet" else _read_npz
        part, about = read(path, manifest.outputs)
        _check(about, manifest, number, len(part.photos), part.vectors.shape)
        return part
    except FileNotFoundError:
        raise PartError(path, manifest.rows(number), _MISSING) from None
    except Exception as error:  # pyarrow and zipfile have many
        raise PartError(path, manifest.rows(number), _reason(error)) from None


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
        return PartError(path, manifest.rows(number), _reason(error))
    return None


def read_statuses(folder: Path, manifest: Manifest, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The columns `photo` and `status` of a part that is known to be whole, without its vectors."""
    path = folder / manifest.name(number)
    if manifest.form == "npz":
        with _open_npz(path) as archive:
            photos, status = (np.load(io.BytesIO(archive.read(f"{name}.npy"))) for name in ("photo", "status"))
        return photos, status
    table = _table(path, ["photo", "status"])
    photos, status = (np.array(table[name].to_pylist(), object) for name in ("photo", "status"))
    return photos, status


def read_vectors(folder: FilePath) -> Iterator[Part]:
    """The parts of a finished job, in the order of its rows.

    Args:
        folder: that `keras-vit embed` wrote.

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


def _reason(error: Exception) -> str:
    if isinstance(error, FileKindError):
        return f"which is {error.reason}"
    text = " ".join(str(error).split())
    return text if text.startswith(("which ", "whose ")) else f"which is damaged: {text[:200].rstrip('.')}"


def _write_parquet(place: str, part: Part, outputs: str, about: str) -> None:
    import pyarrow
    import pyarrow.parquet

    numbers = pyarrow.array(np.ascontiguousarray(part.vectors).reshape(-1))
    vectors = pyarrow.FixedSizeListArray.from_arrays(numbers, part.vectors.shape[1])
    photos = pyarrow.array([_in_utf8(name) for name in part.photos.tolist()], pyarrow.string())
    columns = {"photo": photos, "status": pyarrow.array(part.status.tolist(), pyarrow.string()), outputs: vectors}
    table = pyarrow.table(columns).replace_schema_metadata({_MARK: about})
    named = {"use_dictionary": ["status"], "write_statistics": False, "write_page_checksum": True}
    pyarrow.parquet.write_table(table, place, compression="none", **named)


def _read_parquet(path: Path, outputs: str) -> tuple[Part, dict[str, Any]]:
    table = _table(path)
    vectors = table[outputs].combine_chunks()
    rows = vectors.values.to_numpy().reshape(len(table), -1)
    photos, status = (np.array(table[name].to_pylist(), object) for name in ("photo", "status"))
    return Part(photos, status, rows), json.loads((table.schema.metadata or {}).get(_MARK.encode(), b"{}"))


def _table(path: Path, columns: list[str] | None = None) -> Any:
    """A table, read by this thread alone.

    A thread of pyarrow that gives a Python file back while the process ends aborts it, with -6 after its last line.
    """
    import pyarrow.parquet

    checked = {"page_checksum_verification": columns is None}
    with open_regular(path) as opened, pyarrow.parquet.ParquetFile(opened, pre_buffer=False, **checked) as file:
        groups = map(file.metadata.row_group, range(file.num_row_groups))
        chunks = (group.column(number) for group in groups for number in range(group.num_columns))
        if any(chunk.compression != "UNCOMPRESSED" for chunk in chunks):  # a small file might inflate to gigabytes
            raise ValueError(_COMPRESSED)
        return file.read(columns=columns, use_threads=False)


def _write_npz(place: str, part: Part, outputs: str, about: str) -> None:
    arrays = {"photo": [_in_utf8(name) for name in part.photos.tolist()], "status": part.status.tolist()}
    with zipfile.ZipFile(place, "w") as archive:
        for name, values in {**arrays, outputs: part.vectors}.items():
            file = io.BytesIO()
            np.save(file, np.asarray(values, "float32" if name == outputs else str))
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _EPOCH), file.getvalue())
        archive.comment = about.encode()


def _read_npz(path: Path, outputs: str) -> tuple[Part, dict[str, Any]]:
    with _open_npz(path) as archive:
        about = json.loads(archive.comment or b"{}")
        names = ("photo", "status", outputs)
        photos, status, rows = (np.load(io.BytesIO(archive.read(f"{name}.npy"))) for name in names)
    return Part(photos, status, rows), about


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
