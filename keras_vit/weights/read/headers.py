"""Where the arrays of a file lie, by its directory and headers; the arrays themselves are not touched.

Python's `zipfile`, NumPy and safetensors read them. This module refuses what these let pass: names that are unsafe or
stand twice, bytes of no array, sizes beyond the file, and too large directories.

Sources: PKWARE APPNOTE 6.3.10, section 4.3.16; NumPy, `numpy.lib.format`; safetensors, README, "Format".
"""

import dataclasses
import io
import json
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from safetensors import safe_open

from keras_vit.files import parse_json

NOTE_KEY = "keras_vit"
VOID = np.dtype("V2")  # NumPy writes bfloat16 as two bytes of no kind
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
# Bytes. An array takes about 150, so the largest published model has 80,000, three times that with its optimizer's
# state. A directory takes some 15 times its size in memory once it is parsed.
LARGEST_DIRECTORY = 800_000
_LARGEST_NPY_HEADER = 10_000  # bytes; NumPy's own limit
_NPY_VERSIONS = {(1, 0): 10, (2, 0): 12, (3, 0): 12}  # bytes before the header's text
# The text that NumPy writes for plain numbers. Nothing else is handed to NumPy, which evaluates literals.
_NPY_HEADER = re.compile(rb"\{'descr': '[<>|]\w+', 'fortran_order': (True|False), 'shape': \([\d, ]*\), \}\s*")
_SAFETENSORS_DTYPES = {"BOOL": np.dtype("?"), "BF16": BFLOAT16, "C64": np.dtype("<c8")}
_SAFETENSORS_DTYPES |= {f"{kind}{8 * n}": np.dtype(f"<{kind.lower()}{n}") for kind in "UI" for n in (1, 2, 4, 8)}
_SAFETENSORS_DTYPES |= {f"F{8 * n}": np.dtype(f"<f{n}") for n in (2, 4, 8)}
_SMALL_FLOATS = ("F8_", "F6_", "F4")  # how their dtypes begin in safetensors
_END = struct.Struct("<4s4H2IH")  # of a zip: signature, disks (2), entries (2), size and offset, comment's length
_LARGEST_COUNT = 2**62  # bytes; NumPy counts in 63 bits
_MOST_AXES = 32  # NumPy 1 holds no more
LONGEST_NAME = 1000
_DRIVE = re.compile(r"[A-Za-z]:")


class FormatError(ValueError):
    """The bytes break a rule of their format; the text says which.

    Attributes:
        advice: what to do, if it is not to bring the file again.
    """

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.advice = advice


@dataclasses.dataclass(frozen=True)
class Entry:
    """One array as stored.

    Attributes:
        shape: sizes of the axes; `()` for a number.
        dtype: as stored: `|V2` for bfloat16 that NumPy wrote as void, `ml_dtypes.bfloat16` from safetensors.
    """

    shape: tuple[int, ...]
    dtype: np.dtype


@dataclasses.dataclass(frozen=True)
class Member:
    """Where one array lies in the file.

    Attributes:
        entry: shape and dtype.
        start: first byte in the file of what is stored, an `.npy` header included.
        stored_size: bytes from `start` on; fewer than `size` if deflated.
        size: bytes once inflated, header included.
        header_size: bytes before the array itself, once inflated.
        deflated: whether the bytes must be inflated.
        crc: CRC-32 of the inflated bytes, or `None` where the format keeps none.
        fortran_order: whether the first axis varies fastest.
        offset: bytes from `start` to the first number, of an array that shares what is stored with others.
        strides: bytes from one number to the next along each axis, of such an array; else `None`.
    """

    entry: Entry
    start: int
    stored_size: int
    size: int
    header_size: int = 0
    deflated: bool = False
    crc: int | None = None
    fortran_order: bool = False
    offset: int = 0
    strides: tuple[int, ...] | None = None


