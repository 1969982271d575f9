"""What happens to one image after its crop: shift, turn, zoom, flip and erasing."""

import math
import re

import numpy as np
import pytest
import tensorflow as tf
from scipy import ndimage

from keras_vit.data.augmentation import Augmentation, augment_image
from keras_vit.data.augmentation.randaugment import rotation_matrix, warp

SIZE = (29, 43)
PLAIN = {"crop": "none", "flip": False}


@pytest.fixture
def pixels():
    return np.random.default_rng(3).uniform(1, 255, (*SIZE, 3)).astype("float32")


def many(pixels, record, draws=400):
    seeds = tf.stack([tf.range(draws), tf.fill(draws, 5)], axis=1)
    change = tf.function(lambda seed: augment_image(pixels, record, SIZE, seed))
    return tf.map_fn(change, seeds, fn_output_signature=tf.float32).numpy()


def test_record_without_changes_gives_the_image_itself(pixels):
    image = augment_image(pixels, Augmentation(**PLAIN), SIZE, tf.constant([0, 0]))
    np.testing.assert_array_equal(image, pixels)


def test_half_of_the_images_are_mirrored_left_to_right_and_no_more(pixels):
    images = many(pixels, Augmentation(crop="none", flip=True))
    mirrored = [np.array_equal(image, pixels[:, ::-1]) for image in images]
    assert all(m or np.array_equal(image, pixels) for m, image in zip(mirrored, images, strict=True))
    assert abs(np.mean(mirrored) - 0.5) < 4 * 0.5 / math.sqrt(400)  # four deviations


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_channels_pass_through_what_changes_no_colours(channels):
    pixels = np.random.default_rng(3).uniform(0, 255, (*SIZE, channels)).astype("float32")
    record = Augmentation(affine=(0.1, 0.1, 0.1), erasing_probability=0.5)
    image = augment_image(pixels, record, (11, 13), tf.constant([0, 0]))
    assert image.shape == (11, 13, channels)
    assert np.isfinite(image).all()


def test_grey_is_changed_as_grey_in_three_channels():
    grey = np.random.default_rng(3).integers(0, 256, (*SIZE, 1), dtype="uint8")
    record = Augmentation(randaugment_layers=3, randaugment_magnitude=7)
    for draw in range(20):
        one, three = (
            augment_image(pixels, record, SIZE, tf.constant([draw, 0])) for pixels in (grey, np.repeat(grey, 3, -1))
        )
        np.testing.assert_array_equal(np.repeat(one, 3, axis=-1), three)


@pytest.mark.parametrize(
    ("shape", "record"), [((5, 4, 2), Augmentation(randaugment_layers=1)), ((2, 5, 4, 3), Augmentation())]
)
def test_two_channels_of_randaugment_and_a_batch_are_refused(shape, record):
    with pytest.raises(ValueError, match=re.escape(str(shape))):
        augment_image(np.zeros(shape), record, SIZE, tf.constant([0, 0]))


def test_size_unknown_before_the_graph_runs_is_taken(pixels):
    change = tf.function(
        lambda image, seed: augment_image(image, Augmentation(), (11, 13), seed),
        input_signature=[tf.TensorSpec((None, None, 3)), tf.TensorSpec((2,), tf.int64)],
    )
    assert change(pixels, [1, 2]).shape == (11, 13, 3)


@pytest.mark.parametrize("interpolation", ["BILINEAR", "NEAREST"])
def test_warp_reads_where_scipy_reads(pixels, interpolation):
    rows, shift = [[1.1, 0.23], [-0.31, 0.87]], (1.7, -2.4)
    middle = (np.array(SIZE) - 1) / 2
    offset = middle - np.array(rows) @ middle + shift
    order = 1 if interpolation == "BILINEAR" else 0
    read = {"order": order, "mode": "grid-constant", "cval": 9}
    expected = [
        ndimage.affine_transform(np.float64(channel), rows, offset, **read) for channel in pixels.transpose(2, 0, 1)
    ]
    result = warp(pixels, rows, shift, interpolation, 9.0).numpy()
    close = np.abs(result - np.stack(expected, -1)) < 5e-3  # float32 places: 1e-5 of a pixel, times 255
    assert close.mean() == 1 if order else close.mean() > 0.995  # at halves the nearest is either


