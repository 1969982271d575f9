"""The classifiers of probes: least squares on a few examples, logistic regression, and nearest neighbors.

Least squares is the official few-shot probe: arXiv:2010.11929, section 4.1 (metrics); google-research/big_vision,
`evaluators/fewshot_lsr.py`, which computes in float32. Here it is float64. Logistic regression is fitted by L-BFGS on
whitened features. Its strength is the one of a grid with the best accuracy on the validation examples; then it is
fitted to these as well, as arXiv:1910.04867 finally trains on 800 + 200 images.
"""

import dataclasses
import warnings
from typing import Any

import numpy as np

from keras_vit.checks import check_installed

SHOTS = (1, 5, 10, 25)
SEEDS = (0, 1, 2)
RIDGE = 2.0**10
_CONSTANT = 100.0  # value of the bias feature, so large that the bias is hardly regularised
_EPSILON = 1e-5  # added to the standard deviations
# C of scikit-learn: factor of the sum of losses, against half the squared weights. The grid is our choice;
# arXiv:2103.00020 tries 96 strengths in its linear probes.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
_MOST_STEPS = 1000  # of L-BFGS, as in the example of github.com/openai/CLIP
# Up to so many numbers one thread is used. With 1,000 examples of 768 numbers on two busy cores, several threads took
# 12 to 30 times as long, since they waited for each other.
_ONE_THREAD = 2**24
NUM_NEIGHBORS = 20
_TEMPERATURE = 0.07
_MOST_NUMBERS = 2**24  # cosines at once: 64 MB


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
        """Scores `(n, K)` of features `(n, D)`; the highest score is the class."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class Logistic:
    """A fitted logistic regression.

    Attributes:
        mean: `(D,)` of the training features.
        deviation: `(D,)`, their standard deviation, with 1 in place of 0.
        regression: `LogisticRegression` of scikit-learn.
    """

    mean: np.ndarray
    deviation: np.ndarray
    regression: Any

    def predict(self, features: np.ndarray) -> np.ndarray:
        """int64 `(n,)`, the class of the highest score for each of the features `(n, D)`."""
        return self.regression.predict((features - self.mean) / self.deviation).astype("int64")


def fit_logistic(features: np.ndarray, labels: np.ndarray, strength: float) -> Logistic:
    """Fits a logistic regression to whitened features.

    Args:
        features: `(n, D)`.
        labels: int `(n,)`, of at least two classes.
        strength: C; a larger one regularises less.

    Raises:
        ImportError: without scikit-learn.
        ValueError: for examples of one class.

    Warns:
        UserWarning: if it has not converged after 1,000 steps.
    """
    check_installed("sklearn", "it fits the linear probe", "data")
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from threadpoolctl import threadpool_limits  # which scikit-learn needs, too

    _check_classes(labels)
    features = np.asarray(features, "float64")
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    regression = LogisticRegression(C=strength, max_iter=_MOST_STEPS)
    threads = 1 if features.size <= _ONE_THREAD else None
    with warnings.catch_warnings(), threadpool_limits(threads):
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit((features - mean) / deviation, labels)
    if regression.n_iter_.max() >= _MOST_STEPS:
        warnings.warn(
            f"a linear probe of strength {strength:g} has not converged after {_MOST_STEPS:,} steps.", stacklevel=2
        )
    return Logistic(mean, deviation, regression)


def choose_strength(train: tuple[np.ndarray, np.ndarray], validation: tuple[np.ndarray, np.ndarray]) -> float:
    """The strength with the highest validation accuracy; the smallest of equal ones.

    Args:
        train: features `(n, D)` and labels `(n,)`.
        validation: likewise.
    """
    features, labels = validation
    right = [(fit_logistic(*train, strength).predict(features) == labels).mean() for strength in STRENGTHS]
    return STRENGTHS[int(np.argmax(right))]


def _check_classes(labels: np.ndarray) -> None:
    if len(np.unique(labels)) < 2:
        raise ValueError(
            "a linear probe needs training examples of at least two classes.\n"
            f"Received: {len(labels)} example(s) of {len(np.unique(labels))}."
        )


def neighbor_scores(
    train: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    classes: int,
    num_neighbors: int = NUM_NEIGHBORS,
    most_numbers: int = _MOST_NUMBERS,
) -> np.ndarray:
    """The votes of the nearest neighbors, by their cosine, for each class.

    Args:
        train: `(n, D)` features of the training examples.
        labels: int `(n,)`, their classes.
        test: `(m, D)` features of the test examples.
        classes: K.
        num_neighbors: number of votes, n at most.
        most_numbers: number of cosines in memory at once.

    Returns:
        float64 `(m, K)`: the sums of exp(cosine / 0.07), divided by exp(1 / 0.07).

    Source: arXiv:1805.01978 for the weights exp(cosine / 0.07); arXiv:2104.14294 for 20 neighbors, and its code,
    facebookresearch/dino, `eval_knn.py`, for both.
    """
    train, test = _unit(train), _unit(test)
    rows = max(most_numbers // len(train), 1)
    return np.concatenate(
        [
            _votes(test[start : start + rows] @ train.T, labels, classes, num_neighbors)
            for start in range(0, len(test), rows)
        ]
    )


def _votes(cosines: np.ndarray, labels: np.ndarray, classes: int, num_neighbors: int) -> np.ndarray:
    nearest = np.argpartition(-cosines, num_neighbors - 1, axis=1)[:, :num_neighbors]
    weights = np.exp((np.take_along_axis(cosines, nearest, axis=1).astype("float64") - 1) / _TEMPERATURE)
    votes = np.zeros((len(cosines), classes))
    np.add.at(votes, (np.arange(len(cosines))[:, None], labels[nearest]), weights)
    return votes


def _unit(features: np.ndarray) -> np.ndarray:
    features = np.asarray(features, "float32")
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
