"""Silences converters, which print, log and warn about their own work, also from C++.

Some also change levels, handlers and filters of the root logger, or the stack of signals. That is undone.
"""

import contextlib
import ctypes
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

_ONE_AT_A_TIME = threading.RLock()  # two at once would restore each other's diverted streams


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Lets nothing inside print, log, warn or change the root logger. Exceptions come through.

    Descriptors belong to the process, so other threads are silent too. One thread at a time can be inside.
    """
    with _ONE_AT_A_TIME, contextlib.ExitStack() as stack:
        for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
            stack.enter_context(silent_descriptor(descriptor, stream))
        stack.enter_context(contextlib.redirect_stdout(_muted(stack, sys.stdout)))
        stack.enter_context(contextlib.redirect_stderr(_muted(stack, sys.stderr)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(_without_logging())
        stack.enter_context(keep_signal_stack())
        yield


class _Stack(ctypes.Structure):
    """`stack_t` of Linux."""

    _fields_ = (("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def signal_stack(new: _Stack | None = None) -> _Stack:
    """The stack on which this thread handles signals; sets another one if `new` is given. Linux only."""
    before = _Stack()
    ctypes.CDLL(None).sigaltstack(new and ctypes.byref(new), ctypes.byref(before))
    return before


@contextlib.contextmanager
def keep_signal_stack() -> Iterator[None]:
    """Handles later signals of this thread on the same stack as before.

    OpenVINO's plugin for processors sets a stack, and each plugin restores what it found. Of two that are freed in the
    order of creation (2026.4), the second restores freed memory: the next signal, as Ctrl-C, would end the process.
    """
    if sys.platform != "linux":
        yield
        return
    before = signal_stack()
    try:
        yield
    finally:
        signal_stack(before)


def discard_output(stream: TextIO) -> None:
    """Discards what a stream still holds and all that is written to it from now on."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def _without_logging() -> Iterator[None]:
    """Disables all loggers, and restores the root logger afterwards."""
    root = logging.getLogger()
    disabled, level, handlers, filters = root.manager.disable, root.level, root.handlers[:], root.filters[:]
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.setLevel(level)
        root.handlers[:], root.filters[:] = handlers, filters


@contextlib.contextmanager
def silent_descriptor(descriptor: int, stream: TextIO | None) -> Iterator[int | None]:
    """Discards what is written to a descriptor inside, in any language, also if the descriptor was closed.

    Gives a second descriptor of the same file, which still writes to it, or `None` if it was closed. One thread
    at a time can be inside.

    Args:
        descriptor: its number, as 2.
        stream: Python's own stream on it, which is flushed first; or `None`.
    """
    with _ONE_AT_A_TIME:
        _flush(stream)
        kept = _copy(descriptor)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != descriptor:  # else it took the place of a closed one
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
        try:
            yield kept
        finally:
            _flush(stream)
            if kept is None:
                os.close(descriptor)
            else:
                os.dup2(kept, descriptor)
                os.close(kept)


@contextlib.contextmanager
def visible_stderr(descriptor: int | None) -> Iterator[TextIO]:
    """The standard error as a stream, by `descriptor`, a copy that still writes while the original is silent."""
    if descriptor is None or sys.stderr is not sys.__stderr__:
        yield sys.stderr
        return
    with open(descriptor, "w", encoding="utf-8", errors="replace", closefd=False) as stream:
        yield stream


def _copy(descriptor: int) -> int | None:
    """A second descriptor of the same file; `None` of a closed one, as in a service without a terminal."""
    try:
        return os.dup(descriptor)
    except OSError:
        return None


def _flush(stream: Any) -> None:
    with contextlib.suppress(AttributeError, OSError, ValueError):  # none, one whose file is gone, or a closed one
        stream.flush()


def _muted(stack: contextlib.ExitStack, stream: TextIO | None) -> Any:
    """A stream in place of `stream` until `stack` is left."""
    if stream is None:
        return None
    muted = _Muted(stream)
    stack.callback(muted.unmute)
    return muted


class _Muted:
    """A stream that discards what is written. After `unmute` it passes it on, for loggers that were made inside."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_muted = True

    def unmute(self) -> None:
        self._is_muted = False

    def write(self, text: str) -> int:
        return len(text) if self._is_muted else self._stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