def test_quarter_turn_is_exact(pixels):
    square = pixels[:, :29]
    turned = warp(square, rotation_matrix(math.pi / 2), (0.0, 0.0), "BILINEAR", 0.0)
    expected = np.rot90(square)  # counter-clockwise
    np.testing.assert_allclose(turned, expected, atol=5e-2)  # float32 of the cosine: 4e-8 times 40 pixels times 255


def centre_of_mass(images):
    total = images.sum((1, 2))
    rows, columns = np.arange(SIZE[0]), np.arange(SIZE[1])
    return (images.sum(2) * rows).sum(1) / total, (images.sum(1) * columns).sum(1) / total


def blob():
    rows, columns = np.meshgrid(np.arange(SIZE[0]) - 14, np.arange(SIZE[1]) - 21, indexing="ij")
    return (200 * np.exp(-(rows**2 + columns**2) / 8.0)).astype("float32")[..., None]


def test_shift_reaches_its_part_of_each_side_in_both_directions():
    images = many(blob(), Augmentation(**PLAIN, affine=(0.1, 0, 0)))[..., 0]
    for moved, middle, side in zip(centre_of_mass(images), (14, 21), SIZE, strict=True):
        moved = moved - middle
        assert -0.1 * side - 0.05 < moved.min() < -0.095 * side  # bilinear interpolation keeps the centre to 0.05
        assert 0.095 * side < moved.max() < 0.1 * side + 0.05


def test_turn_and_zoom_keep_the_middle_and_reach_their_bounds():
    spot = np.zeros((*SIZE, 1), "float32")
    spot[14, 31:34] = 200  # eleven pixels right of the middle
    middle = (14, 21)
    for affine, name in (((0, 0.05, 0), "turn"), ((0, 0, 0.2), "zoom")):
        y, x = (
            c - m
            for c, m in zip(
                centre_of_mass(many(spot, Augmentation(**PLAIN, affine=affine))[..., 0]), middle, strict=True
            )
        )
        angles, lengths = np.arctan2(y, x) / (2 * math.pi), np.hypot(y, x) / 11
        if name == "turn":
            assert abs(lengths - 1).max() < 0.03  # of interpolation, seen
            assert -0.052 < angles.min() < -0.045
            assert 0.045 < angles.max() < 0.052
        else:
            assert 1 / 1.2 - 0.03 < lengths.min() < 1 / 1.2 + 0.03
            assert 1 / 0.8 - 0.05 < lengths.max() < 1 / 0.8 + 0.03


def changed_rectangle(image, pixels):
    """Height and width of the changed part, which must fill its bounding box; (0, 0) if nothing changed."""
    changed = (image != pixels).any(-1)
    if not changed.any():
        return 0, 0
    rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
    height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    assert changed.sum() == height * width
    return height, width


def test_erasing_fills_one_rectangle_of_published_area_and_aspect(pixels):
    images = many(pixels, Augmentation(**PLAIN, erasing_probability=1.0))
    height, width = np.array([changed_rectangle(image, pixels) for image in images]).T
    # Sides are rounded to whole pixels: half a pixel of each.
    assert ((height + 0.5) * (width + 0.5)).min() > 0.02 * 29 * 43
    assert ((height - 0.5) * (width - 0.5)).max() < 0.4 * 29 * 43
    assert ((height - 0.5) / (width + 0.5)).max() < 1 / 0.3
    assert ((height + 0.5) / (width - 0.5)).min() > 0.3
    assert (height * width).max() > 0.35 * 29 * 43
    assert width.max() > 29  # more than any height can be


def test_erasing_noise_is_even_over_all_grey_levels(pixels):
    images = many(pixels, Augmentation(**PLAIN, erasing_probability=1.0), draws=100)
    noise = np.concatenate([image[image != pixels] for image in images])
    assert (noise == np.floor(noise)).all()
    assert (noise.min(), noise.max()) == (0, 255)
    assert abs(noise.mean() - 127.5) < 4 * 73.9 / math.sqrt(len(noise))  # four deviations


def test_erasing_happens_with_its_probability(pixels):
    images = many(pixels, Augmentation(**PLAIN, erasing_probability=0.25))
    share = np.mean([not np.array_equal(image, pixels) for image in images])
    assert abs(share - 0.25) < 4 * math.sqrt(0.25 * 0.75 / 400)
