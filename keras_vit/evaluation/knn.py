"""The answer of the nearest neighbours: those of the highest cosine vote for their classes.

Source: arXiv:1805.01978 for the weights exp(cosine / 0.07); arXiv:2104.14294 for 20 neighbours, and its code,
facebookresearch/dino, `eval_knn.py`, for both.
"""

import numpy as np

NEIGHBOURS = 20
_TEMPERATURE = 0.07
_MOST_NUMBERS = 2**24  # cosines at once: 64 MB


def neighbour_scores(
    train: np.ndarray,
    labels: np.ndarray,
    test: np.ndarray,
    classes: int,
    neighbours: int = NEIGHBOURS,
    most_numbers: int = _MOST_NUMBERS,
) -> np.ndarray:
    """The votes for each class.

    Args:
        train: `(n, D)` features of the examples that are compared with.
        labels: int `(n,)`, their classes.
        test: `(m, D)` features.
        classes: K.
        neighbours: examples that vote, n at most.
        most_numbers: cosines that are in memory at once.

    Returns:
        float64 `(m, K)`: the sums of exp(cosine / 0.07), divided by exp(1 / 0.07).
    """
    train, test = _unit(train), _unit(test)
    rows = max(most_numbers // len(train), 1)
    return np.concatenate(
        [
            _votes(test[start : start + rows] @ train.T, labels, classes, neighbours)
            for start in range(0, len(test), rows)
        ]
    )


def _votes(cosines, labels, classes, neighbours):
    nearest = np.argpartition(-cosines, neighbours - 1, axis=1)[:, :neighbours]
    weights = np.exp((np.take_along_axis(cosines, nearest, axis=1).astype("float64") - 1) / _TEMPERATURE)
    votes = np.zeros((len(cosines), classes))
    np.add.at(votes, (np.arange(len(cosines))[:, None], labels[nearest]), weights)
    return votes


def _unit(features):
    features = np.asarray(features, "float32")
    return features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
