"""What is saved comes back the same, in a fresh process and under Keras' default `safe_mode`."""

import dataclasses
import inspect
import json
import pickle
import warnings

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, run_python, tiny_config

import keras_vit
from keras_vit import layers

# Arguments that differ from every default; a new public layer without a row fails the first test.
SIZES = {"hidden_size": 12, "num_heads": 3, "mlp_dim": 17}
RATES = {"dropout_rate": 0.1, "attention_dropout_rate": 0.2, "stochastic_depth_rate": 0.3}
WAYS = {"activation": "gelu", "layer_norm_epsilon": 1e-5}
UNIT = {"filters": 32, "strides": 2, "projection": True}
RELATIVE = {"relative_patches": 6, "num_prefix_tokens": 1}
TWICE = {"num_output_tokens": None, "rematerialize": True}  # with relative positions a block computes all tokens
MERGED = {"merged_tokens": 2, "num_output_tokens": 1, "num_prefix_tokens": 1}
MERGED |= {"rematerialize": False, "relative_patches": None}  # and takes no others
TABLE = {"grid": (3, 5), "patch_size": 4, "num_prefix_tokens": 0}
LAYERS = {
    "StdConv2D": {"filters": 6, "kernel_size": 3, "strides": 2, "padding": "same", "use_bias": False},
    "ResNetRoot": {"width": 64},
    "ResNetUnit": UNIT,
    "BiTRoot": {"width": 64},
    "BiTUnit": UNIT,
    "PatchEmbedding": {"hidden_size": 12, "patch_size": 4},
    "PatchCorruption": {"rate": 0.4, "mask_share": 0.7, "random_share": 0.2, "seed": 5},
    "ClassToken": {"stddev": 0.02},
    "AddPositionEmbs": TABLE | {"kind": "sincos2d", "resize_method": "bilinear"},
    "RelativePositions": {"hidden_size": 12, "num_heads": 3, "num_patches": 6, "num_prefix_tokens": 1},
    "MultiHeadAttention": {"hidden_size": 12, "num_heads": 3, "dropout_rate": 0.1} | RELATIVE,
    "MlpBlock": {"hidden_size": 12, "mlp_dim": 17, "dropout_rate": 0.1, "activation": "gelu"},
    "TransformerBlock": SIZES | RATES | WAYS | RELATIVE | TWICE,
    "AxialBlock": SIZES | RATES | WAYS | {"patch_size": 4, "rematerialize": True},
    "MergingBlock": SIZES | RATES | WAYS | MERGED,
    "PatchDropout": {"rate": 0.4, "num_prefix_tokens": 2, "seed": 5, "tells_places": True},
    "TokenPooling": {"kind": "gap", "num_prefix_tokens": 1},
    "AttentionPooling": SIZES | WAYS | {"num_prefix_tokens": 1},
}
MODELS = {
    "token": {},
    "dynamic": {"input_shape": (None, None, 3)},
    "gap": {"pooling": "gap"},
    "map": {"pooling": "map", "activation": "gelu"},
    "none": {"pooling": "none", "include_top": False, "classes": None},
    "sincos": {"position_embedding": "sincos2d", "representation_size": 9},
    "hybrid": {"resnet_stages": (1,), "resnet_width_factor": 0.5, "patch_size": 1},
    "regularised": {"dropout_rate": 0.1, "attention_dropout_rate": 0.1, "stochastic_depth_rate": 0.1},
    "relative": {"position_embedding": "relative"},
    "positions_in_blocks": {"position_embedding": "learned2d", "position_injection": "blocks_shared"},
    "merging": {"merged_tokens": 2},
    "axial": {"attention": "axial", "pooling": "gap"},
    "cheaper": {"patch_dropout_rate": 0.5, "rematerialize": True},
}
RELOAD = (
    "import sys, json, dataclasses, keras, keras_vit, numpy as np\n"
    "for folder in sys.argv[1:]:\n"
    "    model = keras.saving.load_model(f'{folder}/model.keras')\n"
    "    np.save(f'{folder}/y.npy', keras.ops.convert_to_numpy(model(np.load(f'{folder}/x.npy'))))\n"
    "    print(json.dumps([type(model).__name__, model.config.as_dict(),"
    " dataclasses.asdict(model.preprocessing), model.weights_report]))"
)


def test_every_public_layer_has_a_row():
    assert set(LAYERS) == set(layers.__all__)


