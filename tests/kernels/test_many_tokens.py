"""The laws of attention of more than 1,000 tokens, on every backend and whichever way it computes them there.

Numbers and gradients are those of float64, with masks and with dropout, and NaN stays with its image.
"""

import unittest.mock

import keras
import numpy as np
import oracle
import pytest
from conftest import images, numpy, randomise
from keras import ops

from keras_vit.kernels import chunked_attention, jax_gpu
from keras_vit.layers import MultiHeadAttention

TOKENS = 1031  # a prime, so that the last block is filled up and fused attention of JAX gets a token more
SHOWN = 263  # tokens of which all weights are looked at, in blocks here too
RATE = 0.3
STEP = 1e3  # of a training step that shows gradients, so large that rounding of weights is none of them


class Attention(keras.Model):
    """One layer, and what is added to its logits."""

    def __init__(self, width, bias=None, **options):
        super().__init__()
        self.bias = bias
        self.layer = MultiHeadAttention(width, 1, **options)
        self.layer.build((None, None, width))
        randomise(self.layer)

    def call(self, tokens, training=None):
        return self.layer(tokens, training=training, bias=self.bias)


def gradients(model, tokens, upstream):
    """Gradients of the sum of products with `upstream`, by the name of a weight: what a step of SGD takes away."""
    before = oracle.weights_of(model.layer)
    model.compile(
        keras.optimizers.SGD(STEP), lambda wanted, found: ops.sum(wanted * ops.cast(found, "float32"), (1, 2))
    )
    model.train_on_batch(tokens, upstream)
    after = oracle.weights_of(model.layer)
    return {name: (before[name] - after[name]) * len(tokens) / STEP for name in before if name in after}


def by_numpy(w, tokens, upstream, bias=None, kept=1.0):
    """The same by float64: what the layer gives, and gradients of its kernels."""
    scale = tokens.shape[-1] ** -0.5
    query, key, value = (tokens @ w[f"{name}/kernel"] + w[f"{name}/bias"] for name in ("query", "key", "value"))
    back = upstream @ w["out/kernel"].T
    added = [] if bias is None else [bias[0]]
    found = oracle.attention_with_gradients(query * scale, key.swapaxes(1, 2), value, back, *added, kept=kept)
    mixed, dquery, dkey, dvalue = found[:4]
    slopes = {"query": dquery * scale, "key": dkey.swapaxes(1, 2), "value": dvalue}
    kernels = {f"{name}/kernel": np.tensordot(tokens, slope, ((0, 1), (0, 1))) for name, slope in slopes.items()}
    kernels["out/kernel"] = np.tensordot(mixed, upstream, ((0, 1), (0, 1)))
    return mixed @ w["out/kernel"] + w["out/bias"], kernels


def apart(found, expected):
    """The largest difference, as a share of the largest number."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def mask(tokens):
    """Of the last keys, and for some queries of more."""
    bias = np.zeros((1, 1, tokens, tokens), "float32")
    bias[..., -31:] = -np.inf
    bias[..., :100, -64:] = -np.inf
    return bias


def of_small_heads(dtype, bias=None):
    """Numbers of two images and, in float32, gradients; then the second is NaN."""
    model = Attention(8, bias, dtype=dtype)
    tokens, upstream = images(2, TOKENS, 8), images(2, TOKENS, 8, seed=1)
    expected, slopes = by_numpy(
        oracle.weights_of(model.layer), *(x.astype("float64") for x in (tokens, upstream)), bias
    )
    plain = numpy(ops.cast(model(tokens), "float32"))
    spoiled = np.stack([tokens[0], np.full_like(tokens[1], np.nan)])
    with_nan = numpy(ops.cast(model(spoiled), "float32"))
    ours = slopes if "bfloat16" in dtype else gradients(model, tokens, upstream)
    return {
        "numbers": apart(plain, expected),
        "gradients": max(apart(ours[name], slope) for name, slope in slopes.items()),
        "beside NaN": apart(with_nan[0], expected[0]),
        "of NaN": bool(np.isnan(with_nan[1]).all()),
    }


def of_dropped_weights():
    """Tokens that are a unit matrix show the weights, and kernels' gradients are those of queries, keys and values."""
    bias = mask(SHOWN)
    model = Attention(SHOWN, bias, dropout_rate=RATE)
    tokens, upstream = np.eye(SHOWN, dtype="float32")[None], images(1, SHOWN, SHOWN)
    for dense in (model.layer.query, model.layer.key, model.layer.value, model.layer.out):
        dense.bias.assign(np.zeros(SHOWN))
        plain = dense in (model.layer.value, model.layer.out)
        dense.kernel.assign(np.eye(SHOWN) if plain else numpy(dense.kernel) / numpy(dense.kernel).std())
    seed = model.layer.dropout.seed_generator.state
    start = numpy(seed).copy()
    keras.utils.set_random_seed(7)  # from which torch draws; others do from the layer's seed
    weights = numpy(model(tokens, training=True))
    seed.assign(start)
    kept, seen = weights > 0, bias[0] == 0
    w = oracle.weights_of(model.layer)
    expected, slopes = by_numpy(w, tokens.astype("float64"), upstream.astype("float64"), bias, kept / (1 - RATE))
    keras.utils.set_random_seed(7)
    ours = gradients(model, tokens, upstream)
    return {
        "numbers": apart(weights, expected),
        "gradients": max(apart(ours[name], slope) for name, slope in slopes.items()),
        "kept": float(kept[seen].mean()),
        "masked": float(np.abs(weights[~seen]).max()),
        "own rows": len({row.tobytes() for row in kept[0]}),
    }


def laws():
    """How far this backend is from each law, as it computes here and with the attention that it takes on a GPU."""
    with unittest.mock.patch.multiple(chunked_attention, MIN_WEIGHTS=0, CHUNK_WEIGHTS=100 * SHOWN):
        found = {"dropped": of_dropped_weights()}
    found["masked"] = of_small_heads("float32", mask(TOKENS))
    has_fused = keras.backend.backend() != "tensorflow"
    for way in (False, True) if has_fused else (False,):
        even = way and keras.backend.backend() == "jax"
        rules = {
            "is_available": lambda way=way: way,
            "needs_even_length": lambda _, training, even=even: even and training,
        }
        with unittest.mock.patch.multiple(jax_gpu, **rules):
            for dtype in ("float32", "mixed_bfloat16"):
                found[f"{dtype}{', fused' * way}"] = of_small_heads(dtype)
    return found


def assert_lawful(found):
    found = dict(found)
    dropped = found.pop("dropped")
    assert dropped["numbers"] < 5e-6  # float32 rounding
    assert dropped["gradients"] < 1e-5
    assert abs(dropped["kept"] - (1 - RATE)) < 0.01  # of 58,000 draws, 5 deviations
    assert dropped["masked"] == 0
    assert dropped["own rows"] == SHOWN
    assert len(found) >= 3
    for case, law in found.items():
        numbers = 0.01 if "bfloat16" in case else 2e-6  # rounding of each number, of sums of them half of that
        assert law["numbers"] < numbers, case
        assert law["beside NaN"] < numbers, case
        assert law["gradients"] < 5e-6, case
        assert law["of NaN"], case


def test_laws_hold_here():
    assert_lawful(laws())


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="was looked at here")
@pytest.mark.elsewhere("jax", "laws")
def test_laws_hold_on_jax(found):
    assert_lawful(found)


@pytest.mark.torch
@pytest.mark.elsewhere("torch", "laws")
def test_laws_hold_on_torch(found):
    assert_lawful(found)
