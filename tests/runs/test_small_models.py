"""The small model: below a million parameters, and the right one for the images."""

import numpy as np
import pytest

import keras_vit
from keras_vit.data import open_source
from keras_vit.runs.small_models import SMALL_MODELS, small_model


def test_small_models_are_below_a_million_parameters():
    for small in SMALL_MODELS.values():
        shape = (small.image_size, small.image_size, 3)
        assert keras_vit.build(small.config, input_shape=shape, classes=10).count_params() < 1_000_000


@pytest.mark.parametrize(("height", "width", "kind"), [(40, 8, "tiny"), (8, 41, "photos"), (41, 8, "photos")])
def test_longest_side_decides_which_one_it_is(height, width, kind):
    pair = (np.zeros((9, height, width, 1), "uint8"), np.arange(9) % 3)
    assert small_model(open_source({"train": pair, "test": pair})) is SMALL_MODELS[kind]
