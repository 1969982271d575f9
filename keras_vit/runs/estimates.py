"""What a run will take, printed before its first step: time, what would take less, and disk; a full disk is refused."""

import math
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, cores
from keras_vit.config.flops import flops
from keras_vit.config.progressive_resizing import relative_cost
from keras_vit.config.recipes import Recipe
from keras_vit.files import disk_size
from keras_vit.model.image_model import ImageModel, has_accelerator
from keras_vit.model.resnet import ResNet
from keras_vit.pages.formatting import clock_time, duration, format_facts, printable
from keras_vit.runs.options import FLAGS
from keras_vit.runs.preparation import Preparation, num_parameters
from keras_vit.runs.run_files import BEST, CHECKPOINTS, LAST
from keras_vit.training.memory import SLOTS, learning_blocks

_LONG_WORK = 5e13  # FLOP of a run, which take some minutes on a CPU; a shorter run is not timed
_LONG = 900  # seconds, from which on a smaller run is offered
_TIMED, _TIMED_WORK = 2, 1e10  # images, or more of those that are less than so many FLOP together: calls take time too
_TIMING = 2.0  # seconds, at least
# Times as long as compiling a forward pass: to compile the step, the first evaluation and the saved model, and to draw.
# Of 6 blocks on a busy machine 77 to 82 s in two runs, where that took 6.1 and 8.6 s.
_COMPILED = 10
_SMALL_SIZE, _SMALL_BATCH = 224, 32


def print_estimates(preparation: Preparation, out: FilePath, print_fn: Callable[[str], Any]) -> None:
    """Prints how long a run on a CPU will take, and the disk space that it needs."""
    for line in disk_lines(Path(out), preparation.model, preparation.plan.recipe):
        print_fn(line)
    if has_accelerator() or preparation.devices > 1 or preparation.options.layout != "none":
        return  # there the first steps are short, and `Progress` reports the time
    forward = flops(preparation.options.task_record.opened(preparation.model)).total
    steps = relative_cost(preparation.stages, preparation.plan.steps_per_epoch, preparation.plan.steps)
    images = steps * preparation.plan.batch_size
    if images * forward * _passes(preparation.model) < _LONG_WORK:
        return
    timed = int(max(_TIMED, min(preparation.plan.batch_size, _TIMED_WORK / forward)))
    compiling, image = _seconds_of_an_image(preparation.model, timed)
    step = preparation.plan.batch_size * image * _passes(preparation.model)
    overhead = _COMPILED * compiling + image * _evaluated(preparation)
    seconds = steps * step + overhead
    parts = f"{preparation.plan.steps:,} steps of {step:,.1f} s, and {duration(overhead)} for compiling, evaluations"
    measured = f"as {timed} images took on {len(cores())} cores"
    lines = [f"about {duration(seconds)}, until {clock_time(seconds)}: {parts} and the report; {measured}"]
    if seconds >= _LONG:
        lines += [f"shorter: {offer}" for offer in _offers(preparation, seconds)]
    for name, text in zip(["time", *[""] * len(lines)], lines, strict=False):
        for line in format_facts(name, text):
            print_fn(line)


def _evaluated(preparation: Preparation) -> int:
    """Images of all evaluations: the validation set after each epoch, and at the end those that are measured."""
    sizes, plan = preparation.source.sizes, preparation.plan
    return plan.epochs * sizes.get("validation", 0) + sizes[preparation.split]


def _passes(model: ImageModel) -> float:
    """Forward passes that a training step takes as long as: the way back through what learns is two."""
    if isinstance(model, ResNet):
        share = float(2 * num_parameters(model.trainable_weights) > model.count_params())
    else:
        share = len(learning_blocks(model)) / model.config.num_layers
    return 1 + share * (3 if getattr(model.config, "rematerialize", False) else 2)


def _seconds_of_an_image(model: keras.Model, timed: int) -> tuple[float, float]:
    """Of compiling a forward pass, and of the pass for one image of so many; nothing of the model is changed."""
    images = np.zeros((timed, *model.input_shape[1:]), "float32")
    began = time.monotonic()
    model.predict_on_batch(images)
    compiling = time.monotonic() - began
    began, rounds = time.monotonic(), 0
    while time.monotonic() - began < _TIMING:  # so that what else the machine does counts as it will later
        model.predict_on_batch(images)
        rounds += 1
    image = (time.monotonic() - began) / (rounds * timed)
    return max(compiling - image * timed, 0.0), image


def _offers(preparation: Preparation, seconds: float) -> Iterator[str]:
    """Options that would take less, with the time of each."""
    model, options, batch_size = preparation.model, preparation.options, preparation.plan.batch_size
    size, patch = model.input_shape[1:3], model.config.side_unit
    words, share = [], 1.0
    smaller = math.prod(size) > _SMALL_SIZE**2 and not _SMALL_SIZE % patch
    if smaller and not isinstance(options.model, ImageModel):
        words.append(f"{FLAGS['image_size']} {_SMALL_SIZE}")
        share *= flops(model.config, _SMALL_SIZE).total / flops(model.config, size).total
    if batch_size > _SMALL_BATCH:
        words.append(f"{FLAGS['batch_size']} {_SMALL_BATCH}")
        share *= _SMALL_BATCH / batch_size
    if words:
        yield f"{' '.join(words)}, about {duration(share * seconds)}"
    least = 1.0 if isinstance(model, ResNet) else 1 + 2 / model.config.num_layers
    if options.lora_rank is None and least < _passes(model):
        which = "head" if isinstance(model, ResNet) else "last_blocks:1"
        yield f"{FLAGS['trainable']} {which}, about {duration(least / _passes(model) * seconds)}"


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
        recipe: with the optimizer, and whether it keeps an average.
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
