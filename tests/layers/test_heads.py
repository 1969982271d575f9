import numpy as np
import oracle
import pytest
from conftest import images, numpy, randomise

from keras_vit.layers import AttentionPooling, TokenPooling


def test_token_pooling_takes_the_first_token():
    x = images(2, 7, 12)
    np.testing.assert_array_equal(numpy(TokenPooling("token", 1)(x)), x[:, 0])


@pytest.mark.parametrize("prefix", [0, 1])
def test_mean_pooling_leaves_out_the_class_token(prefix):
    x = images(2, 7, 12)
    np.testing.assert_allclose(numpy(TokenPooling("gap", prefix)(x)), x[:, prefix:].mean(1), atol=1e-6)


def test_attention_pooling_equals_float64_and_ignores_the_order_of_tokens():
    layer = AttentionPooling(12, 3, 17)
    layer.build((None, 7, 12))
    randomise(layer)
    x = images(2, 7, 12)
    w = oracle.weights_of(layer)
    probe = np.repeat(w["probe"], 2, axis=0)
    y = oracle.attention(x, probe, oracle.below(w, "attention"), 3)
    y = y + oracle.mlp(oracle.layer_norm(y, w["norm/gamma"], w["norm/beta"]), oracle.below(w, "mlp"))
    np.testing.assert_allclose(numpy(layer(x)), y[:, 0], atol=2e-6)
    np.testing.assert_allclose(numpy(layer(x[:, ::-1])), numpy(layer(x)), atol=2e-6)


def test_pooling_refuses_unknown_words():
    with pytest.raises(ValueError, match="`kind` must be one of 'token', 'gap'"):
        TokenPooling("max")
