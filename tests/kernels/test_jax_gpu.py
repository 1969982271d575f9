"""What is fused on GPUs gives the numbers of the plain products. Here it runs on a CPU, by asking.

On JAX that is attention of an odd number of tokens, which training makes even, patches as rows of one product, and the
few tensors that are kept for the way back.
"""

import os

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy

import keras_vit
from keras_vit.checks import processor_flags
from keras_vit.kernels import jax_gpu
from keras_vit.kernels.tensorflow_cpu import use_onednn_matmul
from keras_vit.layers import MlpBlock, MultiHeadAttention


def differences():
    """How far logits and trained weights are apart with fused and with plain attention, here."""
    outputs, weights = [], []
    usual = {name: getattr(jax_gpu, name) for name in ("is_available", "uses_checkpoint_policy", "needs_even_length")}
    on_jax = keras.backend.backend() == "jax"
    for choice in (False, True):
        jax_gpu.is_available = lambda choice=choice: choice
        jax_gpu.uses_checkpoint_policy = lambda choice=choice: choice and on_jax
        jax_gpu.needs_even_length = lambda dtype, training, choice=choice: bool(choice and on_jax and training)
        trained = [trained_tiny(**others) for others in MODELS]
        outputs.append(np.stack([logits for logits, _ in trained]))
        weights.append([weight for _, found in trained for weight in found])
    for name, rule in usual.items():
        setattr(jax_gpu, name, rule)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(*weights, strict=True))
    return {"logits": float(np.abs(outputs[0] - outputs[1]).max()), "weights": apart, "used": jax_gpu.is_available()}


# Of 37 tokens, and of 36, which are even.
MODELS: tuple[dict, ...] = (
    {"registers": 1, "dropout_rate": 0.2, "last_block_outputs": "all"},
    {"registers": 1, "position_embedding": "none", "rotary": "axial", "qk_norm": "head", "layer_scale": "both"},
    {},
)


def trained_tiny(**others):
    keras.utils.set_random_seed(3)
    model = make_tiny(num_layers=2, **others)
    logits = numpy(model(images(2, 20, 28, 3)))
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(images(4, 20, 28, 3), np.arange(4), batch_size=4, epochs=2, verbose=0)
    return logits, model.get_weights()


def assert_same(found):
    assert found["logits"] < 1e-5  # of about 1, in float32
    assert found["weights"] < 1e-5
    assert found["used"] is False


@pytest.mark.elsewhere("jax", "differences")
def test_fused_attention_is_the_same_on_jax(found):
    assert_same(found)


@pytest.mark.nightly
def test_fused_attention_is_the_same_here():
    assert_same(differences())


@pytest.mark.parametrize("queries", [False, True])
def test_layer_calls_it_where_it_applies_and_weights_need_not_be_seen(monkeypatch, queries):
    layer = MultiHeadAttention(12, 3, dropout_rate=0.5)
    x = images(2, 7, 12)
    others = (x[:, :2],) if queries else ()
    plain = numpy(layer(x, *others))
    calls = []
    attention = jax_gpu.attention
    monkeypatch.setattr(jax_gpu, "is_available", lambda: True)
    monkeypatch.setattr(jax_gpu, "attention", lambda *args: calls.append(1) or attention(*args))
    np.testing.assert_allclose(numpy(layer(x, *others)), plain, atol=1e-6)
    assert calls == [1]
    layer(x, *others, training=True)  # drops weights, which the kernel does not show
    MultiHeadAttention(12, 3, relative_patches=7)(x)
    assert calls == [1]


def test_maps_are_those_of_the_plain_products(monkeypatch, tiny):
    x = images(2, 20, 28, 3)
    plain = keras_vit.attention_maps(tiny, x).blocks
    monkeypatch.setattr(jax_gpu, "is_available", lambda: True)
    np.testing.assert_array_equal(keras_vit.attention_maps(tiny, x).blocks, plain)


# What TensorFlow asks for before it takes oneDNN by default.
NEURAL = {"avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_int8", "amx_bf16"}
WITHOUT = NEURAL.isdisjoint(processor_flags()) or os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0"


@pytest.mark.skipif(WITHOUT, reason="TensorFlow does without oneDNN here")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gelu_of_the_mlp_is_one_kernel_with_the_product_before_it(dtype):
    """TensorFlow's own optimiser joins them, so the graph that it has made says whether it did."""
    tf = pytest.importorskip("tensorflow")
    if use_onednn_matmul(dtype):
        pytest.skip("with AMX a product is a batch of one, and its GELU is in float32")
    mlp = MlpBlock(64, 128, dtype=dtype)
    x = tf.constant(images(2, 7, 64), dtype)
    mlp(x)
    options, metadata = tf.compat.v1.RunOptions(output_partition_graphs=True), tf.compat.v1.RunMetadata()
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        twin = MlpBlock(64, 128, dtype=dtype)
        found = twin(tf.compat.v1.placeholder_with_default(x.numpy(), (None, 7, 64)))
        session.run(tf.compat.v1.global_variables_initializer())
        session.run(found, options=options, run_metadata=metadata)
    nodes = (node for graph in metadata.partition_graphs for node in graph.node)
    assert [b"BiasAdd", b"GeluApproximate"] in [node.attr["fused_ops"].list.s[:] for node in nodes]
