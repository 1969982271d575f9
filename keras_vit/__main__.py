"""`keras-vit` and `python -m keras_vit`: the command line, which answers signals from its first import on."""

import os
import signal
import sys


class _Terminated(BaseException):
    """SIGTERM came before the command line could take care of it."""


def main() -> int:
    """Runs the command line, and gives its exit code."""
    signal.signal(signal.SIGTERM, _stop)
    _fill_closed_descriptors()
    try:
        from keras_vit.cli import main as run  # takes most of a second, in which Ctrl-C may come

        return run()
    except KeyboardInterrupt:
        words, code = "interrupted", 130
    except _Terminated:
        words, code = "terminated", 143
    if sys.stderr is not None:  # else `print` would take the output instead
        print(f"keras-vit: error: {words}", file=sys.stderr)
    return code


def _fill_closed_descriptors():
    """Else the next file that is opened would get the number of the error stream, and what C++ prints would go there.

    `sys.stdout` stays `None`, so that a command that has something to say fails.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number


def _stop(*_):
    raise _Terminated


if __name__ == "__main__":
    sys.exit(main())
