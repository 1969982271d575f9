"""Measures of collapse, and the standardisation of a teacher's features."""

import dataclasses
import itertools
from typing import Literal

import numpy as np

from keras_vit.annotations import Tensor
from keras_vit.checks import ArgumentError, check_choice, check_positive_int

STANDARDIZERS = ("mean", "phi_s")
_TEMPERATURE = 0.07  # of the votes of neighbors


def rank_me(features: Tensor) -> float:
    """RankMe: how many directions the features fill, from 1 to the least of M and D.

    It is exp of the entropy of the singular values, each divided by their sum, and 1e-7.

    Args:
        features: `(M, D)` of M images.

    Raises:
        ValueError: for features that are not finite, or no matrix.

    Source: RankMe, arXiv:2210.02885, eq. 1.
    """
    values = np.linalg.svd(_matrix(features), compute_uv=False)
    shares = values / max(values.sum(), np.finfo(float).tiny) + 1e-7
    return float(np.exp(-np.sum(shares * np.log(shares))))


def spread(features: Tensor) -> float:
    """How evenly features point in all directions: 1 if they do, 0 if all are equal; below 0.1 is collapse.

    It is the mean over channels of the deviation of f / |f|, times sqrt(D).

    Args:
        features: `(M, D)` of M images.

    Raises:
        ValueError: for features that are not finite, or no matrix.

    Source: SimSiam, arXiv:2011.10566, section 4.1.
    """
    features = _matrix(features)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    units = features / np.where(lengths > 0, lengths, 1)
    return float(np.mean(np.std(units, axis=0)) * np.sqrt(features.shape[1]))


def knn_hits(features: Tensor, labels: Tensor, num_neighbors: int = 10) -> np.ndarray:
    """For each image, whether the vote of its nearest others gives its label; the mean is the accuracy of kNN.

    Args:
        features: `(M, D)` of M images.
        labels: int `(M,)`.
        num_neighbors: number of votes, each of weight exp(cosine / 0.07); of fewer images all others vote.

    Returns:
        Booleans `(M,)`.

    Raises:
        ValueError: for features that are not finite, no matrix, or not as many as labels.

    Source: arXiv:1805.01978 for the weights.
    """
    cosines = _cosines(features)
    labels = np.asarray(labels)
    if labels.shape != (len(cosines),):
        raise ArgumentError(
            f"`labels` must be one for each image.\nReceived: shape {labels.shape} for {len(cosines)} images."
        )
    count = min(check_positive_int("num_neighbors", num_neighbors), len(cosines) - 1)
    nearest = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
    weights = np.exp((np.take_along_axis(cosines, nearest, axis=1) - 1) / _TEMPERATURE)
    kinds, numbers = np.unique(labels, return_inverse=True)
    votes = np.zeros((len(cosines), len(kinds)))
    np.add.at(votes, (np.arange(len(cosines))[:, None], numbers[nearest]), weights)
    return votes.argmax(axis=1) == numbers


def twin_hits(first: Tensor, second: Tensor) -> np.ndarray:
    """For each of two views of M images, whether the nearest of all other views is that of the same image.

    Args:
        first: `(M, D)` features of a view of each image.
        second: `(M, D)`, of another view.

    Returns:
        Booleans `(2 M,)`; their mean needs no labels.

    Raises:
        ValueError: for features that are not finite, no matrix, or of another shape.
    """
    first, second = _matrix(first), _matrix(second)
    if first.shape != second.shape:
        raise ArgumentError(f"`second` must have the shape of `first`.\nReceived: {second.shape} and {first.shape}.")
    places = np.arange(2 * len(first))
    return _cosines(np.concatenate([first, second])).argmax(axis=1) == np.roll(places, len(first))


def target_entropies(targets: Tensor) -> tuple[float, float]:
    """Entropy of the mean target, and mean entropy of targets, in nats.

    Of K prototypes that are all used the first is ln K. Near 0 it is collapse to one prototype. Both near ln K are
    targets that say nothing.

    Args:
        targets: probabilities `(M, K)`.
    """
    targets = _matrix(targets)
    mean = targets.mean(axis=0)
    of_mean, each = (-np.sum(p * np.log(np.maximum(p, np.finfo(float).tiny)), axis=-1) for p in (mean, targets))
    return float(of_mean), float(each.mean())


def _cosines(features: Tensor) -> np.ndarray:
    """`(M, M)`; of a vector with itself -inf."""
    features = _matrix(features)
    units = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    return cosines


