"""Where the bytes of a photo are: a file of its own, or a slice of a larger one, as a member of a tar."""

import dataclasses
import functools
import os
from typing import TypeAlias

from keras_vit.files import FileKindError, open_regular, read_regular
from keras_vit.images.decode import MAX_BYTES
from keras_vit.pages.formatting import printable

_OPEN = 256  # shards whose descriptors are kept, since opening one on a network disk costs a round trip
_RULE = "a shard must stay as it was when it was opened"


@dataclasses.dataclass(frozen=True, slots=True)
class ByteRange:
    """A photo inside of a larger file."""

    file: str  # path of the larger one
    offset: int  # of the first byte
    size: int  # in bytes
    name: str  # what messages call the photo, as "shards/train-00000.tar:000000012.jpg"
    # Size and `st_mtime_ns` that the file must have; `None` for any.
    state: tuple[int, int] | None = dataclasses.field(default=None, compare=False)

    def __str__(self) -> str:
        return self.name


PhotoLocation: TypeAlias = str | ByteRange


def photo_bytes(place: PhotoLocation) -> bytes:
    """The bytes of a photo.

    Raises:
        FileKindError: for anything but a regular file, one of more than 1 GiB, and a shard that has changed.
        OSError: if it cannot be read.
    """
    if not isinstance(place, ByteRange):
        return read_regular(place, MAX_BYTES)
    if place.size > MAX_BYTES:
        raise _error("a photo must have at most 1 GiB", place, f"more than {MAX_BYTES:,} bytes")
    data, status = _read_range(place)
    if len(data) != place.size or (place.state is not None and status.st_size < place.state[0]):
        raise _error(_RULE, place, "in a shard that was cut short")
    if place.state not in (None, (status.st_size, status.st_mtime_ns)):  # the photo may be another one
        raise _error(_RULE, place, "in a shard that has changed")
    return data


def _error(rule: str, place: ByteRange, reason: str) -> FileKindError:
    return FileKindError(rule, f"{printable(place)}: {reason}", reason)


def close_shards() -> None:
    """Closes the shards that are kept open, so that those which were replaced meanwhile are opened anew."""
    _descriptor.cache_clear()


def _read_range(place: ByteRange) -> tuple[bytes, os.stat_result]:
    """The bytes, and the state of the file after they were read."""
    if hasattr(os, "pread"):
        descriptor = _descriptor(place.file)  # held by name, so that it stays open while this thread reads
        return os.pread(descriptor.number, place.size, place.offset), os.fstat(descriptor.number)
    with open_regular(place.file) as file:  # Windows
        file.seek(place.offset)
        return file.read(place.size), os.fstat(file.fileno())


class _Descriptor:
    """A file's descriptor, which is closed with the last thread that reads by it."""

    def __init__(self, path: str) -> None:
        with open_regular(path) as file:
            self.number = os.dup(file.fileno())

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


@functools.lru_cache(_OPEN)
def _descriptor(path: str) -> _Descriptor:
    return _Descriptor(path)
