"""A photo that vanishes or changes while a pass runs is named by its path, not by TensorFlow's operation."""

import os
from pathlib import Path

import pytest
import tensorflow as tf
from conftest import make_tiny
from pictures import encoded, picture, turned, write_photos

import keras_vit
from keras_vit.data import load_dataset, open_source
from keras_vit.data.pipeline import report_missing_files
from keras_vit.evaluation import image_features
from keras_vit.images.byte_ranges import photo_bytes
from keras_vit.images.preprocessing import Preprocessing


@pytest.fixture
def source(tmp_path):
    return open_source(write_photos(tmp_path, each=10))


def lose(path, how):
    if how in ("gone", "pipe", "folder"):
        os.remove(path)
        {"gone": str, "pipe": os.mkfifo, "folder": os.mkdir}[how](path)
    elif how in ("bmp", "turned"):
        Path(path).write_bytes(encoded(picture(), "BMP") if how == "bmp" else turned(picture(), 6))
    else:
        Path(path).write_bytes(b"" if how == "emptied" else Path(path).read_bytes()[:200])


REASONS = {"gone": "no such file", "cut": "truncated", "emptied": "empty", "pipe": "a pipe", "folder": "a folder, not"}
REASONS |= {"bmp": "a photo of another format than before", "turned": "a photo of another EXIF orientation than"}


@pytest.mark.parametrize(("how", "reason"), REASONS.items())
def test_pass_names_the_photo(source, how, reason):
    split = source.split("train")
    batches = load_dataset(source, "train", batch_size=4, preprocessing=Preprocessing(image_size=(8, 8)))
    lose(split.paths[5], how)
    with (
        pytest.raises(ValueError, match=f"1 that can no longer be read: {split.paths[5]}: {reason}"),
        report_missing_files(split),
    ):
        list(batches)
    rule = "a photo must stay as it was"
    with pytest.raises(tf.errors.OpError, match=f"{rule}.\nReceived: {split.paths[5]}: {reason}"):
        list(batches)


@pytest.mark.parametrize("packed", [False, True])
def test_photo_that_is_damaged_at_the_same_size_and_time_is_named(source, tmp_path, packed):
    if packed:
        keras_vit.pack(source, tmp_path / "shards", format="tfrecord")
        source = open_source(tmp_path / "shards")
    place = next(each for each in source.split("train").paths if photo_bytes(each).startswith(b"\x89PNG"))
    data, path = photo_bytes(place), Path(place.file if packed else place)
    status = path.stat()
    path.write_bytes(path.read_bytes().replace(data[200:300], bytes(100)))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    advice = "remove the index .keras_vit_index.npz in its folder first" if packed else "open the data set again.$"
    with (
        pytest.raises(ValueError, match=f"1 that can no longer be read: {place}: damaged .*{advice}"),
        report_missing_files(source.split("train")),
    ):
        list(load_dataset(source, "train", batch_size=4, preprocessing=Preprocessing(image_size=(8, 8))))


def test_evaluation_and_features_name_the_photo(source, tmp_path):
    model, path = make_tiny(classes=3), source.split("test").paths[1]
    lose(path, "gone")
    for measure in (
        lambda: keras_vit.evaluate(model, source),
        lambda: image_features(model, source, "test", cache=None),
        lambda: image_features(model, source, "test", cache=tmp_path / "kept"),
    ):
        with pytest.raises(ValueError, match=path):
            measure()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=f"{path}: a pipe"):
        image_features(model, source, "test", cache=tmp_path / "kept")


def test_other_errors_come_through(source):
    with pytest.raises(FileNotFoundError, match="elsewhere"), report_missing_files(source.split("train")):
        raise FileNotFoundError("elsewhere")
