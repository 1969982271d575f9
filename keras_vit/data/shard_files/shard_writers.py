"""Writers of one shard each, in the forms that their own software reads."""

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from keras_vit.checks import check_installed
from keras_vit.images.by_pillow import kind_for_pillow
from keras_vit.images.segments import PNG_START

_AT_ONCE = 2**25  # bytes of photos in a group of rows


class Photo(NamedTuple):
    """A photo on its way into a shard.

    Args:
        number: in the whole set, by which readers find the order of the data again.
        name: path below the folder of the data.
        data: the bytes.
        label: number of the class.
        class_name: its name.
    """

    number: int
    name: str
    data: bytes
    label: int
    class_name: str

    @property
    def key(self) -> str:
        """The number in digits, equally many for all."""
        return f"{self.number:09}"


class Writer(Protocol):
    """Of one shard."""

    def __init__(self, path: Path, class_names: Sequence[str]) -> None: ...

    def add(self, photo: Photo) -> None:
        """Appends a photo."""

    def close(self) -> None:
        """Writes what is left and closes the file."""


class TarWriter:
    """Three members a photo: itself, its label as a number, and an object of label, class and path."""

    def __init__(self, path: Path, class_names: Sequence[str]) -> None:
        self.file = tarfile.open(path, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115  # closed by `close`

    def add(self, photo: Photo) -> None:
        """Appends a photo."""
        facts = {"label": photo.label, "class": photo.class_name, "path": photo.name}
        members = {
            _suffix(photo.data): photo.data,
            "cls": str(photo.label).encode(),
            "json": json.dumps(facts).encode(),
        }
        for suffix, data in members.items():
            member = tarfile.TarInfo(f"{photo.key}.{suffix}")  # of the time 0 and no owner, so the same bytes again
            member.size = len(data)
            self.file.addfile(member, io.BytesIO(data))

    def close(self) -> None:
        """Ends the tar with its empty blocks."""
        self.file.close()


class TFRecordWriter:
    """Records of `tf.train.Example` with TF-Slim's fields."""

    def __init__(self, path: Path, class_names: Sequence[str]) -> None:
        import tensorflow as tf

        self.path, self.file = path, tf.io.TFRecordWriter(str(path))

    def add(self, photo: Photo) -> None:
        """Appends a photo."""
        self.file.write(_example(photo))

    def close(self) -> None:
        """Writes what is buffered."""
        self.file.close()


class ArrayRecordWriter:
    """The same records, each in a group of its own, so that one is read alone."""

    def __init__(self, path: Path, class_names: Sequence[str]) -> None:
        check_installed("array_record", "it writes ArrayRecord files", "data")
        from array_record.python.array_record_module import ArrayRecordWriter as File

        self.file = File(str(path), "group_size:1,uncompressed")

    def add(self, photo: Photo) -> None:
        """Appends a photo."""
        self.file.write(_example(photo))

    def close(self) -> None:
        """Writes the index of the records."""
        self.file.close()


class ParquetWriter:
    """Columns as Hugging Face's `datasets` writes them, without compression: a photo is read by its place then."""

    def __init__(self, path: Path, class_names: Sequence[str]) -> None:
        check_installed("pyarrow", "it writes Parquet", "shards")
        import pyarrow as pa
        import pyarrow.parquet as pq

        photo = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        label = {"names": list(class_names), "_type": "ClassLabel"}
        key = {"dtype": "string", "_type": "Value"}
        features = {"image": {"_type": "Image"}, "label": label, "key": key}
        facts = {"huggingface": json.dumps({"info": {"features": features}})}
        self.schema = pa.schema([("image", photo), ("label", pa.int64()), ("key", pa.string())], metadata=facts)
        self.file = pq.ParquetWriter(
            path, self.schema, compression="NONE", use_dictionary=False, write_statistics=False
        )
        self.rows: list[dict[str, Any]] = []
        self.held = 0

    def add(self, photo: Photo) -> None:
        """Appends a photo, in groups of rows of about 32 MiB."""
        image = {"bytes": photo.data, "path": photo.name}
        self.rows.append({"image": image, "label": photo.label, "key": photo.key})
        self.held += len(photo.data)
        if self.held >= _AT_ONCE:
            self._write()

    def close(self) -> None:
        """Writes the last group and the footer."""
        if self.rows:
            self._write()
        self.file.close()

    def _write(self) -> None:
        import pyarrow as pa

        self.file.write_table(pa.Table.from_pylist(self.rows, self.schema))
        self.rows, self.held = [], 0


def _suffix(data: bytes) -> str:
    """By the bytes: a JPEG may be called .png, and a photo may have no suffix."""
    kind = kind_for_pillow(data)
    return kind.lower() if kind else "png" if data.startswith(PNG_START) else "jpg"


def _example(photo: Photo) -> bytes:
    import tensorflow as tf

    texts = {"image/encoded": photo.data, "image/format": _suffix(photo.data).encode(), "key": photo.key.encode()}
    texts |= {"image/class/text": photo.class_name.encode()}
    texts |= {"image/filename": photo.name.encode()}
    fields = {name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text])) for name, text in texts.items()}
    fields["image/class/label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[photo.label]))
    return tf.train.Example(features=tf.train.Features(feature=fields)).SerializeToString(deterministic=True)


WRITERS: dict[str, Callable[[Path, Sequence[str]], Writer]] = {
    "tar": TarWriter,
    "tfrecord": TFRecordWriter,
    "array_record": ArrayRecordWriter,
    "parquet": ParquetWriter,
}