@dataclasses.dataclass(frozen=True, eq=False)
class Standardizer:
    """Standardises vectors: `scale * (vectors - mean) @ rotation`.

    Attributes:
        mean: `(D,)`.
        scale: of all channels.
        rotation: `(D, D)`, orthogonal, or `None` for none.
    """

    mean: np.ndarray
    scale: float
    rotation: np.ndarray | None = None

    def __call__(self, features: Tensor) -> np.ndarray:
        """Vectors `(..., D)`, standardised, in float32 or in float64 if they are."""
        features = np.asarray(features)
        dtype = np.float64 if features.dtype == np.float64 else np.float32
        centred = (features - self.mean) * self.scale
        return (centred if self.rotation is None else centred @ self.rotation).astype(dtype)

    def inverse(self, standardized: Tensor) -> np.ndarray:
        """The vectors again, from what the call gave."""
        standardized = np.asarray(standardized)
        turned = standardized if self.rotation is None else standardized @ self.rotation.T
        return turned / self.scale + self.mean


def standardizer(features: Tensor, kind: Literal["mean", "phi_s"] = "phi_s") -> Standardizer:
    """What standardises a teacher's features, fitted to some of them.

    Args:
        features: `(M, D)` of M vectors.
        kind: `"mean"` subtracts their mean. `"phi_s"`, PHI-S, also rotates them so that each channel has the variance
            1, by one scale, so that distances keep their proportions.

    Returns:
        An object that is called with vectors `(..., D)`, and has `mean`, `scale` and `inverse`.

    Raises:
        ValueError: for features that are not finite, no matrix, fewer than two, or all the same.

    Source: PHI-S, arXiv:2410.01680, section 3.4.
    """
    check_choice("kind", kind, STANDARDIZERS)
    features = _matrix(features)
    mean = features.mean(axis=0)
    if kind == "mean":
        return Standardizer(mean, 1.0)
    covariance = np.cov(features, rowvar=False, bias=True).reshape(len(mean), len(mean))
    values, vectors = np.linalg.eigh(covariance)
    if not values.mean() > 0:
        raise ArgumentError(
            f"features must differ from each other.\nReceived: {len(features)} vectors without variance.",
            parameters=("features",),
        )
    rotation = vectors @ _spread_evenly(np.maximum(values, 0))
    return Standardizer(mean, float(1 / np.sqrt(values.mean())), rotation)


def _spread_evenly(variances: np.ndarray) -> np.ndarray:
    """An orthogonal `(D, D)` by which channels of these variances become D of the same variance.

    It is a Hadamard matrix divided by sqrt(D) where Sylvester's and Paley's constructions give one; else planes of two
    channels are turned until each channel has the mean.
    """
    size = len(variances)
    for order in (order for order in (1, *range(4, size + 1, 4)) if size % order == 0):
        doublings = size // order
        if doublings & (doublings - 1) == 0 and (first := _paley(order)) is not None:
            matrix = first
            for _ in range(doublings.bit_length() - 1):
                matrix = np.block([[matrix, matrix], [matrix, -matrix]])
            return matrix / np.sqrt(size)
    return _turn_planes(variances)


def _paley(order: int) -> np.ndarray | None:
    """A Hadamard matrix of the order 1, or q + 1 for a prime q that leaves 3 by 4."""
    if order == 1:
        return np.ones((1, 1))
    prime = order - 1
    if prime % 4 != 3 or any(prime % divisor == 0 for divisor in range(2, int(prime**0.5) + 1)):
        return None
    residues = {place * place % prime for place in range(1, prime)}
    places = np.arange(prime)
    character = np.array([0, *(1 if place in residues else -1 for place in range(1, prime))])
    skew = np.zeros((order, order))
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = character[(places[:, None] - places) % prime]
    return skew + np.eye(order)


def _turn_planes(variances: np.ndarray) -> np.ndarray:
    size, mean = len(variances), variances.mean()
    rotation, covariance = np.eye(size), np.diag(variances)
    for _ in range(size - 1):
        spreads = np.diag(covariance) - mean
        low, high = int(np.argmin(spreads)), int(np.argmax(spreads))
        if spreads[high] <= 1e-12 * mean or low == high:
            break
        a, b, c = covariance[low, low] - mean, covariance[low, high], covariance[high, high] - mean
        tangent = (-b + np.sqrt(b * b - a * c)) / c  # by which the first of both gets the mean
        turn = np.eye(size)
        cosine = 1 / np.hypot(1, tangent)
        for (row, column), value in zip(
            itertools.product((low, high), repeat=2), (cosine, -tangent * cosine, tangent * cosine, cosine), strict=True
        ):
            turn[row, column] = value
        rotation, covariance = rotation @ turn, turn.T @ covariance @ turn
    return rotation


def _matrix(features: Tensor) -> np.ndarray:
    """Features in float64."""
    features = np.asarray(features, np.float64)
    if features.ndim != 2 or len(features) < 2 or not np.isfinite(features).all():
        raise ArgumentError(
            "`features` must be (M, D): two or more vectors of finite numbers.\n"
            f"Received: shape {features.shape}, {int((~np.isfinite(features)).sum())} numbers not finite."
        )
    return features
