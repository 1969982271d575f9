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
from keras_vit.config.flops import parameter_count
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
        "last_block_outputs": st.sampled_from(["pooled", "all"]),
        "grid": st.tuples(st.integers(1, 4), st.integers(1, 4)),
        "channels": st.integers(1, 5),
        "classes": st.none() | st.sampled_from([1, 2, 1000]),
    }
)
flags = st.booleans()
switches = {
    "patch_size": st.integers(1, 5),
    "num_heads": st.integers(1, 4),
    "head_size": st.sampled_from([4, 8]),
    "num_layers": st.integers(1, 3),
    "mlp_dim": st.integers(1, 32),
    "pooling": st.sampled_from(["token", "token", "gap", "map", "attentive", "none"]),
    "class_token": st.sampled_from([None, True, False]),
    "class_tokens": st.integers(1, 3),
    "registers": st.integers(0, 3),
    "patch_dropout_rate": st.sampled_from([0.0, 0.0, 0.4]),
    "class_token_reduction": st.sampled_from(["mean", "concatenated"]),
    "representation_size": st.none() | st.integers(1, 16),
    "projection_size": st.none() | st.integers(1, 16),
    "normalize_embedding": flags,
    "map_heads": st.sampled_from([None, 1, 2, 4]),
    "map_mlp_dim": st.none() | st.integers(1, 16),
    "pool_prefix_tokens": flags,
    "final_norm": st.sampled_from(["tokens", "pooled", "none"]),
    "patch_bias": flags,
    "patch_norm": flags,
    "patch_padding": st.sampled_from([0, 0, 1, 2]),
    "position_offset": flags,
    "pixel_statistics": st.none() | st.just(((0.4,), (0.2,))),
    "resnet_stages": st.sampled_from([None, None, ()]),
    "activation": st.sampled_from(["gelu_tanh", "gelu", "quick_gelu"]),
    "norm": st.sampled_from(["layer", "rms"]),
    "layer_norm_epsilon": st.sampled_from([1e-6, 1e-5]),
    "pre_norm": flags,
    "norm_position": st.sampled_from(["pre", "pre", "post"]),
    "qkv_bias": st.sampled_from(["all", "none", "query_value"]),
    "proj_bias": flags,
    "qk_norm": st.sampled_from(["none", "head", "width"]),
    "kv_heads": st.none() | st.just(1),
    "mlp_bias": flags,
    "gated_mlp": flags,
    "layer_scale": st.sampled_from(["none", "attention", "both"]),
    "attention_norm": flags,
    "mlp_norm": flags,
    "rematerialize": flags,
    "attention": st.just("global"),
    "position_embedding": st.sampled_from(["learned", "learned2d", "sincos2d", "none"]),
    "position_injection": st.sampled_from(["stem", "stem", "blocks"]),
    "relative_bias": st.sampled_from(["none", "none", "blocks", "shared"]),
    "rotary": st.sampled_from(["none", "axial", "mixed"]),
    "rotary_theta": st.sampled_from([10.0, 1e4]),
    "rotary_layout": st.sampled_from(["half", "interleaved"]),
    "rotary_axes": st.sampled_from(["yx", "xy"]),
    "rotary_coordinates": st.sampled_from(["unit", "grid"]),
    "rotary_offset": st.sampled_from([0.0, 0.5]),
    "rotary_reference": st.none() | st.integers(1, 4),
    "rotary_periods": st.sampled_from(["computed", "stored"]),
    "rotary_class_angles": flags,
    "grid": st.tuples(st.integers(1, 4), st.integers(1, 4)),
    "channels": st.integers(1, 5),
    "classes": st.none() | st.sampled_from([1, 2, 1000]),
}


@st.composite
def encoders(draw):
    """The encoders' switches, but those that the others which were drawn leave no room for."""
    drawn = {name: draw(values) for name, values in switches.items()}
    changed = {}
    if drawn["relative_bias"] != "none":
        changed |= {"class_token": True, "class_tokens": 1, "registers": 0, "rotary": "none"}
    elif drawn["pooling"] == "token":
        changed |= {"class_token": draw(st.sampled_from([None, True]))}
    if drawn["rotary_coordinates"] == "unit":
        changed |= {"rotary_offset": 0.0, "rotary_reference": None}
    if drawn["norm_position"] == "post":
        changed |= {"layer_scale": "none"}
    if drawn["rotary"] == "mixed":
        changed |= {"rotary_periods": "computed", "kv_heads": None}
    if drawn["rotary_class_angles"] and (drawn | changed)["rotary"] == "axial":
        changed |= {"class_token": True, "class_tokens": 1}
    else:
        changed |= {"rotary_class_angles": False}
    if drawn["registers"] or drawn["patch_dropout_rate"] or drawn["position_embedding"] == "none":
        changed |= {"position_injection": "stem"}
    if drawn["final_norm"] == "pooled" and drawn["pooling"] not in ("token", "gap"):
        changed |= {"final_norm": "tokens"}
    if 2 * drawn["patch_padding"] >= drawn["patch_size"]:
        changed |= {"patch_padding": 0}
    now = drawn | changed
    without = {None: now["pooling"] in ("gap", "map", "attentive"), False: True, True: False}[now["class_token"]]
    if not without or now["position_embedding"] == "none" or now["position_injection"] != "stem":
        changed |= {"position_offset": False}
    if drawn["pixel_statistics"]:
        changed |= {"pixel_statistics": tuple(each * drawn["channels"] for each in drawn["pixel_statistics"])}
    drawn |= changed
    places = st.lists(st.integers(0, drawn["class_tokens"] - 1), min_size=1, unique=True)
    return drawn | {"class_token_indices": draw(st.none() | places.map(lambda found: tuple(sorted(found))))}


