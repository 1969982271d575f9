"""Every implementation gives the numbers and gradients of `plain`: of odd sizes, in each precision, with masks.

What is for a GPU runs here by asking, on JAX by its plain products; tests of the marker `gpu` run it as it is there.
"""

import contextlib
import unittest.mock

import keras
import numpy as np
import pytest
from conftest import images, numpy, randomise
from keras import ops

from keras_vit import kernels
from keras_vit.kernels import chunked_attention, jax_gpu
from keras_vit.layers import GatedMlpBlock, MlpBlock, PatchEmbedding, TransformerBlock
from keras_vit.layers.norms import LayerNorm
from keras_vit.model.image_model import has_accelerator

TOLERANCE = {"float32": 2e-5, "bfloat16": 4e-2}  # of the largest number: roundings of each, and of sums of them
CHUNKS = {"MIN_WEIGHTS": 0, "CHUNK_WEIGHTS": 13}  # of two rows, so that the last one is filled up
ON_GPU = {"is_available": lambda: True, "uses_checkpoint_policy": lambda: True}


def mask(*shape):
    """Of the last two keys."""
    bias = np.zeros(shape, "float32")
    bias[..., -2:] = -1e9
    return bias


def attention(queries=7, bias=None, training=False, **_):
    shapes = [(2, queries, 3, 4), (2, 7, 3, 4), (2, 7, 3, 4)]
    arrays = [np.random.default_rng(i).normal(0, 1, shape) for i, shape in enumerate(shapes)]
    return (lambda *given: kernels.dot_product_attention(*given, bias, None, training)), arrays, []


def layer_of(kind, *shape, inputs=None, **arguments):
    layer = kind(**arguments)
    layer.build((None, *shape))
    return randomise(layer), [images(2, *shape) if inputs is None else inputs]


def dense(dtype, activation=None, **_):
    layer, arrays = layer_of(keras.layers.Dense, 7, 12, units=17, dtype=dtype)
    return (lambda x: kernels.dense(layer, x, activation)), arrays, layer.trainable_weights


def norm_dense(dtype, training=True, **_):
    norm, arrays = layer_of(LayerNorm, 7, 12, dtype=dtype)
    layer, _ = layer_of(keras.layers.Dense, 7, 12, units=9, dtype=dtype)
    weights = norm.trainable_weights + layer.trainable_weights
    return (lambda x: kernels.norm_dense(norm, layer, x, training)), arrays, weights


def called(kind, *shape, training=True, dtype, **arguments):
    layer, arrays = layer_of(kind, *shape, dtype=dtype, **arguments)
    more = {"num_queries": 3} if kind is TransformerBlock and arguments.pop("first", None) else {}
    return (lambda x: layer(x, training=training, **more)), arrays, layer.trainable_weights


def mlp(dtype, gated=False, **arguments):
    return called(GatedMlpBlock if gated else MlpBlock, 7, 12, dtype=dtype, hidden_size=12, mlp_dim=17, **arguments)


def block(dtype, tokens=7, **arguments):
    return called(TransformerBlock, tokens, 12, dtype=dtype, hidden_size=12, num_heads=3, mlp_dim=17, **arguments)


def patch_rows(dtype, training=False, **_):
    return called(PatchEmbedding, 20, 12, 3, dtype=dtype, hidden_size=12, patch_size=4, training=training)


