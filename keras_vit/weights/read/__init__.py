"""Strict reading of checkpoint files, `.npz`, safetensors and torch's: never silently wrong, never run.

`scan` looks at directory and headers only; `TensorFile.read` hands out arrays whose checksum and values
have been checked, in memory of their own, so that nobody can change them any more. Nothing is ever
unpickled or unpacked to disk: a pickle of torch is read as plain data. This module imports neither Keras nor
TensorFlow.
"""

import contextlib
import dataclasses
import io
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from keras_vit.files import FileKindError, open_regular
from keras_vit.pages.formatting import printable
from keras_vit.weights.read.headers import (
    BFLOAT16,
    VOID,
    Entry,
    FileBytes,
    FormatError,
    Member,
    read_npz,
    read_safetensors,
)
from keras_vit.weights.read.torch_file import PROGRAM_ADVICE, is_torch_zip, read_torch

_CHUNK = 2**18  # bytes; small enough for a core's cache, so that both checks of a chunk read memory once
_INTEGERS = {np.dtype("<i4"), np.dtype("<i8")}
_READABLE = {np.dtype("<f2"), np.dtype("<f4"), np.dtype("<f8"), BFLOAT16}
_AGAIN = "Download or write it again"
_CONVERT = "Save its arrays with `numpy.savez` or safetensors in a program that trusts it, and pass that file"
_KERAS = "Open it with `keras.saving.load_model`, which runs code of the file, only if you trust its source"
_STARTS = [
    (b"version https://git-lfs.github.com/spec", "a Git LFS pointer", "Fetch the file itself with `git lfs pull`"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as .h5 weights of Keras are", _CONVERT),
]
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or does not fit the model."""


@dataclasses.dataclass(frozen=True, eq=False)
class TensorFile:
    """A checked directory of arrays; `read` gives the arrays themselves.

    Attributes:
        path: the file.
        kind: `"npz"`, `"safetensors"` or `"torch"`.
        entries: `{name: Entry}` of all arrays.
        note: of a file that this package wrote, else `{}`.
    """

    path: Path
    kind: str
    entries: dict[str, Entry]
    note: dict
    _members: dict[str, Member] = dataclasses.field(repr=False)
    _identity: tuple = dataclasses.field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._identity[-1]

    def read(
        self,
        names: Iterable[str] | None = None,
        *,
        void_is_bfloat16: bool = False,
        allow_nonfinite: bool = False,
        integers: bool = False,
    ) -> dict[str, np.ndarray]:
        """Arrays by name: float16, float32, float64 as stored, or bfloat16.

        They are read-only, and in memory of their own, which the last one of the arrays that share it frees.

        Args:
            names: of `entries`; all by default.
            void_is_bfloat16: take `|V2`, as NumPy writes bfloat16, for bfloat16. Only for files known to hold it.
            allow_nonfinite: skip the search for NaN, infinities and values beyond float32.
            integers: whether int32 and int64 are let through, which are no weights.

        Raises:
            CheckpointError: for a name that is not there, another dtype, or a checksum that differs; for a value that
                is not finite in float32; for a file that changed since it was scanned.
            FileNotFoundError: if the file is gone.
        """
        names = list(self.entries if names is None else names)
        if not names:
            return {}
        for name in names:
            self._check_readable(name, void_is_bfloat16, integers)
        with self._unchanged() as file:
            storages: dict[int, np.ndarray] = {}
            return {name: self._array(file, name, not allow_nonfinite, storages) for name in names}

    def without_checksums(self) -> "TensorFile":
        """The same file without checksum tests, to look at names and shapes and not at numbers."""
        members = {name: dataclasses.replace(member, crc=None) for name, member in self._members.items()}
        return dataclasses.replace(self, _members=members)

    def check(self) -> None:
        """Compares the checksum of every member, also of those that are no weights.

        Raises:
            CheckpointError: if one differs, or the file changed since it was scanned.
        """
        with self._unchanged() as file:
            storages: dict[int, np.ndarray] = {}
            for name in self._members:
                self._array(file, name, False, storages)

    @contextlib.contextmanager
    def _unchanged(self) -> Iterator[BinaryIO]:
        """The file, open; raises unless it is the one that was scanned, before it is read and after that."""
        with open_checkpoint(self.path) as file:
            self._check_identity(file)
            yield file
            self._check_identity(file)

    def _check_identity(self, file: BinaryIO) -> None:
        if _identity(file) != self._identity:
            raise self._error("the file changed while it was being read", "Read it again when it is whole")

    def _check_readable(self, name: str, void_is_bfloat16: bool, integers: bool) -> None:
        if name not in self.entries:
            raise self._error(f"the file holds no array {name!r}", f"It holds {len(self.entries)}")
        dtype = self.entries[name].dtype
        if integers and dtype in _INTEGERS:
            return
        if dtype not in _READABLE and not (void_is_bfloat16 and dtype == VOID):
            raise self._error(
                f"{name!r} must hold little-endian floats, of 2, 4 or 8 bytes or bfloat16, to be weights",
                f"It holds {dtype.str}",
            )

    def _array(self, file: BinaryIO, name: str, check_finite: bool, storages: dict[int, np.ndarray]) -> np.ndarray:
        """An array, once its checksum and its numbers are checked; `storages` has shared bytes by where they begin."""
        member = self._members[name]
        dtype = BFLOAT16 if member.entry.dtype == VOID else member.entry.dtype
        if member.strides is not None:
            return self._view(file, name, check_finite, storages)
        if member.deflated:
            data = self._load(io.BytesIO(self._inflate(file, name)), 0, name, dtype, check_finite)
        else:
            data = self._load(file, member.start, name, dtype, check_finite)
        return np.ndarray(member.entry.shape, dtype, data, order="F" if member.fortran_order else "C")

    def _view(self, file: BinaryIO, name: str, check_finite: bool, storages: dict[int, np.ndarray]) -> np.ndarray:
        """An array among bytes that others may share, which are read once."""
        member = self._members[name]
        dtype = member.entry.dtype
        if member.start not in storages:
            storages[member.start] = self._load(file, member.start, name, dtype, check_finite=False)
        array = np.ndarray(member.entry.shape, dtype, storages[member.start], member.offset, member.strides)
        if check_finite:
            self._refuse_nonfinite(name, dtype, array.size - int(np.count_nonzero(_finite(array))))
        return array

    def _load(self, file: BinaryIO, start: int, name: str, dtype: np.dtype, check_finite: bool) -> np.ndarray:
        """The bytes of a member without its header, whose CRC-32 and numbers are looked at in the same pass."""
        member, bad = self._members[name], 0
        file.seek(start)
        crc = zlib.crc32(file.read(member.header_size))
        data = np.empty((member.size if member.strides is None else member.stored_size) - member.header_size, "uint8")
        for first in range(0, len(data), _CHUNK):
            chunk = data[first : first + _CHUNK]
            if file.readinto(chunk) != len(chunk):  # type: ignore[attr-defined]
                raise self._error(f"the file is cut short inside {name!r}", _AGAIN)
            crc = crc if member.crc is None else zlib.crc32(chunk.data, crc)
            if check_finite:
                numbers = np.frombuffer(chunk, dtype)
                bad += len(numbers) - int(np.count_nonzero(_finite(numbers)))
        if member.crc not in (None, crc):
            raise self._error(f"the file is damaged: CRC-32 of {name!r} differs", _AGAIN)
        self._refuse_nonfinite(name, dtype, bad)
        data.flags.writeable = False
        return data

    def _refuse_nonfinite(self, name: str, dtype: np.dtype, bad: int) -> None:
        if bad:
            beyond = ", or beyond the range of float32" if dtype.itemsize == 8 else ""
            raise self._error(
                f"{name!r} holds {bad} NaN or infinite values{beyond}, and would spoil every output",
                "`TensorFile.read` and `read_checkpoint` read it nevertheless, by their parameter `allow_nonfinite`",
            )

    def _inflate(self, file: BinaryIO, name: str) -> bytes:
        """The bytes of a deflated member, in no more memory than the directory says."""
        member, inflater = self._members[name], zlib.decompressobj(-15)
        file.seek(member.start)
        try:
            content = inflater.decompress(file.read(member.stored_size), member.size + 1)
        except zlib.error as error:
            raise self._error(f"the file is damaged: {name!r} cannot be inflated", _AGAIN) from error
        if len(content) != member.size or not inflater.eof or inflater.unused_data:
            raise self._error(f"the file is damaged: {name!r} must inflate to {member.size} bytes", _AGAIN)
        return content

    def _error(self, rule: str, advice: str) -> CheckpointError:
        return CheckpointError(f"{rule}.\nReceived: {self.path}. {advice}.")


def scan(path: str | os.PathLike) -> TensorFile:
    """Checks a file's directory and headers before anything is allocated; its bytes decide its kind.

    All arrays together may declare at most 4 times the file's bytes plus 16 MB. The limit is not for each array,
    since an all-zero head, as published, compresses a thousandfold.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if it is neither `.npz` nor safetensors nor a zip of `torch.save`, is damaged or cut short, or
            holds what is no plain number: pickles of anything but tensors in containers, objects, structures;
            encrypted or oddly compressed members; names twice or unsafe; shapes that do not match the bytes.
    """
    path = Path(path)
    with open_checkpoint(path) as file:
        identity = _identity(file)
        start = file.read(512)
        kind = _kind(start)
        if kind is None:
            raise _unknown(path, *_looks_like(start, identity[-1]))
        data = FileBytes(file)
        try:
            if kind == "safetensors":
                members, note = read_safetensors(path, data)
            else:
                members, note = (read_npz if kind == "npz" else read_torch)(file, data)
            _check_members(members, len(data))
        except OSError:
            raise
        except Exception as error:  # of zipfile, NumPy or safetensors: whatever it is, the bytes are to blame
            if kind == "npz" and (likely := _archive_looks_like(start + data[-(2**20) :])):
                raise _unknown(path, *likely) from error
            if not isinstance(error, FormatError):
                error = FormatError(f"is cut short or damaged: {printable(error).partition(';')[0].rstrip('.')}")
            raise CheckpointError(
                f"the file {error}.\nReceived: {path}, {len(data)} bytes. {error.advice or _AGAIN}."
            ) from error
    entries = {name: member.entry for name, member in members.items()}
    return TensorFile(path, kind, entries, note, members, identity)


@contextlib.contextmanager
def open_checkpoint(path: Path) -> Iterator[BinaryIO]:
    """Opens the file for reading, and turns errors of the system into a `CheckpointError`.

    Raises:
        FileNotFoundError: if nothing is there.
        CheckpointError: for a folder, a pipe or a device, and for what cannot be read.
    """
    try:
        if "\0" in str(path):
            raise FileNotFoundError
        if path.is_dir():
            raise _unknown(path, *_folder_looks_like(os.listdir(path)))
        with open_regular(path) as file:
            yield file
    except FileKindError as error:
        raise CheckpointError(
            f"weights must be a file, since a pipe or device may never end.\nReceived: {path}, {error.reason}."
        ) from None
    except FileNotFoundError:
        raise FileNotFoundError(f"no checkpoint at this path.\nReceived: {path}") from None
    except OSError as error:
        raise CheckpointError(f"the file cannot be read: {error}.\nReceived: {path}.") from error


def _identity(file: BinaryIO) -> tuple:
    """What changes when a file is replaced or written to; its size comes last.

    `rsync` sets the time of the last write back, and nobody the time of the last change (`ctime`).
    """
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size


def _kind(start: bytes) -> str | None:
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "torch" if is_torch_zip(start) else "npz"
    # The header's length fits into 6 bytes, and the header begins with a brace.
    return "safetensors" if start[6:9] == b"\0\0{" else None


def _check_members(members: dict[str, Member], size: int) -> None:
    if not members:
        raise FormatError("holds no array")
    declared, limit = sum(member.size for member in members.values()), 4 * size + 16_000_000
    if declared > limit:
        raise FormatError(
            f"declares {declared} bytes of arrays; {limit} is the limit for its size, so it is no honest file"
        )


def _finite(numbers: np.ndarray) -> np.ndarray:
    """Whether each number is finite in float32, which is what models hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.isfinite(numbers if numbers.dtype.itemsize <= 4 else numbers.astype("float32"))


def _unknown(path: Path, what: str, advice: str) -> CheckpointError:
    return CheckpointError(
        f"weights must be an .npz, safetensors or .pth file, and this is {what}.\nReceived: {path}. {advice}."
    )


def _looks_like(start: bytes, size: int) -> tuple[str, str]:
    """What a file of no known kind looks like by its first bytes, and what to do."""
    if not size:
        return "0 bytes", _AGAIN
    for magic, what, advice in _STARTS:
        if start.startswith(magic):
            return what, advice
    if start.startswith(_PICKLES):
        return "a pickle, as torch.save writes; unpickling runs code of the file, so it is never done here", _CONVERT
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text.startswith(b"<"):
        kind = "an XML page" if text.startswith(b"<?xml") else "an HTML page"
        return f"{kind}, as a proxy, a login or an error sends", _AGAIN
    if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start):
        return f"text, {start[:40].decode()!r}", _AGAIN
    return f"no known format, its first bytes being {start[:8]!r}", "Pass an .npz, safetensors or .pth file"


def _archive_looks_like(ends: bytes) -> tuple[str, str] | None:
    """What a zip looks like by its first and last bytes, where names stand, or `None` for nothing known."""
    if b"constants.pkl" in ends:
        return "a TorchScript program", PROGRAM_ADVICE
    if b"data.pkl" in ends:
        return "an archive with a pickle, as torch.save writes; unpickling runs code of the file", _CONVERT
    if b"model.weights.h5" in ends or b"config.json" in ends:
        return "a Keras .keras archive", _KERAS
    return None


def _folder_looks_like(names: list[str]) -> tuple[str, str]:
    if {"saved_model.pb", "saved_model.pbtxt"} & set(names):
        return "a SavedModel, which is a program", _KERAS.replace("keras.saving.load_model", "tf.saved_model.load")
    return "a folder", "Pass the file in it"
