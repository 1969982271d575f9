"""Any builder arguments either give a model with finite outputs and the closed-form size, or are refused."""

import json
import re
from unittest import mock

import keras
import numpy as np
import pytest
from conftest import images, numpy, randomise
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keras_vit
from keras_vit.config.vit import ViTConfig

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
        "position_embedding": st.sampled_from(["learned", "learned2d", "relative", "sincos2d", "none"]),
        "position_injection": st.sampled_from(["stem", "blocks", "blocks_shared"]),
        "attention": st.sampled_from(["global", "global", "axial"]),
        "patch_dropout_rate": st.sampled_from([0.0, 0.0, 0.4]),
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
    blocks = c.num_layers * (2 if c.attention == "axial" else 1)
    total = prefix * d + blocks * (attention + mlp + 4 * d) + 2 * d
    learned = (prefix + grid[0] * grid[1]) * d
    learned2d = prefix * d + (grid[0] + grid[1]) * (d // 2)
    tables = c.num_layers if c.position_injection == "blocks" else 1
    total += tables * {"learned": learned, "learned2d": learned2d}.get(c.position_embedding, 0)
    total += c.num_layers * (2 * grid[0] * grid[1] - 1) * d if c.position_embedding == "relative" else 0
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
        assert contradicts(**arguments)
        return None
    shape = (grid[0] * config.stride, grid[1] * config.stride, channels)
    model = keras_vit.build(config, include_top=classes is not None, input_shape=shape, classes=classes)
    assert model.count_params() == expected_parameters(config, grid, channels, classes)
    outputs = numpy(model(images(2, *shape)))
    assert np.isfinite(outputs).all()
    known = [(n, m) for n, m in zip(outputs.shape[1:], model.output_shape[1:], strict=True) if m is not None]
    assert len(outputs) == 2
    assert all(n == m for n, m in known)  # how many tokens patch dropout leaves, no shape says
    again = keras_vit.VisionTransformer.from_config(model.get_config())
    assert again.config == config
    assert json.dumps(again.get_config()) == json.dumps(model.get_config())
    return model


def contradicts(pooling, class_token, position_embedding, position_injection, attention, hidden_size, **others):
    """The combinations that `ViTConfig` refuses, each for its reason."""
    relative, dropped = position_embedding == "relative", others["patch_dropout_rate"] > 0
    in_blocks = position_injection != "stem"
    return (
        (pooling == "token" and class_token is False)
        or (hidden_size % {"sincos2d": 4, "learned2d": 2}.get(position_embedding, 1))
        or (in_blocks and position_embedding in ("relative", "none"))
        or (dropped and (relative or in_blocks))
        or (attention == "axial" and (dropped or relative or class_token or pooling == "token"))
        or (attention == "axial" and pooling == "none" and class_token is None)
    )


def check_whole_life(arguments, folder):
    """It is saved and reloaded, resized, exported to ONNX and trained a step, with the same numbers."""
    model = check(arguments)
    if model is None:
        return
    x = images(2, *model.input_shape[1:])
    randomise(model)
    model.save(folder / "model.keras")
    again = keras.saving.load_model(folder / "model.keras")
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))
    stride, (height, width, channels) = model.config.stride, model.input_shape[1:]
    shape = (height + stride, width + 2 * stride, channels)
    moved, anywhere = (keras_vit.with_input_shape(model, each) for each in (shape, (None, None, channels)))
    wide = images(2, *shape)
    scale = 1 + np.abs(numpy(moved(wide))).max()
    np.testing.assert_allclose(numpy(moved(wide)), numpy(anywhere(wide)), atol=1e-5 * scale)
    if len(model.output_shape) == 2:  # others are refused, as `test_export` has it
        export_to_onnx(model, folder / "model.onnx")
    if None in model.output_shape[1:]:
        return
    before = model.get_weights()
    model.compile("sgd", "mse")
    model.fit(x, np.ones((2, *model.output_shape[1:]), "float32"), verbose=0)
    changed = [(old != new).any() for old, new in zip(before, model.get_weights(), strict=True)]
    assert any(changed)
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def export_to_onnx(model, path):
    """Compares the file with the model; a width of a few numbers behind LayerNorm makes much of a rounding error."""
    activation, drift = "sigmoid" if model.output_shape[-1] == 1 else "softmax", []
    try:
        keras_vit.export(model, path, format="onnx", activation=activation, overwrite=True)
    except keras_vit.ExportError as error:
        drift = re.findall(r"\| (?:logits|probabilities|features) \| ([-.\de]+) \|", str(error)) or [error]
    assert all(float(largest) < 1e-3 for largest in drift)


@settings(max_examples=12, **SETTINGS)
@given(arguments=valid)
def test_valid_arguments_build_a_model_of_the_closed_form_size(arguments):
    check(arguments)
    keras.utils.clear_session()


@pytest.mark.slow
@settings(max_examples=300, **SETTINGS)
@given(arguments=valid)
def test_many_valid_arguments_build_a_model_of_the_closed_form_size(arguments):
    check(arguments)
    keras.utils.clear_session()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=40, **SETTINGS)
@given(arguments=valid)
def test_any_options_give_a_model_that_is_saved_resized_exported_and_trained(arguments, tmp_path):
    check_whole_life(arguments, tmp_path)
    keras.utils.clear_session()


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
