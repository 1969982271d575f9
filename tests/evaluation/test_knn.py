"""Nearest neighbours equal a plain loop, in blocks of any size."""

import math

import numpy as np
import pytest

from keras_vit.evaluation.probes import neighbour_scores


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
    found = neighbour_scores(train, labels, test, 4, neighbours, most_numbers)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-12)  # float32 cosines, over .07


def test_scale_of_a_feature_does_not_matter_and_zeros_are_no_nan():
    train, labels = made(37, 0)
    assert (neighbour_scores(train, labels, 9 * train, 4, 1).argmax(axis=1) == labels).all()
    assert np.isfinite(neighbour_scores(train, labels, np.zeros((2, 11)), 4, 3)).all()
