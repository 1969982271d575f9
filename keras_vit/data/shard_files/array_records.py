"""ArrayRecord files of `tf.train.Example`, as tensorflow-datasets and MaxText write them, read by number of record."""

from keras_vit.checks import check_installed
from keras_vit.data.shard_files.examples import row_of
from keras_vit.data.shard_files.rows import Row, Rows, ShardError, check_fields
from keras_vit.files import open_regular

_AT_ONCE = 64  # records


def rows_of(path: str) -> Rows:
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
                row, fields = row_of(record, path, len(rows), record=len(rows))
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
