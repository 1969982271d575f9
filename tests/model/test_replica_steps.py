"""Two devices that share batches train, evaluate and predict as one does, however unevenly they share them."""

import contextlib
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, tiny_config
from mirrored import engine

import keras_vit
from keras_vit.training.optimizers import SGD
from keras_vit.training.resuming.checkpoint_folder import CheckpointFolder
from keras_vit.training.resuming.variables import METRICS, StateReader, restore

TOLERANCE = 1e-6  # float32 sums in another order
CLASSES = 7
# Images and batch: shares of 3 and 2, of 1 and 0, in micro-batches as well, and a first batch of 4 and 3.
CASES = ((17, 8, {}), (7, 7, {"accumulation_steps": 2}))  # a share of none, and an uneven first batch
pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies are TensorFlow's")


def compiled(**arguments):
    model = make_tiny(num_layers=1)
    model.get_layer("head").kernel.regularizer = keras.regularizers.L2(0.01)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = SGD(0.1, global_clipnorm=0.5)
    model.compile(optimizer, loss, metrics=["accuracy"], weighted_metrics=["accuracy"], **arguments)
    return model


def everything(model, count, batch):
    """All that two epochs leave and show, and what the model then says."""
    x, y = images(count, 20, 28, 3), np.arange(count) % CLASSES
    weights = np.random.default_rng(2).uniform(0, 3, count)
    history = model.fit(x, y, batch, epochs=2, sample_weight=weights, shuffle=False, verbose=0).history
    shown = [history[name] for name in sorted(history)] + [model.evaluate(x, y, batch, verbose=0)]
    state = [numpy(variable) for variable in [*model.trainable_variables, *model.optimizer.variables]]
    return [np.asarray(each, "float64") for each in [*shown, *state, model.predict(x, batch, verbose=0)]]


def uneven_shares():
    """The largest difference of anything, by its size if above 1, for the batches of each case."""
    found = []
    for count, batch, arguments in CASES:
        one = everything(compiled(), count, batch)
        with engine(2).scope():
            model = compiled(**arguments)
        two = everything(model, count, batch)
        pairs = zip(one, two, strict=True)
        found.append(float(max((np.abs(a - b) / np.maximum(np.abs(a), 1)).max() for a, b in pairs)))
    return found


@pytest.mark.elsewhere("two devices", "uneven_shares")
def test_uneven_shares_of_a_batch_count_as_in_the_whole(found):
    assert len(found) == len(CASES)
    assert max(found) < TOLERANCE, found


def refusals():
    """What a model on two devices says of XLA, of a loss that is no mean, and of a metric that is one."""
    said = []
    with engine(2).scope():
        wrapped = keras.metrics.MeanMetricWrapper(lambda y, p: keras.ops.mean(p), name="wrapped")
        summed = keras.losses.MeanSquaredError(reduction="sum")
        for arguments in ({"jit_compile": True}, {"loss": summed}, {"metrics": [wrapped]}):
            with pytest.raises(ValueError, match="devices") as error:
                make_tiny(num_layers=1).compile(**{"optimizer": "sgd", "loss": "mse"} | arguments)
            said.append(str(error.value))
        model = make_tiny(num_layers=1)
        model.compile("sgd", "mse", metrics=[lambda y, p: keras.ops.mean(p)])
    with pytest.raises(ValueError, match="metric") as error:
        model.fit(images(8, 20, 28, 3), np.zeros((8, CLASSES)), 8, verbose=0)
    return [*said, str(error.value)]


@pytest.mark.elsewhere("two devices", "refusals")
def test_what_devices_cannot_share_is_refused(found):
    xla, loss, wrapped, metric = found
    assert "jit_compile=True" in xla
    assert "mean" in loss
    assert "'wrapped'" in wrapped
    assert "each image" in metric


