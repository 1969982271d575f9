"""What a run will take, printed before its first step, and how it is getting on.

Before: time, what would take less, and disk; a full disk is refused. Then a bar with the time left on a terminal, and
a row of a table for each epoch everywhere. A log without a terminal gets a line at least each minute.
"""

import contextlib
import math
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import Logs
from keras_vit.checks import ArgumentError, cores
from keras_vit.config.flops import flops
from keras_vit.config.progressive_resizing import ResolutionStage, relative_cost
from keras_vit.config.recipes import Recipe
from keras_vit.files import disk_size
from keras_vit.model.image_model import ImageModel, has_accelerator
from keras_vit.model.resnet import ResNet
from keras_vit.pages.formatting import clock_time, duration, format_facts, plural, printable
from keras_vit.runs.options import FLAGS
from keras_vit.runs.plan import num_parameters
from keras_vit.runs.run_files import BEST, CHECKPOINTS, LAST
from keras_vit.training.memory import SLOTS, learning_blocks, towers
from keras_vit.training.plan import Plan

_QUIET = 50  # seconds without a line, after which a step says one
_MEASURED = 2.0  # seconds of timed steps, from which on they tell how long the run will take
_SHORT = 60  # seconds: a run that takes less needs no words on it
_LONG_WORK = 5e13  # FLOP of a run, which take some minutes on a CPU; a shorter run is not timed
_LONG = 900  # seconds, from which on a smaller run is offered
_TIMED, _TIMED_WORK = 2, 1e10  # images, or more of those that are less than so many FLOP together: calls take time too
_TIMING = 2.0  # seconds, at least
# Times as long as compiling a forward pass: to compile the step, the first evaluation and the saved model, and to draw.
# Of 6 blocks on a busy machine 77 to 82 s in two runs, where that took 6.1 and 8.6 s.
_COMPILED = 10
_SMALL_SIZE, _SMALL_BATCH = 224, 32


def print_estimates(run_plan: Any, out: Path, print_fn: Callable[[str], Any]) -> None:
    """Prints the disk space that a run needs, which is refused where there is less, and how long it takes on a CPU."""
    _print_disk(out, run_plan.model, run_plan.plan.recipe, print_fn)
    if has_accelerator() or run_plan.devices > 1 or run_plan.options.layout != "none":
        return  # there the first steps are short, and `Progress` reports the time
    models = towers(run_plan.model)
    forward = flops(models[0]).total
    steps = relative_cost(run_plan.stages, run_plan.plan.steps_per_epoch, run_plan.plan.steps)
    images = steps * run_plan.plan.batch_size
    if images * forward * _passes(models[0]) < _LONG_WORK:
        return
    timed = int(max(_TIMED, min(run_plan.plan.batch_size, _TIMED_WORK / forward)))
    measured = [_seconds_of_an_image(model, timed) for model in models]
    step = run_plan.plan.batch_size * sum(
        image * _passes(model) for (_, image), model in zip(measured, models, strict=True)
    )
    sizes = run_plan.source.sizes  # the validation set after each epoch, and at the end those that are measured
    evaluated = run_plan.plan.epochs * sizes.get("validation", 0) + sizes[run_plan.split]
    overhead = sum(_COMPILED * compiling + image * evaluated for compiling, image in measured)
    seconds = steps * step + overhead
    counted = plural(run_plan.plan.steps, "step")
    parts = f"{counted} of {step:,.1f} s, and {duration(overhead)} for compiling, evaluations"
    basis = f"as {plural(timed, 'image')} took on {len(cores())} cores; saving is not counted"
    lines = [f"about {duration(seconds)}, until {clock_time(seconds)}: {parts} and the report; {basis}"]
    if seconds >= _LONG and len(models) == 1:
        lines += [f"shorter: {offer}" for offer in _offers(run_plan, seconds)]
    for name, text in zip(["time", *[""] * len(lines)], lines, strict=False):
        for line in format_facts(name, text):
            print_fn(line)


def _passes(model: ImageModel) -> float:
    """Forward passes that a training step takes as long as: the way back through what learns is two."""
    if isinstance(model, ResNet):
        share = float(2 * num_parameters(model.trainable_weights) > model.count_params())
    else:
        share = len(learning_blocks(model)) / model.config.num_layers
    return 1 + share * (3 if getattr(model.config, "rematerialize", False) else 2)


