"""The recorder of a run: which model is the best one, and that a damaged one never is."""

import shutil

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy
from run_files import COLUMNS

from keras_vit.runs.callbacks import AveragedWeights, Recorder
from keras_vit.runs.run_directory import RunDirectory
from keras_vit.runs.run_files import BEST, LAST
from keras_vit.tasks import find_task
from keras_vit.training.optimizers import SGD

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture
def recorder(tmp_path):
    """One that begins on a model whose weights are averaged."""
    model = make_tiny()
    model.compile(SGD(0.1, use_ema=True, ema_momentum=0.5), LOSS)
    found = Recorder(RunDirectory(tmp_path / "run", COLUMNS), find_task())
    found.set_model(model)
    found.on_train_begin()
    return found


def best_after(recorder, epochs):
    """The number of the best epoch after each of these, given as logs."""
    for epoch, logs in enumerate(epochs):
        recorder.on_epoch_end(epoch, logs)
        yield recorder.best_epoch


def test_best_is_the_highest_accuracy_and_of_equal_ones_the_lowest_loss(recorder):
    figures = [(0.5, 1.0), (0.4, 0.1), (0.5, 1.0), (0.5, 0.9), (0.6, 5.0), (0.6, 6.0)]
    epochs = [{"val_accuracy": accuracy, "val_loss": loss} for accuracy, loss in figures]
    assert list(best_after(recorder, epochs)) == [1, 1, 1, 4, 5, 5]
    assert recorder.best_model == recorder.run.path / BEST


def test_without_a_validation_set_the_latest_is_the_best(recorder):
    assert recorder.best_model is None
    assert list(best_after(recorder, [{"loss": 1.0}, {"loss": 2.0}])) == [1, 2]
    assert [row["val_loss"] for row in recorder.run.rows()] == [None, None]


def test_model_that_is_not_finite_is_never_the_best(recorder):
    assert list(best_after(recorder, [{"val_accuracy": 0.5, "val_loss": 1.0}])) == [1]
    before = (recorder.run.path / BEST).read_bytes()
    recorder.model.get_layer("head").bias.assign(np.full(7, np.nan))
    recorder.on_epoch_end(1, {"val_accuracy": 0.9, "val_loss": 1.0})
    assert recorder.best_epoch == 1
    assert (recorder.run.path / BEST).read_bytes() == before


def test_average_is_what_is_validated_and_saved_and_the_weights_go_on(recorder):
    model = recorder.model
    for seed in range(2):
        model.train_on_batch(images(4, 20, 28, 3, seed=seed), np.arange(4))
    kernel = model.get_layer("head").kernel
    trained = numpy(kernel).copy()
    recorder.on_test_begin()
    validated = numpy(kernel).copy()
    recorder.on_test_end()
    recorder.on_epoch_end(0, {"val_accuracy": 0.5, "val_loss": 1.0})
    saved = keras.models.load_model(recorder.run.path / BEST, compile=False)
    assert not np.array_equal(validated, trained)
    assert np.array_equal(numpy(saved.get_layer("head").kernel), validated)
    assert np.array_equal(numpy(kernel), trained)
    assert recorder.run.rows()[0]["step"] == 2


class Copies(keras.callbacks.Callback):
    """Keeps what `last.keras` was after each epoch."""

    def __init__(self, run):
        super().__init__()
        self.run = run

    def on_epoch_end(self, epoch, logs=None):
        shutil.copy(self.run.path / LAST, self.run.path / f"{epoch}.keras")


def test_last_model_goes_on_as_if_training_had_not_stopped(recorder):
    """With an average, which Keras leaves in the weights as `fit` ends."""
    x, y = images(8, 20, 28, 3), np.arange(8) % 7
    model, folder = recorder.model, recorder.run.path
    model.fit(x, y, 4, epochs=2, shuffle=False, verbose=0, callbacks=[recorder, Copies(recorder.run)])
    again = keras.models.load_model(folder / "0.keras")
    second = Recorder(RunDirectory(folder.with_name("second"), COLUMNS), find_task())
    again.fit(x, y, 4, shuffle=False, verbose=0, callbacks=[second])
    expected, found = (keras.models.load_model(path / LAST) for path in (folder, second.run.path))
    states = ([*each.variables, *each.optimizer.variables] for each in (found, expected))
    for ours, theirs in zip(*states, strict=True):
        np.testing.assert_array_equal(numpy(ours), numpy(theirs))
    kernels = [numpy(each.get_layer("head").kernel) for each in (model, expected)]
    assert np.abs(kernels[0] - kernels[1]).max() > 1e-3  # the average, and the weights of the last step


def test_last_model_is_written_after_each_epoch_and_never_one_that_is_not_finite(recorder):
    assert list(best_after(recorder, [{"val_accuracy": 0.5, "val_loss": 1.0}])) == [1]
    before = (recorder.run.path / LAST).read_bytes()
    assert recorder.last_epoch == 1
    recorder.model.get_layer("head").bias.assign(np.full(7, np.nan))
    recorder.on_epoch_end(1, {"val_accuracy": 0.9, "val_loss": 1.0})
    assert recorder.last_epoch == 1
    assert (recorder.run.path / LAST).read_bytes() == before


@pytest.mark.parametrize("averaged", [True, False])
def test_average_goes_in_and_out_bit_for_bit(averaged):
    """Keras' average begins at the weights after the first step. Without one the weights stay."""
    model = make_tiny(num_layers=1)
    optimizer = SGD(0.1, use_ema=averaged, ema_momentum=0.5)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True), run_eagerly=True)
    expected = None
    for seed in range(3):
        model.train_on_batch(images(4, 20, 28, 3, seed=seed), np.arange(4))
        kernel = numpy(model.get_layer("head").kernel).astype("float64")
        expected = kernel if expected is None or not averaged else 0.5 * expected + 0.5 * kernel
    before = model.get_weights()
    average = AveragedWeights(model)
    average.enter()
    np.testing.assert_allclose(numpy(model.get_layer("head").kernel), expected, rtol=1e-6)
    average.leave()
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))
