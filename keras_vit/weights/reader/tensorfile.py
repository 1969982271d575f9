"""The header of a safetensors file: one JSON object that says where every array lies.

Parsed here and not by the package, because its reader maps the file and lends nothing of it, and keeps
the last of two equal keys. The rules are the format's own, plus a smaller limit of the header.

Source: github.com/huggingface/safetensors, README, "Format".
"""

import json
import struct

import ml_dtypes
import numpy as np

from keras_vit.weights.reader.layout import Entry, FormatError, Member, byte_count, check_apart, check_name

NOTE_KEY = "keras_vit"
_LENGTH = struct.Struct("<Q")
# Bytes. An array takes about 100, so the largest published model has 90,000; lists in lists take 52 times their size
# once parsed (Python 3.11), and refusing a file must not take 50 MB.
_LARGEST_HEADER = 800_000
_DTYPES = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
}


def read_header(data) -> tuple[dict[str, Member], dict]:
    """Members by name, and our note in `__metadata__`.

    Args:
        data: the mapped file, of at least 8 bytes.

    Raises:
        FormatError: if a rule of the format is broken.
    """
    (length,) = _LENGTH.unpack_from(data)
    start = _LENGTH.size + length
    if length > _LARGEST_HEADER:
        raise FormatError(
            f"has a header of {length} bytes; {_LARGEST_HEADER} is the limit, since parsing it takes 50 times as much"
        )
    if start > len(data):
        raise FormatError(f"is a safetensors file cut short at {len(data)} bytes, inside its header")
    header = _parse(data[_LENGTH.size : start])
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise FormatError("has a damaged header: __metadata__ must map text to text")
    members = {name: _member(name, record, start) for name, record in header.items()}
    check_apart(((m.start, m.start + m.size, name) for name, m in members.items()), len(data))
    expected = start + sum(member.size for member in members.values())
    if expected != len(data):
        raise FormatError(f"is cut short or damaged: it must have {expected} bytes by its header, and has {len(data)}")
    return members, _read_note(metadata)


def metadata(note: dict) -> dict[str, str]:
    """What stands in `__metadata__`; transformers refuses files whose format is not "pt"."""
    return {"format": "pt", NOTE_KEY: json.dumps(note)}


def _parse(text):
    try:
        header = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError("has a damaged header, which is no JSON") from error
    if not isinstance(header, dict):
        raise FormatError("has a damaged header, which is no JSON object")
    return header


def _unique(pairs):
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise FormatError(f"holds the name {twice!r} twice")
    return record


def _refuse_constant(constant):
    raise FormatError(f"has a damaged header, which holds {constant}")


def _member(name, record, start):
    check_name(name)
    if not isinstance(record, dict) or record.keys() != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"has a damaged header: {name!r} needs dtype, shape and data_offsets")
    shape, offsets, code = record["shape"], record["data_offsets"], record["dtype"]
    if not (_are_sizes(shape) and _are_sizes(offsets) and len(offsets) == 2 and isinstance(code, str)):
        raise FormatError(f"has a damaged header: {name!r} has {str(record)[:200]}")
    if code not in _DTYPES:
        raise FormatError(f"holds {name!r} as {code[:20]!r}; only plain numbers are read: {', '.join(_DTYPES)}")
    entry = Entry(tuple(shape), _DTYPES[code])
    try:
        size = byte_count(entry.shape, entry.dtype)
    except FormatError as error:
        raise FormatError(f"holds {name!r}, which {error}") from error
    if offsets[1] - offsets[0] != size:
        raise FormatError(
            f"is damaged: {name!r} must have {size} bytes by its shape, and has {offsets[1] - offsets[0]}"
        )
    return Member(entry, start + offsets[0], size, size)


def _are_sizes(numbers):
    return isinstance(numbers, list) and all(type(n) is int and 0 <= n < 2**63 for n in numbers)


def _read_note(metadata):
    try:
        note = json.loads(metadata.get(NOTE_KEY, "{}"))
    except (ValueError, RecursionError):
        note = {}
    return note if isinstance(note, dict) else {}
