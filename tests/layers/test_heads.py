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


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_attention_pooling_equals_float64_and_ignores_the_order_of_patch_tokens(prefix):
    layer = AttentionPooling(12, 3, 17, num_prefix_tokens=prefix)
    layer.build((None, 7, 12))
    randomise(layer)
    all_tokens = images(2, 7, 12)
    x = all_tokens[:, prefix:]
    w = oracle.weights_of(layer)
    probe = np.repeat(w["probe"], 2, axis=0)
    y = oracle.attention(x, probe, oracle.below(w, "attention"), 3)
    y = y + oracle.mlp(oracle.layer_norm(y, w["norm/gamma"], w["norm/beta"]), oracle.below(w, "mlp"))
    np.testing.assert_allclose(numpy(layer(all_tokens)), y[:, 0], atol=2e-6)
    turned = np.concatenate([all_tokens[:, :prefix], x[:, ::-1]], axis=1)
    np.testing.assert_allclose(numpy(layer(turned)), numpy(layer(all_tokens)), atol=2e-6)


def test_pooling_refuses_unknown_words():
    with pytest.raises(ValueError, match="`kind` must be one of 'token', 'distillation', 'gap'"):
        TokenPooling("max")
