"""The sigmoid cross-entropy of pre-training."""

import keras
import numpy as np
import pytest
from conftest import numpy
from sklearn import metrics

from keras_vit.training.losses import ClassWeightedLoss, SigmoidCrossentropy, StandardizedLoss, StandardizedR2Score


def test_sigmoid_crossentropy_smooths_to_one_minus_ls_and_ls():
    logits = np.zeros((1, 3), "float32") + np.array([2.0, -1.0, 0.5], "float32")
    p = 1 / (1 + np.exp(-logits.astype("float64")))
    target = np.array([0.1, 0.9, 0.1])
    expected = -(target * np.log(p) + (1 - target) * np.log(1 - p)).sum()
    assert float(SigmoidCrossentropy(0.1, "int")([1], logits)) == pytest.approx(expected, rel=1e-6)


def test_sigmoid_crossentropy_is_finite_for_any_logit_and_its_gradient_is_p_minus_q():
    import tensorflow as tf

    logits = tf.Variable([[-1e4, -10.0, 0.0, 10.0, 1e4]])
    labels = np.array([[1.0, 0.0, 1.0, 0.0, 0.0]], "float32")
    with tf.GradientTape() as tape:
        loss = SigmoidCrossentropy()(labels, logits)
    # The wrong ends cost 1e4 each, the middle ones log(1 + e^-10), log 2 and log(1 + e^10).
    assert float(loss) == pytest.approx(2e4 + np.log1p(np.exp(-10)) + np.log(2) + np.log1p(np.exp(10)), rel=1e-6)
    p = 1 / (1 + np.exp(-np.clip(logits.numpy().astype("float64"), -700, 700)))
    np.testing.assert_allclose(tape.gradient(loss, logits), p - labels, atol=1e-6)  # float32 of numbers up to 1


@pytest.mark.parametrize("labels", [np.array([2, 0]), np.array([[2], [0]]), np.array([2.0, 0.0])])
def test_sigmoid_crossentropy_of_class_numbers_is_that_of_their_rows(labels):
    logits = np.array([[0.1, -2.0, 0.7], [1.3, 0.2, -0.4]], "float32")
    rows = SigmoidCrossentropy(1e-4)(np.eye(3)[[2, 0]], logits)
    assert float(SigmoidCrossentropy(1e-4, "int")(labels, logits)) == float(rows)


def test_sigmoid_crossentropy_returns_from_its_config():
    loss = keras.losses.deserialize(keras.losses.serialize(SigmoidCrossentropy(0.25, "int", name="other")))
    assert (loss.label_smoothing, loss.labels, loss.name) == (0.25, "int", "other")


def test_sigmoid_crossentropy_of_half_precision_logits_is_computed_in_float32():
    loss = SigmoidCrossentropy()(np.array([[1.0, 0.0]]), keras.ops.cast([[0.5, -20.0]], "bfloat16"))
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert float(numpy(loss)) == pytest.approx(np.log1p(np.exp(-0.5)) + np.log1p(np.exp(-20)), rel=1e-6)


@pytest.mark.parametrize(("arguments", "words"), [((1.0,), "label_smoothing=1.0"), ((0.0, "sparse"), "labels=.sparse")])
def test_sigmoid_crossentropy_refuses_what_is_no_target(arguments, words):
    with pytest.raises(ValueError, match=words):
        SigmoidCrossentropy(*arguments)


def test_sigmoid_crossentropy_of_a_number_that_is_no_class_is_nan():
    loss = SigmoidCrossentropy(labels="int", reduction="none")
    values = numpy(loss(np.array([1, 3, -1]), np.zeros((3, 3), "float32")))
    assert np.isnan(values).tolist() == [False, True, True]


