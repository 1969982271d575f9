"""A quantised model is saved, reloaded and copied any number of times with the same numbers."""

import warnings

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy

import keras_vit
from keras_vit.layers.configurable import flatten_layers
from keras_vit.model import image_model

pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
MODES = ["int8", "int4", "float8"]


def quantized(mode):
    model = make_tiny(num_layers=1, pooling="map")
    model.quantize(mode)
    return model


@pytest.fixture(scope="module", params=MODES)
def kept(request):
    """A quantised model that no test changes, an input, and what it answers."""
    with warnings.catch_warnings():  # Keras says so of each other layer
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        model = quantized(request.param)
    x = images(2, 20, 28, 3)
    return request.param, model, x, numpy(model(x))


def policies(model):
    return {layer.path: layer.dtype_policy.name for layer in flatten_layers(model, include_self=False) if layer.path}


def test_quantised_model_is_saved_again_and_again_with_the_same_numbers(tmp_path, kept):
    mode, model, x, expected = kept
    first = policies(model)
    assert sum(name.startswith(mode) for name in first.values()) == 13  # 6 in the block and in pooling, the head
    for generation in range(2):
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(numpy(model(x)), expected, err_msg=f"generation {generation}")
        assert policies(model) == first
        assert keras.models.model_from_json(model.to_json()).to_json() == model.to_json()


def test_quantised_model_gets_copies_that_can_be_saved(tmp_path, kept):
    _, model, x, expected = kept
    model.save(tmp_path / "model.keras")
    for source in (model, keras.saving.load_model(tmp_path / "model.keras")):
        copy = keras_vit.with_input_shape(source, (20, 28, 3))
        np.testing.assert_array_equal(numpy(copy(x)), expected)
    keras_vit.with_input_shape(copy, (24, 32, 3)).save(tmp_path / "copy.keras")
    again = keras.saving.load_model(tmp_path / "copy.keras")
    back = keras_vit.with_input_shape(again, (None, None, 3))
    x = images(2, 24, 32, 3)
    np.testing.assert_array_equal(numpy(back(x)), numpy(again(x)))


def test_policy_of_a_part_is_that_of_the_map(tmp_path):
    """In half precision too, where the default of the map is not Keras' own."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = quantized("int8")
    keras.config.set_dtype_policy("float32")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    block = again.get_layer("block_00")
    assert block.dtype_policy.name == block.norm_1.dtype_policy.name == "mixed_bfloat16"
    assert block.attention.query.dtype_policy.name == "int8_from_mixed_bfloat16"
    again.save(tmp_path / "model.keras")
    assert policies(keras.saving.load_model(tmp_path / "model.keras")) == policies(model)


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
