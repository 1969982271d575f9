"""Photos of any aspect: their sizes, typed from what transformers 5.24 gives, and their batches."""

import numpy as np
import pytest
from conftest import GOLDEN, make_tiny, numpy

import keras_vit
from keras_vit.data.naflex_batches import sides_for_patches


@pytest.mark.parametrize(
    ("image", "patch_size", "most", "size"),
    [
        ((480, 640), 16, 256, (224, 288)),
        ((100, 900), 16, 256, (80, 720)),
        ((333, 77), 14, 64, (224, 56)),
        ((224, 224), 16, 196, (224, 224)),
        ((37, 41), 8, 10, (24, 24)),
        ((1, 5000), 16, 256, (16, 4096)),
        ((5000, 1), 8, 1, (8, 8)),
        ((15, 1), 16, 729, (1504, 112)),
        ((17193, 11457), 8, 9, (24, 16)),
    ],
)
def test_size_is_the_largest_of_so_many_patches(image, patch_size, most, size):
    assert sides_for_patches(*image, patch_size, most) == size


def test_batches_have_one_grid_each_and_give_the_numbers_of_each_photo_alone():
    """What transformers masks has no part in its numbers, which the tests of encoders hold for each grid alone."""
    folder = GOLDEN / "encoders" / "huggingface_siglip2"
    model = keras_vit.build(weights=folder, input_shape=(None, None, 3), include_top=False)
    rng = np.random.default_rng(0)
    photos = [rng.integers(0, 256, (*size, 3), "uint8") for size in ((24, 24), (16, 32), (48, 48), (32, 64), (24, 24))]
    found, shapes = {}, []
    for places, batch in keras_vit.batches_by_size(model, photos, max_patches=9, batch_size=2):
        shapes.append((places, batch.shape[1:3]))
        found |= dict(zip(places, numpy(model(batch)), strict=True))
    assert shapes == [([1, 3], (16, 32)), ([0, 2], (24, 24)), ([4], (24, 24))]
    alone = numpy(model(photos[1][None] / np.float32(127.5) - 1))
    np.testing.assert_allclose(found[1], alone[0], atol=1e-5)
    assert sorted(found) == [0, 1, 2, 3, 4]


def test_model_of_one_size_takes_no_photos_of_several():
    with pytest.raises(ValueError, match="None, None, 3"):
        next(keras_vit.batches_by_size(make_tiny(), [np.zeros((20, 28, 3), "uint8")]))
