"""`nearest_neighbors`: the neighbours of vectors by their cosine, exactly by blocks of NumPy, or nearly so by faiss."""

import dataclasses
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, check_choice, check_installed, check_int
from keras_vit.embedding.embedder import OK
from keras_vit.embedding.manifest import read_manifest
from keras_vit.embedding.part_files import part_error, read_vectors
from keras_vit.embedding.photo_lists import check_count
from keras_vit.files import expand_path
from keras_vit.text import TextEmbeddings

SEARCHES = ("numpy", "faiss")
_ROWS, _COLUMNS = 1024, 8192  # of a block of products: 32 MiB
# Candidates beyond k that are kept until the end, since float32 products may order equal vectors by chance.
_SPARE = 16
_PAIR_BYTES = 1 << 24  # of the float64 rows of pairs that are compared at once
# Of faiss:
_BLOCK = 8192  # vectors that are added at once
_LISTS = 4  # times sqrt(N): a fourth of the work of sqrt(N) lists, and as many found
_PROBES = 8  # lists that are searched; one alone finds 494 of 500 planted pairs in 50,000 vectors, and 4 find all
_LEARN = 64  # vectors of a list from which its centre is learnt; faiss warns below 39


@dataclasses.dataclass(frozen=True)
class Neighbors:
    """The nearest vectors of some queries, the nearest first.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> keras_vit.nearest_neighbors(vectors, k=1).indices.ravel().tolist()
        [1, 0, 1]

    Attributes:
        indices: int64 `(Q, k)`, rows of the vectors; -1 where there is none.
        similarities: float32 `(Q, k)`, cosines in [-1, 1]; NaN where there is none.
        photos: the names of all N vectors, where these are of a folder; else `None`.
    """

    indices: np.ndarray
    similarities: np.ndarray
    photos: np.ndarray | None = None


def nearest_neighbors(
    vectors: np.ndarray | FilePath, queries: np.ndarray | None = None, k: int = 10, *, engine: str = "numpy"
) -> Neighbors:
    """Finds the k vectors with the largest cosine to each query.

    It takes some 100 MB in addition to the vectors, however many there are. Of equal cosines the lower index comes
    first. Rows of NaN, of infinity and of zeros are nobody's neighbours and have none.

    Example:
        >>> vectors = np.eye(3)
        >>> found = keras_vit.nearest_neighbors(vectors, np.array([[2.0, 1.0, 0.0]]), k=2)
        >>> found.indices, found.similarities
        (array([[0, 1]]), array([[0.8944272, 0.4472136]], dtype=float32))

    Args:
        vectors: real `(N, D)`, also one of `np.load(file, mmap_mode="r")`; or the folder of a finished job of
            `keras-vit embed`.
        queries: real `(Q, D)`; `None` for the vectors themselves, each without itself. Those that `embed` of a text
            tower gave are not compared with a folder's features before a projection.
        k: neighbours of a query, at most N, or N - 1 without `queries`.
        engine: `"numpy"`, which is exact, or `"faiss"`, for a million vectors and more: it looks into the 8 nearest of
            about 4 sqrt(N) lists alone, so it may miss a neighbour. It holds a copy of the vectors in float32.

    Raises:
        ValueError: for other shapes, a k that is too small or too large, an unknown engine, and a folder that is not
            of a finished job.
        ImportError: without faiss, if it is the engine.
    """
    check_choice("engine", engine, SEARCHES)
    rows = as_rows(vectors)
    is_own = queries is None
    if queries is not None and isinstance(vectors, (str, os.PathLike)):
        _check_queries(queries, expand_path(vectors))
    queries = rows.vectors if queries is None else check_rows("queries", queries)
    if queries.shape[1] != rows.vectors.shape[1]:
        raise ArgumentError(
            "`queries` must be of the same model as the vectors, so of the same width.\n"
            f"Received: queries of {queries.shape[1]} numbers, and vectors of {rows.vectors.shape[1]}."
        )
    most = len(rows.vectors) - is_own
    if check_int("k", k, 1) > most:
        raise ArgumentError(f"`k` must be at most the number of other vectors, {most:,}.\nReceived: k={k}.")
    index = Index(rows.vectors) if engine == "faiss" else None
    found = np.empty((len(queries), k), "int64"), np.empty((len(queries), k), "float32")
    for start in range(0, len(queries), _ROWS):
        part = slice(start, start + _ROWS)
        itself = start if is_own else None
        if index is None:
            candidates = _candidates(queries[part], rows.vectors, min(k + _SPARE, most), itself)
        else:
            candidates = index.search(queries[part], k + _SPARE, itself)
        found[0][part], found[1][part] = _rank(queries[part], rows.vectors, candidates, k)
    return Neighbors(*found, rows.photos)