class FileBytes:
    """The bytes of an open file by their places, each read when it is taken, so that a file may become shorter."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size = file.fileno(), os.fstat(file.fileno()).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, places: slice) -> bytes:
        start, stop, _ = places.indices(self._size)
        before = os.lseek(self._file, 0, os.SEEK_CUR)  # where `zipfile` goes on reading
        try:
            os.lseek(self._file, start, os.SEEK_SET)
            return os.read(self._file, max(stop - start, 0))
        finally:
            os.lseek(self._file, before, os.SEEK_SET)


def read_npz(file: BinaryIO, data: FileBytes) -> tuple[dict[str, Member], dict]:
    """Members of an `.npz` by name without `.npy`, and the note in the zip's comment.

    Args:
        file: the file, open.
        data: the bytes of the same file.

    Raises:
        FormatError: for anything else than what `np.savez` and `np.savez_compressed` write from plain numbers.
        Exception: whatever zipfile and NumPy raise for damaged bytes.
    """
    members = {}
    with open_zip(file) as archive:
        for info, start in zip_members(archive, data):
            if not info.orig_filename.endswith(".npy") or info.orig_filename == ".npy":
                raise FormatError(f"holds {info.orig_filename!r}, which is no .npy array")
            members[info.orig_filename.removesuffix(".npy")] = _npz_member(info, data, start)
        note = _json_object(archive.comment).get(NOTE_KEY)
    return members, note if isinstance(note, dict) else {}


def open_zip(file: BinaryIO) -> zipfile.ZipFile:
    """The zip in an open file, whose directory is bounded."""
    return zipfile.ZipFile(_BoundedReader(io.FileIO(file.fileno(), closefd=False)))


def zip_members(archive: zipfile.ZipFile, data: FileBytes) -> Iterator[tuple[zipfile.ZipInfo, int]]:
    """The members of a zip in the order of their bytes, with where the bytes of each begin.

    Args:
        archive: of `open_zip`.
        data: the bytes of the same file.

    Raises:
        FormatError: for names that are unsafe or stand twice, unknown compression, and members in the same bytes.
        Exception: whatever zipfile raises for damaged bytes.
    """
    _check_end(archive, data)
    names, stop = set(), 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        name = info.orig_filename
        _check_info(info)
        archive.open(info).close()  # which compares the member's own header with the directory
        name_size, extra_size = struct.unpack("<2H", data[info.header_offset + 26 : info.header_offset + 30])
        start = info.header_offset + 30 + name_size + extra_size
        if name in names:
            raise FormatError(f"holds the name {name.removesuffix('.npy')!r} twice")
        if info.header_offset < stop:
            shown = name.removesuffix(".npy")
            raise FormatError(f"holds {shown!r} and the member before it in the same bytes")
        yield info, start
        names.add(name)
        stop = start + info.compress_size
    if stop > archive.start_dir:
        raise FormatError("is cut short or damaged: a member reaches into the directory")


def read_safetensors(path: Any, data: FileBytes) -> tuple[dict[str, Member], dict]:
    """Members of a safetensors file by name, and the note in `__metadata__`.

    Args:
        path: the file.
        data: the bytes of the same file.

    Raises:
        FormatError: if a rule of the format is broken that the package lets pass.
        Exception: whatever the package raises for damaged bytes.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    if start > LARGEST_DIRECTORY:
        raise FormatError(f"has a directory of {start - 8} bytes; {LARGEST_DIRECTORY} is the limit")
    with safe_open(path, "np") as file:  # compares every size with its shape, its place and the file's end
        metadata = file.metadata() or {}
    header = parse_json(data[8:start])
    header.pop("__metadata__", None)
    members = {name: _safetensors_member(name, record, start) for name, record in header.items()}
    return members, _json_object(metadata.get(NOTE_KEY, "{}"))


class _BoundedReader(io.BufferedReader):
    """A file that refuses to read more at once than a directory may have, which `zipfile` reads in one piece."""

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > LARGEST_DIRECTORY:
            raise FormatError(f"has a directory of {size} bytes; {LARGEST_DIRECTORY} is the limit")
        return super().read(size)


def _check_end(archive: zipfile.ZipFile, data: FileBytes) -> None:
    """Raises unless archive and file begin and end together and all members are there; `zipfile` checks neither."""
    infos, comment = archive.infolist(), archive.comment
    if not infos:
        raise FormatError("holds no array")
    end = data[len(data) - len(comment) - _END.size :][: _END.size]
    signature, disk, first_disk, here, count, _, _, comment_size = _END.unpack(end)
    is_end = (signature, disk, first_disk, comment_size) == (b"PK\x05\x06", 0, 0, len(comment))
    if not is_end or here != count or min(info.header_offset for info in infos):
        raise FormatError("is cut short or damaged: the record at its end does not describe it")
    if count not in (len(infos), 0xFFFF):  # which says that the number stands elsewhere
        raise FormatError(f"is cut short or damaged: it must hold {count} members, and lists {len(infos)}")


