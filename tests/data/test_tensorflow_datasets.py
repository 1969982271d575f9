import shutil

import numpy as np
import pytest
import tensorflow as tf
from pictures import picture

from keras_vit.config.datasets import VTAB_TASKS
from keras_vit.data import load_dataset, open_source
from keras_vit.data.tensorflow_datasets import LABEL_RULES, _label
from keras_vit.images.preprocessing import Preprocessing

tfds = pytest.importorskip("tensorflow_datasets")
SCALE = Preprocessing(image_size=(8, 9))


class Leaves(tfds.core.GeneratorBasedBuilder):
    """41 training and 13 test images of four classes."""

    VERSION = tfds.core.Version("1.0.0")
    LABELS = ("ash", "birch", "cedar", "dogwood")

    def _info(self):
        image = tfds.features.Image(shape=(None, None, 3), encoding_format="png")
        features = {"image": image, "label": tfds.features.ClassLabel(names=self.LABELS), "mask": tfds.features.Image()}
        keys = ("image", "label")
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features), supervised_keys=keys)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(41), "test": self._generate_examples(13)}

    def _generate_examples(self, count):
        for number in range(count):
            pixels = picture(10 + number % 3, 12, seed=[count, number])
            pixels[0, 0] = number
            yield number, {"image": pixels, "label": number % 4, "mask": pixels}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    builder = Leaves(data_dir=tmp_path_factory.mktemp("tfds"))
    builder.download_and_prepare()
    return builder


@pytest.mark.parametrize("start_step", [1, 5, 9, 30])  # in the first epoch of 37 examples, at its end, and far beyond
def test_start_step_is_a_skip(prepared, start_step):
    source = open_source(prepared.data_path)
    arguments = {"batch_size": 4, "preprocessing": SCALE, "training": True, "seed": 2}
    stream = load_dataset(source, "train", **arguments).skip(start_step).take(3)
    started = load_dataset(source, "train", start_step=start_step, **arguments).take(3)
    for (images, labels), (other, others) in zip(stream, started, strict=True):
        assert (images.numpy() == other.numpy()).all()
        assert (labels.numpy() == others.numpy()).all()


def test_prepared_folder_opens_with_a_validation_split_of_its_own(prepared):
    source = open_source(prepared.data_path)
    assert source.sizes == {"train": 37, "validation": 4, "test": 13}
    assert source.class_names == Leaves.LABELS
    assert source.describe()["splits"] == {"train": "train[:90%]", "validation": "train[90%:]", "test": "test"}


def test_rows_and_pixels_are_those_that_were_written(prepared):
    source = open_source(prepared.data_path)
    stored = list(tfds.as_numpy(prepared.as_dataset(split="test")))
    rows = source.rows("test")
    assert [row["label"] for row in rows] == [example["label"] for example in stored]
    for index in (0, 7, 12):
        np.testing.assert_array_equal(source.pixels("test", index), stored[index]["image"])


@pytest.mark.parametrize("count", [5, 99])
def test_some_are_the_first(prepared, count):
    split = open_source(prepared.data_path).split("test")
    found = split.some(count)
    assert len(found) == min(count, split.size)
    for index, pixels in enumerate(found):
        np.testing.assert_array_equal(pixels, split.pixels(index))


def test_evaluation_gives_all_in_order_as_preprocessing_prepares_them(prepared):
    dataset = load_dataset(prepared.data_path, "train+validation", batch_size=6, preprocessing=SCALE)
    images, labels = (np.concatenate(parts) for parts in zip(*dataset.as_numpy_iterator(), strict=True))
    stored = list(tfds.as_numpy(prepared.as_dataset(split="train[:90%]+train[90%:]")))
    np.testing.assert_array_equal(labels, [example["label"] for example in stored])
    for image, example in zip(images, stored, strict=True):
        # resized before or after scaling: a few roundings of values up to 255, each of 2^-24, over 127.5
        np.testing.assert_allclose(image, SCALE(example["image"]), atol=2e-6)


def test_training_shows_every_image_once_an_epoch_in_an_order_of_the_seed(prepared):
    source = open_source(prepared.data_path)

    def order(seed, count):
        stream = source.split("train").stream(seed).take(count)
        return [bytes(example["bytes"].numpy()) for _, example in stream]

    first, again, other = order(0, 74), order(0, 74), order(1, 37)
    assert first == again
    assert len(set(first[:37])) == len(set(first[37:])) == 37
    assert first[:37] != first[37:]
    assert first[:37] != other


def test_training_shards_part_the_stream(prepared):
    def labels(**arguments):
        dataset = load_dataset(prepared.data_path, batch_size=6, preprocessing=SCALE, training=True, **arguments)
        return [batch.numpy() for _, batch in dataset.take(12)]

    whole, even, odd = labels(), labels(shard=(0, 2)), labels(shard=(1, 2))
    for every, left, right in zip(whole, even, odd, strict=True):
        np.testing.assert_array_equal(np.concatenate([left, right]), every)


def test_augmented_training_is_repeatable(prepared):
    def first():
        arguments = {"batch_size": 5, "preprocessing": SCALE, "training": True, "augmentation": "inception"}
        return next(iter(load_dataset(prepared.data_path, **arguments)))[0].numpy()

    np.testing.assert_array_equal(first(), first())


