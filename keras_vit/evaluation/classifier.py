"""`evaluate`, which measures a classifier on every example of a split, for ImageNet also by ReaL labels.

ReaL labels are all classes that people see in each validation image (arXiv:2006.07159). `real.json` is a list of
50,000 lists of classes, in the order of the images' names. Images with an empty list are left out. A prediction is
right if it is any class of its image.
"""

import dataclasses
import json
import re
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import check_positive_int
from keras_vit.data import load_dataset
from keras_vit.data.pipeline import report_missing_files
from keras_vit.evaluation.batched_predict import Classifier, open_to_measure, predict_batches
from keras_vit.evaluation.metrics import Evaluation, measure_batches
from keras_vit.files import expand_path, read_regular
from keras_vit.images.preprocessing import only_count
from keras_vit.model.copies import unwrapped
from keras_vit.model.image_model import check_takes_images
from keras_vit.model.outputs import match_names, output_spec
from keras_vit.pages.formatting import printable

_REAL_IMAGES = 50_000  # of ImageNet's validation set
_REAL_CLASSES = 1000
_MOST_REAL_BYTES = 1 << 24  # the published file has 0.5e6 bytes
_VALIDATION_NAME = re.compile(r"ILSVRC2012_val_(\d{8})(?:\.\w+)?")


def evaluate(
    model: Classifier,
    data: Any,
    split: str | None = None,
    *,
    batch_size: int = 32,
    class_names: Sequence[str] | None = None,
    seed: int | None = None,
    real_labels: FilePath | None = None,
) -> Evaluation:
    """Measures a classifier on every example of a split, including an incomplete last batch.

    Example:
        >>> result = keras_vit.evaluate(model, photos, "test")
        >>> result
        Evaluation(accuracy=0.3333, loss=1.0986, count=3, classes=3)

    Args:
        model: a `VisionTransformer` or `ResNet` whose head ends in logits or softmax, an `Engine` of one, or a model
            of your own around an encoder, as `keras_vit.export` takes it.
        data: a `Source` or what `keras_vit.open_source` takes, whose images `model.preprocessing` prepares; or a
            finite dataset of (prepared images, int or one-hot labels).
        split: `"train"`, `"validation"` or `"test"`, or several, as `"train+validation"`. By default `"test"`; but all
            examples of data that are opened here, have no splits and get no `seed`. Unused for a dataset.
        batch_size: images at once; the results do not depend on it. Unused for a dataset.
        class_names: names of the training classes, in order; by default `model.class_names`. Data that has names must
            have the same. Other names than the model's are taken for a translation, but not the same in another order.
        seed: divides data without splits, by default by 0; use the seed of the training.
        real_labels: `real.json` of ReaL (arXiv:2006.07159), labels by people for ImageNet's validation images. The
            data must be these images under their names: files, or `imagenet2012` of tensorflow-datasets.

    Returns:
        An `Evaluation`.

    Raises:
        ValueError: for an empty split, other classes than the model's, scores that are not finite, or a head with
            another activation. Also for invalid ReaL labels, and for images without them.

    Warns:
        UserWarning: where all examples of data without splits are measured, as the model may have been trained on some;
            and where the classes of files are numbers, and those of the model names.
    """
    check_positive_int("batch_size", batch_size)
    model = unwrapped(model)
    check_takes_images(model)
    _check_output(model)
    real = None if real_labels is None else read_real_labels(real_labels)
    dataset, of_data, examples = _load_batches(model, data, split, batch_size, seed)
    names = match_names(model, of_data, class_names)
    is_own = class_names is None or tuple(class_names) == tuple(getattr(model, "class_names", None) or ())
    if is_own and hasattr(examples, "paths"):
        _warn_of_numbers(of_data or names, names)
    if real is not None:
        _check_imagenet(names)
        numbers = image_numbers(examples)  # checked before the scores, which take minutes
    began = time.perf_counter()
    with report_missing_files(examples):
        result = measure_batches(predict_batches(model, dataset), names, output_spec(model).kind == "logits")
    if real is not None:
        found, count = real_accuracy(result.predictions, numbers, real)
        result = dataclasses.replace(result, real_accuracy=found, real_count=count)
    return dataclasses.replace(result, seconds=time.perf_counter() - began)


