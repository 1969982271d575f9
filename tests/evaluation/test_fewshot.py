"""The few-shot probe equals a direct solve in both branches, and the official algorithm's answers."""

import numpy as np
import pytest

from keras_vit.evaluation.fewshot import RIDGE, choose_shots, fit_least_squares, ridge_solution


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
