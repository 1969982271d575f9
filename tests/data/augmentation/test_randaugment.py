"""Every operation of RandAugment against Pillow, or a computation by hand where Pillow has none."""

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats

from keras_vit.data.augmentation import Augmentation, augment_image
from keras_vit.data.augmentation.randaugment import OPERATIONS, apply_operation, randaugment

MAGNITUDES = (0, 3, 10, 15, 20)
HEIGHT, WIDTH = 224, 251  # lengths in pixels are those of a shorter side of 224


def picture(height=HEIGHT, width=WIDTH, seed=4):
    """Patches of colour with noise, not over the whole range, in other bounds for each channel."""
    rng = np.random.default_rng(seed)
    patches = rng.uniform(30, 200, (height // 16 + 1, width // 16 + 1, 3)).repeat(16, 0).repeat(16, 1)
    values = patches[:height, :width] + rng.normal(0, 15, (height, width, 3))
    return np.clip(values, (3, 12, 0), (240, 200, 220)).astype("uint8")


def apply(name, image, magnitude, draw=0):
    record = Augmentation(randaugment_layers=1, randaugment_magnitude=magnitude)
    index = list(OPERATIONS).index(name)
    return apply_operation(tf.constant(image), tf.constant(index), record, tf.constant([draw, 0])).numpy()


def pillow(function, image, *arguments):
    return np.asarray(function(Image.fromarray(image), *arguments))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["autocontrast", "equalize", "invert"])
def test_operation_without_strength_is_pillows(name, seed):
    image = picture(37, 53, seed)
    np.testing.assert_array_equal(apply(name, image, 5), pillow(getattr(ImageOps, name), image))


@pytest.mark.parametrize("name", ["autocontrast", "equalize"])
def test_channel_of_one_level_stays(name):
    image = picture(37, 53)
    image[..., 1] = 77
    np.testing.assert_array_equal(apply(name, image, 5), pillow(getattr(ImageOps, name), image))


@pytest.mark.parametrize(("magnitude", "bits"), [(0, 1), (3, 1), (10, 4), (15, 6), (20, 8)])
def test_posterize_keeps_the_bits_of_the_official_scale(magnitude, bits):
    image = picture(37, 53)
    np.testing.assert_array_equal(apply("posterize", image, magnitude), pillow(ImageOps.posterize, image, bits))


@pytest.mark.parametrize(("magnitude", "threshold"), [(0, 0), (3, 76), (10, 256), (20, 512)])
def test_solarize_inverts_from_the_threshold_of_the_official_scale(magnitude, threshold):
    image = picture(37, 53)
    np.testing.assert_array_equal(apply("solarize", image, magnitude), pillow(ImageOps.solarize, image, threshold))


@pytest.mark.parametrize(("magnitude", "addition"), [(0, 0), (3, 33), (10, 110), (20, 220)])
def test_solarize_add_lightens_the_darker_half(magnitude, addition):
    image = picture(37, 53)
    expected = np.where(image < 128, np.minimum(image.astype(int) + addition, 255), image)
    np.testing.assert_array_equal(apply("solarize_add", image, magnitude), expected)


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("name", ["color", "contrast", "brightness", "sharpness"])
def test_enhancement_is_pillows_with_the_official_factor(name, magnitude):
    image = picture(37, 53)
    factor = 0.1 + 1.8 * magnitude / 10
    expected = pillow(lambda i: getattr(ImageEnhance, name.capitalize())(i).enhance(factor), image)
    difference = np.abs(apply(name, image, magnitude).astype(int) - expected)
    # Both cut off fractions of float32, which may fall on either side of a whole number.
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01


def affine(image, rows, corner):
    """Pillow's nearest pixel for places `rows @ (x, y) + corner`, between pixel centres as Pillow counts them."""
    (a, b), (d, e) = rows
    c, f = corner[0] + 0.5 * (1 - a - b), corner[1] + 0.5 * (1 - d - e)
    size = image.shape[1::-1]
    moved = Image.fromarray(image).transform(
        size, Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.NEAREST, fillcolor=(128, 128, 128)
    )
    return np.asarray(moved)


def moved_by(name, image, amount):
    if name == "rotate":
        cos, sin = np.cos(np.radians(30 * amount)), np.sin(np.radians(30 * amount))
        middle = (np.array([WIDTH, HEIGHT]) - 1) / 2
        rows = np.array([[cos, -sin], [sin, cos]])
        return affine(image, rows, middle - rows @ middle)
    rows, corner = np.eye(2), np.zeros(2)
    axis = int(name.endswith("y"))
    if name.startswith("shear"):
        rows[axis, 1 - axis] = 0.3 * amount
    else:
        corner[axis] = 100 * amount
    return affine(image, rows, corner)


# Magnitudes at which no place is half-way between two pixels, where either is the nearest.
@pytest.mark.parametrize(
    "magnitude", [3.7, 20, *(pytest.param(magnitude, marks=pytest.mark.nightly) for magnitude in (0, 10.1, 14.9))]
)
@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "translate_x", "translate_y"])
def test_geometry_is_pillows_in_both_directions(name, magnitude):
    image, seen = picture(), set()
    candidates = {sign: moved_by(name, image, sign * magnitude / 10) for sign in (-1, 1)}
    for draw in range(12):
        result = apply(name, image, magnitude, draw)
        # float32 places differ by 1e-5 of a pixel: seen in fewer than 0.1 percent of pixels.
        fits = {sign for sign, expected in candidates.items() if (result != expected).any(-1).mean() < 0.005}
        assert fits
        seen |= fits
    assert seen == {-1, 1}


