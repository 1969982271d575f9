"""Text for a terminal: errors in one line; the paths that it gives us."""

import argparse
import contextlib
import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

from keras_vit.files import expand_path
from keras_vit.pages.formatting import printable


def one_line(text: Any) -> str:
    """Text in one line, with a semicolon where a line ended without a mark, or a full stop before a new sentence."""
    lines = [" ".join(line.split()) for line in str(text).splitlines() if line.strip()]
    marks = [
        "" if line[-1] in ".:;,?" else "." if then[0].isupper() else ";" for line, then in itertools.pairwise(lines)
    ]
    return printable(" ".join(line + mark for line, mark in itertools.zip_longest(lines, marks, fillvalue="")))


def terminal_width() -> int | None:
    """Letters of a line where a person reads the output; `None` where it goes into a file or a pipe."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if is_terminal else None


def say_error(text: str) -> None:
    """Writes to the error stream, and nowhere where that is closed; `print` would take the output instead."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(text, file=sys.stderr)


def path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("a path must not be empty")
    return expand_path(text)
