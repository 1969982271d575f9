"""Each classifier of probes against a second computation.

Least squares equals a direct solve in both branches, and the official algorithm; the logistic regression is at the
minimum of its loss; nearest neighbors equal a plain loop, in blocks of any size.
"""

import importlib.util
import math

import numpy as np
import pytest

from keras_vit.evaluation.probes import (
    RIDGE,
    STRENGTHS,
    choose_shots,
    choose_strength,
    fit_least_squares,
    fit_logistic,
    neighbor_scores,
    ridge_solution,
)

needs_sklearn = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="needs scikit-learn")


def clusters(per_class, dimensions=13, classes=5, seed=0, spread=1.5):
    """Features around one centre for each class, far from unit scale, and labels in no order."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), per_class))
    centres = np.random.default_rng(99).normal(size=(classes, dimensions))
    features = centres[labels] + rng.normal(0, spread, (len(labels), dimensions))
    return (features * np.linspace(0.1, 40, dimensions) + 7).astype("float32"), labels


@pytest.mark.parametrize(("rows", "columns"), [(31, 7), (7, 7), (5, 19)], ids=["n > d", "n = d", "n < d"])
@pytest.mark.parametrize("ridge", [0.01, 3.0, RIDGE])
def test_ridge_solution_equals_a_direct_solve(rows, columns, ridge):
    rng = np.random.default_rng(rows)
    x, y = rng.normal(size=(rows, columns)), rng.normal(size=(rows, 3))
    expected = np.linalg.solve(x.T @ x + ridge * np.eye(columns), x.T @ y)
    # float64 through a Gram matrix: its condition of some 1e4 takes four of sixteen digits
    np.testing.assert_allclose(ridge_solution(x, y, ridge), expected, rtol=1e-9, atol=1e-12)


def official(x_train, y_train, x_test, classes, shots, seed):
    """The published algorithm in its own words: float64, one case after the other, (d, d) or (n, n) inverted."""
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.permutation(np.where(y_train == c)[0])[:shots] for c in range(classes)])
    x, y = x_train[rows].astype("float64"), y_train[rows]
    mean, std = x.mean(0, keepdims=True), x.std(0, keepdims=True) + 1e-5
    x = np.pad((x - mean) / std, ((0, 0), (0, 1)), constant_values=100.0)
    y = 2.0 * np.eye(classes)[y] - 1.0
    n, d = x.shape
    if n >= d:
        w = np.linalg.inv(x.T @ x + 1024 * np.eye(d)) @ x.T @ y
    else:
        w = x.T @ np.linalg.inv(x @ x.T + 1024 * np.eye(n)) @ y
    test = np.pad((x_test - mean) / std, ((0, 0), (0, 1)), constant_values=100.0)
    return (test @ w).argmax(1)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("shots", [1, 5, 10])  # 5, 25 and 50 rows of 13 features: both branches
def test_answers_are_those_of_the_official_algorithm(shots, seed):
    (x, y), (asked, _) = clusters(30), clusters(40, seed=1)
    rows = choose_shots(y, 5, shots, seed)
    found = fit_least_squares(x[rows], y[rows], 5).scores(asked).argmax(axis=1)
    np.testing.assert_array_equal(found, official(x, y, asked, 5, shots, seed))


def test_shots_are_so_many_of_each_class_and_grow_by_adding():
    labels = clusters(30)[1]
    few, many = choose_shots(labels, 5, 2, seed=4), choose_shots(labels, 5, 7, seed=4)
    assert np.bincount(labels[many]).tolist() == [7] * 5
    assert len(set(many.tolist())) == 35
    assert set(few.tolist()) < set(many.tolist())
    assert set(choose_shots(labels, 5, 7, seed=5).tolist()) != set(many.tolist())


def test_scores_do_not_depend_on_the_scale_and_place_of_a_feature():
    """Whitening takes both away, up to the 1e-5 beside deviations of about 1."""
    (x, y), (asked, _) = clusters(6), clusters(9, seed=1)
    scale, place = np.linspace(1, 3, 13), np.linspace(-5, 5, 13)
    plain = fit_least_squares(x, y, 5).scores(asked)
    np.testing.assert_allclose(
        fit_least_squares(x * scale + place, y, 5).scores(asked * scale + place), plain, atol=1e-3
    )


def test_separable_blobs_are_told_without_a_mistake():
    (x, y), (asked, true) = clusters(10, spread=0.05), clusters(20, seed=1, spread=0.05)
    assert (fit_least_squares(x, y, 5).scores(asked).argmax(1) == true).all()


def test_feature_that_never_changes_decides_nothing():
    (x, y), (asked, _) = clusters(6), clusters(9, seed=1)
    plain = fit_least_squares(x, y, 5).scores(asked)
    wider = [np.concatenate([part, np.full((len(part), 1), 3.0)], axis=1) for part in (x, asked)]
    np.testing.assert_allclose(fit_least_squares(wider[0], y, 5).scores(wider[1]), plain, rtol=1e-9)


def blobs(count, seed, spread):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    centres = np.random.default_rng(5).normal(size=(3, 7))
    return centres[labels] + rng.normal(0, spread, (count, 7)), labels


@needs_sklearn
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


@needs_sklearn
def test_strength_is_the_smallest_of_those_that_are_best_on_validation():
    train, validation = blobs(40, 0, 1.5), blobs(60, 1, 1.5)
    right = [(fit_logistic(*train, strength).predict(validation[0]) == validation[1]).sum() for strength in STRENGTHS]
    assert choose_strength(train, validation) == STRENGTHS[right.index(max(right))]
    assert len(set(right)) > 1


@needs_sklearn
def test_classes_that_are_not_trained_are_not_answered_and_keep_the_numbers_of_others():
    features, labels = blobs(50, 0, 0.1)
    fitted = fit_logistic(features[labels != 1], labels[labels != 1], 1.0)
    assert set(fitted.predict(features)) == {0, 2}


@needs_sklearn
def test_feature_that_never_changes_is_no_nan():
    features, labels = blobs(50, 0, 0.1)
    features[:, 2] = 4.0
    assert (fit_logistic(features, labels, 1.0).predict(features) == labels).mean() > 0.9


@needs_sklearn
def test_one_class_is_refused():
    with pytest.raises(ValueError, match=r"two classes(?s:.*)4 example"):
        fit_logistic(np.eye(4), np.ones(4, int), 1.0)


@needs_sklearn
def test_too_few_steps_are_told(monkeypatch):
    monkeypatch.setattr("keras_vit.evaluation.probes._MOST_STEPS", 2)
    with pytest.warns(UserWarning, match="2 steps"):
        fit_logistic(*blobs(50, 0, 1.0), 1.0)


def made(count, seed):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(count, 11)), rng.integers(0, 4, count)


@pytest.mark.parametrize("neighbours", [1, 3, 37])
@pytest.mark.parametrize("most_numbers", [1, 100, 10**6], ids=["a row at once", "two rows", "all"])
def test_votes_equal_a_loop_over_the_examples(neighbours, most_numbers):
    (train, labels), (test, _) = made(37, 0), made(13, 1)
    expected = np.zeros((13, 4))
    for row, asked in enumerate(test):
        cosines = [asked @ known / math.hypot(*asked) / math.hypot(*known) for known in train]
        for number in sorted(range(37), key=lambda number: -cosines[number])[:neighbours]:
            expected[row, labels[number]] += math.exp((cosines[number] - 1) / 0.07)
    found = neighbor_scores(train, labels, test, 4, neighbours, most_numbers)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-12)  # float32 cosines, over .07


def test_scale_of_a_feature_does_not_matter_and_zeros_are_no_nan():
    train, labels = made(37, 0)
    assert (neighbor_scores(train, labels, 9 * train, 4, 1).argmax(axis=1) == labels).all()
    assert np.isfinite(neighbor_scores(train, labels, np.zeros((2, 11)), 4, 3)).all()
