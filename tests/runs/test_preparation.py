"""What a run decides by itself where nothing was asked for."""

import pytest

from keras_vit.runs.preparation import _usual_batch


@pytest.mark.parametrize(
    ("recipe", "images", "devices", "batch_size"),
    [(512, 100_000, 1, 512), (512, 23, 1, 16), (32, 6, 1, 4), (512, 23, 3, 15), (32, 1, 2, 2)],
)
def test_batch_of_a_small_set_is_the_largest_power_of_two_in_it(recipe, images, devices, batch_size):
    assert _usual_batch(recipe, images, devices) == batch_size
