import dataclasses
import math
import socket
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import numpy, run_python
from PIL import Image

import keras_vit
from keras_vit.images.preprocessing import Preprocessing, class_labels, decode_predictions, preprocess_input, unscaled

IMAGENET = Preprocessing((32, 32), "crop", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), crop_fraction=0.9)


def pixels(*shape, dtype="uint8"):
    return np.random.default_rng(0).integers(0, 256, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64"])
def test_values_are_those_of_the_official_code(dtype):
    x = pixels(2, 5, 7, 3, dtype=dtype)
    before = x.copy()
    got = preprocess_input(x)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(x, before)  # the argument is never changed
    np.testing.assert_allclose(got, (x.astype("float64") - 127.5) / 127.5, atol=1e-6)
    assert preprocess_input(np.array([[[0, 255, 255]]], dtype)).tolist() == [[[-1, 1, 1]]]


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


def grey_levels(resize, image_size, interpolation="bicubic", antialias=True, crop_fraction=1.0):
    """A record that leaves values in [0, 255]."""
    return Preprocessing(image_size, resize, (0, 0, 0), (1 / 255,) * 3, interpolation, antialias, crop_fraction)


def by_pillow(x, new, kept, interpolation):
    """Resizes and cuts as torchvision's CenterCrop does: bicubic in 8 bits, bilinear the channels as float images."""
    if interpolation == "bicubic":
        columns = Image.fromarray(x).resize((new[1], x.shape[0]), Image.Resampling.BICUBIC)
        both = columns.resize(new[::-1], Image.Resampling.BICUBIC)  # Pillow 13 takes the rows of some images first
        channels = np.moveaxis(np.asarray(both, "float64"), -1, 0)
    else:
        method = Image.Resampling.BILINEAR
        channels = [Image.fromarray(x[..., c].astype("float32")).resize(new[::-1], method) for c in range(3)]
    top, left = (round((whole - side) / 2.0) for whole, side in zip(new, kept, strict=True))
    return np.stack(channels, -1)[top : top + kept[0], left : left + kept[1]].clip(0, 255)


def assert_equals_pillow(got, expected, interpolation):
    """Of 255; float32 positions in front of kernels that are up to 5 pixels wide.

    Pillow's 8-bit weights have 22 bits, so that a half is now and then rounded to the other side, in either pass.
    """
    if interpolation == "bilinear":
        np.testing.assert_allclose(got, expected, atol=5e-3)
        return
    np.testing.assert_allclose(got, expected, atol=2)
    assert np.mean(np.abs(got - expected) > 0.01) < 0.01


# Sizes of torchvision's Resize(int): shorter side as asked, longer side int(size * long / short).
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize(
    ("shape", "side", "fraction", "new"),
    [
        ((61, 97), 32, 0.9, (35, 55)),
        ((97, 61), 33, 0.875, (58, 37)),
        ((29, 23), 48, 1.0, (60, 48)),  # growing
        ((101, 37), 18, 0.95, (49, 18)),  # the margin of 31 halves to 15.5, cut at 16
        ((40, 40), 40, 1.0, (40, 40)),
    ],
)
def test_crop_is_pillows_resize_and_torchvisions_centre(shape, side, fraction, new, interpolation):
    x = pixels(*shape, 3)
    got = grey_levels("crop", (side, side), interpolation, crop_fraction=fraction)(x)
    assert_equals_pillow(got, by_pillow(x, new, (side, side), interpolation), interpolation)


def test_crop_to_a_rectangle_covers_it():
    x = pixels(2, 50, 90, 3)
    got = grey_levels("crop", (20, 25), crop_fraction=0.8)(x)  # covers (25, 31): rows decide
    assert_equals_pillow(got[1], by_pillow(x[1], (25, 45), (20, 25), "bicubic"), "bicubic")
    tall = grey_levels("crop", (20, 25), crop_fraction=0.8)(x.transpose(0, 2, 1, 3))  # columns decide
    expected = by_pillow(np.ascontiguousarray(x[1].swapaxes(0, 1)), (56, 31), (20, 25), "bicubic")  # ResizeKeepRatio
    assert_equals_pillow(tall[1], expected, "bicubic")


def sharp_images():
    """Stripes, a diagonal, text-like dots and noise in black and white, where bicubic overshoots in both passes."""
    rng, rows, columns = np.random.default_rng(0), np.arange(101)[:, None], np.arange(139)[None]
    shapes = [columns // 3 % 2 + 0 * rows, (rows + columns) // 4 % 2, rng.random((101, 139)) > 0.9]
    shapes.append(rng.integers(0, 2, (101, 139)))
    return [np.repeat(shape.astype("uint8")[..., None] * 255, 3, axis=2) for shape in shapes]


@pytest.mark.parametrize("size", [(75, 75), (32, 44), (160, 210)])
def test_bicubic_of_black_and_white_is_what_8_bit_pillow_makes_of_it(size):
    for x in sharp_images():
        got = grey_levels("squash", size)(x)
        assert_equals_pillow(got, by_pillow(x, size, size, "bicubic"), "bicubic")


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_squash_with_antialias_is_pillows_resize(interpolation):
    x = pixels(61, 97, 3)
    got = grey_levels("squash", (32, 45), interpolation)(x)
    assert_equals_pillow(got, by_pillow(x, (32, 45), (32, 45), interpolation), interpolation)


def test_squash_is_bitwise_what_keras_resizes():
    x = pixels(2, 50, 60, 3)
    expected = keras.ops.image.resize(preprocess_input(x), (32, 48), "bilinear", data_format="channels_last")
    np.testing.assert_array_equal(Preprocessing((32, 48))(x), numpy(expected))


@pytest.mark.parametrize("resize", ["squash", "crop"])
def test_constant_images_of_any_size_stay_constant(resize):
    record = Preprocessing((15, 22), resize, interpolation="bicubic", antialias=True, crop_fraction=0.9)
    for shape in [(1, 300), (300, 1), (1, 1), (2, 3), (224, 224), (640, 37)]:
        got = record(np.full((*shape, 3), 51, "uint8"))
        assert got.shape == (15, 22, 3)
        np.testing.assert_allclose(got, -0.6, atol=2e-6)


def test_bicubic_stays_within_black_and_white():
    record = dataclasses.replace(IMAGENET, image_size=(31, 37), interpolation="bicubic")
    x = (pixels(1, 12, 17, 3) > 127) * np.uint8(255)
    low, high = record.value_range
    assert low <= record(x).min()
    assert record(x).max() <= high


@pytest.mark.parametrize("resize", ["squash", "crop"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_dataset_of_unknown_sizes_equals_numpy(resize, interpolation):
    tf = pytest.importorskip("tensorflow")
    record = Preprocessing((20, 28), resize, interpolation=interpolation, antialias=True, crop_fraction=0.9)
    images = [pixels(*shape, 3) for shape in [(31, 47), (47, 31), (9, 50)]]
    spec = tf.TensorSpec((None, None, 3), "uint8")  # as decode_jpeg gives
    dataset = tf.data.Dataset.from_generator(lambda: iter(images), output_signature=spec).map(record)
    assert dataset.element_spec.shape == (20, 28, 3)
    got = next(iter(dataset.batch(3))).numpy()
    np.testing.assert_allclose(got, [record(image) for image in images], atol=1e-5)
    half_known = tf.data.Dataset.from_tensors(images[0][None])
    half_known = half_known.map(lambda x: tf.ensure_shape(tf.identity(x), (None, 31, None, 3))).map(record)
    np.testing.assert_allclose(next(iter(half_known)).numpy()[0], got[0], atol=1e-5)


def test_lists_tensors_and_batches_are_cropped_alike():
    tf = pytest.importorskip("tensorflow")
    x = pixels(2, 31, 47, 3)
    record = grey_levels("crop", (20, 28), crop_fraction=0.9)
    expected = np.stack([record(image) for image in x])
    for same in (x, x.tolist(), tf.constant(x)):
        np.testing.assert_array_equal(numpy(record(same)), expected)
    np.testing.assert_allclose(record(x.astype("float64")), expected, atol=1.1)  # floats are not rounded to grey levels
    assert isinstance(record(tf.constant(x)), tf.Tensor)


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("arguments", [("crop", (20, 28)), ("squash", (20, 28)), ("crop", (28, 20), "area")])
def test_large_images_are_resized_a_strip_at_a_time_to_the_same_values(monkeypatch, arguments, dtype):
    x, record = pixels(2, 47, 61, 3).astype(dtype), dataclasses.replace(grey_levels(*arguments), crop_fraction=0.9)
    whole = record(x), record(x[0, ..., :1])
    monkeypatch.setattr("keras_vit.images.preprocessing._LARGE", 5 * x[0, 0].size)  # numbers; two rows of both images
    for found, expected in zip((record(x), record(x[0, ..., :1])), whole, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)
    with pytest.raises(ValueError, match="NaN"):
        record(np.full_like(x, np.nan, "float32"))
    with pytest.raises(ValueError, match="shape"):
        record(x[0, ..., 0])


def test_record_is_imported_and_scales_numpy_without_keras():
    code = (
        "import sys, types, numpy; package = types.ModuleType('keras_vit'); package.__path__ = [sys.argv[1]]\n"
        "sys.modules['keras_vit'] = package\n"
        "from keras_vit.images.preprocessing import Preprocessing\n"
        "Preprocessing()(numpy.zeros((224, 224, 3)))\n"
        "print([name for name in ('keras', 'tensorflow', 'jax') if name in sys.modules])"
    )
    assert run_python(code, keras_vit.__path__[0]) == "[]\n"


def test_records_of_other_channels_repeat_or_average():
    five = IMAGENET.with_channels(5)
    assert five.mean == (0.485, 0.456, 0.406, 0.485, 0.456)
    assert five.std == (0.229, 0.224, 0.225, 0.229, 0.224)
    assert IMAGENET.with_channels(1).mean == (pytest.approx(1.347 / 3),)
    assert IMAGENET.with_channels(1).std == (pytest.approx(0.678 / 3),)
    assert IMAGENET.with_channels(3) is IMAGENET
    for channels in (1, 4, 13):
        half = dataclasses.replace(IMAGENET, mean=(0.5,) * 3, std=(0.5,) * 3).with_channels(channels)
        assert half.mean == half.std == (0.5,) * channels
        assert half(pixels(40, 50, channels)).shape == (32, 32, channels)
    with pytest.raises(ValueError, match="channels=0"):
        IMAGENET.with_channels(0)


def test_black_images_and_rounding_errors_of_an_interpolation_are_accepted():
    assert (preprocess_input(np.zeros((1, 5, 7, 3))) == -1).all()
    x = np.linspace(-1e-5, 255.00002, 105).reshape(1, 5, 7, 3)
    np.testing.assert_allclose([preprocess_input(x).min(), preprocess_input(x).max()], [-1, 1], atol=1e-6)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 5, 7, 2)), r"\(2, 5, 7, 2\)"),
        (np.zeros((5, 7)), r"\(5, 7\)"),
        (np.zeros((1, 1, 5, 7, 3)), "1, 1, 5, 7, 3"),
        (np.zeros((0, 5, 7, 3)), "empty"),
        (np.full((1, 5, 7, 3), -0.2), "scaled already"),
        (np.linspace(-1, 1, 105).reshape(1, 5, 7, 3), "from -1.0 to 1.0"),
        (np.linspace(-2, 200, 105).reshape(1, 5, 7, 3), "from -2.0 to 200.0"),
        (np.full((1, 5, 7, 3), 256), "from 256 to 256"),
        (np.where(np.arange(105) == 9, np.nan, 200.0).reshape(1, 5, 7, 3), "NaN"),
        (np.full((1, 5, 7, 3), 0.9), "scaled already"),
        ([pixels(5, 7, 3), pixels(7, 5, 3)], r"2 images, \(5, 7, 3\), \(7, 5, 3\)"),
        ([pixels(5, 7, 3)] * 3 + [pixels(5, 7)], "4 images"),
    ],
)
def test_images_that_are_none_are_refused(images, message):
    for prepare in (preprocess_input, Preprocessing((4, 6))):
        with pytest.raises(ValueError, match=message):
            prepare(images)


