"""A log without a terminal hears of a run at least each minute, whatever takes long."""

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from keras_vit.annotations import FilePath
from keras_vit.pages.formatting import duration
from keras_vit.runs.progress import shows_bars

MINUTE = 60.0  # seconds
_Function = TypeVar("_Function", bound=Callable)


class MinuteLines:
    """Says lines, and one of its own from a thread where a minute goes by without any.

    Args:
        say: called with a line of text.

    Attributes:
        doing: what is going on, in a few words.
    """

    def __init__(self, say: Callable[[str], Any]) -> None:
        self.doing = "preparing data and model"
        self._say = say
        self._last = time.monotonic()
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        with self._lock:
            self._last = time.monotonic()  # first, so that an output that fails is not tried again at once
            self._say(line)

    @contextlib.contextmanager
    def running(self) -> Iterator["MinuteLines"]:
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


def with_minute_lines(function: _Function) -> _Function:
    """Decorates `finetune(data, out, options, say=, **changes)`: `print` into a file or a pipe says a line a minute."""

    @functools.wraps(function)
    def run(data: Any, out: FilePath, options: Any = None, *, say: Callable[[str], Any] = print, **changes: Any) -> Any:
        if say is not print or sys.stdout is None or shows_bars():
            return function(data, out, options, say=say, **changes)
        with MinuteLines(say).running() as lines:
            return function(data, out, options, say=lines, **changes)

    return cast(_Function, run)
