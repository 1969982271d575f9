"""A function of the caller's after each epoch of a run, which may end the run."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_vit.annotations import Logs
from keras_vit.runs.recorder import Recorder
from keras_vit.training.resuming.agreement import agreed


class StopRun(Exception):  # noqa: N818  # like StopIteration it is no error
    """Ends a run of `keras_vit.finetune` if its `on_epoch` raises it: the run is finished as after its last epoch.

    The best model is kept, measured and reported. Any other exception ends the run as a failure, which the same call
    takes up again.
    """


@dataclasses.dataclass(frozen=True)
class EpochRecord:
    """The figures of an epoch, which `keras_vit.finetune` passes to `on_epoch`.

    Example:
        >>> def stop_when_good(record):  # for `finetune(..., on_epoch=stop_when_good)`
        ...     if record.metrics["val_loss"] < 0.1:
        ...         raise keras_vit.StopRun
        >>> stop_when_good(keras_vit.EpochRecord(1, 10, 4, 2.5, {"val_loss": 0.06}))
        Traceback (most recent call last):
            ...
        keras_vit.runs.epoch_calls.StopRun

    Attributes:
        epoch: its number, from 1.
        epochs: how many the run has unless it is stopped.
        step: optimizer steps since the run began.
        seconds: of the run up to now, those before a kill included.
        metrics: values by name, the columns of `metrics.csv`: `loss`, the task's metrics, `learning_rate` and
            `gradient_norm`; with a validation set also `val_loss` and the others that begin with `val_`.
    """

    epoch: int
    epochs: int
    step: int
    seconds: float
    metrics: Mapping[str, float]


class EpochCalls(keras.callbacks.Callback):
    """Calls a function with the record of each epoch. List it between a `Recorder` and what saves checkpoints.

    So a checkpoint knows that the run was stopped, and an epoch whose checkpoint a kill has prevented is told again.

    Args:
        recorder: which has written the epoch's figures and models.
        epochs: how many the run has.
        on_epoch: called with an `EpochRecord`.
    """

    def __init__(self, recorder: Recorder, epochs: int, on_epoch: Callable[[EpochRecord], Any]) -> None:
        super().__init__()
        self._recorder, self._epochs, self._on_epoch = recorder, epochs, on_epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        facts = {name: value for name, value in self._recorder.row.items() if value is not None}
        own = {name: facts.pop(name) for name in ("epoch", "step", "seconds")}
        metrics = {name: float(value) for name, value in facts.items()}
        reason = None
        try:
            self._on_epoch(EpochRecord(epochs=self._epochs, metrics=metrics, **own))
        except StopRun as stop:
            reason = str(stop)
        if agreed(int(reason is not None)):  # of several processes one is enough
            self._recorder.stopped = reason or ""
            self.model.stop_training = True
