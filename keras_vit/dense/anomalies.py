"""Functions of anomaly detection: the coreset of a memory bank, and the measures of MVTec AD over maps and masks.

PatchCore, arXiv:2106.08265, section 3.2; the measures of Bergmann et al., doi:10.1007/s11263-020-01400-4, section 5.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, check_positive_int, check_seed, check_share

_PROJECTED = 128  # numbers of a vector while the coreset is chosen, as in the authors' code


def greedy_coreset(features: Any, count: int, seed: int = 0) -> np.ndarray:
    """Chooses vectors that cover all others: one at random, then always the one farthest from those chosen.

    Distances are Euclidean, of vectors of more than 128 numbers after a random projection to 128.

    Args:
        features: real `(N, D)`.
        count: of vectors to choose, at most N.
        seed: of the first vector and of the projection.

    Returns:
        int64 `(count,)`, rows in the order in which they were chosen, each once.

    Raises:
        ValueError: for a count beyond N, numbers that are not finite, and other shapes.

    Examples:
        >>> points = np.array([[0.0], [1.0], [5.0], [9.0]])
        >>> sorted(keras_vit.dense.greedy_coreset(points, 2).tolist())
        [0, 3]
    """
    features = np.asarray(features, "float32")
    if features.ndim != 2 or not features.size or not np.isfinite(features).all():
        raise ArgumentError(f"`features` must be (N, D) of finite numbers.\nReceived: shape {features.shape}.")
    if check_positive_int("count", count) > len(features):
        raise ArgumentError(
            f"`count` must be at most the number of vectors, {len(features):,}.\nReceived: count={count}."
        )
    rng = np.random.default_rng(check_seed("seed", seed))
    if features.shape[1] > _PROJECTED:
        features = features @ rng.normal(size=(features.shape[1], _PROJECTED)).astype("float32")
    squares = np.einsum("nd,nd->n", features, features)
    chosen = np.empty(count, "int64")
    chosen[0] = rng.integers(len(features))
    least = np.full(len(features), np.inf, "float32")  # squared distances to the nearest that is chosen
    for place, row in enumerate(chosen):
        distances = features @ features[row]
        distances *= -2
        distances += squares
        distances += squares[row]
        np.minimum(least, distances, out=least)
        least[row] = -np.inf  # equal vectors keep a distance of about 0, and are chosen last
        if place + 1 < count:
            chosen[place + 1] = least.argmax()
    return chosen


def auroc(labels: Any, scores: Any) -> float:
    """Area under the receiver operating characteristic: how often a flawed one scores above a good one, ties half.

    Args:
        labels: of any shape; what is not 0 is flawed.
        scores: real, of the same shape.

    Returns:
        From 0 to 1; NaN if all are good, or all are flawed.

    Raises:
        ValueError: for scores that are not finite, and shapes that differ.

    Examples:
        >>> keras_vit.dense.auroc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
        0.75
    """
    counts = _counts([np.asarray(labels)], [np.asarray(scores)], has_regions=False)
    return counts.auroc()


def au_pro(masks: Sequence[Any], maps: Sequence[Any], fpr_limit: float = 0.3) -> float:
    """Area under the curve of per-region overlap, up to a false positive rate, over that rate.

    For each threshold, the overlap is the share of a region's pixels above it, averaged over all regions of all masks,
    however large each is. The false positive rate is the share of good pixels above it. Pixels of one region touch each
    other by a side or a corner.

    Args:
        masks: of each image `(H, W)`; what is not 0 is flawed.
        maps: real `(H, W)` of each image.
        fpr_limit: largest false positive rate that counts, in (0, 1].

    Returns:
        From 0 to 1; NaN without a flawed or without a good pixel.

    Raises:
        ValueError: for maps that are not finite, sizes that differ, and another limit.

    Source: MVTec AD, doi:10.1007/s11263-020-01400-4, section 5.2.

    Examples:
        >>> mask, scores = np.array([[0, 0, 1, 1]]), np.array([[0.1, 0.4, 0.3, 0.8]])
        >>> round(keras_vit.dense.au_pro([mask], [scores], fpr_limit=0.5), 3)
        0.5
    """
    check_share("fpr_limit", fpr_limit)
    masks, maps = [np.asarray(mask) for mask in masks], [np.asarray(each) for each in maps]
    if len(masks) != len(maps) or any(mask.ndim != 2 for mask in masks):
        raise ArgumentError(
            "each map must have its mask, both (H, W).\n"
            f"Received: {len(masks)} masks, {len(maps)} maps, {masks[0].ndim if masks else 0} axes.",
            parameters=("masks", "maps"),
        )
    return _counts(masks, maps).au_pro(fpr_limit)


def _counts(masks: Sequence[np.ndarray], maps: Sequence[np.ndarray], has_regions: bool = True) -> "AnomalyCounts":
    """The counts of all pixels, a level for each value of the maps."""
    for number, (mask, scores) in enumerate(zip(masks, maps, strict=True)):
        if mask.shape != scores.shape or not np.isfinite(scores).all():
            raise ArgumentError(
                "scores must be finite, and as many as their labels.\n"
                f"Received: labels of shape {mask.shape} and scores of {scores.shape} to "
                f"{scores.max(initial=-np.inf)}, number {number}.",
                parameters=("labels", "scores", "masks", "maps"),
            )
    values = np.unique(np.concatenate([scores.ravel() for scores in maps])) if maps else np.empty(0)
    counts = AnomalyCounts(max(len(values), 1))
    for mask, scores in zip(masks, maps, strict=True):
        counts.update(mask, np.searchsorted(values, scores), has_regions)
    return counts


class AnomalyCounts:
    """Counts by level of any number of maps, from which the measures follow; memory grows with the levels alone.

    Args:
        levels: number of values that a map may have, from 0.
    """

    def __init__(self, levels: int) -> None:
        self.good = np.zeros(levels, "int64")
        self.flawed = np.zeros(levels, "int64")
        self.shares = np.zeros(levels)  # of the area of each region, added up
        self.regions = 0

    def update(self, mask: np.ndarray, levels: np.ndarray, has_regions: bool = True) -> None:
        """Adds a map.

        Args:
            mask: what is not 0 is flawed.
            levels: integers of the same shape.
            has_regions: whether regions of `(H, W)` are looked for, which `au_pro` needs.
        """
        flawed = mask != 0
        size, inside = len(self.good), levels[flawed]
        self.good += np.bincount(levels[~flawed], minlength=size)
        self.flawed += np.bincount(inside, minlength=size)
        if has_regions and inside.size:
            regions = label_regions(flawed)
            areas = np.bincount(regions)
            self.shares += np.bincount(inside, 1 / areas[regions], size)
            self.regions += len(areas)

    def auroc(self) -> float:
        """Of all pixels."""
        pairs = int(self.good.sum()) * int(self.flawed.sum())
        below = self.good.cumsum() - self.good / 2
        return float(self.flawed @ below / pairs) if pairs else float("nan")

    def au_pro(self, fpr_limit: float = 0.3) -> float:
        """Of all regions."""
        if not (self.regions and self.good.any()):
            return float("nan")
        rates = np.append(0, self.good[::-1].cumsum() / self.good.sum())
        overlaps = np.append(0, self.shares[::-1].cumsum() / self.regions)
        last = int(np.searchsorted(rates, fpr_limit, "right"))  # the first threshold beyond the limit
        if last < len(rates):
            part = (fpr_limit - rates[last - 1]) / (rates[last] - rates[last - 1])
            at_limit = overlaps[last - 1] + part * (overlaps[last] - overlaps[last - 1])
            rates, overlaps = np.append(rates[:last], fpr_limit), np.append(overlaps[:last], at_limit)
        area = np.diff(rates) @ (overlaps[1:] + overlaps[:-1]) / 2
        return float(area / fpr_limit)


def label_regions(mask: np.ndarray) -> np.ndarray:
    """The region of each pixel that is set, int64 `(n,)` in reading order, from 0; they touch by a side or a corner.

    Args:
        mask: bool `(H, W)`.
    """
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype("int8"), axis=1)
    rows, starts = np.nonzero(edges == 1)  # of runs of pixels within a row
    ends = np.nonzero(edges == -1)[1]
    row = mask.shape[1] + 2
    first = np.searchsorted(rows * row + ends, (rows + 1) * row + starts)  # of the runs below that touch a run
    behind = np.searchsorted(rows * row + starts, (rows + 1) * row + ends, "right")
    counts = np.maximum(behind - first, 0)
    above = np.repeat(np.arange(len(rows)), counts)
    below = np.arange(counts.sum()) + np.repeat(first - counts.cumsum() + counts, counts)
    found = np.arange(len(rows))
    while (found[above] != found[below]).any():  # each run takes the least number that it touches
        least = np.minimum(found[above], found[below])
        np.minimum.at(found, found[above], least)
        np.minimum.at(found, found[below], least)
        found = found[found]
    return np.repeat(np.unique(found, return_inverse=True)[1], ends - starts)
