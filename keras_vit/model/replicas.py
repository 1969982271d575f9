"""What one device does with its share of a batch, so that many devices compute what one would.

TensorFlow's strategies divide the last batch of an epoch unevenly. Of 21 images in batches of 8, two devices get 3 and
2 of the last 5; of 17 images they get 1 and none. Keras averages each share and then the shares, which counts the
images of a small share for more, and crashes on one without images. Here each image counts as in the whole batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.layers.dropout import images_of_batch

MEANS = ("sum_over_batch_size", "mean")  # reductions whose mean over equal parts is that of the whole


def check_means(losses: Any, what: str) -> None:
    """Raises unless losses are means over the batch. Of a function of the user's own nothing tells.

    Args:
        losses: the `loss` of `compile`.
        what: needs them.

    Raises:
        ValueError: for another reduction, and for `ignore_class`, which divides by the images that are left. Also for a
            class with a `__call__` of its own, since Keras weighs the images in that method.
    """
    for loss in keras.tree.flatten(losses):
        if isinstance(loss, keras.losses.Loss) and type(loss).__call__ is not keras.losses.Loss.__call__:
            raise ValueError(
                f"{what} needs a loss in which Keras weighs each image.\n"
                f"Received: {loss!r}, which has a `__call__` of its own. Write it as `call(y_true, y_pred)`, with a "
                "number for each image."
            )
        reduction = getattr(loss, "reduction", MEANS[0])
        if reduction not in MEANS:
            raise ValueError(
                f"{what} needs a loss that is a mean over the batch, for the losses of its parts are averaged.\n"
                f"Received: {loss!r} with reduction={reduction!r}. Pass one of {MEANS}."
            )
        if getattr(loss, "ignore_class", None) is not None:
            raise ValueError(
                f"{what} needs a loss that counts every image, and `ignore_class` divides each part by what is left "
                f"of it.\nReceived: {loss!r} with ignore_class={loss.ignore_class}. Give those images a sample "
                "weight of 0."
            )


def train_step(model: keras.Model, data: Any) -> dict[str, Tensor]:
    """`model.train_step` of one of several devices on TensorFlow."""
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    mean, first = share(x)
    images, labels, weights = filled(x, y, sample_weight, mean)
    variables = model.trainable_weights
    with images_of_batch(first, count(images)):
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = model.compute_loss(images, labels, predictions, weights, training=True)
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)  # for which `rematerialize` draws the masks again
    gradients = agreed(gradients, model.optimizer)
    model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return logs(model, x, y, predictions, sample_weight, loss, mean)


def test_step(model: keras.Model, data: Any) -> dict[str, Tensor]:
    """`model.test_step` of one of several devices on TensorFlow."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    mean, _ = share(x)
    images, labels, weights = filled(x, y, sample_weight, mean)
    predictions = model(images, training=False)
    loss = model.compute_loss(images, labels, predictions, weights, training=False)
    return logs(model, x, y, predictions, sample_weight, loss, mean)


