"""Callbacks of a run: after each epoch the figures and models are written, and a function of the caller is called."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import Logs, Tensor, Variable
from keras_vit.pages.formatting import plural
from keras_vit.runs.run_directory import RunDirectory
from keras_vit.runs.run_files import BEST, LAST
from keras_vit.tasks import Task
from keras_vit.training.optimizers import inner_optimizer, steps_of
from keras_vit.training.resuming.coordination import all_reduce_max


class Rows(keras.callbacks.Callback):
    """Writes a row for each epoch into `metrics.csv`, and remembers it in checkpoints. List it after `StepFacts`.

    Args:
        run: a `RunDirectory`.

    Attributes:
        row: what was written of the last epoch, by the columns of `run`.
        stopped: why the run was ended before its last epoch; `None` if it was not.
        seconds_before: of training in other processes.
    """

    def __init__(self, run: RunDirectory) -> None:
        super().__init__()
        self.run = run
        self.row: dict[str, Any] = {}
        self.stopped: str | None = None
        self.seconds_before, self._began = 0.0, time.monotonic()

    def on_train_begin(self, logs: Logs = None) -> None:
        self._began = time.monotonic()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        row = {name: value for name, value in (logs or {}).items() if name in self.run.columns}
        row |= {"epoch": epoch + 1, "step": steps_of(self.model.optimizer), "seconds": self._elapsed()}
        self.row = {name: row.get(name) for name in self.run.columns}
        self.run.write_row(self.row)

    def _elapsed(self) -> float:
        return self.seconds_before + time.monotonic() - self._began

    def get_state(self) -> dict[str, Any]:
        """What a run that goes on must know, with the figures up to now, ready for JSON."""
        return {
            "mark": self.run.mark,
            "seconds": self._elapsed(),
            "stopped": self.stopped,
            "metrics": self.run.metrics_text(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where `get_state` was; rows that came after it are taken out of `metrics.csv`."""
        self.run.mark = state.get("mark", self.run.mark)
        self.seconds_before, self.stopped = state["seconds"], state.get("stopped")
        self.run.set_metrics_text(state["metrics"])


class Recorder(Rows):
    """Writes a row for each epoch, the model as it is, and the model whenever it is the best one on the validation set.

    The task compares them; of equal ones the lower loss is better. Without a validation set the latest model is taken
    for the best. Where an average of the weights is kept, the best model has it for its weights, since that is what was
    validated.
    The last model has the weights themselves and the average in its optimizer, so training can go on from it. Keras
    would leave the average in the weights as `fit` ends.

    Args:
        run: a `RunDirectory`.
        task: that says which figures are better.

    Attributes:
        best_epoch: number of the epoch, from 1, whose model is `best.keras`; `None` before the first.
        last_epoch: the same of `last.keras`.
    """

    def __init__(self, run: RunDirectory, task: Task) -> None:
        super().__init__(run)
        self.task = task
        self.best_epoch: int | None = None
        self.last_epoch: int | None = None
        self._best: Any = None  # of the task's metric and the loss, larger is better
        self._average: Any = None

    @property
    def best_model(self) -> Path | None:
        """Path of the best model, if there is one yet."""
        return None if self.best_epoch is None else self.run.path / BEST

    def on_train_begin(self, logs: Logs = None) -> None:
        super().on_train_begin(logs)
        self._average = AveragedWeights(self.model)

    def get_state(self) -> dict[str, Any]:
        """As of all rows, and what the models are of."""
        return super().get_state() | {"best_epoch": self.best_epoch, "last_epoch": self.last_epoch, "best": self._best}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where `get_state` was."""
        super().set_state(state)
        self.best_epoch, self.last_epoch = state["best_epoch"], state["last_epoch"]
        self._best = None if state["best"] is None else tuple(state["best"])

    def settle(self) -> None:
        """Ends what holds the model's weights back, so that they can be saved within a validation."""
        self._average.leave()

    def on_test_begin(self, logs: Logs = None) -> None:
        self._average.enter()

    def on_test_end(self, logs: Logs = None) -> None:
        self._average.leave()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.run.save_model(self.model, LAST, epoch + 1):
            self.last_epoch = epoch + 1
        score = self.task.score(logs or {}) or (epoch, 0)
        if self._best is None or score > self._best:
            self._save_best(epoch, score)

    def _save_best(self, epoch: int, score: tuple[float, float]) -> None:
        self._average.enter()
        try:
            saved = self.run.save_model(self.model, BEST, epoch + 1)
        finally:
            self._average.leave()
        if saved:
            self._best, self.best_epoch = score, epoch + 1


