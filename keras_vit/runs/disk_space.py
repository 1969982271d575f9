"""Whether the disk has room for the files of a run, so that it does not fill up after hours."""

import os
import shutil
from collections import Counter
from pathlib import Path

import keras

from keras_vit.checks import error_about
from keras_vit.config.recipes import Recipe
from keras_vit.exporting.report import size_of
from keras_vit.runs.own_files import BEST, CHECKPOINTS, LAST
from keras_vit.runs.preparation import num_parameters
from keras_vit.training.memory import SLOTS

_MODELS = 3  # with weights and optimizer: the best, the last, and one that is being written in place of either
_CHECKPOINTS = 3  # two that are kept, and one that is being written
_BYTES = 4  # of a number; weights in training are float32
_OTHERS = 20_000_000  # bytes of figures, pages and pictures


def disk_needed(model: keras.Model, recipe: Recipe) -> tuple[int, int]:
    """Bytes that a run takes at its peak for models and reports, and for checkpoints.

    Args:
        model: what learns is as in the training.
        recipe: tells the optimizer, and whether it keeps an average.
    """
    kept = SLOTS[recipe.optimizer] + (recipe.ema_momentum is not None)
    one = num_parameters(model.weights) + kept * num_parameters(model.trainable_weights)
    return _BYTES * _MODELS * one + _OTHERS, _BYTES * _CHECKPOINTS * one


def check_disk(folder: Path, model: keras.Model, recipe: Recipe) -> None:
    """Raises a `ValueError` if a run needs more than is free where its folder is, or where the checkpoints are.

    What an unfinished run has there is written over, so it counts as free.

    Args:
        folder: of the run, which may be new.
        model: as for `disk_needed`.
        recipe: as for `disk_needed`.
    """
    needed: Counter[int] = Counter()
    places: dict[int, Path] = {}
    kept = [folder / BEST, folder / LAST], [folder / CHECKPOINTS]
    for place, files, size in zip((folder, folder / CHECKPOINTS), kept, disk_needed(model, recipe), strict=True):
        place = next(each for each in (place, *place.absolute().parents) if each.exists())
        disk = os.stat(place).st_dev
        places.setdefault(disk, place)
        needed[disk] += size - sum(map(size_of, files))
    for disk, place in places.items():
        usage = shutil.disk_usage(place)
        if usage.total and usage.free < needed[disk]:
            raise error_about("out")(
                "the disk must have room for the models and checkpoints of a run.\n"
                f"Received: {str(place)!r}, where {usage.free / 1e9:.2f} GB are free and {needed[disk] / 1e9:.2f} GB "
                "are needed. Make room, or choose a folder on another disk."
            )
