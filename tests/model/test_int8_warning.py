"""A model that Keras quantised says once, on a CPU, what computes it faster."""

import warnings

import numpy as np
import pytest
from conftest import make_tiny

from keras_vit.model import image_model

X = np.zeros((1, 20, 28, 3), "float32")


@pytest.fixture
def quantised(monkeypatch):
    monkeypatch.setattr(image_model, "_warned", set())
    monkeypatch.setattr(image_model, "_LARGE_MODEL", 1000)
    monkeypatch.setattr(image_model, "has_accelerator", lambda: False)
    model = make_tiny(num_layers=1)
    model(X)  # in float32 there is nothing to tell
    with warnings.catch_warnings():  # Keras says so of each other layer
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        model.quantize("int8")
    return model


def test_first_call_of_a_quantised_model_names_what_is_faster_once(quantised):
    with pytest.warns(UserWarning, match=r'accelerate\(model, "openvino", "int8"\)(.|\n)*export') as said:
        quantised.predict(X, verbose=0)
    assert len(said) == 1
    quantised(X)
    quantised.predict(X, verbose=0)
    quantised.has_computed = False  # as another model of this process
    quantised(X)


@pytest.mark.parametrize(("name", "value"), [("has_accelerator", lambda: True), ("_LARGE_MODEL", 10**9)])
def test_nothing_is_said_on_an_accelerator_and_of_small_models(quantised, monkeypatch, name, value):
    monkeypatch.setattr(image_model, name, value)
    quantised(X)
