"""Batches of webdataset, Hugging Face's datasets and Grain train a model by `fit`, as the page of data says."""

import io

import keras
import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import make_tiny
from photos import CLASSES, make_photos
from PIL import Image

import keras_vit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # of webdataset, which leaves shards open
    pytest.mark.filterwarnings("ignore:Exception ignored in. <_io.FileIO:pytest.PytestUnraisableExceptionWarning"),
]
BATCH, COUNT = 5, 30


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """The same photos in a folder for each format."""
    folder = tmp_path_factory.mktemp("loaders")
    source = keras_vit.open_source(make_photos(folder / "photos", per_class=COUNT // 3))
    return {name: keras_vit.pack(source, folder / name, format=name) for name in ("tar", "parquet")}


def batch_of(model, photos, labels):
    images = [model.preprocessing(np.asarray(Image.open(io.BytesIO(photo)).convert("RGB"))) for photo in photos]
    return np.stack(images), np.array(labels)


def by_webdataset(model, files):
    webdataset = pytest.importorskip("webdataset", reason="webdataset is not installed")
    rows = webdataset.WebDataset([str(file) for file in files], shardshuffle=False).to_tuple("jpg", "cls")
    photos, labels = zip(*rows, strict=True)
    for start in range(0, COUNT, BATCH):
        part = slice(start, start + BATCH)
        yield batch_of(model, photos[part], [int(label) for label in labels[part]])


def by_datasets(model, files):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    rows = datasets.load_dataset("parquet", data_files=[str(file) for file in files], split="train")
    rows = rows.cast_column("image", datasets.Image(decode=False))
    for part in rows.iter(BATCH):
        yield batch_of(model, [image["bytes"] for image in part["image"]], part["label"])


def by_grain(model, files):
    grain = pytest.importorskip("grain", reason="grain is not installed")

    def photo_and_label(row):
        images, labels = batch_of(model, [row["image"]["bytes"]], [row["label"]])
        return images[0], labels[0]

    rows = grain.MapDataset.source([row for file in files for row in pq.read_table(file).to_pylist()])
    yield from rows.shuffle(seed=0).map(photo_and_label).batch(BATCH)


@pytest.mark.parametrize(("form", "batches"), [("tar", by_webdataset), ("parquet", by_datasets), ("parquet", by_grain)])
def test_batches_of_other_libraries_have_every_photo_once_and_train(shards, form, batches):
    model = make_tiny(classes=len(CLASSES), input_shape=(20, 28, 3))
    found = list(batches(model, shards[form]))
    labels = np.concatenate([labels for _, labels in found])
    assert np.bincount(labels).tolist() == [COUNT // 3] * 3
    source = keras_vit.open_source(shards[form][0].parent)
    rows = [row for split in source.sizes for row in source.rows(split)]
    assert len(rows) == len(labels)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = model.fit(batches(model, shards[form]), steps_per_epoch=COUNT // BATCH, shuffle=False, verbose=0).history[
        "loss"
    ]
    assert np.isfinite(losses).all()
