"""Tables of relative position bias (BEiT), and their resize to another grid.

A table has a row for each offset of two patches, (2h - 1)(2w - 1) in reading order, and three more for the class token.
A resize is separable, and its matrix serves NumPy here and `keras.ops` inside a graph, as in `posembed`.
"""

import functools
import math
from typing import Any

import numpy as np

from keras_vit.annotations import Pair, Tensor
from keras_vit.checks import check_choice
from keras_vit.config.posembed import RESIZE_METHODS, resize_matrix

CLASS_ROWS = 3  # the class token to anything, anything to it, and it to itself
RELATIVE_RESIZE_METHODS = ("geometric_linear", "geometric_cubic", "bilinear")
ANY_RESIZE_METHODS = (*RESIZE_METHODS, *RELATIVE_RESIZE_METHODS[:2])  # of either kind of table
_LEAST, _MOST, _NEAR = 1.01, 1.5, 1e-6  # bounds of the ratio, and how near to it the authors' search ends
_LONGEST = 1024  # patches on a side of which a graph knows the ratio; of longer ones it takes this side's


def relative_rows(grid: Pair) -> int:
    """Rows of the table for a grid `(h, w)`."""
    return (2 * grid[0] - 1) * (2 * grid[1] - 1) + CLASS_ROWS


def square_relative_grid(rows: int) -> tuple[int, int] | None:
    """`(g, g)` if a table of so many rows is one of a square grid, else `None`."""
    side = math.isqrt(max(rows - CLASS_ROWS, 0))
    is_square = side % 2 == 1 and side * side == rows - CLASS_ROWS
    return ((side + 1) // 2,) * 2 if is_square else None


def resize_relative_table(table: np.ndarray, new_grid: Pair, old_grid: Pair, method: str) -> np.ndarray:
    """Interpolates a table to another grid; the three rows of the class token stay as they are.

    Args:
        table: `((2h - 1)(2w - 1) + 3, A)` floats, those of the class token last.
        new_grid: `(h, w)` wanted.
        old_grid: `(h, w)` of `table`.
        method: `"geometric_linear"` takes the offsets of the table for a geometric progression around 0 that reaches as
            far as the new ones, and is linear between them (timm). `"geometric_cubic"` is a cubic spline through the
            same (BEiT's authors). `"bilinear"` takes the table for an image (transformers).

    Returns:
        A table of the same dtype for `new_grid`; `table` itself if the grids are equal.

    Raises:
        ValueError: for a spline through fewer than four offsets.
    """
    if tuple(new_grid) == tuple(old_grid):
        return table
    rows, columns = (offset_matrix(new, old, method) for new, old in zip(new_grid, old_grid, strict=True))
    patches = table[:-CLASS_ROWS].reshape(2 * old_grid[0] - 1, 2 * old_grid[1] - 1, -1).astype("float64")
    patches = np.einsum("ih,jw,hwa->ija", rows, columns, patches, optimize=True).reshape(-1, table.shape[1])
    return np.concatenate([patches.astype(table.dtype), table[-CLASS_ROWS:]])


def offset_matrix(new: int, old: int, method: str) -> np.ndarray:
    """The `(2 new - 1, 2 old - 1)` matrix that resizes one axis of a table, from `old` patches to `new`."""
    check_choice("method", method, RELATIVE_RESIZE_METHODS)
    if method == "bilinear":
        count = 2 * new - 1
        return resize_matrix(np.arange(count, dtype="float64"), float(count), 2 * old - 1, method, np)
    targets, offsets = np.arange(1.0 - new, new), geometric_offsets(_ratios(old)[min(new, _LONGEST) - 1], old, np)
    if method == "geometric_linear":
        return linear_matrix(targets, offsets, np)
    return _spline_matrix(targets.clip(offsets[0], offsets[-1]), offsets)


def ratios_of(old: int) -> np.ndarray:
    """`(1024,)` float32: the ratio of the progression for each number of patches wanted, from 1."""
    return _ratios(old).astype("float32")


@functools.cache
def _ratios(old: int) -> np.ndarray:
    """By bisection, as the authors: the ratio with which `old - 1` steps reach the farthest of the new offsets."""
    farthest = np.arange(_LONGEST, dtype="float64")
    low, high = np.full(_LONGEST, _LEAST), np.full(_LONGEST, _MOST)
    middle = low
    while high[0] - low[0] > _NEAR:
        middle = (low + high) / 2
        beyond = (1 - middle ** (old - 1)) / (1 - middle) > farthest
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return middle


def geometric_offsets(ratio: Any, old: int, xp: Any) -> Tensor:
    """`(2 old - 1,)`: 0, +-1, +-(1 + q), +-(1 + q + q^2), ... in order, for a ratio q that is a scalar of `xp`."""
    steps = xp.cumsum(ratio ** np.arange(old - 1).astype("float32"))
    return xp.concatenate([-xp.flip(steps), 0.0 * steps[:1], steps]) if old > 1 else xp.zeros((1,))


def linear_matrix(targets: Tensor, offsets: Tensor, xp: Any) -> Tensor:
    """`(targets, offsets)`: linear between neighbouring offsets, and the last one's value beyond it."""
    first, last = offsets[:1], offsets[-1:]
    targets = xp.expand_dims(xp.minimum(xp.maximum(targets, first), last), 1)
    before = xp.concatenate([first - 1.0, offsets[:-1]])
    behind = xp.concatenate([offsets[1:], last + 1.0])
    rising, falling = (targets - before) / (offsets - before), (behind - targets) / (behind - offsets)
    return xp.maximum(xp.minimum(rising, falling), 0.0)


def _spline_matrix(targets: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """`(targets, nodes)`: the cubic spline through values at the nodes whose first and last two pieces are one each."""
    count = len(nodes)
    if count < 4:
        raise ValueError(
            "a cubic spline goes through at least four offsets, so a table has at least three patches on a side.\n"
            f'Received: {count} offsets. Pass resize_method="geometric_linear".'
        )
    gaps, unit = np.diff(nodes), np.eye(count)
    slopes = np.diff(unit, axis=0) / gaps[:, None]
    left, right = np.zeros((count, count)), np.zeros((count, count))  # left @ curvatures = right @ values
    for i in range(1, count - 1):
        left[i, i - 1 : i + 2] = gaps[i - 1], 2 * (gaps[i - 1] + gaps[i]), gaps[i]
        right[i] = 6 * (slopes[i] - slopes[i - 1])
    for row, (one, other) in {0: gaps[:2], -1: gaps[:-3:-1]}.items():
        ends = (other, -one - other, one)
        left[row, slice(3) if row == 0 else slice(-3, None)] = ends if row == 0 else ends[::-1]
    curves = np.linalg.solve(left, right)
    piece = np.searchsorted(nodes, targets, side="right").clip(1, count - 1) - 1
    gap, ahead = gaps[piece, None], (nodes[piece + 1] - targets)[:, None]
    past = gap - ahead
    values = (unit[piece] * ahead + unit[piece + 1] * past) / gap
    bend = curves[piece] * (ahead**3 / gap - ahead * gap) + curves[piece + 1] * (past**3 / gap - past * gap)
    return values + bend / 6
