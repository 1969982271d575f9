"""The linear probe: multinomial logistic regression on whitened features, fitted by L-BFGS.

Its strength is that of the grid which answers best on the validation examples. Then it is fitted on these too, as
arXiv:1910.04867 trains on 800 and 200 images once the choice is made.
"""

import dataclasses
import warnings
from typing import Any

import numpy as np

from keras_vit.checks import check_installed

# C of scikit-learn: what the sum of the losses is multiplied by beside half the squares of the weights. The grid
# is ours, in steps of 10; arXiv:2103.00020 goes through 96 strengths in its linear probes.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)
_MOST_STEPS = 1000  # of L-BFGS; the same number as in the example of github.com/openai/CLIP
# Numbers of features, up to which one thread computes: several waited for each other 12 to 30 times as long, with 1,000
# examples of 768 on two busy cores.
_OF_ONE_THREAD = 2**24


@dataclasses.dataclass(frozen=True, eq=False)
class Logistic:
    """A fitted regression.

    Attributes:
        mean: `(D,)` of the training features.
        deviation: `(D,)`, 1 where it would be 0.
        regression: of scikit-learn.
    """

    mean: np.ndarray
    deviation: np.ndarray
    regression: Any

    def predict(self, features: np.ndarray) -> np.ndarray:
        """int64 `(n,)`, the class of the highest score for each of the features `(n, D)`."""
        return self.regression.predict((features - self.mean) / self.deviation).astype("int64")


def fit_logistic(features: np.ndarray, labels: np.ndarray, strength: float) -> Logistic:
    """One regression.

    Args:
        features: `(n, D)`.
        labels: int `(n,)`, of at least two classes.
        strength: C, large for weights that are free to grow.

    Raises:
        ImportError: without scikit-learn.
        ValueError: for examples of one class.

    Warns:
        UserWarning: if 1,000 steps were too few.
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
    """The strength that answers most of the validation examples right; of equal ones the smallest.

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
