"""Converters print, log and warn about their own insides, from C++ too; none of it is for who exports a model.

Nor is what they do to the root logger, as programs do that own the process: levels, handlers and filters of it.
"""

import contextlib
import logging
import os
import sys
import threading
import warnings

_ONE_AT_A_TIME = threading.RLock()  # who leaves last would otherwise restore what another's silence had diverted


@contextlib.contextmanager
def silence():
    """Nothing that is done inside prints, logs or warns, or changes the root logger. What it raises comes through.

    Descriptors belong to the process, so other threads are not heard meanwhile either; one that asks for silence
    too waits for its turn.
    """
    with _ONE_AT_A_TIME, contextlib.ExitStack() as stack:
        for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
            stack.enter_context(silent_descriptor(descriptor, stream))
        stack.enter_context(contextlib.redirect_stdout(_muted(stack, sys.stdout)))
        stack.enter_context(contextlib.redirect_stderr(_muted(stack, sys.stderr)))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(_without_logging())
        yield


def lose(stream):
    """Whatever is written to a stream from now on is lost, what it still holds too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextlib.contextmanager
def _without_logging():
    """No logger speaks, and the root logger is left as it was found."""
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
def silent_descriptor(descriptor, stream):
    """What is written to a descriptor inside, by whatever language, is lost, and so if the descriptor is closed.

    Gives a descriptor of the same file that is heard inside, `None` if it was closed. Another thread that asks for
    the same waits for its turn.

    Args:
        descriptor: its number, as 2.
        stream: Python's own stream on it, whose words of before are written first; or `None`.
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


def _copy(descriptor):
    """A second descriptor of the same file; `None` of a closed one, as in a service without a terminal."""
    try:
        return os.dup(descriptor)
    except OSError:
        return None


def _flush(stream):
    with contextlib.suppress(AttributeError, OSError, ValueError):  # none, one whose file is gone, or a closed one
        stream.flush()


def _muted(stack, stream):
    """A stream in place of `stream` until `stack` is left."""
    if stream is None:
        return None
    muted = _Muted(stream)
    stack.callback(muted.unmute)
    return muted


class _Muted:
    """A stream that loses what is written; later it passes it on, for loggers that were made inside and keep it."""

    def __init__(self, stream):
        self._stream = stream
        self._is_muted = True

    def unmute(self):
        self._is_muted = False

    def write(self, text):
        return len(text) if self._is_muted else self._stream.write(text)

    def writelines(self, lines):
        for line in lines:
            self.write(line)

    def __getattr__(self, name):
        return getattr(self._stream, name)
