import shutil

import numpy as np
import pytest
import tensorflow as tf
from pictures import encoded, picture
from prepared_sets import prepare_set

import keras_vit
from keras_vit.config.datasets import VTAB_TASKS
from keras_vit.data import load_dataset, open_source
from keras_vit.data.tensorflow_datasets import LABEL_RULES, example_label
from keras_vit.images.preprocessing import Preprocessing

tfds = pytest.importorskip("tensorflow_datasets")
SCALE = Preprocessing(image_size=(8, 9))
NAMES = ("ash", "birch", "cedar", "dogwood")


def leaves(count):
    """Examples of four classes with images of several heights."""
    found = {}
    for number in range(count):
        pixels = picture(10 + number % 3, 12, seed=[count, number])
        pixels[0, 0] = number
        found[number] = {"image": pixels, "label": number % 4, "mask": pixels}
    return found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """41 training and 13 test images."""
    return prepare_set(
        tmp_path_factory.mktemp("tfds"),
        {"train": leaves(41), "test": leaves(13)},
        lambda kinds: {
            "image": kinds.Image(shape=(None, None, 3), encoding_format="png"),
            "label": kinds.ClassLabel(names=NAMES),
            "mask": kinds.Image(),
        },
    )


# In the first epoch of 37 examples, at its end, and far beyond.
@pytest.mark.parametrize(("start_step", "shard"), [(1, (0, 1)), (5, (1, 2)), (9, (0, 1)), (30, (1, 2))])
def test_start_step_is_a_skip(prepared, start_step, shard):
    source = open_source(prepared.data_path)
    arguments = {"batch_size": 4, "preprocessing": SCALE, "training": True, "seed": 2, "shard": shard}
    stream = load_dataset(source, "train", **arguments).skip(start_step).take(3)
    started = load_dataset(source, "train", start_step=start_step, **arguments).take(3)
    for (images, labels), (other, others) in zip(stream, started, strict=True):
        assert (images.numpy() == other.numpy()).all()
        assert (labels.numpy() == others.numpy()).all()


def test_prepared_folder_opens_with_a_validation_split_of_its_own(prepared):
    source = open_source(prepared.data_path)
    assert source.sizes == {"train": 37, "validation": 4, "test": 13}
    assert source.class_names == NAMES
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
    found = split.sample(count)
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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cifar10", "download=True"),
        ("vtab/caltech101", r"'vtab/caltech101'(?s:.*)download=True"),
        ("cifar_10", "Did you mean 'cifar10'"),
        ("bilder", r"'bilder', and there is no such file, folder or data set\.$"),
        ("pics/bilder", r"'pics/bilder', and there is no such file, folder or data set\.$"),
    ],
)
def test_set_that_is_not_prepared_is_refused_at_once(tmp_path, monkeypatch, name, words):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # a folder called nearly so would be suggested
    with pytest.raises(ValueError, match=words):
        open_source(name)


def prepare_one(folder, feature, value, name="x", supervised=True, classes=2):
    """The folder of a prepared set of ten equal examples, with labels if it has classes."""

    def features(kinds):
        found = {name: feature(kinds)}
        return found | {"label": kinds.ClassLabel(num_classes=classes)} if classes else found

    example = {name: value} | ({"label": classes - 1} if classes else {})
    keys = (name, "label") if supervised else None
    return prepare_set(folder, {"train": dict.fromkeys(range(10), example)}, features, keys, "odd").data_path


@pytest.mark.parametrize(
    ("feature", "value", "found"),
    [
        (lambda kinds: kinds.Tensor(shape=(4, 5, 3), dtype=np.float32), np.ones((4, 5, 3), "float32"), "float32"),
        (lambda kinds: kinds.Tensor(shape=(4, 5), dtype=np.uint8), np.ones((4, 5), "uint8"), "Tensor"),
        (lambda kinds: kinds.Text(), "a word", "Text"),
    ],
    ids=["floats", "rank", "text"],
)
def test_feature_that_is_no_image_of_bytes_is_refused_by_name(tmp_path, feature, value, found):
    with pytest.raises(ValueError, match=rf"uint8(?s:.*)'odd'.*'x'.*{found}"):
        open_source(prepare_one(tmp_path, feature, value))


@pytest.mark.parametrize(("classes", "words"), [(0, r"\['image'\]"), (1, "'odd' with 1")], ids=["none", "one"])
def test_set_without_two_classes_is_refused(tmp_path, classes, words):
    path = prepare_one(tmp_path, lambda kinds: kinds.Image(), picture(), "image", classes == 1, classes)
    with pytest.raises(ValueError, match=words):
        open_source(path)


def test_tensor_of_bytes_is_shown_as_it_is(tmp_path):
    pixels = picture(8, 9)
    source = open_source(prepare_one(tmp_path, lambda kinds: kinds.Tensor(shape=(8, 9, 3), dtype=np.uint8), pixels))
    np.testing.assert_array_equal(source.pixels("test", 0), pixels)


def test_image_and_label_are_used_where_nothing_says_so_and_the_version_is_found(tmp_path):
    path = prepare_one(tmp_path, lambda kinds: kinds.Image(), picture(), "image", supervised=False)
    assert open_source(path.parent).sizes == {"train": 8, "validation": 1, "test": 1}
    shutil.copytree(path, path.parent / "2.0.0")
    with pytest.raises(ValueError, match=r"1\.0\.0, 2\.0\.0"):
        open_source(path.parent)


