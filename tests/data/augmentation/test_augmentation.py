"""The records of augmentation, their names and their checks; and that draws depend on the seed alone."""

import hashlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data.augmentation import AUGMENTATIONS, Augmentation, augment_batch, augment_image, find_augmentation

# arXiv:2106.10270: layers, magnitude, mixup
LEVELS = {
    "none": (0, 0, 0),
    "light1": (2, 0, 0),
    "light2": (2, 10, 0.2),
    "medium1": (2, 15, 0.2),
    "medium2": (2, 15, 0.5),
    "strong1": (2, 20, 0.5),
    "strong2": (2, 20, 0.8),
}
EVERYTHING = Augmentation(
    affine=(0.1, 0.1, 0.1),
    randaugment_layers=2,
    randaugment_magnitude=9,
    mixup_alpha=0.3,
    cutmix_alpha=1.0,
    erasing_probability=0.5,
)


def images(count, height=23, width=31, channels=3):
    return np.random.default_rng(1).integers(0, 256, (count, height, width, channels), dtype="uint8")


def pipeline(pixels, record, size=(17, 13), parallel=1):
    """Images changed in a `tf.data` graph, then mixed as one batch."""
    count = len(pixels)

    def change(index, image):
        return augment_image(image, record, size, tf.stack([7, index]))

    data = tf.data.Dataset.from_tensor_slices(pixels).enumerate()
    data = data.map(change, num_parallel_calls=parallel).batch(count)
    data = data.map(lambda batch: augment_batch(batch, tf.eye(count), record, tf.constant([8, 0])))
    return [values.numpy() for values in next(iter(data))]


@pytest.mark.parametrize("level", LEVELS)
def test_augreg_level_has_the_published_strengths(level):
    record = AUGMENTATIONS[f"augreg-{level}"]
    assert (record.randaugment_layers, record.randaugment_magnitude, record.mixup_alpha) == LEVELS[level]
    assert (record.crop, record.crop_area, record.flip, record.cutmix_alpha) == ("inception", (0.05, 1.0), True, 0)


def test_digits_are_never_mirrored():
    assert not AUGMENTATIONS["digits"].flip


def test_find_augmentation_gives_records_names_and_nothing():
    assert find_augmentation(EVERYTHING) is EVERYTHING
    assert find_augmentation("augreg-light2") is AUGMENTATIONS["augreg-light2"]
    assert find_augmentation(None) == Augmentation(crop="none", flip=False)


def test_unknown_name_names_the_nearest_and_other_types_are_refused():
    with pytest.raises(ValueError, match=r"'augreg-medum1'\. Did you mean 'augreg-medium1'"):
        find_augmentation("augreg-medum1")
    with pytest.raises(TypeError, match="3 of type int"):
        find_augmentation(3)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("crop", "centre", ValueError),
        ("crop_area", (0.0, 1.0), ValueError),
        ("crop_area", (0.5, 0.4), ValueError),
        ("crop_area", 0.5, TypeError),
        ("affine", (0.1, 0.1), TypeError),
        ("affine", (0.1, 0.6, 0.1), ValueError),
        ("affine", (0.1, 0.1, -0.1), ValueError),
        ("flip", 1, TypeError),
        ("randaugment_layers", -1, ValueError),
        ("randaugment_layers", True, TypeError),
        ("randaugment_layers", 2.0, TypeError),
        ("randaugment_magnitude", 31, ValueError),
        ("randaugment_magnitude", float("nan"), ValueError),
        ("mixup_alpha", -0.2, ValueError),
        ("cutmix_alpha", float("inf"), ValueError),
        ("mixup_alpha", "0.2", TypeError),
        ("erasing_probability", 1.1, ValueError),
    ],
)
def test_value_out_of_range_is_refused_by_name(field, value, error):
    with pytest.raises(error, match=rf"`{field}`(?s:.*){field}="):
        Augmentation(**{field: value})


def test_no_layers_of_randaugment_are_right():
    assert Augmentation(randaugment_layers=0).randaugment_layers == 0


def test_same_seed_gives_the_same_bits_in_any_number_of_threads():
    pixels = images(24)
    for one, four in zip(pipeline(pixels, EVERYTHING), pipeline(pixels, EVERYTHING, parallel=4), strict=True):
        np.testing.assert_array_equal(one, four)


def test_another_seed_gives_another_image():
    same = np.repeat(images(1), 24, axis=0)
    changed = pipeline(same, Augmentation())[0]
    assert len({image.tobytes() for image in changed}) == 24


def digest_of_everything():
    batch, labels = pipeline(images(24), EVERYTHING)
    return [keras.backend.backend(), hashlib.sha256(batch.tobytes() + labels.tobytes()).hexdigest()]


@pytest.mark.elsewhere("jax", "digest_of_everything")
def test_bits_are_the_same_in_another_process_on_jax(found):
    assert found == ["jax", digest_of_everything()[1]]