def _check_queries(queries: Any, folder: Path) -> None:
    """Raises for embeddings of texts, where they or the vectors of a folder are features before a projection."""
    if getattr(queries, "before_projection", False):
        raise ArgumentError(
            "photos are compared with embeddings of texts after the projection, and not with the features before it.\n"
            "Received: queries of a text tower without its projection. Build it without `include_top=False`.",
            parameters=("queries",),
        )
    if isinstance(queries, TextEmbeddings) and read_manifest(folder).before_projection:
        raise ArgumentError(
            "texts are compared with embeddings after the projection, and not with the features before it.\n"
            f"Received: queries of a text tower, and features in {str(folder)!r}. Embed the photos anew with "
            "`--outputs logits`.",
            parameters=("queries",),
        )


def _candidates(queries: np.ndarray, vectors: np.ndarray, count: int, itself: int | None) -> np.ndarray:
    """int64 `(Q, count)`, the rows with the largest products, or -1.

    `itself` is the row of the first query, if the queries are rows; none is its own candidate.
    """
    units, valid = unit_vectors(queries)
    indices = np.full((len(queries), count), -1)
    values = np.full((len(queries), count), -np.inf, "float32")
    for first in range(0, len(vectors), _COLUMNS):
        others, known = unit_vectors(vectors[first : first + _COLUMNS])
        products = units @ others.T
        products[~valid], products[:, ~known] = -np.inf, -np.inf
        if itself is not None:
            own = np.arange(itself, itself + len(queries)) - first
            inside = np.flatnonzero((own >= 0) & (own < len(others)))
            products[inside, own[inside]] = -np.inf
        _keep_largest(indices, values, products, first)
    return indices


def _keep_largest(indices: np.ndarray, values: np.ndarray, products: np.ndarray, first: int) -> None:
    """Puts the products that are larger than the least kept value in its place; both arrays are changed."""
    count = values.shape[1]
    above = products > values[:, -1:]
    crowded = np.flatnonzero(np.count_nonzero(above, axis=1) > count)
    if len(crowded):  # as in the first block
        products_of = products[crowded]
        least = np.partition(products_of, -count, axis=1)[:, -count]
        above[crowded] &= products_of >= least[:, None]
    rows, columns = np.nonzero(above)
    if not len(rows):
        return
    touched, row_of = np.unique(rows, return_inverse=True)
    all_rows = np.concatenate([np.repeat(np.arange(len(touched)), count), row_of])
    all_indices = np.concatenate([indices[touched].ravel(), columns + first])
    all_values = np.concatenate([values[touched].ravel(), products[rows, columns]])
    order = np.lexsort((all_indices, -all_values, all_rows))
    starts = np.searchsorted(all_rows[order], np.arange(len(touched)))
    best = order[starts[:, None] + np.arange(count)]
    indices[touched], values[touched] = all_indices[best], all_values[best]


