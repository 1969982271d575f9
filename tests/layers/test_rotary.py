"""Rotary positions against complex numbers in float64, their laws, and every way that a block goes with them."""

import functools

import keras
import numpy as np
import oracle
import pytest
import tensorflow as tf
from conftest import images, make_tiny, numpy, randomise

import keras_vit
from keras_vit import kernels
from keras_vit.layers import RotaryPositions, TransformerBlock
from keras_vit.layers.rotary import rotated

_GRID = {"rotary_coordinates": "grid", "rotary_layout": "interleaved"}
RULES = {
    "dinov3": dict(rotary_theta=100.0, rotary_layout="half", rotary_axes="yx", rotary_coordinates="unit"),
    "stored": dict(
        rotary_theta=100.0, rotary_layout="half", rotary_axes="yx", rotary_coordinates="unit", rotary_periods="stored"
    ),
    "eva02": dict(rotary_theta=10000.0, rotary_axes="yx", rotary_reference=16, **_GRID),
    "pe": dict(rotary_theta=10000.0, rotary_axes="xy", rotary_offset=1.0, **_GRID),
    "pe_of_timm": dict(rotary_theta=10000.0, rotary_axes="xy", rotary_offset=1.0, rotary_reference=4, **_GRID),
    "mlcd": dict(
        **{"rotary_theta": 10000.0, "rotary_layout": "half", "rotary_axes": "yx", "rotary_coordinates": "grid"},
        rotary_class_angles=True,
    ),
    "axial": dict(rotary_theta=100.0, rotary_axes="xy", **_GRID),
    "mixed": dict(rotary="mixed", rotary_theta=10.0, rotary_axes="xy", **_GRID),
}
HEADS, HEAD, PREFIX = 3, 8, 2


def make_rotary(rule, **others):
    layer = RotaryPositions(HEAD, HEADS, 4, PREFIX, **RULES[rule] | others)
    layer.build((None, None, None, 3))
    if rule == "stored":
        layer.periods.assign([1.0, 3.15625])  # as bfloat16 has the root of 10, and not as computed
    return layer


def turned(x, grid, rule, layer):
    """`(B, T, A, E)` turned by the second computation."""
    weights = {weight.name: np.asarray(weight, "float64") for weight in layer.weights}
    x = oracle.turned(x.transpose(0, 2, 1, 3).astype("float64"), grid, RULES[rule], **weights)
    return x.transpose(0, 2, 1, 3)


@pytest.mark.parametrize("rule", RULES)
def test_rotation_equals_complex_numbers_on_grids_known_and_unknown(rule):
    layer, x = make_rotary(rule), images(2, PREFIX + 15, HEADS, HEAD)
    expected = turned(x, (3, 5), rule, layer)
    size_unknown = tf.function(layer, input_signature=[tf.TensorSpec((None, None, None, 3))])
    for rotation in (layer(images(1, 12, 20, 3)), size_unknown(images(2, 12, 20, 3))):
        got = numpy(rotated(x, rotation, layer.rotary_layout))
        np.testing.assert_allclose(got, expected, atol=2e-6)
        fixed = slice(int(layer.rotary_class_angles), PREFIX)
        np.testing.assert_array_equal(got[:, fixed], x[:, fixed])
        assert np.any(got[:, 0] != x[:, 0]) == layer.rotary_class_angles
        np.testing.assert_allclose((got**2).sum(-1), (x**2).sum(-1), rtol=1e-5)
    symbolic = layer(keras.Input((12, 20, 3)))
    assert symbolic.shape == rotation.shape
    assert symbolic.dtype == "float32"


