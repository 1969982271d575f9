"""Variables that get their first value from a file or another model instead of an initializer.

So a model is neither drawn at random first nor held twice.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Shape, Tensor, Variable
from keras_vit.keras_private import drop_uninitialized_variables, set_initializer


def float32_copy(array: Any) -> np.ndarray:
    """A copy in float32, in memory of its own and in C order."""
    return np.array(array, "float32", order="C")


@contextlib.contextmanager
def deferred_variables() -> Iterator[None]:
    """Inside, layers make their variables without values, which `initialise` gives them. An error drops the
    variables."""
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    except BaseException:
        drop_uninitialized_variables()
        raise


def initialise(variables: dict, tensors: dict, copy: Callable[[Any], np.ndarray] = float32_copy) -> None:
    """Gives each deferred variable the array of the same key, and lets go of the array.

    Args:
        variables: without values, by a key.
        tensors: arrays by the same keys; emptied.
        copy: from one of them to an array in memory of its own, as a mapped file asks for.
    """
    if is_spread():
        _initialise_parts(variables, tensors, copy)
        return
    drawn = {}
    for path, variable in variables.items():
        given = _Given(tensors.pop(path), copy)
        if not set_initializer(variable, given):
            drawn[path] = given
    with keras.StatelessScope():
        pass  # leaving it makes Keras initialise all that waits
    for path, given in drawn.items():
        variables[path].assign(given(variables[path].shape, variables[path].dtype))


def is_spread() -> bool:
    """Whether `keras.distribution` spreads variables that are made now over devices; on JAX only."""
    return keras.backend.backend() == "jax" and keras.distribution.distribution() is not None


def _initialise_parts(variables: dict, tensors: dict, copy: Callable[[Any], np.ndarray]) -> None:
    """As `initialise`, for variables that are spread over devices: each gets its part, and no device ever holds the
    whole."""
    import jax

    for variable in variables.values():
        set_initializer(variable, ops.zeros)
    with keras.StatelessScope():
        pass
    for path, variable in variables.items():
        part = functools.partial(_part, tensors.pop(path), copy, variable.dtype)
        variable.assign(jax.make_array_from_callback(tuple(variable.shape), variable.value.sharding, part))


def _part(array: Any, copy: Callable[[Any], np.ndarray], dtype: str, index: Any) -> np.ndarray:
    return copy(array[index]).astype(dtype)


def discard(variables: Iterable[Variable]) -> None:
    """Frees deferred variables that will never be used, at the cost of one number each."""
    for variable in variables:
        set_initializer(variable, lambda shape, dtype: ops.zeros((), dtype))
    distribution = keras.distribution.distribution()
    keras.distribution.set_distribution(None)  # whose layouts have the variables' ranks
    try:
        with keras.StatelessScope():
            pass
    finally:
        keras.distribution.set_distribution(distribution)


class _Given:
    """An initializer that answers with one array, copied so that no variable shares its memory."""

    def __init__(self, array: Any, copy: Callable[[Any], np.ndarray]) -> None:
        self.array = array
        self.copy = copy

    def __call__(self, shape: Shape, dtype: Any = None) -> Tensor:
        return ops.cast(self.copy(self.array), dtype)
