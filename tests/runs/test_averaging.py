"""The average of the weights goes into the model and out of it, and nothing is rounded."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy

from keras_vit.runs.recorder import AveragedWeights
from keras_vit.training.optimizers import SGD


@pytest.mark.parametrize("averaged", [True, False])
def test_average_goes_in_and_out_bit_for_bit(averaged):
    """Keras' average begins at the weights after the first step. Without one the weights stay."""
    model = make_tiny(num_layers=1)
    optimizer = SGD(0.1, use_ema=averaged, ema_momentum=0.5)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True), run_eagerly=True)
    expected = None
    for seed in range(3):
        model.train_on_batch(images(4, 20, 28, 3, seed=seed), np.arange(4))
        kernel = numpy(model.get_layer("head").kernel).astype("float64")
        expected = kernel if expected is None or not averaged else 0.5 * expected + 0.5 * kernel
    before = model.get_weights()
    average = AveragedWeights(model)
    average.enter()
    np.testing.assert_allclose(numpy(model.get_layer("head").kernel), expected, rtol=1e-6)
    average.leave()
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