@pytest.mark.parametrize("rule", ["eva02", "pe", "axial", "mixed"])
def test_products_depend_on_how_far_apart_patches_are(rule):
    layer, grid = make_rotary(rule), (4, 5)
    tokens = PREFIX + 20
    query, key = (np.tile(images(1, 1, HEADS, HEAD, seed=seed), (1, tokens, 1, 1)) for seed in (1, 2))
    rotation = layer(images(1, 16, 20, 3))
    query, key = (numpy(rotated(x, rotation, layer.rotary_layout))[0, PREFIX:] for x in (query, key))
    products = np.einsum("qae,kae->qka", query, key).reshape(*grid, *grid, HEADS)
    np.testing.assert_allclose(products[1:, 1:, 1:, 1:], products[:-1, :-1, :-1, :-1], atol=5e-6)
    assert np.abs(products[1:, :, :-1] - products[:-1, :, 1:]).max() > 0.01


def test_each_field_changes_the_rotation_and_angle_0_does_not_turn():
    x = images(1, PREFIX + 15, HEADS, HEAD)
    changes = {"rotary_theta": 50.0, "rotary_layout": "half", "rotary_axes": "yx", "rotary_offset": 1.0}
    changes |= {"rotary_reference": 16, "rotary_coordinates": "unit"}
    outputs = [
        numpy(rotated(x, layer(images(1, 12, 20, 3)), layer.rotary_layout))
        for layer in [make_rotary("axial"), *(make_rotary("axial", **{name: changes[name]}) for name in changes)]
    ]
    for index, one in enumerate(outputs):
        for other in outputs[:index]:
            assert np.abs(one - other).max() > 0.1
    x = x[:, : PREFIX + 1]
    np.testing.assert_array_equal(numpy(rotated(x, make_rotary("axial")(images(1, 4, 4, 3)), "interleaved")), x)


def test_learned_frequencies_begin_as_axes_at_right_angles_for_each_head():
    values = numpy(make_rotary("mixed").frequencies)  # (2, A, E/2)
    lengths = np.hypot(*values)
    np.testing.assert_allclose(lengths, np.tile(10.0 ** (-np.arange(2) / 2), (HEADS, 2)), rtol=1e-5)
    np.testing.assert_allclose(np.sum(values[..., :2] * values[..., 2:], axis=0), 0, atol=1e-6)
    assert np.ptp(values[0, :, 0]) > 0.01


def test_places_pick_the_rows_of_the_patches_that_stay():
    layer, places = make_rotary("dinov3"), np.array([[14, 0, 3], [7, 8, 1]])
    whole, feature_map = numpy(layer(images(2, 12, 20, 3))), images(2, 12, 20, 3)
    np.testing.assert_array_equal(numpy(layer(feature_map, patch_indices=places, training=False)), whole)
    kept = numpy(layer(feature_map, patch_indices=places, training=True))
    for example, row in enumerate(places):
        np.testing.assert_array_equal(kept[example, :, PREFIX:], whole[0][:, PREFIX + row])
        np.testing.assert_array_equal(kept[example, :, :PREFIX], whole[0][:, :PREFIX])


@pytest.mark.parametrize("rule", ["dinov3", "mlcd", "mixed"])
def test_block_equals_float64_in_each_of_its_ways(rule):
    """Inference, training, rematerialised, with the first tokens alone, and watched; and its gradients agree."""
    layer, x, width = make_rotary(rule), images(2, PREFIX + 15, HEADS * HEAD), HEADS * HEAD
    rotation, slopes = layer(images(1, 12, 20, 3)), []
    learned = {weight.name: np.asarray(weight, "float64") for weight in layer.weights}
    for switches, queries in (({}, None), ({"rematerialize": True}, None), ({}, 1)):
        block = TransformerBlock(width, HEADS, 17, rotary_layout=layer.rotary_layout, **switches)
        block.build((None, None, width))
        randomise(block)
        turn = functools.partial(oracle.turned, grid=(3, 5), rule=RULES[rule], **learned)
        expected = oracle.block(x.astype("float64"), oracle.weights_of(block), HEADS, turned=turn)
        shown = expected[:, :queries]
        for training in (False, True):
            np.testing.assert_allclose(
                numpy(block(x, rotation=rotation, training=training, num_queries=queries)), shown, atol=4e-6
            )
        with kernels.record_attention() as seen:
            np.testing.assert_allclose(numpy(block(x, rotation=rotation, num_queries=queries)), expected, atol=4e-6)
        np.testing.assert_allclose(numpy(seen[0][1]).sum(-1), 1, atol=1e-5)
        with tf.GradientTape() as tape:
            tape.watch(weights := [weight.value for weight in (*block.trainable_weights, *layer.weights)])
            again = layer(images(1, 12, 20, 3))
            loss = tf.reduce_sum(block(x, rotation=again, training=True, num_queries=queries)[:, :1] ** 2)
        slopes.append([numpy(slope) for slope in tape.gradient(loss, weights)])
    for other in slopes[1:]:
        for one, two in zip(slopes[0], other, strict=True):
            assert np.any(one)
            np.testing.assert_allclose(one, two, atol=1e-4 * max(1, np.abs(one).max()))
    with pytest.raises(ValueError, match="rotation=None"):
        block(x)


