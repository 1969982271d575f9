"""Area averages and rounding rules of big_vision, transformers and timm, against their own words in TensorFlow."""

import dataclasses
import fractions

import numpy as np
import pytest
from test_preprocessing import grey_levels, pixels

from keras_vit.data.prepare import prepare, tensorflow_ops
from keras_vit.exporting.serving_inputs import prepare_stored
from keras_vit.images.resizing import covering_size
from keras_vit.weights.registry.record import read_records

tf = pytest.importorskip("tensorflow")
# Landscape, portrait, square; larger and smaller than what they become; odd, and 333 * (256 / 222) is 384.
SHAPES = [(222, 333), (61, 97), (97, 61), (64, 64), (23, 31), (300, 40)]


def big_vision(x, resized, size):
    """`resize_small(resized)|central_crop(size)` as in `pp/ops_image.py`: before and after its cast to uint8."""
    height, width = x.shape[:2]
    factor = tf.cast(resized, tf.float32) / tf.cast(min(height, width), tf.float32)
    new = [int(tf.round(tf.cast(side, tf.float32) * factor)) for side in (height, width)]
    floats = tf.image.resize(x, new, method="area", antialias=False)
    top, left = (new[0] - size) // 2, (new[1] - size) // 2
    floats = tf.image.crop_to_bounding_box(floats, top, left, size, size)
    return floats.numpy(), tf.cast(tf.clip_by_value(floats, 0, 255), tf.uint8).numpy()


def record(resized=32, size=28):
    whole = grey_levels("crop", (size, size), "area", crop_fraction=size / resized)
    return dataclasses.replace(whole, rounding="big_vision")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("resized", "size"), [(32, 28), (256, 224), (37, 36)])
def test_area_crop_is_big_visions(shape, resized, size):
    x = pixels(*shape, 3)
    floats, levels = big_vision(x, resized, size)
    got = record(resized, size)(x.astype("float32"))
    # TensorFlow adds up areas in float32 and does not divide by their sum: up to .02 of white seen.
    np.testing.assert_allclose(got, floats, atol=0.04)
    cut = record(resized, size)(x)
    np.testing.assert_array_equal(cut, cut.astype("uint8"))
    assert np.mean(cut != levels) < 0.01  # but for what float32 puts on the other side of a whole number
    np.testing.assert_allclose(cut, levels, atol=1)


@pytest.mark.parametrize("shape", SHAPES)
def test_pipeline_and_exported_graph_average_the_same_areas(shape):
    x = pixels(*shape, 3)
    expected = record()(x)
    unknown = tf.function(lambda x: prepare(x, record()), input_signature=[tf.TensorSpec((None, None, 3), tf.uint8)])
    np.testing.assert_allclose(unknown(x), expected, atol=1e-3)
    np.testing.assert_allclose(prepare_stored(tf.constant(x), tf.constant(1), record()), expected, atol=1e-3)
    turned = tf.constant(np.ascontiguousarray(np.rot90(x, 1)))  # as EXIF's 6 has it
    np.testing.assert_allclose(prepare_stored(turned, tf.constant(6), record()), expected, atol=1e-3)


@pytest.mark.parametrize("size", [(20, 45), (61, 97), (70, 130)])
def test_squashed_area_is_tensorflows(size):
    x = pixels(61, 97, 3)
    got = grey_levels("squash", size, "area")(x)
    np.testing.assert_allclose(got, tf.image.resize(x, size, method="area"), atol=0.04)
    np.testing.assert_allclose(prepare(tf.constant(x), grey_levels("squash", size, "area")), got, atol=1e-3)


def test_white_stays_white_where_levels_are_cut():
    for shape in SHAPES:
        assert (record()(np.full((*shape, 3), 255, "uint8")) == 255).all()


@pytest.mark.parametrize(
    "found",
    [row for row in read_records("vit.csv") if row.name.startswith("big_vision-imagenet2012")],
    ids=lambda row: row.name,
)
def test_records_of_big_vision_prepare_as_its_evaluation(found):
    x = pixels(333, 500, 3)
    _, levels = big_vision(x, 256, 224)
    got = found.preprocessing(x) * 127.5 + 127.5
    assert np.abs(got - levels).mean() < 0.01  # of a triangle filter 5.5


def test_longer_side_is_rounded_as_each_software_does():
    rules = {"timm": (32, 46), "transformers": (32, 46), "big_vision": (32, 47)}
    for rounding, size in rules.items():
        found = dataclasses.replace(grey_levels("crop", (32, 32)), rounding=rounding)
        assert covering_size((75, 109), found, np) == size  # 46.506
        in_graph = covering_size(tuple(map(tf.constant, (75, 109))), found, tensorflow_ops())
        assert tuple(map(int, in_graph)) == size
        assert found(pixels(75, 109, 3)).shape == (32, 32, 3)


def test_rectangle_is_covered_as_timms_resize_keep_ratio_does():
    found = grey_levels("crop", (20, 28))
    for old in [(h, w) for h in range(19, 60, 7) for w in range(19, 80, 3)]:
        ratio = min(fractions.Fraction(old[0], 20), fractions.Fraction(old[1], 28))
        expected = tuple(round(side / ratio) for side in old)
        assert covering_size(old, found, np) == expected
        in_graph = covering_size(tuple(map(tf.constant, old)), found, tensorflow_ops())
        assert tuple(map(int, in_graph)) == expected


@pytest.mark.parametrize(("rounding", "first"), [("timm", 14), ("transformers", 13), ("big_vision", 13)])
def test_margin_of_an_odd_number_is_halved_as_each_software_does(rounding, first):
    x = pixels(20, 47, 3)  # the margin of 27 halves to 13.5
    found = dataclasses.replace(grey_levels("crop", (20, 20)), rounding=rounding)
    np.testing.assert_allclose(found(x), x[:, first : first + 20], atol=1e-3)
