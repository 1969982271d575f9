"""Facts that are rows: the CSV files of the package, and how a cell says a value of Python."""

import csv
from pathlib import Path
from typing import Any

_WORDS = {"True": True, "False": False, "None": None, "()": ()}


def read_rows(module: str, name: str) -> list[dict[str, str]]:
    """The rows of a CSV file in a module's folder, each by the names of its columns.

    Args:
        module: `__file__` of the module.
        name: of the file.
    """
    with open(Path(module).with_name(name), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def value_of(word: str) -> Any:
    """A bool, `None`, number, tuple (with commas), or else the text itself."""
    if word in _WORDS:
        return _WORDS[word]
    if "," in word:
        return tuple(value_of(part) for part in word.split(",") if part)
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def values_of(text: str) -> dict[str, Any]:
    """Values by their names, of `"pooling=gap registers=4"`."""
    return {name: value_of(word) for name, _, word in (pair.partition("=") for pair in text.split())}
