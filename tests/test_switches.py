"""What models of the encoders' switches share with all others: copies, files, looking inside, training, exports."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import images, make_tiny, numpy, randomise, tiny_config

import keras_vit
from keras_vit.exporting.folding import fold
from keras_vit.model.layer_access import encoder_blocks, token_layers

GRID = {"rotary": "axial", "rotary_coordinates": "grid", "rotary_layout": "interleaved", "rotary_theta": 1e4}
KINDS = {
    "dinov2": {"pooling": "token_gap", "registers": 3, "layer_scale": "both", "gated_mlp": True, "activation": "gelu"},
    "clip": {"pre_norm": True, "patch_bias": False, "activation": "quick_gelu", "layer_norm_epsilon": 1e-5},
    "sbb": {
        **{"registers": 2, "pooling": "gap", "class_token": False, "final_norm": "pooled"},
        **{"qkv_bias": "none", "layer_scale": "both", "representation_size": 6},
    },
    "beit3": {"attention_norm": True, "mlp_norm": True, "pooling": "gap", "class_token": True, "final_norm": "pooled"},
    "eva02": {"mlp_norm": True, "gated_mlp": True, "qkv_bias": "query_value", **GRID, "rotary_reference": 16},
    "pe": {
        **{"pre_norm": True, "patch_bias": False, "pooling": "map", "class_token": True, "layer_norm_epsilon": 1e-5},
        **{
            "map_heads": 2,
            "map_mlp_dim": 19,
            "pool_prefix_tokens": True,
            **GRID,
            "rotary_axes": "xy",
            "rotary_offset": 1.0,
            "rotary_class_angles": True,  # of MLCD
        },
    },
    "radio": {
        **{"class_tokens": 4, "class_token_indices": (0, 2), "class_token_reduction": "concatenated", "registers": 2},
        **{"final_norm": "none", "layer_scale": "both"},
        "pixel_statistics": ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)),
    },
    "aimv2": {
        **{"norm": "rms", "patch_norm": True, "gated_mlp": True, "qkv_bias": "none", "proj_bias": False},
        **{"mlp_bias": False, "pooling": "attentive", "class_token": False, "layer_norm_epsilon": 1e-5},
    },
    "beit": {
        **{"relative_bias": "blocks", "position_embedding": "none", "qkv_bias": "query_value", "layer_scale": "both"},
        **{"pooling": "gap", "class_token": True, "final_norm": "pooled"},
    },
    "beit_shared": {"relative_bias": "shared", "rematerialize": True},
    "dinov3": {
        **{"rotary": "axial", "rotary_periods": "stored", "position_embedding": "none", "registers": 3},
        **{"qkv_bias": "query_value", "gated_mlp": True, "layer_scale": "both", "layer_norm_epsilon": 1e-5},
    },
    "rope_mixed": {**GRID, "rotary": "mixed", "rotary_axes": "xy", "layer_scale": "both", "rematerialize": True},
    "sapiens2": {
        **{"norm": "rms", "qk_norm": "head", "kv_heads": (3, 1), "layer_scale": "attention", "gated_mlp": True},
        **{"registers": 2, "rotary": "axial", "position_embedding": "none", "hidden_size": 24},
    },
    "eva_clip_e": {"norm_position": "post", "qkv_bias": "query_value", "pooling": "map", "class_token": True},
    "vitpose": {"patch_padding": 1, "position_offset": True, "pooling": "gap", "class_token": False},
    "internvit": {"final_norm": "none", "layer_scale": "attention", "pooling": "gap", "class_token": True},
}
X = images(2, 20, 28, 3)
# Two kinds in one model, of which the second has the last word: each switch once. Each kind alone is for the night.
PAIRS = ("dinov2 clip", "sbb sapiens2", "beit3 beit", "eva02 pe", "rope_mixed radio", "dinov3 aimv2")
PAIRS += ("beit_shared internvit", "clip vitpose")
PAIRED = {"eva_clip_e", *" ".join(PAIRS).split()}  # of eva_clip_e the default suite has the folding alone


def fields_of(kinds):
    return {field: value for kind in kinds.split() for field, value in KINDS[kind].items()}


def with_format(kind, format):
    """Parameters of an export: of pairs each format in turn, and the product for the night."""
    by_night = kind in PAIRED or (kind in PAIRS and PAIRS.index(kind) % 2 != ("onnx", "openvino").index(format))
    return pytest.param(kind, format, marks=pytest.mark.nightly if by_night else ())


ALL = [pytest.param(kind, marks=pytest.mark.nightly if kind in PAIRED else ()) for kind in (*PAIRS, *KINDS)]


@pytest.fixture(scope="module", params=ALL)
def model(request):
    model = randomise(make_tiny(**fields_of(request.param)))
    for block in ("block_00", "block_01"):
        for scale in ("layer_scale_1", "layer_scale_2"):
            if layer := getattr(model.get_layer(block), scale, None):
                layer.gamma.assign(np.linspace(0.5, 1.5, layer.gamma.shape[0]))
    return model


def test_file_and_copies_give_the_same_numbers(model, tmp_path):
    model.save(tmp_path / "x.keras")
    again = keras.saving.load_model(tmp_path / "x.keras")
    assert again.config == model.config
    np.testing.assert_array_equal(numpy(again(X)), numpy(model(X)))
    moved, x = keras_vit.with_input_shape(model, (32, 16, 3)), images(1, 32, 16, 3)
    anywhere = keras_vit.with_input_shape(model, (None, None, 3))
    in_graph = tf.function(anywhere, input_signature=[tf.TensorSpec((None, None, None, 3))])
    for found in (anywhere(x), in_graph(x)):
        np.testing.assert_allclose(numpy(found), numpy(moved(x)), atol=1e-5)


def test_features_and_attention_know_registers_from_patches(model):
    prefix = model.config.num_prefix_tokens
    found = keras_vit.features(model, X, blocks=(1, 2))
    assert found[1].shape == (2, 5, 7, model.config.hidden_size)
    assert found.prefix_tokens[2].shape[1] == prefix
    last = keras.Model(model.input, token_layers(model)[-1].output)
    if model.config.num_pooled_tokens is None:
        np.testing.assert_allclose(found[2].reshape(2, 35, -1), numpy(last(X))[:, prefix:], atol=1e-5)
    maps = keras_vit.attention_maps(model, X)
    assert maps.prefix_tokens.count("register") == model.config.registers


@pytest.mark.parametrize("kind", ["dinov2", "dinov3", "sbb"])
def test_registers_that_change_places_change_no_other_token(kind):
    """They have no positions, neither in a table nor by rotation; their outputs change places with them."""
    model = randomise(make_tiny(**KINDS[kind] | {"pooling": "none", "final_norm": "tokens"}))
    layer, names = model.get_layer("register_tokens"), model.config.prefix_tokens
    order = np.roll(np.arange(layer.tokens.shape[1]), 1)
    places = np.arange(model.output_shape[1])
    first = names.index("register")
    places[first : first + len(order)] = first + order
    before = numpy(model(X))
    layer.tokens.assign(numpy(layer.tokens)[:, order])
    np.testing.assert_allclose(numpy(model(X)), before[:, places], atol=3e-6)
    assert np.abs(before[:, places] - before).max() > 0.01


def test_flat_model_with_a_head_of_its_own_is_looked_into_alike(model):
    flat = keras.Model(model.input, keras.layers.Dense(2, name="own")(model.output))
    np.testing.assert_array_equal(
        keras_vit.features(flat, X, blocks=(1,))[1], keras_vit.features(model, X, blocks=(1,))[1]
    )


def test_folded_model_computes_the_same_with_fewer_operations(model):
    copy, folds = fold(model)
    assert folds.norms > 0
    np.testing.assert_allclose(numpy(copy(X)), numpy(model(X)), atol=3e-6)
    blocks = encoder_blocks(copy)
    assert not [block.name for block in blocks if block.layer_scale_1 is not None or block.layer_scale_2 is not None]


def test_norms_behind_the_branches_stay_where_those_before_a_dense_layer_are_folded():
    model = randomise(make_tiny(**KINDS["eva_clip_e"]))
    copy, folds = fold(model)
    assert folds.norms == 2  # that of the pooling's MLP, and the encoder's, which the pooling reads
    assert copy.get_layer("block_01").norm_2.gamma is not None
    np.testing.assert_allclose(numpy(copy(X)), numpy(model(X)), atol=3e-6)


def test_lora_and_layer_decay_reach_it_and_training_moves_every_weight(model):
    copy = keras_vit.with_input_shape(model, (20, 28, 3))
    keras_vit.add_lora(copy, rank=2, targets=("attention", "mlp"))
    parts = 2 * len(copy.get_layer("block_00").parts) + {"attentive": 3, "map": 6}.get(model.config.pooling, 0)
    assert sum("lora_kernel_a" in weight.path for weight in copy.trainable_weights) == parts
    whole = keras_vit.with_input_shape(model, (20, 28, 3))
    depths = {w.path.split("/")[0]: w.layer_depth[0] for w in whole.weights}
    assert {depths[name] for name in ("register_tokens", "pre_norm") if name in depths} <= {0}
    assert {depths[name] for name in ("encoder_norm", "pooled_norm", "head") if name in depths} == {3}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    whole.compile(keras_vit.SGD(0.1), loss, run_eagerly=True)  # tracing takes longer than two steps
    before = [numpy(weight) for weight in whole.trainable_weights]
    whole.fit(X, np.array([0, 1]), epochs=2, verbose=0)
    still = [w.path for w, old in zip(whole.trainable_weights, before, strict=True) if np.array_equal(numpy(w), old)]
    assert [path for path in still if "key/bias" not in path] == []


@pytest.mark.parametrize("kind", KINDS)
def test_flops_are_those_of_the_parts(kind):
    """Counted by the parts that a block declares: a gate is a third kernel, biases and factors are none."""
    config = tiny_config(**KINDS[kind])
    plain = config.replace(gated_mlp=False)
    counted = [keras_vit.flops(c, (20, 28), classes=3).mlp for c in (config, plain)]
    assert counted[0] * 2 == counted[1] * (3 if config.gated_mlp else 2)


@pytest.mark.parametrize(
    ("model", "format"),
    [with_format(kind, format) for kind in (*PAIRS, *KINDS) for format in ("onnx", "openvino")],
    indirect=["model"],
)
def test_exports_stay_within_their_bounds(model, format, tmp_path):
    suffix = {"onnx": "onnx", "openvino": "xml"}[format]
    report = keras_vit.export(model, tmp_path / f"x.{suffix}", format, images=[np.zeros((20, 28, 3), "uint8")] * 2)
    assert report.top1_agreement == 1


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"final_norm": "pooled", "pooling": "map"}, "final_norm='pooled'"),
        ({"registers": 2, "position_injection": "blocks"}, "registers=2"),
        ({"attention": "axial", "pooling": "gap", "layer_scale": "both"}, "layer_scale='both'"),
        ({"registers": -1}, "registers=-1"),
        ({"layer_scale": "mlp"}, "layer_scale='mlp'"),
        ({"norm_position": "both"}, "norm_position='both'"),
        ({"norm_position": "post", "layer_scale": "both"}, "layer_scale='both'"),
        ({"norm_position": "post", "attention": "axial", "pooling": "gap"}, "norm_position='post'"),
        ({"qkv_bias": True}, "qkv_bias=True"),
        ({"class_tokens": 2, "distilled": True}, "class_tokens=2"),
        ({"class_tokens": 2, "class_token_indices": (0, 2)}, r"class_token_indices=\(0, 2\)"),
        ({"norm": "batch"}, "norm='batch'"),
        ({"kv_heads": (3, 2)}, r"kv_heads=\(3, 2\)"),
        ({"qk_norm": True}, "qk_norm=True"),
        ({"rotary": "mixed", "kv_heads": 1, "hidden_size": 24}, r"kv_heads=\(1, 1\)"),
        ({"relative_bias": "blocks", "registers": 2}, "relative_bias='blocks'"),
        ({"relative_bias": "shared", "rotary": "axial"}, "rotary='axial'"),
    ],
)
def test_switches_that_contradict_are_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        make_tiny(**wrong)