def test_angles_stay_in_float32_under_mixed_precision():
    """The rotation is the float32 one, and what it turns is rounded once: 0.004 is a step of bfloat16 near 1."""
    model = make_tiny(rotary="axial", position_embedding="none", hidden_size=24, num_heads=3)
    x = images(2, 20, 28, 3)
    half = keras_vit.model.copies.with_dtype(model, "mixed_bfloat16")
    layer = half.get_layer("rotary_positions")
    assert layer.compute_dtype == "float32"
    seen = []
    block = half.get_layer("block_01")
    call, block.forward = (
        block.forward,
        lambda *given, **others: seen.append((given, others)) or call(*given, **others),
    )
    np.testing.assert_allclose(numpy(half(x)), numpy(model(x)), atol=0.1)
    ((tokens, *_), others), *_ = seen
    assert (tokens.dtype, others["rotation"].dtype) == ("bfloat16", "float32")


def test_model_with_patch_dropout_trains_and_mixed_frequencies_learn():
    """The places go with the patches that stay, and a step changes the frequencies of every block."""
    fields = {"rotary": "mixed", "rotary_coordinates": "grid", "registers": 2, "patch_dropout_rate": 0.5}
    model = make_tiny(hidden_size=24, num_heads=3, **fields)
    paths = [w.path for w in model.trainable_weights if "frequencies" in w.path]
    assert paths == [f"rotary_positions_{block:02}/frequencies" for block in range(model.config.num_layers)]
    before = {w.path: numpy(w) for w in model.trainable_weights}
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(images(4, 20, 28, 3), np.arange(4), verbose=0)
    for weight in model.trainable_weights:
        if weight.path in paths:
            assert np.any(before[weight.path] != numpy(weight))
            assert 0 < weight.layer_depth[0] <= model.config.num_layers
    keras_vit.freeze(model, "last_blocks", blocks=1)
    assert [weight.path for weight in model.trainable_weights if weight.path in paths] == paths[-1:]


def test_rotary_positions_refuse_what_they_cannot_turn():
    for fields, words in (
        ({"hidden_size": 18, "num_heads": 3}, "multiple of 4"),
        ({"merged_tokens": 1}, "merged_tokens=1"),
        ({"position_embedding": "relative"}, "relative"),
        ({"attention": "axial", "pooling": "gap", "position_embedding": "none"}, "attention='axial'"),
        ({"rotary_offset": 1.0}, "rotary_offset=1.0"),
        ({"rotary_layout": "pairs"}, "rotary_layout='pairs'"),
        ({"rotary_class_angles": True, "rotary": "mixed", "rotary_coordinates": "grid"}, "rotary='mixed'"),
        ({"rotary_class_angles": True, "pooling": "gap"}, "has_class_token=False"),
        ({"rotary_class_angles": True, "class_tokens": 2}, "class_tokens=2"),
        ({"rotary_reference": 0, "rotary_coordinates": "grid"}, "rotary_reference=0"),
    ):
        with pytest.raises(ValueError, match=words):
            make_tiny(**{"rotary": "axial", "hidden_size": 24, "num_heads": 3} | fields)
    with pytest.raises(ValueError, match="num_prefix_tokens=0"):
        RotaryPositions(HEAD, HEADS, 4, rotary_class_angles=True)
