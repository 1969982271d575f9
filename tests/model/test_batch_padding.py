"""Batches that JAX's devices cannot share evenly give the numbers of one device: each image counts once."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy

TOLERANCE = 2e-6  # float32 sums in another order, over 4 steps of a rate of .1
COUNT = 21  # images, in batches of 8, 8 and 5


def dataset(weighed):
    """Without or with sample weights, some of which are 0."""
    import tensorflow as tf

    parts = (images(COUNT, 20, 28, 3), np.arange(COUNT) % 7)
    weights = np.random.default_rng(4).uniform(0, 2, COUNT).astype("float32") * (np.arange(COUNT) % 5 > 0)
    return tf.data.Dataset.from_tensor_slices((*parts, weights) if weighed else parts).batch(8)


def measured(accumulation, weighed):
    """What training, validation, evaluation and prediction came to, and the weights."""
    keras.utils.set_random_seed(7)
    data, model = dataset(weighed), make_tiny(num_layers=1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    arguments = {"metrics": ["accuracy"], "weighted_metrics": [keras.metrics.SparseTopKCategoricalAccuracy(2)]}
    model.compile(keras.optimizers.SGD(0.1), loss, **arguments, accumulation_steps=accumulation)
    history = model.fit(data, validation_data=data, epochs=2, verbose=0).history
    found = [value for values in history.values() for value in values]
    found += model.evaluate(data, verbose=0)
    predictions = model.predict(data, verbose=0)
    assert predictions.shape == (COUNT, 7)
    found += predictions.ravel().tolist()
    found += [float(x) for weight in model.trainable_weights for x in numpy(weight).ravel()]
    return np.array(found)


def furthest_from_one_device():
    """Two devices against one, by micro-batches of a step."""
    found = {}
    for accumulation, weighed in ((1, False), (2, True)):
        one = measured(accumulation, weighed)
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
        try:
            found[accumulation] = float(np.abs(measured(accumulation, weighed) - one).max())
        finally:
            keras.distribution.set_distribution(None)
    return found


@pytest.mark.elsewhere("jax", "furthest_from_one_device")
def test_uneven_batches_of_a_data_set_count_each_image_once(found):
    assert set(found) == {"1", "2"}
    assert max(found.values()) < TOLERANCE
