"""`keras-vit` and `python -m keras_vit`: the command line, which answers signals from its first import on."""

import signal
import sys


class _Terminated(BaseException):
    """SIGTERM came before the command line could take care of it."""


def main() -> int:
    """Runs the command line, and gives its exit code."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        from keras_vit.cli import main as run  # takes most of a second, in which Ctrl-C may come

        return run()
    except KeyboardInterrupt:
        words, code = "interrupted", 130
    except _Terminated:
        words, code = "terminated", 143
    print(f"keras-vit: error: {words}", file=sys.stderr)
    return code


def _stop(*_):
    raise _Terminated


if __name__ == "__main__":
    sys.exit(main())
