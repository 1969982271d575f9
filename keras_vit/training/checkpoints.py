"""The callback that saves a training as it goes, and resumes it where it stopped, also within an epoch.

Steps of an epoch that another process made are skipped: `fit` counts them, and nothing is computed or read. So all
other callbacks see whole epochs.
"""

import contextlib
import itertools
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn

import keras

from keras_vit.annotations import Arguments, FilePath, Logs, Variable
from keras_vit.checks import check_positive, check_positive_int
from keras_vit.keras_private import build_metrics, start_at_epoch
from keras_vit.training.resuming.async_writer import RULE, AsyncWriter, check_facts
from keras_vit.training.resuming.checkpoint_folder import Checkpoint, CheckpointFolder
from keras_vit.training.resuming.coordination import all_reduce_max, broadcast_latest, broadcast_run_id, processes
from keras_vit.training.resuming.tensor_file import Shard
from keras_vit.training.resuming.variables import (
    METRICS,
    OPTIMIZER,
    StateReader,
    TrainingState,
    check_fits,
    count_examples,
    restore,
    variable_names,
    variable_path,
)


class Checkpoints(keras.callbacks.Callback):
    """Saves the state of `model.fit`, so that the same call goes on after a kill, from the newest valid checkpoint.

    A checkpoint holds all variables of the model and its layers, seeds and counters among them, and the optimizer with
    its average and its loss scale. Optimizers and metrics in attributes are in it too. It has the running sums of
    metrics, the place in epoch and data, and what the callbacks in `also` remember. It is written whole or not at all,
    with checksums. A damaged one is named in a warning and skipped. One that is not finite is not written.

    It is written by a thread, while training goes on with what was copied. A write that fails, as on a full disk, is a
    warning, and the checkpoints before stay. SIGTERM and Ctrl-C end `fit` after the step, by `SystemExit(143)` or
    `KeyboardInterrupt`, with a checkpoint; a second one ends the process at once. Where `fit` of a model that is not
    of this package fails, call `close()`, or the next signal still waits for a step.

    List it last. The data must go on where the checkpoint is: `keras_vit.load_dataset(..., training=True,
    start_step=checkpoints.step)` with `steps_per_epoch` in `fit`. A call that reads `step` promises that its data begin
    there. From other data, such as arrays, the batches that the epoch has used are drawn again and left out. They must
    come in the same order, so pass `shuffle=False` to `fit`.

    Example:
        >>> model.compile(keras_vit.SGD(0.01), keras_vit.SigmoidCrossentropy())
        >>> saved = keras_vit.Checkpoints("checkpoints")
        >>> history = model.fit(images, np.eye(3)[[0, 2]], callbacks=[saved], verbose=0)
        >>> keras_vit.Checkpoints("checkpoints").step
        1

    Args:
        folder: of the checkpoints of one run; made where it is missing.
        every_minutes: how often within an epoch; `None` for never. The end of each epoch is saved anyway.
        every_steps: the same in steps.
        keep: how many are kept.
        fingerprint: what must be equal for a run to go on, ready for JSON, as a dict of options.
        also: callbacks whose memory is kept too. Of those with `get_state()` and `set_state(state)` it is that state;
            of Keras' own, as `EarlyStopping`, the best value and how long they have waited.

    Raises:
        ValueError: for numbers out of range, `restore_best_weights` in `also`, and on the torch backend. `fit` raises
            it for a folder that another process trains into, and a checkpoint that does not fit model or fingerprint.
            It does so for data that begin elsewhere, batches of another size within an epoch, and variables that the
            first step makes.
        TypeError: for numbers of the wrong type, a fingerprint that is no dict of what JSON can hold, and what is no
            callback in `also`.
    """

    def __init__(
        self,
        folder: FilePath,
        *,
        every_minutes: float | None = 10.0,
        every_steps: int | None = None,
        keep: int = 2,
        fingerprint: Mapping[str, Any] | None = None,
        also: Sequence[keras.callbacks.Callback] = (),
    ) -> None:
        super().__init__()
        _check_backend()
        if every_minutes is not None:
            check_positive("every_minutes", every_minutes)
        if every_steps is not None:
            check_positive_int("every_steps", every_steps)
        check_positive_int("keep", keep)
        self.every_minutes, self.every_steps = every_minutes, every_steps
        self.fingerprint = None if fingerprint is None else _as_read_back(fingerprint)
        self.also = check_callbacks(also)
        if not os.fspath(folder):
            raise ValueError("`folder` must be a path of its own.\nReceived: folder=''. Pass \".\" for this one.")
        process, count = processes()
        self._folder = CheckpointFolder(Path(folder), keep, process, count)
        self._reader, self._writer = StateReader(), AsyncWriter(self._folder)
        self._signals = StopSignals()
        self._has_searched = self._step_was_read = False
        self._found: Checkpoint | None = None
        self._epoch = self._batch = self._epoch_start = self._skipped = self._saved_step = 0
        self._is_training = self._is_complete = False
        self._skipping: SkippedSteps | None = None
        self._state: Any = None  # a `TrainingState` from `on_train_begin` on
        self._examples: int | None = None  # of the epoch, while validation counts its own
        self._logs: Logs = None  # of the last step
        self._sums: Any = None  # copies of the training metrics while validation uses them
        self._saved_at = 0.0
        self._mark = ""

    @property
    def found(self) -> Checkpoint | None:
        """The newest valid checkpoint; looked for once."""
        if not self._has_searched:
            self._found = broadcast_latest(self._folder)
            self._has_searched = True
        return self._found

    @property
    def step(self) -> int:
        """Batches that were drawn up to the newest valid checkpoint, where the data must go on; 0 if there is none."""
        self._step_was_read = True
        return self.found.facts["step"] if self.found else 0

    @property
    def path(self) -> Path | None:
        """Path of the newest checkpoint that was written or found."""
        return self._writer.path or (self.found.path if self.found else None)

    def on_train_begin(self, logs: Logs = None) -> None:
        self._folder.acquire()
        found = self.found
        self._mark = broadcast_run_id()
        self._state, self._is_complete = TrainingState(self.model), False
        self._epoch = self._batch = self._epoch_start = self._skipped = 0
        if found is not None:
            self._resume_from(found)
            self._writer.path = found.path
        self._folder.sweep()
        start_at_epoch(self.model, self._epoch)
        self._is_training = True
        self._saved_step, self._saved_at = self._made, time.monotonic()
        self._signals.listen()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        start_at_epoch(self.model, 0)  # as it was, for the next `fit`
        self._check_epoch(epoch)
        self._epoch, self._batch, self._sums = epoch, self._skipped, None
        if self._skipped and self.found is not None:
            self._skipping = SkippedSteps(self.model, self.found, draws=not self._is_placed())

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._logs = logs
        if batch < self._skipped:
            if batch + 1 == self._skipped and self.found is not None:
                self._restore_state(self.found)  # over what other callbacks did in steps that they saw twice
            return
        if not self._is_complete:
            self._check_first_step(batch)
        self._batch = batch + 1
        if request := all_reduce_max(self._signals.received or int(self._is_due())):
            self._save(request)

    def on_test_begin(self, logs: Logs = None) -> None:
        if self._is_training:
            self._sums = list(self._metrics())  # validation sets them to zero
            self._examples = count_examples(self.model)

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Saves and leaves within a validation if a signal came."""
        if self._sums is not None and (request := all_reduce_max(self._signals.received or 0)):
            for callback in self.also:
                getattr(callback, "settle", _nothing)()
            self._save(request)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._epoch_start, self._epoch = self._made, epoch + 1
        self._batch = self._skipped = 0
        self._sums = None
        self._stop_skipping()
        self._save(all_reduce_max(self._signals.received or 0), done=bool(self.model.stop_training))

    def on_train_end(self, logs: Logs = None) -> None:
        start_at_epoch(self.model, 0)
        self.close()

    def on_train_failure(self) -> None:
        """Closes after an error in `fit`; this package's models call it."""
        self.close()

    def close(self) -> None:
        """Waits for the checkpoint that is being written, and releases signals and folder.

        `fit` of this package's models does it. After an error in `fit` of another model it must be called.
        """
        self._is_training = False
        self._stop_skipping()
        self._signals.close()
        self._writer.wait()
        self._folder.release()
        self._has_searched = self._step_was_read = False

    def lock(self) -> None:
        """Takes the folder for this process, and refuses a checkpoint that was begun otherwise; `fit` does it too.

        Raises:
            ValueError: if another process trains into it, or for other facts than in `fingerprint`.
        """
        self._folder.acquire()
        check_facts(self.found, self.fingerprint)

    def begin_after(self, model: keras.Model, epoch: int, step: int, steps_per_epoch: int) -> None:
        """Saves the state of a model that was trained for so many epochs and steps, from which `fit` then goes on."""
        self.set_model(model)
        self.set_params({"steps": steps_per_epoch})
        self._folder.acquire()
        self._mark, self._state = broadcast_run_id(), TrainingState(model)
        self._epoch, self._epoch_start, self._batch = epoch, step, 0
        self._save(0)
        self._writer.wait()
        self._has_searched = False

    def discard(self) -> None:
        """Removes all checkpoints with their folder, once the run has ended; other files stay."""
        self._folder.discard()

    def _stop_skipping(self) -> None:
        if self._skipping is not None:
            self._skipping.end()
            self._skipping = None

    @property
    def _made(self) -> int:
        """Batches drawn up to now."""
        return self._epoch_start + self._batch

    def _is_due(self) -> bool:
        if self.every_steps is not None and self._made - self._saved_step >= self.every_steps:
            return True  # which waits for the one before
        if self.every_minutes is None or self._writer.is_busy:
            return False
        return time.monotonic() - self._saved_at >= 60 * self.every_minutes

    def _save(self, request: int, done: bool = False) -> None:
        """Saves, and leaves if the request is a signal's number."""
        self._writer.wait()
        named = self._state.groups()
        groups = [self._reader.shards_of(name, variables) for name, variables in named]
        groups.append(self._sums if self._sums is not None else self._metrics())
        self._writer.start(itertools.chain.from_iterable(groups), self._facts(done, named), self._mark)
        self._saved_step, self._saved_at = self._made, time.monotonic()
        if request > 1:
            self.close()
            raise_for_signal(request)

    def _metrics(self) -> Iterator[Shard]:
        return self._reader.shards_of(METRICS, self.model.metrics_variables)

    def _facts(self, done: bool, named: Sequence[tuple[str, Sequence[Variable]]]) -> dict[str, Any]:
        examples = self._examples if self._sums is not None else count_examples(self.model)
        return {
            "step": self._made,
            "epoch": self._epoch,
            "batch": self._batch,
            "steps_per_epoch": self.params.get("steps"),
            "examples": examples if self._batch else None,
            "logs": _numbers(self._logs) if self._batch else None,
            "done": done,
            "fingerprint": self.fingerprint,
            "also": [callback_state(callback) for callback in self.also],
            "paths": {name: list(map(variable_path, variables)) for name, variables in named},
        }

    def _resume_from(self, found: Checkpoint) -> None:
        facts = found.facts
        self._check(found)
        self._restore_state(found)
        self._epoch, self._batch, self._skipped = facts["epoch"], facts["batch"], facts["batch"]
        self._epoch_start = facts["step"] - facts["batch"]
        if facts["done"]:
            self._epoch = self.params["epochs"]

    def _restore_state(self, found: Checkpoint) -> None:
        """Gives variables and callbacks what they had as the checkpoint was written."""
        groups = self._state.groups(has_optimizer=bool(variable_names(found, OPTIMIZER)))
        for name, variables in groups:
            check_fits(found, name, variables)
        for name, variables in groups:
            restore(found, name, variables)
        for callback, state in zip(self.also, found.facts["also"], strict=False):
            restore_callback(callback, state)

    def _check_first_step(self, batch: int) -> None:
        """Refuses, before anything is written, what goes on otherwise, or could not go on."""
        self._is_complete = True
        try:
            self._state.check_complete()
            if self._skipped and self.found is not None and self._is_placed():
                self._check_size(self.found, batch + 1 - self._skipped)
        except ValueError:
            self.close()
            raise

    def _check_epoch(self, epoch: int) -> None:
        """Refuses an epoch that was trained before, where this Keras begins at the one that its caller says."""
        if epoch < self._epoch:
            raise ValueError(
                "a run goes on with the epoch of its checkpoint.\n"
                f"Received: `fit` from epoch {epoch}, a checkpoint in epoch {self._epoch}, and Keras "
                f"{keras.__version__}, which takes this from `fit` alone. Pass initial_epoch={self._epoch}."
            )

    def _is_placed(self) -> bool:
        """Whether the data begin where the checkpoint is."""
        return self._step_was_read or getattr(self.model, "data_start_step", None) is not None

    def _check_size(self, checkpoint: Checkpoint, steps: int) -> None:
        """Refuses batches of another size than that of the epoch up to now; its last one may be smaller."""
        used, passed, in_all = checkpoint.facts.get("examples"), self._skipped, self.params.get("steps")
        if used is None or used % passed:
            return  # not counted, or of several sizes
        self._state.groups()  # which brings what JAX holds
        size, made = used // passed, (count_examples(self.model) or 0) - used
        is_last = in_all is None or passed + steps >= in_all
        if made > size * steps or (made < size * steps and not is_last):
            raise ValueError(
                f"{OTHER_BATCHES}.\nReceived: {made / steps:g} examples in a step, where {checkpoint.path} was written "
                f"after steps of {size}. Pass batch_size={size} until the epoch ends."
            )

    def _check(self, checkpoint: Checkpoint) -> None:
        """Refuses what would go on otherwise than it began."""
        facts = checkpoint.facts
        check_facts(checkpoint, self.fingerprint)
        steps, passed, together = self.params.get("steps"), facts["batch"], steps_per_call(self.model)
        if passed and facts["steps_per_epoch"] != steps:
            numbers = (steps, facts["steps_per_epoch"])
            now, before = ("an unknown number of" if number is None else number for number in numbers)
            raise ValueError(
                f"{RULE}: an epoch that was begun goes on with as many steps.\n"
                f"Received: {now} steps in an epoch, where step {passed} of {before} steps is next. Pass the data, "
                "batch_size and steps_per_epoch that it began with."
            )
        if passed % together:
            raise ValueError(
                f"{RULE}: an epoch that was begun goes on only between two groups of `steps_per_execution` steps.\n"
                f"Received: steps_per_execution={together}, where step {passed} is next. Compile with "
                f"steps_per_execution={math.gcd(passed, together)}, or a divisor of {passed}."
            )
        start = getattr(self.model, "data_start_step", None)
        if start is not None and start != facts["step"]:
            raise ValueError(
                "data must go on where the run stopped, or images are seen twice.\n"
                f"Received: data from step {start}, a checkpoint of step {facts['step']}. "
                "Pass start_step=checkpoints.step to load_dataset."
            )


