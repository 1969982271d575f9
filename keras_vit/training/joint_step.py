"""One step of an optimizer over all variables at once, and over all devices, by public methods of Keras alone."""

import warnings
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Tensor, Variable


class JointStepOptimizer(keras.optimizers.Optimizer):
    """An optimizer whose subclass sees the gradients of all variables at once, in `update_all`.

    Keras clips the gradients of each TensorFlow replica before it sums them, so the public `apply` is written anew.
    Building, schedules, saving and loss scaling are Keras' own.
    """

    clips_after_sum = True

    def build(self, variables: Sequence[Variable]) -> None:
        before = len(self.variables)
        super().build(variables)
        self._joined = _Joined(variables, self.variables[before:])

    def update_all(self, gradients: Sequence[Tensor], variables: Sequence[Variable], learning_rate: Tensor) -> None:
        """One step: `gradients` are those of this replica; it ends by calling `update_each`."""
        raise NotImplementedError

    def update_one(self, variable: Variable, gradient: Tensor, scalars: Any, index: int) -> None:
        """Updates one variable on one device.

        Args:
            variable: of Keras; where several replicas train, the part of TensorFlow's variable on this device.
            gradient: the sum over devices.
            scalars: as `update_each` was given them.
            index: of the variable among those that the optimizer was built with.
        """
        raise NotImplementedError

    def update_each(self, gradients: Sequence[Tensor], variables: Sequence[Variable], scalars: Any) -> None:
        """Calls `update_one` for every variable, on every device.

        Args:
            gradients: one for each variable.
            variables: a part of those that the optimizer was built with.
            scalars: a structure of scalar tensors, handed on as it is.
        """
        indices = [self._joined.index_of(variable) for variable in variables]
        if num_replicas() == 1:
            for variable, gradient, index in zip(variables, gradients, indices, strict=True):
                self.update_one(variable, gradient, scalars, index)
            return
        import tensorflow as tf

        def on_all(strategy, gradients, scalars):
            for variable, gradient, index in zip(variables, gradients, indices, strict=True):
                given = (gradient, scalars, index)
                strategy.extended.update(variable.value, self.update_one, args=given, group=False)

        tf.distribute.get_replica_context().merge_call(on_all, args=(gradients, scalars))

    def apply(self, grads: Sequence[Tensor], trainable_variables: Sequence[Variable] | None = None) -> None:
        """Keras' `apply`, by `update_all`.

        Args:
            grads: one for each variable; `None` leaves a variable as it is.
            trainable_variables: by default all that the optimizer was built with.

        Raises:
            ValueError: for variables that the optimizer was not built with, or without any gradient.
        """
        if len(grads) == 0:
            return
        if trainable_variables is not None and not self.built:
            with keras.name_scope(self.name, caller=self):
                self.build(list(trainable_variables))
        variables = self._joined.variables if trainable_variables is None else trainable_variables
        pairs = [(grad, variable) for grad, variable in zip(grads, variables, strict=True) if grad is not None]
        _check_gradients(pairs, variables)
        gradients, updated = zip(*pairs, strict=True)
        if self.loss_scale_factor is not None:
            gradients = tuple(gradient / self.loss_scale_factor for gradient in gradients)
        self.update_all(gradients, updated, self.learning_rate)
        self._move_averages()
        for variable in updated:
            if variable.constraint is not None:
                variable.assign(variable.constraint(variable))
        self.iterations.assign_add(1)

    def _move_averages(self) -> None:
        """Moves the averages of `use_ema` on as Keras does: the first step takes the weights as they are."""
        if not self.use_ema:
            return
        for variable, average in zip(self._joined.variables, self._joined.averages, strict=True):
            momentum = ops.cast(ops.not_equal(self.iterations, 0), variable.dtype) * self.ema_momentum
            average.assign(momentum * average + (1 - momentum) * variable)
            if self.ema_overwrite_frequency:
                is_due = ops.equal((self.iterations + 1) % self.ema_overwrite_frequency, 0)
                variable.assign(ops.where(is_due, average, variable))


class _Joined:
    """The variables that an optimizer was built with, and their averages, where Keras' tracking does not look."""

    def __init__(self, variables: Sequence[Variable], averages: Sequence[Variable]) -> None:
        self.variables, self.averages = tuple(variables), tuple(averages)
        self._indices = {id(variable): index for index, variable in enumerate(variables)}

    def index_of(self, variable: Variable) -> int:
        """The place of a variable; raises `ValueError` for another one."""
        if id(variable) not in self._indices:
            raise ValueError(
                "an optimizer updates the variables that it was built with.\n"
                f"Received: {variable}, another one. Make a new optimizer for other variables."
            )
        return self._indices[id(variable)]


def num_replicas() -> int:
    """Replicas of the TensorFlow strategy that runs now; 1 on other backends, whose compilers sum gradients."""
    if keras.backend.backend() != "tensorflow":
        return 1
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync


def sum_over_replicas(gradients: Sequence[Tensor]) -> list:
    """Gradients added up over the replicas of TensorFlow's strategies."""
    if num_replicas() == 1:
        return list(gradients)
    import tensorflow as tf

    return tf.distribute.get_replica_context().all_reduce("SUM", list(gradients))


def _check_gradients(pairs: Sequence[tuple[Tensor, Variable]], variables: Sequence[Variable]) -> None:
    """Raises if no variable has a gradient, and warns if some have none."""
    if not pairs:
        raise ValueError(
            "a step needs a gradient of at least one variable.\n"
            f"Received: None for all {len(variables)}. Compute the loss from the model's outputs."
        )
    found = {id(variable) for _, variable in pairs}
    if missing := [variable.path for variable in variables if id(variable) not in found]:
        warnings.warn(f"Gradients do not exist for variables {missing}, which stay as they are.", stacklevel=4)
