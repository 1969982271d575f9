"""Where the tensors of a file of torch lie: a zip of one pickle and of storages, each stored as it is.

The pickle is read as plain data. Every tensor must lie inside of its storage, with each number at a place of its own.

Source: torch, `torch/serialization.py`, "zipfile-based serialization".
"""

import collections
import mmap
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from keras_vit.weights.reader.directory import (
    BFLOAT16,
    LARGEST_DIRECTORY,
    LONGEST_NAME,
    Entry,
    FormatError,
    Member,
    byte_count,
    check_name,
    open_zip,
    zip_members,
)
from keras_vit.weights.reader.plain_pickle import Storage, TensorView, read_pickle

_BESIDE = {"version", "byteorder", ".format_version", ".storage_alignment", ".data/serialization_id"}
_PICKLE = "data.pkl"
_PROGRAM = "constants.pkl"  # which TorchScript has beside its code
_SAVE_AGAIN = "In a program with torch, load it with `weights_only=True`, and save it again with `torch.save`"
_MOST_DEPTH, _MOST_VALUES = 8, 200_000  # of nested dicts; one that stands in another twice is counted twice


def is_torch_zip(start: bytes) -> bool:
    """Whether a zip begins as `torch.save` begins it: with the pickle."""
    return start[30 : 30 + _name_size(start)].endswith(f"/{_PICKLE}".encode())


def _name_size(data: bytes | mmap.mmap) -> int:
    """Bytes of the first member's name in a zip."""
    return int.from_bytes(data[26:28], "little")


def read_torch(file: BinaryIO, data: mmap.mmap) -> tuple[dict[str, Member], dict]:
    """Tensors by name, which for those in nested dicts is joined by dots; and no note.

    Args:
        file: the file, open.
        data: the same file, mapped.

    Raises:
        FormatError: for anything else than what `torch.save` writes of tensors in dicts.
        Exception: whatever zipfile and pickletools raise for damaged bytes.
    """
    with open_zip(file) as archive:
        pickled, stored = _parts(archive, data)
    tree, storages = read_pickle(pickled)
    _check_storages(storages, stored)
    members: dict[str, Member] = {}
    for name, view in _views(tree):
        check_name(name)
        if name in members:
            raise FormatError(f"holds the name {name!r} twice")
        members[name] = _member(name, view, stored[view.storage.key])
    if not members:
        raise FormatError("holds no tensor in a dict of names", _SAVE_AGAIN)
    return members, {}


def _parts(archive: zipfile.ZipFile, data: mmap.mmap) -> tuple[bytes, dict[str, Member]]:
    """The pickle, and the storages by their keys; raises for members that torch does not write."""
    pickled, stored = b"", {}
    top = data[30 : 30 + _name_size(data)].decode().removesuffix(_PICKLE)
    for info, start in zip_members(archive, data):
        name = info.orig_filename.removeprefix(top)
        if info.compress_type:
            raise FormatError(f"holds {name!r} compressed, and torch stores its members as they are", _SAVE_AGAIN)
        if name == _PROGRAM:
            raise FormatError("is a TorchScript program", "Save `model.state_dict()` with `torch.save`")
        if name == _PICKLE:
            pickled = _pickle(info, data, start)
        if name == "byteorder" and data[start : start + info.file_size] != b"little":
            raise FormatError("must have little-endian numbers", _SAVE_AGAIN)
        if name.startswith("data/"):
            entry = Entry((info.file_size,), np.dtype("u1"))
            stored[name.removeprefix("data/")] = Member(entry, start, info.file_size, info.file_size, crc=info.CRC)
        elif name not in (_PICKLE, *_BESIDE) or not info.orig_filename.startswith(top):
            raise FormatError(f"holds {name!r}, which torch.save does not write")
    return pickled, stored


def _pickle(info: zipfile.ZipInfo, data: mmap.mmap, start: int) -> bytes:
    if info.file_size > LARGEST_DIRECTORY:
        raise FormatError(f"has a pickle of {info.file_size} bytes; {LARGEST_DIRECTORY} is the limit")
    pickled = data[start : start + info.file_size]
    if zlib.crc32(pickled) != info.CRC:
        raise FormatError("is damaged: CRC-32 of its pickle differs")
    return pickled


def _check_storages(storages: set[Storage], stored: dict[str, Member]) -> None:
    """Raises unless pickle and zip have the same storages, of the same sizes."""
    for storage in storages:
        if storage.key not in stored:
            raise FormatError(f"is cut short or damaged: it lacks the storage {storage.key[:100]!r}")
        found, expected = stored[storage.key].size, storage.count * (_dtype(storage.dtype).itemsize)
        if found != expected:
            raise FormatError(
                f"is cut short or damaged: the storage {storage.key!r} must have {expected} bytes by the pickle, and "
                f"has {found}"
            )
    if unused := stored.keys() - {storage.key for storage in storages}:
        raise FormatError(f"holds the storage {min(unused)!r}, to which no tensor refers")


def _views(tree: Any) -> Iterator[tuple[str, TensorView]]:
    """All tensors in nested dicts, by the keys that lead to them."""
    queue, seen = collections.deque([("", tree, 0)]), 0
    while queue:
        name, found, depth = queue.popleft()
        seen += 1
        if seen > _MOST_VALUES or depth > _MOST_DEPTH or len(name) > LONGEST_NAME:
            raise FormatError(
                f"has dicts nested deeper than {_MOST_DEPTH}, with more than {_MOST_VALUES} values, or of keys longer "
                f"than {LONGEST_NAME} together, which no weights need"
            )
        if isinstance(found, TensorView):
            yield name, found
        elif isinstance(found, dict):
            queue += [(f"{name}.{key}" if name else str(key), value, depth + 1) for key, value in found.items()]


def _member(name: str, view: TensorView, stored: Member) -> Member:
    """Where a tensor lies; raises if it leaves its storage, or has two numbers in one place."""
    dtype = _dtype(view.dtype)
    entry = Entry(view.shape, dtype)
    size, count = byte_count(entry), stored.size // dtype.itemsize
    if len(view.shape) != len(view.strides):
        raise FormatError(f"is damaged: {name!r} has {len(view.shape)} axes and {len(view.strides)} strides")
    span = 1  # numbers from the first to the last one, both included
    for length, stride in sorted(zip(view.shape, view.strides, strict=True), key=lambda axis: axis[1]):
        if size and length > 1:
            if stride < span:
                raise FormatError(f"holds {name!r}, whose numbers overlap: it would be larger than what is stored")
            span += stride * (length - 1)
    if size and view.offset + span > count:
        raise FormatError(f"is cut short or damaged: {name!r} reaches beyond its storage of {count} numbers")
    # The stride of an axis of one place is never gone, and may be any number.
    axes = zip(view.shape, view.strides, strict=True)
    strides = tuple(stride * dtype.itemsize if size and length > 1 else 0 for length, stride in axes)
    offset = view.offset * dtype.itemsize if size else 0
    return Member(entry, stored.start, stored.size, size, crc=stored.crc, offset=offset, strides=strides)


def _dtype(name: str) -> np.dtype:
    """NumPy's dtype of torch's; bytes for a storage that tells none."""
    if name == "bfloat16":
        return BFLOAT16
    return np.dtype(name or "u1").newbyteorder("<")
