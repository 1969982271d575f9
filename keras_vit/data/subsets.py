"""Which training images a study of the amount of data takes: smaller sets lie in larger ones.

Sections 4.3 and 4.4 of arXiv:2010.11929 train on random subsets of one set.
"""

from typing import Any

import numpy as np

ORDERS = ("balanced", "random")
_STREAM = 7  # of random numbers, so that the division into splits has others


def chosen(examples: Any, count: int, seed: int, order: str) -> np.ndarray:
    """Numbers of the first `count` examples of an order that depends on the seed alone, so that sets are nested.

    Args:
        examples: a split.
        count: at most its size.
        seed: of the order.
        order: `"random"`, or `"balanced"`, in which every class has its next example before any has its one after.

    Returns:
        int64 `(count,)`, ascending.
    """
    rng = np.random.default_rng([seed, _STREAM])
    drawn = rng.permutation(examples.size)
    if order == "balanced":
        drawn = drawn[_by_turns(np.asarray(examples.labels)[drawn], rng)]
    return np.sort(drawn[:count])


def _by_turns(labels, rng):
    """Places of the first label of each class, then of the second ones, ...; in each turn classes have one order."""
    by_class = np.argsort(labels, kind="stable")
    grouped = labels[by_class]
    turns = np.arange(len(labels)) - np.searchsorted(grouped, grouped)
    places = rng.permutation(grouped.max() + 1)[grouped]
    return by_class[np.lexsort((places, turns))]
