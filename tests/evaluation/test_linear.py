"""The linear probe is at the minimum of its loss, and its strength is what the validation set says."""

import numpy as np
import pytest

from keras_vit.evaluation.linear import STRENGTHS, choose_strength, fit_logistic

pytest.importorskip("sklearn")


def blobs(count, seed, spread):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    centres = np.random.default_rng(5).normal(size=(3, 7))
    return centres[labels] + rng.normal(0, spread, (count, 7)), labels


def test_gradient_is_zero_at_the_answer():
    """C times the sum over examples of (p - y) x, and w: closed form, on whitened features."""
    features, labels = blobs(83, 0, 1.0)
    fitted = fit_logistic(features, labels, 0.1)
    x = (features - features.mean(0)) / features.std(0)
    logits = x @ fitted.regression.coef_.T + fitted.regression.intercept_
    powers = np.exp(logits - logits.max(1, keepdims=True))
    errors = powers / powers.sum(1, keepdims=True) - np.eye(3)[labels]
    gradient = 0.1 * errors.T @ x + fitted.regression.coef_
    assert np.abs(gradient).max() < 0.1 * 83 * 1e-4  # L-BFGS ends at 1e-4 of the mean loss
    np.testing.assert_array_equal(fitted.predict(features), logits.argmax(1))


def test_strength_is_the_smallest_of_those_that_are_best_on_validation():
    train, validation = blobs(40, 0, 1.5), blobs(60, 1, 1.5)
    right = [(fit_logistic(*train, strength).predict(validation[0]) == validation[1]).sum() for strength in STRENGTHS]
    assert choose_strength(train, validation) == STRENGTHS[right.index(max(right))]
    assert len(set(right)) > 1


def test_classes_that_are_not_trained_are_not_answered_and_keep_the_numbers_of_others():
    features, labels = blobs(50, 0, 0.1)
    fitted = fit_logistic(features[labels != 1], labels[labels != 1], 1.0)
    assert set(fitted.predict(features)) == {0, 2}


def test_feature_that_never_changes_is_no_nan():
    features, labels = blobs(50, 0, 0.1)
    features[:, 2] = 4.0
    assert (fit_logistic(features, labels, 1.0).predict(features) == labels).mean() > 0.9


def test_one_class_is_refused():
    with pytest.raises(ValueError, match=r"two classes(?s:.*)4 example"):
        fit_logistic(np.eye(4), np.ones(4, int), 1.0)


def test_too_few_steps_are_told(monkeypatch):
    monkeypatch.setattr("keras_vit.evaluation.linear._MOST_STEPS", 2)
    with pytest.warns(UserWarning, match="2 steps"):
        fit_logistic(*blobs(50, 0, 1.0), 1.0)
