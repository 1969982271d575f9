import dataclasses
import socket

import numpy as np
import pytest
from conftest import numpy

import keras_vit
from keras_vit.preprocessing import Preprocessing, class_labels, decode_predictions, preprocess_input


def pixels(*shape, dtype="uint8"):
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64"])
def test_values_are_those_of_the_official_code(dtype):
    x = pixels(2, 5, 7, 3, dtype=dtype)
    got = preprocess_input(x)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, (x.astype("float64") - 127.5) / 127.5, atol=1e-6)
    assert preprocess_input(np.array([[[0, 255, 255]]], dtype)).tolist() == [[[-1, 1, 1]]]


def test_argument_is_never_changed():
    x = pixels(2, 5, 7, 3, dtype="float32")
    before = x.copy()
    preprocess_input(x)
    np.testing.assert_array_equal(x, before)


def test_record_replaces_mean_and_deviation():
    record = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    x = pixels(1, 2, 3, 3)
    expected = (x / 255 - np.array(record.mean)) / np.array(record.std)
    np.testing.assert_allclose(preprocess_input(x, record), expected, atol=1e-5)
    assert record.value_range == pytest.approx(((0 - 0.485) / 0.229, (1 - 0.406) / 0.225))
    assert Preprocessing().value_range == (-1, 1)


def test_grey_is_repeated_and_alpha_dropped():
    grey = pixels(2, 5, 7, 1)
    np.testing.assert_array_equal(preprocess_input(grey), preprocess_input(np.repeat(grey, 3, axis=-1)))
    rgba = pixels(5, 7, 4)
    np.testing.assert_array_equal(preprocess_input(rgba), preprocess_input(rgba[..., :3]))
    one = Preprocessing(mean=(0.5,), std=(0.5,))
    assert preprocess_input(grey, one).shape == grey.shape


def test_tensors_and_datasets_give_the_same_as_numpy():
    tf = pytest.importorskip("tensorflow")
    x = pixels(4, 5, 7, 3)
    expected = preprocess_input(x)
    np.testing.assert_allclose(numpy(preprocess_input(tf.constant(x))), expected, atol=1e-6)
    dataset = tf.data.Dataset.from_tensor_slices(x).map(preprocess_input).batch(4)
    np.testing.assert_allclose(next(iter(dataset)).numpy(), expected, atol=1e-6)
    assert isinstance(preprocess_input(x.tolist()), np.ndarray)


def test_record_squashes_to_the_size_of_the_model_as_tensorflow_does():
    tf = pytest.importorskip("tensorflow")
    model = keras_vit.build("Ti/16", input_shape=(32, 48, 3))
    x = pixels(2, 50, 60, 3)
    expected = (tf.image.resize(x, (32, 48)).numpy() - 127.5) / 127.5  # bilinear, no antialias: official code
    got = model.preprocessing(x)
    assert isinstance(got, np.ndarray)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    assert model.preprocessing(x[0]).shape == (32, 48, 3)
    assert dataclasses.replace(model.preprocessing, resize="none")(x).shape == x.shape
    assert Preprocessing(image_size=None)(x).shape == x.shape


def test_black_images_and_rounding_errors_of_an_interpolation_are_accepted():
    assert (preprocess_input(np.zeros((1, 5, 7, 3))) == -1).all()
    x = np.linspace(-1e-5, 255.00002, 105).reshape(1, 5, 7, 3)
    np.testing.assert_allclose([preprocess_input(x).min(), preprocess_input(x).max()], [-1, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 5, 7, 2)), r"with 3 channels.*\nReceived: shape \(2, 5, 7, 2\)"),
        (np.zeros((5, 7)), r"Received: shape \(5, 7\)"),
        (np.zeros((1, 1, 5, 7, 3)), "Received: shape"),
        (np.zeros((0, 5, 7, 3)), "must not be empty"),
        (np.full((1, 5, 7, 3), -0.2), "seem scaled already"),
        (np.linspace(-1, 1, 105).reshape(1, 5, 7, 3), "from -1.0 to 1.0"),
        (np.linspace(-2, 200, 105).reshape(1, 5, 7, 3), "from -2.0 to 200.0"),
        (np.full((1, 5, 7, 3), 256), "from 256 to 256"),
        (np.full((1, 5, 7, 3), np.nan), "must be in"),
        (np.full((1, 5, 7, 3), 0.9), "seem scaled already"),
        (np.full((1, 5, 7, 3), "a"), "dtype <U1"),
    ],
)
def test_images_that_are_none_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        preprocess_input(images)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"resize": "stretch"}, ValueError, "`resize` must be one of"),
        ({"mean": (0.5,)}, ValueError, "one value per channel"),
        ({"std": (0.5, 0.5, 0)}, ValueError, "must be positive"),
        ({"image_size": 224}, TypeError, "must be \\(H, W\\)"),
        ({"image_size": (0, 3)}, ValueError, "at least 1"),
    ],
)
def test_record_refuses(fields, error, message):
    with pytest.raises(error, match=message):
        Preprocessing(**fields)


# Spot rows, typed by hand: ImageNet-1k in the order of sorted WordNet ids; ImageNet-21k in Google's order.
@pytest.mark.parametrize(
    ("classes", "index", "wordnet_id", "name"),
    [
        (1000, 0, "n01440764", "tench, Tinca tinca"),
        (1000, 207, "n02099601", "golden retriever"),
        (1000, 999, "n15075141", "toilet tissue, toilet paper, bathroom tissue"),
        (21843, 0, "n00004475", "organism, being"),
        (21843, 21842, "n15102894", "knothole"),
    ],
)
def test_predictions_are_named_without_a_network(monkeypatch, classes, index, wordnet_id, name):
    monkeypatch.setattr(socket, "socket", None)
    class_labels.cache_clear()
    scores = np.linspace(0, 1, classes)[None].repeat(2, axis=0)
    scores[1, index] = 7
    best = decode_predictions(scores, top=3)
    assert best[1][0] == (wordnet_id, name, 7.0)
    assert [score for _, _, score in best[0]] == sorted(scores[0], reverse=True)[:3]


@pytest.mark.parametrize("classes", [1000, 21843])
def test_labels_are_complete_and_unique(classes):
    labels = class_labels(classes)
    assert len(labels) == len({wordnet_id for wordnet_id, _ in labels}) == classes
    assert all(wordnet_id[0] == "n" and len(wordnet_id) == 9 and name for wordnet_id, name in labels)


def test_1k_labels_are_in_the_order_of_wordnet_ids():
    ids = [wordnet_id for wordnet_id, _ in class_labels(1000)]
    assert ids == sorted(ids)


def test_equal_scores_are_said_to_be_in_no_order():
    with pytest.warns(UserWarning, match="has not been trained"):
        decode_predictions(np.zeros((2, 21843)))


@pytest.mark.parametrize(
    ("predictions", "top", "message"),
    [
        (np.zeros((2, 10)), 5, "For your own classes"),
        (np.zeros(1000), 5, r"Received: shape \(1000,\)"),
        (np.full((1, 1000), np.nan), 5, "must be finite"),
        (np.zeros((1, 1000)), 0, "`top` must be at least 1"),
        (np.eye(1, 1000), 1001, "`top` must be at most the number of classes, 1000"),
    ],
)
def test_predictions_that_have_no_names_are_refused(predictions, top, message):
    with pytest.raises(ValueError, match=message):
        decode_predictions(predictions, top)