@pytest.mark.parametrize(("magnitude", "half"), [(0, 0), (10, 40), (20, 80)])
def test_cutout_greys_a_square_cut_off_at_the_borders(magnitude, half):
    image, heights = picture(), set()
    for draw in range(40):
        changed = (apply("cutout", image, magnitude, draw) != image).any(-1)
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        # Grey pixels of the image count as unchanged, so some of a row may be missing, but hardly a row.
        np.testing.assert_array_equal(
            apply("cutout", image, magnitude, draw)[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            if half
            else image[:0],
            128,
        )
        heights.add(np.ptp(rows) + 1 if half else 0)
    assert max(heights) == 2 * half
    assert len(heights) > 1 or not half


def test_lengths_grow_with_the_image():
    """A shift of 100 of 224 pixels is one of 50 at 112, and an image of 32 is never shifted out of itself."""
    image = picture(112, 112)
    result = apply("translate_x", image, 10)
    grey = (result == 128).all((0, 2)).sum()
    assert grey == 50
    assert (apply("translate_x", picture(32, 32), 20) != 128).any()


def test_operations_are_drawn_evenly_and_for_each_layer_apart(monkeypatch):
    for number, name in enumerate(list(OPERATIONS)):
        monkeypatch.setitem(OPERATIONS, name, lambda image, strength, seed, number=number: image * 16 + number)
    record = Augmentation(randaugment_layers=2)
    draw = tf.function(lambda seed: randaugment(tf.zeros((1, 1, 1)), record, seed)[0, 0, 0])
    seeds = tf.stack([tf.range(1600), tf.zeros(1600, tf.int32)], axis=1)
    drawn = tf.map_fn(draw, seeds, fn_output_signature=tf.float32).numpy().astype(int)
    layers = drawn // 16, drawn % 16
    for layer in layers:
        assert stats.chisquare(np.bincount(layer, minlength=16)).pvalue > 1e-3  # seeds are fixed: no chance in it
    assert abs(np.corrcoef(*layers)[0, 1]) < 4 / np.sqrt(1600)  # four deviations


def test_layers_take_directions_apart(monkeypatch):
    """Two shifts of either sign cancel out in half of the images."""
    shift = OPERATIONS["translate_x"]
    for name in list(OPERATIONS):
        monkeypatch.setitem(OPERATIONS, name, shift)
    record, image = Augmentation(randaugment_layers=2, randaugment_magnitude=2), picture(64, 64)
    draw = tf.function(lambda seed: randaugment(tf.constant(image, tf.float32), record, seed))
    middle = slice(16, 48)
    back = [
        np.array_equal(draw(tf.constant([number, 0]))[middle, middle], image[middle, middle]) for number in range(200)
    ]
    assert abs(np.mean(back) - 0.5) < 4 * 0.5 / np.sqrt(200)  # four deviations


def test_only_the_drawn_operation_is_computed():
    """Sixteen operations sit in branches of the graph, none of them outside of one."""
    record = Augmentation(crop="none", flip=False, randaugment_layers=1, randaugment_magnitude=5)
    change = tf.function(lambda image, seed: augment_image(image, record, (16, 16), seed))
    graph = change.get_concrete_function(tf.TensorSpec((16, 16, 3)), tf.TensorSpec((2,), tf.int32)).graph
    kinds = {operation.type for operation in graph.get_operations()}
    assert kinds & {"Case", "StatelessCase"}
    assert not kinds & {"ImageProjectiveTransformV3", "DenseBincount", "Cumsum"}


def test_result_is_whole_grey_levels_of_odd_images_at_every_magnitude():
    image = picture(37, 53).astype("float32") + 0.3
    for magnitude in (0, 7.5, 30):
        record = Augmentation(crop="none", randaugment_layers=3, randaugment_magnitude=magnitude)
        for draw in range(20):
            result = augment_image(image, record, (37, 53), tf.constant([draw, 9])).numpy()
            assert (result == np.clip(np.round(result), 0, 255)).all()
