import numpy as np
import oracle
import pytest
from conftest import images, numpy, randomise

from keras_vit.layers import MultiHeadAttention


@pytest.fixture
def attention():
    layer = MultiHeadAttention(12, 3)
    layer.build((None, 7, 12))
    return randomise(layer)


def test_attention_of_given_queries_equals_float64(attention):
    x, queries = images(2, 7, 12), images(2, 5, 12, seed=1)
    expected = oracle.attention(x, queries, oracle.weights_of(attention), 3)
    np.testing.assert_allclose(numpy(attention(x, queries)), expected, atol=1e-6)


def test_scores_are_those_the_call_uses(attention):
    x = images(2, 7, 12)
    expected, values = oracle.attention_weights(x, x, oracle.weights_of(attention), 3)
    scores = numpy(attention.scores(x))
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    w = oracle.weights_of(attention)
    mixed = (scores @ values).transpose(0, 2, 1, 3).reshape(2, 7, 12)
    np.testing.assert_allclose(numpy(attention(x)), mixed @ w["out/kernel"] + w["out/bias"], atol=1e-6)


def test_kernels_are_xavier_uniform_on_two_axes():
    layer = MultiHeadAttention(256, 4)
    layer.build((None, 7, 256))
    limit = (6 / 512) ** 0.5  # sqrt(6 / (2 D)), SPEC of the official initialiser
    for dense in (layer.query, layer.key, layer.value, layer.out):
        kernel = numpy(dense.kernel)
        assert np.abs(kernel).max() == pytest.approx(limit, rel=0.01)
        assert kernel.std() == pytest.approx(limit / 3**0.5, rel=0.02)
        assert (numpy(dense.bias) == 0).all()


def test_half_precision_does_not_overflow_where_unscaled_queries_would():
    layer = MultiHeadAttention(64, 1, dtype="mixed_float16")
    layer.build((None, 3, 64))
    layer.query.kernel.assign(np.eye(64) * 60)
    layer.key.kernel.assign(np.eye(64) * 60)
    x = np.ones((1, 3, 64), "float32") * 1.2  # q.k = 331,776 beyond float16's 65,504; scaled it is 41,472
    assert np.isfinite(numpy(layer(x))).all()


def test_attention_dropout_drops_weights_in_training_only():
    layer = MultiHeadAttention(12, 3, dropout_rate=0.5)
    layer.build((None, 7, 12))
    randomise(layer)
    x = images(2, 7, 12)
    np.testing.assert_array_equal(numpy(layer(x)), numpy(layer(x, training=False)))
    assert np.abs(numpy(layer(x, training=True)) - numpy(layer(x))).max() > 0.01


def test_attention_refuses_heads_of_unequal_width():
    with pytest.raises(ValueError, match="num_heads=5"):
        MultiHeadAttention(12, 5)
