"""Where the arrays of a file lie, as its directory and headers say; nothing here touches the arrays.

Both formats are reduced to the same record, so that one reader checks and maps them. Parsers raise
`FormatError`, which knows no path; the reader adds the path and what the file looks like.
"""

import dataclasses
import math
import re

import numpy as np

_LARGEST_COUNT = 2**62  # bytes; NumPy counts in 63 bits
_DRIVE = re.compile(r"[A-Za-z]:")
_LONGEST_NAME = 1000
_MOST_AXES = 32  # NumPy 1 holds no more


class FormatError(ValueError):
    """The bytes break a rule of their format; the text says which."""


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
    """

    entry: Entry
    start: int
    stored_size: int
    size: int
    header_size: int = 0
    deflated: bool = False
    crc: int | None = None
    fortran_order: bool = False


def byte_count(shape, dtype) -> int:
    """Bytes of an array; refuses what no array can have, also where an axis of 0 would hide it."""
    if len(shape) > _MOST_AXES or math.prod(max(n, 1) for n in shape) * dtype.itemsize > _LARGEST_COUNT:
        raise FormatError(f"has an impossible shape, {shape}")
    return math.prod(shape) * dtype.itemsize


def check_name(name):
    """Refuses names that would leave a folder if somebody unpacked the file, or steer a terminal that shows them."""
    parts = name.split("/")
    unsafe = "" in parts or ".." in parts or "\\" in name or "\0" in name or _DRIVE.match(name)
    if unsafe or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise FormatError(f"holds an array of the unsafe name {name[:100]!r}")


def check_apart(ranges, end):
    """Refuses byte ranges `(start, stop, name)` that overlap, or leave the first `end` bytes of the file."""
    previous, previous_name = 0, None
    for start, stop, name in sorted(ranges):
        if start < previous:
            raise FormatError(f"holds {name!r} and {previous_name!r} in the same bytes")
        if stop > end:
            raise FormatError(f"is cut short or damaged: {name!r} ends at byte {stop}, the data at {end}")
        previous, previous_name = stop, name