def _seconds_of_an_image(model: keras.Model, timed: int) -> tuple[float, float]:
    """Of compiling a forward pass, and of the pass for one image or text of so many; the model stays as it is."""
    shape = [side or model.config.max_length for side in model.input_shape[1:]]  # texts may be shorter
    images = np.zeros((timed, *shape), model.inputs[0].dtype)
    began = time.monotonic()
    model.predict_on_batch(images)
    compiling = time.monotonic() - began
    began, rounds = time.monotonic(), 0
    while time.monotonic() - began < _TIMING:  # so that what else the machine does counts as it will later
        model.predict_on_batch(images)
        rounds += 1
    image = (time.monotonic() - began) / (rounds * timed)
    return max(compiling - image * timed, 0.0), image


def _offers(run_plan: Any, seconds: float) -> Iterator[str]:
    """Options that would take less, with the time of each."""
    model, options, batch_size = run_plan.model, run_plan.options, run_plan.plan.batch_size
    size, patch = model.input_shape[1:3], model.config.side_unit
    words, share = [], 1.0
    smaller = math.prod(size) > _SMALL_SIZE**2 and not _SMALL_SIZE % patch
    if smaller and not isinstance(options.model, ImageModel):
        words.append(f"{FLAGS['image_size']} {_SMALL_SIZE}")
        share *= flops(model.config, _SMALL_SIZE).total / flops(model.config, size).total
    if batch_size > _SMALL_BATCH:
        words.append(f"{FLAGS['batch_size']} {_SMALL_BATCH}")
        share *= _SMALL_BATCH / batch_size
    if words:
        yield f"{' '.join(words)}, about {duration(share * seconds)}"
    least = 1.0 if isinstance(model, ResNet) else 1 + 2 / model.config.num_layers
    if options.lora_rank is None and least < _passes(model):
        which = "head" if isinstance(model, ResNet) else "last_blocks:1"
        yield f"{FLAGS['trainable']} {which}, about {duration(least / _passes(model) * seconds)}"


_MODELS = 3  # with weights and optimizer: the best, the last, and one that is being written in place of either
_CHECKPOINTS = 3  # two that are kept, and one that is being written
_BYTES = 4  # of a number; weights in training are float32
_OTHERS = 20_000_000  # bytes of figures, pages and pictures


def _print_disk(folder: Path, model: keras.Model, recipe: Recipe, print_fn: Callable[[str], Any]) -> None:
    """Prints a line on each disk that a run writes to, and raises a `ValueError` where it has no room.

    What an unfinished run has there is written over, so it counts as free.
    """
    needed = _needed(folder, model, recipe)
    free = {place: shutil.disk_usage(place) for place in needed}
    for place, size in needed.items():
        if free[place].total and free[place].free < size:
            raise ArgumentError(
                "the disk of `out` must have room for the models and checkpoints of a run.\n"
                f"Received: {str(place)!r}, where {free[place].free / 1e9:.2f} GB are free and {size / 1e9:.2f} GB are "
                "needed. Make room, or choose a folder on another disk."
            )
    for place, size in needed.items():
        where = f"{printable(place)}: " if len(needed) > 1 else ""
        words = f"{where}at most {size / 1e9:.2f} GB; {free[place].free / 1e9:.2f} GB are free"
        for line in format_facts("disk", words):
            print_fn(line)


def _needed(folder: Path, model: keras.Model, recipe: Recipe) -> dict[Path, int]:
    """Bytes that a run takes at its peak, by a folder on each disk; checkpoints may be a link to one of their own."""
    kept = SLOTS[recipe.optimizer] + (recipe.ema_momentum is not None)
    one = _BYTES * (num_parameters(model.weights) + kept * num_parameters(model.trainable_weights))
    parts = (
        (folder, _MODELS * one + _OTHERS, (folder / BEST, folder / LAST)),
        (folder / CHECKPOINTS, _CHECKPOINTS * one, (folder / CHECKPOINTS,)),
    )
    needed: Counter[int] = Counter()
    places: dict[int, Path] = {}
    for place, size, there in parts:
        place = next(each for each in (place, *place.absolute().parents) if each.exists())
        disk = os.stat(place).st_dev
        places.setdefault(disk, place)
        needed[disk] += size - sum(map(disk_size, there))
    return {place: max(needed[disk], 0) for disk, place in places.items()}


