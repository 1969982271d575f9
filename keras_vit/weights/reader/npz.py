"""The directory of an `.npz` file: the zip's central directory and every `.npy` header, nothing more.

Stricter than `zipfile`: no bytes before the archive or behind it, local and central names equal, members
apart from one another, a bounded number of inflated bytes. Header text is matched, never evaluated.

Sources: PKWARE APPNOTE 6.3.10, sections 4.3.7 to 4.3.16 and 4.5.3; NumPy, `numpy.lib.format`, versions 1 to 3.
"""

import functools
import json
import re
import struct
import zlib

import numpy as np

from keras_vit.weights.reader.layout import Entry, FormatError, Member, byte_count, check_apart, check_name

NOTE_KEY = "keras_vit"
_END = struct.Struct("<4s4H2IH")  # signature, disks (2), entries (2), size and offset of the directory, comment length
_END64 = struct.Struct("<4s12x2I4Q")  # the same facts without the comment
_LOCATOR64 = struct.Struct("<4sIQI")
_CENTRAL = struct.Struct("<8x2H4x3I4H6xI")  # flags, method, CRC-32, two sizes, three lengths, disk, local header
_LOCAL = struct.Struct("<26x2H")  # lengths of name and extra field
_LONGEST_COMMENT = 2**16 - 1
_STORED, _DEFLATED = 0, 8
_ENCRYPTED = 0x0001 | 0x0040 | 0x2000  # flag bits 0, 6, 13
_UTF8 = 0x0800  # flag bit 11
_MOST_MEMBERS = 20_000  # the largest published model has 520, three times that with its optimizer's state
_LARGEST_HEADER = 10_000  # bytes of an .npy header; NumPy's own limit
_FIELD = re.compile(rb"\s*'(descr|fortran_order|shape)'\s*:\s*('[^']*'|True|False|\([\d\s,]*\)|\[.*\])\s*(?:,|$)", re.S)
_SHAPE = re.compile(rb"\(\s*(?:\d{1,18}\s*,\s*)*(?:\d{1,18}\s*)?\)")
_NUMBERS = ["b1", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)), "f2", "f4", "f8", "c8", "c16"]
_KNOWN = [np.dtype(order + code) for order in "<>" for code in _NUMBERS]
_DTYPES = {repr(dtype.str).encode(): dtype for dtype in _KNOWN}
_DTYPES |= {b"'|V2'": np.dtype("V2"), b"'<V2'": np.dtype("V2")}  # what NumPy writes for bfloat16, by version


def read_directory(data) -> tuple[dict[str, Member], dict]:
    """Members by name without `.npy`, and the note in the zip's comment.

    Args:
        data: the mapped file.

    Raises:
        FormatError: for anything else than what `np.savez` and `np.savez_compressed` write from plain numbers.
    """
    start, stop, count, comment = _find_directory(data)
    members, ranges, position = {}, [], start
    while position < stop:
        name, member, first, position = _read_member(data, position, stop)
        if name in members:
            raise FormatError(f"holds the name {name!r} twice")
        members[name] = member
        ranges.append((first, member.start + member.stored_size, name))
        if len(members) > _MOST_MEMBERS:
            raise FormatError(f"holds more than {_MOST_MEMBERS} members")
    if position != stop or len(members) != count:
        raise FormatError(f"is a zip cut short or damaged: it must hold {count} members, and lists {len(members)}")
    check_apart(ranges, start)
    return members, _read_note(comment)


def note_bytes(note: dict) -> bytes:
    """The zip comment that carries `note`; other readers of `.npz` pass over it."""
    return json.dumps({NOTE_KEY: note}).encode()


