"""Writing a checkpoint while training goes on, and what two runs differ in."""

import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_vit.renamed import current_arguments
from keras_vit.training.resuming.checkpoint_folder import Checkpoint, CheckpointFolder
from keras_vit.training.resuming.tensor_file import Shard
from keras_vit.training.resuming.variables import METRICS, not_finite

RULE = "a run goes on only as it began, or its numbers mean nothing"
_ABSENT = "nothing"
_HANDED_BACK = (
    0.001  # s, in which the thread that trains goes on: one that computes in Python keeps it waiting for 5 ms
)


class AsyncWriter:
    """Writes one checkpoint at a time, in a thread; a fault is a warning, as training goes on without it.

    Args:
        folder: of the checkpoints.

    Attributes:
        path: of the last checkpoint that was written.
    """

    def __init__(self, folder: CheckpointFolder) -> None:
        self.path: Path | None = None
        self._folder = folder
        self._thread: threading.Thread | None = None
        self._fault: str | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the last one is still being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, shards: Iterable[Shard], facts: dict[str, Any], mark: str) -> None:
        """Begins to write `shards`, of values that nobody changes; they are made in the thread."""
        self.wait()
        self._thread = threading.Thread(target=self._write, args=(shards, facts, mark))
        self._thread.start()

    def wait(self) -> None:
        """Until the last one is written.

        Warns:
            UserWarning: if it could not be.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        fault, self._fault = self._fault, None
        if fault is not None:
            warnings.warn(fault, UserWarning, stacklevel=3)

    def _write(self, shards: Iterable[Shard], facts: dict[str, Any], mark: str) -> None:
        where = f"step {facts['step']} in {self._folder.path}"
        last = f"the last good one is {self.path}" if self.path else "there is none of this run before it"
        time.sleep(_HANDED_BACK)
        try:
            shards = list(shards)
            name = not_finite(shard for shard in shards if not shard.name.startswith(f"{METRICS}/"))
            if name is None:
                self.path = self._folder.save(shards, facts, mark)
            else:
                self._fault = f"no checkpoint of {where}: {name} is not finite; {last}."
        except Exception as error:
            words = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            self._fault = f"no checkpoint of {where}: {words}; {last}."


def check_facts(checkpoint: Checkpoint | None, fingerprint: Mapping[str, Any] | None) -> None:
    """Raises a `ValueError` with the differences for a checkpoint that was begun with another fingerprint."""
    if checkpoint is None or fingerprint is None:
        return
    if found := differences(checkpoint.facts["fingerprint"] or {}, fingerprint):
        raise ValueError(
            f"{RULE}.\nReceived: other facts than in {checkpoint.path}:\n  "
            + "\n  ".join(found)
            + "\nPass what it began with, or another folder."
        )


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], words: tuple[str, str] = ("before", "now")
) -> list[str]:
    """One line for each fact that is not equal, by the path of its names; `words` say whose the values are.

    Names of an earlier version count as the current ones.
    """
    old, new = dict(_flat(before)), dict(_flat(now))
    names = sorted(old.keys() | new.keys())
    shown = [(name, old.get(name, _ABSENT), new.get(name, _ABSENT)) for name in names]
    first, second = words
    return [f"{name}: {was!s:.80} {first}, {is_now!s:.80} {second}" for name, was, is_now in shown if was != is_now]


def _flat(facts: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of path and value; lists are values."""
    for name, value in current_arguments(facts).items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", list(value) if isinstance(value, tuple) else value
