"""Copies of a model in another precision: same weights but for rounding, and the original as it was."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy

import keras_vit
from keras_vit.exporting.formats import PRECISIONS
from keras_vit.layers.configurable import flatten_layers
from keras_vit.model.copies import with_dtype
from keras_vit.model.layer_access import is_quantized
from keras_vit.model.precision import in_precision

ROUNDING = {"bfloat16": 2**-8, "float16": 2**-11}  # of a weight, relative


def dtypes(model, kind):
    return {layer.name: getattr(layer, kind) for layer in layers_of(model)}


def layers_of(model):
    """All but the input, which computes nothing."""
    return [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_weights_are_rounded_once_and_the_head_stays(precision):
    model = make_tiny(num_layers=1, distilled=True, representation_size=None)
    copy = with_dtype(model, precision)
    ends = {"head", "head_distillation", "average"}
    for name, dtype in dtypes(copy, "compute_dtype").items():
        assert dtype == ("float32" if name in ends else precision), name
    for ours, theirs in zip(model.weights, copy.weights, strict=True):
        assert theirs.dtype == ("float32" if theirs.path.split("/")[0] in ends else precision)
        np.testing.assert_allclose(
            numpy(keras.ops.cast(theirs, "float32")), numpy(ours), rtol=ROUNDING[precision], atol=2**-24
        )


def test_parts_of_layers_follow():
    copy = with_dtype(make_tiny(pooling="map", num_layers=1), "float16")
    parts = [part for layer in layers_of(copy) if layer.name != "head" for part in flatten_layers(layer)]
    assert len(parts) > 15
    assert {part.compute_dtype for part in parts} == {"float16"}


def test_there_and_back_is_the_model_rounded():
    model = make_tiny(num_layers=1)
    back = with_dtype(with_dtype(model, "bfloat16"), "float32")
    assert {layer.compute_dtype for layer in flatten_layers(back)} == {"float32"}
    x = images(2, 20, 28, 3)
    error = np.abs(numpy(back(x)) - numpy(model(x))).max() / numpy(model(x)).std()
    assert 1e-6 < error < 0.1  # weights of 8 bits; nothing would mean that nothing was rounded


def test_twin_has_weights_of_its_own_config_and_what_is_frozen():
    model = make_tiny(num_layers=1)
    model.get_layer("block_00").attention.query.trainable = False
    model.compile("adam", "mse")
    copy, before = with_dtype(model, "float32"), model.get_weights()
    assert (copy.config, copy.preprocessing, copy.name) == (model.config, model.preprocessing, model.name)
    assert [weight.path for weight in copy.trainable_weights] == [weight.path for weight in model.trainable_weights]
    assert not copy.compiled
    copy.set_weights([weight * 0 for weight in before])
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("end", [{"classifier_activation": "softmax"}, {"representation_size": 9}])
def test_end_gives_float32_whatever_the_precision(end):
    copy = with_dtype(make_tiny(num_layers=1, **end), "bfloat16")
    scores = numpy(copy(images(2, 20, 28, 3)))
    assert scores.dtype == np.float32
    assert "classifier_activation" not in end or np.allclose(scores.sum(-1), 1, atol=1e-6)


def test_model_of_any_size_keeps_its_table():
    model = make_tiny(num_layers=1, input_shape=(None, None, 3))
    copy = with_dtype(model, "float32")
    x = images(2, 36, 24, 3)
    np.testing.assert_array_equal(numpy(copy(x)), numpy(model(x)))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "float64"])
def test_global_policy_neither_matters_nor_changes(policy):
    model = make_tiny(num_layers=1)
    keras.config.set_dtype_policy(policy)
    copy = with_dtype(model, "float16")
    assert keras.config.dtype_policy().name == policy
    assert {dtype for name, dtype in dtypes(copy, "compute_dtype").items() if name != "head"} == {"float16"}
    assert copy.get_layer("head").compute_dtype == "float32"


def test_lora_is_merged_by_in_precision():
    model = keras_vit.add_lora(make_tiny(num_layers=1), rank=2)
    assert in_precision(model, "bfloat16").get_layer("block_00").compute_dtype == "bfloat16"


# In the words of `export`


def test_mixed_model_gets_a_twin_in_float32_with_the_same_weights_and_a_plain_one_is_its_own():
    plain = make_tiny(num_layers=1)
    assert in_precision(plain, "float32") is plain
    keras.config.set_dtype_policy("mixed_float16")
    model = make_tiny(num_layers=1)
    copy = in_precision(model, "float32")
    assert {part.compute_dtype for layer in layers_of(copy) for part in flatten_layers(layer)} == {"float32"}
    for ours, theirs in zip(model.weights, copy.weights, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_int8_rounds_dense_kernels_and_says_nothing(recwarn, capfd):
    model = make_tiny(num_layers=1)
    before = model.get_weights()
    copy = in_precision(model, "int8")
    assert (is_quantized(copy), is_quantized(model)) == (True, False)
    assert "int8" in {weight.dtype for weight in copy.get_layer("block_00").mlp.dense_1.weights}
    x = images(2, 20, 28, 3)
    error = np.abs(numpy(copy(x)) - numpy(model(x))).max() / numpy(model(x)).std()
    assert 1e-4 < error < 0.3
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert in_precision(copy, "int8") is copy
    for precision in set(PRECISIONS) - {"int8"}:
        with pytest.raises(ValueError, match=f'precision="{precision}"'):
            in_precision(copy, precision)
    assert not [warning for warning in recwarn if "quantize" in str(warning.message)]
    assert capfd.readouterr() == ("", "")
