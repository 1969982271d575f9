"""`evaluate`, which measures a classifier on every example of a split."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.checks import check_positive_int
from keras_vit.data.pipeline import report_missing_files
from keras_vit.evaluation.batched_predict import Classifier, predict_batches
from keras_vit.evaluation.imagenet_real import check_imagenet, image_numbers, read_real_labels, real_accuracy
from keras_vit.evaluation.metrics import Evaluation, measure_batches
from keras_vit.model.image_model import check_takes_images
from keras_vit.model.outputs import output_spec


def evaluate(
    model: Classifier,
    data: Any,
    split: str = "test",
    *,
    batch_size: int = 32,
    class_names: Sequence[str] | None = None,
    seed: int = 0,
    real_labels: FilePath | None = None,
) -> Evaluation:
    """Measures a classifier on every example of a split, including an incomplete last batch.

    Example:
        >>> result = keras_vit.evaluate(model, photos)
        >>> result
        Evaluation(accuracy=0.3333, loss=1.0986, count=3, classes=3)

    Args:
        model: a `VisionTransformer` or `ResNet` whose head ends in logits or softmax, or an `Engine` of one.
        data: a `Source` or what `keras_vit.open_source` takes, whose images `model.preprocessing` prepares; or a
            finite dataset of (prepared images, int or one-hot labels).
        split: `"train"`, `"validation"` or `"test"`, or several, as `"train+validation"`. Unused for a dataset.
        batch_size: images at once; the results do not depend on it. Unused for a dataset.
        class_names: names of the training classes, in order. Data that has names must have the same.
        seed: divides data without splits; use the seed of the training.
        real_labels: `real.json` of ReaL (arXiv:2006.07159), labels by people for ImageNet's validation images. The
            data must be these images under their names: files, or `imagenet2012` of tensorflow-datasets.

    Returns:
        An `Evaluation`.

    Raises:
        ValueError: for an empty split, other classes than the model's, scores that are not finite, or a head with
            another activation. Also for invalid ReaL labels, and for images without them.
    """
    check_positive_int("batch_size", batch_size)
    check_takes_images(model)
    _check_output(model)
    real = None if real_labels is None else read_real_labels(real_labels)
    dataset, names, examples = _load_batches(model, data, split, batch_size, seed)
    names = _check_class_names(model, names, class_names)
    if real is not None:
        check_imagenet(names)
        numbers = image_numbers(examples)  # checked before the scores, which take minutes
    began = time.perf_counter()
    with report_missing_files(examples):
        result = measure_batches(predict_batches(model, dataset), names, output_spec(model).kind == "logits")
    if real is not None:
        found, count = real_accuracy(result.predictions, numbers, real)
        result = dataclasses.replace(result, real_accuracy=found, real_count=count)
    return dataclasses.replace(result, seconds=time.perf_counter() - began)


def _check_output(model: Classifier) -> None:
    activation = output_spec(model).activation
    if activation not in ("linear", "softmax"):
        ending = "has no head" if activation is None else f"ends in {activation}"
        raise ValueError(
            "the model must end in logits or in softmax, so that its scores say how sure it is of each class.\n"
            f"Received: {model.name!r}, which {ending}. Build it with `classes=` and no other activation."
        )


def _load_batches(
    model: Classifier, data: Any, split: str, batch_size: int, seed: int
) -> tuple[Any, Sequence[str] | None, Any]:
    """Batches of images and labels, and, if known, the names of the classes and the split."""
    if hasattr(data, "element_spec"):
        if int(data.cardinality()) == -1:  # tf.data.INFINITE_CARDINALITY
            raise ValueError("the dataset must end, to be measured on.\nReceived: a dataset that repeats for ever.")
        return data, getattr(data, "class_names", None), None
    from keras_vit.data import load_dataset, open_source
    from keras_vit.data.source import check_split

    check_split(split)
    source = open_source(data, seed=seed)
    dataset = load_dataset(
        source, split, batch_size=batch_size, preprocessing=model.preprocessing, seed=seed, shard=(0, 1)
    )  # the whole split, also in one of several processes
    return dataset, source.class_names, source.split(split)


def _check_class_names(model: Classifier, names: Sequence[str] | None, expected: Sequence[str] | None) -> Sequence[str]:
    classes = output_spec(model).size
    expected = names if expected is None else tuple(expected)
    names = expected if names is None else tuple(names)
    names = tuple(map(str, range(classes))) if names is None else names
    if len(names) != classes:
        raise ValueError(
            "the data must have the classes that the model knows.\n"
            f"Received: data with {len(names)} classes, {model.name!r} with {classes}."
        )
    if expected is not None and tuple(expected) != names:
        known, found = next(pair for pair in zip(expected, names, strict=True) if pair[0] != pair[1])
        raise ValueError(
            "the data must have the classes that the model was trained with, in the same order.\n"
            f"Received: {found!r} where the model has {known!r}."
        )
    return names
