"""What `fit`, `evaluate` and `predict` say of pixels that were not scaled, and of batches that JAX cannot share."""

import warnings

import keras
import numpy as np
import pytest
from conftest import images, make_tiny

import keras_vit
from keras_vit.model import input_checks

OF_KERAS = pytest.mark.filterwarnings("ignore:Your input ran out of data", "ignore:`shuffle=True` was passed")
SAYS = "values from 0 to 255"


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x) // 4

    def __getitem__(self, index):
        return self.x[index * 4 : index * 4 + 4], self.y[index * 4 : index * 4 + 4]


def dataset(x, y):
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((x, y)).batch(4)


def generator(x, y):
    yield from ((x[start : start + 4], y[start : start + 4]) for start in range(0, len(x), 4))


@pytest.fixture(scope="module")
def model():
    model = make_tiny(num_layers=1)
    model.compile(keras.optimizers.SGD(1e-6), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture(scope="module")
def pixels():
    pixels = np.random.default_rng(0).uniform(0, 255, (8, 20, 28, 3)).astype("float32")
    pixels[0, 0, 0, :2] = 0, 255
    return pixels


KINDS = {"dataset": dataset, "PyDataset": Batches, "generator": generator}


@OF_KERAS
@pytest.mark.parametrize("kind", KINDS)
def test_data_of_unscaled_pixels_is_warned_of_once_a_call(model, pixels, kind):
    labels = np.arange(8) % 7
    for method in (model.fit, model.evaluate, model.predict):
        with pytest.warns(UserWarning, match=SAYS) as record:
            method(KINDS[kind](pixels, labels), verbose=0)
        assert len([warning for warning in record if SAYS in str(warning.message)]) == 1
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*not scaled")
            method(KINDS[kind](keras_vit.preprocess_input(pixels), labels), verbose=0)


def test_arrays_of_unscaled_pixels_are_warned_of(model, pixels):
    for call in (lambda: model.fit(pixels, np.zeros(8), verbose=0), lambda: model.predict(x=pixels, verbose=0)):
        with pytest.warns(UserWarning, match=SAYS):
            call()


@OF_KERAS
@pytest.mark.parametrize("kind", KINDS)
def test_data_that_is_looked_at_loses_no_batch_and_keeps_its_order(model, kind):
    x = images(8, 20, 28, 3)
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(model.predict(KINDS[kind](x, np.zeros(8)), verbose=0), expected, atol=1e-6)


def test_shuffled_data_is_shuffled_as_without_the_look(model):
    """A look before `fit` would use up the first of the orders."""
    import tensorflow as tf

    seen = []
    for look in (lambda data: data, lambda data: input_checks.looked_at(model, data)):
        data = tf.data.Dataset.range(8).map(lambda i: tf.fill((4, 4, 3), tf.cast(i, "float32") / 8))
        data = look(data.shuffle(8, seed=1, reshuffle_each_iteration=True).batch(4))
        seen.append([[batch.numpy()[:, 0, 0, 0].tolist() for batch in data] for _ in range(2)])
    assert seen[0] == seen[1]
    assert seen[0][0] != seen[0][1]


def test_array_that_devices_cannot_share_is_refused_at_once(model, monkeypatch):
    monkeypatch.setattr(input_checks, "spread_over", lambda: 2)
    monkeypatch.setattr("keras_vit.model.image_model.looked_at", lambda *_: pytest.fail("began"))
    x = images(21, 20, 28, 3)
    with pytest.raises(ValueError, match="21 images in batches of 8, on 2 devices"):
        model.fit(x, np.zeros(21), 8)


def uneven_batches():
    """What two devices on JAX say, for each method, of a generator whose last batch has 5 images."""
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
    try:
        model = make_tiny(num_layers=1)
        model.compile("sgd", "mse")
        said = []
        for method in (model.fit, model.evaluate):
            with pytest.raises(ValueError, match="multiple") as error:
                method(((images(n, 20, 28, 3), np.zeros((n, 7))) for n in (8, 5)), verbose=0)
            said.append(str(error.value))
        return said
    finally:
        keras.distribution.set_distribution(None)


@pytest.mark.elsewhere("jax", "uneven_batches")
def test_batches_that_devices_cannot_share_on_jax_are_refused_in_our_words(found):
    assert len(found) == 2
    assert all("multiple of 2" in said for said in found)


@pytest.mark.parametrize("policy", ["bfloat16", "float16"])
def test_weights_in_half_precision_are_not_trained(policy):
    """They would stay where they are, and the accuracy at chance; but a head in float32 on them may learn."""
    keras.config.set_dtype_policy(policy)
    model = make_tiny(num_layers=1)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    x, y = images(4, 20, 28, 3), np.zeros(4, int)
    with pytest.raises(ValueError, match=f"mixed_{policy}"):
        model.fit(x, y, verbose=0)
    with pytest.raises(ValueError, match=policy):
        model.train_on_batch(x, y)
    model.evaluate(x, y, verbose=0)
    keras_vit.freeze(model, "head")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    model.fit(x, y, verbose=0)


def test_weights_in_half_precision_are_not_pre_trained():
    keras.config.set_dtype_policy("bfloat16")
    masked = keras_vit.MaskedPatchPrediction(make_tiny(num_layers=1), "pixels")
    masked.compile("sgd")
    with pytest.raises(ValueError, match="bfloat16"):
        masked.fit(images(4, 20, 28, 3), verbose=0)
