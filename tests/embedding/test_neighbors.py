"""`nearest_neighbors` against a plain computation in float64, in blocks of one row to all, and what it refuses."""

import sys

import numpy as np
import pytest

import keras_vit
from keras_vit.embedding import neighbors
from keras_vit.embedding.duplicates import near_duplicates

COUNT, WIDTH = 91, 13


@pytest.fixture(scope="module")
def vectors():
    """Of unlike lengths; a broken photo, zeros, infinity, a vector in two lengths and three times the same one."""
    rng = np.random.default_rng(0)
    found = rng.normal(size=(COUNT, WIDTH)).astype("float32") * rng.choice([1e-30, 1, 1e25], (COUNT, 1)).astype("f")
    found[3], found[50], found[90] = np.nan, 0, np.inf
    found[60] = found[7] * np.float32(2)
    found[[20, 40, 80]] = found[11]
    return found


def plain(queries, vectors, k, without=False):
    """Indices and cosines one pair at a time, sorted by Python."""
    found = []
    for row, query in enumerate(queries.astype("float64").tolist()):
        pairs = []
        for column, vector in enumerate(vectors.astype("float64").tolist()):
            lengths = [np.linalg.norm(one) for one in (query, vector)]
            if all(np.isfinite(lengths)) and all(lengths) and not (without and row == column):
                value = sum(a / lengths[0] * (b / lengths[1]) for a, b in zip(query, vector, strict=True))
                pairs.append((-np.float32(value), column))
        found.append((sorted(pairs) + [(np.nan, -1)] * k)[:k])
    values, indices = np.moveaxis(np.array(found), -1, 0)
    return indices.astype(int), -values


@pytest.mark.parametrize(("rows", "columns"), [(5, 3), (7, 32), (1024, 8192)])
def test_neighbours_are_those_of_a_plain_computation(vectors, monkeypatch, rows, columns):
    monkeypatch.setattr(neighbors, "_ROWS", rows)
    monkeypatch.setattr(neighbors, "_COLUMNS", columns)
    monkeypatch.setattr(neighbors, "_SPARE", 2)
    for queries, k in ((None, 1), (None, 5), (None, COUNT - 1), (vectors[[5, 3, 11]] * 3, COUNT)):
        found = keras_vit.nearest_neighbors(vectors, queries, k)
        indices, values = plain(vectors if queries is None else queries, vectors, k, without=queries is None)
        np.testing.assert_allclose(found.similarities, values, rtol=0, atol=1e-7)  # a rounding to float32
        np.testing.assert_array_equal(found.indices, indices)
        assert (found.indices.dtype, found.similarities.dtype, found.photos) == ("int64", "float32", None)


def test_equal_vectors_come_by_their_index_and_a_row_without_direction_has_no_neighbour(vectors):
    found = keras_vit.nearest_neighbors(vectors, k=3)
    assert found.indices[[11, 20, 40, 80]].tolist() == [[20, 40, 80], [11, 40, 80], [11, 20, 80], [11, 20, 40]]
    assert (found.similarities[11] == 1).all()
    assert (found.indices[[3, 50, 90]] == -1).all()
    assert np.isnan(found.similarities[[3, 50, 90]]).all()
    assert not np.isin(found.indices, [3, 50, 90]).any()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((np.zeros(5),), ValueError, r"`vectors`.*\(N, D\)(?s:.*)\(5,\)"),
        ((np.zeros((0, 5)),), ValueError, r"\(0, 5\)"),
        ((np.zeros((5, 2), "complex64"),), ValueError, "complex64"),
        ((np.zeros((9, 5)), np.zeros((2, 4)), 1), ValueError, "`queries`(?s:.*)of 4 numbers(?s:.*)of 5"),
        ((np.zeros((9, 5)), np.zeros(5), 1), ValueError, "`queries`"),
        ((np.zeros((9, 5)), None, 0), ValueError, "`k`"),
        ((np.zeros((9, 5)), None, 9), ValueError, "`k`.*other vectors, 8"),
        ((np.zeros((9, 5)), np.zeros((2, 5)), 10), ValueError, "`k`"),
        ((np.zeros((9, 5)), None, 2.0), TypeError, "`k`"),
        (("no/such/folder", None, 1), ValueError, "that of a job"),
    ],
)
def test_wrong_arguments_are_reported(arguments, error, words):
    with pytest.raises(error, match=words):
        keras_vit.nearest_neighbors(*arguments)


def test_engine_that_is_unknown_or_not_installed_is_reported(vectors, monkeypatch):
    with pytest.raises(ValueError, match=r"`engine`(?s:.*)'faiss'"):
        keras_vit.nearest_neighbors(vectors, engine="fais")
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(ImportError, match=r"faiss must be installed(?s:.*)\[search\]"):
        keras_vit.nearest_neighbors(vectors, engine="faiss")


@pytest.mark.filterwarnings("ignore:.*SwigPy|.*swigvarlink:DeprecationWarning")  # of faiss, as it is imported
def test_faiss_finds_planted_neighbours(vectors):
    pytest.importorskip("faiss")
    rng = np.random.default_rng(1)
    many = rng.normal(size=(2000, WIDTH)).astype("float32")
    many[1000:1100] = many[:100] + rng.normal(scale=0.01, size=(100, WIDTH))
    many[[5, 1007]] = np.nan
    found = keras_vit.nearest_neighbors(many, k=2, engine="faiss")
    right = found.indices[:100, 0] == np.arange(1000, 1100)
    assert right.sum() >= 95
    exact = keras_vit.nearest_neighbors(many, k=2)
    np.testing.assert_array_equal(found.similarities[:100, 0][right], exact.similarities[:100, 0][right])
    assert (found.indices[5] == -1).all()
    pairs = near_duplicates(many, 0.99, engine="faiss")
    both = set(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    all_pairs = near_duplicates(many, 0.99)
    assert both <= set(zip(all_pairs.first.tolist(), all_pairs.second.tolist(), strict=True))
    assert len(both & {(row, row + 1000) for row in range(100)}) >= 95
    assert keras_vit.nearest_neighbors(vectors, k=3, engine="faiss").indices[11].tolist() == [20, 40, 80]  # few vectors