# kernel, implementation by backend, what makes it, options
ROWS = [
    ("dense", {"tensorflow": "tensorflow_cpu", "jax": "jax_gpu"}, dense, {}),
    ("dense", {"tensorflow": "tensorflow_cpu", "jax": "jax_gpu"}, dense, {"activation": "gelu_tanh"}),
    ("dense", {"tensorflow": "tensorflow_cpu", "jax": "jax_gpu"}, dense, {"activation": "quick_gelu"}),
    ("norm_dense", {"tensorflow": "tensorflow_training"}, norm_dense, {"training": True}),
    ("mlp", {"tensorflow": "tensorflow_training"}, mlp, {"training": True}),
    ("mlp", {"tensorflow": "tensorflow_training"}, mlp, {"training": True, "activation": "gelu"}),
    ("mlp", {"tensorflow": "tensorflow_training"}, mlp, {"training": True, "activation": "gelu", "mlp_norm": True}),
    ("mlp", {"tensorflow": "tensorflow_training"}, mlp, {"training": True, "gated": True}),
    ("attention", {"tensorflow": "tensorflow_training", "jax": "jax_gpu"}, attention, {"training": True}),
    ("attention", {"tensorflow": "tensorflow_cpu", "jax": "jax_gpu"}, attention, {"queries": 5}),
    ("attention", {"tensorflow": "chunked_attention"}, attention, {"many": True, "training": True}),
    ("attention", {"tensorflow": "chunked_attention"}, attention, {"many": True, "queries": 5}),
    ("attention", {"tensorflow": "chunked_attention"}, attention, {"many": True, "bias": mask(2, 1, 1, 7)}),
    (
        "attention",
        {"tensorflow": "chunked_attention"},
        attention,
        {"many": True, "bias": mask(1, 3, 7, 7), "training": True},
    ),
    ("block", {"tensorflow": "tensorflow_training", "jax": "jax_gpu"}, block, {"training": True}),
    ("block", {"tensorflow": "tensorflow_training", "jax": "jax_gpu"}, block, {"training": True, "tokens": 8}),
    ("block", {"tensorflow": "tensorflow_training", "jax": "jax_gpu"}, block, {"training": True, "qk_norm": "width"}),
    (
        "block",
        {"tensorflow": "tensorflow_training", "jax": "jax_gpu"},
        block,
        {"training": True, "norm_position": "post", "gated_mlp": True},
    ),
    (
        "block",
        {"tensorflow": "tensorflow_training", "jax": "jax_gpu"},
        block,
        {"training": True, "attention_norm": True, "mlp_norm": True, "layer_scale": "both", "kv_heads": 1},
    ),
    ("patch_rows", {"jax": "jax_gpu"}, patch_rows, {"training": False}),
]
CASES = [(row, dtype) for row in range(len(ROWS)) for dtype in TOLERANCE]
NAMES = [f"{ROWS[row][0]}-{row}-{dtype}" for row, dtype in CASES]
# In float32 each row, and in bfloat16 the last one of each implementation; the others are nightly.
LAST = {(kernel, name): row for row, (kernel, names, *_) in enumerate(ROWS) for name in names.values()}
SOME = [(row, dtype) for row, dtype in CASES if dtype == "float32" or row in LAST.values()]


def with_gradients(function, arrays, variables):
    """Output of a function, and the gradients of a weighted sum of it: of its arrays and of variables."""
    rng = np.random.default_rng(9)
    if keras.backend.backend() == "jax":
        import jax

        def loss(arrays, values):
            with keras.StatelessScope(state_mapping=zip(variables, values, strict=True)):
                found = function(*arrays)
            weights = np.random.default_rng(9).normal(0, 1, found.shape)
            return ops.sum(ops.cast(found, "float32") * weights), found

        slopes, found = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(arrays, [v.value for v in variables])
        return [found, *slopes[0], *slopes[1]]
    import tensorflow as tf

    @tf.function
    def compute(*arrays):
        with tf.GradientTape() as tape:
            tape.watch(arrays)
            found = function(*arrays)
            loss = tf.reduce_sum(tf.cast(found, "float32") * rng.normal(0, 1, found.shape).astype("float32"))
        return [found, *tape.gradient(loss, [*arrays, *(v.value for v in variables)])]

    return compute(*arrays)