class Progress(keras.callbacks.Callback):
    """Prints every epoch, and on a terminal every step; elsewhere one step a minute and, early, the time left.

    Speed and time left are measured from the second step on, since the first compiles. Of the first evaluation, its
    first batch compiles. Saving is included from the second epoch on.

    Args:
        plan: a `Plan`: how many epochs, steps and images there are.
        print_fn: called with one line of text for each epoch; `print` shows a bar as well if the output is a terminal.
        stages: `ResolutionStage` records of a training whose images grow, so that later steps take longer.
        metrics: names of the task's metrics, shown after the loss.
    """

    def __init__(
        self,
        plan: Plan,
        print_fn: Callable[[str], Any] = print,
        stages: Sequence[ResolutionStage] = (),
        metrics: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._figures = ("loss", *metrics)
        self.plan = plan
        self.print_fn = print_fn
        self.stages = stages
        self._bar: Any = None
        self._task: Any = None
        self._began: Any = None
        self._now: Any = None  # the end of what the time left is reckoned from
        self._epoch_began: Any = None
        self._done = self._compiled = self._epoch = 0  # steps; steps that the clock leaves out; epochs
        self._passed = 0  # steps of this epoch that another process made, which take no time
        self._in_epoch = 0  # steps of the epoch
        self._compiled_evaluation, self._last_batch = 0.0, 0  # time after the first batch of the first evaluation
        self._time_reported = self._table_begun = False  # how long the run will take; whether the table has begun
        self._printed_at = 0.0
        self._show_bar = print_fn is print and shows_bars()

    def on_train_begin(self, logs: Logs = None) -> None:
        self._done = self._compiled = 0
        self._began, self._time_reported, self._printed_at = None, False, time.monotonic()
        if self._show_bar:
            self._bar = _bar()
            self._task = self._bar.add_task(
                "", total=self.plan.steps, epoch="", figures="", left="compiling the first step"
            )
            self._bar.start()
        else:
            self.print_fn("compiling the first step; then the time left is known")

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
            self._report(logs or {})

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        self._doing(f"step {min(self._done + 1, self.plan.steps):,} of {self.plan.steps:,}")

    def on_test_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if batch == 1:
            self._compiled_evaluation = time.monotonic()
        self._last_batch = batch
        self._doing(f"evaluation after epoch {self._epoch + 1}, batch {batch + 1:,}")

    def _doing(self, what: str) -> None:
        """Sets what `Heartbeat` prints."""
        if hasattr(self.print_fn, "doing"):
            self.print_fn.doing = what

    def _report(self, logs: Mapping[str, Any]) -> None:
        """A line on the time that is left, once it is known and is long; and one on a step where none came lately."""
        left = self.seconds_left()
        if left is not None and not self._time_reported and self._now - self._began >= _MEASURED:
            self._time_reported = True
            if left >= _SHORT:
                step = (self._now - self._began) / (self._done - self._compiled)
                self._print(
                    f"a step takes {step:.2f} s: {duration(left)} left, until {clock_time(left)}, and evaluations"
                )
        if self._now - self._printed_at >= _QUIET:
            parts = (f"step {self._done:,}/{self.plan.steps:,}", *self._state(logs).values())
            self._print("  ".join(part for part in parts if part))

    def on_test_begin(self, logs: Logs = None) -> None:
        self._epoch_seconds = time.monotonic() - self._epoch_began  # of training alone
        if self._bar is not None:
            self._bar.update(self._task, left="evaluating")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._in_epoch = self._passed = 0
        seconds = getattr(self, "_epoch_seconds", None) or time.monotonic() - self._epoch_began
        self._epoch_seconds = None
        if epoch:
            self._now = time.monotonic()
        speed = self._epoch_steps * self.plan.batch_size / max(seconds, 1e-9)
        left = self._seconds_left_after(epoch)
        head, row = _rows(self._figures, epoch, self.plan.epochs, logs or {}, speed, left)
        if not self._table_begun:
            self._table_begun = True
            self._print(head)
        self._print(row)
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

    def _seconds_left_after(self, epoch: int) -> float | None:
        """What the row of an epoch shows: nothing after the last, and after a first that was too short to measure."""
        left = self.seconds_left()
        if left is None or epoch + 1 == self.plan.epochs or (not epoch and self._now - self._began < _MEASURED):
            return None
        if epoch or not self._last_batch:
            return left
        batches = self._last_batch  # of the first evaluation, without the one that compiled
        evaluation = (time.monotonic() - self._compiled_evaluation) * (batches + 1) / batches
        return left + evaluation * (self.plan.epochs - 1)

    def _work(self, steps: int) -> float:
        """What so many steps cost, in some unit."""
        return relative_cost(self.stages, self.plan.steps_per_epoch, steps) if len(self.stages) > 1 else steps

    def close(self) -> None:
        """Takes the bar off the terminal, also after a failure."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            self.print_fn(text)
            self._printed_at = time.monotonic()

    def _state(self, logs: Mapping[str, Any]) -> dict[str, str]:
        timed = self._done > self._compiled
        return {
            "epoch": f"epoch {self._epoch + 1}/{self.plan.epochs}",
            "figures": "  ".join(f"{name} {logs[name]:.4f}" for name in self._figures if name in logs),
            "left": f"{duration(self.seconds_left())} left" if timed else "",
        }


def shows_bars() -> bool:
    """Whether the output is a terminal on which a line can be written anew."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def _rows(
    figures: Sequence[str], epoch: int, epochs: int, logs: Mapping[str, Any], speed: float, left: float | None
) -> tuple[str, str]:
    """The head of the table and the row of an epoch."""
    names = [name for name in (*figures, *(f"val_{name}" for name in figures)) if name in logs]
    name = f"epoch {epoch + 1:{len(str(epochs))}}/{epochs}"
    row = [f"{logs[name]:.4f}" for name in names] + [f"{speed:,.0f}", duration(left) if left else ""]
    widths = [max(len(name), 6) for name in (*names, "images/s", " " * len("0:00:00"))]
    head = ["".ljust(len(name)), *map(str.rjust, (*names, "images/s", "left"), widths)]
    return "  ".join(head), "  ".join([name, *map(str.rjust, row, widths)]).rstrip()


