"""What Keras 3.15 computes wrongly with a model that is Keras' alone, on several devices or by OpenVINO: a test each.

A failure is good news: Keras has mended it. The test says what can be deleted here then.
"""

import json

import keras
import numpy as np
import pytest
from conftest import run_python
from mirrored import engine, on

import keras_vit
from keras_vit import keras_private
from keras_vit.layers import dropout
from keras_vit.model import replicated_model, training_step

pytestmark = [  # by night: they tell of new packages, and not of a change here
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies are TensorFlow's"),
    pytest.mark.nightly,
]
# What is there for the defect, and goes with it.
MENDED_BY = {
    "clipping": "`keras_private.clip_after_sum`, and `apply` of training/optimizers.py",
    "accumulation": "its row in `_check_optimizer` of model/replicated_model.py",
    "overwriting": "its row in `_check_optimizer` of model/replicated_model.py",
    "uneven last batch": "`pad_batch` and the steps of model/training_step.py",
    "uneven first batch": "`keras_private.HookedModel`",
    "overflow": "`sync_overflow` of model/training_step.py",
    "masks": "`images_of_batch` of layers/dropout.py, but for micro-batches",
    "steps at once": "`step_by_step` of model/replicated_model.py",
    "two strategies": "`_made_once` of training/devices.py",
    "openvino": "model/replicated_model.py, if both defects are gone",
}
# So that what the rows above advise to delete is there.
MENDS = (keras_private.clip_after_sum, replicated_model.openvino_step, keras_vit.SGD.apply, training_step.sync_overflow)
MENDS += (training_step.pad_batch, replicated_model.step_by_step, dropout.images_of_batch)
ALONE = ("steps at once", "two strategies", "openvino")  # each in a process of its own
NEAR = 1e-5  # float32 sums in another order


def dense_model(optimizer, policy="float32"):
    with_policy = keras.DTypePolicy(policy)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(3, kernel_initializer="ones", dtype=with_policy)(inputs))
    model.compile(optimizer(), "mse")
    return model


def after_fit(devices, count=8, optimizer=lambda: keras.optimizers.SGD(0.1)):
    model = on(devices, dense_model, optimizer)
    data = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    model.fit(data, np.zeros((count, 3)), 8, shuffle=False, verbose=0)
    return model.get_weights()[0]


def differs(**arguments):
    return bool(np.abs(after_fit(2, **arguments) - after_fit(1, **arguments)).max() > NEAR)


def fails(**arguments):
    try:
        after_fit(2, **arguments)
    except Exception:
        return True
    return False


def overflows():
    """Whether weights are lost where the gradients of the second device alone are not finite."""
    with engine(2).scope():
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
        model = dense_model(lambda: optimizer)
    data = np.ones((8, 4), "float32")
    data[4:] = 1e36
    model.fit(data, np.zeros((8, 3)), 8, shuffle=False, verbose=0)
    return not np.isfinite(model.get_weights()[0]).all()


def same_masks():
    """Whether both devices leave out the same of their images."""
    import tensorflow as tf

    strategy = engine(2)
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=1)

    def masked():
        return layer(tf.ones((4, 9)), training=True)

    one, two = strategy.experimental_local_results(strategy.run(masked))
    return bool((one.numpy() == two.numpy()).all())


def keras_alone():
    return {
        "clipping": differs(optimizer=lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1)),
        "accumulation": fails(optimizer=lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)),
        "overwriting": fails(optimizer=lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=2)),
        "uneven last batch": differs(count=13),
        "uneven first batch": fails(count=7),
        "overflow": overflows(),
        "masks": same_masks(),
    }


@pytest.mark.elsewhere("two devices", "keras_alone")
@pytest.mark.parametrize("defect", [name for name in MENDED_BY if name not in ALONE])
def test_keras_still_has_the_defect_that_is_mended_here(found, defect):
    assert found[defect], f"Keras {keras.__version__} has mended it. Delete {MENDED_BY[defect]}."


# Each in a process of its own: TensorFlow numbers its default sums, which these take, by process.
TWO_DEVICES = """
import keras, numpy as np, tensorflow as tf
from keras_vit.training import devices
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
def made():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
def train(units, strategy, steps=1):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
        model.compile("sgd", "mse", steps_per_execution=steps)
    model.fit(np.ones((16, 4)), np.zeros((16, units)), 8, verbose=0)
"""
STEPS_AT_ONCE = """
try:
    train(3, made(), steps=2)
except tf.errors.InvalidArgumentError as error:
    print("placeholder" in str(error))
"""
# Models of two sizes train one after the other by one strategy, and not by two.
TWO_STRATEGIES = """
for units in (3, 5):
    train(units, devices._made_once(made))
assert devices._made_once(made) is devices._made_once(made)
try:
    train(7, made())
except tf.errors.InvalidArgumentError as error:
    print("Shape mismatch in the collective" in str(error))
"""


OF_SUMS = {"steps at once": STEPS_AT_ONCE, "two strategies": TWO_STRATEGIES}
# TensorFlow is imported once, and no device of it is used before the fork.
FORKED = """
import json, os, sys
import keras_vit
for code in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        exec(code)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.fixture(scope="module")
def said():
    """By defect, what its process printed."""
    codes = json.dumps([TWO_DEVICES + code for code in OF_SUMS.values()])
    return dict(zip(OF_SUMS, run_python(FORKED, codes, backend="tensorflow").splitlines(), strict=True))


@pytest.mark.parametrize("defect", OF_SUMS)
def test_sums_of_tensorflow_still_fail(said, defect):
    assert said[defect] == "True", f"Keras or TensorFlow has mended it. Delete {MENDED_BY[defect]}."


OPENVINO = """
import keras, numpy as np, openvino
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
images = np.random.default_rng(0).normal(size=(4, 64)).astype("float32")
found = model.predict(images, verbose=0)
kernel = model.get_weights()[0]
model.set_weights([weight + 1 for weight in model.get_weights()])
print("BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
print(np.abs(found - images @ kernel).max() > 1e-3, (model.predict(images, verbose=0) == found).all())
"""


def test_keras_still_has_openvino_round_and_keep_old_weights():
    pytest.importorskip("openvino")
    knows_bfloat16, rounds, keeps = run_python(OPENVINO, backend="openvino").split()
    assert rounds == knows_bfloat16, f"Keras {keras.__version__} asks for float32. Delete {MENDED_BY['openvino']}."
    assert keeps == "True", f"Keras {keras.__version__} sees new weights. Delete {MENDED_BY['openvino']}."
