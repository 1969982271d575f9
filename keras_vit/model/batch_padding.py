"""Batches that several devices cannot share evenly, on JAX: filled up with images that count nothing.

An image that fills a batch up has a sample weight of NaN, which no user's image has. The steps below leave it out of
the loss, of its tracker and of all metrics. So the numbers are those of the images that were given.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import PADDING_WEIGHT, Tensor
from keras_vit.keras_private import update_metrics
from keras_vit.model.replicas import stateless_logs


def spread_over() -> int:
    """Devices that share a batch by `keras.distribution`; 1 on other backends, which ignore it."""
    distribution = keras.distribution.distribution() if keras.backend.backend() == "jax" else None
    if distribution is None or distribution.batch_dim_name is None:
        return 1
    mesh = distribution.device_mesh
    return mesh.shape[list(mesh.axis_names).index(distribution.batch_dim_name)]


def shared(x: Any) -> Any:
    """`x` of `fit` or `evaluate`, of which every batch can be shared: a `tf.data.Dataset` of others is filled up.

    Those of `load_dataset` for training are full as they are.
    """
    copies = spread_over()
    if copies == 1 or not is_dataset(x) or not isinstance(x.element_spec, tuple) or len(x.element_spec) == 1:
        return x
    return filled_batches(x, _of_this_process(copies))


def predicted(predict: Any, x: Any) -> Any:
    """What `predict` gives for each image of a `tf.data.Dataset`, whose batches are filled up for it."""
    multiple, keep = _of_this_process(spread_over()), []

    def batches() -> Iterator[tuple[np.ndarray]]:
        for batch in x:
            images = np.asarray(batch[0] if isinstance(batch, tuple) else batch)
            size = -(-len(images) // multiple) * multiple
            keep.extend([True] * len(images) + [False] * (size - len(images)))
            yield (np.take(images, np.minimum(np.arange(size), len(images) - 1), axis=0),)

    outputs = predict(batches())
    return keras.tree.map_structure(lambda output: output[np.array(keep[: len(output)])], outputs)


def is_dataset(x: Any) -> bool:
    """Whether `x` is a `tf.data.Dataset`."""
    return hasattr(x, "element_spec") and hasattr(x, "enumerate")


def _of_this_process(copies: int) -> int:
    """Parts of a batch that this process makes of what it reads."""
    import jax

    return max(copies // jax.process_count(), 1)


def filled_batches(dataset: Any, multiple: int) -> Any:
    """The `tf.data.Dataset` of `(images, labels)` or `(images, labels, weights)` with batches of that multiple."""
    import tensorflow as tf

    def fill(images: Any, labels: Any, weights: Tensor = None) -> tuple[Any, Any, Tensor]:
        count = tf.shape(tf.nest.flatten(images)[0])[0]
        size = (count + multiple - 1) // multiple * multiple
        rows = tf.minimum(tf.range(size), count - 1)
        weights = tf.ones([count]) if weights is None else tf.cast(weights, "float32")
        counts = tf.reshape(tf.range(size) < count, [-1] + [1] * (weights.shape.rank - 1))
        images, labels, weights = tf.nest.map_structure(
            lambda tensor: tf.gather(tensor, rows), (images, labels, weights)
        )
        return images, labels, tf.where(counts, weights, PADDING_WEIGHT)

    return dataset.map(fill)


def is_marked(data: Any) -> bool:
    """Whether the weights of a step's `data`, on JAX, may mark images that count nothing."""
    sample_weight = keras.utils.unpack_x_y_sample_weight(data)[2]
    one_array = sample_weight is not None and not keras.tree.is_nested(sample_weight)
    return keras.backend.backend() == "jax" and one_array and spread_over() > 1


def counted(sample_weight: Any) -> tuple[Any, Any, Any]:
    """Weights whose mean over the batch is that over the images that count, which these are, and how many."""
    counts = ops.logical_not(ops.isnan(sample_weight))
    number = ops.sum(ops.cast(counts, "float32")) / (sample_weight.size / sample_weight.shape[0])
    weights = ops.where(counts, sample_weight, 0.0) * (sample_weight.shape[0] / ops.maximum(number, 1.0))
    return weights, ops.cast(counts, "float32"), number


def test_step(model: keras.Model, state: Any, data: Any) -> tuple[Any, Any]:
    """`model.test_step` on JAX, over the images that count."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    trainable, non_trainable, metrics = state
    weights, counts, number = counted(sample_weight)
    _, (loss, predictions, non_trainable, metrics) = model.compute_loss_and_updates(
        trainable, non_trainable, metrics, x, y, weights, training=False
    )
    logs, metrics = updated(model, metrics, loss, y, predictions, sample_weight, counts, number)
    return logs, (trainable, non_trainable, metrics)


def updated(
    model: keras.Model,
    metrics: Sequence[Tensor],
    loss: Tensor,
    y: Any,
    predictions: Any,
    sample_weight: Tensor,
    counts: Tensor,
    number: Tensor,
) -> tuple[Any, Any]:
    """Logs and new metric variables of a stateless step, in which an image counts by `counts`, 0 or 1."""

    def update() -> dict[str, Tensor]:
        update_metrics(model, y, predictions, ops.where(counts > 0, sample_weight, 0.0), counts)
        return model.get_metrics_result()

    return stateless_logs(model, metrics, loss, number, update)
