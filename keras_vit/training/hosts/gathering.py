"""Weights that are cut over processes, brought together for a file."""

import random

import keras
import numpy as np


def at_hand(model: keras.Model) -> keras.Model:
    """The model, or where weights of it are cut over processes, a copy in this process alone, not compiled.

    All processes must call it.
    """
    if keras.backend.backend() != "jax" or all(is_here(weight) for weight in model.variables):
        return model
    values = [whole(weight) for weight in model.weights]
    distribution, state = keras.distribution.distribution(), random.getstate()
    keras.distribution.set_distribution(None)
    try:
        copy = type(model).from_config(model.get_config())
        copy.set_weights(values)
    finally:
        keras.distribution.set_distribution(distribution)
        random.setstate(state)
    return copy


def is_here(variable: keras.Variable) -> bool:
    """Whether this process can read all of a variable, on JAX."""
    return variable.value.is_fully_addressable or variable.value.is_fully_replicated


def whole(variable: keras.Variable) -> np.ndarray:
    """The value of a variable that may be cut over processes, all of which must ask for it."""
    from jax.experimental import multihost_utils

    if is_here(variable):
        return np.asarray(variable.value)
    return np.asarray(multihost_utils.process_allgather(variable.value, tiled=True))
