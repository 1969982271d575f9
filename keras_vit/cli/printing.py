"""Text for a terminal: columns, and a stranger's words made harmless; the paths that it gives us."""

import argparse
from pathlib import Path


def columns(rows):
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def printable(text):
    """Text of a stranger's file without what would steer the terminal."""
    text = str(text)
    return text if text.isprintable() else ascii(text)


def one_line(text):
    """Text in one line, with a semicolon where a line ended without a mark."""
    lines = [" ".join(line.split()) for line in str(text).splitlines() if line.strip()]
    ended = [line if line[-1] in ".:;,?" else f"{line};" for line in lines[:-1]]
    return printable(" ".join(ended + lines[-1:]))


def path(text):
    if not text:
        raise argparse.ArgumentTypeError("a path must not be empty")
    return Path(text)
