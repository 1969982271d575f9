"""ReaL labels: all classes that people see in each validation image of ImageNet (arXiv:2006.07159).

`real.json` is a list of 50,000 lists of classes, in the order of the images' names. Images with an empty list are left
out. A prediction is right if it is any class of its image.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.files import expand_path, read_regular
from keras_vit.pages.formatting import printable

IMAGES = 50_000  # of ImageNet's validation set
CLASSES = 1000
_MOST_BYTES = 1 << 24  # the published file has 0.5e6 bytes
_NAME = re.compile(r"ILSVRC2012_val_(\d{8})(?:\.\w+)?")


def read_real_labels(path: FilePath) -> list[list[int]]:
    """The classes of each image.

    Args:
        path: `real.json` of github.com/google-research/reassessed-imagenet.

    Returns:
        50,000 lists of numbers in [0, 1000).

    Raises:
        ValueError: for another file.
        OSError: if it does not exist or cannot be read.
    """
    try:
        found = json.loads(read_regular(expand_path(path), _MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"ReaL labels must be a JSON file.\nReceived: {printable(path)}: {error}") from error
    if not isinstance(found, list) or len(found) != IMAGES:
        size = f"a list of {len(found):,}" if isinstance(found, list) else type(found).__name__
        raise ValueError(f"ReaL labels must be a list of {IMAGES:,} lists.\nReceived: {printable(path)}, {size}.")
    for number, classes in enumerate(found):
        if not isinstance(classes, list) or not all(type(c) is int and 0 <= c < CLASSES for c in classes):
            raise ValueError(
                f"ReaL labels of an image must be a list of numbers in [0, {CLASSES}).\n"
                f"Received: {printable(path)}, whose item {number} is {str(classes)[:60]}."
            )
    return found


def check_imagenet(class_names: Sequence[str]) -> None:
    """Raises unless the number of classes is that of ReaL labels."""
    if len(class_names) != CLASSES:
        raise ValueError(
            f"ReaL labels are of ImageNet's {CLASSES:,} classes.\nReceived: data with {len(class_names)} classes."
        )


def image_numbers(split: Any) -> np.ndarray:
    """Numbers of the 50,000 images that the examples of a split are.

    Args:
        split: a split of a `Source`, of files or with the feature `file_name` of tensorflow-datasets.

    Returns:
        int64 `(n,)` in [0, 50000).

    Raises:
        ValueError: for other images.
    """
    names = [Path(path).name for path in getattr(split, "paths", ())]
    if hasattr(split, "file_names"):
        names = split.file_names()
    found = [_NAME.fullmatch(name) for name in names]
    numbers = np.array([int(match[1]) - 1 if match else -1 for match in found], "int64")
    wrong = np.flatnonzero((numbers < 0) | (numbers >= IMAGES))
    if not names or len(wrong):
        which = f"{printable(names[wrong[0]])!r}" if names else "images without names"
        raise ValueError(
            "ReaL labels are of ImageNet's validation images, ILSVRC2012_val_00000001 to 00050000, by their names.\n"
            f"Received: {which}. Pass a folder of these files, or imagenet2012 with the split test."
        )
    return numbers


def real_accuracy(predictions: np.ndarray, numbers: np.ndarray, labels: list[list[int]]) -> tuple[float, int]:
    """The accuracy on images with ReaL labels, and the number of these images.

    Args:
        predictions: int `(n,)`, the best class of each image.
        numbers: int `(n,)`, result of `image_numbers`.
        labels: result of `read_real_labels`.

    Raises:
        ValueError: if none of the images has labels.
    """
    pairs = zip(predictions.tolist(), (labels[number] for number in numbers), strict=True)
    right = [prediction in classes for prediction, classes in pairs if classes]
    if not right:
        raise ValueError(
            f"some of the images must have ReaL labels.\nReceived: {len(numbers)} image(s), of which none has."
        )
    return sum(right) / len(right), len(right)
