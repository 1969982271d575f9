"""An index of faiss, for a million vectors and more: lists around centres, of which the nearest alone are searched."""

import math
from typing import Any

import numpy as np

from keras_vit.checks import check_installed
from keras_vit.embedding.vector_rows import directions

_BLOCK = 8192  # vectors that are added at once
_LISTS = 4  # times sqrt(N): a fourth of the work of sqrt(N) lists, and as many found
_PROBES = 8  # lists that are searched; one alone finds 494 of 500 planted pairs in 50,000 vectors, and 4 find all
_LEARN = 64  # vectors of a list from which its centre is learnt; faiss warns below 39


class Index:
    """Vectors in about 4 sqrt(N) lists, by inner products of their directions (`IndexIVFFlat`).

    Args:
        vectors: `(N, D)`; those without a direction are left out.

    Raises:
        ImportError: without faiss.
    """

    def __init__(self, vectors: np.ndarray) -> None:
        check_installed("faiss", 'engine="faiss" searches by it', "search")
        import faiss

        count, width = vectors.shape
        lists = max(min(_LISTS * math.isqrt(count), count // _LEARN), 1)
        sample = directions(vectors[:: max(count // (lists * _LEARN), 1)])
        self._index: Any = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
        self._index.nprobe = min(_PROBES, lists)
        self._index.cp.min_points_per_centroid = 1  # of few vectors it need not warn
        self._index.train(sample[0][sample[1]] if sample[1].any() else sample[0])
        for start in range(0, count, _BLOCK):
            units, valid = directions(vectors[start : start + _BLOCK])
            self._index.add_with_ids(units[valid], start + np.flatnonzero(valid))

    def nearest(self, asked: np.ndarray, count: int, itself: int | None) -> np.ndarray:
        """int64 `(Q, count)`, rows of about the nearest vectors, or -1; arguments as for blocks of NumPy."""
        queries, valid = directions(asked)
        found = self._index.search(queries, count + (itself is not None))[1]
        found[~valid] = -1
        if itself is not None:
            found[found == np.arange(itself, itself + len(asked))[:, None]] = -1
        return found

    def above(self, asked: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
        """Queries and rows of the pairs that it finds with a product of at least `least`, above 0."""
        limits, _, found = self._index.range_search(directions(asked)[0], least)
        return np.repeat(np.arange(len(asked)), np.diff(limits.astype("int64"))), found
