"""By what a file of an export is known again: only such a file is ever replaced.

Graphs have fields for it. Files of weights have none, and get a line behind the weights, which readers pass over: they
look at places that the graph names.
"""

import os
from pathlib import Path

from keras_vit.files import FileKindError, open_regular

_MARK = b"\nweights written by keras_vit\n"


def sign(file: Path) -> None:
    """Puts the mark behind the weights in a file."""
    with open(file, "ab") as opened:
        opened.write(_MARK)


def is_signed(file: Path) -> bool:
    """Whether a file ends in the mark."""
    return tail_of(file, len(_MARK)) == _MARK


def tail_of(file: Path, size: int) -> bytes:
    """The last bytes of a regular file; none of anything else, and of what cannot be read."""
    try:
        with open_regular(file) as opened:
            opened.seek(max(opened.seek(0, os.SEEK_END) - size, 0))
            return opened.read(size)
    except (OSError, FileKindError):
        return b""
