"""One file of arrays with checksums, in the format of safetensors, written as the arrays come.

safetensors' own writer holds all bytes in memory twice and gives no checksums. A `Shard` is a whole variable, or the
part of it that one device holds.
"""

import dataclasses
import json
import os
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL"}
_CODES |= {f"{sign}int{bits}": f"{sign[:1].upper() or 'I'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_CHUNK = 1 << 23  # bytes at once


@dataclasses.dataclass(frozen=True, eq=False)
class Shard:
    """A part of a variable, on the host.

    Args:
        name: of the variable.
        start: where its first element lies in the variable, one number for each axis.
        array: its values.
    """

    name: str
    start: tuple[int, ...]
    array: np.ndarray

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.name}@{','.join(map(str, self.start))}" if any(self.start) else self.name


def write_shards(path: Path, shards: Iterable[Shard]) -> dict[str, Any]:
    """Writes a new file and waits until it is on the disk.

    Args:
        path: where nothing is yet.
        shards: each with a name and a start of its own.

    Returns:
        What a manifest says of the file: `bytes`, `header` (checksum of what comes before the arrays) and `pieces`,
        each with `name`, `start`, `shape`, `dtype`, `offset` and `checksum` (CRC-32).

    Raises:
        OSError: as on a full disk.
        ValueError: for two shards of one name and start, or values of a type that has no code.
    """
    shards = list(shards)
    header = _header(shards)
    records, offset = [], len(header)
    with open(path, "xb") as file:
        file.write(header)
        for shard in shards:
            content: Any = np.ascontiguousarray(shard.array).reshape(-1).view("uint8")
            file.write(content)
            facts: dict[str, Any] = {"name": shard.name, "start": list(shard.start), "shape": list(shard.array.shape)}
            facts |= {"dtype": shard.array.dtype.name, "offset": offset, "checksum": zlib.crc32(content)}
            records.append(facts)
            offset += len(content)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": offset, "header": zlib.crc32(header), "pieces": records}


def find_damage(path: Path, facts: dict[str, Any]) -> str | None:
    """What is wrong with a file: a few words, or `None` if every byte is as it was written.

    Args:
        path: of the file.
        facts: what `write_shards` gave.
    """
    try:
        size = path.stat().st_size
        if size != facts["bytes"]:
            return f"{path.name} has {size:,} bytes instead of {facts['bytes']:,}"
        with open(path, "rb") as file:
            first = min((shard["offset"] for shard in facts["pieces"]), default=size)
            if _checksum(file, first) != facts["header"]:
                return f"the header of {path.name} has changed"
            for shard in facts["pieces"]:
                file.seek(shard["offset"])
                if _checksum(file, _size(shard)) != shard["checksum"]:
                    return f"{shard['name']} in {path.name} has changed"
    except OSError as error:
        return f"{path.name}: {error.strerror or error}"
    return None


def read_shard(path: Path, shard: dict[str, Any]) -> np.ndarray:
    """The values of one shard, as its record says.

    Raises:
        ValueError: if they are not those that were written.
        OSError: if the file cannot be read.
    """
    content: Any = np.empty(_size(shard), "uint8")
    with open(path, "rb") as file:
        file.seek(shard["offset"])
        read = file.readinto(content)
    if read != content.size or zlib.crc32(content) != shard["checksum"]:
        raise ValueError(f"a checkpoint must be as it was written.\nReceived: {path}, in which {shard['name']} is not.")
    return content.view(dtype_of(shard["dtype"])).reshape(shard["shape"])


def dtype_of(name: str) -> np.dtype:
    """NumPy's type of this name, also of those that NumPy alone does not know, as `bfloat16`."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def _header(shards: Sequence[Shard]) -> bytes:
    """The length of the JSON in 8 bytes and the JSON, padded so that the arrays begin at a multiple of 8."""
    entries: dict[str, Any] = {}
    offset = 0
    for shard in shards:
        code = _CODES.get(shard.array.dtype.name)
        if code is None or shard.key in entries or sys.byteorder != "little":
            raise ValueError(
                "a shard must have a unique name and a known data type.\n"
                f"Received: {shard.key!r} of {shard.array.dtype}."
            )
        ends = [offset, offset + shard.array.nbytes]
        entries[shard.key] = {"dtype": code, "shape": list(shard.array.shape), "data_offsets": ends}
        offset = ends[1]
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _size(shard: Mapping[str, Any]) -> int:
    return int(np.prod(shard["shape"], dtype="int64")) * dtype_of(shard["dtype"]).itemsize


def _checksum(file: BinaryIO, size: int) -> int | None:
    found = 0
    while size > 0:
        chunk = file.read(min(size, _CHUNK))
        if not chunk:
            return None
        found = zlib.crc32(chunk, found)
        size -= len(chunk)
    return found
