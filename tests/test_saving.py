"""What is saved comes back the same, in another process and under Keras' default `safe_mode`."""

import base64
import dataclasses
import inspect
import json
import pickle
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, tiny_config

import keras_vit
from keras_vit import layers

# Arguments that differ from every default; a new public layer without a row fails the first test.
SIZES = {"hidden_size": 12, "num_heads": 3, "mlp_dim": 17}
RATES = {"dropout_rate": 0.1, "attention_dropout_rate": 0.2, "stochastic_depth_rate": 0.3}
WAYS = {"activation": "gelu", "layer_norm_epsilon": 1e-5}
GROUPED = {"qk_norm": "head", "kv_heads": 1}
BIASES = {"qkv_bias": "none", "proj_bias": False, "norm_kind": "rms", "rotary_layout": "half"} | GROUPED
SWITCHES = {"qkv_bias": "none", "gated_mlp": True, "layer_scale": "both", "layer_scale_init": 0.1, "norm": "rms"}
SWITCHES |= {"attention_norm": True, "mlp_norm": True, "proj_bias": False, "mlp_bias": False}
SWITCHES |= {"rotary_layout": "half", "use_attention_bias": True, "norm_position": "pre"} | GROUPED
WINDOWS = {name: value for name, value in SWITCHES.items() if name not in ("rotary_layout", "use_attention_bias")}
WINDOWS |= {"grid": (3, 5), "patch_size": 4, "window_size": 2}
NO_BIAS = {"mlp_bias": False, "norm_kind": "rms"}
UNIT = {"filters": 32, "strides": 2, "projection": True}
INNER, HIDDEN = ({name: True, "layer_norm_epsilon": 1e-5} for name in ("attention_norm", "mlp_norm"))
RELATIVE = {"relative_patches": 6, "num_prefix_tokens": 1}
TWICE = {"rematerialize": True}
MERGED = {"merged_tokens": 2, "num_prefix_tokens": 1}
MERGED |= {
    "rematerialize": False,
    "relative_patches": None,
    "rotary_layout": None,
    "use_attention_bias": False,
    "layer_scale": "none",
    "norm_position": "post",
}  # and takes no others
TURNED = {
    "rotary": "axial",
    "rotary_class_angles": True,
    "rotary_theta": 10.0,
    "rotary_layout": "interleaved",
    "rotary_axes": "xy",
}
TURNED |= {"rotary_coordinates": "grid", "rotary_offset": 1.0, "rotary_reference": 16, "rotary_periods": "stored"}
TABLE = {"grid": (3, 5), "patch_size": 4, "num_prefix_tokens": 0}
IN_FLOAT32 = (
    "PatchMask",
    "RelativeBias",
    "RotaryPositions",
    "TextMask",
    "TextPooling",
)  # whatever the model's precision
LAYERS = {
    "StdConv2D": {"filters": 6, "kernel_size": 3, "strides": 2, "padding": "same", "use_bias": False},
    "ResNetRoot": {"width": 64},
    "ResNetUnit": UNIT,
    "BiTRoot": {"width": 64},
    "BiTUnit": UNIT,
    "PatchEmbedding": {"hidden_size": 12, "patch_size": 4, "patch_bias": False, "patch_padding": 1},
    "PatchCorruption": {"rate": 0.4, "mask_share": 0.7, "random_share": 0.2, "seed": 5, "squares": (6, 4, 2)},
    "PatchColumn": {"patch_size": 4},
    "PatchMask": {"num_prefix_tokens": 2},
    "ZeroPadding": {},
    "PadToMultiple": {"multiple": 14, "where": "end"},
    "TapMaps": {"patch_size": 4, "num_prefix_tokens": 2, "class_token": True},
    "LinearHead": {"outputs": 5, "use_batch_norm": False, "upsample": 4, "dropout_rate": 0.1},
    "DepthFromBins": {"depth_range": (0.1, 10.0), "bins": "log", "normalise": "softmax"},
    "DPTHead": {
        **{"channels": (3, 4, 5, 6), "features": 8, "outputs": 2, "readout": True, "tap_norm": True},
        **{"unit_bias": False, "unit_norm": True, "first_units": 1, "exact_sizes": True, "before": "relu"},
        **{"end": "classes", "patch_size": 8, "auxiliary": 0, "end_width": 6},
    },
    "Fusion": {"features": 8, "use_bias": False, "use_batch_norm": True, "units": 1, "joins": False},
    "ResidualUnit": {"features": 8, "use_bias": False, "use_batch_norm": True},
    "UPerNetHead": {
        **{"outputs": 2, "channels": 6, "neck": "multi_level", "neck_channels": 7, "pool_scales": (1, 3)},
        **{"dropout_rate": 0.1, "auxiliary": ()},
    },
    "TapPyramid": {"kind": "multi_level", "channels": 6},
    "ConvBatchNormReLU": {"filters": 6, "kernel_size": 1},
    "MaskTransformerHead": {"outputs": 2, "hidden_size": 6, "num_heads": 3, "num_layers": 1, "mlp_dim": 7},
    "SETRHead": {"outputs": 2, "channels": 6, "convolutions": 3, "upsample": 3, "auxiliary": ()},
    "FCNHead": {"outputs": 2, "channels": 6, "convolutions": 2},
    "DepthOutput": {"rule": "sigmoid", "depth_range": (0.0, 20.0)},
    "DINOHead": {"prototypes": 5, "hidden_size": 8, "bottleneck_size": 4, "num_layers": 2, "weight_norm": False},
    "PrototypeLogits": {"prototypes": 5, "weight_norm": False},
    "ResizeToImages": {"method": "bicubic", "align_corners": True, "multiple": 14},
    "QueryTokens": {"count": 3, "num_prefix_tokens": 2},
    "MaskHead": {"outputs": 3, "num_queries": 4, "num_prefix_tokens": 2, "patch_size": 4, "upscales": 1},
    "MaskScores": {},
    "OpenBoxHead": {
        **{"outputs": 3, "embedding_size": 5, "patch_size": 4, "objectness": True, "layer_norm_epsilon": 1e-6},
    },
    "KeypointHead": {"outputs": 3, "kind": "classic", "channels": 6, "upsample": 2},
    "BoxHead": {"outputs": 3, "num_tokens": 5, "first": 2},
    "TokenEmbedding": {"vocabulary_size": 9, "hidden_size": 12, "scale_tokens": True},
    "TextPositions": {"max_length": 7, "kind": "sincos"},
    "TextMask": {"causal": True, "pad_id": 1},
    "TextPooling": {"kind": "end", "end_id": 2, "pad_id": 1},
    "ClassToken": {"stddev": 0.02, "count": 3},
    "RegisterTokens": {"count": 3, "num_prefix_tokens": 2},
    "AddPositionEmbs": TABLE | {"kind": "sincos2d", "resize_method": "bilinear"},
    "PositionOffset": {},
    "AxisPositions": {"grid": (2, 3), "head_dim": 4},
    "Neck": {"channels": 5, "patch_size": 4},
    "RelativePositions": {"hidden_size": 12, "num_heads": 3, "num_patches": 6, "num_prefix_tokens": 1},
    "PixelNormalization": {"pixel_statistics": ((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))},
    "RotaryPositions": {"head_dim": 8, "num_heads": 3, "patch_size": 4, "num_prefix_tokens": 2} | TURNED,
    "RelativeBias": {"grid": (3, 5), "num_heads": 3, "patch_size": 4, "resize_method": "bilinear"},
    "MultiHeadAttention": {"hidden_size": 12, "num_heads": 3, "dropout_rate": 0.1, "projects_query": False}
    | RELATIVE
    | BIASES
    | INNER,
    "MlpBlock": {"hidden_size": 12, "mlp_dim": 17, "dropout_rate": 0.1, "activation": "gelu"} | HIDDEN | NO_BIAS,
    "GatedMlpBlock": {"hidden_size": 12, "mlp_dim": 17, "dropout_rate": 0.1} | HIDDEN | NO_BIAS,
    "RMSNorm": {"epsilon": 1e-5},
    "LayerScale": {"init": 0.1},
    "TransformerBlock": SIZES | RATES | WAYS | SWITCHES | RELATIVE | TWICE,
    "AxialBlock": SIZES | RATES | WAYS | {"patch_size": 4, "rematerialize": True},
    "WindowedBlock": SIZES | RATES | WAYS | WINDOWS | TWICE,
    "MergingBlock": SIZES | RATES | WAYS | SWITCHES | MERGED,
    "PatchDropout": {"rate": 0.4, "num_prefix_tokens": 2, "seed": 5, "return_indices": True},
    "TokenPooling": {
        "kind": "gap",
        "num_prefix_tokens": 1,
        "class_token_indices": (0, 2),
        "class_token_reduction": "concatenated",
    },
    "AttentionPooling": SIZES | WAYS | {"num_prefix_tokens": 1, "kind": "attentive", "norm_kind": "rms"},
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


def test_every_public_layer_has_a_row():
    assert set(LAYERS) == set(layers.__all__)


@pytest.mark.parametrize("name", LAYERS)
def test_layer_config_is_its_arguments_and_round_trips(name):
    cls = getattr(layers, name)
    layer = cls(**LAYERS[name], name="some", dtype="mixed_bfloat16")
    config = layer.get_config()
    if name != "StdConv2D":  # which takes Conv2D's arguments
        assert {key: config[key] for key in LAYERS[name]} == LAYERS[name]
        keras_own = set(inspect.signature(keras.layers.Layer.__init__).parameters)  # where a layer takes no others
        own = set(inspect.signature(cls.__init__).parameters) - keras_own - {"kwargs"}
        assert own <= set(LAYERS[name]) == set(config) - {"name", "trainable", "dtype"}
    json.dumps(config)
    again = cls.from_config(config)
    assert again.get_config() == config
    assert again.dtype_policy.name == ("float32" if name in IN_FLOAT32 else "mixed_bfloat16")
    serialized = keras.saving.serialize_keras_object(layer)
    assert serialized["registered_name"] == f"keras_vit>{name}"
    assert keras.saving.deserialize_keras_object(serialized).get_config() == config


SIZES_OF_WRITTEN = {"moved": (32, 16, 3), "int8": (20, 28, 3)}


def written_elsewhere():
    """Two models, one of them quantised: each with its file, its answers, and what it knows of itself."""
    models, found = (
        {"moved": keras_vit.with_input_shape(make_tiny(), (32, 16, 3)), "int8": make_tiny(pooling="map")},
        {},
    )
    with warnings.catch_warnings():  # Keras says so of each other layer
        warnings.filterwarnings("ignore", "Layer .* does not have a `quantize` method")
        models["int8"].quantize("int8")
    for name, model in models.items():
        with tempfile.TemporaryDirectory() as folder:
            model.save(f"{folder}/model.keras")
            file = base64.b64encode(Path(folder, "model.keras").read_bytes()).decode()
        answers = numpy(model(images(2, *SIZES_OF_WRITTEN[name]))).tolist()
        records = model.config.as_dict(), dataclasses.asdict(model.preprocessing), model.load_report
        found[name] = [file, answers, type(model).__name__, *records]
    return found


def reloaded(found, name, folder):
    """The model of a file that another process wrote, its answers here, and what that process said of it."""
    file, *said = found[name]
    (folder / "model.keras").write_bytes(base64.b64decode(file))
    model = keras.saving.load_model(folder / "model.keras")
    return model, numpy(model(images(2, *SIZES_OF_WRITTEN[name]))), said


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


@pytest.mark.elsewhere("two devices", "written_elsewhere")
def test_model_reloads_in_another_process(found, tmp_path):
    model, y, (answers, kind, config, preprocessing, report) = reloaded(found, "moved", tmp_path)
    np.testing.assert_array_equal(y, np.array(answers, "float32"))
    assert type(model).__name__ == kind == "VisionTransformer"
    assert keras_vit.ViTConfig(**config) == model.config
    assert keras_vit.Preprocessing(**preprocessing) == model.preprocessing
    assert tuple(report) == model.load_report


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


@pytest.mark.elsewhere("two devices", "written_elsewhere")
def test_quantised_model_reloads_in_another_process(found, tmp_path):
    model, after, (answers, *_) = reloaded(found, "int8", tmp_path)
    before = numpy(make_tiny(pooling="map")(images(2, *SIZES_OF_WRITTEN["int8"])))
    assert model.get_layer("block_00").attention.query.quantization_mode == "int8"
    assert 0 < np.abs(after - before).max() < 0.2 * before.std()
    np.testing.assert_array_equal(after, np.array(answers, "float32"))


def test_records_survive_json(tiny):
    for record in (tiny.config, tiny.preprocessing):
        assert type(record)(**json.loads(json.dumps(dataclasses.asdict(record)))) == record


@pytest.mark.parametrize("name", ["x.h5", "x.hdf5"])
def test_hdf5_is_refused_before_it_is_written(tmp_path, tiny, name):
    """Keras would write it, and could not load it again."""
    with pytest.raises(ValueError, match=rf"\.keras(.|\n)*{name}"):
        tiny.save(tmp_path / name)
    assert not list(tmp_path.iterdir())
    tiny.save_weights(tmp_path / "x.weights.h5")