def _find_directory(data):
    """First and last byte of the central directory, its entries, and the comment behind it."""
    position = data.rfind(b"PK\x05\x06", max(0, len(data) - _END.size - _LONGEST_COMMENT))
    if position < 0 or position + _END.size > len(data):
        raise FormatError(f"is a zip cut short at {len(data)} bytes: its directory, at the end, is missing")
    _, disk, first_disk, here, count, size, offset, comment_size = _END.unpack_from(data, position)
    comment = data[position + _END.size :]
    stop = position
    before = max(position - _LOCATOR64.size, 0)
    if data[before : before + 4] == b"PK\x06\x07" or 0xFFFFFFFF in (size, offset) or count == 0xFFFF:
        # Python writes a 64-bit record from 2 GiB on, though its numbers still fit into the other.
        disk, first_disk, here, count, size, offset, stop = _find_directory64(data, position)
    if disk or first_disk or here != count or len(comment) != comment_size or offset + size != stop:
        raise FormatError("is a zip cut short or damaged: the record at its end does not describe it")
    return offset, stop, count, comment


def _find_directory64(data, position):
    """The same facts from the 64-bit record, for the numbers that did not fit."""
    record = position - _LOCATOR64.size - _END64.size  # both stand right before the 32-bit record
    if record < 0:
        raise FormatError("is a zip cut short or damaged: its 64-bit record is missing")
    signature, disk, first_disk, here, count, size, offset = _END64.unpack_from(data, record)
    locator, locator_disk, place, _ = _LOCATOR64.unpack_from(data, record + _END64.size)
    if (signature, locator, locator_disk, place) != (b"PK\x06\x06", b"PK\x06\x07", 0, record):
        raise FormatError("is a zip cut short or damaged: its 64-bit record is missing")
    return disk, first_disk, here, count, size, offset, record


def _read_member(data, position, stop):
    """Name, member, first byte of its local header, and where the next directory entry starts."""
    if position + _CENTRAL.size > stop or data[position : position + 4] != b"PK\x01\x02":
        raise FormatError("is a zip cut short or damaged: an entry of its directory is broken")
    flags, method, crc, stored_size, size, name_size, extra_size, comment_size, disk, first = _CENTRAL.unpack_from(
        data, position
    )
    behind_name = position + _CENTRAL.size + name_size
    raw_name = data[position + _CENTRAL.size : behind_name]
    name = _decode_name(raw_name, flags)
    _check_method(name, flags, method)
    if 0xFFFFFFFF in (size, stored_size, first):
        extra = data[behind_name : behind_name + extra_size]
        size, stored_size, first = _read_sizes64(extra, size, stored_size, first, name)
    start = _find_data(data, first, raw_name)
    deflated = method == _DEFLATED
    if start + stored_size > position or (size != stored_size and not deflated) or disk:
        raise FormatError(f"is cut short or damaged: {name!r} cannot have the size that the directory says")
    entry, header_size, fortran_order = _read_header(data, start, stored_size, size, deflated, name)
    member = Member(entry, start, stored_size, size, header_size, deflated, crc, fortran_order)
    return name.removesuffix(".npy"), member, first, behind_name + extra_size + comment_size


def _check_method(name, flags, method):
    if flags & _ENCRYPTED:
        raise FormatError(f"holds {name!r} encrypted, which is not read")
    if method not in (_STORED, _DEFLATED):
        raise FormatError(f"holds {name!r} compressed by method {method}; only stored and deflated members are read")


def _decode_name(raw_name, flags):
    try:
        name = raw_name.decode("utf-8" if flags & _UTF8 else "cp437")
    except UnicodeDecodeError as error:
        raise FormatError(f"holds the name {raw_name!r}, which is no text") from error
    check_name(name)
    if not name.endswith(".npy") or name == ".npy":
        raise FormatError(f"holds {name!r}, which is no .npy array")
    return name


