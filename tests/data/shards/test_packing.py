"""Shards that `pack` writes: the photos of the folder, in its order, in forms that other software reads."""

import errno
import io
import json
import tarfile
import unittest.mock

import numpy as np
import pytest
from conftest import assert_one_line
from photos import add_odd_files, make_photos
from pictures import encoded, picture

from keras_vit.data import load_dataset, open_source
from keras_vit.data.shards import packing
from keras_vit.data.shards.opening import shard_photos
from keras_vit.data.shards.packing import WRITERS, pack
from keras_vit.files import lock_dir, unlock
from keras_vit.images import validation
from keras_vit.images.byte_ranges import photo_bytes
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.runs.preparation import data_location

FORMATS = tuple(WRITERS)
RECORD = Preprocessing(image_size=(24, 32))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three classes, one with a folder in it, in bytes of several kinds, with a name that no key of a tar could be."""
    made = make_photos(tmp_path_factory.mktemp("photos") / "photos", 8)
    (made / "disc" / "a.b c.webp").write_bytes(encoded(picture(40, 50), "WEBP"))
    (made / "disc" / "zeros.bmp").write_bytes(encoded(np.zeros((9, 8, 3), "uint8"), "BMP"))  # which ends in zeros
    (made / "stripes" / "grüße").mkdir()
    (made / "stripes" / "grüße" / "last.png").write_bytes(encoded(picture(30, 20), "PNG"))
    return made


@pytest.fixture(scope="module")
def source(folder):
    return open_source(folder, seed=3)


@pytest.fixture(scope="module")
def packed(source, tmp_path_factory):
    """Folders of shards by format; several shards of the training photos in each."""
    made = tmp_path_factory.mktemp("packed")
    for name in FORMATS:
        shards = pack(source, made / name, format=name, shard_bytes=12_000, seed=3)
        assert {path.name for path in shards} | {"labels.json"} == {path.name for path in (made / name).iterdir()}
        assert sum("train-" in path.name for path in shards) > 2
    return made


def files_in(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


@pytest.mark.parametrize("name", FORMATS)
def test_shards_hold_the_photos_of_the_folder_in_its_order(source, packed, name):
    ours = open_source(packed / name, on_bad_image="raise")
    assert (ours.class_names, ours.sizes) == (source.class_names, source.sizes)
    for split in source.splits:
        mine, theirs = ours.split(split), source.split(split)
        assert list(map(photo_bytes, mine.paths)) == list(map(photo_bytes, theirs.paths))
        np.testing.assert_array_equal(mine.labels, theirs.labels)
    read = list(load_dataset(ours, "train", batch_size=8, preprocessing=RECORD))
    assert sum(map(len, (labels for _, labels in read))) == source.sizes["train"]
    assert len({key for key, _ in shard_photos(packed / name)}) == sum(source.sizes.values())


def test_run_that_stopped_three_times_in_an_epoch_reads_the_batches_of_the_folder(source, packed):
    """By one, two and three processes in turn: what each reads is its part of the batch, bit for bit."""
    arguments = {"batch_size": 6, "preprocessing": RECORD, "training": True, "seed": 9}
    whole = [part.numpy() for part in zip(*load_dataset(source, **arguments).take(3), strict=True) for part in part]
    images, labels = whole[:3], whole[3:]
    shards = open_source(packed / "tar")
    for step, hosts in ((0, 1), (1, 2), (2, 3)):
        parts = [
            next(iter(load_dataset(shards, **arguments, start_step=step, shard=(host, hosts)))) for host in range(hosts)
        ]
        np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), images[step])
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), labels[step])


@pytest.mark.parametrize("name", FORMATS)
def test_same_data_give_the_same_bytes_and_shuffled_shards(source, packed, name, tmp_path):
    again = pack(source, tmp_path / "again", format=name, shard_bytes=12_000, seed=3)
    assert files_in(tmp_path / "again") == files_in(packed / name)
    keys = [key for key, _ in shard_photos(again[0])]
    assert keys != sorted(keys)
    other = pack(packed / name, tmp_path / "repacked", format="tar", shard_bytes=12_000, seed=3)
    direct = files_in(packed / "tar")
    for path in other:  # but for the paths of the photos, which tars know by their numbers
        with tarfile.open(path) as mine, tarfile.open(fileobj=io.BytesIO(direct[path.name])) as theirs:
            photos = [
                [each.extractfile(m).read() for m in each if not m.name.endswith("json")] for each in (mine, theirs)
            ]
        assert photos[0] == photos[1]


def test_photos_are_checked_once_for_all_processes(packed, monkeypatch):
    first = open_source(packed / "tar")
    monkeypatch.setattr(validation, "_KNOWN", {})  # as in another process
    read, real = [], validation._read
    monkeypatch.setattr(validation, "_read", lambda place: (read.append(place.name[-4:]), real(place))[1])
    again = open_source(packed / "tar")
    assert sorted(read) == [".bmp", "webp"]  # for which another machine may have no Pillow
    for split in first.splits:
        mine, theirs = again.split(split), first.split(split)
        assert (mine.paths, mine.needs_pillow) == (theirs.paths, theirs.needs_pillow)
        np.testing.assert_array_equal(mine.orientations, theirs.orientations)


def test_tar_has_photo_number_and_facts_under_one_key(source, packed):
    members = {}
    for path in (packed / "tar").glob("train-*.tar"):
        with tarfile.open(path) as tar:
            members |= {member.name: tar.extractfile(member).read() for member in tar}
    keys = {name.partition(".")[0] for name in members}
    assert len(keys) == source.sizes["train"]
    for key in keys:
        facts = json.loads(members[f"{key}.json"])
        assert int(members[f"{key}.cls"]) == facts["label"]
        assert source.class_names[facts["label"]] == facts["class"] == facts["path"].partition("/")[0]
    assert {name.partition(".")[2] for name in members} >= {"jpg", "cls", "json"}


def test_other_readers_find_the_fields_that_they_expect(source, packed):
    import pyarrow.parquet as pq
    import tensorflow as tf

    fields = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], "int64"),
    }
    read = tf.data.TFRecordDataset(sorted(map(str, (packed / "tfrecord").glob("train-*")))).map(
        lambda record: tf.io.parse_single_example(record, fields)
    )
    found = {each["image/encoded"].numpy(): int(each["image/class/label"]) for each in read}
    train = source.split("train")
    expected = dict(zip(map(photo_bytes, train.paths), train.labels.tolist(), strict=True))
    assert found == expected
    tables = [pq.read_table(path).to_pylist() for path in (packed / "parquet").glob("train-*")]
    assert {row["image"]["bytes"]: row["label"] for rows in tables for row in rows} == expected
    schema = pq.read_schema(next((packed / "parquet").glob("train-*")))
    features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert features["label"] == {"names": list(source.class_names), "_type": "ClassLabel"}


@pytest.mark.parametrize("name", FORMATS)
def test_class_names_survive_or_are_refused(tmp_path, name):
    for label, of_class in enumerate(names := ("0", "5", "r\ned\x1b")):
        for number in range(5):
            (tmp_path / "photos" / of_class).mkdir(parents=True, exist_ok=True)
            photo = encoded(picture(20, 28, seed=label * 5 + number))
            (tmp_path / "photos" / of_class / f"{number}.jpg").write_bytes(photo)
    pack(tmp_path / "photos", tmp_path / "out", format=name)
    assert open_source(tmp_path / "out").class_names == names
    (tmp_path / "out" / "labels.json").unlink()
    assert open_source(tmp_path / "out").class_names == names
    (tmp_path / "photos" / "5").rename(tmp_path / "photos" / "5\n")
    with pytest.raises(ValueError, match=r"white space.*\n.*the class '5\\n'"):
        pack(tmp_path / "photos", tmp_path / "again", format=name)
    assert not (tmp_path / "again").exists()


def test_arrays_become_files_of_the_same_pixels(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (12, 5, 7, 1), dtype="uint8")
    pack({"train": (images, np.arange(12) % 2)}, tmp_path / "a")
    source = open_source(tmp_path / "a")
    np.testing.assert_array_equal([source.pixels("train", number)[..., :1] for number in range(12)], images)
    for wrong in (images.astype("float32"), np.repeat(images, 4, -1)):
        with pytest.raises(ValueError, match="uint8 with 1 or 3 channels"):
            pack({"train": (wrong, np.arange(12) % 2)}, tmp_path / "b")


def test_nothing_is_left_of_what_cannot_be_written(folder, source, tmp_path, monkeypatch):
    add_odd_files(make_photos(tmp_path / "odd", 4))
    with pytest.raises(ValueError, match="truncated"):
        pack(tmp_path / "odd", tmp_path / "new", on_bad_image="raise")
    with pytest.raises(ValueError, match="new or empty"):
        pack(source, tmp_path)
    with pytest.raises(ValueError, match="outside of the data"):
        pack(tmp_path / "odd", tmp_path / "odd" / "shards")
    with pytest.raises(ValueError, match="at least 1,024"):
        pack(source, tmp_path / "new", shard_bytes=7)
    before = sorted(tmp_path.iterdir())

    text = "No space left on device"  # as tars and Parquet, and as TensorFlow say it
    for error in (OSError(errno.ENOSPC, text), RuntimeError(f"write() failed: {text}; at byte 204800")):
        monkeypatch.setattr(packing.TarWriter, "add", unittest.mock.Mock(side_effect=error))
        with pytest.raises(OSError, match=rf"{text}.*new'"):
            pack(source, tmp_path / "new")
        assert sorted(tmp_path.iterdir()) == before


def test_one_process_packs_into_a_folder_and_what_a_killed_one_left_goes(source, tmp_path):
    left = tmp_path / ".keras_vit-pack-new"
    left.mkdir()
    (left / "train-00009.tar").write_bytes(b"half")
    lock = lock_dir(left)
    with pytest.raises(ValueError, match="another one packs"):
        pack(source, tmp_path / "new")
    unlock(lock)
    pack(source, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert not (tmp_path / "new" / "train-00009.tar").exists()


def test_command_packs_and_a_run_knows_its_shards_by_their_whole_path(run, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, lines, errors = run("pack", folder, "shards", "--format", "tfrecord", "--shard-bytes", "12000", "--seed", "3")
    assert (code, errors) == (0, [])
    names = sorted(path.name for path in (tmp_path / "shards").glob("*.tfrecord"))
    assert lines[-1].startswith(f"wrote {len(names)} shards of ")
    assert lines[-1].endswith(" MB to shards")
    code, _, errors = run("pack", folder, "shards")
    assert code == 1
    assert_one_line(errors, "new or empty folder.*shards")
    code, _, errors = run("pack", folder, "more", "--shard-bytes", "5")
    assert_one_line(errors, "`--shard-bytes` must be at least 1,024")
    for data in ("shards", "shards/*.tfrecord"):
        assert data_location(data) == str(tmp_path / data)
