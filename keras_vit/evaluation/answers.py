"""The outputs of a network for every example of a dataset."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from keras_vit.config.heads import OutputSpec
from keras_vit.model.input_checks import in_bytes


class Classifier(Protocol):
    """A model that classifies prepared images: a `VisionTransformer`, a `ResNet`, or an `Engine` of one."""

    name: str
    preprocessing: Any
    output_spec: OutputSpec

    def predict_on_batch(self, x: Any) -> Any:
        """One row of outputs for each image of a batch."""


def answers(network: Classifier, dataset: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The network's outputs for all examples, batch by batch, including those of an incomplete last batch.

    Args:
        network: a model from images to one tensor.
        dataset: a finite dataset of (images `(B, H, W, C)`, int or one-hot labels).

    Yields:
        float32 `(B, ...)` outputs and `(B,)` labels, in the order of the dataset.

    Raises:
        ValueError: for a dataset without batches.
    """
    size = 0
    for images, targets in in_bytes(network, dataset):
        images, targets = np.asarray(images), np.asarray(targets)  # every backend takes these
        count, size = len(images), max(size, len(images))
        # One batch size needs one compilation. So an incomplete batch is padded, and its padding is dropped again.
        images = np.pad(images, ((0, size - count),) + ((0, 0),) * (images.ndim - 1))
        found = np.asarray(network.predict_on_batch(images), "float32")[:count]
        yield found, targets if targets.ndim == 1 else targets.argmax(axis=1)
    if not size:
        raise ValueError("the set is empty, so nothing can be measured on it.\nReceived: a dataset without batches.")
