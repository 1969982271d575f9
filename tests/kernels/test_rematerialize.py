import unittest.mock

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, run_python

import keras_vit
from keras_vit.kernels import jax_gpu

DROPOUTS = {"dropout_rate": 0.3, "attention_dropout_rate": 0.2, "stochastic_depth_rate": 0.4}

KERNELS = [(768, 768), (768, 3072), (3072, 768), (16, 768)]  # last two axes, of weights in bfloat16

TRAINED = """
import sys
sys.path[:0] = ["tests", "tests/layers"]
import numpy as np
from test_rematerialize import DROPOUTS, weights_after_training
plain, again = (weights_after_training(r, jit_compile={jit}, **DROPOUTS) for r in (False, True))
print(max(np.abs(a - b).max() for a, b in zip(plain, again)))
"""

PEAK = """
import numpy as np, keras, keras_vit
config = keras_vit.ViTConfig(16, 192, 12, 3, 768, rematerialize={rematerialize})
model = keras_vit.build(config, input_shape=(224, 224, 3), classes=3)
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
for _ in range(2):
    model.train_on_batch(np.zeros((32, 224, 224, 3), "float32"), np.arange(32) % 3)
print(next(int(line.split()[1]) / 1e3 for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def weights_after_training(rematerialize, jit_compile=False, steps=2, **fields):
    """What SGD makes of the weights: the gradients, and the seeds of the second step."""
    keras.utils.set_random_seed(1)
    model = make_tiny(rematerialize=rematerialize, num_layers=1, **fields)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=jit_compile)
    for _ in range(steps):
        model.train_on_batch(images(4, 20, 28, 3), np.arange(4))
    return [numpy(variable) for variable in model.variables]


@pytest.mark.parametrize("fields", [DROPOUTS, {"patch_dropout_rate": 0.5, "pooling": "gap"}])
def test_rematerialised_training_equals_plain_training_with_dropout_too(fields):
    """Equal to the last bits: another mask in the second evaluation would be off by 1e-2."""
    plain, again = (weights_after_training(rematerialize, **fields) for rematerialize in (False, True))
    for ours, theirs in zip(again, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7)


def test_rematerialised_gradients_without_a_graph_are_the_plain_ones():
    """Where nothing is traced, a weight that is argument and variable at once would be counted twice."""
    tf = pytest.importorskip("tensorflow")
    found = []
    for rematerialize in (False, True):
        model = make_tiny(rematerialize=rematerialize)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(images(2, 20, 28, 3), training=True)))
        found.append(tape.gradient(loss, [weight.value for weight in model.trainable_weights]))
    for plain, again in zip(*found, strict=True):
        np.testing.assert_allclose(again, plain, rtol=1e-4, atol=1e-6 * np.abs(plain).max())  # float32 rounding


def test_rematerialised_training_in_half_precision_is_as_near_as_rounding():
    keras.config.set_dtype_policy("mixed_bfloat16")
    plain, again = (weights_after_training(rematerialize, **DROPOUTS) for rematerialize in (False, True))
    assert max(np.abs(a - b).max() for a, b in zip(plain, again, strict=True)) < 5e-3  # a bfloat16 step is 4e-3


def kept_on_jax():
    """Megabytes that training on an accelerator keeps of one image of B/16, by a CPU, and how far weights move."""
    from jax._src.ad_checkpoint import saved_residuals

    weights, totals = [], []
    for less in (False, True):
        with unittest.mock.patch.object(jax_gpu, "uses_checkpoint_policy", return_value=less):
            weights.append(weights_after_training(False, **DROPOUTS))
    keras.config.set_dtype_policy("mixed_bfloat16")
    for depth in (1, 2):
        config = keras_vit.ViTConfig(16, 768, depth, 12, 3072, last_block_outputs="all")
        model = keras_vit.build(config, input_shape=(224, 224, 3), classes=3)
        values = [[v.value for v in part] for part in (model.trainable_variables, model.non_trainable_variables)]
        pixels = np.zeros((2, 224, 224, 3), "float32")
        with unittest.mock.patch.object(jax_gpu, "uses_checkpoint_policy", return_value=True):
            found = saved_residuals(summed(model), *values, pixels)
        found = [kind for kind, why in found if "argument" not in why and kind.shape[-2:] not in KERNELS]
        totals.append(sum(kind.size * kind.dtype.itemsize for kind in found) / len(pixels) / 1e6)
    keras.config.set_dtype_policy("float32")
    apart = max(np.abs(a - b).max() for a, b in zip(*weights, strict=True))
    return {"megabytes": 12 * (totals[1] - totals[0]), "apart": float(apart)}


def summed(model):
    return lambda *given: model.stateless_call(*given, training=True)[0].sum()


@pytest.mark.elsewhere("jax", "kept_on_jax")
def test_training_on_an_accelerator_keeps_dense_outputs_and_attention_alone(found):
    """36 MB are 6 outputs of 197 x 768 and one of 197 x 3,072 in each of 12 blocks. Without a rule they are 186."""
    assert found["megabytes"] < 40
    assert found["apart"] < 1e-6  # other dropout masks on the way back would be off by 1e-2


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "jit"), [("tensorflow", True), ("jax", False), ("jax", True)])
def test_rematerialised_training_equals_plain_training_elsewhere(backend, jit):
    assert float(run_python(TRAINED.format(jit=jit), backend=backend, timeout=300)) < 1e-6


@pytest.mark.slow
def test_rematerialising_needs_far_less_memory():
    plain, again = (float(run_python(PEAK.format(rematerialize=r), backend="tensorflow")) for r in (False, True))
    assert plain - again > 400  # MB; inside 11 blocks there are 10 arrays of 32 x 197 x 192 numbers, 533 MB
