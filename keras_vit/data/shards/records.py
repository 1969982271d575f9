"""Photos in TFRecord files: where each `tf.train.Example` has its photo."""

import os
from typing import Any

from keras_vit.data.shards.rows import LABELS, Row, Rows, ShardError, check_fields, is_number, label_text
from keras_vit.files import open_regular

# Of TF-Slim and tensorflow/models, of tensorflow-datasets and timm, and of img2dataset.
IMAGES = ("image/encoded", "image", "jpg", "jpeg", "png", "webp", "image_bytes")
_LABELS = ("image/class/label", *LABELS, "image/class/text")
_KEYS = ("key", "__key__", "image/filename", "file_name", "filename")
_RULE = "a record must be a tf.train.Example with a photo"
_BEFORE_RECORD, _AFTER_RECORD = 12, 4  # bytes around a record
_BUFFER = 1 << 20


def parse_example(data: bytes, path: str, number: int, place: int) -> tuple[Row, str]:
    """The photo of a record, and the fields that it was read from.

    Args:
        data: the record.
        path: of its file.
        number: of the record, from 0.
        place: of the record in the file.

    Raises:
        ShardError: for anything but an Example with a photo, and for one with two numbers as its label.
    """
    import tensorflow as tf
    from google.protobuf.message import DecodeError

    try:
        fields = dict(tf.train.Example.FromString(data).features.feature)
    except DecodeError as error:
        raise ShardError(_RULE, path, f"record {number:,}, which is none") from error
    image = next((name for name in IMAGES if name in fields), "")
    photos = [*fields[image].bytes_list.value] if image else []
    if len(photos) != 1:
        known = ", ".join(sorted(fields)[:8]) or "none"
        raise ShardError(f"{_RULE}, in one of {', '.join(IMAGES)}", path, f"record {number:,} with the fields {known}")
    keys = (fields[name].bytes_list.value for name in _KEYS if name in fields)
    key = next((values[0].decode("utf-8", "replace") for values in keys if len(values) == 1), "")
    label, field = _label(fields, path, number)
    # The same bytes may stand in the record before the photo, and are as good.
    return Row(key or f"{number:09}", label, place + data.index(photos[0]), len(photos[0])), f"{image}, {field}"


def _label(fields: dict[str, Any], path: str, number: int) -> tuple[str | None, str]:
    """The label of a record, and words about its field. One of several values counts as the field, without a label."""
    found: dict[str, str | None] = {}
    for name in filter(fields.__contains__, _LABELS):
        values = [*fields[name].bytes_list.value, *fields[name].int64_list.value]
        text = label_text(values)
        if text is not None or len(values) > 1:
            found[name] = text
    numbers = {name: text for name, text in found.items() if text is not None and is_number(text)}
    if len(set(numbers.values())) > 1:
        both = " and ".join(f"{text!r} in {name}" for name, text in numbers.items())
        raise ShardError("the labels of a record must be equal", path, f"record {number:,} with {both}")
    if found:
        name = next(iter(found))
        return found[name], name
    floats = next((name for name in _LABELS if name in fields and fields[name].HasField("float_list")), None)
    return None, f"{floats} of floats" if floats else "no label"


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
