import numpy as np
import oracle
import pytest
import tensorflow as tf
from conftest import images, numpy, randomise

from keras_vit.layers import MlpBlock, TransformerBlock
from keras_vit.layers.branches import SWITCHES, Branches


def make_block(**arguments):
    block = TransformerBlock(12, 3, 17, **arguments)
    block.build((None, 7, 12))
    return randomise(block)


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu"])
def test_mlp_equals_float64_and_the_two_gelus_differ(activation):
    layer = MlpBlock(12, 17, activation=activation)
    layer.build((None, 7, 12))
    randomise(layer)
    x = images(2, 7, 12) * 4
    w = oracle.weights_of(layer)
    np.testing.assert_allclose(numpy(layer(x)), oracle.mlp(x, w, activation == "gelu"), atol=2e-6)
    assert np.abs(numpy(layer(x)) - oracle.mlp(x, w, activation != "gelu")).max() > 5e-5


def test_mlp_biases_start_small_and_not_at_zero():
    layer = MlpBlock(12, 1000)
    layer.build((None, 7, 12))
    assert numpy(layer.dense_1.bias).std() == pytest.approx(1e-6, rel=0.1)


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu"])
def test_block_equals_float64(activation):
    block = make_block(activation=activation)
    x = images(2, 7, 12)
    expected = oracle.block(x.astype("float64"), oracle.weights_of(block), 3, activation == "gelu")
    np.testing.assert_allclose(numpy(block(x)), expected, atol=3e-6)


def test_quick_gelu_equals_float64():
    layer = MlpBlock(12, 17, activation="quick_gelu", dropout_rate=0.1)
    layer.build((None, 7, 12))
    randomise(layer)
    x, w = images(2, 7, 12) * 4, oracle.weights_of(layer)
    hidden = oracle.quick_gelu(x @ w["dense_1/kernel"] + w["dense_1/bias"])
    np.testing.assert_allclose(numpy(layer(x)), hidden @ w["dense_2/kernel"] + w["dense_2/bias"], atol=3e-6)


@pytest.mark.parametrize(
    "switches",
    [
        {"layer_scale": "both"},
        {"layer_scale": "attention", "qkv_bias": "none"},
        {"gated_mlp": True, "layer_scale": "both", "rematerialize": True},
        {"qkv_bias": "query_value", "mlp_norm": True, "gated_mlp": True},
        {"attention_norm": True, "mlp_norm": True, "rematerialize": True},
        {"attention_norm": True, "mlp_norm": True, "dropout_rate": 1e-9},
        {"norm": "rms", "mlp_bias": False, "rematerialize": True},
        {"norm": "rms", "qk_norm": "head", "kv_heads": 1, "layer_scale": "attention"},
        {"qk_norm": "width"},
        {"norm_position": "post", "qkv_bias": "query_value", "dropout_rate": 1e-9},
        {"norm_position": "post", "norm": "rms", "gated_mlp": True, "rematerialize": True},
        {
            "norm": "rms",
            "mlp_norm": True,
            "attention_norm": True,
            "qkv_bias": "none",
            "proj_bias": False,
            "mlp_bias": False,
            "gated_mlp": True,
        },
    ],
)
def test_switches_of_a_block_equal_float64_and_its_training_step(switches):
    """The way of training computes the same, and every weight has a gradient."""
    block, x = make_block(**switches), images(2, 7, 12)
    where = switches.get("norm_position", "pre")
    expected = oracle.block(x.astype("float64"), oracle.weights_of(block), 3, norm_position=where)
    np.testing.assert_allclose(numpy(block(x)), expected, atol=3e-6)
    np.testing.assert_allclose(numpy(block(x, training=True)), expected, atol=3e-6)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(block(x, training=True) ** 2)
    slopes = tape.gradient(loss, [weight.value for weight in block.trainable_weights])
    assert all(slope is not None and np.any(numpy(slope)) for slope in slopes)


def test_layer_scale_of_ones_is_a_plain_block_and_any_is_one_of_other_kernels():
    plain, x = make_block(), images(2, 7, 12)
    scaled = TransformerBlock(12, 3, 17, layer_scale="both", layer_scale_init=1.0)
    scaled.build((None, 7, 12))
    layers = {"layer_scale_1": plain.attention.out, "layer_scale_2": plain.mlp.dense_2}
    values = {weight.path.partition("/")[2]: weight for weight in plain.weights}
    for weight in scaled.weights:
        weight.assign(values.get(weight.path.partition("/")[2], weight))
    np.testing.assert_array_equal(numpy(scaled(x)), numpy(plain(x)))
    for name, dense in layers.items():
        getattr(scaled, name).gamma.assign(np.linspace(0.5, 1.5, 12))
        for weight in dense.weights:
            weight.assign(weight * np.linspace(0.5, 1.5, 12, dtype="float32"))
    np.testing.assert_allclose(numpy(scaled(x)), numpy(plain(x)), atol=2e-6)


