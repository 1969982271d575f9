"""The callback that saves a training as it goes, and takes it up again where it stopped, in the midst of an epoch.

What another process had of an epoch is passed over: `fit` counts these steps, and nothing is computed or read. So all
other callbacks see whole epochs.
"""

import itertools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit.annotations import FilePath, Logs, Variable
from keras_vit.checks import check_positive, check_positive_int
from keras_vit.keras_private import start_at_epoch
from keras_vit.training.resuming.agreement import agreed, agreed_mark, agreed_newest, processes
from keras_vit.training.resuming.callback_states import check_callbacks, set_state, state_of
from keras_vit.training.resuming.checkpoint_folder import Checkpoint, CheckpointFolder
from keras_vit.training.resuming.passing import OTHER_BATCHES, Passing, at_once
from keras_vit.training.resuming.pieces import Piece
from keras_vit.training.resuming.signals import StopSignals, leave
from keras_vit.training.resuming.training_state import OPTIMIZER, TrainingState, examples_of
from keras_vit.training.resuming.variables import METRICS, Reader, check_fits, names_of, path_of, restore
from keras_vit.training.resuming.writing import RULE, Writer, check_facts


class Checkpoints(keras.callbacks.Callback):
    """Saves the state of `model.fit`, so that the same call goes on after a kill, from the newest valid checkpoint.

    A checkpoint holds all variables of the model and its layers, seeds and counters among them, and the optimizer with
    its average and its loss scale. Optimizers and metrics in attributes are in it too. It has the running sums of
    metrics, the place in epoch and data, and what the callbacks in `also` remember. It is written whole or not at all,
    with checksums. A damaged one is named in a warning and passed over. One that is not finite is not written.

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
        self._reader, self._writer = Reader(), Writer(self._folder)
        self._signals = StopSignals()
        self._looked = self._is_asked = False
        self._found: Checkpoint | None = None
        self._epoch = self._batch = self._epoch_start = self._passed = self._saved_step = 0
        self._is_training = self._is_complete = False
        self._passing: Passing | None = None
        self._state: Any = None  # a `TrainingState` from `on_train_begin` on
        self._examples: int | None = None  # of the epoch, while validation counts its own
        self._logs: Logs = None  # of the last step
        self._sums: Any = None  # copies of the training metrics while validation uses them
        self._saved_at = 0.0
        self._mark = ""

    @property
    def found(self) -> Checkpoint | None:
        """The newest valid checkpoint; looked for once."""
        if not self._looked:
            self._found = agreed_newest(self._folder)
            self._looked = True
        return self._found

    @property
    def step(self) -> int:
        """Batches that were drawn up to the newest valid checkpoint, where the data must go on; 0 if there is none."""
        self._is_asked = True
        return self.found.facts["step"] if self.found else 0

    @property
    def path(self) -> Path | None:
        """Path of the newest checkpoint that was written or found."""
        return self._writer.path or (self.found.path if self.found else None)

    def on_train_begin(self, logs: Logs = None) -> None:
        self._folder.acquire()
        found = self.found
        self._mark = agreed_mark()
        self._state, self._is_complete = TrainingState(self.model), False
        self._epoch = self._batch = self._epoch_start = self._passed = 0
        if found is not None:
            self._take_up(found)
            self._writer.path = found.path
        self._folder.sweep()
        start_at_epoch(self.model, self._epoch)
        self._is_training = True
        self._saved_step, self._saved_at = self._made, time.monotonic()
        self._signals.listen()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        start_at_epoch(self.model, 0)  # as it was, for the next `fit`
        self._check_epoch(epoch)
        self._epoch, self._batch, self._sums = epoch, self._passed, None
        if self._passed and self.found is not None:
            self._passing = Passing(self.model, self.found, draws=not self._is_placed())

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._logs = logs
        if batch < self._passed:
            if batch + 1 == self._passed and self.found is not None:
                self._put_back(self.found)  # over what other callbacks did in an epoch and steps that they saw twice
            return
        if not self._is_complete:
            self._check_first_step(batch)
        self._batch = batch + 1
        if asked := agreed(self._signals.received or int(self._is_due())):
            self._save(asked)

    def on_test_begin(self, logs: Logs = None) -> None:
        if self._is_training:
            self._sums, self._examples = list(self._metrics()), examples_of(self.model)  # validation sets them to zero

    def on_test_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Leaves in the midst of a validation, with what training came to."""
        if self._sums is not None and (asked := agreed(self._signals.received or 0)):
            for callback in self.also:
                getattr(callback, "settle", _nothing)()
            self._save(asked)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._epoch_start, self._epoch = self._made, epoch + 1
        self._batch = self._passed = 0
        self._sums = None
        self._end_passing()
        self._save(agreed(self._signals.received or 0), done=bool(self.model.stop_training))

    def on_train_end(self, logs: Logs = None) -> None:
        start_at_epoch(self.model, 0)
        self.close()

    def on_train_failure(self) -> None:
        """Closes after an error in `fit`; this package's models call it."""
        self.close()

    def close(self) -> None:
        """Waits for what is being written, and lets signals and folder go.

        `fit` of this package's models does it. After an error in `fit` of another model it must be called.
        """
        self._is_training = False
        self._end_passing()
        self._signals.close()
        self._writer.wait()
        self._folder.release()
        self._looked = self._is_asked = False

    def lock(self) -> None:
        """Takes the folder for this process, and refuses a checkpoint that was begun otherwise; `fit` does it too.

        Raises:
            ValueError: if another process trains into it, or for other facts than in `fingerprint`.
        """
        self._folder.acquire()
        check_facts(self.found, self.fingerprint)

    def discard(self) -> None:
        """Removes all checkpoints with their folder, once the run has come to its end; files of others stay."""
        self._folder.discard()

    def _end_passing(self) -> None:
        if self._passing is not None:
            self._passing.end()
            self._passing = None

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

    def _save(self, asked: int, done: bool = False) -> None:
        """Saves, and leaves if a signal has asked for it."""
        self._writer.wait()
        named = self._state.groups()
        groups = [self._reader.pieces_of(name, variables) for name, variables in named]
        groups.append(self._sums if self._sums is not None else self._metrics())
        self._writer.start(itertools.chain.from_iterable(groups), self._facts(done, named), self._mark)
        self._saved_step, self._saved_at = self._made, time.monotonic()
        if asked > 1:
            self.close()
            leave(asked)

    def _metrics(self) -> Iterator[Piece]:
        return self._reader.pieces_of(METRICS, self.model.metrics_variables)

    def _facts(self, done: bool, named: Sequence[tuple[str, Sequence[Variable]]]) -> dict[str, Any]:
        examples = self._examples if self._sums is not None else examples_of(self.model)
        return {
            "step": self._made,
            "epoch": self._epoch,
            "batch": self._batch,
            "steps_per_epoch": self.params.get("steps"),
            "examples": examples if self._batch else None,
            "logs": _numbers(self._logs) if self._batch else None,
            "done": done,
            "fingerprint": self.fingerprint,
            "also": [state_of(callback) for callback in self.also],
            "paths": {name: list(map(path_of, variables)) for name, variables in named},
        }

    def _take_up(self, found: Checkpoint) -> None:
        facts = found.facts
        self._check(found)
        self._put_back(found)
        self._epoch, self._batch, self._passed = facts["epoch"], facts["batch"], facts["batch"]
        self._epoch_start = facts["step"] - facts["batch"]
        if facts["done"]:
            self._epoch = self.params["epochs"]

    def _put_back(self, found: Checkpoint) -> None:
        """Gives variables and callbacks what they had as the checkpoint was written."""
        groups = self._state.groups(has_optimizer=bool(names_of(found, OPTIMIZER)))
        for name, variables in groups:
            check_fits(found, name, variables)
        for name, variables in groups:
            restore(found, name, variables)
        for callback, state in zip(self.also, found.facts["also"], strict=False):
            set_state(callback, state)

    def _check_first_step(self, batch: int) -> None:
        """Refuses, before anything is written, what goes on otherwise, or could not go on."""
        self._is_complete = True
        try:
            self._state.check_complete()
            if self._passed and self.found is not None and self._is_placed():
                self._check_size(self.found, batch + 1 - self._passed)
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
        return self._is_asked or getattr(self.model, "data_start_step", None) is not None

    def _check_size(self, checkpoint: Checkpoint, steps: int) -> None:
        """Refuses batches of another size than that of the epoch up to now; its last one may be smaller."""
        used, passed, in_all = checkpoint.facts.get("examples"), self._passed, self.params.get("steps")
        if used is None or used % passed:
            return  # not counted, or of several sizes
        self._state.groups()  # which brings what JAX holds
        size, made = used // passed, (examples_of(self.model) or 0) - used
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
        steps, passed, together = self.params.get("steps"), facts["batch"], at_once(self.model)
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
                f"{RULE}: an epoch that was begun goes on where steps that are made at once begin.\n"
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
    """What a step has told that JSON can hold; Keras has made numbers of its scalars."""
    return {name: value for name, value in (logs or {}).items() if isinstance(value, float)}


def _nothing() -> None:
    """Does nothing, for a callback that has nothing to settle."""


def _check_backend() -> None:
    if keras.backend.backend() == "torch":
        raise ValueError(
            "a training that stopped within an epoch goes on by steps that compute nothing, on TensorFlow and JAX.\n"
            "Received: the torch backend. Save and load the model at the ends of epochs."
        )
