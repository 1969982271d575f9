"""Text for a terminal: columns, errors in one line; the paths that it gives us."""

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_vit.files import user_path
from keras_vit.pages.escaping import printable


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def one_line(text: Any) -> str:
    """Text in one line, with a semicolon where a line ended without a mark."""
    lines = [" ".join(line.split()) for line in str(text).splitlines() if line.strip()]
    ended = [line if line[-1] in ".:;,?" else f"{line};" for line in lines[:-1]]
    return printable(" ".join(ended + lines[-1:]))


def say_error(text: str) -> None:
    """Writes to the error stream, and nowhere where that is closed; `print` would take the output instead."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(text, file=sys.stderr)


def path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("a path must not be empty")
    return user_path(text)
