"""The outputs of a network for every example of a dataset."""

import dataclasses
import time
import warnings
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from keras_vit.config.heads import OutputSpec
from keras_vit.data import load_dataset, open_source
from keras_vit.data.pipeline import report_missing_files
from keras_vit.data.source import Source, check_split, split_to_measure
from keras_vit.data.targets import CLASS_LABELS, Targets
from keras_vit.model.copies import unwrapped
from keras_vit.model.input_checks import as_uint8
from keras_vit.pages.formatting import printable


class Classifier(Protocol):
    """A model that classifies prepared images: a `VisionTransformer`, a `ResNet`, or an `Engine` of one."""

    name: str
    preprocessing: Any
    output_spec: OutputSpec

    def predict_on_batch(self, x: Any) -> Any:
        """One row of outputs for each image of a batch."""


@dataclasses.dataclass(frozen=True, eq=False)
class OutputRows:
    """The outputs for every example of a split, and its rows of targets.

    Attributes:
        outputs: float32 `(n, K)`.
        targets: float32 `(n, K)`.
        names: of the K outputs.
        seconds: duration.
    """

    outputs: np.ndarray
    targets: np.ndarray
    names: tuple[str, ...]
    seconds: float


def open_to_measure(
    data: Any, split: str | None, seed: int | None, targets: Targets = CLASS_LABELS
) -> tuple[Source, str]:
    """The source, and the split that is measured: the named one, else all of data without splits, else `"test"`.

    A `Source` was divided before, for a training that has seen a part of it; and who gives a seed wants that division.

    Warns:
        UserWarning: where all images are measured, since a model may have been trained on some of them.
    """
    if split is not None:
        check_split(split)
    source = open_source(data, seed=seed or 0, targets=targets)
    if split is not None or seed is not None or isinstance(data, Source):
        return source, split or "test"
    if (split := split_to_measure(source)) != "test":
        warnings.warn(
            f"{printable(source.name)} has no splits, so all {sum(source.sizes.values()):,} images are measured. "
            'If the model was trained on them, pass split="test" and the seed of the training.',
            UserWarning,
            stacklevel=4,
        )
    return source, split


def check_outputs(model: Classifier, source: Source) -> None:
    """Raises `ValueError` for data with another number of targets than the model has outputs."""
    if len(source.class_names) != model.output_spec.size:
        raise ValueError(
            "the data must have a target for each output of the model.\n"
            f"Received: {len(source.class_names)} targets, {model.name!r} with {model.output_spec.size} outputs."
        )


def check_finite(outputs: np.ndarray, first: int = 0) -> None:
    """Raises `ValueError` for outputs `(n, ...)` that are not finite; `first` is the number of the first example."""
    finite = np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)
    if not finite.all():
        raise ValueError(
            "the model's answers must be finite; damaged weights or images give NaN.\n"
            f"Received: example {first + int(finite.argmin())} has others."
        )


def output_rows(
    model: Classifier, data: Any, split: str | None, targets: Targets, batch_size: int, seed: int | None
) -> OutputRows:
    """The outputs of a model for all examples of a split whose targets are rows of numbers.

    Args:
        model: with a head of K outputs.
        data: a `Source`, or what `open_source` takes.
        split: or several, as for `Source.split`; `None` as `open_to_measure` takes it.
        targets: what the examples are labelled with.
        batch_size: images at once.
        seed: divides data without splits.

    Raises:
        ValueError: for data of other targets than the model's, and for outputs that are not finite.
    """
    model = unwrapped(model)
    source, split = open_to_measure(data, split, seed, targets)
    check_outputs(model, source)
    dataset = load_dataset(
        source, split, batch_size=batch_size, preprocessing=model.preprocessing, seed=seed or 0, shard=(0, 1)
    )
    began = time.perf_counter()
    with report_missing_files(source.split(split)):
        outputs, rows = map(np.concatenate, zip(*predict_batches(model, dataset, rows=True), strict=True))
    check_finite(outputs)
    return OutputRows(outputs, rows, source.class_names, time.perf_counter() - began)


def predict_batches(network: Classifier, dataset: Any, rows: bool = False) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The network's outputs for all examples, batch by batch, including those of an incomplete last batch.

    Args:
        network: a model from images to one tensor.
        dataset: a finite dataset of (images `(B, H, W, C)`, int or one-hot labels).
        rows: whether labels are rows of targets, and no one-hot classes.

    Yields:
        float32 `(B, ...)` outputs and `(B,)` labels, in the order of the dataset; rows as they are.

    Raises:
        ValueError: for a dataset without batches.
    """
    size = 0
    for images, targets in as_uint8(network, dataset):
        images, targets = np.asarray(images), np.asarray(targets)  # every backend takes these
        count, size = len(images), max(size, len(images))
        # An incomplete batch is padded, since each batch size is compiled; its padding is dropped again.
        images = np.pad(images, ((0, size - count),) + ((0, 0),) * (images.ndim - 1))
        found = np.asarray(network.predict_on_batch(images), "float32")[:count]
        yield found, targets if rows or targets.ndim == 1 else targets.argmax(axis=1)
    if not size:
        raise ValueError("the set is empty, so nothing can be measured on it.\nReceived: a dataset without batches.")
