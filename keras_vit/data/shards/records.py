"""Photos in TFRecord files: where each `tf.train.Example` has its photo."""

import dataclasses
import os
from typing import IO, Any

from keras_vit.data.shards.rows import LABELS, Row, Rows, ShardError, check_fields, is_number, label_text
from keras_vit.files import open_regular
from keras_vit.images.photo_files import begins_like_a_photo

# Of TF-Slim and tensorflow/models, of tensorflow-datasets and timm, and of img2dataset.
IMAGES = ("image/encoded", "image", "jpg", "jpeg", "png", "webp", "image_bytes")
_TEXT = "image/class/text"
_LABELS = ("image/class/label", *LABELS, _TEXT)
_KEYS = ("key", "__key__", "image/filename", "file_name", "filename")
_RULE = "a record must be a tf.train.Example with a photo"
_BEFORE_RECORD, _AFTER_RECORD = 12, 4  # bytes around a record
_BUFFER = 1 << 20


def parse_example(data: bytes, path: str, number: int, place: int) -> tuple[Row, str, str | None, list[str]]:
    """The photo of a record, the fields it was read from, the name next to its class number, and other photos' fields.

    Raises:
        ShardError: for anything but an Example with a photo, and for one with two numbers as its label.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        fields = dict(tf.train.Example.FromString(data).features.feature)
    except DecodeError as error:
        raise ShardError(_RULE, path, f"record {number:,}, which is none") from error
    image, *others = [name for name in IMAGES if name in fields and fields[name].bytes_list.value] or [""]
    unread = [name for name in others if begins_like_a_photo(fields[name].bytes_list.value[0])]
    photos = [*fields[image].bytes_list.value] if image else []
    if len(photos) != 1:
        known = ", ".join(sorted(fields)[:8]) or "none"
        raise ShardError(f"{_RULE}, in one of {', '.join(IMAGES)}", path, f"record {number:,} with the fields {known}")
    keys = (fields[name].bytes_list.value for name in _KEYS if name in fields)
    key = next((values[0].decode("utf-8", "replace") for values in keys if len(values) == 1), "")
    label, field, name = _label(fields, path, number)
    # The same bytes may stand in the record before the photo, and are as good.
    row = Row(key or f"{number:09}", label, place + data.index(photos[0]), len(photos[0]))
    return row, f"{image}, {field}", name, unread


def _label(fields: dict[str, Any], path: str, number: int) -> tuple[str | None, str, str | None]:
    """The label of a record, words about its field, and a name in another field.

    One of several values counts as the field, without a label.
    """
    found: dict[str, str | None] = {}
    for name in filter(fields.__contains__, _LABELS):
        values = [*fields[name].bytes_list.value, *fields[name].int64_list.value]
        text = label_text(values)
        if text is not None or len(values) > 1:
            found[name] = text
    numbers = {name: text for name, text in found.items() if text and is_number(text) and name != _TEXT}
    if len(set(numbers.values())) > 1:
        both = " and ".join(f"{text!r} in {name}" for name, text in numbers.items())
        raise ShardError("the labels of a record must be equal", path, f"record {number:,} with {both}")
    if found:
        name = next(iter(found))
        names = (text for text in found.values() if text and not is_number(text))
        return found[name], name, found.get(_TEXT) or next(names, None)
    floats = next((name for name in _LABELS if name in fields and fields[name].HasField("float_list")), None)
    return None, f"{floats} of floats" if floats else "no label", None


def tfrecord_rows(path: str) -> Rows:
    """The photos of a TFRecord file, each record with its checksums checked by TensorFlow.

    Raises:
        ShardError: for a wrong checksum, a file that is cut short or compressed, and a record without a photo.
    """
    import tensorflow as tf

    with open_regular(path) as file:
        if file.read(2) == b"\x1f\x8b":
            raise ShardError("TFRecords must not be compressed, as photos are read by their places", path, "which is")
        _check_lengths(file, path)
    rows: list[Row] = []
    found = Rows(rows)
    unread: dict[str, None] = {}
    schema, place = "", 0
    try:
        for record in tf.data.TFRecordDataset(path, buffer_size=_BUFFER).as_numpy_iterator():
            row, fields, name, others = parse_example(record, path, len(rows), place + _BEFORE_RECORD)
            check_fields(path, len(rows), fields, schema)
            rows.append(row)
            unread |= dict.fromkeys(others)
            found.note_name(row.label, name)
            schema, place = fields, place + _BEFORE_RECORD + len(record) + _AFTER_RECORD
    except tf.errors.DataLossError:
        raise _damaged(path, len(rows), "has a wrong checksum") from None
    return dataclasses.replace(found, schema=schema, unread=[*unread])


def _check_lengths(file: IO[bytes], path: str) -> None:
    """Raises if a record is longer than its file: TensorFlow would end the process, or pass over what is left."""
    size, place, number = os.path.getsize(path), 0, 0
    while place < size:
        file.seek(place)
        place += _BEFORE_RECORD + int.from_bytes(file.read(8), "little") + _AFTER_RECORD
        if place > size:
            raise _damaged(path, number, "is cut short, or has a wrong checksum")
        number += 1


def _damaged(path: str, number: int, how: str) -> ShardError:
    rule, found = "every record must be whole and have its checksum", f"record {number:,}, which {how}"
    return ShardError(rule, path, found, "Bring it again.")
