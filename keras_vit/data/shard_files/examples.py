"""`tf.train.Example` in bytes: which fields it has, and where its photo begins. No package of protobuf is needed.

An Example is a message of one message of map entries. An entry has a name (field 1) and a list (field 2) of bytes
(field 1), floats (2) or integers (3), these packed or one by one. Source: tensorflow `example.proto`, `feature.proto`.
"""

from collections.abc import Iterator
from typing import NamedTuple

from keras_vit.data.shard_files.rows import LABELS, Row, ShardError, label_in

# Of TF-Slim and tensorflow/models, of tensorflow-datasets and timm, and of img2dataset.
IMAGES = ("image/encoded", "image", "jpg", "jpeg", "png", "webp", "image_bytes")
_LABELS = ("image/class/label", *LABELS, "image/class/text")
_KEYS = ("key", "__key__", "image/filename", "file_name", "filename")
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5  # wire types
_RULE = "a record must be a tf.train.Example with a photo"


class Span(NamedTuple):
    """Bytes within a record."""

    start: int
    stop: int


def row_of(data: bytes, path: str, number: int, place: int = 0, record: int = -1) -> tuple[Row, str]:
    """The photo of a record, and the fields that it was read from.

    Args:
        data: the record.
        path: of its file.
        number: of the record, from 0.
        place: of the record in the file, where photos are read by that.
        record: as in `Row`.

    Raises:
        ShardError: for anything but an Example with a photo.
    """
    try:
        fields = dict(_features(data))
    except (IndexError, ValueError) as error:
        raise ShardError(_RULE, path, f"record {number:,}, which is none") from error
    image, span = next(((name, fields[name]) for name in IMAGES if name in fields), ("", None))
    if not isinstance(span, Span):
        known = ", ".join(list(fields)[:8]) or "none"
        raise ShardError(f"{_RULE}, in one of {', '.join(IMAGES)}", path, f"record {number:,} with the fields {known}")
    values: dict[str, object] = {
        name: data[value.start : value.stop] if isinstance(value, Span) else value
        for name, value in fields.items()
        if name in _LABELS or name in _KEYS
    }
    label = next((name for name in _LABELS if label_in(values, (name,)) is not None), "")
    given = next((values[name] for name in _KEYS if isinstance(values.get(name), bytes)), b"")
    key = given.decode("utf-8", "replace") if isinstance(given, bytes) else ""
    row = Row(key or f"{number:09}", label_in(values, (label,)), place + span.start, span.stop - span.start, record)
    return row, f"{image}, {label or 'no label'}"


def _features(data: bytes) -> Iterator[tuple[str, Span | int | None]]:
    """`(name, value)`: where the only bytes of a field are, its only integer, or `None` for anything else."""
    for number, features in _fields(data, Span(0, len(data))):
        if number != 1 or not isinstance(features, Span):
            continue
        for kind, entry in _fields(data, features):
            if kind != 1 or not isinstance(entry, Span):
                continue
            parts = dict(_fields(data, entry))
            name, value = parts.get(1), parts.get(2)
            if isinstance(name, Span) and isinstance(value, Span):
                yield data[name.start : name.stop].decode(), _value(data, value)


def _value(data: bytes, feature: Span) -> Span | int | None:
    for kind, values in _fields(data, feature):
        if not isinstance(values, Span):
            return None
        found = [value for number, value in _fields(data, values) if number == 1]
        if kind == 3 and len(found) == 1:
            return _signed(_varint(data, found[0].start)[0] if isinstance(found[0], Span) else found[0])
        return found[0] if kind == 1 and len(found) == 1 else None
    return None


def _fields(data: bytes, span: Span) -> Iterator[tuple[int, Span | int]]:
    """`(number, value)` of each field of a message: where its bytes are, or an integer."""
    place = span.start
    while place < span.stop:
        tag, place = _varint(data, place)
        kind = tag & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield tag >> 3, value
            continue
        if kind == _DELIMITED:
            size, place = _varint(data, place)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(kind)
        if place + size > span.stop:
            raise ValueError(size)
        yield tag >> 3, Span(place, place + size)
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """An integer in groups of seven bits, the lowest first, and the place behind it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
        if shift > 63:
            raise ValueError(shift)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