def _as_read_back(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint will give back of it, so that a run goes on which was begun with it."""
    try:
        if not isinstance(fingerprint, Mapping):
            raise TypeError("no dict")
        return json.loads(json.dumps(fingerprint, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise TypeError(
            "`fingerprint` must be a dict of what JSON can hold: text, bools, finite Python numbers, lists and dicts.\n"
            f"Received: {error}: fingerprint={fingerprint!r:.200}."
        ) from None


def _numbers(logs: Logs) -> dict[str, float]:
    """The logs of a step that JSON can hold; Keras has made numbers of its scalars."""
    return {name: value for name, value in (logs or {}).items() if isinstance(value, float)}


def _nothing() -> None:
    """Does nothing, for a callback that has nothing to settle."""


def _check_backend() -> None:
    if keras.backend.backend() == "torch":
        raise ValueError(
            "`Checkpoints` works on TensorFlow and JAX.\n"
            "Received: the torch backend. Save and load the model at the ends of epochs."
        )


OTHER_BATCHES = "an epoch that was begun goes on with batches of the same size, or images are seen twice or never"


def steps_per_call(model: keras.Model) -> int:
    """Steps that one call of `model.train_function` makes."""
    return model.steps_per_execution


class SkippedSteps:
    """Stands in for `model.train_function` until the steps that were made before are passed.

    It computes nothing and repeats the last logs, as a GAN's losses, which are no metrics. Data that do not begin
    where the checkpoint is are drawn, and must have as many examples as were used.
    """

    def __init__(self, model: keras.Model, checkpoint: Checkpoint, draws: bool) -> None:
        self._model, self._checkpoint, self._draws = model, checkpoint, draws
        self._function = model.train_function
        self._left = -(-checkpoint.facts["batch"] // steps_per_call(model))
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
            if len(variable_names(self._checkpoint, METRICS)) > len(self._model.metrics_variables):
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
        for _ in range(steps_per_call(self._model)):
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


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Notes the first of these signals instead of ending the process.

    A step computes outside of Python, where no handler runs. So a thread reads the signals as they come, and ends the
    process at the second. `fit` of a model that is not this package's calls nothing when it fails: a signal after that
    goes to the earlier handlers.

    Attributes:
        received: the first signal; `None` before.
        current: the one that listens in this process. A run that failed may have left it, with a signal counted.
    """

    current: "StopSignals | None" = None

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}
        self._read = self._write = self._fd_before = -1
        self._loop: tuple[int, CodeType] | None = None

    def listen(self) -> None:
        """Begins; does nothing outside of the main thread, which alone hears signals."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        if StopSignals.current is not None:
            StopSignals.current.close()
        StopSignals.current, self.received = self, None
        loop = sys._getframe(1)
        while loop.f_back and loop.f_code.co_name == "on_train_begin":  # of the callback, and of the list of them
            loop = loop.f_back
        self._loop = id(loop), loop.f_code
        for number in _STOP_SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        if self._fd_before != -1:  # of an event loop, which keeps it
            signal.set_wakeup_fd(self._fd_before)
        threading.Thread(target=self._leave_at_second, args=(self._read,), daemon=True).start()

    def close(self) -> None:
        """Restores the earlier handlers of the signals."""
        if not self._before or threading.current_thread() is not threading.main_thread():
            return
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before, StopSignals.current = {}, None
        if self._fd_before == -1:
            signal.set_wakeup_fd(-1)
        with contextlib.suppress(OSError):
            os.close(self._write)  # which ends the thread

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self._is_in_loop():
            self.close()
            signal.raise_signal(number)
        elif self.received is not None:
            os._exit(128 + number)
        else:
            self.received = number

    def _is_in_loop(self) -> bool:
        """Whether the training that began to listen still runs in the main thread."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        while frame is not None:
            if (id(frame), frame.f_code) == self._loop:
                return True
            frame = frame.f_back
        return False

    def _leave_at_second(self, pipe: int) -> None:
        """Waits for two signals, or until the other end of the pipe is closed."""
        count = 0
        with contextlib.suppress(OSError):
            while content := os.read(pipe, 1):
                count += content[0] in _STOP_SIGNALS
                if count >= 2 and signal.getsignal(content[0]) == self._handle and self._is_in_loop():
                    os._exit(128 + content[0])
        with contextlib.suppress(OSError):
            os.close(pipe)


