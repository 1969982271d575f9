"""What an optimizer tells of itself: which one moves the weights, its steps, and its rate."""

import keras
from keras import ops


def inner_optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    """The optimizer that moves the weights, also where another one scales the loss for it."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def steps_of(optimizer: keras.optimizers.Optimizer) -> int:
    """Steps that an optimizer has made."""
    return int(ops.convert_to_numpy(optimizer.iterations))


def rate_at(optimizer: keras.optimizers.Optimizer, step: int) -> float:
    """The learning rate of a step, counted from 0; without a schedule, that of now."""
    iterations = optimizer.iterations
    counts = isinstance(iterations, keras.Variable)  # not of an optimizer of Keras that accumulates gradients
    with keras.StatelessScope(state_mapping=[(iterations, ops.cast(step, iterations.dtype))] if counts else None):
        return float(ops.convert_to_numpy(optimizer.learning_rate))
