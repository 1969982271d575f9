"""Variables that get their first value from a file or another model instead of an initializer.

So a model is neither drawn at random first nor held twice.
"""

import contextlib

import keras
import numpy as np
from keras import ops

from keras_vit.keras_private import set_initializer


def float32_copy(array) -> np.ndarray:
    """A copy in float32, in memory of its own and in C order."""
    return np.array(array, "float32", order="C")


@contextlib.contextmanager
def deferred_variables():
    """Inside, layers make their variables without values: `initialise` gives them theirs."""
    with keras.StatelessScope(initialize_variables=False):
        yield


def initialise(variables: dict, tensors: dict, copy=float32_copy):
    """Gives each deferred variable the array of the same key, and lets go of the array.

    Args:
        variables: without values, by a key.
        tensors: arrays by the same keys; emptied.
        copy: from one of them to an array in memory of its own, as a mapped file asks for.
    """
    for path, variable in variables.items():
        set_initializer(variable, _Given(tensors.pop(path), copy))
    with keras.StatelessScope():
        pass  # leaving it makes Keras initialise all that waits


def discard(variables):
    """Lets go of deferred variables that will never be used, at the cost of a number each."""
    for variable in variables:
        set_initializer(variable, lambda shape, dtype: ops.zeros((), dtype))
    with keras.StatelessScope():
        pass


class _Given:
    """An initializer that answers with one array, copied so that no variable shares its memory."""

    def __init__(self, array, copy):
        self.array = array
        self.copy = copy

    def __call__(self, shape, dtype=None):
        return ops.cast(self.copy(self.array), dtype)