def predict_step(model: keras.Model, data: Any) -> Tensor:
    """`model.predict_step` of one of several devices on TensorFlow."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    images, _, _ = filled(x, None, None, count(x))
    return each(lambda tensor: tensor[: count(x)], model(images, training=False))


def logs(
    model: keras.Model, x: Any, y: Any, predictions: Any, sample_weight: Any, loss: Tensor, mean: Tensor
) -> dict[str, Tensor]:
    """What `fit` shows of a step on TensorFlow, of the images that were given.

    Args:
        predictions: for these, and perhaps more behind them.
        loss: this device's part of the loss, so that those of all devices add up to that of the batch.
        mean: of images, as `share` gives it.
    """
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    track_loss(model, loss * replicas, mean)
    predictions = each(lambda tensor: tensor[: count(x)], predictions)
    if replicas > 1:
        _check_metrics(model, y, predictions)
    return model.compute_metrics(x, y, predictions, sample_weight=sample_weight)


def stateless_logs(
    model: keras.Model, variables: Sequence[Tensor], loss: Tensor, images: Any, update: Callable[[], dict[str, Tensor]]
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """What `fit` shows of a step on JAX, and the new values of the metrics' variables.

    Args:
        model: whose metrics are updated.
        variables: the values of `model.metrics_variables` before.
        loss: the mean over the batch.
        images: how many of them the loss counts for.
        update: updates the metrics of `compile`, and gives the logs.
    """
    mapping = list(zip(model.metrics_variables, variables, strict=True))
    with keras.StatelessScope(state_mapping=mapping) as scope:
        track_loss(model, loss, images)
        logs = update()
        return logs, [scope.get_current_value(variable) for variable in model.metrics_variables]


def track_loss(model: keras.Model, loss: Tensor, images: Tensor) -> None:
    """Adds the mean `loss` of so many `images` to what `fit` shows as `loss`."""
    tracker = next(metric for metric in model.metrics if metric.name == "loss")
    tracker.update_state(loss, sample_weight=images)


def _check_metrics(model: keras.Model, y: Any, predictions: Any) -> None:
    """Raises for a function among the metrics whose answer for a share of a batch is one number."""
    true, predicted = keras.tree.flatten(y)[0], keras.tree.flatten(predictions)[0]  # a distiller has more outputs
    scalar = [function for function in model.metric_functions if not ops.shape(function(true, predicted))]
    if scalar:
        names = ", ".join(getattr(function, "__name__", repr(function)) for function in scalar)
        raise ValueError(
            "a metric's function must give a number for each image where several devices share a batch, for means of "
            f"shares are no mean.\nReceived: {names}, a number for a whole batch. Leave its mean out."
        )


def count(x: Any) -> Any:
    """How many images this device has; an int where it is known."""
    return ops.shape(keras.tree.flatten(x)[0])[0]


def share(x: Any) -> tuple[Any, Any]:
    """How many images each device has in the mean, and the index in the batch of the first that this device has.

    The mean is what Keras divides by, where it should. Devices share a batch in its order. TensorFlow only.
    """
    import tensorflow as tf

    images, replicas = count(x), tf.distribute.get_strategy().num_replicas_in_sync
    if replicas == 1:
        return images, 0
    context = tf.distribute.get_replica_context()
    mine = tf.one_hot(context.replica_id_in_sync_group, replicas) * tf.cast(images, "float32")
    shares = context.all_reduce("SUM", mine)
    before = tf.cast(tf.range(replicas) < context.replica_id_in_sync_group, "float32")
    return tf.reduce_sum(shares) / replicas, tf.cast(tf.reduce_sum(shares * before), "int32")


def agreed(gradients: Sequence[Tensor], optimizer: keras.optimizers.Optimizer) -> list:
    """Gradients that are finite on every device or on none, since under loss scaling each decides about the step.

    Keras takes them for added up already (`LossScaleOptimizer`, where it asks `check_finite`), which they are later.
    """
    import tensorflow as tf

    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or _alone():
        return list(gradients)
    finite = [tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients if gradient is not None]
    overflow = tf.where(tf.reduce_all(finite), 0.0, float("inf"))
    overflow = tf.distribute.get_replica_context().all_reduce("SUM", overflow)
    first = next(index for index, gradient in enumerate(gradients) if gradient is not None)
    told = gradients[first] + tf.cast(overflow, gradients[first].dtype)  # one that is not finite is enough
    return [*gradients[:first], told, *gradients[first + 1 :]]


def _alone() -> bool:
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync == 1


def filled(x: Any, y: Any, sample_weight: Any, mean: Any, multiple: int = 1) -> tuple[Any, Any, Any]:
    """This device's images, at least one and as many as are a multiple: more have a sample weight of 0.

    They are the last image again, or zeros. The others' weights are such that the means over what each device has then
    add up to the mean over the batch. Losses of layers and regularisers, which have no sample weights, stay as they
    are.

    Args:
        mean: of images, as `share` gives it.
    """
    images = count(x)
    if isinstance(images, int) and mean is images and images % multiple == 0:
        return x, y, sample_weight
    larger = max if isinstance(images, int) else ops.maximum  # under XLA the size must stay an int
    size = larger((images + multiple - 1) // multiple * multiple, multiple)
    rows = ops.minimum(ops.arange(size), larger(images - 1, 0))
    weights = ops.where(ops.arange(size) < images, ops.cast(size, "float32") / ops.cast(mean, "float32"), 0.0)

    def again(tensor: Tensor) -> Tensor:
        one_more = ops.zeros((1, *ops.shape(tensor)[1:]), tensor.dtype)  # for a device without images
        return ops.take(ops.concatenate([tensor, one_more]), rows, axis=0)

    def weighed(given: Tensor) -> Tensor:
        return ops.cast(again(given), "float32") * ops.reshape(weights, (-1, *[1] * (len(given.shape) - 1)))

    return *each(again, (x, y)), weights if sample_weight is None else each(weighed, sample_weight)


def each(function: Callable[[Tensor], Tensor], data: Any) -> Any:
    """`function` of every tensor; what is not given, as sample weights, stays `None`."""
    return keras.tree.map_structure(lambda tensor: None if tensor is None else function(tensor), data)