NO_PIXELS = ["photo.jpg", Path("photo.jpg"), b"photo.jpg", ["photo.jpg", "other.jpg"], [Path("photo.jpg")]]
NO_PIXELS += [np.array("photo.jpg"), None, 3, Image.new("RGB", (7, 5))]


@pytest.mark.parametrize("images", NO_PIXELS, ids=lambda images: type(images).__name__)
def test_what_is_no_pixels_is_refused_with_the_way_to_read_them(images):
    for prepare in (preprocess_input, Preprocessing((4, 6))):
        with pytest.raises(TypeError, match="read_image"):
            prepare(images)


def test_tensor_of_paths_is_refused_in_a_pipeline_too():
    tf = pytest.importorskip("tensorflow")
    with pytest.raises(TypeError, match="read_image"):
        tf.data.Dataset.from_tensor_slices(["photo.jpg"]).map(preprocess_input)
    with pytest.raises(TypeError, match="dtype bool"):
        preprocess_input(np.ones((5, 7, 3), bool))


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"resize": "stretch"}, ValueError, "resize=.stretch"),
        ({"mean": (0.5,)}, ValueError, "`mean`"),
        ({"std": (0.5, 0.5, 0)}, ValueError, "`std`"),
        ({"std": (0.5, 0.5, math.nan)}, ValueError, "nan"),
        ({"std": (0.5, 0.5, 1e-300)}, ValueError, "1e-300"),
        ({"mean": (0.5, 0.5, math.inf)}, ValueError, "inf"),
        ({"mean": (0.5, 0.5, "a")}, TypeError, "`mean`"),
        ({"mean": None}, TypeError, "mean=None"),
        ({"image_size": 224}, TypeError, "image_size=224"),
        ({"image_size": (0, 3)}, ValueError, "image_size"),
        ({"interpolation": "cubic"}, ValueError, "'bicubic'"),
        ({"antialias": 1}, TypeError, "antialias=1"),
        ({"crop_fraction": "0.9"}, TypeError, "`crop_fraction`"),
        ({"crop_fraction": 0.0}, ValueError, "crop_fraction=0.0"),
        ({"crop_fraction": 1.01}, ValueError, "crop_fraction=1.01"),
        ({"crop_fraction": math.nan}, ValueError, "crop_fraction=nan"),
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
    assert classes != 1000 or list(labels) == sorted(labels)  # in the order of WordNet ids


