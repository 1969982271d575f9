"""How a run is getting on: a bar with the time left on a terminal, one line for each epoch everywhere."""

import datetime
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from keras_vit.annotations import Logs
from keras_vit.config.recipes.growth import Stage, work_of
from keras_vit.training.plan import Plan

_OF_A_STEP = ("epoch", "figures", "speed", "left")  # what a line on a step has
_QUIET = 50  # seconds without a line, after which a step says one
_TELLING = 2.0  # seconds of timed steps, from which on they tell how long the run will take
_SHORT = 60  # seconds: a run that takes less needs no words on it


class Progress(keras.callbacks.Callback):
    """Tells of every epoch, and on a terminal of every step; elsewhere of one a minute, and early of the time it takes.

    The speed and the time left come of the steps after the first, which compiles. The first evaluation compiles too,
    so the time left counts evaluation and saving from the second epoch on.

    Args:
        plan: a `Plan`: how many epochs, steps and images there are.
        say: called with one line of text for each epoch; `print` shows a bar as well if the output is a terminal.
        stages: `Stage` records of a training whose images grow, so that later steps take longer.
    """

    def __init__(self, plan: Plan, say: Callable[[str], Any] = print, stages: Sequence[Stage] = ()) -> None:
        super().__init__()
        self.plan = plan
        self.say = say
        self.stages = stages
        self._bar: Any = None
        self._task: Any = None
        self._began: Any = None
        self._now: Any = None  # the end of what the time left is reckoned from
        self._epoch_began: Any = None
        self._done = self._compiled = self._epoch = 0  # steps; steps that the clock leaves out; epochs
        self._passed = 0  # steps of this epoch that another process made, which take no time
        self._in_epoch = 0  # steps of the epoch
        self._told = False  # how long the run will take
        self._said_at = 0.0
        self._show_bar = say is print and sys.stdout is not None and sys.stdout.isatty()

    def on_train_begin(self, logs: Logs = None) -> None:
        self._done = self._compiled = 0
        self._began, self._told, self._said_at = None, False, time.monotonic()
        if self._show_bar:
            self._bar = _bar()
            self._task = self._bar.add_task("", total=self.plan.steps, epoch="", figures="", speed="", left="compiling")
            self._bar.start()
        else:
            self.say("compiling the first step, which takes longer than all others")

    def get_state(self) -> dict[str, int]:
        """What a run that goes on must know: steps in all, and of the epoch that has begun."""
        return {"done": self._done, "of_epoch": self._in_epoch}

    def set_state(self, state: dict[str, int]) -> None:
        """Goes on where `get_state` was, in an epoch whose first steps are passed over."""
        self._passed, self._done = state["of_epoch"], state["done"]
        self._epoch_began = time.monotonic()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch, self._epoch_began, self._epoch_steps, self._in_epoch = epoch, time.monotonic(), 0, 0

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._in_epoch += 1
        if self._in_epoch <= self._passed:
            return
        self._done += 1
        self._epoch_steps += 1
        self._now = time.monotonic()
        if self._began is None:
            self._began, self._compiled = self._now, self._done
            self._epoch_began, self._epoch_steps = self._began, 0
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, **self._state(logs or {}))
        else:
            self._tell(logs or {})

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._doing(f"step {min(self._done + 1, self.plan.steps):,} of {self.plan.steps:,}")

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._doing(f"evaluation after epoch {self._epoch + 1}, batch {batch + 1:,}")

    def _doing(self, what: str) -> None:
        """Leaves word for `MinuteLines` of what is going on."""
        if hasattr(self.say, "doing"):
            self.say.doing = what

    def _tell(self, logs: Mapping[str, Any]) -> None:
        """A line on the time that is left, once it is known and is long; and one on a step where none came lately."""
        left = self.seconds_left()
        if left is not None and not self._told and self._now - self._began >= _TELLING:
            self._told = True
            if left >= _SHORT:
                step = (self._now - self._began) / (self._done - self._compiled)
                self._say(f"a step takes {step:.2f} s; {duration(left)} left, without the evaluations")
        if self._now - self._said_at >= _QUIET:
            figures = self._state(logs)
            parts = (f"step {self._done:,}/{self.plan.steps:,}", *(figures[name] for name in _OF_A_STEP))
            self._say("  ".join(part for part in parts if part))

    def on_test_begin(self, logs: Logs = None) -> None:
        self._epoch_seconds = time.monotonic() - self._epoch_began  # of training alone

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._in_epoch = self._passed = 0
        seconds = getattr(self, "_epoch_seconds", None) or time.monotonic() - self._epoch_began
        self._epoch_seconds = None
        if epoch:
            self._now = time.monotonic()
        speed = self._epoch_steps * self.plan.batch_size / max(seconds, 1e-9)
        self._say(_line(epoch, self.plan.epochs, logs or {}, speed, self.seconds_left()))
        if not epoch:
            self._began, self._compiled = time.monotonic(), self._done

    def on_train_end(self, logs: Logs = None) -> None:
        self.close()
        self._doing("measuring the best model")

    def seconds_left(self) -> float | None:
        """Seconds that training and its evaluations still take, as far as the steps up to now tell."""
        if self._began is None or self._done <= self._compiled:
            return None
        done, compiled, steps = map(self._work, (self._done, self._compiled, self.plan.steps))
        return (self._now - self._began) / (done - compiled) * max(steps - done, 0)

    def _work(self, steps: int) -> float:
        """What so many steps cost, in some unit."""
        return work_of(self.stages, self.plan.steps_per_epoch, steps) if len(self.stages) > 1 else steps

    def close(self) -> None:
        """Takes the bar off the terminal, also after a failure."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            self.say(text)
            self._said_at = time.monotonic()

    def _state(self, logs: Mapping[str, Any]) -> dict[str, str]:
        timed = self._done - self._compiled
        speed = timed * self.plan.batch_size / max(self._now - self._began, 1e-9) if timed else None
        return {
            "epoch": f"epoch {self._epoch + 1}/{self.plan.epochs}",
            "figures": "  ".join(f"{name} {logs[name]:.4f}" for name in ("loss", "accuracy") if name in logs),
            "speed": f"{speed:,.0f} images/s" if speed else "",
            "left": f"{duration(self.seconds_left())} left" if timed else "compiling",
        }


def duration(seconds: float | None) -> str:
    """Seconds as `0:01:05`; `?` for `None`."""
    return "?" if seconds is None else str(datetime.timedelta(seconds=round(seconds)))


def _line(epoch: int, epochs: int, logs: Mapping[str, Any], speed: float, left: float | None) -> str:
    width = len(str(epochs))
    shown = ("loss", "accuracy", "val_loss", "val_accuracy")
    figures = [f"{name} {logs[name]:.4f}" for name in shown if name in logs]
    figures += [f"{speed:,.0f} images/s"] if speed else []
    ending = [f"{duration(left)} left"] if left and epoch + 1 < epochs else []
    return "  ".join([f"epoch {epoch + 1:{width}}/{epochs}", *figures, *ending])


def _bar() -> Any:
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.fields[epoch]}"),
        progress.BarColumn(bar_width=24),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[figures]}"),
        progress.TextColumn("{task.fields[speed]}"),
        progress.TextColumn("{task.fields[left]}"),
        transient=True,
        refresh_per_second=4,
    )