def _warn_of_numbers(found: Sequence[str], names: Sequence[str]) -> None:
    if only_count(found) and not only_count(names):
        pairs = ", ".join(f"{number} is {name!r}" for number, name in list(zip(found, names, strict=True))[:5])
        warnings.warn(
            f"the data's classes are numbers, and are taken as those of the model's outputs: {printable(pairs)}. "
            "If they are not, give the classes their names.",
            UserWarning,
            stacklevel=3,
        )


def _check_output(model: Classifier) -> None:
    spec = output_spec(model)
    if spec.activation is not None and not spec.exclusive:
        raise ValueError(
            "`evaluate` measures a model that gives each image one class.\n"
            f"Received: {model.name!r}, a model of {spec.head.name}. "
            "`keras_vit.tasks.task_of_model(model).evaluate(model, data)` measures it."
        )
    activation = spec.activation
    if activation not in ("linear", "softmax"):
        ending = "has no head" if activation is None else f"ends in {activation}"
        raise ValueError(
            "the model must end in logits or in softmax, so that its scores say how sure it is of each class.\n"
            f"Received: {model.name!r}, which {ending}. Build it with `classes=` and no other activation."
        )


def _load_batches(
    model: Classifier, data: Any, split: str | None, batch_size: int, seed: int | None
) -> tuple[Any, Sequence[str] | None, Any]:
    """Batches of images and labels, and, if known, the names of the classes and the split."""
    if hasattr(data, "element_spec"):
        if int(data.cardinality()) == -1:  # tf.data.INFINITE_CARDINALITY
            raise ValueError("the dataset must end, to be measured on.\nReceived: a dataset that repeats for ever.")
        return data, getattr(data, "class_names", None), None
    source, split = open_to_measure(data, split, seed)
    dataset = load_dataset(
        source, split, batch_size=batch_size, preprocessing=model.preprocessing, seed=seed or 0, shard=(0, 1)
    )  # the whole split, also in one of several processes
    return dataset, source.class_names, source.split(split)


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
        found = json.loads(read_regular(expand_path(path), _MOST_REAL_BYTES))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"ReaL labels must be a JSON file.\nReceived: {printable(path)}: {error}") from error
    if not isinstance(found, list) or len(found) != _REAL_IMAGES:
        size = f"a list of {len(found):,}" if isinstance(found, list) else type(found).__name__
        raise ValueError(f"ReaL labels must be a list of {_REAL_IMAGES:,} lists.\nReceived: {printable(path)}, {size}.")
    for number, classes in enumerate(found):
        if not isinstance(classes, list) or not all(type(c) is int and 0 <= c < _REAL_CLASSES for c in classes):
            raise ValueError(
                f"ReaL labels of an image must be a list of numbers in [0, {_REAL_CLASSES}).\n"
                f"Received: {printable(path)}, whose item {number} is {str(classes)[:60]}."
            )
    return found


def _check_imagenet(class_names: Sequence[str]) -> None:
    """Raises unless the number of classes is that of ReaL labels."""
    if len(class_names) != _REAL_CLASSES:
        raise ValueError(
            f"ReaL labels are of ImageNet's {_REAL_CLASSES:,} classes.\nReceived: data with {len(class_names)} classes."
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
    found = [_VALIDATION_NAME.fullmatch(name) for name in names]
    numbers = np.array([int(match[1]) - 1 if match else -1 for match in found], "int64")
    wrong = np.flatnonzero((numbers < 0) | (numbers >= _REAL_IMAGES))
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
