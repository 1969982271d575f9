"""Whether the disk has room for the files of a run, so that it does not fill up after hours."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import keras

from keras_vit.checks import ArgumentError
from keras_vit.config.recipes import Recipe
from keras_vit.files import disk_size
from keras_vit.pages.formatting import format_facts, printable
from keras_vit.runs.own_files import BEST, CHECKPOINTS, LAST
from keras_vit.runs.preparation import num_parameters
from keras_vit.training.memory import SLOTS

_MODELS = 3  # with weights and optimizer: the best, the last, and one that is being written in place of either
_CHECKPOINTS = 3  # two that are kept, and one that is being written
_BYTES = 4  # of a number; weights in training are float32
_OTHERS = 20_000_000  # bytes of figures, pages and pictures


def check_disk(folder: Path, model: keras.Model, recipe: Recipe) -> None:
    """Raises a `ValueError` if a run needs more than is free where its folder is, or where the checkpoints are.

    What an unfinished run has there is written over, so it counts as free.

    Args:
        folder: of the run, which may be new.
        model: what learns is as in the training.
        recipe: tells the optimizer, and whether it keeps an average.
    """
    for place, size in _needed(folder, model, recipe).items():
        usage = shutil.disk_usage(place)
        if usage.total and usage.free < size:
            raise ArgumentError(
                "the disk must have room for the models and checkpoints of a run.\n"
                f"Received: {str(place)!r}, where {usage.free / 1e9:.2f} GB are free and {size / 1e9:.2f} GB are "
                "needed. Make room, or choose a folder on another disk.",
                parameters=("out",),
            )


def disk_lines(folder: Path, model: keras.Model, recipe: Recipe) -> Iterator[str]:
    """Lines on each disk that a run writes to; arguments are those of `check_disk`."""
    needed = _needed(folder, model, recipe)
    for place, size in needed.items():
        where = f"{printable(place)}: " if len(needed) > 1 else ""
        free = shutil.disk_usage(place).free
        yield from format_facts("disk", f"{where}at most {size / 1e9:.2f} GB; {free / 1e9:.2f} GB are free")


def _needed(folder: Path, model: keras.Model, recipe: Recipe) -> dict[Path, int]:
    """Bytes that a run takes at its peak, by a folder on each disk; checkpoints may be a link to one of their own."""
    kept = SLOTS[recipe.optimizer] + (recipe.ema_momentum is not None)
    one = _BYTES * (num_parameters(model.weights) + kept * num_parameters(model.trainable_weights))
    parts = (
        (folder, _MODELS * one + _OTHERS, (folder / BEST, folder / LAST)),
        (folder / CHECKPOINTS, _CHECKPOINTS * one, (folder / CHECKPOINTS,)),
    )
    needed: Counter[int] = Counter()
    places: dict[int, Path] = {}
    for place, size, there in parts:
        place = next(each for each in (place, *place.absolute().parents) if each.exists())
        disk = os.stat(place).st_dev
        places.setdefault(disk, place)
        needed[disk] += size - sum(map(disk_size, there))
    return {place: max(needed[disk], 0) for disk, place in places.items()}