def _check_info(info: zipfile.ZipInfo) -> None:
    name = info.orig_filename
    check_name(name)
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(
            f"holds {name!r} compressed by method {info.compress_type}; only stored and deflated are read"
        )
    if info.volume or (info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size):
        raise FormatError(f"is cut short or damaged: {name!r} cannot have the size that the directory says")


def _npz_member(info: zipfile.ZipInfo, data: FileBytes, start: int) -> Member:
    deflated, most = info.compress_type == zipfile.ZIP_DEFLATED, 12 + _LARGEST_NPY_HEADER
    head = data[start : start + min(info.compress_size, 2 * most)]
    head = zlib.decompressobj(-15).decompress(head, most) if deflated else head[:most]
    try:
        entry, fortran_order, header_size = _read_npy_header(head)
    except ValueError as error:
        raise _not_plain(info.orig_filename, error) from error
    expected = header_size + byte_count(entry)
    if info.file_size != expected:
        words = f"{info.orig_filename!r} must have {expected} bytes by its header, and has {info.file_size}"
        raise FormatError(f"is cut short or damaged: {words}")
    return Member(entry, start, info.compress_size, info.file_size, header_size, deflated, info.CRC, fortran_order)


def _read_npy_header(head: bytes) -> tuple[Entry, bool, int]:
    """Shape and dtype, whether the array is in Fortran order, and the bytes before it."""
    file = io.BytesIO(head)
    version = np.lib.format.read_magic(file)
    if version not in _NPY_VERSIONS:
        raise ValueError(f"version {version} of .npy")
    start = _NPY_VERSIONS[version]
    text = head[start : start + int.from_bytes(head[8:start], "little")]
    if not _NPY_HEADER.fullmatch(text):
        raise ValueError(f"the header {text[:100]!r}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    if dtype.kind not in "biufc" and dtype != VOID:
        raise ValueError(f"the dtype {dtype.str!r}")
    return Entry(shape, dtype), fortran_order, file.tell()


def _safetensors_member(name: str, record: dict[str, Any], start: int) -> Member:
    check_name(name)
    if record.keys() != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"is damaged: {name!r} must have dtype, shape and data_offsets alone")
    if str(record["dtype"]).startswith(_SMALL_FLOATS):
        raise small_float_error(f"{name!r} of {record['dtype']}")
    if record["dtype"] not in _SAFETENSORS_DTYPES:
        raise _not_plain(name, f"the dtype {record['dtype']!r}")
    entry = Entry(tuple(record["shape"]), _SAFETENSORS_DTYPES[record["dtype"]])
    size = byte_count(entry)
    return Member(entry, start + record["data_offsets"][0], size, size)


def _not_plain(name: str, reason: object) -> FormatError:
    return FormatError(f"holds {name!r}, which is no array of plain numbers; pickles are never read: {reason}")


def small_float_error(what: str) -> FormatError:
    """The error for arrays of float8, float6 or float4, which stand for numbers only with scales of their own."""
    return FormatError(
        f"holds {what}, and floats below 16 bits are not read, as their scales have no common place",
        "Convert its arrays to bfloat16 or float32 in the program that made it, and pass that file",
    )


def byte_count(entry: Entry) -> int:
    """Bytes of an array; refuses what no array can have, also where an axis of 0 would hide it."""
    shape, size = entry.shape, entry.dtype.itemsize
    if len(shape) > _MOST_AXES or math.prod(max(n, 1) for n in shape) * size > _LARGEST_COUNT:
        raise FormatError(f"has an array of an impossible shape, {str(shape)[:100]}")
    return math.prod(shape) * size


def check_name(name: str) -> None:
    """Refuses names that would leave a folder if somebody unpacked the file, or steer a terminal that shows them."""
    parts = name.split("/")
    unsafe = "" in parts or ".." in parts or "\\" in name or "\0" in name or _DRIVE.match(name)
    if unsafe or not name.isprintable() or len(name) > LONGEST_NAME:
        raise FormatError(f"holds an array of the unsafe name {name[:100]!r}")


def _json_object(text: str | bytes) -> dict:
    """The object in a note or comment, empty for what another program left there."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
