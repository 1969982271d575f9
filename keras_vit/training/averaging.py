"""The average of the weights that an optimizer keeps, put into the model and taken out again."""

import keras
import numpy as np

from keras_vit.annotations import Variable
from keras_vit.training.optimizer_state import inner_optimizer, steps_of


class AveragedWeights:
    """Puts the average that an optimizer keeps (`use_ema`) into the model and takes it out again, bit for bit.

    (`keras.callbacks.SwapEMAWeights` adds and subtracts instead of copying, which rounds the weights.)

    Args:
        model: a compiled model.
    """

    def __init__(self, model):
        self._model = model
        self._kept = None

    def enter(self):
        """Puts the average in, if there is one and it has begun."""
        optimizer = inner_optimizer(self._model)
        if not getattr(optimizer, "use_ema", False) or steps_of(optimizer) == 0 or self._kept is not None:
            return
        self._kept = list(map(_copy, self._model.trainable_weights))
        for weight, average in zip(self._model.trainable_weights, _averages_of(optimizer), strict=True):
            weight.assign(_copy(average))

    def leave(self):
        """Puts the weights of before in again."""
        if self._kept is not None:
            for weight, value in zip(self._model.trainable_weights, self._kept, strict=True):
                weight.assign(value)
            self._kept = None


def _averages_of(optimizer: keras.optimizers.Optimizer) -> list[Variable]:
    """The moving averages that `use_ema` keeps, in the order of the weights."""
    return [variable for variable in optimizer.variables if variable.name.endswith("_average")]


def _copy(variable):
    """Its value in memory of its own: JAX gives buffers away that two variables could share."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.numpy.copy(variable.value)  # where it lies, which may be on several hosts
    return np.array(keras.ops.convert_to_numpy(variable), copy=True)