def _read_sizes64(extra, size, stored_size, first, name):
    """The sizes that did not fit into 32 bits stand in extra field 1, in this order."""
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, position)
        field = extra[position + 4 : position + 4 + length]
        if kind == 1:
            large = [number for (number,) in struct.iter_unpack("<Q", field[: len(field) // 8 * 8])]
            sizes = [size, stored_size, first]
            if len(large) >= sizes.count(0xFFFFFFFF):
                return [large.pop(0) if number == 0xFFFFFFFF else number for number in sizes]
        position += 4 + length
    raise FormatError(f"is damaged: the sizes of {name!r} are missing")


def _find_data(data, first, raw_name):
    """First byte behind a local header, whose name must be the directory's."""
    if first + _LOCAL.size > len(data) or data[first : first + 4] != b"PK\x03\x04":
        raise FormatError(f"is cut short or damaged: the header of {raw_name!r} is not where the directory says")
    name_size, extra_size = _LOCAL.unpack_from(data, first)
    start = first + _LOCAL.size + name_size
    if data[first + _LOCAL.size : start] != raw_name:
        raise FormatError(f"is damaged: the directory calls {raw_name!r} what has another name at its place")
    return start + extra_size


def _read_header(data, start, stored_size, size, deflated, name):
    """Entry, bytes before the array, and whether it is in Fortran order."""
    most = min(size, 12 + _LARGEST_HEADER)
    head = _inflate_head(data[start : start + min(stored_size, 2 * most)], most, name) if deflated else None
    head = data[start : start + most] if head is None else head
    try:
        text, text_start = _find_text(head)
        entry, count, fortran_order = _parse_header(text)
    except FormatError as error:
        raise FormatError(f"holds {name!r}, which {error}") from error
    expected = text_start + len(text) + count
    if size != expected:
        raise FormatError(f"is damaged: {name!r} must have {expected} bytes by its header, and has {size}")
    return entry, text_start + len(text), fortran_order


def _inflate_head(packed, most, name):
    try:
        return zlib.decompressobj(-15).decompress(packed, most)
    except zlib.error as error:
        raise FormatError(f"is damaged: {name!r} cannot be inflated") from error


def _find_text(head):
    """The text of an `.npy` header, and where it starts."""
    version, start = head[6:8], 10 if head[6:7] == b"\x01" else 12
    if len(head) < start or head[:6] != b"\x93NUMPY" or version not in (b"\1\0", b"\2\0", b"\3\0"):
        raise FormatError("is no .npy array")
    length = int.from_bytes(head[8:start], "little")
    if length > _LARGEST_HEADER or start + length > len(head):
        raise FormatError(f"has a damaged header, {length} bytes long where at most {_LARGEST_HEADER} are read")
    return head[start : start + length], start


@functools.lru_cache(maxsize=256)  # the blocks of a model repeat their shapes
def _parse_header(text):
    """Entry, bytes of the array, and whether it is in Fortran order; keys may come in any order."""
    fields = {}
    inner = text.strip()
    position, end = 1, len(inner) - 1
    while inner[position:end].strip():
        match = _FIELD.match(inner, position, end)
        if match is None or match[1] in fields:
            raise FormatError(f"has a damaged header, {text[:100]!r}")
        fields[match[1]] = match[2]
        position = match.end()
    descr, order, shape = (fields.get(key, b"") for key in (b"descr", b"fortran_order", b"shape"))
    if inner[:1] + inner[-1:] != b"{}" or order not in (b"True", b"False") or not _SHAPE.fullmatch(shape):
        raise FormatError(f"has a damaged header, {text[:100]!r}")
    dtype = _DTYPES.get(descr)
    if dtype is None:
        raise FormatError(
            f"has the dtype {descr[:100].decode('latin1')}; only plain numbers are read, pickles and structures never"
        )
    entry = Entry(tuple(int(size) for size in re.findall(rb"\d+", shape)), dtype)
    return entry, byte_count(entry.shape, dtype), order == b"True"


def _read_note(comment):
    try:
        note = json.loads(comment or b"{}")
        note = note.get(NOTE_KEY, {}) if isinstance(note, dict) else {}
    except (ValueError, RecursionError):  # another program's comment
        note = {}
    return note if isinstance(note, dict) else {}
