"""ReaL: an answer is right if people see it; images that they gave no class are left out."""

import json

import keras
import numpy as np
import pytest
from conftest import make_tiny
from photos import photo
from PIL import Image
from prepared_sets import prepare_set

import keras_vit
from keras_vit.data import Source
from keras_vit.data.splits import ArraySplit, FileSplit
from keras_vit.evaluation.classifier import image_numbers, read_real_labels, real_accuracy

NUMBERS = (7, 2, 50_000, 31, 4)


def written(tmp_path, labels, count=50_000):
    """`real.json` with these classes at these numbers, from 1, and none else."""
    path = tmp_path / "real.json"
    path.write_text(json.dumps([labels.get(number, []) for number in range(1, count + 1)]))
    return path


def split_of(names):
    return FileSplit(tuple(names), np.zeros(len(names), "int64"), np.ones(len(names), "int32"))


def test_accuracy_is_over_images_with_labels():
    labels = [[3], [], [1, 2], [5], [0, 9]]
    found = real_accuracy(np.array([3, 7, 2, 6, 9, 3]), np.array([0, 1, 2, 3, 4, 0]), labels)
    assert found == (5 / 5 * 4 / 5, 5)  # the second has none, the fourth is wrong


def test_numbers_are_those_of_the_names_whatever_the_folder():
    names = ["/a/n01440764/ILSVRC2012_val_00000293.JPEG", "/b/ILSVRC2012_val_00050000.jpg"]
    assert image_numbers(split_of(names)).tolist() == [292, 49_999]


@pytest.mark.parametrize("name", ["cat.jpg", "ILSVRC2012_val_00000000.JPEG", "ILSVRC2012_val_00050001.JPEG"])
def test_other_names_are_refused(name):
    with pytest.raises(ValueError, match=f"'{name}'"):
        image_numbers(split_of(["ILSVRC2012_val_00000293.JPEG", name]))


def test_images_without_names_are_refused():
    with pytest.raises(ValueError, match="without names"):
        image_numbers(ArraySplit(np.zeros((2, 4, 5, 3), "uint8"), np.zeros(2, "int64")))


def test_names_of_tensorflow_datasets_are_its_feature(tmp_path):
    """As `imagenet2012` has them."""

    def images(count):
        for number in range(count):
            name = f"ILSVRC2012_val_{number + 1:08}.JPEG"
            yield name, {"image": np.full((4, 5, 3), number, "uint8"), "label": number, "file_name": name}

    builder = prepare_set(
        tmp_path,
        {"train": dict(images(9)), "validation": dict(images(3))},
        lambda kinds: {
            "image": kinds.Image(),
            "label": kinds.ClassLabel(num_classes=1000),
            "file_name": kinds.Text(),
        },
    )
    split = keras_vit.open_source(builder.data_path).split("test")
    shown = [int(split.pixels(index)[0, 0, 0]) for index in range(3)]  # in the order in which they are read
    assert image_numbers(split).tolist() == shown


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[[1], [2]]", "a list of 2"),
        ("{}", "dict"),
        ("[[1", "JSON"),
        (json.dumps([[0]] * 49_999 + [[1000]]), r"item 49999 is \[1000\]"),
        (json.dumps([[0]] * 49_999 + [3]), "item 49999 is 3"),
        (json.dumps([[True]] + [[0]] * 49_999), r"item 0 is \[True\]"),
    ],
)
def test_file_that_is_no_real_json_is_refused(tmp_path, content, words):
    (tmp_path / "real.json").write_text(content)
    with pytest.raises(ValueError, match=words):
        read_real_labels(tmp_path / "real.json")


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory):
    """A `Source` of five validation images of a thousand classes."""
    folder, rng = tmp_path_factory.mktemp("imagenet"), np.random.default_rng(0)
    paths = [str(folder / f"ILSVRC2012_val_{number:08}.JPEG") for number in NUMBERS]
    for path in paths:
        Image.fromarray(photo("tiles", rng)).save(path)
    split = FileSplit(tuple(paths), np.arange(5, dtype="int64"), np.ones(5, "int32"))
    return Source("imagenet", "folder", tuple(f"c{number}" for number in range(1000)), {"test": split})


def test_evaluation_tells_both_accuracies(imagenet, tmp_path):
    model = make_tiny(classes=1000)
    plain = keras_vit.evaluate(model, imagenet)
    first = plain.predictions.tolist()
    labels = {7: [first[0]], 2: [], 50_000: [(first[2] + 1) % 1000], 31: [1, 2, first[3]], 4: [first[4], 5]}
    found = keras_vit.evaluate(model, imagenet, real_labels=written(tmp_path, labels))
    assert (found.real_accuracy, found.real_count) == (0.75, 4)
    assert found.accuracy == plain.accuracy
    assert plain.real_accuracy is None
    assert found.summary()["real_accuracy"] == 0.75
    assert "real_accuracy" not in plain.summary()


def test_no_image_with_labels_is_refused(imagenet, tmp_path):
    with pytest.raises(ValueError, match="5 image"):
        keras_vit.evaluate(make_tiny(classes=1000), imagenet, real_labels=written(tmp_path, {}))


def test_other_classes_than_those_of_imagenet_are_refused(tmp_path):
    pixels = np.zeros((7, 20, 28, 3), "uint8"), np.arange(7)
    with pytest.raises(ValueError, match="1,000 classes"):
        keras_vit.evaluate(make_tiny(), {"train": pixels, "test": pixels}, real_labels=written(tmp_path, {}))


def test_dataset_without_names_is_refused(tmp_path):
    import tensorflow as tf

    dataset = tf.data.Dataset.from_tensor_slices((keras.ops.zeros((3, 20, 28, 3)), [0, 1, 2])).batch(3)
    with pytest.raises(ValueError, match="without names"):
        keras_vit.evaluate(make_tiny(classes=1000), dataset, real_labels=written(tmp_path, {}))
