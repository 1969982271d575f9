"""Any builder arguments either give a model with finite outputs and the closed-form size, or are refused."""

import json
from unittest import mock

import keras
import numpy as np
import pytest
from conftest import images, numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keras_vit
from keras_vit.variants import ViTConfig

# Keras thinks a softmax over one token is a mistake; a mean-pooled image of one patch has one.
pytestmark = pytest.mark.filterwarnings("ignore:You are using a softmax over axis -1")
SETTINGS = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}

valid = st.fixed_dictionaries(
    {
        "patch_size": st.integers(1, 9),
        "num_heads": st.integers(1, 4),
        "head_size": st.integers(1, 5),
        "num_layers": st.integers(1, 3),
        "mlp_dim": st.integers(1, 32),
        "pooling": st.sampled_from(["token", "gap", "map", "none"]),
        "class_token": st.sampled_from([None, True, False]),
        "representation_size": st.none() | st.integers(1, 16),
        "resnet_stages": st.none() | st.lists(st.integers(1, 2), max_size=2).map(tuple),
        "resnet_width_factor": st.sampled_from([0.5, 1.0]),
        "dropout_rate": st.floats(0, 0.9),
        "attention_dropout_rate": st.floats(0, 0.9),
        "stochastic_depth_rate": st.floats(0, 0.9),
        "activation": st.sampled_from(["gelu_tanh", "gelu"]),
        "position_embedding": st.sampled_from(["learned", "sincos2d", "none"]),
        "last_block": st.sampled_from(["pooled", "all"]),
        "grid": st.tuples(st.integers(1, 4), st.integers(1, 4)),
        "channels": st.integers(1, 5),
        "classes": st.none() | st.sampled_from([1, 2, 1000]),
    }
)


def expected_parameters(c, grid, channels, classes):
    """The closed form: section 1 of the paper's counts, spelled out for every option."""
    d, m = c.hidden_size, c.mlp_dim
    mlp = 2 * d * m + d + m
    attention = 4 * d * d + 4 * d
    prefix = c.num_prefix_tokens
    total = prefix * d + c.num_layers * (attention + mlp + 4 * d) + 2 * d
    total += (prefix + grid[0] * grid[1]) * d if c.position_embedding == "learned" else 0
    if c.resnet_stages is not None:
        w = int(64 * c.resnet_width_factor)
        total += 49 * channels * w + 2 * w
        channels = w
        for stage, blocks in enumerate(c.resnet_stages):
            f = w * 2**stage
            for unit in range(blocks):
                total += channels * f + 9 * f * f + 4 * f * f + 2 * (f + f + 4 * f)
                total += channels * 4 * f + 8 * f if unit == 0 else 0
                channels = 4 * f
    total += c.patch_size**2 * channels * d + d
    total += d + attention + 2 * d + mlp if c.pooling == "map" else 0
    width = d
    if c.representation_size:
        total += d * c.representation_size + c.representation_size
        width = c.representation_size
    return total + (width * classes + classes if classes else 0)


def check(arguments):
    arguments = dict(arguments)
    grid, channels, classes = (arguments.pop(key) for key in ("grid", "channels", "classes"))
    arguments["hidden_size"] = arguments["num_heads"] * arguments.pop("head_size")
    try:
        config = ViTConfig(**arguments)
    except ValueError:
        contradicts = arguments["pooling"] == "token" and arguments["class_token"] is False
        assert contradicts or (arguments["position_embedding"] == "sincos2d" and arguments["hidden_size"] % 4)
        return
    shape = (grid[0] * config.stride, grid[1] * config.stride, channels)
    model = keras_vit.build(config, include_top=classes is not None, input_shape=shape, classes=classes)
    assert model.count_params() == expected_parameters(config, grid, channels, classes)
    outputs = numpy(model(images(2, *shape)))
    assert np.isfinite(outputs).all()
    assert outputs.shape == (2, *model.output_shape[1:])
    again = keras_vit.VisionTransformer.from_config(model.get_config())
    assert again.config == config
    assert json.dumps(again.get_config()) == json.dumps(model.get_config())
    keras.utils.clear_session()


@settings(max_examples=12, **SETTINGS)
@given(arguments=valid)
def test_valid_arguments_build_a_model_of_the_closed_form_size(arguments):
    check(arguments)


@pytest.mark.slow
@settings(max_examples=300, **SETTINGS)
@given(arguments=valid)
def test_many_valid_arguments_build_a_model_of_the_closed_form_size(arguments):
    check(arguments)


junk = st.sampled_from(
    [None, True, -1, 0, 1, 3, 7, 2.5, float("nan"), "", "token", "x", (), (1,), (0, 2), [3], {}, b"a"]
)
names = st.sampled_from([*ViTConfig.__dataclass_fields__, "input_shape", "classes", "classifier_activation", "weights"])


@settings(max_examples=500, **SETTINGS)
@given(arguments=st.dictionaries(names, junk, max_size=4))
def test_junk_is_refused_before_any_variable_exists(arguments):
    sizes = {"patch_size": 4, "hidden_size": 12, "num_layers": 1, "num_heads": 3, "mlp_dim": 7}
    made = []
    add_weight = keras.layers.Layer.add_weight

    def counted(layer, *args, **kwargs):
        made.append(layer)
        return add_weight(layer, *args, **kwargs)

    with keras.StatelessScope(initialize_variables=False), mock.patch.object(keras.layers.Layer, "add_weight", counted):
        try:
            keras_vit.build("Ti/16", **{"input_shape": (16, 16, 3)} | sizes | arguments)
        except (ValueError, TypeError, FileNotFoundError) as error:
            refused = str(error)
        else:
            return
    assert made == []
    assert "Received" in refused or "activation" in refused  # an unknown activation is refused in Keras' words