def test_set_that_is_not_prepared_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(ValueError, match=r"not been downloaded and prepared(?s:.*)download=True"):
        open_source("cifar10")
    with pytest.raises(ValueError, match=r"'vtab/caltech101'(?s:.*)download=True"):
        open_source("vtab/caltech101")


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match=r"none of them\. Did you mean 'cifar10'"):
        open_source("cifar_10")


def prepare_one(folder, example, keys=None, **of_features):
    """The folder of a prepared set of ten equal examples."""

    class Odd(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        """One of the kinds that data sets come in."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = tfds.features.FeaturesDict(of_features)
            return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=keys)

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            for number in range(10):
                yield number, example

    builder = Odd(data_dir=folder)
    builder.download_and_prepare()
    return builder.data_path


def test_set_without_a_class_is_refused(tmp_path):
    path = prepare_one(tmp_path, {"image": picture()}, image=tfds.features.Image())
    with pytest.raises(ValueError, match=r"one image and one class label(?s:.*)\['image'\]"):
        open_source(path)


@pytest.mark.parametrize(
    ("kind", "value", "found"),
    [
        (lambda: tfds.features.Tensor(shape=(4, 5, 3), dtype=np.float32), np.ones((4, 5, 3), "float32"), "float32"),
        (lambda: tfds.features.Tensor(shape=(4, 5), dtype=np.uint8), np.ones((4, 5), "uint8"), "Tensor"),
        (tfds.features.Text, "a word", "Text"),
    ],
    ids=["floats", "rank", "text"],
)
def test_feature_that_is_no_image_of_bytes_is_refused_by_name(tmp_path, kind, value, found):
    label = tfds.features.ClassLabel(num_classes=2)
    path = prepare_one(tmp_path, {"x": value, "label": 1}, ("x", "label"), x=kind(), label=label)
    with pytest.raises(ValueError, match=rf"of uint8 or uint16(?s:.*)'odd', whose feature 'x' is .*{found}"):
        open_source(path)


def test_tensor_of_bytes_is_shown_as_it_is(tmp_path):
    pixels = picture(8, 9)
    features = {"x": tfds.features.Tensor(shape=(8, 9, 3), dtype=np.uint8)}
    features["label"] = tfds.features.ClassLabel(num_classes=2)
    source = open_source(prepare_one(tmp_path, {"x": pixels, "label": 1}, ("x", "label"), **features))
    np.testing.assert_array_equal(source.pixels("test", 0), pixels)


def test_set_of_one_class_is_refused(tmp_path):
    features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=1)}
    path = prepare_one(tmp_path, {"image": picture(), "label": 0}, ("image", "label"), **features)
    with pytest.raises(ValueError, match=r"at least two classes(?s:.*)'odd' with 1"):
        open_source(path)


def test_image_and_label_are_used_where_nothing_says_so_and_the_version_is_found(tmp_path):
    features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(num_classes=2)}
    path = prepare_one(tmp_path, {"image": picture(), "label": 1}, **features)
    assert open_source(path.parent).sizes == {"train": 8, "validation": 1, "test": 1}
    shutil.copytree(path, path.parent / "2.0.0")
    with pytest.raises(ValueError, match=r"one version(?s:.*)1\.0\.0, 2\.0\.0"):
        open_source(path.parent)


def test_every_rule_of_the_table_exists():
    rules = {record.label for record in VTAB_TASKS.values() if not record.label.startswith("label")}
    assert rules == set(LABEL_RULES)


@pytest.mark.parametrize(("depths", "label"), [([9.2, 12], 3), ([8.0, 30], 0), ([8.1], 1), ([10.5, 11], 5), ([0.1], 0)])
def test_clevr_distance_is_the_interval_of_the_nearest(depths, label):
    objects = {"pixel_coords": tf.constant([[0, 0, depth] for depth in depths], "float32")}
    assert _label({"objects": objects}, VTAB_TASKS["vtab/clevr_closest_object_distance"]) == label


@pytest.mark.parametrize(
    ("depths", "kinds", "label"), [([5, 30], [0, 1], 0), ([5, 30], [3, 2], 2), ([5], [4], 3), ([], [], 3)]
)
def test_kitti_distance_is_that_of_the_nearest_vehicle(depths, kinds, label):
    location = tf.reshape(tf.constant([[0, 0, depth] for depth in depths], "float32"), (-1, 3))
    objects = {"location": location, "type": tf.constant(kinds, "int64")}
    assert _label({"objects": objects}, VTAB_TASKS["vtab/kitti_closest_vehicle_distance"]) == label


def test_clevr_count_starts_at_three():
    objects = {"size": tf.constant([0] * 10)}
    assert _label({"objects": objects}, VTAB_TASKS["vtab/clevr_count_all"]) == 7


@pytest.mark.parametrize(("task", "stored"), [("dsprites_orientation", 40), ("dsprites_x_position", 32)])
def test_dsprites_merges_neighbouring_labels_evenly(task, stored):
    record = VTAB_TASKS[f"vtab/{task}"]
    labels = [int(_label({record.label: tf.constant(value)}, record)) for value in range(stored)]
    assert labels == [int(value // (stored / 16)) for value in range(stored)]
