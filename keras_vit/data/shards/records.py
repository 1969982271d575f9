"""Photos in TFRecord and ArrayRecord files: where each `tf.train.Example` has its photo, without protobuf.

An Example is a message of one message of map entries. An entry has a name (field 1) and a list (field 2) of bytes
(field 1), floats (2) or integers (3), these packed or one by one. Source: tensorflow `example.proto`, `feature.proto`.
"""

import enum
import os
from collections.abc import Iterator
from typing import NamedTuple

from keras_vit.checks import check_installed
from keras_vit.data.shards.rows import LABELS, Row, Rows, ShardError, check_fields, is_number, label_text
from keras_vit.files import open_regular

# Of TF-Slim and tensorflow/models, of tensorflow-datasets and timm, and of img2dataset.
IMAGES = ("image/encoded", "image", "jpg", "jpeg", "png", "webp", "image_bytes")
_LABELS = ("image/class/label", *LABELS, "image/class/text")
_KEYS = ("key", "__key__", "image/filename", "file_name", "filename")
_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5  # wire types
_RULE = "a record must be a tf.train.Example with a photo"
_BEFORE_RECORD, _AFTER_RECORD = 12, 4  # bytes around a record
_BUFFER = 1 << 20
_AT_ONCE = 64  # records


class Span(NamedTuple):
    """Bytes within a record."""

    start: int
    stop: int


class Unfit(enum.Enum):
    """Why a field does not have one text or integer."""

    FLOATS = enum.auto()
    SEVERAL = enum.auto()


_Value = Span | int | Unfit | None


def parse_example(data: bytes, path: str, number: int, place: int = 0, record: int = -1) -> tuple[Row, str]:
    """The photo of a record, and the fields that it was read from.

    Args:
        data: the record.
        path: of its file.
        number: of the record, from 0.
        place: of the record in the file, where photos are read by that.
        record: as in `Row`.

    Raises:
        ShardError: for anything but an Example with a photo, and for one with two numbers as its label.
    """
    try:
        fields = dict(_features(data))
    except (IndexError, ValueError) as error:
        raise ShardError(_RULE, path, f"record {number:,}, which is none") from error
    image, span = next(((name, fields[name]) for name in IMAGES if name in fields), ("", None))
    if not isinstance(span, Span):
        known = ", ".join(list(fields)[:8]) or "none"
        raise ShardError(f"{_RULE}, in one of {', '.join(IMAGES)}", path, f"record {number:,} with the fields {known}")
    named = next((fields[name] for name in _KEYS if isinstance(fields.get(name), Span)), None)
    key = data[named.start : named.stop].decode("utf-8", "replace") if isinstance(named, Span) else ""
    label, field = _label(data, fields, path, number)
    return Row(key or f"{number:09}", label, place + span.start, span.stop - span.start, record), f"{image}, {field}"


def _label(data: bytes, fields: dict[str, _Value], path: str, number: int) -> tuple[str | None, str]:
    """The label of a record, and words about its field. One of several values counts as the field, without a label."""
    found: dict[str, str | None] = {}
    for name in _LABELS:
        value = fields.get(name)
        text = label_text(data[value.start : value.stop] if isinstance(value, Span) else value)
        if text is not None or value is Unfit.SEVERAL:
            found[name] = text
    numbers = {name: text for name, text in found.items() if text is not None and is_number(text)}
    if len(set(numbers.values())) > 1:
        both = " and ".join(f"{text!r} in {name}" for name, text in numbers.items())
        raise ShardError("the labels of a record must be equal", path, f"record {number:,} with {both}")
    if found:
        name = next(iter(found))
        return found[name], name
    floats = next((name for name in _LABELS if fields.get(name) is Unfit.FLOATS), None)
    return None, f"{floats} of floats" if floats else "no label"


def _features(data: bytes) -> Iterator[tuple[str, _Value]]:
    """`(name, value)`: where the only bytes of a field are, its only integer, or why it has neither."""
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


def _value(data: bytes, feature: Span) -> _Value:
    for kind, values in _fields(data, feature):
        if not isinstance(values, Span):
            return None
        if kind == 2:
            return Unfit.FLOATS
        found = [value for number, value in _fields(data, values) if number == 1]
        found = [value for value in found if kind != 3 or not isinstance(value, Span) or value.start < value.stop]
        if kind not in (1, 3) or not found:
            return None
        if kind == 1 or isinstance(found[0], int):
            value, is_all = found[0], True
        else:
            value, place = _varint(data, found[0].start)
            is_all = place == found[0].stop
        if len(found) > 1 or not is_all:
            return Unfit.SEVERAL
        return _signed(value) if isinstance(value, int) else value
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
    """An integer in groups of seven bits, the lowest first, and the place after it."""
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


def tfrecord_rows(path: str) -> Rows:
    """The photos of a TFRecord file, each record with its checksums checked by TensorFlow.

    Raises:
        ShardError: for a wrong checksum, a file that is cut short or compressed, and a record without a photo.
    """
    import tensorflow as tf

    with open_regular(path) as file:
        if file.read(2) == b"\x1f\x8b":
            raise ShardError("TFRecords must not be compressed, as photos are read by their places", path, "which is")
    rows: list[Row] = []
    schema, place = "", 0
    try:
        for record in tf.data.TFRecordDataset(path, buffer_size=_BUFFER).as_numpy_iterator():
            row, fields = parse_example(record, path, len(rows), place + _BEFORE_RECORD)
            check_fields(path, len(rows), fields, schema)
            rows.append(row)
            schema, place = fields, place + _BEFORE_RECORD + len(record) + _AFTER_RECORD
        if place < os.path.getsize(path):  # less than what is before a record, which TensorFlow passes over
            raise _damaged(path, rows, "is cut short")
    except tf.errors.DataLossError as error:
        is_cut = "truncated" in error.message
        raise _damaged(path, rows, "is cut short" if is_cut else "has a wrong checksum") from None
    return Rows(rows, schema)


def _damaged(path: str, before: list[Row], how: str) -> ShardError:
    rule, found = "every record must be whole and have its checksum", f"record {len(before):,}, which {how}"
    return ShardError(rule, path, found, "Bring it again.")


def array_record_rows(path: str) -> Rows:
    """The photos of an ArrayRecord file.

    Raises:
        ShardError: for a damaged file, and a record without a photo.
        ImportError: without the package array_record.
    """
    check_installed("array_record", "it reads ArrayRecord files", "data")
    from array_record.python.array_record_module import ArrayRecordReader

    with open_regular(path):
        pass
    rows: list[Row] = []
    schema = ""
    try:
        reader = ArrayRecordReader(path)
        if not reader.ok():  # of a file without its end, which would count as one of no records
            raise RuntimeError("its end is missing")
        count = reader.num_records()
        for start in range(0, count, _AT_ONCE):
            for record in reader.read(start, min(start + _AT_ONCE, count)):
                row, fields = parse_example(record, path, len(rows), record=len(rows))
                check_fields(path, len(rows), fields, schema)
                rows.append(row)
                schema = fields
    except ShardError:
        raise
    except (RuntimeError, ValueError, IndexError) as error:
        raise ShardError(
            "an ArrayRecord file must be whole", path, f"record {len(rows):,}: {error}".rstrip(". "), "Bring it again."
        ) from error
    return Rows(rows, schema)
