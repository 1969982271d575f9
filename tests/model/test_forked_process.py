"""A process that was forked from one in which models were at work is told so at every door; it would hang.

Of TensorFlow 2.21, reading a photo, building, and every call of a model hung in a fork; scaling photos did not.
"""

from pathlib import Path

import keras
import numpy as np
import pytest
import sklearn.datasets
from conftest import make_tiny
from forks import forked

import keras_vit
from keras_vit import checks
from keras_vit.model.image_model import METHODS

CHINA = Path(sklearn.datasets.__file__).with_name("images") / "china.jpg"
X, Y = np.zeros((2, 20, 28, 3), "float32"), np.zeros(2, "int32")


@pytest.fixture(scope="module")
def model():
    model = make_tiny(num_layers=1)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(X, Y, verbose=0)
    model.evaluate(X, Y, verbose=0)
    model.predict(X, verbose=0)
    return model


@pytest.fixture(scope="module")
def engine(model):
    return keras_vit.accelerate(model, "tensorflow")


@pytest.mark.parametrize(
    "use",
    [
        lambda model, engine: model(X),
        lambda model, engine: model.predict(X, verbose=0),
        lambda model, engine: model.predict_on_batch(X),
        lambda model, engine: model.evaluate(X, Y, verbose=0),
        lambda model, engine: model.fit(X, Y, verbose=0),
        lambda model, engine: model.train_on_batch(X, Y),
        lambda model, engine: keras.models.clone_model(model),
        lambda model, engine: keras_vit.ViTTi16(num_layers=1),
        lambda model, engine: keras_vit.build_resnet("R50x1", input_shape=(32, 32, 3)),
        lambda model, engine: type(model).from_config(model.get_config()),
        lambda model, engine: keras_vit.read_image(CHINA),
        lambda model, engine: keras_vit.features(model, X, blocks=(1,)),
        lambda model, engine: keras_vit.accelerate(model, "tensorflow"),
        lambda model, engine: engine(X),
        lambda model, engine: engine.predict(X),
    ],
)
def test_forked_process_is_told(model, engine, monkeypatch, use):
    use(model, engine)
    monkeypatch.setitem(checks._first_use, "process", 1)
    with pytest.raises(RuntimeError, match=r"forked from 1\. .*spawn"):
        use(model, engine)


def test_users_own_model_around_one_is_told_in_a_fork_and_keras_own_stay(model):
    """Keras asks nothing of the layers of a model once `predict` was traced, and would wait for ever."""
    around = keras.Sequential([keras.Input((20, 28, 3)), model, keras.layers.Dense(2)])
    others = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    others.compile("sgd", "mse")
    around.predict(X, verbose=0)
    methods = [getattr(keras.Model, name) for name in METHODS]

    def use(depth=0):
        for name in METHODS:
            with pytest.raises(RuntimeError, match=r"forked from .*spawn"):
                getattr(around, name)(X)
            with pytest.raises((TypeError, ValueError), match="wrong"):
                getattr(others, name)(wrong=1)
        assert depth or forked(use, 1) == 0

    assert forked(use) == 0
    assert [getattr(keras.Model, name) for name in METHODS] == methods
