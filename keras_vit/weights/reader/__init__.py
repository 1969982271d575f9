"""Strict reading of checkpoint files, `.npz` and safetensors: never silently wrong, never run.

`scan` looks at directory and headers only; `TensorFile.read` hands out arrays whose checksum and values
have been checked. Stored arrays are mapped, so a checkpoint is never in memory twice. Nothing is ever
unpickled or unpacked to disk. This module imports neither Keras nor TensorFlow.
"""

import contextlib
import dataclasses
import mmap
import os
import zlib
from collections.abc import Iterable
from pathlib import Path

import ml_dtypes
import numpy as np

from keras_vit.files import FileKindError, open_regular
from keras_vit.weights.reader import appearance, npz, tensorfile
from keras_vit.weights.reader.layout import Entry, FormatError, Member

_CHUNK = 2**18  # bytes; small enough for a core's cache, so that both checks of a chunk read memory once
_VOID = np.dtype("V2")
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_ANEW = "Download or write it again"
_READABLE = {np.dtype("<f2"), np.dtype("<f4"), np.dtype("<f8"), _BFLOAT16}


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or does not fit the model."""


@dataclasses.dataclass(frozen=True, eq=False)
class TensorFile:
    """A checked directory of arrays; `read` gives the arrays themselves.

    Attributes:
        path: the file.
        kind: `"npz"` or `"safetensors"`.
        entries: `{name: Entry}` of all arrays, in the order of the directory.
        note: what a writer of ours left in the file, else `{}`.
    """

    path: Path
    kind: str
    entries: dict[str, Entry]
    note: dict
    _members: dict[str, Member] = dataclasses.field(repr=False)
    _mapping: mmap.mmap = dataclasses.field(repr=False)
    _identity: tuple = dataclasses.field(repr=False)

    def read(
        self, names: Iterable[str] | None = None, *, void_is_bfloat16=False, allow_nonfinite=False
    ) -> dict[str, np.ndarray]:
        """Arrays by name: float16, float32, float64 as stored, or bfloat16.

        Stored arrays are read-only views of the mapped file, and stay good as long as nobody writes to it.

        Args:
            names: of `entries`; all by default.
            void_is_bfloat16: take `|V2`, as NumPy writes bfloat16, for bfloat16. Only for files known to hold it.
            allow_nonfinite: skip the search for NaN, infinities and values beyond float32.

        Raises:
            CheckpointError: for a name that is not there, another dtype, a checksum that differs, a value that
                is not finite in float32, or a file that changed since it was scanned.
            FileNotFoundError: if the file is gone.
        """
        names = list(self.entries if names is None else names)
        for name in names:
            self._check_readable(name, void_is_bfloat16)
        with self._unchanged() as file:
            scratch = np.empty(_CHUNK, "u1")
            return {name: self._read_array(file, name, not allow_nonfinite, scratch) for name in names}

    def check(self):
        """Compares the checksum of every member, also of those that are no weights.

        Raises:
            CheckpointError: if one differs, or the file changed since it was scanned.
        """
        with self._unchanged() as file:
            scratch = np.empty(_CHUNK, "u1")
            for name, member in self._members.items():
                if member.deflated:
                    self._inflate(file, name)
                else:
                    self._look_through(file, name, np.dtype("u1"), False, scratch)

    @contextlib.contextmanager
    def _unchanged(self):
        """The file, open, if it is still the one that was scanned."""
        with _opened(self.path) as file:
            if _identity(file) != self._identity:
                raise self._error("the file changed while it was being read", "Read it again when it is whole")
            yield file

    def _check_readable(self, name, void_is_bfloat16):
        if name not in self.entries:
            raise self._error(f"the file holds no array {name!r}", f"It holds {len(self.entries)}")
        dtype = self.entries[name].dtype
        if dtype not in _READABLE and not (void_is_bfloat16 and dtype == _VOID):
            raise self._error(
                f"{name!r} must hold little-endian floats, of 2, 4 or 8 bytes or bfloat16, to be weights",
                f"It holds {dtype.str}",
            )

    def _read_array(self, file, name, check_finite, scratch):
        member = self._members[name]
        shape, dtype = member.entry.shape, _BFLOAT16 if member.entry.dtype == _VOID else member.entry.dtype
        if member.deflated:
            buffer, start, finite = self._inflate(file, name), member.header_size, False
        else:
            buffer, start = self._mapping, member.start + member.header_size
            finite = self._look_through(file, name, dtype, check_finite, scratch)
        array = np.ndarray(shape, dtype, buffer, start, order="F" if member.fortran_order else "C")
        if check_finite and not finite:
            self._check_finite(name, array)
        return array

    def _look_through(self, file, name, dtype, check_finite, scratch):
        """Checks the CRC-32 of a stored member, and tells whether all its numbers are finite, in one pass.

        Reads through a small buffer instead of the mapping: no page gets mapped, and the numbers are aligned.
        """
        member = self._members[name]
        if member.crc is None and not check_finite:
            return True
        file.seek(member.start)
        crc, finite = zlib.crc32(file.read(member.header_size)), True
        remaining = member.size - member.header_size
        while remaining:
            chunk = scratch[: min(_CHUNK, remaining)]
            if file.readinto(chunk) != len(chunk):
                raise self._error(f"the file is cut short inside {name!r}", _ANEW)
            crc = crc if member.crc is None else zlib.crc32(chunk, crc)
            finite = finite and (not check_finite or _finite(chunk.view(dtype)).all())
            remaining -= len(chunk)
        self._check_crc(name, crc)
        return finite

    def _check_crc(self, name, crc):
        if self._members[name].crc not in (None, crc):
            raise self._error(f"the file is damaged: CRC-32 of {name!r} differs", _ANEW)

    def _inflate(self, file, name):
        """The inflated bytes of a member, checked, in no more memory than the directory says."""
        member, position, crc = self._members[name], 0, 0
        content = np.empty(member.size, "u1")
        try:
            for piece in _inflated(file, member):
                content[position : position + len(piece)] = np.frombuffer(piece, "u1")
                position, crc = position + len(piece), zlib.crc32(piece, crc)
        except FormatError as error:
            raise self._error(f"the file is damaged: {name!r} {error}", _ANEW) from error
        self._check_crc(name, crc)
        content.flags.writeable = False
        return content

    def _check_finite(self, name, array):
        flat = array.ravel("K")
        bad = sum(np.count_nonzero(~_finite(flat[i : i + _CHUNK])) for i in range(0, flat.size, _CHUNK))
        if bad:
            beyond = ", or beyond the range of float32" if array.dtype.itemsize == 8 else ""
            raise self._error(
                f"{name!r} holds {bad} NaN or infinite values{beyond}, and would spoil every output",
                "`TensorFile.read` and `read_checkpoint` read it nevertheless, by their parameter `allow_nonfinite`",
            )

    def _error(self, rule, advice):
        return CheckpointError(f"{rule}.\nReceived: {self.path}. {advice}.")


def scan(path) -> TensorFile:
    """Checks a file's directory and headers before anything is allocated; its kind is told by its bytes.

    All arrays together may declare at most 4 times the file's bytes plus 16 MB. A rule for each array would
    refuse honest files: an all-zero head, as published, deflates to a thousandth.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if it is neither `.npz` nor safetensors, is damaged or cut short, or holds what is no
            plain number: pickles, objects, structures; encrypted or oddly compressed members; names twice or
            unsafe; shapes that do not match the bytes.
    """
    path = Path(path)
    with _opened(path) as file:
        identity = _identity(file)
        start = file.read(512)
        kind = _kind(start)
        if kind is None:
            raise _unknown(path, *appearance.looks_like(start, identity[-1]))
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        members, note = (npz.read_directory if kind == "npz" else tensorfile.read_header)(mapping)
        _check_members(members, len(mapping))
    except FormatError as error:
        if kind == "npz" and (seen := appearance.archive_looks_like(start + mapping[-(2**20) :])):
            raise _unknown(path, *seen) from error
        raise CheckpointError(f"the file {error}.\nReceived: {path}, {len(mapping)} bytes. {_ANEW}.") from error
    entries = {name: member.entry for name, member in members.items()}
    return TensorFile(path, kind, entries, note, members, mapping, identity)


def forget_pages(array):
    """Lets go of the memory that looking at a mapped array took; the array stays as it is."""
    while isinstance(array, np.ndarray):
        array = array.base
    if isinstance(array, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        array.madvise(mmap.MADV_DONTNEED)


@contextlib.contextmanager
def _opened(path):
    """The file, open for reading; what the system has against it is told as errors of ours."""
    try:
        if "\0" in str(path):
            raise FileNotFoundError
        if path.is_dir():
            raise _unknown(path, *appearance.folder_looks_like(os.listdir(path)))
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


def _identity(file):
    """What changes when a file is replaced or written to; its size comes last."""
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _kind(start):
    if start[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "npz"
    # The header's length fits into 6 bytes, and the header begins with a brace.
    return "safetensors" if start[6:9] == b"\0\0{" else None


def _unknown(path, what, advice):
    return CheckpointError(
        f"weights must be an .npz or safetensors file, and this is {what}.\nReceived: {path}. {advice}."
    )


def _check_members(members, size):
    if not members:
        raise FormatError("holds no array")
    declared, limit = sum(member.size for member in members.values()), 4 * size + 16_000_000
    if declared > limit:
        raise FormatError(
            f"declares {declared} bytes of arrays; {limit} is the limit for its size, so it is no honest file"
        )


def _finite(numbers):
    """Whether each number is finite in float32, which is what models hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.isfinite(numbers if numbers.dtype.itemsize <= 4 else numbers.astype("float32"))


def _inflated(file, member):
    """The bytes of a deflated member in pieces; raises `FormatError` before there are more than there should be."""
    inflater, remaining, packed, size = zlib.decompressobj(-15), member.stored_size, b"", 0
    file.seek(member.start)
    while not inflater.eof:
        if not packed:
            packed = file.read(min(_CHUNK, remaining))
            remaining -= len(packed)
        try:
            piece = inflater.decompress(packed, _CHUNK)  # may have more to give when all is taken in
        except zlib.error as error:
            raise FormatError("cannot be inflated") from error
        size += len(piece)
        if size > member.size or not (piece or packed):
            break
        packed = inflater.unconsumed_tail
        yield piece
    if not inflater.eof or size != member.size or remaining or inflater.unused_data:
        raise FormatError(f"must inflate to {member.size} bytes")
