"""Polygons and run lengths as masks, pixel by pixel as pycocotools draws them.

Pixels are counted down each column first. See `maskApi.c` of https://github.com/cocodataset/cocoapi.
"""

from typing import Any

import numpy as np

_FINER = 5.0  # steps of a pixel at which a boundary is followed
_LEAST = 6  # numbers of a polygon, of three points
_LONGEST = 2e6  # pixels of a boundary; following it takes 400 bytes for each


def draw(segmentation: Any, height: int, width: int) -> np.ndarray:
    """The pixels of an instance.

    Args:
        segmentation: polygons, each a list `x, y, x, y, ...` in pixels, or a dict of run lengths with `size` and
            `counts`, a list or compressed to a string.
        height, width: of the image.

    Returns:
        bool `(H, W)`.

    Raises:
        ValueError: in a few words, for polygons of fewer than 3 points or outside of the image, and runs of another
            size or that do not fill the image.
    """
    flat = np.zeros(height * width, bool)
    if isinstance(segmentation, dict):
        counts, size = segmentation.get("counts"), segmentation.get("size")
        if size != [height, width]:
            raise ValueError(f"runs of the size {size} for an image of [{height}, {width}]")
        ends = np.cumsum(_uncompressed(counts) if isinstance(counts, str) else _whole(counts))
        if not len(ends) or ends[-1] != flat.size or (np.diff(ends) < 0).any() or ends[0] < 0:
            raise ValueError(f"runs of {ends[-1] if len(ends) else 0} pixels for an image of {flat.size}")
        _fill(flat, ends[:-1])
    elif isinstance(segmentation, list) and segmentation:
        for polygon in segmentation:
            _fill(flat, _crossings(_points(polygon, height, width), height, width))
    else:
        raise ValueError("no polygon and no runs")
    return flat.reshape(width, height).T


def _whole(counts: Any) -> np.ndarray:
    if not isinstance(counts, list) or not all(isinstance(count, int) and 0 <= count < 1 << 32 for count in counts):
        raise ValueError("runs that are neither numbers of pixels nor a string")
    return np.array(counts, "int64")


def _uncompressed(text: str) -> np.ndarray:
    """Run lengths of COCO's string: groups of five bits, lowest first, from the third on as differences."""
    counts: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or shift > 60:
            raise ValueError(f"a damaged string of runs, with {character!r}")
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (1 << shift) if bits & 16 else 0
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            value = shift = 0
    if shift:
        raise ValueError("a string of runs that was cut off")
    return np.array(counts, "int64")


def _points(polygon: Any, height: int, width: int) -> np.ndarray:
    """float64 `(n, 2)`, x and y."""
    try:
        points = np.array(polygon, "float64")
    except (TypeError, ValueError):
        points = np.zeros(())
    if points.ndim != 1 or len(points) % 2 or len(points) < _LEAST:
        raise ValueError(f"a polygon of {points.size} numbers, where 3 points or more need x and y each")
    points = points.reshape(-1, 2)
    if not (np.abs(points) < 1e6).all() or (points.max(0) <= 0).any() or (points.min(0) >= (width, height)).any():
        raise ValueError(f"a polygon outside of the image, x {points[0, 0]:g} and y {points[0, 1]:g}")
    if (length := np.abs(points - np.roll(points, -1, axis=0)).max(1).sum()) > _LONGEST:
        raise ValueError(f"a polygon with a boundary of {length:,.0f} pixels, and at most {_LONGEST:,.0f} may be")
    return points


def _crossings(points: np.ndarray, height: int, width: int) -> np.ndarray:
    """Pixels at which the inside of a polygon begins or ends, in turn, when they are counted down each column."""
    start = (_FINER * points + 0.5).astype("int64")
    end = np.roll(start, -1, axis=0)
    length = np.abs(end - start)
    steps, axis = length.max(1), (length[:, 0] < length[:, 1]).astype(int)  # the longer of x and y
    rows = np.arange(len(start))
    flip = start[rows, axis] > end[rows, axis]
    low = np.where(flip[:, None], end, start)
    slope = (np.where(flip[:, None], start, end) - low)[rows, 1 - axis] / np.maximum(steps, 1)
    edge = np.repeat(rows, steps + 1)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(steps + 1) - steps - 1, steps + 1)
    step = np.where(flip[edge], steps[edge] - step, step)
    along = low[rows, axis][edge] + step
    beside = (low[rows, 1 - axis][edge] + slope[edge] * step + 0.5).astype("int64")
    u, v = np.where(axis[edge], (beside, along), (along, beside))
    x = (np.where(u[1:] < u[:-1], u[1:], u[1:] - 1) + 0.5) / _FINER - 0.5
    kept = (u[1:] != u[:-1]) & (np.floor(x) == x) & (x >= 0) & (x <= width - 1)
    y = np.ceil(np.clip((np.minimum(v[1:], v[:-1])[kept] + 0.5) / _FINER - 0.5, 0, height))
    return np.sort((x[kept] * height + y).astype("int64"))


def _fill(flat: np.ndarray, turns: np.ndarray) -> None:
    """Sets the pixels from each first to each second turn; the last may be the end."""
    if len(turns):
        flat[turns[0] :] |= (
            np.cumsum(np.bincount(turns - turns[0], minlength=len(flat) - turns[0] + 1))[: len(flat) - turns[0]] % 2
            == 1
        )