@pytest.mark.parametrize(
    ("fields", "free"),
    [
        ({}, True),
        ({"use_attention_bias": True}, True),
        ({"rotary_layout": "half"}, False),
        ({"qk_norm": "head"}, False),
    ],
)
def test_bias_of_the_key_is_free_unless_keys_are_turned_or_normed(fields, free):
    """Softmax does not see what all logits of a query have more; so BEiT and DINOv3 leave this bias out."""
    block, x = make_block(**fields), images(2, 7, 12)
    angles = images(7, 1, 4)
    known = {"bias": images(1, 3, 7, 7)} if "use_attention_bias" in fields else {}
    known |= {"rotation": np.stack([np.cos(angles), np.sin(angles)])[None]} if "rotary_layout" in fields else {}
    before = numpy(block(x, **known))
    block.attention.key.bias.assign(images(12, seed=6))
    change = np.abs(numpy(block(x, **known)) - before).max()
    assert change < 2e-6 if free else change > 1e-3


@pytest.mark.parametrize("where", ["pre", "post"])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_block_of_the_first_tokens_gives_the_same_numbers(count, where):
    block, short = make_block(norm_position=where), make_block(norm_position=where, num_output_tokens=count)
    x = images(2, 7, 12)
    assert [w.path.split("/", 1)[1] for w in short.weights] == [w.path.split("/", 1)[1] for w in block.weights]
    np.testing.assert_allclose(numpy(block(x, num_queries=count)), numpy(block(x))[:, :count], atol=1e-6)
    np.testing.assert_array_equal(numpy(short(x)), numpy(block(x, num_queries=count)))  # as files of 0.6 have it


def test_stochastic_depth_drops_whole_branches_of_single_examples():
    block = make_block(stochastic_depth_rate=0.5)
    x = np.repeat(images(1, 7, 12), 400, axis=0)
    out = numpy(block(x, training=True))
    kept = make_block()
    w = oracle.weights_of(kept)
    x64 = x[:1].astype("float64")
    seen = set()
    for first in (0.0, 2.0):  # a kept branch is doubled at rate 1/2
        normed = oracle.layer_norm(x64, w["norm_1/gamma"], w["norm_1/beta"])
        middle = x64 + first * oracle.attention(normed, normed, oracle.below(w, "attention"), 3)
        branch = oracle.mlp(oracle.layer_norm(middle, w["norm_2/gamma"], w["norm_2/beta"]), oracle.below(w, "mlp"))
        for second in (0.0, 2.0):
            near = np.abs(out - (middle + second * branch)).max((1, 2)) < 1e-4
            assert 60 < near.sum() < 140  # a quarter of 400; 4.6 standard deviations
            seen |= set(np.flatnonzero(near))
    assert len(seen) == 400
    np.testing.assert_allclose(numpy(block(x[:1])), oracle.block(x64, w, 3), atol=3e-6)


def test_stochastic_depth_keeps_the_expectation():
    """With the MLP silent the block is linear in its one draw: x + keep / (1 - rate) * branch."""
    block, plain = make_block(stochastic_depth_rate=0.2), make_block()
    for one in (block, plain):
        one.mlp.dense_2.set_weights([np.zeros((17, 12)), np.zeros(12)])
    x = images(1, 7, 12)
    mean = numpy(block(np.repeat(x, 20_000, axis=0), training=True)).mean(0)
    branch = numpy(plain(x))[0] - x[0]
    share = ((mean - x[0]) * branch).sum() / (branch**2).sum()
    assert share == pytest.approx(1, abs=0.018)  # 5 standard deviations: sqrt(.25 / 20,000) is .0035


def test_dropout_stands_where_the_paper_has_it():
    """With rate near 1 only the skip connection is left: after attention's output and after the MLP's second layer."""
    block = make_block(dropout_rate=0.999999)
    x = images(2, 7, 12)
    np.testing.assert_array_equal(numpy(block(x, training=True)), x)
    rates = TransformerBlock(12, 3, 17, 0.1, 0.2, 0.3)
    assert (rates.dropout.rate, rates.attention.dropout.rate, rates.mlp.dropout_1.rate) == (0.1, 0.2, 0.1)
    block = make_block(dropout_rate=0.999999, norm_position="post")  # the norm of what is dropped is its shift
    shifts = numpy(block.norm_1.beta) + numpy(block.norm_2.beta)
    np.testing.assert_allclose(numpy(block(x, training=True)), x + shifts, atol=1e-6)


def test_mlp_drops_after_the_activation_and_after_the_second_layer():
    """One hidden unit feeds 400 outputs: dropping it empties a token, dropping outputs leaves about half of them."""
    mlp = MlpBlock(400, 1, dropout_rate=0.5)
    mlp.build((None, 1, 400))
    mlp.set_weights([np.zeros((400, 1)), np.ones(1), np.ones((1, 400)), np.zeros(400)])
    alive = (numpy(mlp(np.zeros((1, 1000, 400), "float32"), training=True))[0] != 0).mean(-1)  # (1000,)
    assert 0.42 < (alive == 0).mean() < 0.58  # 5 standard deviations
    np.testing.assert_allclose(alive[alive > 0], 0.5, atol=0.13)


def test_output_tokens_must_be_positive():
    with pytest.raises(ValueError, match="num_output_tokens=0"):
        TransformerBlock(12, 3, 17, num_output_tokens=0)


def test_every_switch_of_a_block_is_declared_in_its_class():
    assert SWITCHES.keys() - Branches.__annotations__.keys() == set()
