"""A loss or metric of probabilities never meets logits without a word, nor one of logits probabilities."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny

from keras_vit import Distiller
from keras_vit.model.logits_check import LogitsError

LOSSES, METRICS = keras.losses, keras.metrics


@pytest.fixture(scope="module")
def logits():
    return make_tiny(num_layers=1)


@pytest.fixture(scope="module")
def probabilities():
    return make_tiny(num_layers=1, classifier_activation="softmax")


READ_PROBABILITIES = [
    *("dice", "tversky"),
    keras.losses.Dice(),
    *("sparse_categorical_crossentropy", "categorical_crossentropy", "binary_crossentropy", "kl_divergence"),
    LOSSES.sparse_categorical_crossentropy,
    LOSSES.SparseCategoricalCrossentropy(),
    LOSSES.CategoricalFocalCrossentropy(),
    LOSSES.KLDivergence(),
    ["categorical_crossentropy"],
]
READ_LOGITS = [LOSSES.SparseCategoricalCrossentropy(from_logits=True), LOSSES.BinaryCrossentropy(from_logits=True)]
READ_BOTH = ["mse", None, LOSSES.MeanAbsoluteError(), lambda y, predicted: predicted]
METRICS_OF_PROBABILITIES = [
    *("crossentropy", "auc", "AUC", "precision", "binary_accuracy"),
    METRICS.AUC(),
    METRICS.Precision(),
    METRICS.BinaryAccuracy(),
    METRICS.PrecisionAtRecall(0.5),
    METRICS.SparseCategoricalCrossentropy(),
    METRICS.F1Score(threshold=0.5),
]
METRICS_OF_LOGITS = [METRICS.AUC(from_logits=True), METRICS.SparseCategoricalCrossentropy(from_logits=True)]
METRICS_OF_BOTH = [
    *("accuracy", "sparse_categorical_accuracy"),
    METRICS.TopKCategoricalAccuracy(),
    METRICS.BinaryAccuracy(threshold=0.0),
    METRICS.Precision(thresholds=0.0),
    METRICS.Precision(top_k=1),
    METRICS.F1Score(),
]


def test_losses_are_refused_where_they_misread(logits, probabilities):
    for loss in READ_PROBABILITIES:
        with pytest.raises(LogitsError, match="answers logits"):
            logits.compile("sgd", loss)
        probabilities.compile("sgd", loss)
    for loss in READ_LOGITS:
        with pytest.raises(LogitsError, match="answers probabilities"):
            probabilities.compile("sgd", loss)
        logits.compile("sgd", loss)
    for loss in READ_BOTH:
        logits.compile("sgd", loss)
        probabilities.compile("sgd", loss)


@pytest.mark.parametrize("where", ["metrics", "weighted_metrics"])
def test_metrics_are_refused_where_they_misread(logits, probabilities, where):
    for metric in METRICS_OF_PROBABILITIES:
        with pytest.raises(LogitsError, match=r"metric .*(from_logits=True|0\.0)"):
            logits.compile("sgd", "mse", **{where: [metric]})
        probabilities.compile("sgd", "mse", **{where: [metric]})
    with pytest.raises(LogitsError, match=r"binary_accuracy.*0\.0"):
        logits.compile("sgd", "mse", **{where: ["binary_accuracy"]})
    for metric in METRICS_OF_LOGITS:
        with pytest.raises(LogitsError, match="from_logits"):
            probabilities.compile("sgd", "mse", **{where: [metric]})
        logits.compile("sgd", "mse", **{where: [metric]})
    for metric in METRICS_OF_BOTH:
        logits.compile("sgd", "mse", **{where: [metric]})


def test_accuracy_of_one_class_has_a_threshold():
    model = make_tiny(num_layers=1, classes=1)
    with pytest.raises(LogitsError, match=r"'accuracy'.*0\.0"):
        model.compile("sgd", "mse", metrics=["accuracy"])
    make_tiny(num_layers=1, classes=1, classifier_activation="sigmoid").compile("sgd", "mse", metrics=["accuracy"])


def test_model_without_a_head_may_have_any_loss():
    make_tiny(num_layers=1, include_top=False, classes=None).compile("sgd", "binary_crossentropy")


def test_student_answers_logits():
    student, teacher = make_tiny(num_layers=1, distilled=True), make_tiny(num_layers=1)
    with pytest.raises(LogitsError, match="answers logits"):
        Distiller(student, teacher).compile("sgd", "sparse_categorical_crossentropy")


def test_file_that_was_compiled_so_is_loaded_with_a_warning(tmp_path, monkeypatch):
    model = make_tiny(num_layers=1)
    with monkeypatch.context() as patch:
        patch.setattr("keras_vit.model.image_model.check_reads_outputs", lambda *_: None)
        model.compile("sgd", "sparse_categorical_crossentropy")
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match="not compiled"):
        again = keras.models.load_model(tmp_path / "model.keras")
    x = images(2, 20, 28, 3)
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
