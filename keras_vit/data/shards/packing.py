"""`pack`, which writes the photos of a data set as shards that this package and others read."""

import contextlib
import errno
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import check_choice, check_installed
from keras_vit.config.datasets import SHARD_BYTES, SHARD_FORMATS, check_shard_bytes
from keras_vit.data.opening import open_source
from keras_vit.data.source import Data, Source, common_top
from keras_vit.data.splits import FileSplit
from keras_vit.files import PREFIX, check_new_dir, expand_path, flush, flush_folder, lock_dir, unlock
from keras_vit.images.byte_ranges import ByteRange, photo_bytes
from keras_vit.images.headers import PNG_START
from keras_vit.images.photo_files import is_within
from keras_vit.images.pillow_formats import pillow_format

_AT_ONCE = 2**25  # bytes of photos in a group of rows
_STREAM = 11  # of random numbers: the order in shards differs from those of training and of subsets


class Photo(NamedTuple):
    """A photo on its way into a shard."""

    number: int  # in the whole set, by which readers find the order of the data again
    name: str  # path below the folder of the data
    data: bytes
    label: int
    class_name: str

    @property
    def key(self) -> str:
        """The number in digits, equally many for all."""
        return f"{self.number:09}"


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

        self.file = tf.io.TFRecordWriter(str(path))

    def add(self, photo: Photo) -> None:
        """Appends a photo."""
        self.file.write(_example(photo))

    def close(self) -> None:
        """Writes what is buffered."""
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
    kind = pillow_format(data)
    return kind.lower() if kind else "png" if data.startswith(PNG_START) else "jpg"


def _example(photo: Photo) -> bytes:
    import tensorflow as tf

    texts = {"image/encoded": photo.data, "image/format": _suffix(photo.data).encode(), "key": photo.key.encode()}
    texts |= {"image/class/text": photo.class_name.encode()}
    texts |= {"image/filename": photo.name.encode()}
    fields = {name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text])) for name, text in texts.items()}
    fields["image/class/label"] = tf.train.Feature(int64_list=tf.train.Int64List(value=[photo.label]))
    return tf.train.Example(features=tf.train.Features(feature=fields)).SerializeToString(deterministic=True)


WRITERS: dict[str, Callable[[Path, Sequence[str]], Any]] = {
    "tar": TarWriter,
    "tfrecord": TFRecordWriter,
    "parquet": ParquetWriter,
}


def pack(
    data: Data,
    out: FilePath,
    *,
    format: str = "tar",
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
    on_bad_image: str = "skip",
) -> tuple[Path, ...]:
    """Writes the photos of a data set into few large files (shards), and leaves the bytes of every photo as they are.

    Shards are `train-00000.tar` and so on, and `labels.json` has the class names. Photos are shuffled in
    them, since most other software reads shards in their order. `open_source` gives the photos in the order of the data
    set again. The same data and arguments give the same bytes.

    Example:
        >>> shards = keras_vit.pack(photos, "shards")
        >>> [path.name for path in shards]
        ['train-00000.tar', 'validation-00000.tar', 'test-00000.tar']
        >>> keras_vit.open_source("shards").class_names
        ('disc', 'stripes', 'tiles')

    Args:
        data: a folder, a `.csv`, shards, arrays of uint8, or a `Source`, as `open_source` takes them. Arrays become
            PNGs.
        out: a folder that is new or empty. It is there once all is written, and not before.
        format: `"tar"` as WebDataset reads it, `"tfrecord"` of `tf.train.Example`, or `"parquet"` as Hugging Face's
            `datasets` reads it.
        shard_bytes: the most bytes of photos in a shard, at least 1,024; a larger photo has a shard of its own.
        seed: divides data without splits, and shuffles, in [0, 2**31).
        on_bad_image: as for `open_source`.

    Returns:
        The paths of the shards.

    Raises:
        ValueError: for a folder that is not empty, in the data or being packed into, data of tensorflow-datasets, a
            class name with white space at an end, and as `open_source`.
        OSError: if the disk is full or a photo is gone; nothing is left of the shards then.
        ImportError: without the package for the format.
    """
    check_choice("format", format, SHARD_FORMATS)
    check_shard_bytes(shard_bytes)
    out = Path(os.path.abspath(expand_path(out)))
    check_new_dir(out)
    _check_outside(out, data)
    source = open_source(data, seed=seed, on_bad_image=on_bad_image)
    _check_photos(source)
    staging = out.with_name(f"{PREFIX}pack-{out.name}")
    staging.mkdir(parents=True, exist_ok=True)
    try:
        lock = lock_dir(staging)
    except BlockingIOError:
        raise ValueError(
            f"one process at a time packs into a folder.\nReceived: {str(out)!r}, into which another one packs."
        ) from None
    try:
        for left in staging.iterdir():  # by a process that was killed
            left.unlink()
        names = _write(source, staging, format, shard_bytes, seed)
        os.replace(staging, out)
        flush_folder(out.parent)
    except BaseException as error:
        shutil.rmtree(staging, ignore_errors=True)
        if (full := os.strerror(errno.ENOSPC)) in str(error):  # writers say it by errors of several kinds
            raise OSError(errno.ENOSPC, full, str(out)) from error
        raise
    finally:
        unlock(lock)
    return tuple(out / name for name in names)