def difference(row, dtype, on_gpu=None):
    """Which implementation computes a row here, and how far it is from `plain`, as a share of the largest number."""
    kernel, implementations, make, options = ROWS[row]
    if keras.backend.backend() not in implementations:
        return None
    chunks = (
        unittest.mock.patch.multiple(chunked_attention, **CHUNKS)
        if options.get("many")
        else on_gpu or contextlib.nullcontext()
    )
    makes = {name: value for name, value in options.items() if name != "many"}
    function, arrays, variables = make(dtype=dtype, **makes)
    arrays = [ops.cast(ops.convert_to_tensor(array), dtype) for array in arrays]
    with chunks:
        used = kernels.select(kernel, **options).name
        found = with_gradients(function, arrays, variables)
    with kernels.use("plain"):
        assert kernels.select(kernel, **options).name == "plain"
        expected = with_gradients(function, arrays, variables)
    pairs = [[numpy(ops.cast(x, "float32")) for x in pair] for pair in zip(found, expected, strict=True)]
    largest = max(np.abs(other).max() for _, other in pairs)  # of all, since the gradient of a key's bias is 0
    apart = max(float(np.abs(one - other).max() / largest) for one, other in pairs)
    return {"used": used, "expected": implementations[keras.backend.backend()], "apart": apart}


def assert_plain(found, dtype):
    assert found["used"] == found["expected"]
    assert found["apart"] < TOLERANCE[dtype]


def differences():
    """Of all rows, with the forms for a GPU, on a CPU."""
    found = {}
    for name, case in zip(NAMES, CASES, strict=True):
        if case in SOME:
            found[name] = difference(*case, unittest.mock.patch.multiple(jax_gpu, **ON_GPU))
    return found


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in SOME else pytest.mark.nightly, id=str(case))
        for case in CASES
        if "tensorflow" in ROWS[case[0]][1]
    ],
)
def test_implementation_gives_what_plain_does(case):
    pytest.importorskip("tensorflow")
    if keras.backend.backend() == "tensorflow":
        assert_plain(difference(*case), case[1])


@pytest.mark.elsewhere("jax", "differences")
def test_implementation_gives_what_plain_does_on_jax(found):
    assert sum(each is not None for each in found.values()) >= 14
    for name, each in found.items():
        if each is not None:
            assert_plain(each, name.rpartition("-")[2])


@pytest.mark.gpu
@pytest.mark.skipif(not has_accelerator(), reason="there is no accelerator")
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_implementation_gives_what_plain_does_on_a_gpu(case):
    found = difference(*case)
    if found is not None:
        assert_plain(found, case[1])


def test_every_row_of_the_dispatch_is_tested():
    tested = {(kernel, name) for kernel, implementations, *_ in ROWS for name in implementations.values()}
    elsewhere = {("layer_norm", "tensorflow_training"), ("remat", "jax_gpu")}  # test_tensorflow_training, ...
    rows = {(kernel, name) for kernel, found in kernels.dispatch._ROWS.items() for name, *_ in found if name != "plain"}
    assert rows == tested | elsewhere


def test_choice_says_why():
    assert "kernels.use" not in kernels.select("dense").why
    with kernels.use("plain"):
        assert "kernels.use" in kernels.select("dense").why
    with pytest.raises(ValueError, match="level='fast'"), kernels.use("fast"):
        pass


@pytest.mark.parametrize(("dtype", "small", "unit"), [("float16", 0.003, 2**-10), ("bfloat16", 0.03, 2**-7)])
def test_softmax_adds_a_bias_to_logits_of_half_precision_in_float32(dtype, small, unit):
    """The biases are below half of what 10 is rounded to."""
    bias = np.where(np.arange(200) % 2, small, 0).astype("float32")
    found = kernels.plain.softmax(ops.cast(np.full((1, 200), 10.0), dtype), ops.convert_to_tensor(bias))
    np.testing.assert_allclose(numpy(ops.cast(found, "float32"))[0], np.exp(bias) / np.exp(bias).sum(), rtol=unit)
