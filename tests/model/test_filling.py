"""Batches that JAX's devices cannot share evenly give the numbers of one device: each image counts once."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy

TOLERANCE = 2e-6  # float32 sums in another order, over 4 steps of a rate of .1
COUNT = 21  # images, in batches of 8, 8 and 5


def datasets():
    """Without and with sample weights, some of which are 0."""
    import tensorflow as tf

    labels = np.arange(COUNT) % 7
    weights = np.random.default_rng(4).uniform(0, 2, COUNT).astype("float32") * (np.arange(COUNT) % 5 > 0)
    for parts in ((images(COUNT, 20, 28, 3), labels), (images(COUNT, 20, 28, 3), labels, weights)):
        yield tf.data.Dataset.from_tensor_slices(parts).batch(8)


def measured(accumulation):
    """What training, validation, evaluation and prediction came to, and the weights."""
    found = []
    for dataset in datasets():
        keras.utils.set_random_seed(7)
        model = make_tiny(num_layers=1)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        arguments = {"metrics": ["accuracy"], "weighted_metrics": [keras.metrics.SparseTopKCategoricalAccuracy(2)]}
        model.compile(keras.optimizers.SGD(0.1), loss, **arguments, accumulation_steps=accumulation)
        history = model.fit(dataset, validation_data=dataset, epochs=2, verbose=0).history
        found += [value for values in history.values() for value in values]
        found += model.evaluate(dataset, verbose=0)
        predictions = model.predict(dataset, verbose=0)
        assert predictions.shape == (COUNT, 7)
        found += predictions.ravel().tolist()
        found += [float(x) for weight in model.trainable_weights for x in numpy(weight).ravel()]
    return np.array(found)


def furthest_from_one_device():
    """Two devices against one, by micro-batches of a step."""
    found = {}
    for accumulation in (1, 4):
        one = measured(accumulation)
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
        try:
            found[accumulation] = float(np.abs(measured(accumulation) - one).max())
        finally:
            keras.distribution.set_distribution(None)
    return found


@pytest.mark.elsewhere("jax", "filled batches")
def test_uneven_batches_of_a_data_set_count_each_image_once(found):
    assert set(found) == {"1", "4"}
    assert max(found.values()) < TOLERANCE
