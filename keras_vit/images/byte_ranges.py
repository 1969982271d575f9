"""Where the bytes of a photo are: a file of its own, or a slice of a larger one, as a member of a tar."""

import dataclasses
import functools
import os
from typing import Any, TypeAlias

from keras_vit.files import FileKindError, open_regular, read_regular
from keras_vit.images.decode import MAX_BYTES

_OPEN = 256  # shards whose descriptors are kept, since opening one on a network disk costs a round trip
_RULE = "a shard must stay as it was when it was opened"


@dataclasses.dataclass(frozen=True, slots=True)
class ByteRange:
    """A photo inside of a larger file.

    Args:
        file: path of the file.
        offset: of the first byte, in the file or in its record.
        size: in bytes.
        name: what messages call the photo, as `"shards/train-00000.tar:000000012.jpg"`.
        record: number of the record that holds the bytes, in an ArrayRecord file; -1 where `offset` counts in the file.
    """

    file: str
    offset: int
    size: int
    name: str
    record: int = -1

    def __str__(self) -> str:
        return self.name


PhotoLocation: TypeAlias = str | ByteRange


def photo_bytes(place: PhotoLocation) -> bytes:
    """The bytes of a photo.

    Raises:
        FileKindError: for anything but a regular file, one of more than 1 GiB, and a shard that has become shorter.
        OSError: if it cannot be read.
    """
    if not isinstance(place, ByteRange):
        return read_regular(place, MAX_BYTES)
    if place.size > MAX_BYTES:
        raise FileKindError("a photo must have at most 1 GiB", str(place), f"more than {MAX_BYTES:,} bytes")
    data = _read_record(place) if place.record >= 0 else _read_range(place)
    if len(data) != place.size:
        raise FileKindError(_RULE, str(place), "in a shard that was cut short")
    return data


def close_shards() -> None:
    """Closes the shards that are kept open, so that those which were replaced meanwhile are opened anew."""
    _descriptor.cache_clear()
    _reader.cache_clear()


def _read_range(place: ByteRange) -> bytes:
    if hasattr(os, "pread"):
        descriptor = _descriptor(place.file)  # held by name, so that it stays open while this thread reads
        return os.pread(descriptor.number, place.size, place.offset)
    with open_regular(place.file) as file:  # Windows
        file.seek(place.offset)
        return file.read(place.size)


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


def _read_record(place: ByteRange) -> bytes:
    try:
        record = _reader(place.file).read([place.record])[0]
    except (IndexError, RuntimeError, ValueError) as error:
        raise FileKindError(_RULE, str(place), "in a shard that is damaged") from error
    return record[place.offset : place.offset + place.size]


@functools.lru_cache(_OPEN)
def _reader(path: str) -> Any:
    """A reader of ArrayRecord by the numbers of records, for several threads."""
    from array_record.python.array_record_module import ArrayRecordReader

    os.stat(path)  # whose error has the path
    return ArrayRecordReader(path, options="readahead_buffer_size:0")
