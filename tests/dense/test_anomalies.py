"""The coreset by all pairs, regions by SciPy, AUROC by scikit-learn, and PRO by its definition at each threshold."""

import itertools

import numpy as np
import pytest
from scipy import ndimage
from scipy.spatial.distance import cdist
from sklearn.metrics import roc_auc_score

from keras_vit import dense
from keras_vit.dense.anomalies import AnomalyCounts, label_regions


def farthest_points(points, first, count):
    """The greedy choice by all pairs of distances."""
    distances = cdist(points, points)
    chosen = [first]
    while len(chosen) < count:
        nearest = distances[:, chosen].min(axis=1)
        nearest[chosen] = -1
        chosen.append(int(nearest.argmax()))
    return chosen


@pytest.mark.parametrize(("number", "width", "count"), [(1, 3, 1), (37, 5, 12), (37, 5, 37), (60, 128, 20)])
def test_coreset_is_the_greedy_choice(number, width, count):
    points = np.random.default_rng(number).normal(size=(number, width))
    found = dense.greedy_coreset(points, count, seed=3)
    assert found.tolist() == farthest_points(points, found[0], count)
    np.testing.assert_array_equal(found, dense.greedy_coreset(points, count, seed=3))


def test_coreset_of_wide_vectors_covers_about_as_well_as_without_the_projection():
    """The radius is at most 1.25 times that of the exact choice, and chance is far above both."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(40, 300)) * 4
    points = centres[np.minimum(rng.geometric(0.15, 900), 40) - 1] + rng.normal(size=(900, 300)) / 5
    radius = lambda rows: cdist(points, points[rows]).min(axis=1).max()  # noqa: E731
    found = dense.greedy_coreset(points, 60)
    assert radius(found) <= 1.25 * radius(farthest_points(points, found[0], 60))
    assert radius(rng.permutation(900)[:60]) > 3 * radius(found)


def test_coreset_takes_equal_vectors_last_and_each_row_once():
    points = np.array([[0.0, 0]] * 5 + [[1, 0]] * 5 + [[0, 1]] * 5)
    found = dense.greedy_coreset(points, 15, seed=1)
    assert len({tuple(points[row]) for row in found[:3]}) == 3
    assert sorted(found) == list(range(15))


@pytest.mark.parametrize("density", [0.02, 0.3, 0.55, 0.9, 1.0])
def test_regions_are_those_of_scipy(density):
    mask = np.random.default_rng(1).random((41, 67)) < density
    wanted, count = ndimage.label(mask, np.ones((3, 3)))
    found = label_regions(mask)
    assert found.max(initial=-1) + 1 == count
    assert len({*zip(found, wanted[mask], strict=True)}) == count


def test_a_spiral_is_one_region_and_no_pixel_is_none():
    mask = np.zeros((31, 31), bool)
    for ring in range(0, 15, 2):
        mask[ring, ring : 31 - ring] = mask[30 - ring, ring : 31 - ring] = True
        mask[ring : 31 - ring, ring] = mask[ring : 31 - ring, 30 - ring] = True
        mask[ring + 1, ring] = ring == 0
        mask[ring + 1 : ring + 3, ring + 1] = True
    assert set(label_regions(mask)) == set(range(ndimage.label(mask, np.ones((3, 3)))[1]))
    assert not len(label_regions(np.zeros((3, 4), bool)))


def test_auroc_is_that_of_scikit_learn_with_ties():
    rng = np.random.default_rng(2)
    labels = rng.random(300) < 0.2
    scores = np.round(rng.normal(size=300) + labels, 1)
    assert dense.auroc(labels * 255, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    pairs = scores[labels][:, None] - scores[~labels]
    assert dense.auroc(labels, scores) == pytest.approx(((pairs > 0) + (pairs == 0) / 2).mean(), abs=1e-12)
    assert np.isnan(dense.auroc([0, 0], [1.0, 2]))
    assert np.isnan(dense.auroc([1], [1.0]))


def pro_by_definition(masks, maps, limit):
    """Each region's overlap and the false positive rate at every threshold; a polygon's area up to the limit."""
    points = [(0.0, 0.0)]
    for threshold in np.unique(np.concatenate([each.ravel() for each in maps]))[::-1]:
        overlaps, false, good = [], 0, 0
        for mask, scores in zip(masks, maps, strict=True):
            regions, count = ndimage.label(mask, np.ones((3, 3)))
            overlaps += [(scores[regions == number + 1] >= threshold).mean() for number in range(count)]
            false, good = false + (scores[mask == 0] >= threshold).sum(), good + (mask == 0).sum()
        points.append((false / good, np.mean(overlaps)))
    area = 0.0
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 < limit:
            cut = min(x1, limit)
            y_cut = y1 if x1 <= limit else y0 + (y1 - y0) * (limit - x0) / (x1 - x0)
            area += (cut - x0) * (y0 + y_cut) / 2
    return area / limit


@pytest.fixture(scope="module")
def flawed():
    """Masks with regions of very different sizes, one mask without any, and maps with ties."""
    rng = np.random.default_rng(3)
    masks = [np.zeros((19, 23), "uint8"), np.zeros((13, 29), "uint8"), np.zeros((11, 7), "uint8")]
    masks[0][2:9, 3:15], masks[0][15, 20] = 255, 255
    masks[1][5:8, 20:24], masks[1][0, 0] = 1, 2
    maps = [np.round(rng.normal(size=mask.shape) + (mask > 0), 1) for mask in masks]
    return masks, maps


@pytest.mark.parametrize("limit", [0.05, 0.3, 0.777, 1.0])
def test_pro_is_its_definition(flawed, limit):
    assert dense.au_pro(*flawed, fpr_limit=limit) == pytest.approx(pro_by_definition(*flawed, limit), abs=1e-12)


def test_pro_counts_each_region_alike_and_knows_its_ends(flawed):
    masks, _ = flawed
    assert dense.au_pro(masks, [(mask > 0) * 1.0 for mask in masks]) == pytest.approx(1, abs=1e-12)
    large_alone = [(mask > 0) * 1.0 for mask in masks]
    large_alone[0][15, 20] = large_alone[1][:] = 0  # one of four regions is found
    # From (0, 1/4) to (1, 1): at 0.3 it is 0.475.
    assert dense.au_pro(masks, large_alone) == pytest.approx((0.25 + 0.475) / 2)
    assert np.isnan(dense.au_pro([np.zeros((2, 2))], [np.zeros((2, 2))]))
    assert np.isnan(dense.au_pro([np.ones((2, 2))], [np.zeros((2, 2))]))


def test_counts_of_one_map_after_another_are_those_of_all(flawed):
    masks, maps = flawed
    counts = AnomalyCounts(200)
    for mask, scores in zip(masks, maps, strict=True):
        counts.update(mask, np.rint(scores * 10).astype(int) + 90)
    assert counts.au_pro(0.3) == pytest.approx(dense.au_pro(masks, maps), abs=1e-12)
    labels, scores = (np.concatenate([each.ravel() for each in parts]) for parts in (masks, maps))
    assert counts.auroc() == pytest.approx(roc_auc_score(labels > 0, scores), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dense.greedy_coreset(np.ones((3, 2)), 4), "at most the number of vectors, 3"),
        (lambda: dense.greedy_coreset(np.ones((3, 2)), 0), "`count` must be at least 1"),
        (lambda: dense.greedy_coreset(np.ones(3), 1), r"shape \(3,\)"),
        (lambda: dense.greedy_coreset(np.full((3, 2), np.nan), 1), "finite"),
        (lambda: dense.greedy_coreset(np.ones((3, 2)), 1, seed=-1), "`seed`"),
        (lambda: dense.auroc([0, 1], [0.5]), r"shape \(2,\) and scores of \(1,\)"),
        (lambda: dense.auroc([0, 1], [0.5, np.inf]), "to inf, number 0"),
        (lambda: dense.au_pro([np.ones((2, 2))], []), "1 masks, 0 maps"),
        (lambda: dense.au_pro([np.ones(4)], [np.ones(4)]), "1 axes"),
        (lambda: dense.au_pro([np.ones((2, 2))], [np.ones((2, 3))]), r"scores of \(2, 3\)"),
        (lambda: dense.au_pro([np.eye(2)], [np.eye(2)], fpr_limit=0), "`fpr_limit` must be in"),
    ],
)
def test_what_has_no_answer_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
