"""The linear probe: multinomial logistic regression on whitened features, fitted by L-BFGS.

The strength is the one of a grid with the best accuracy on the validation examples. Then the probe is fitted to these
as well, as arXiv:1910.04867 finally trains on 800 + 200 images.
"""

import dataclasses
import warnings
from typing import Any

import numpy as np

from keras_vit.checks import check_installed

# C of scikit-learn: factor of the sum of losses, against half the squared weights. The grid is our choice;
# arXiv:2103.00020 tries 96 strengths in its linear probes.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
_MOST_STEPS = 1000  # of L-BFGS, as in the example of github.com/openai/CLIP
# Up to so many numbers one thread computes. Several threads took 12 to 30 times as long, with 1,000 examples of 768
# on two busy cores, since they waited for each other.
_OF_ONE_THREAD = 2**24


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
        UserWarning: if 1,000 steps did not suffice.
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
    threads = 1 if features.size <= _OF_ONE_THREAD else None
    with warnings.catch_warnings(), threadpool_limits(threads):
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit((features - mean) / deviation, labels)
    if regression.n_iter_.max() >= _MOST_STEPS:
        warnings.warn(
            f"a linear probe of strength {strength:g} is not at its end after {_MOST_STEPS:,} steps.", stacklevel=2
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
