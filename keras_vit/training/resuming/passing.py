"""The steps of an epoch that another process made: `fit` counts them, and nothing is computed."""

from typing import Any

import keras

from keras_vit.annotations import Arguments
from keras_vit.keras_private import build_metrics
from keras_vit.training.resuming.checkpoint_folder import Checkpoint
from keras_vit.training.resuming.variables import METRICS, names_of, restore

OTHER_BATCHES = "an epoch that was begun goes on with batches of the same size, or images are seen twice or never"


def at_once(model: keras.Model) -> int:
    """Steps that one call of `model.train_function` makes."""
    return model.steps_per_execution


class Passing:
    """Stands in for `model.train_function` until the steps that were made before are passed.

    It computes nothing and says what the last of them said, as a GAN's losses, which are no metrics. Data that do not
    begin where the checkpoint is are drawn, and must have as many examples as were used.
    """

    def __init__(self, model: keras.Model, checkpoint: Checkpoint, draws: bool) -> None:
        self._model, self._checkpoint, self._draws = model, checkpoint, draws
        self._function = model.train_function
        self._left = -(-checkpoint.facts["batch"] // at_once(model))
        self._drawn = 0
        self._logs: Arguments | None = None
        if keras.backend.backend() == "jax":  # which takes the variables out of the model as the first step begins
            self._restore()
            model.train_function = self._jax_step
        else:
            model.train_function = self._step

    def end(self) -> None:
        """Gives the model its own function again."""
        self._model.train_function = self._function

    def _step(self, iterator: Any) -> Any:
        if self._logs is None:
            # A model whose `train_step` alone computes, as a GAN, cannot be built on shapes; nor has it to be.
            if len(names_of(self._checkpoint, METRICS)) > len(self._model.metrics_variables):
                build_metrics(self._model, iterator.element_spec)
            self._restore()
        return self._logs if self._pass(iterator) else self._model.train_function(iterator)

    def _jax_step(self, state: Any, iterator: Any) -> Any:
        return (self._logs, state) if self._pass(iterator) else self._model.train_function(state, iterator)

    def _pass(self, iterator: Any) -> bool:
        """Whether this step was made before; the first that was not has the model's own function again."""
        self._left -= 1
        if self._left < 0:
            self.end()
            return False
        if self._draws:
            self._draw(iterator)
        return True

    def _draw(self, iterator: Any) -> None:
        used = self._checkpoint.facts.get("examples")
        for _ in range(at_once(self._model)):
            batch = next(iterator, None)
            if batch is None:  # else `fit` would end the epoch here, without a word
                raise ValueError(
                    f"{OTHER_BATCHES}.\nReceived: data that end before step {self._checkpoint.facts['batch']} of the "
                    "epoch, where the checkpoint is. Pass the data and the batch size that the run began with."
                )
            self._drawn += _examples(batch)
        if used is not None and not self._left and self._drawn != used:
            raise ValueError(
                f"{OTHER_BATCHES}.\nReceived: {self._drawn} examples in the first {self._checkpoint.facts['batch']} "
                f"steps, where {used} were used. Pass the batch size that the run began with."
            )

    def _restore(self) -> None:
        restore(self._checkpoint, METRICS, self._model.metrics_variables)
        metrics = {name: float(value) for name, value in self._model.get_metrics_result().items()}
        self._logs = self._checkpoint.facts.get("logs") or metrics  # of a checkpoint from before it had logs


def _examples(batch: Any) -> int:
    """How many examples a batch has; 0 where several devices share it."""
    shape = getattr(next(leaf for leaf in keras.tree.flatten(batch) if leaf is not None), "shape", None)
    return int(shape[0]) if shape else 0