@pytest.mark.parametrize("name", LAYERS)
def test_layer_config_is_its_arguments_and_round_trips(name):
    cls = getattr(layers, name)
    layer = cls(**LAYERS[name], name="some", dtype="mixed_bfloat16")
    config = layer.get_config()
    if name != "StdConv2D":  # which takes Conv2D's arguments
        assert {key: config[key] for key in LAYERS[name]} == LAYERS[name]
        own = set(inspect.signature(cls.__init__).parameters) - {"self", "kwargs"}
        assert own <= set(LAYERS[name]) == set(config) - {"name", "trainable", "dtype"}
    json.dumps(config)
    again = cls.from_config(config)
    assert again.get_config() == config
    assert again.dtype_policy.name == "mixed_bfloat16"
    serialized = keras.saving.serialize_keras_object(layer)
    assert serialized["registered_name"] == f"keras_vit>{name}"
    assert keras.saving.deserialize_keras_object(serialized).get_config() == config


@pytest.fixture(scope="module")
def reloaded(tmp_path_factory):
    """Two models, one of them quantised: each with its input, and what one fresh process says of its file."""
    models = {"moved": keras_vit.with_input_shape(make_tiny(), (32, 16, 3)), "int8": make_tiny(pooling="map")}
    with warnings.catch_warnings():  # Keras says so of each other layer
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        models["int8"].quantize("int8")
    folders = {name: tmp_path_factory.mktemp(name) for name in models}
    inputs = {"moved": images(2, 32, 16, 3), "int8": images(2, 20, 28, 3)}
    for name, model in models.items():
        model.save(folders[name] / "model.keras")
        np.save(folders[name] / "x.npy", inputs[name])
    lines = run_python(RELOAD, *folders.values()).splitlines()[-len(models) :]
    return {
        name: (model, inputs[name], np.load(folders[name] / "y.npy"), json.loads(line))
        for (name, model), line in zip(models.items(), lines, strict=True)
    }


@pytest.mark.parametrize("name", MODELS)
def test_model_reloads_with_the_same_numbers_config_and_preprocessing(tmp_path, name):
    model = make_tiny(**MODELS[name])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    x = images(2, 20, 28, 3)
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))
    assert (again.config, again.preprocessing) == (model.config, model.preprocessing)
    assert [w.path for w in again.weights] == [w.path for w in model.weights]
    assert json.dumps(again.get_config()) == json.dumps(model.get_config())


def test_model_reloads_in_a_fresh_process(reloaded):
    model, x, y, (kind, config, preprocessing, report) = reloaded["moved"]
    np.testing.assert_array_equal(y, numpy(model(x)))
    assert kind == "VisionTransformer"
    assert keras_vit.ViTConfig(**config) == model.config
    assert keras_vit.Preprocessing(**preprocessing) == model.preprocessing
    assert tuple(report) == model.weights_report


def test_compiled_and_trained_model_goes_on_training_after_reload(tmp_path):
    model = make_tiny(dropout_rate=0.1, num_layers=1)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    x, y = images(4, 20, 28, 3), np.arange(4)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))
    assert again.evaluate(x, y, verbose=0) == model.evaluate(x, y, verbose=0)
    assert int(again.optimizer.iterations.numpy()) == 1
    again.fit(x, y, verbose=0)


def test_weights_file_fits_another_model_of_the_same_config(tmp_path, tiny):
    tiny.save_weights(tmp_path / "x.weights.h5")
    other = keras_vit.build(tiny_config(), input_shape=(20, 28, 3), classes=7)
    other.load_weights(tmp_path / "x.weights.h5")
    x = images(2, 20, 28, 3)
    np.testing.assert_array_equal(numpy(other(x)), numpy(tiny(x)))


def test_submodel_and_wrapping_model_reload(tmp_path, tiny):
    features = keras.Model(tiny.input, tiny.get_layer("block_00").output)
    inputs = keras.Input((20, 28, 3))
    wrapped = keras.Model(inputs, keras.layers.Dense(2)(tiny(inputs)))
    x = images(2, 20, 28, 3)
    for model in (features, wrapped):
        model.save(tmp_path / "model.keras")
        again = keras.saving.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))


def test_clone_json_and_pickle(tiny):
    x = images(2, 20, 28, 3)
    for again in (
        keras.models.clone_model(tiny),
        keras.models.model_from_json(tiny.to_json()),
        pickle.loads(pickle.dumps(tiny)),
    ):
        again.set_weights(tiny.get_weights())
        np.testing.assert_array_equal(numpy(again(x)), numpy(tiny(x)))


def test_quantised_model_reloads_in_a_fresh_process(reloaded):
    model, x, y, _ = reloaded["int8"]
    before, after = numpy(make_tiny(pooling="map")(x)), numpy(model(x))
    assert model.get_layer("block_00").attention.query.quantization_mode == "int8"
    assert 0 < np.abs(after - before).max() < 0.2 * before.std()
    np.testing.assert_array_equal(y, after)


def test_records_survive_json(tiny):
    for record in (tiny.config, tiny.preprocessing):
        assert type(record)(**json.loads(json.dumps(dataclasses.asdict(record)))) == record
