"""TFRecords: length, checksum of the length, a `tf.train.Example`, checksum of that; both are masked CRC32C."""

import os

from keras_vit.data.shard_files.examples import row_of
from keras_vit.data.shard_files.rows import Row, Rows, ShardError, check_fields
from keras_vit.files import open_regular

_BEFORE, _BEHIND = 12, 4  # bytes around a record
_BUFFER = 1 << 20


def rows_of(path: str) -> Rows:
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
            row, fields = row_of(record, path, len(rows), place + _BEFORE)
            check_fields(path, len(rows), fields, schema)
            rows.append(row)
            schema, place = fields, place + _BEFORE + len(record) + _BEHIND
        if place < os.path.getsize(path):  # less than what is before a record, which TensorFlow passes over
            raise _damaged(path, rows, "is cut short")
    except tf.errors.DataLossError as error:
        is_cut = "truncated" in error.message
        raise _damaged(path, rows, "is cut short" if is_cut else "has a wrong checksum") from None
    return Rows(rows, schema)


def _damaged(path: str, before: list[Row], how: str) -> ShardError:
    rule, found = "every record must be whole and have its checksum", f"record {len(before):,}, which {how}"
    return ShardError(rule, path, found, "Bring it again.")
