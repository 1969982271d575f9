"""The average of the weights goes into the model and out of it, and nothing is rounded."""

import keras
import numpy as np
from conftest import images, make_tiny, numpy

from keras_vit.runs.recorder import AveragedWeights
from keras_vit.training.optimizers import SGD


def test_average_goes_in_and_out_bit_for_bit():
    model = make_tiny()
    model.compile(SGD(0.1, use_ema=True, ema_momentum=0.5), keras.losses.SparseCategoricalCrossentropy(True))
    history = []
    for seed in range(3):
        model.train_on_batch(images(4, 20, 28, 3, seed=seed), np.arange(4))
        history.append(numpy(model.get_layer("head").kernel).astype("float64"))
    expected = history[0]  # Keras' average begins at the weights after the first step
    for kernel in history[1:]:
        expected = 0.5 * expected + 0.5 * kernel
    before = model.get_weights()
    average = AveragedWeights(model)
    average.enter()
    np.testing.assert_allclose(numpy(model.get_layer("head").kernel), expected, rtol=1e-6)
    average.leave()
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))


def test_without_an_average_the_weights_stay():
    model = make_tiny()
    model.compile(SGD(0.1), keras.losses.SparseCategoricalCrossentropy(True))
    before = model.get_weights()
    average = AveragedWeights(model)
    average.enter()
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
