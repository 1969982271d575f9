"""What an optimizer tells of itself: which one moves the weights, its steps, and its rate."""

import keras
from keras import ops

from keras_vit.keras_private import schedule_of


def inner_optimizer(model) -> keras.optimizers.Optimizer:
    """The optimizer that moves the weights, also where another one scales the loss for it."""
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def steps_of(optimizer) -> int:
    """Steps that an optimizer has made."""
    return int(ops.convert_to_numpy(optimizer.iterations))


def rate_at(optimizer, step) -> float:
    """The learning rate of a step, counted from 0; without a schedule, that of now."""
    schedule = schedule_of(optimizer)
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return float(ops.convert_to_numpy(schedule(step)))
    return float(ops.convert_to_numpy(optimizer.learning_rate))