def test_positive_weight_counts_the_images_with_a_label_more():
    logits = np.array([[0.3, -2.0, 30.0], [-1.1, 0.4, -30.0]])
    labels = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.25]])
    sigmoid = 1 / (1 + np.exp(-logits))
    weights = np.array([2.0, 5.0, 0.5])
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = weights * labels * np.log(sigmoid) + (1 - labels) * np.where(labels < 1, np.log(1 - sigmoid), 0)
    loss = SigmoidCrossentropy(positive_weight=weights.tolist())
    assert float(loss(labels, logits)) == pytest.approx(-terms.sum(axis=1).mean(), rel=1e-5)
    smooth = 0.8 * labels + 0.1  # which are weighted then, and not the labels themselves
    terms = weights * smooth * np.logaddexp(0, -logits) + (1 - smooth) * np.logaddexp(0, logits)
    smoothed = SigmoidCrossentropy(0.1, positive_weight=weights.tolist())
    assert float(smoothed(labels, logits)) == pytest.approx(terms.sum(axis=1).mean(), rel=1e-5)
    ones = SigmoidCrossentropy(positive_weight=[1.0, 1.0, 1.0])
    assert float(ones(labels, logits)) == float(SigmoidCrossentropy()(labels, logits))
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_weights_of_classes_are_those_of_keras_and_of_each_part_of_a_mixture(kind, smoothing):
    """In float64, from the loss of each image for each class; the mean is over images, not over weights."""
    logits = np.random.default_rng(0).normal(0, 2, (4, 3))
    targets = np.array([[1, 0, 0], [0, 0, 1], [0.3, 0.7, 0], [0.5, 0, 0.5]])
    weights = np.array([4.0, 0.5, 1.5])
    if kind == "softmax":
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        of_class = -(1 - smoothing) * logs - smoothing / 3 * logs.sum(axis=1, keepdims=True)
        loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    else:
        yes, no = np.logaddexp(0, -logits), np.logaddexp(0, logits)
        smooth = smoothing * yes + (1 - smoothing) * no
        of_class = smooth.sum(axis=1, keepdims=True) - smooth + (1 - smoothing) * yes + smoothing * no
        loss = SigmoidCrossentropy(smoothing)
    expected = (targets * weights * of_class).sum(axis=1)
    weighted = ClassWeightedLoss(loss, weights.tolist())
    assert float(weighted(targets, logits)) == pytest.approx(expected.mean(), rel=1e-5)
    by_keras = loss(targets[:2], logits[:2], sample_weight=weights[[0, 2]])  # as `fit(class_weight=)` calls it
    assert float(weighted(targets[:2], logits[:2])) == pytest.approx(float(by_keras), rel=1e-5)
    again = keras.losses.deserialize(keras.losses.serialize(weighted))
    assert float(again(targets, logits)) == float(weighted(targets, logits))


@pytest.mark.parametrize("kind", ["mse", "mae", "huber"])
def test_loss_of_numbers_is_that_of_standardised_ones(kind):
    true, found = np.array([[1000.0, 2.0], [1010.0, 2.5]]), np.array([[1004.0, 2.0], [1007.0, 4.0]])
    error = (found - true) / [2.0, 0.5]
    expected = {"mse": error**2, "mae": abs(error), "huber": np.where(abs(error) < 1, error**2 / 2, abs(error) - 0.5)}
    loss = StandardizedLoss(kind, [2.0, 0.5])
    assert float(loss(true, found)) == pytest.approx(expected[kind].mean(), rel=1e-6)
    assert keras.losses.deserialize(keras.losses.serialize(loss)).get_config() == loss.get_config()


def test_loss_of_numbers_far_from_zero_keeps_their_digits():
    loss = StandardizedLoss("mse", [1.0])
    assert float(loss(np.array([[2.0**23 + 1]]), np.array([[2.0**23 - 2]]))) == 9.0


def test_r2_of_numbers_far_from_zero_is_that_of_scikit_learn():
    """Keras' own gives 0 for both columns: in float32 it subtracts sums of squares of 1e12."""
    rng = np.random.default_rng(0)
    true = rng.normal([1e6, 16_787_338], [4.65, 4650], (90, 2)).astype("float32")
    found = (true + rng.normal(0, [2, 2000], true.shape)).astype("float32")
    metric = StandardizedR2Score(true.mean(0, "float64").tolist(), true.std(0, dtype="float64").tolist())
    for part in (slice(0, 40), slice(40, None)):
        metric.update_state(true[part], found[part])
    assert float(metric.result()) == pytest.approx(metrics.r2_score(true.astype("d"), found.astype("d")), abs=1e-5)
    assert type(metric).from_config(metric.get_config()).get_config() == metric.get_config()
