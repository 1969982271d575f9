"""Near duplicates: all pairs of vectors that are at least so similar, and the groups that these pairs make."""

import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, check_choice, check_number
from keras_vit.embedding.faiss_index import Index
from keras_vit.embedding.neighbours import SEARCHES
from keras_vit.embedding.vector_rows import cosines, directions

# Measured by DINOv2 S/14 on 21 pictures: all that were saved again or halved, and 19 that were cropped by a tenth, are
# above it. Different pictures reach 0.92.
THRESHOLD = 0.95
MOST_PAIRS = 1_000_000  # that are kept, the most similar; a thousand equal photos have half a million
_SIDE = 2048  # of a block of products
_FAISS_ROWS = 256  # that faiss looks up at once: it answers with all pairs of these
_SLACK = 1e-5  # by which a product in float32 may be below the cosine
_UNIONS = 1 << 16  # pairs that are joined at once
_FIRST_WORDS, _MINUTE = 10, 60  # seconds to the first line on the speed, and between those that follow

_Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class NearDuplicates:
    """Pairs of rows, the most similar first; of equal ones those of lower rows.

    Attributes:
        first, second: int64 `(n,)`, rows; the first is the lower one.
        similarities: float32 `(n,)`, cosines.
        number: of all pairs, of which the most similar 1,000,000 are kept.
        groups: int64 `(N,)`, the group of each row, from 0 on by the lowest row; -1 for a row without a pair.
    """

    first: np.ndarray
    second: np.ndarray
    similarities: np.ndarray
    number: int
    groups: np.ndarray


def near_duplicates(
    vectors: np.ndarray,
    threshold: float = THRESHOLD,
    *,
    engine: str = "numpy",
    most: int = MOST_PAIRS,
    say: Callable[[str], Any] = lambda line: None,
) -> NearDuplicates:
    """Finds all pairs of rows whose cosine is at least `threshold`.

    Args:
        vectors: real `(N, D)`; rows without a direction have no pair.
        threshold: above 0, and at most 1.
        engine: `"numpy"`, which finds all, or `"faiss"`, which may miss some.
        most: pairs to keep.
        say: called with lines on the progress, if it takes longer than seconds.
    """
    check_choice("engine", engine, SEARCHES)
    check_number("threshold", threshold)
    if not 0 < threshold <= 1:
        raise ArgumentError(
            f"`threshold` is a cosine above 0, and at most 1.\nReceived: threshold={threshold}.",
            parameters=("threshold",),
        )
    kept: _Pairs = (np.empty(0, "int64"), np.empty(0, "int64"), np.empty(0, "float32"))
    waiting, held, number, parents = [kept], 0, 0, np.arange(len(vectors))
    for first, second in (_blocks if engine == "numpy" else _by_index)(vectors, threshold - _SLACK, say):
        if not len(first):
            continue
        values = cosines(vectors, vectors, first, second)
        near = values >= np.float32(threshold)
        waiting.append((first[near], second[near], values[near]))
        number, held = number + int(near.sum()), held + int(near.sum())
        _join(parents, first[near], second[near])
        if held > 2 * most:
            waiting, held = [_best(waiting, most)], most
    return NearDuplicates(*_best(waiting, most), number, _groups(parents))


def _blocks(vectors: np.ndarray, least: float, say: Callable[[str], Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of pairs, the lower one first, with a product of at least `least`: blocks on and above the diagonal."""
    sides = -(-len(vectors) // _SIDE)
    pace = _Pace(sides * (sides + 1) // 2, say)
    for start in range(0, len(vectors), _SIDE):
        units, valid = directions(vectors[start : start + _SIDE])
        for other in range(start, len(vectors), _SIDE):
            others, known = (units, valid) if other == start else directions(vectors[other : other + _SIDE])
            near = units @ others.T >= least
            near &= valid[:, None] & known
            first, second = np.nonzero(np.triu(near, 1) if other == start else near)
            yield first + start, second + other
            pace.step()


def _by_index(vectors: np.ndarray, least: float, say: Callable[[str], Any]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """As `_blocks`, of the pairs that faiss finds for their lower row."""
    index = Index(vectors)
    pace = _Pace(-(-len(vectors) // _FAISS_ROWS), say)
    for start in range(0, len(vectors), _FAISS_ROWS):
        first, second = index.above(vectors[start : start + _FAISS_ROWS], max(least, 1e-6))
        above = second > first + start
        yield first[above] + start, second[above]
        pace.step()


def _best(found: list[_Pairs], most: int) -> _Pairs:
    """The most similar pairs of several lists, in order."""
    first, second, values = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((second, first, -values))[:most]
    return first[order], second[order], values[order]


def _join(parents: np.ndarray, first: np.ndarray, second: np.ndarray) -> None:
    """Puts the rows of pairs into one tree each (union-find); a parent is a lower row, or the row itself."""
    for start in range(0, len(first), _UNIONS):
        pair = [_roots(parents, rows[start : start + _UNIONS]) for rows in (first, second)]
        while (apart := pair[0] != pair[1]).any():
            low, high = np.minimum(*pair)[apart], np.maximum(*pair)[apart]
            np.minimum.at(parents, high, low)
            pair = [_roots(parents, rows) for rows in (low, high)]


def _roots(parents: np.ndarray, rows: np.ndarray) -> np.ndarray:
    found = parents[rows]
    while not np.array_equal(above := parents[found], found):
        found = above
    parents[rows] = found
    return found


def _groups(parents: np.ndarray) -> np.ndarray:
    roots = _roots(parents, np.arange(len(parents)))
    sizes = np.bincount(roots, minlength=len(parents))
    numbers = np.full(len(parents), -1)
    numbers[sizes > 1] = np.arange(np.count_nonzero(sizes > 1))
    return numbers[roots]


class _Pace:
    """Says how a search is getting on: after ten seconds, and then once a minute.

    Args:
        steps: that it takes.
        say: called with a line.
    """

    def __init__(self, steps: int, say: Callable[[str], Any]) -> None:
        self._steps, self._say, self._done = steps, say, 0
        self._began = time.monotonic()
        self._next = self._began + _FIRST_WORDS

    def step(self) -> None:
        """Counts a step, and says a line if it is time."""
        self._done += 1
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _MINUTE
            left = datetime.timedelta(seconds=round((now - self._began) / self._done * (self._steps - self._done)))
            until = datetime.datetime.now() + left
            self._say(f"{self._done / self._steps:.0%} compared, {left} left, until {until:%d %b %H:%M}")
