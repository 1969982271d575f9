"""Weights of classes in a loss, by name: of images in classification, of pixels in segmentation."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from keras_vit.checks import ArgumentError, check_positive, did_you_mean
from keras_vit.files import expand_path, read_regular
from keras_vit.pages.formatting import printable

BALANCED = "balanced"
_MOST_BYTES = 1 << 24  # of a table


def read_class_weights(weights: Any) -> str | dict[str, float] | None:
    """`None`, `"balanced"`, or weights by name, of such a mapping or of a table.

    Raises:
        ValueError: for weights that cannot be.
    """
    if weights is None or weights == BALANCED:
        return weights
    found = weights if isinstance(weights, Mapping) else _read_table(weights)
    for name, weight in found.items():
        check_positive(f"class_weights[{name!r}]", weight)
    return {str(name): float(weight) for name, weight in found.items()}


def ordered_weights(given: Any, names: Sequence[str]) -> list[float] | None:
    """The weight of each class, of weights by name.

    Raises:
        ValueError: for a class without a weight, and a weight without a class.
    """
    if given is None:
        return None
    missing = [name for name in names if name not in given]
    unknown = [name for name in given if name not in names]
    if missing or unknown:
        wrong = f"{unknown[0]!r}, which is no class" if unknown else f"none for {missing[0]!r}"
        raise ArgumentError(
            "`class_weights` must have a weight for each class of the data, by its name.\n"
            f"Received: {wrong}.{did_you_mean(unknown[0], names) if unknown else ''}"
        )
    return [given[name] for name in names]


def weights_in_words(weights: Sequence[float] | None, names: Sequence[str]) -> str:
    """The least and the greatest weight with a class that has it; nothing without weights, or where all are 1."""
    if not weights:
        return ""
    least, most = (f"{end:.4g}" for end in (min(weights), max(weights)))
    if least == most:
        return "" if least == "1" else f"weighted by {least} in every class"
    first, last = (printable(names[list(weights).index(end)]) for end in (min(weights), max(weights)))
    return f"weighted by class, from {least} ({first}) to {most} ({last})"


def _read_table(file: Any) -> dict[str, float]:
    """The weights in a table."""
    try:
        text = read_regular(expand_path(file), _MOST_BYTES).decode("utf-8-sig")
        header, *rows = [row for row in csv.reader(text.splitlines(), skipinitialspace=True) if row] or [[]]
        if [name.strip().lower() for name in header] != ["class", "weight"]:
            raise ValueError(f"its first line is {','.join(header)!r}")
        if odd := [row for row in rows if len(row) != 2]:
            raise ValueError(f"its row {','.join(odd[0])!r} has not two columns")
        if repeated := [name for name, count in Counter(row[0] for row in rows).items() if count > 1]:
            raise ValueError(f"{repeated[0]!r} is given twice")
        return {name: float(weight) for name, weight in rows}
    except (OSError, ValueError, TypeError) as error:
        fault = getattr(error, "strerror", None) or error
        raise ArgumentError(
            "`class_weights` must be 'balanced', or the path of a .csv file with the columns class and weight.\n"
            f"Received: {file!r}: {fault}.{did_you_mean(file, [BALANCED])}"
        ) from None