def reloaded():
    """Whether a model that one device has compiled can go on on two."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        compiled().save(path)
        with engine(2).scope():
            model = keras.models.load_model(path)
    return [bool(model.jit_compile), model.fit(images(8, 20, 28, 3), np.zeros(8), 8, verbose=0).history["loss"][0]]


@pytest.mark.elsewhere("two devices", "reloaded")
def test_model_that_one_device_compiled_goes_on_on_two(found):
    jit_compile, loss = found
    assert not jit_compile
    assert np.isfinite(loss)


def apart(make, data, **arguments):
    """How far what two devices train is from that of one: losses, accuracies, weights and predictions."""
    found = []
    for scope in (contextlib.nullcontext(), engine(2).scope()):
        keras.utils.set_random_seed(7)
        with scope:
            model = make()
            model.compile(keras.optimizers.SGD(0.1, clipnorm=0.5), **arguments)
        history = model.fit(*data, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        shown = [*history["loss"], *history["accuracy"], *model.evaluate(*data, batch_size=8, verbose=0)]
        weights = [numpy(weight).ravel() for weight in model.trainable_variables]
        answers = model.predict(data[0], 8, verbose=0).ravel() if len(data) > 1 else []
        found.append(np.concatenate([shown, *weights, answers]))
    return float((np.abs(found[0] - found[1]) / np.maximum(np.abs(found[0]), 1)).max())


def distilled():
    """Of a student of another model."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def make():
        return keras_vit.Distiller(make_tiny(num_layers=1, distilled=True), make_tiny(num_layers=1))

    return apart(make, (images(13, 20, 28, 3), np.arange(13) % CLASSES), loss=loss, metrics=["accuracy"])


def masked():
    """Of masked patch prediction."""
    return apart(lambda: keras_vit.MaskedPatchPrediction(make_tiny(num_layers=1), seed=1), (images(13, 20, 28, 3),))


WRAPPERS = [pytest.param(name, marks=pytest.mark.elsewhere("two devices", name)) for name in ("distilled", "masked")]


@pytest.mark.parametrize("check", WRAPPERS)
def test_what_trains_a_model_learns_on_two_devices_as_on_one(found, check):
    assert found < TOLERANCE, check


def parts_of_sums():
    """Of the sums of metrics each device has a part: those before a checkpoint and after, as `Checkpoints` has them."""
    with engine(2).scope():
        model = compiled()
    model.fit(images(7, 20, 28, 3), np.arange(7) % CLASSES, 7, verbose=0)
    saved = list(StateReader().shards_of(METRICS, model.metrics_variables))
    with tempfile.TemporaryDirectory() as path:
        CheckpointFolder(Path(path)).save(saved, {"step": 1, "epoch": 1})
        model.reset_metrics()
        restore(CheckpointFolder(Path(path)).newest(), METRICS, model.metrics_variables)
    again = list(StateReader().shards_of(METRICS, model.metrics_variables))
    return [{piece.name: piece.array.tolist() for piece in pieces} for pieces in (saved, again)]


@pytest.mark.elsewhere("two devices", "parts_of_sums")
def test_each_device_gets_its_part_of_a_sum_again(found):
    """Sums divided anew would be rounded otherwise than those of a run that was not stopped."""
    saved, again = found
    assert [name for name in saved if name.startswith(f"{METRICS}/00000")] == [f"{METRICS}/00000#{i}" for i in (0, 1)]
    assert again == saved


def recomputed():
    """How far two devices, and micro-batches on one, are from one device, where blocks are computed again."""
    x, y, found = images(7, 20, 28, 3), np.arange(7) % CLASSES, []
    for devices, parts in ((1, 1), (2, 2), (1, 2)):
        keras.utils.set_random_seed(7)
        with engine(2).scope() if devices == 2 else contextlib.nullcontext():
            model = make_tiny(num_layers=1, dropout_rate=0.3, stochastic_depth_rate=0.3, rematerialize=True)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(SGD(0.1), loss, accumulation_steps=parts, jit_compile=False)
        model.fit(x, y, 7, shuffle=False, verbose=0)
        found.append(np.concatenate([numpy(weight).ravel() for weight in model.trainable_variables]))
        answers = len(model.predict_on_batch(x[:5]))
        assert answers == 5
    return [float(np.abs(other - found[0]).max()) for other in found[1:]]


@pytest.mark.elsewhere("two devices", "recomputed")
def test_blocks_computed_again_for_gradients_draw_the_same_masks(found):
    assert max(found) < TOLERANCE


def wrapped():
    """What is said of a model around ours that two devices train."""
    with engine(2).scope():
        inputs = keras.Input((20, 28, 3))
        features = keras_vit.build(tiny_config(num_layers=1), input_shape=(20, 28, 3), include_top=False)
        model = keras.Model(inputs, keras.layers.Dense(CLASSES)(features(inputs)))
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(images(8, 20, 28, 3), np.zeros(8), 8, verbose=0)
    return [str(warning.message) for warning in said]


@pytest.mark.elsewhere("two devices", "wrapped")
def test_model_around_ours_is_warned_of(found):
    assert any("classes=" in words for words in found)
