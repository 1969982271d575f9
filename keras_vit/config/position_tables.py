"""Tables of positions, and their resize to another grid: learned, 2-D sine-cosine, and BEiT's relative biases.

Section 3.2 of arXiv:2010.11929 interpolates the table in 2-D when the resolution changes. A resize is separable: one
matrix for the rows and one for the columns. Their builder takes the array namespace `xp`, so that the same lines serve
NumPy here and `keras.ops` inside a graph. A table of relative biases has a row for each offset of two patches,
(2h - 1)(2w - 1) in reading order, and three more for the class token.
"""

import functools
import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_vit.annotations import Pair, Tensor
from keras_vit.checks import ArgumentError, check_choice

CROPPED = "bilinear_crop"
RESIZE_METHODS = (
    "align_corners",
    "bilinear",
    "bilinear_antialias",
    "bicubic_antialias",
    "bicubic",
    "bicubic_offset",
    CROPPED,
)
CLASS_ROWS = 3  # the class token to anything, anything to it, and it to itself
RELATIVE_RESIZE_METHODS = ("geometric_linear", "geometric_cubic", "bilinear")
ANY_RESIZE_METHODS = (*RESIZE_METHODS, *RELATIVE_RESIZE_METHODS[:2])  # of either kind of table
_LEAST, _MOST, _NEAR = 1.01, 1.5, 1e-6  # bounds of the ratio, and how near to it the authors' search ends
_LONGEST = 1024  # patches on a side of which a graph knows the ratio; of longer ones it takes this side's


def resize_pos_embed(
    table: npt.ArrayLike,
    new_grid: Pair,
    old_grid: Pair | None = None,
    *,
    num_prefix_tokens: int = 1,
    method: str = "align_corners",
) -> np.ndarray:
    """Interpolates a position table to another patch grid; prefix rows (the class token's) stay as they are.

    Example:
        >>> table = np.array([9.0, 0.0, 1.0, 2.0, 3.0])[:, None]  # class token, 2 x 2
        >>> resized = keras_vit.resize_pos_embed(table, (3, 3))
        >>> resized.ravel().tolist()
        [9.0, 0.0, 0.5, 1.0, 1.0, 1.5, 2.0, 2.0, 2.5, 3.0]

    Args:
        table: `(1, T, D)` or `(T, D)` floats, prefix rows first, then h*w patches in reading order.
        new_grid: `(h, w)` wanted.
        old_grid: `(h, w)` of `table`; `None` takes it to be square.
        num_prefix_tokens: rows at the front that belong to no patch.
        method: `"align_corners"`, the official code's (bilinear, corners kept at the corners);
            `"bilinear"` with half-pixel centres (timm for `.npz` files); `"bilinear_antialias"`, which also
            averages when shrinking (FlexiViT); `"bicubic_antialias"` (timm for its own files); `"bicubic"`, which does
            not (transformers); `"bicubic_offset"`, the same by the scale (n + 0.1) / old (DINOv2's authors);
            `"bilinear_crop"`, bilinear to a square as long as the longer side of the grid, and cut at the top left
            (C-RADIO).

    Returns:
        A table of the same rank and dtype for `new_grid`; `table` itself if the grids are equal.

    Raises:
        ValueError: if `table` does not have `num_prefix_tokens + h*w` rows, or `old_grid` is needed.

    Source: arXiv:2010.11929, section 3.2; the official code calls `scipy.ndimage.zoom(order=1)`, whose
    result this equals wherever scipy does not leave a row of zeros at the edge.
    """
    check_choice("method", method, RESIZE_METHODS)
    table = np.asarray(table)
    if table.dtype.kind != "f" and table.dtype.name != "bfloat16":  # which is no kind of NumPy's own
        raise ValueError(f"`table` must hold floats, as interpolation gives.\nReceived: dtype {table.dtype}.")
    if table.ndim not in (2, 3) or (table.ndim == 3 and table.shape[0] != 1):
        raise ValueError(f"`table` must have shape (1, T, D) or (T, D).\nReceived: shape {table.shape}.")
    num_patches = table.shape[-2] - num_prefix_tokens
    old_grid = square_grid(num_patches) if old_grid is None else check_grid("old_grid", old_grid)
    new_grid = check_grid("new_grid", new_grid)
    if old_grid is None or math.prod(old_grid) != num_patches:
        raise ValueError(
            "`table` must have `num_prefix_tokens` rows and one row per patch of `old_grid` (square if not given).\n"
            f"Received: {table.shape[-2]} rows, num_prefix_tokens={num_prefix_tokens}, old_grid={old_grid}."
        )
    if old_grid == new_grid:
        return table
    prefix, patches = np.split(table, [num_prefix_tokens], axis=-2)
    ratio = max(old_grid) / max(new_grid)
    rows = _numpy_matrix(new_grid[0], old_grid[0], method, ratio)
    columns = _numpy_matrix(new_grid[1], old_grid[1], method, ratio)
    patches = patches.reshape(*old_grid, -1).astype("float64")  # (h, w, D)
    patches = np.einsum("ih,jw,hwd->ijd", rows, columns, patches, optimize=True)
    patches = patches.reshape(*table.shape[:-2], -1, table.shape[-1])
    return np.concatenate([prefix, patches.astype(table.dtype)], axis=-2)


def square_grid(num_patches: int) -> tuple[int, int] | None:
    """`(g, g)` if `num_patches` is g*g, else `None`."""
    side = math.isqrt(max(num_patches, 0))
    return (side, side) if side and side * side == num_patches else None


