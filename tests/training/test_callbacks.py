"""What a run that diverges leaves behind, and what the logs say."""

import csv

import keras
import numpy as np
import pytest
from conftest import images, numpy, randomise, tiny_config

import keras_vit
from keras_vit.training.callbacks import NonFiniteGuard, StepFacts, StopAfterSteps, TrainingDivergedError
from keras_vit.training.optimizers import SGD, AdamW
from keras_vit.training.schedules import WarmupCosine

pytestmark = pytest.mark.filterwarnings("ignore:images reach the model with NaN:UserWarning")
BATCH, BAD_STEP = 2, 11
OPTIMIZERS = {
    "sgd": lambda: SGD(WarmupCosine(0.1, 20, 3), global_clipnorm=1.0, weight_decay=0.1),
    "adamw": lambda: AdamW(WarmupCosine(0.01, 20, 3), weight_decay=0.1, accumulator_dtype="bfloat16"),
}


def data(steps, bad=None):
    pixels = images(steps * BATCH, 20, 28, 3)
    if bad is not None:
        pixels[(bad - 1) * BATCH, 3, 4, 1] = np.nan
    return pixels, np.arange(steps * BATCH) % 7


def small():
    return randomise(keras_vit.build(tiny_config(num_layers=1), input_shape=(20, 28, 3), classes=7))


def compiled(optimizer, **arguments):
    model = small()
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), **arguments)
    return model


def state(model):
    moments = [v for v in model.optimizer.variables if v.name.endswith(("momentum", "velocity"))]
    return [numpy(v).astype("float32") for v in [*model.weights, *moments]]


def diverge(name, **arguments):
    """The error, and whether the model is bit for bit that of a run that ended before the bad step."""
    model = compiled(OPTIMIZERS[name](), **arguments)
    with pytest.raises(TrainingDivergedError) as error:
        model.fit(*data(20, bad=BAD_STEP), BATCH, shuffle=False, verbose=0, callbacks=[NonFiniteGuard("good.keras")])
    expected = compiled(OPTIMIZERS[name](), **arguments)
    expected.fit(*data(BAD_STEP - 1), BATCH, shuffle=False, verbose=0)
    same = all(np.array_equal(a, b) for a, b in zip(state(model), state(expected), strict=True))
    return str(error.value), error.value.step, same


@pytest.mark.parametrize(
    ("name", "jit_compile"),
    [("sgd", False), ("adamw", False), ("sgd", True), pytest.param("adamw", True, marks=pytest.mark.slow)],
)
def test_a_bad_image_leaves_the_weights_of_the_step_before(name, jit_compile):
    message, step, same = diverge(name, jit_compile=jit_compile)
    assert step == BAD_STEP
    assert same
    assert "step 11" in message
    assert "good.keras" in message


def divergences():
    return [diverge(name)[1:] for name in OPTIMIZERS]


@pytest.mark.elsewhere("jax", "divergences")
def test_a_bad_image_leaves_the_weights_of_the_step_before_on_jax(found):
    assert found == [[BAD_STEP, True]] * 2


def test_no_checkpoint_holds_anything_that_is_not_finite(tmp_path):
    model = compiled(OPTIMIZERS["adamw"]())
    pattern = str(tmp_path / "{batch}.weights.h5")
    saver = keras.callbacks.ModelCheckpoint(pattern, save_weights_only=True, save_freq=1)
    with pytest.raises(TrainingDivergedError):
        model.fit(*data(20, bad=BAD_STEP), BATCH, shuffle=False, verbose=0, callbacks=[saver, NonFiniteGuard()])
    saved = list(tmp_path.iterdir())
    assert len(saved) == BAD_STEP  # the saver stands before the guard, and even so
    fresh = small()
    for path in saved:
        fresh.load_weights(path)
        assert all(np.isfinite(numpy(weight)).all() for weight in fresh.weights)


def test_other_optimizers_are_refused():
    with pytest.raises(TypeError, match="NonFiniteGuard"):
        compiled("sgd").fit(*data(1), BATCH, verbose=0, callbacks=[NonFiniteGuard()])


class Overflow(keras.callbacks.Callback):
    """Sets the loss scale as so many skipped steps would, between two steps."""

    def __init__(self, halvings):
        super().__init__()
        self.halvings = halvings

    def on_train_batch_begin(self, batch, logs=None):
        scale = self.model.optimizer.dynamic_scale
        scale.assign(float(numpy(scale)) * 0.5**self.halvings)


def test_single_overflows_of_float16_go_on_and_many_in_a_row_stop_the_run():
    model = compiled(keras.optimizers.LossScaleOptimizer(OPTIMIZERS["sgd"]()))
    arguments = {"shuffle": False, "verbose": 0}
    model.fit(*data(4, bad=2), BATCH, callbacks=[NonFiniteGuard()], **arguments)
    assert float(numpy(model.optimizer.dynamic_scale)) == 2.0**14
    assert all(np.isfinite(numpy(weight)).all() for weight in model.weights)
    model.fit(*data(7), BATCH, callbacks=[Overflow(0), NonFiniteGuard()], **arguments)
    with pytest.raises(TrainingDivergedError, match="54 steps"):
        model.fit(*data(7), BATCH, callbacks=[Overflow(9), NonFiniteGuard()], **arguments)


def test_the_logs_have_rate_and_norm_of_the_last_step(tmp_path):
    model = compiled(OPTIMIZERS["sgd"]())
    path = tmp_path / "log.csv"
    history = model.fit(*data(4), BATCH, verbose=0, callbacks=[StepFacts(), keras.callbacks.CSVLogger(path)]).history
    row = next(csv.DictReader(path.read_text().splitlines()))
    assert float(row["learning_rate"]) == pytest.approx(float(numpy(WarmupCosine(0.1, 20, 3)(3))), rel=1e-6)
    assert float(row["gradient_norm"]) == pytest.approx(float(numpy(model.optimizer.gradient_norm)), rel=1e-6)
    assert set(history) == {"loss", "learning_rate", "gradient_norm"}


def test_stop_after_steps_counts_those_of_an_earlier_fit():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = (np.ones((40, 2), "float32"), np.ones((40, 1), "float32"))
    model.fit(*data, batch_size=4, epochs=1, steps_per_epoch=7, verbose=0)
    model.fit(*data, batch_size=4, epochs=4, verbose=0, callbacks=[StopAfterSteps(9)])
    assert int(model.optimizer.iterations) == 9
