"""From pixels to tokens and from tokens to what the head reads."""

import numpy as np
import oracle
import pytest
from conftest import images, make_tiny, numpy, randomise, tiny_config

import keras_vit
from keras_vit.layers import AttentionPooling, ClassToken, PatchEmbedding, TokenPooling


@pytest.mark.parametrize(("patch", "height", "width"), [(4, 20, 28), (7, 14, 35), (1, 5, 3)])
def test_patch_embedding_is_unfold_and_matmul(patch, height, width):
    x = images(2, height, width, 3)
    layer = PatchEmbedding(11, patch)
    layer.build(x.shape)
    randomise(layer)
    w = oracle.weights_of(layer)
    expected = oracle.unfold(x, patch) @ w["projection/kernel"].reshape(-1, 11) + w["projection/bias"]
    np.testing.assert_allclose(numpy(layer(x)), expected, atol=1e-5)


def test_patch_embedding_of_a_new_layer_has_unit_variance():
    x = np.random.default_rng(0).normal(size=(4, 64, 64, 3)).astype("float32")
    tokens = numpy(PatchEmbedding(256, 16)(x))
    assert tokens.std() == pytest.approx(1, abs=0.05)  # LeCun normal: 256 * 64 samples


@pytest.mark.parametrize("shape", [(None, 21, 28, 3), (None, 20, None, 3, 1), (None, None, 27, 3)])
def test_patch_embedding_refuses_what_patches_do_not_tile(shape):
    with pytest.raises(ValueError, match="Received: shape"):
        PatchEmbedding(11, 4).build(shape)


def test_patch_embedding_refuses_a_size_that_is_known_only_in_the_call():
    layer = PatchEmbedding(11, 4)
    layer.build((None, None, None, 3))
    with pytest.raises(ValueError, match="30"):
        layer(images(1, 20, 30, 3))


def test_class_token_stands_first_and_is_the_same_for_every_image():
    x = images(2, 6, 5)
    layer = ClassToken()
    layer.build(x.shape)
    assert (numpy(layer.token) == 0).all()
    randomise(layer)
    tokens = numpy(layer(x))
    np.testing.assert_array_equal(tokens[:, 0], np.repeat(numpy(layer.token)[0], 2, axis=0))
    np.testing.assert_array_equal(tokens[:, 1:], x)


@pytest.mark.parametrize(
    ("kind", "deviation"), [("learned", 0.0), ("sincos2d", 0.0), ("none", 0.02), ("relative", 0.02)]
)
def test_class_token_is_not_zero_where_no_position_is_added_to_it(kind, deviation):
    """Before LayerNorm a token of zeros has a gradient that outweighs all others."""
    sizes = {"hidden_size": 192, "num_layers": 1, "position_embedding": kind, "distilled": True}
    model = keras_vit.build(tiny_config(**sizes), input_shape=(20, 28, 3), classes=7)
    for name in ("class_token", "distillation_token"):
        assert numpy(model.get_layer(name).token).std() == pytest.approx(deviation, rel=0.2)


@pytest.mark.parametrize(("kind", "prefix"), [("token", 1), ("gap", 0), ("gap", 1), ("gap", 2)])
def test_pooling_takes_the_first_token_or_the_mean_of_the_patches(kind, prefix):
    x = images(2, 7, 12)
    expected = x[:, 0] if kind == "token" else x[:, prefix:].mean(1)
    np.testing.assert_allclose(numpy(TokenPooling(kind, prefix)(x)), expected, atol=1e-6)


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_attention_pooling_equals_float64(prefix):
    layer = AttentionPooling(12, 3, 17, num_prefix_tokens=prefix)
    layer.build((None, 7, 12))
    randomise(layer)
    tokens = images(2, 7, 12)
    w = oracle.weights_of(layer)
    probe = np.repeat(w["probe"], 2, axis=0)
    y = oracle.attention(tokens[:, prefix:], probe, oracle.below(w, "attention"), 3)
    y = y + oracle.mlp(oracle.layer_norm(y, w["norm/gamma"], w["norm/beta"]), oracle.below(w, "mlp"))
    np.testing.assert_allclose(numpy(layer(tokens)), y[:, 0], atol=2e-6)


def test_pooling_refuses_unknown_words():
    with pytest.raises(ValueError, match="'max'"):
        TokenPooling("max")


def test_registers_may_stand_in_any_order():
    """They have no places; a class token has one, so an order of several counts."""
    cases = ({"registers": 3}, "register_tokens", True), ({"class_tokens": 3}, "class_token", False)
    for fields, layer, same in cases:
        model, x = make_tiny(rotary="axial", hidden_size=24, **fields), images(2, 20, 28, 3)
        before = numpy(model(x))
        (tokens,) = model.get_layer(layer).weights
        tokens.assign(numpy(tokens)[:, [2, 0, 1]])
        assert (np.abs(numpy(model(x)) - before).max() < 2e-6) == same