def test_every_rule_of_the_table_exists():
    rules = {record.label for record in VTAB_TASKS.values() if not record.label.startswith("label")}
    assert rules == set(LABEL_RULES)


CLEVR, KITTI = "clevr_closest_object_distance", "kitti_closest_vehicle_distance"


@pytest.mark.parametrize(
    ("task", "depths", "kinds", "label"),
    [
        *(
            (CLEVR, depths, [], label)
            for depths, label in (([9.2, 12], 3), ([8.0, 30], 0), ([8.1], 1), ([10.5, 11], 5))
        ),
        (CLEVR, [0.1], [], 0),
        (KITTI, [5, 30], [0, 1], 0),
        (KITTI, [5, 30], [3, 2], 2),  # of pedestrians and others no distance counts
        (KITTI, [5], [4], 3),
        (KITTI, [], [], 3),
    ],
)
def test_distance_is_the_interval_of_the_nearest(task, depths, kinds, label):
    places = tf.reshape(tf.constant([[0, 0, depth] for depth in depths], "float32"), (-1, 3))
    objects = {"pixel_coords": places, "location": places, "type": tf.constant(kinds, "int64")}
    assert example_label({"objects": objects}, VTAB_TASKS[f"vtab/{task}"]) == label


def test_clevr_count_starts_at_three():
    objects = {"size": tf.constant([0] * 10)}
    assert example_label({"objects": objects}, VTAB_TASKS["vtab/clevr_count_all"]) == 7


@pytest.mark.parametrize(("task", "stored"), [("dsprites_orientation", 40), ("dsprites_x_position", 32)])
def test_dsprites_merges_neighbouring_labels_evenly(task, stored):
    record = VTAB_TASKS[f"vtab/{task}"]
    labels = [int(example_label({record.label: tf.constant(value)}, record)) for value in range(stored)]
    assert labels == [int(value // (stored / 16)) for value in range(stored)]


def labelled(folder, **splits):
    """A prepared set whose splits have these labels."""

    def features(kinds):
        return {"image": kinds.Image(shape=(None, None, 3)), "label": kinds.ClassLabel(names=NAMES[:2])}

    def example(split, number, label):
        return {"image": picture(9, 11, seed=[len(split), number]), "label": label}

    examples = {
        split: {number: example(split, number, label) for number, label in enumerate(labels)}
        for split, labels in splits.items()
    }
    return prepare_set(folder, examples, features).data_path


KNOWN, HIDDEN = [0, 1] * 10, [-1] * 6


@pytest.mark.parametrize("name", ["val", "valid", "dev", "validation"])
def test_validation_split_may_have_any_name_that_folders_take(tmp_path, name):
    source = open_source(labelled(tmp_path, train=KNOWN, test=[0, 1, 1], **{name: [1, 0]}))
    assert source.describe()["splits"] == {"train": "train", "validation": name, "test": "test"}
    assert source.sizes == {"train": 20, "validation": 2, "test": 3}


def test_split_without_labels_is_left_out_with_a_warning(tmp_path):
    path = labelled(tmp_path, train=KNOWN, validation=[0, 1, 1, 0], test=HIDDEN)
    with pytest.warns(UserWarning, match="'test' of leaves has no labels, but -1"):
        source = open_source(path)
    assert source.sizes == {"train": 18, "validation": 2, "test": 4}
    assert [source.own_name(split) for split in source.sizes] == ["train[:90%]", "train[90%:]", "validation"]
    source.check_labels()
    with pytest.warns(UserWarning, match="'train'"), pytest.raises(ValueError, match="`train` with labels"):
        open_source(labelled(tmp_path / "all", train=HIDDEN))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_some_hidden_labels_are_refused_before_a_run(tmp_path, split):
    labels = {"train": KNOWN, "validation": [0, 1, 1], "test": [1, 0, 1]}
    path = labelled(tmp_path, **labels | {split: [*labels[split], -1, -1]})
    with pytest.raises(ValueError, match=rf"hidden label(?s:.*)2 other label\(s\) in the split '{split}'.*-1"):
        open_source(path).check_labels()
    lines = []
    with pytest.raises(ValueError, match="hidden label"):
        keras_vit.finetune(str(path), tmp_path / "run", epochs=1, print_fn=lines.append)
    assert [line for line in lines if line.startswith("model")] == []
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["WEBP", "BMP"])
def test_files_that_pillow_decodes_are_read_from_a_set(tmp_path, kind):
    pixels = [picture(9, 11, seed=number) for number in range(10)]
    for number, each in enumerate(pixels):
        (tmp_path / f"{number}").write_bytes(encoded(each, kind, **{"lossless": True} if kind == "WEBP" else {}))
    path = prepare_set(
        tmp_path / "set",
        {"train": {number: {"image": str(tmp_path / f"{number}"), "label": number % 2} for number in range(10)}},
        lambda kinds: {"image": kinds.Image(shape=(None, None, 3)), "label": kinds.ClassLabel(names=NAMES[:2])},
    ).data_path
    found = open_source(path).split("train").sample(8)
    assert all(any((each == other).all() for other in pixels) for each in found)
