"""The official few-shot probe: regularised least squares on a few examples of each class.

Source: arXiv:2010.11929, section 4.1 (metrics); google-research/big_vision, `evaluators/fewshot_lsr.py`,
which computes in float32. Here it is float64.
"""

import dataclasses

import numpy as np

SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
RIDGE = 2.0**10
_CONSTANT = 100.0  # value of the bias feature, so large that the bias is hardly regularised
_EPSILON = 1e-5  # added to the standard deviations


@dataclasses.dataclass(frozen=True, eq=False)
class LeastSquares:
    """A linear map from features to one score for each class.

    Attributes:
        mean: `(D,)` of the training features.
        deviation: `(D,)`, their standard deviation plus 1e-5.
        weights: `(D + 1, K)`; the last row belongs to the constant feature.
    """

    mean: np.ndarray
    deviation: np.ndarray
    weights: np.ndarray

    def scores(self, features: np.ndarray) -> np.ndarray:
        """Scores `(n, K)` of features `(n, D)`; the highest score tells the class."""
        return _whitened(features, self.mean, self.deviation) @ self.weights


def choose_shots(labels: np.ndarray, classes: int, shots: int, seed: int) -> np.ndarray:
    """Numbers of the training examples: the first ones of a permutation of each class by `seed`.

    Args:
        labels: int `(n,)`.
        classes: K.
        shots: examples of each class; a smaller class gives all.
        seed: seed of NumPy's `default_rng`, which draws for the classes in their order.
    """
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(np.flatnonzero(labels == number)) for number in range(classes)]
    return np.concatenate([order[:shots] for order in orders])


def fit_least_squares(features: np.ndarray, labels: np.ndarray, classes: int, ridge: float = RIDGE) -> LeastSquares:
    """Fits targets -1 and 1 by least squares, with a penalty of `ridge` times the squared weights.

    Args:
        features: `(n, D)`.
        labels: int `(n,)` in [0, K).
        classes: K.
        ridge: strength of the regularisation.
    """
    features = np.asarray(features, "float64")
    mean, deviation = features.mean(axis=0), features.std(axis=0) + _EPSILON
    targets = np.where(labels[:, None] == np.arange(classes), 1.0, -1.0)  # (n, K)
    weights = ridge_solution(_whitened(features, mean, deviation), targets, ridge)
    return LeastSquares(mean, deviation, weights)


def ridge_solution(x: np.ndarray, y: np.ndarray, ridge: float) -> np.ndarray:
    """The weights W that minimise |xW - y|^2 + ridge |W|^2, by an eigendecomposition of the smaller Gram matrix.

    Args:
        x: `(n, d)`.
        y: `(n, K)`.
        ridge: above 0.

    Returns:
        `(d, K)`: (x'x + ridge)^-1 x'y, which is x'(xx' + ridge)^-1 y.
    """
    if len(x) >= x.shape[1]:
        values, vectors = np.linalg.eigh(x.T @ x)
        return (vectors / (values + ridge)) @ (vectors.T @ (x.T @ y))
    values, vectors = np.linalg.eigh(x @ x.T)
    return (x.T @ (vectors / (values + ridge))) @ (vectors.T @ y)


def _whitened(features: np.ndarray, mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Features with mean 0 and deviation 1, followed by the constant feature."""
    scaled = (features - mean) / deviation
    return np.concatenate([scaled, np.full((len(scaled), 1), _CONSTANT)], axis=1)  # (n, D + 1)
