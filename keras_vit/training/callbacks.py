"""Callbacks: a run that diverges stops within a step, one ends after its steps, and the logs say rate and norm."""

import math
from typing import NoReturn

import keras
from keras import ops

from keras_vit.annotations import Arguments, LastGood, Logs
from keras_vit.checks import check_positive_int
from keras_vit.training.optimizers import LEFT_OUT, GuardedOptimizer, inner_optimizer, rate_at, steps_of

MAX_SKIPS = 50  # float16: the scale goes through all of float32's powers of two in 149 + 15 halvings


class TrainingDivergedError(RuntimeError):
    """A loss or a gradient is not finite. The model holds the weights from before that step, all of them finite.

    Attributes:
        step: of the optimizer, counted from 1, that was left out.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class NonFiniteGuard(keras.callbacks.Callback):
    """Stops `fit` by an error at the first loss or gradient that is not finite.

    The optimizers of this package leave weights and moments alone where a gradient is not finite. So what the model
    holds, and what another callback has saved, is finite. Other optimizers are refused: with them the weights would
    be lost by the time a callback is called. List it first, so that nothing else is logged of that step. With
    `steps_per_execution=k` it looks after every k steps.

    Under `LossScaleOptimizer` (float16) single overflows are normal: it skips the step and halves its scale. Then
    more than `max_skips` in a row are what stops the run.

    Example:
        >>> model.compile(keras_vit.SGD(0.01), "mse")
        >>> guard = keras_vit.NonFiniteGuard()
        >>> model.fit(images, np.full((2, 3), np.nan), callbacks=[guard], verbose=0)
        Traceback (most recent call last):
            ...
        keras_vit.training.callbacks.TrainingDivergedError: training diverged: a loss or gradient is not finite...

    Args:
        last_good: path of the last checkpoint for the message, or words on it, or a function that gives either;
            `None` for none.
        max_skips: as above.

    Raises:
        TrainingDivergedError: out of `fit`.
        TypeError: out of `fit`, if the optimizer is not one of `keras_vit.training.optimizers`.
    """

    def __init__(self, last_good: LastGood = None, max_skips: int = MAX_SKIPS) -> None:
        super().__init__()
        check_positive_int("max_skips", max_skips)
        self.last_good = last_good
        self.max_skips = max_skips
        self._skips = 0
        self._scale: float | None = None  # of float16's loss scaling

    def on_train_begin(self, logs: Logs = None) -> None:
        optimizer = inner_optimizer(self.model)
        if not isinstance(optimizer, GuardedOptimizer):
            raise TypeError(
                "NonFiniteGuard needs an optimizer that leaves the weights alone where a gradient is not finite.\n"
                f"Received: {type(optimizer).__name__}. Pass an SGD or AdamW of keras_vit.training.optimizers."
            )
        self._skips, self._scale = 0, self._loss_scale()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        sync_state(self.model)
        if self._scale is not None:
            self._count_skips()
            return
        loss = float((logs or {}).get("loss", 0.0))
        norm = float(ops.convert_to_numpy(inner_optimizer(self.model).gradient_norm))
        if norm == LEFT_OUT or not math.isfinite(loss):
            shown = "not finite" if norm == LEFT_OUT else norm
            self._stop(f"loss {loss}, gradient norm {shown}", "a lower learning rate, a longer warm-up or clipping")

    def _count_skips(self) -> None:
        before, scale = self._scale or 0.0, self._loss_scale() or 0.0
        self._skips = self._skips + round(math.log2(before / scale)) if 0 < scale < before else 0
        self._scale = scale
        if self._skips > self.max_skips or scale == 0:
            self._stop(f"{self._skips} steps skipped in a row", 'images of a smaller range or `"mixed_bfloat16"`')

    def _loss_scale(self) -> float | None:
        optimizer = self.model.optimizer
        if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return None
        return float(ops.convert_to_numpy(optimizer.dynamic_scale) if optimizer.built else optimizer.initial_scale)

    def _stop(self, what: str, advice: str) -> NoReturn:
        optimizer = inner_optimizer(self.model)
        step = steps_of(optimizer)
        good = self.last_good() if callable(self.last_good) else self.last_good
        scale = "" if self._scale is None else f", loss scale {self._scale:.3g}"
        several = self.model.steps_per_execution > 1
        kept = "no diverged step has changed a weight" if several else "the weights are those from before this step"
        raise TrainingDivergedError(
            f"training diverged: a loss or gradient is not finite; {kept}.\n"
            f"Received: {what}; step {step}, learning rate {rate_at(optimizer, step - 1):.3g}{scale}; "
            f"last good checkpoint: {good or 'none'}. Look for images or labels that are not finite, or try {advice}.",
            step,
        )


@keras.saving.register_keras_serializable("keras_vit")
class StopAfterSteps(keras.callbacks.Callback):
    """Ends `fit` once the optimizer has made this many steps, those of an earlier `fit` included.

    Args:
        steps: optimizer steps in all.
    """

    def __init__(self, steps: int) -> None:
        super().__init__()
        check_positive_int("steps", steps)
        self.steps = steps
        self._made = 0  # before this epoch, or more in one that goes on where another process stopped

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._made = steps_of(self.model.optimizer)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self._made + batch + 1 >= self.steps:
            sync_state(self.model)  # JAX brings the count up to date between epochs only
            if steps_of(self.model.optimizer) >= self.steps:
                self.model.stop_training = True

    def get_config(self) -> Arguments:
        return {"steps": self.steps}


class StepFacts(keras.callbacks.Callback):
    """Adds `learning_rate` and `gradient_norm` of an epoch's last step to its logs.

    An optimizer of another package knows no `gradient_norm`, which is then left out. List it before what writes logs
    down, as `keras.callbacks.CSVLogger`.

    Example:
        >>> model.compile(keras_vit.SGD(0.01), keras_vit.SigmoidCrossentropy())
        >>> facts = keras_vit.StepFacts()
        >>> history = model.fit(images, np.eye(3)[[0, 2]], callbacks=[facts], verbose=0)
        >>> sorted(history.history)
        ['gradient_norm', 'learning_rate', 'loss']
    """

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if logs is None:
            return
        optimizer = inner_optimizer(self.model)
        logs["learning_rate"] = rate_at(optimizer, max(steps_of(optimizer) - 1, 0))
        if isinstance(optimizer, GuardedOptimizer):
            logs["gradient_norm"] = float(ops.convert_to_numpy(optimizer.gradient_norm))


def sync_state(model: keras.Model) -> None:
    """Brings the model up to date on JAX, where `fit` holds the state itself."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()
