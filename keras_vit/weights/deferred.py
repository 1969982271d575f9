"""Variables that get their first value from a file or another model instead of an initializer.

So a model is neither drawn at random first nor held twice.
"""

import contextlib

import keras
import numpy as np
from keras import ops

from keras_vit.weights.reader import forget_pages


@contextlib.contextmanager
def deferred_variables():
    """Inside, layers make their variables without values: `initialise` gives them theirs."""
    with keras.StatelessScope(initialize_variables=False):
        yield


def initialise(variables: dict, tensors: dict):
    """Gives each deferred variable the array of the same key, and lets go of the array."""
    for path, variable in variables.items():
        variable._initializer = _Given(tensors.pop(path))
    with keras.StatelessScope():
        pass  # leaving it makes Keras initialise all that waits


def discard(variables):
    """Lets go of deferred variables that will never be used, at the cost of a number each."""
    for variable in variables:
        variable._initializer = lambda shape, dtype: ops.zeros((), dtype)
    with keras.StatelessScope():
        pass


class _Given:
    """An initializer that answers with one array, copied so that no variable rests on a mapped file."""

    def __init__(self, array):
        self.array = array

    def __call__(self, shape, dtype=None):
        return ops.cast(float32_copy(self.array), dtype)


def float32_copy(array) -> np.ndarray:
    """A copy in float32, in memory of its own and in C order; the file's pages are let go of."""
    copy = np.array(array, "float32", order="C")
    forget_pages(array)
    return copy