def _bar() -> Any:
    from rich import progress

    return progress.Progress(
        progress.TextColumn("{task.fields[epoch]}"),
        progress.BarColumn(bar_width=12),
        progress.TextColumn("{task.percentage:>3.0f} %"),
        progress.TextColumn("{task.fields[figures]}"),
        progress.TextColumn("{task.fields[left]}"),
        transient=True,
        refresh_per_second=4,
    )


MINUTE = 60.0  # seconds


class Heartbeat:
    """Prints lines, and one of its own from a thread after each minute without any.

    Args:
        print_fn: called with a line of text.

    Attributes:
        doing: what is going on, in a few words.
    """

    def __init__(self, print_fn: Callable[[str], Any]) -> None:
        self.doing = "preparing data and model"
        self._print_fn = print_fn
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        with self._lock:
            self._last = time.monotonic()  # first, so that an output that fails is not tried again at once
            self._print_fn(line)

    @contextlib.contextmanager
    def running(self) -> Iterator["Heartbeat"]:
        """A context in which the thread runs."""
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        began = time.monotonic()
        while not self._ended.wait(max(self._last + MINUTE - time.monotonic(), 0)):
            if time.monotonic() - self._last >= MINUTE:
                with contextlib.suppress(OSError, ValueError):  # of an output that is closed, which the run will tell
                    self(f"{self.doing}, {duration(time.monotonic() - began)} since the run began")


@contextlib.contextmanager
def heartbeat(print_fn: Callable[[str], Any]) -> Iterator[Callable[[str], Any]]:
    """Gives a `print_fn`: of `print` into a file or a pipe one that prints a line at least each minute."""
    if print_fn is not print or sys.stdout is None or shows_bars():
        yield print_fn
    else:
        with Heartbeat(print_fn).running() as lines:
            yield lines
