"""Strict reading of `.npz` checkpoints: everything is checked before an array is handed out.

Stored members are mapped, not read, so a checkpoint is never held in memory twice. Pickles are
never unpickled. This module imports neither Keras nor TensorFlow.
"""

import ast
import json
import math
import mmap
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np

_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip member: lengths of name and extra field at bytes 26 and 28
_NOTE_KEY = "keras_vit"


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or does not fit the model."""


def read_npz(path) -> tuple[dict[str, np.ndarray], dict]:
    """All arrays of an `.npz` file, and the note that `write_npz` left in it.

    Args:
        path: file on disk.

    Returns:
        `{name: array}` (read-only views of the file where members are stored) and a dict, empty if the
        file carries no note of ours.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: if it is no `.npz`, is damaged, or holds anything but finite numbers.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint at this path.\nReceived: {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(path, archive)
            with open(path, "rb") as file:
                stored = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            arrays = {}
            for name, info in members.items():
                arrays[name] = _read_array(path, archive, info, stored)
                forget_pages(arrays[name])
            return arrays, _note(archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise CheckpointError(f"not a readable .npz file: {error}.\nReceived: {path}, {_looks_like(path)}.") from error


def forget_pages(array):
    """Lets go of the memory that looking at a mapped array took; the array stays as it is."""
    while isinstance(array, np.ndarray):
        array = array.base
    if isinstance(array, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        array.madvise(mmap.MADV_DONTNEED)


def _members(path, archive):
    members = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(".npy")
        if name == info.filename or name in members:
            what = "twice" if name in members else "and is no .npy array"
            raise CheckpointError(f"the file holds {info.filename!r} {what}.\nReceived: {path}")
        members[name] = info
    if not members:
        raise CheckpointError(f"the file holds no array.\nReceived: {path}")
    return members


def _read_array(path, archive, info, stored):
    with archive.open(info) as member:
        shape, fortran_order, dtype = _read_header(path, info, member)
        offset = member.tell()
    expected = offset + math.prod(shape) * dtype.itemsize
    if info.file_size != expected:
        raise CheckpointError(
            f"{info.filename!r} must have {expected} bytes by its header, and has {info.file_size}.\nReceived: {path}"
        )
    order = "F" if fortran_order else "C"
    if info.compress_type == zipfile.ZIP_STORED:
        start = _start_of_data(path, info, stored)
        array = np.ndarray(shape, dtype, buffer=stored, offset=start + offset, order=order)
    else:
        array = np.frombuffer(archive.read(info), dtype, offset=offset).reshape(shape, order=order)
    with np.errstate(over="ignore"):
        finite = np.isfinite(array if array.dtype.itemsize <= 4 else array.astype("float32")).all()
    if not finite:
        raise CheckpointError(f"{info.filename!r} holds NaN or infinite values, in float32.\nReceived: {path}")
    return array


def _read_header(path, info, member):
    """Shape, order and dtype from the `.npy` header; refuses every dtype that is no plain float."""
    start = member.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
        raise CheckpointError(f"{info.filename!r} is no .npy array.\nReceived: {path}")
    size = struct.unpack("<H" if start[6] == 1 else "<I", member.read(2 if start[6] == 1 else 4))[0]
    try:
        header = ast.literal_eval(member.read(min(size, 10_000)).decode("latin1"))
        shape, fortran_order, descr = header["shape"], header["fortran_order"], header["descr"]
        valid = isinstance(descr, str) and all(type(n) is int and n >= 0 for n in shape)
    except (ValueError, SyntaxError, KeyError, TypeError) as error:
        raise CheckpointError(f"{info.filename!r} has a damaged header.\nReceived: {path}") from error
    if not valid or descr not in ("<f4", "<f2", "<f8"):
        raise CheckpointError(
            f"{info.filename!r} must hold little-endian floats of 2, 4 or 8 bytes; nothing else is read, "
            f"pickles least of all.\nReceived: dtype {descr!r} in {path}"
        )
    return tuple(shape), bool(fortran_order), np.dtype(descr)


def _start_of_data(path, info, stored):
    name_length, extra_length = _LOCAL_HEADER.unpack_from(stored, info.header_offset)
    start = info.header_offset + _LOCAL_HEADER.size + name_length + extra_length
    with memoryview(stored) as view, view[start : start + info.file_size] as data:
        if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
            raise CheckpointError(f"{info.filename!r} is damaged: its CRC-32 differs.\nReceived: {path}")
    return start


def _note(archive):
    try:
        note = json.loads(archive.comment or b"{}")
        note = note.get(_NOTE_KEY, {}) if isinstance(note, dict) else {}
    except ValueError:  # another program's comment
        note = {}
    return note if isinstance(note, dict) else {}


def note_bytes(note: dict) -> bytes:
    """The zip comment that carries `note`; other readers of `.npz` pass over it."""
    return json.dumps({_NOTE_KEY: note}).encode()


def _looks_like(path):
    with open(path, "rb") as file:
        start = file.read(512)
    if not start:
        return "which has 0 bytes"
    if start.lstrip()[:1] == b"<":
        return "which looks like an HTML page"
    if start[:4] == b"PK\x03\x04":
        return f"a zip cut short at {path.stat().st_size} bytes, or damaged"
    return "which is no zip archive"
