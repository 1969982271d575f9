"""The recorder of a run: which model is the best one, and that a damaged one never is."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy

from keras_vit.runs.recorder import Recorder
from keras_vit.runs.run_directory import BEST, RunDirectory
from keras_vit.training.optimizers import SGD

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.fixture
def recorder(tmp_path):
    """One that begins on a model whose weights are averaged."""
    model = make_tiny()
    model.compile(SGD(0.1, use_ema=True, ema_momentum=0.5), LOSS)
    found = Recorder(RunDirectory(tmp_path / "run"))
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