def _check_outside(out: Path, data: Data) -> None:
    """Refuses a folder in that of the photos, whose shards a reader of the data would find."""
    if not isinstance(data, (str, os.PathLike)) or not os.path.isdir(top := expand_path(data)):
        return
    if is_within(os.path.realpath(out), os.path.realpath(top)):
        raise ValueError(
            "shards must lie outside of the data, or they would count as a part of it.\n"
            f"Received: {str(out)!r}, in {str(top)!r}. Choose another place."
        )


def _check_photos(source: Source) -> None:
    if name := next((name for name in source.class_names if name != name.strip()), None):
        raise ValueError(
            "class names in shards must not begin or end with white space, which readers of labels strip.\n"
            f"Received: the class {name!r}. Give its folder or rows another name."
        )
    for name, split in source.splits.items():
        if isinstance(split, FileSplit):
            continue
        images = getattr(split, "images", None)
        if images is None:
            raise ValueError(
                "what is packed must be photos in files or arrays; tensorflow-datasets has shards already.\n"
                f"Received: {source.name}."
            )
        if images.dtype != np.uint8 or images.shape[-1] not in (1, 3):
            raise ValueError(
                "arrays must be uint8 with 1 or 3 channels, so that PNGs hold the same pixels.\n"
                f"Received: {images.dtype.name} {images.shape} as {name}."
            )


def _write(source: Source, folder: Path, format: str, shard_bytes: int, seed: int) -> list[str]:
    """Writes all shards and the class names, and gives the names of the shards."""
    names: list[str] = []
    start = 0
    for split, examples in source.splits.items():
        photos = _photos(source, examples, start, seed)
        names += _write_split(photos, folder, split, format, shard_bytes, source.class_names)
        start += examples.size
    labels = json.dumps(list(source.class_names), ensure_ascii=False, indent=1)
    (folder / "labels.json").write_text(labels + "\n", "utf-8")
    for path in folder.iterdir():
        flush(path)
    flush_folder(folder)
    return names


def _write_split(
    photos: Iterable[Photo], folder: Path, split: str, format: str, shard_bytes: int, class_names: Sequence[str]
) -> list[str]:
    """The names of a split's shards, of which one is open; a photo that does not fit goes into a new one."""
    names: list[str] = []
    room = -1
    with contextlib.ExitStack() as opened:
        for photo in photos:
            if len(photo.data) > room:
                opened.close()
                names.append(f"{split}-{len(names):05}.{format}")
                shard = opened.enter_context(contextlib.closing(WRITERS[format](folder / names[-1], class_names)))
                room = shard_bytes
            shard.add(photo)
            room -= len(photo.data)
    return names


def _photos(source: Source, examples: Any, start: int, seed: int) -> Iterator[Photo]:
    """The photos of a split, shuffled, each with the number that it has in the whole set."""
    top = common_top(source)
    for number in np.random.default_rng([seed, _STREAM, start]).permutation(examples.size).tolist():
        label = int(examples.labels[number])
        name, data = _photo(examples, number, top)
        yield Photo(start + number, name, data, label, source.class_names[label])


def _photo(examples: Any, number: int, top: str) -> tuple[str, bytes]:
    """The name of a photo below the common folder, and its bytes."""
    if isinstance(examples, FileSplit):
        place = examples.paths[number]
        name = place.name.rpartition(":")[2] if isinstance(place, ByteRange) else os.path.relpath(place, top)
        return Path(name).as_posix().encode("utf-8", "replace").decode(), photo_bytes(place)
    import tensorflow as tf

    with tf.device("CPU"):
        return f"{number:09}.png", tf.io.encode_png(examples.images[number]).numpy()