def expected_parameters(c, grid, channels, classes):
    """The closed form: section 1 of the paper's counts, spelled out for every option."""
    d, m = c.hidden_size, c.mlp_dim
    norm = 1 if c.norm == "rms" else 2  # times the width
    plain = 4 * d * d + 4 * d  # attention
    prefix = len(c.positioned_tokens)
    blocks = c.num_layers * (2 if c.attention == "axial" else 1)
    heads = [d // c.num_heads * count for count in c.kv_heads or (c.num_heads,) * blocks]
    total = (c.num_prefix_tokens + c.position_offset) * d + sum(block_parameters(c, norm, keys) for keys in heads)
    total += norm * d * ((c.final_norm == "tokens") + c.pre_norm + c.patch_norm)
    learned = (prefix + grid[0] * grid[1]) * d
    learned2d = prefix * d + (grid[0] + grid[1]) * (d // 2)
    tables = c.num_layers if c.position_injection == "blocks" else 1
    total += tables * {"learned": learned, "learned2d": learned2d}.get(c.position_embedding, 0)
    total += c.num_layers * (2 * grid[0] * grid[1] - 1) * d if c.position_embedding == "relative" else 0
    table = ((2 * grid[0] - 1) * (2 * grid[1] - 1) + 3) * c.num_heads
    total += table * {"none": 0, "shared": 1, "blocks": c.num_layers}[c.relative_bias]
    axial = d // c.num_heads // 4 if c.rotary_periods == "stored" else 0
    axial += d // c.num_heads // 2 if c.rotary_class_angles else 0
    total += {"none": 0, "axial": axial, "mixed": c.num_layers * d}[c.rotary]
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
    total += c.patch_size**2 * channels * d + d * c.patch_bias
    m = c.map_mlp_dim or m
    total += d + plain + norm * d + 2 * d * m + d + m if c.pooling == "map" else 0
    total += d + 3 * d * d + d if c.pooling == "attentive" else 0
    read = len(c.class_token_indices or range(c.class_tokens))
    width = d * read if (c.pooling, c.class_token_reduction) == ("token", "concatenated") else d
    total += norm * width if c.final_norm == "pooled" else 0
    for size in (c.representation_size, c.projection_size):
        total += (width + 1) * size if size else 0
        width = size or width
    return total + (width * classes + classes if classes else 0)


def block_parameters(c, norm, keys):
    """Attention, whose keys and values are so wide, the MLP, and what stands around and between them."""
    d, m = c.hidden_size, c.mlp_dim
    biases = {"all": d + 2 * keys, "query_value": d + keys, "none": 0}[c.qkv_bias] + d * c.proj_bias
    normed = {"none": 0, "head": 2 * d // c.num_heads, "width": d + keys}[c.qk_norm]
    kernels = 3 if c.gated_mlp else 2
    mlp = kernels * d * m + ((kernels - 1) * m + d) * c.mlp_bias + norm * m * c.mlp_norm
    scales = {"none": 0, "attention": 1, "both": 2}[c.layer_scale]
    attention = 2 * d * (d + keys) + biases + norm * (normed + d * c.attention_norm)
    return attention + mlp + 2 * norm * d + scales * d


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
    counted = parameter_count(config, shape[:2], classes or 0, channels)
    assert model.count_params() == expected_parameters(config, grid, channels, classes) == counted
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
        keras_vit.export(model, path, format="onnx", overwrite=True, options={"activation": activation})
    except keras_vit.ExportError as error:
        drift = re.findall(r"\| (?:logits|probabilities|features) \| ([-.\de]+) \|", str(error)) or [error]
    assert all(float(largest) < 1e-3 for largest in drift)


@settings(max_examples=12, **SETTINGS)
@given(arguments=valid | encoders())
def test_valid_arguments_build_a_model_of_the_closed_form_size(arguments):
    check(arguments)
    keras.utils.clear_session()


@pytest.mark.slow
@settings(max_examples=300, **SETTINGS)
@given(arguments=valid | encoders())
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


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=20, **SETTINGS)
@given(arguments=encoders())
def test_any_switches_give_a_model_that_is_saved_resized_exported_and_trained(arguments, tmp_path):
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