def _rank(queries: np.ndarray, vectors: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best candidates by their exact cosines, and of equal ones by their index."""
    which, columns = np.nonzero(candidates >= 0)
    values = np.full(candidates.shape, np.nan, "float32")  # which are sorted to the end
    values[which, columns] = cosines(queries, vectors, which, candidates[which, columns])
    order = np.lexsort((candidates, -values), axis=1)[:, :k]
    return np.take_along_axis(candidates, order, 1), np.take_along_axis(values, order, 1)


class Rows(NamedTuple):
    """Vectors, and the photos that they are of."""

    vectors: np.ndarray  # real `(N, D)`; a row of NaN is that of a broken photo
    photos: np.ndarray | None = None  # N names, of a folder


def as_rows(vectors: np.ndarray | FilePath) -> Rows:
    """The rows of an array, which is not copied, or of a finished job of `keras-vit embed`."""
    if isinstance(vectors, (str, os.PathLike)):
        return _job_rows(vectors)
    return Rows(check_rows("vectors", vectors))


def check_rows(name: str, given: np.ndarray) -> np.ndarray:
    """`given` as an array `(N, D)` of real numbers; raises for anything else."""
    found = np.asanyarray(given)
    if found.ndim != 2 or 0 in found.shape or found.dtype.kind not in "fiu":
        raise ArgumentError(
            f"`{name}` must be real numbers of shape (N, D), a row a photo.\n"
            f"Received: {found.dtype} of shape {found.shape}."
        )
    return found


def _job_rows(folder: FilePath) -> Rows:
    place = expand_path(folder)
    manifest = read_manifest(place)
    check_count(place, manifest.photos)  # before memory for them is taken
    if (fault := part_error(place, manifest, 0)) is not None:
        raise fault
    vectors = np.empty((manifest.photos, manifest.width), "float32")
    photos = np.empty(manifest.photos, object)
    for number, part in enumerate(read_vectors(folder)):
        rows = slice(manifest.rows(number).start, manifest.rows(number).stop)
        photos[rows], vectors[rows] = part.photos, part.vectors
        vectors[rows][part.status != OK] = np.nan
    return Rows(vectors, photos)


def unit_vectors(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of length 1 in float32, and which rows have a direction; those of NaN, infinity or zeros become zeros."""
    units, valid = _units(rows)
    return units.astype("float32"), valid


def cosines(one: np.ndarray, other: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosines of pairs of rows, computed in float64 and rounded to float32, in [-1, 1].

    Equal vectors so have equal cosines, whichever block they were found in.

    Args:
        one, other: `(M, D)` and `(N, D)`.
        first, second: n numbers of rows of `one` and of `other`.
    """
    found = np.empty(len(first), "float32")
    step = max(_PAIR_BYTES // (8 * one.shape[1]), 1)
    for start in range(0, len(first), step):
        part = slice(start, start + step)
        pair = (_units(rows[which[part]])[0] for rows, which in ((one, first), (other, second)))
        found[part] = np.einsum("nd,nd->n", *pair)
    return np.clip(found, -1, 1)


def _units(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = np.asarray(rows, "float64")
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    valid = np.isfinite(lengths) & (lengths > 0)
    return np.where(valid[:, None], rows, 0) / np.where(valid, lengths, 1)[:, None], valid


class Index:
    """Vectors that have a direction, in about 4 sqrt(N) lists by the inner products of these (`IndexIVFFlat`)."""

    def __init__(self, vectors: np.ndarray) -> None:
        check_installed("faiss", 'engine="faiss" searches by it', "search")
        import faiss

        count, width = vectors.shape
        lists = max(min(_LISTS * math.isqrt(count), count // _LEARN), 1)
        sample = unit_vectors(vectors[:: max(count // (lists * _LEARN), 1)])
        self._index: Any = faiss.IndexIVFFlat(faiss.IndexFlatIP(width), width, lists, faiss.METRIC_INNER_PRODUCT)
        self._index.nprobe = min(_PROBES, lists)
        self._index.cp.min_points_per_centroid = 1  # of few vectors it need not warn
        self._index.train(sample[0][sample[1]] if sample[1].any() else sample[0])
        for start in range(0, count, _BLOCK):
            units, valid = unit_vectors(vectors[start : start + _BLOCK])
            self._index.add_with_ids(units[valid], start + np.flatnonzero(valid))

    def search(self, queries: np.ndarray, count: int, itself: int | None) -> np.ndarray:
        """int64 `(Q, count)`, rows of about the nearest vectors, or -1; arguments as for blocks of NumPy."""
        units, valid = unit_vectors(queries)
        found = self._index.search(units, count + (itself is not None))[1]
        found[~valid] = -1
        if itself is not None:
            found[found == np.arange(itself, itself + len(queries))[:, None]] = -1
        return found

    def above(self, queries: np.ndarray, least: float) -> tuple[np.ndarray, np.ndarray]:
        """Queries and rows of the pairs that it finds with a product of at least `least`, above 0."""
        limits, _, found = self._index.range_search(unit_vectors(queries)[0], least)
        return np.repeat(np.arange(len(queries)), np.diff(limits.astype("int64"))), found
