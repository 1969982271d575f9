"""`nearest`: the neighbours of vectors by their cosine, exactly by blocks of NumPy, or nearly so by faiss."""

import dataclasses

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, check_choice, check_int
from keras_vit.embedding.faiss_index import Index
from keras_vit.embedding.vector_rows import check_rows, cosines, directions, rows_of

SEARCHES = ("numpy", "faiss")
_ROWS, _COLUMNS = 1024, 8192  # of a block of products: 32 MiB
# Candidates beyond k that are kept until the end, since float32 products may order equal vectors by chance.
_SPARE = 16


@dataclasses.dataclass(frozen=True)
class Neighbours:
    """The nearest vectors of some queries, the nearest first.

    Example:
        >>> vectors = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
        >>> keras_vit.nearest(vectors, k=1).indices.ravel().tolist()
        [1, 0, 1]

    Attributes:
        indices: int64 `(Q, k)`, rows of the vectors; -1 where there is none.
        similarities: float32 `(Q, k)`, cosines in [-1, 1]; NaN where there is none.
        photos: the names of all N vectors, where these are of a folder; else `None`.
    """

    indices: np.ndarray
    similarities: np.ndarray
    photos: np.ndarray | None = None


def nearest(
    vectors: np.ndarray | FilePath, queries: np.ndarray | None = None, k: int = 10, *, engine: str = "numpy"
) -> Neighbours:
    """Finds the k vectors with the largest cosine to each query.

    Beside the vectors themselves it takes some 100 MB, however many there are. Of equal cosines the lower index comes
    first. Rows of NaN, of infinity and of zeros are nobody's neighbours and have none.

    Example:
        >>> vectors = np.eye(3)
        >>> found = keras_vit.nearest(vectors, np.array([[2.0, 1.0, 0.0]]), k=2)
        >>> found.indices, found.similarities
        (array([[0, 1]]), array([[0.8944272, 0.4472136]], dtype=float32))

    Args:
        vectors: real `(N, D)`, also one of `np.load(file, mmap_mode="r")`; or the folder of a finished job of
            `keras-vit embed`.
        queries: real `(Q, D)`; `None` for the vectors themselves, each without itself.
        k: neighbours of a query, at most N, or N - 1 without `queries`.
        engine: `"numpy"`, which is exact, or `"faiss"`, for a million vectors and more: it looks into the 8 nearest of
            about 4 sqrt(N) lists alone, so it may miss a neighbour. It holds a copy of the vectors in float32.

    Raises:
        ValueError: for other shapes, a k that is too small or too large, an unknown engine, and a folder that is not
            of a finished job.
        ImportError: without faiss, if it is asked for.
    """
    check_choice("engine", engine, SEARCHES)
    rows = rows_of(vectors)
    asked = rows.vectors if queries is None else check_rows("queries", queries)
    if asked.shape[1] != rows.vectors.shape[1]:
        raise ArgumentError(
            "`queries` must be of the same model as the vectors, so of the same width.\n"
            f"Received: queries of {asked.shape[1]} numbers, and vectors of {rows.vectors.shape[1]}.",
            parameters=("queries",),
        )
    most = len(rows.vectors) - (queries is None)
    if check_int("k", k, 1) > most:
        raise ArgumentError(
            f"`k` must be at most the number of other vectors, {most:,}.\nReceived: k={k}.", parameters=("k",)
        )
    index = Index(rows.vectors) if engine == "faiss" else None
    found = np.empty((len(asked), k), "int64"), np.empty((len(asked), k), "float32")
    for start in range(0, len(asked), _ROWS):
        part = slice(start, start + _ROWS)
        itself = start if queries is None else None
        if index is None:
            candidates = _by_products(asked[part], rows.vectors, min(k + _SPARE, most), itself)
        else:
            candidates = index.nearest(asked[part], k + _SPARE, itself)
        found[0][part], found[1][part] = _ordered(asked[part], rows.vectors, candidates, k)
    return Neighbours(*found, rows.photos)


def _by_products(asked: np.ndarray, vectors: np.ndarray, count: int, itself: int | None) -> np.ndarray:
    """int64 `(Q, count)`, the rows with the largest products, or -1.

    Args:
        asked: `(Q, D)`.
        vectors: `(N, D)`.
        count: of candidates.
        itself: the row of the first query, if the queries are rows; none is its own candidate.
    """
    queries, valid = directions(asked)
    indices = np.full((len(asked), count), -1)
    values = np.full((len(asked), count), -np.inf, "float32")
    for first in range(0, len(vectors), _COLUMNS):
        others, known = directions(vectors[first : first + _COLUMNS])
        products = queries @ others.T
        products[~valid], products[:, ~known] = -np.inf, -np.inf
        if itself is not None:
            own = np.arange(itself, itself + len(asked)) - first
            inside = np.flatnonzero((own >= 0) & (own < len(others)))
            products[inside, own[inside]] = -np.inf
        _take(indices, values, products, first)
    return indices


def _take(indices: np.ndarray, values: np.ndarray, products: np.ndarray, first: int) -> None:
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


def _ordered(asked: np.ndarray, vectors: np.ndarray, candidates: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best candidates by their exact cosines, and of equal ones by their index."""
    queries, columns = np.nonzero(candidates >= 0)
    values = np.full(candidates.shape, np.nan, "float32")  # which are sorted to the end
    values[queries, columns] = cosines(asked, vectors, queries, candidates[queries, columns])
    order = np.lexsort((candidates, -values), axis=1)[:, :k]
    return np.take_along_axis(candidates, order, 1), np.take_along_axis(values, order, 1)