def test_names_must_have_an_order():
    scores = np.eye(2, 2)
    by_number = decode_predictions(scores, 1, class_names={1: "okapi", 0: "gnu"})
    assert [row[0][1] for row in by_number] == ["gnu", "okapi"]
    for names in (
        {"gnu", "okapi"},
        frozenset({"gnu", "okapi"}),
        {"gnu": 0, "okapi": 1},
        {1: "gnu", 2: "okapi"},
        "ab",
        object(),
    ):
        with pytest.raises(TypeError, match="in the order of the scores"):
            decode_predictions(scores, 1, class_names=names)


@pytest.mark.parametrize(("classes", "count"), [(3, 3), (5, 5), (7, 5)])
def test_by_default_five_classes_are_named_or_all_of_fewer(classes, count):
    names = [f"class {number}" for number in range(classes)]
    assert [len(row) for row in decode_predictions(np.eye(2, classes), class_names=names)] == [count] * 2
    with pytest.raises(ValueError, match=f"at most the number of classes, {classes}"):
        decode_predictions(np.eye(2, classes), classes + 1, names)


def test_equal_scores_are_said_to_be_in_no_order():
    with pytest.warns(UserWarning, match="not been trained"):
        decode_predictions(np.zeros((2, 21843)))


@pytest.mark.parametrize(
    ("predictions", "top", "message"),
    [
        (np.zeros((2, 10)), 5, "10"),
        (np.zeros(1000), 5, r"\(1000,\)"),
        (np.full((1, 1000), np.nan), 5, "finite"),
        (np.zeros((1, 1000)), 0, "top=0"),
        (np.eye(1, 1000), 1001, "top=1001"),
    ],
)
def test_predictions_that_have_no_names_are_refused(predictions, top, message):
    with pytest.raises(ValueError, match=message):
        decode_predictions(predictions, top)


def test_unscaled_pixels_are_those_that_were_scaled():
    record = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), image_size=None)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3))
    np.testing.assert_allclose(unscaled(record(pixels), record), pixels, atol=2e-5)  # float32 of numbers up to 255
    tensor = keras.ops.convert_to_tensor(record(pixels))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(unscaled(tensor, record)), pixels, atol=2e-5)


def test_tensor_of_unknown_axes_says_how_a_file_is_decoded():
    """As `tf.io.decode_image` gives it, which may be an animation."""
    import tensorflow as tf

    for record in (Preprocessing(), Preprocessing(image_size=None), Preprocessing(resize="crop")):
        for prepare in (record, lambda images, record=record: preprocess_input(images, record)):
            with pytest.raises(ValueError, match="expand_animations=False"):
                tf.function(prepare, input_signature=[tf.TensorSpec(None, tf.uint8)]).get_concrete_function()
