"""Random windows: their bounds over many draws, and that the whole way through equals window and resize apart."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.augmentation import Augmentation, augment_image, crop_window

DRAWS = 1000
HEIGHT, WIDTH = 331, 487
CROPS = ("inception", "resize_crop", "resmall_crop", "none")


def windows(record, height=HEIGHT, width=WIDTH):
    """`(DRAWS, 4)`: y, x, h, w."""
    seeds = tf.stack([tf.range(DRAWS), tf.fill(DRAWS, 3)], axis=1)
    draw = tf.function(lambda seed: tf.stack(crop_window(height, width, record, seed)))
    return tf.map_fn(draw, seeds).numpy()


def resize_matrix(old, new):
    """`(new, old)`, bilinear between pixel centres, in float64."""
    positions = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(0, 1 - np.abs(positions[:, None] - np.arange(old)))


def resize(pixels, height, width):
    rows, columns = resize_matrix(pixels.shape[0], height), resize_matrix(pixels.shape[1], width)
    return np.einsum("hwc,uh,vw->uvc", pixels.astype("float64"), rows, columns)


@pytest.fixture
def pixels():
    return np.random.default_rng(2).integers(0, 256, (37, 53, 3), dtype="uint8")


def test_inception_window_keeps_area_and_aspect_and_stays_inside():
    y, x, h, w = windows(Augmentation()).T.astype(float)
    area = h * w / (HEIGHT * WIDTH)
    # Sides are rounded to whole pixels, the smallest being about 77: one pixel is 1.3 percent.
    assert area.min() > 0.05 * 0.98
    assert area.max() <= 1
    assert 0.75 * 0.98 < (w / h).min() < 0.8
    assert 1.28 < (w / h).max() < 1.33 * 1.02
    assert min(y.min(), x.min()) >= 0
    assert (y + h).max() <= HEIGHT
    assert (x + w).max() <= WIDTH


def test_inception_window_lies_anywhere_it_fits():
    y, _, h, _ = windows(Augmentation()).T
    small = h < 0.8 * HEIGHT
    place = (y / np.maximum(HEIGHT - h, 1))[small]
    assert place.min() < 0.02
    assert place.max() > 0.98
    assert abs(place.mean() - 0.5) < 4 / np.sqrt(12 * small.sum())  # four deviations of an even draw


def test_crop_area_bounds_the_window():
    _, _, h, w = windows(Augmentation(crop_area=(0.3, 0.4))).T
    area = h * w / (HEIGHT * WIDTH)
    assert 0.3 * 0.98 < area.min() < 0.31
    assert 0.39 < area.max() < 0.4 * 1.02


@pytest.mark.parametrize("crop", CROPS[1:])
def test_other_crops_need_the_whole_image(crop):
    assert (windows(Augmentation(crop=crop)) == (0, 0, HEIGHT, WIDTH)).all()


@pytest.mark.parametrize("crop", CROPS)
def test_window_decoded_alone_gives_the_same_bits(crop, pixels):
    record = Augmentation(crop=crop)
    for draw in range(5):
        seed = tf.constant([draw, 1], tf.int64)
        y, x, h, w = crop_window(37, 53, record, seed)
        part = augment_image(pixels[y : y + h, x : x + w], record, (19, 17), seed, cropped=True)
        np.testing.assert_array_equal(part, augment_image(pixels, record, (19, 17), seed))


def test_inception_resizes_its_window_bilinearly_without_antialias(pixels):
    record, seed = Augmentation(flip=False), tf.constant([4, 2])
    y, x, h, w = (int(value) for value in crop_window(37, 53, record, seed))
    expected = resize(pixels[y : y + h, x : x + w], 19, 17)
    # float32 positions: 1e-5 of a pixel, times 255
    np.testing.assert_allclose(augment_image(pixels, record, (19, 17), seed), expected, atol=5e-3)


def test_no_crop_resizes_the_whole_image(pixels):
    record = Augmentation(crop="none", flip=False)
    image = augment_image(pixels, record, (19, 17), tf.constant([0, 0]))
    np.testing.assert_allclose(image, resize(pixels, 19, 17), atol=5e-3)


@pytest.mark.parametrize(
    ("crop", "large"),
    [("resize_crop", (28, 21)), ("resmall_crop", (28, 40))],  # 7/6 of (24, 18); 53 * 28 // 37 = 40
)
def test_crop_after_resizing_is_a_part_of_the_resized_image(crop, large, pixels):
    whole = resize(pixels, *large)
    record, corners = Augmentation(crop=crop, flip=False), set()
    for draw in range(60):
        image = augment_image(pixels, record, (24, 18), tf.constant([draw, 0])).numpy()
        fits = [
            (y, x)
            for y in range(large[0] - 24 + 1)
            for x in range(large[1] - 18 + 1)
            if np.allclose(image, whole[y : y + 24, x : x + 18], atol=5e-3)
        ]
        assert len(fits) == 1
        corners.update(fits)
    assert {y for y, _ in corners} == set(range(5))
    assert {0, large[1] - 18} <= {x for _, x in corners}


def test_384_is_cut_from_448():
    """As big_vision's transfer configuration."""
    image = np.repeat(np.arange(448, dtype="float32")[:, None, None] / 2, 448, axis=1)
    part = augment_image(image, Augmentation(crop="resize_crop"), (384, 384), tf.constant([1, 1])).numpy()[:, 0, 0]
    np.testing.assert_array_equal(np.diff(part), 0.5)  # no resizing: 448 is 448
