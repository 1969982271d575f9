"""Products by oneDNN's `matmul`, as a processor with AMX gets them. Here that is forced; no time is measured."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy
from exporting.served import make_job
from tensorflow.core.protobuf import saved_model_pb2

from keras_vit import kernels
from keras_vit.checks import processor_flags
from keras_vit.exporting.serving_inputs import write_signatures as write
from keras_vit.kernels import tensorflow_cpu
from keras_vit.layers import MlpBlock
from keras_vit.model.precision import in_precision

tf = pytest.importorskip("tensorflow")
HALF = 2.0**-8  # a rounding to bfloat16
WAYS = {"eager": lambda run: run, "graph": tf.function, "xla": lambda run: tf.function(run, jit_compile=True)}


@pytest.fixture
def amx(monkeypatch):
    monkeypatch.setattr(tensorflow_cpu, "has_amx", lambda: True)


def batched(function, *arguments):
    """How many products of a batch a function computes."""
    graph = tf.function(function).get_concrete_function(*arguments).graph
    return sum(operation.type == "BatchMatMulV2" for operation in graph.get_operations())


def rounded(*shape, seed):
    """Numbers of bfloat16, as it has them and in float64."""
    numbers = tf.cast(np.random.default_rng(seed).normal(0, 1, shape), "bfloat16")
    return numbers, tf.cast(numbers, "float64").numpy()


def test_it_is_for_amx_and_bfloat16_alone(monkeypatch):
    asked = tensorflow_cpu.has_amx.__wrapped__
    assert asked() is tensorflow_cpu.has_amx() is ("amx_bf16" in processor_flags())
    monkeypatch.setattr(tensorflow_cpu, "processor_flags", lambda: frozenset({"avx512_bf16", "amx_tile", "amx_bf16"}))
    assert asked()
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [kind])
    assert not asked()
    monkeypatch.setattr(tensorflow_cpu, "has_amx", lambda: True)
    assert [tensorflow_cpu.use_onednn_matmul(dtype) for dtype in ("float16", "float32", "bfloat16")] == [
        False,
        False,
        True,
    ]
    with kernels.use("portable"):
        assert not tensorflow_cpu.use_onednn_matmul("bfloat16")


@pytest.mark.parametrize("way", WAYS)
def test_product_and_its_gradients_are_those_of_float64(amx, way):
    (x, wide_x), (kernel, wide_kernel) = rounded(7, 12, seed=1), rounded(12, 17, seed=2)
    (bias, wide_bias), (weights, wide_weights) = rounded(17, seed=3), rounded(7, 17, seed=4)

    def compute(x, kernel, bias):
        with tf.GradientTape() as tape:
            tape.watch((x, kernel, bias))
            y = tensorflow_cpu.product(x, kernel, bias)
            loss = tf.reduce_sum(y * weights)
        return y, *tape.gradient(loss, (x, kernel, bias))

    expected = (
        wide_x @ wide_kernel + wide_bias,
        wide_weights @ wide_kernel.T,
        wide_x.T @ wide_weights,
        wide_weights.sum(0),
    )
    for found, wanted in zip(WAYS[way](compute)(x, kernel, bias), expected, strict=True):
        assert found.dtype == "bfloat16"
        np.testing.assert_allclose(tf.cast(found, "float64"), wanted, atol=2 * HALF * np.abs(wanted).max())  # two steps


def trained(way, policy):
    """Logits and gradients of a tiny model, one behind the other."""
    keras.config.set_dtype_policy(policy)
    model = make_tiny(num_layers=1)
    weights = [weight.value for weight in model.trainable_weights]

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.cast(model(x, training=True), "float32")))
        return model(x, training=False), *tape.gradient(loss, weights)

    found = WAYS[way](step)(tf.constant(images(3, 20, 28, 3)))
    return np.concatenate([tf.reshape(tf.cast(each, "float64"), [-1]) for each in found])


@pytest.mark.parametrize(
    ("way", "policy"),
    [
        ("graph", "mixed_bfloat16"),
        pytest.param("eager", "bfloat16", marks=pytest.mark.slow),
        pytest.param("xla", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_model_answers_and_learns_as_without(monkeypatch, way, policy):
    exact, plain = trained("graph", "float32"), trained("eager", policy)  # which rounds after each step too
    monkeypatch.setattr(tensorflow_cpu, "has_amx", lambda: True)
    ours = trained(way, policy)
    assert np.linalg.norm(ours - exact) <= 1.5 * np.linalg.norm(plain - exact)  # rounding errors are random
    # Some 26 steps round, one after the other, and random errors add by their squares: 5.1 roundings, measured 4.7.
    # Without AVX-512 TensorFlow takes Eigen's products, which round within sums too: measured 8.2. Twice that is wrong.
    assert np.linalg.norm(ours - exact) <= 16 * HALF * np.linalg.norm(exact)


def test_dense_layers_have_it_with_amx_alone(monkeypatch):
    """LoRA and quantised layers stay as they are."""
    x, layers = tf.constant(images(2, 7, 12), "bfloat16"), []
    for change in (None, lambda layer: layer.enable_lora(2), lambda layer: layer.quantize("int8")):
        layer = keras.layers.Dense(17, dtype="bfloat16")
        layer.build((None, 12))
        if change is not None:
            change(layer)
        layers.append(layer)
    layers.append(keras.layers.Dense(17, dtype="float32"))
    layers[-1].build((None, 12))

    def counts():
        return [batched(lambda x, layer=layer: kernels.dense(layer, x[0], "gelu"), x) for layer in layers]

    mlp = MlpBlock(12, 17, dtype="bfloat16")
    mlp(x)
    monkeypatch.setattr(tensorflow_cpu, "has_amx", lambda: False)
    assert counts() == [0, 0, 0, 0]
    assert batched(lambda x: mlp(x, training=False), x) == 0
    monkeypatch.setattr(tensorflow_cpu, "has_amx", lambda: True)
    assert counts() == [1, 0, 0, 0]
    assert [batched(lambda x, training=training: mlp(x, training=training), x) for training in (False, True)] == [2, 2]


def test_files_are_as_on_any_other_processor(monkeypatch, tmp_path):
    monkeypatch.setattr(tensorflow_cpu, "has_amx", lambda: False)
    model, x = in_precision(make_tiny(num_layers=1), "bfloat16"), images(2, 20, 28, 3)
    of_attention = batched(lambda x: model(x, training=False), x)
    monkeypatch.setattr(tensorflow_cpu, "has_amx", lambda: True)
    assert batched(lambda x: model(x, training=False), x) > of_attention
    write(make_job(model, precision="bfloat16"), tmp_path / "1")
    graph = saved_model_pb2.SavedModel.FromString((tmp_path / "1" / "saved_model.pb").read_bytes()).meta_graphs[0]
    functions = {each.signature.name: [node.op for node in each.node_def] for each in graph.graph_def.library.function}
    found = {operations.count("BatchMatMulV2") for operations in functions.values() if "BiasAdd" in operations}
    assert found == {of_attention}
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))