class AveragedWeights:
    """Puts the average that an optimizer keeps (`use_ema`) into the model and takes it out again, bit for bit.

    `keras.callbacks.SwapEMAWeights` adds and subtracts instead of copying, which rounds the weights.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._kept: list[Tensor] | None = None

    def enter(self) -> None:
        """Puts the average in, if there is one and it has begun."""
        optimizer = inner_optimizer(self._model)
        if not getattr(optimizer, "use_ema", False) or steps_of(optimizer) == 0 or self._kept is not None:
            return
        self._kept = list(map(_copy, self._model.trainable_weights))
        averages = [variable for variable in optimizer.variables if variable.name.endswith("_average")]
        for weight, average in zip(self._model.trainable_weights, averages, strict=True):
            weight.assign(_copy(average))

    def leave(self) -> None:
        """Puts the weights of before in again."""
        if self._kept is not None:
            for weight, value in zip(self._model.trainable_weights, self._kept, strict=True):
                weight.assign(value)
            self._kept = None


def _copy(variable: Variable) -> Tensor:
    """The value of a variable in memory of its own: JAX gives buffers away that two variables could share."""
    if keras.backend.backend() == "jax":
        import jax

        return jax.numpy.copy(variable.value)  # where it lies, which may be on several hosts
    return np.array(keras.ops.convert_to_numpy(variable), copy=True)


class StopTraining(Exception):  # noqa: N818  # like StopIteration it is no error
    """Ends a run of `keras_vit.finetune` if its `on_epoch_end` raises it: the run is finished as after its last epoch.

    The best model is kept, measured and reported. Any other exception ends the run as a failure, which the same call
    takes up again.
    """


@dataclasses.dataclass(frozen=True)
class EpochRecord:
    """The figures of an epoch, which `keras_vit.finetune` passes to `on_epoch_end`.

    Example:
        >>> def stop_when_good(record):  # for `on_epoch_end=` of `finetune`
        ...     if record.metrics["val_loss"] < 0.1:
        ...         raise keras_vit.StopTraining
        >>> stop_when_good(keras_vit.EpochRecord(1, 10, 4, 2.5, {"val_loss": 0.06}))
        Traceback (most recent call last):
            ...
        keras_vit.runs.callbacks.StopTraining

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


def stop_early(run: RunDirectory, task: Task, most: int) -> Callable[[Any], None]:
    """A function for `EpochCalls` that ends a run after `most` epochs without gain of the task's first metric.

    It reads what `metrics.csv` holds, so a run that goes on waits for as many epochs as one that was not stopped.
    """

    def check(record: EpochRecord) -> None:
        values = np.nan_to_num([score[0] for row in run.rows() if (score := task.score(row))], nan=-np.inf)
        waited = len(values) - 1 - int(values.argmax())  # of equal ones the first counts
        if waited >= most:
            raise StopTraining(f"no gain of {task.metrics[0].replace('_', ' ')} in {plural(waited, 'epoch')}")

    return check


class EpochCalls(keras.callbacks.Callback):
    """Calls a function with the record of each epoch. List it between a `Recorder` and what saves checkpoints.

    So a checkpoint knows that the run was stopped, and an epoch without its checkpoint comes again.

    Args:
        recorder: which has written the epoch's figures.
        epochs: how many the run has.
        on_epoch: called with an `EpochRecord`.
    """

    def __init__(self, recorder: Rows, epochs: int, on_epoch: Callable[[EpochRecord], Any]) -> None:
        super().__init__()
        self._recorder, self._epochs, self._on_epoch = recorder, epochs, on_epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        facts = {name: value for name, value in self._recorder.row.items() if value is not None}
        own = {name: facts.pop(name) for name in ("epoch", "step", "seconds")}
        metrics = {name: float(value) for name, value in facts.items()}
        reason = None
        try:
            self._on_epoch(EpochRecord(epochs=self._epochs, metrics=metrics, **own))
        except StopTraining as stop:
            reason = str(stop)
        if all_reduce_max(int(reason is not None)):  # of several processes one is enough
            self._recorder.stopped = reason or ""
            self.model.stop_training = True
