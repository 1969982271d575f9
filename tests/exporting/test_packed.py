"""Packed kernels of TensorFlow's engine in bfloat16: the same numbers, in blocks alone, of its own model only."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import images, make_tiny, numpy
from pictures import picture

import keras_vit
from keras_vit.exporting.engines import packed
from keras_vit.keras_private import flatten_layers
from keras_vit.model.precision import in_precision

PHOTOS = [picture(33 + n, 47 - n, seed=n) for n in range(3)]
CLOSE = 0.05  # of numbers of about 1, in bfloat16
needs_onednn = pytest.mark.skipif(not packed.is_possible(), reason="no products of oneDNN in bfloat16 here")


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    return make_tiny()


def operations(function, x):
    return {
        node.type for node in tf.function(function, autograph=False).get_concrete_function(x).graph.get_operations()
    }


@needs_onednn
@pytest.mark.parametrize("activation", [None, "gelu", "gelu_tanh"])
def test_product_is_that_of_public_operations_for_every_number_of_rows(activation):
    x, kernel = (tf.cast(tf.random.stateless_normal((9, 9), (seed, 1)) / 3, tf.bfloat16) for seed in range(2))
    bias, kernel = tf.Variable(kernel[0]), tf.Variable(kernel)
    spec = tf.TensorSpec((None, 9), tf.bfloat16)
    ours = tf.function(lambda x: packed.product(x, kernel, bias, activation), [spec], autograph=False)
    for rows in (9, 1, 4, 9):
        wanted = tf.cast(x[:rows], tf.float32) @ tf.cast(kernel, tf.float32) + tf.cast(bias, tf.float32)
        if activation is not None:
            wanted = tf.nn.gelu(wanted, approximate=activation == "gelu_tanh")
        np.testing.assert_allclose(tf.cast(ours(x[:rows]), tf.float32), wanted, atol=0.02)


@needs_onednn
def test_engine_packs_and_follows_neither_the_model_nor_its_batch(model):
    engine = keras_vit.accelerate(model, "tensorflow", "bfloat16", images=PHOTOS)
    x = images(5, 20, 28, 3)
    before = engine(x)
    assert np.abs(before - numpy(in_precision(model, "bfloat16")(x))).max() < CLOSE
    np.testing.assert_allclose(np.concatenate([engine(x[:2]), engine(x[2:])]), before, atol=CLOSE)
    assert not any(hasattr(layer, "product") for layer in flatten_layers(model))
    kernels = [weight for weight in model.weights if weight.path.endswith("kernel")]
    for kernel in kernels:
        kernel.assign(kernel * 1.5)
    assert np.array_equal(engine(x), before)
    for kernel in kernels:
        kernel.assign(kernel / 1.5)


@needs_onednn
def test_all_dense_layers_of_blocks_are_packed_but_those_of_a_token_alone(model):
    twin, x = in_precision(model, "bfloat16"), tf.constant(images(2, 20, 28, 3))
    blocks = model.config.num_layers
    assert packed.pack(twin) == 6 * (blocks - 1) + 2  # the last computes the class token, from keys and values of all
    assert "_MklNativeFusedMatMul" in operations(lambda x: twin(x, training=False), x)
    assert packed.pack(keras.Sequential()) == 0


def test_without_the_operation_nothing_changes(model, monkeypatch):
    monkeypatch.setattr(packed, "is_possible", lambda: False)
    twin = in_precision(model, "bfloat16")
    assert packed.pack(twin) == 0
    assert not any(hasattr(layer, "product") for layer in flatten_layers(twin))


def test_operation_that_is_not_there_is_no_error(monkeypatch):
    def missing(*arguments, **named):
        raise ValueError("No attribute for that op")

    monkeypatch.setattr(packed, "processor_flags", lambda: packed._NEEDED)
    monkeypatch.setattr(packed, "product", missing)
    packed.is_possible.cache_clear()
    assert not packed.is_possible()
    packed.is_possible.cache_clear()


def test_operation_is_not_tried_on_a_processor_where_it_ends_the_process(monkeypatch):
    monkeypatch.setattr(packed, "processor_flags", lambda: frozenset({"avx2", "avx512f"}))
    monkeypatch.setattr(packed, "product", lambda *arguments: pytest.fail("tried"))
    packed.is_possible.cache_clear()
    assert not packed.is_possible()
    packed.is_possible.cache_clear()