def raise_for_signal(number: int) -> NoReturn:
    """Raises what a signal stands for: `KeyboardInterrupt`, or `SystemExit` with 143, as shells count SIGTERM."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


# What Keras' own callbacks know of earlier epochs, as `ModelCheckpoint` and `EarlyStopping`.
_STATE_ATTRIBUTES = ("best", "best_epoch", "wait", "cooldown_counter", "epochs_since_last_save")


def check_callbacks(also: Any) -> tuple[keras.callbacks.Callback, ...]:
    """`also` of `Checkpoints` as a tuple; raises for what is no callback, or remembers weights."""
    also = tuple(also) if isinstance(also, Iterable) else (also,)
    for callback in also:
        if not isinstance(callback, keras.callbacks.Callback):
            raise TypeError(f"`also` must be a list of Keras callbacks.\nReceived: {callback!r} among them.")
        if getattr(callback, "restore_best_weights", False):
            raise ValueError(
                "a checkpoint does not hold the weights that a callback remembers, so it would restore others.\n"
                f"Received: {type(callback).__name__}(restore_best_weights=True) in `also`. Leave that out, and "
                "take the best weights from a `ModelCheckpoint(save_best_only=True)`."
            )
    return also


def callback_state(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """What a callback remembers, ready for JSON."""
    if hasattr(callback, "get_state"):
        return callback.get_state()
    values = {name: getattr(callback, name) for name in _STATE_ATTRIBUTES if hasattr(callback, name)}
    return {name: value if value is None else float(value) for name, value in values.items()}


def restore_callback(callback: keras.callbacks.Callback, state: dict[str, Any]) -> None:
    """Gives a callback back what `callback_state` gave."""
    if hasattr(callback, "set_state"):
        callback.set_state(state)
        return
    for name, value in state.items():
        whole = isinstance(value, float) and value.is_integer() and name != "best"
        setattr(callback, name, int(value) if whole else value)