def check_grid(name: str, grid: Any) -> tuple[int, int]:
    """`grid` as two ints; raises unless it is a pair of ints above zero."""
    values = tuple(grid) if isinstance(grid, (tuple, list)) else ()
    ints = [n for n in values if isinstance(n, (int, np.integer)) and not isinstance(n, bool)]
    if len(values) != 2 or len(ints) != 2 or min(ints) < 1:
        raise ArgumentError(
            f"`{name}` must be (h, w), two numbers of patches of at least 1.\nReceived: {name}={grid!r}."
        )
    return int(values[0]), int(values[1])


def _numpy_matrix(new: int, old: int, method: str, ratio: float) -> np.ndarray:
    return resize_matrix(np.arange(new, dtype="float64"), float(new), old, method, np, ratio)


def resize_matrix(indices: Tensor, new: Any, old: int, method: str, xp: Any, ratio: Any = None) -> Tensor:
    """The `(new, old)` matrix that resizes one axis, or `(B, N, old)`.

    Args:
        indices: floats 0, 1, ... new-1 as an array of `xp`; or `(B, N)`, places on an axis of each image's own length.
        new: the same `new` as a float, or a float scalar of `xp` when only the graph knows it; or `(B, 1)`.
        old: int, length of the axis that is read.
        method: one of `RESIZE_METHODS`.
        xp: array namespace with `abs`, `maximum`, `where`, `sum`, `matmul`, `clip` and `expand_dims`.
        ratio: length of the longer old side over that of the longer new one, for `"bilinear_crop"`.
    """
    sources = np.arange(old).astype("float32")
    if method == "align_corners":
        positions = indices * ((old - 1) / xp.maximum(new - 1.0, 1.0))
        return triangle(xp.expand_dims(positions, -1) - sources, xp)  # (new, old)
    if method == CROPPED:
        positions = (indices + 0.5) * (old / new if ratio is None else ratio) - 0.5
        return triangle(xp.expand_dims(xp.clip(positions, 0.0, old - 1.0), -1) - sources, xp)
    offset = 0.1 if method == "bicubic_offset" else 0.0
    positions = (indices + 0.5) * (old / (new + offset)) - 0.5
    if method in ("bicubic", "bicubic_offset"):
        return _bicubic_without_antialias(positions, old, xp)
    distances = xp.expand_dims(positions, -1) - sources
    if method.endswith("antialias"):
        distances = distances / xp.expand_dims(xp.maximum(old / new, 1.0), -1)
    weights = cubic(distances, -0.5, xp) if method.startswith("bicubic") else triangle(distances, xp)
    return weights / xp.sum(weights, axis=-1, keepdims=True)


def triangle(x: Tensor, xp: Any) -> Tensor:
    """The kernel of a bilinear resize at distances `x`, an array of `xp`."""
    return xp.maximum(1.0 - xp.abs(x), 0.0)


def _bicubic_without_antialias(positions: Tensor, old: int, xp: Any) -> Tensor:
    """torch's: a = -0.75, and what would be read beyond an edge is the edge."""
    beyond = np.arange(-2, old + 2)  # a kernel of four reaches two further
    weights = cubic(xp.expand_dims(positions, -1) - beyond.astype("float32"), -0.75, xp)  # (new, old + 4)
    edges = (beyond.clip(0, old - 1)[:, None] == np.arange(old)).astype("float32")  # (old + 4, old)
    return xp.matmul(weights, edges)


def cubic(x: Tensor, a: float, xp: Any) -> Tensor:
    """Keys' kernel at distances `x`, an array of `xp`.

    a = -0.5 wherever a bicubic resize antialiases, -0.75 in torch's that does not.
    """
    x = xp.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return xp.where(x <= 1.0, near, xp.where(x < 2.0, far, 0.0 * x))


def sincos2d(rows: Tensor, columns: Tensor, hidden_size: int, xp: Any = np, kind: str = "sincos2d") -> Tensor:
    """The fixed table sin(x), cos(x), sin(y), cos(y) of a grid, each over D/4 frequencies.

    Args:
        rows: floats 0, 1, ... h-1.
        columns: floats 0, 1, ... w-1.
        hidden_size: D, a multiple of 4.
        xp: array namespace of `rows` and `columns`.
        kind: `"sincos2d"` or `"sincos2d_mae"`.

    Returns:
        `(h*w, D)`, patches in reading order.

    Source: arXiv:2205.01580 ("Better plain ViT baselines"), frequencies 10000^(-i/(D/4-1)); for the other kind
    10000^(-i/(D/4)), as in the code of arXiv:2111.06377.
    """
    quarter = hidden_size // 4
    last = quarter if kind == "sincos2d_mae" else max(quarter - 1, 1)
    frequencies = (10000.0 ** -(np.arange(quarter) / last)).astype("float32")
    y = xp.reshape(rows, (-1, 1, 1)) * frequencies + 0.0 * xp.reshape(columns, (1, -1, 1))  # (h, w, D/4)
    x = xp.reshape(columns, (1, -1, 1)) * frequencies + 0.0 * xp.reshape(rows, (-1, 1, 1))
    table = xp.concatenate([xp.sin(x), xp.cos(x), xp.sin(y), xp.cos(y)], axis=-1)  # (h, w, D)
    return xp.reshape(table, (-1, hidden_size))


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
    after = xp.concatenate([offsets[1:], last + 1.0])
    rising, falling = (targets - before) / (offsets - before), (after - targets) / (after - offsets)
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


for _old in ("posembed", "relative_tables"):  # modules of version 0.6, which its documentation names
    sys.modules.setdefault(f"keras_vit.config.{_old}", sys.modules[__name__])
