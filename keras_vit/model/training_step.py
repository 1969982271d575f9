"""Training, test and predict steps: on several devices, on padded batches, and over micro-batches.

They compute what one device would for the whole batch.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import PADDING_WEIGHT, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.keras_private import update_metrics
from keras_vit.layers.dropout import images_of_batch

MEANS = ("sum_over_batch_size", "mean")  # reductions whose mean over equal parts is that of the whole


def check_means(losses: Any, what: str) -> None:
    """Raises unless losses are means over the batch. A user's own function cannot be checked.

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


def replica_train_step(model: keras.Model, data: Any) -> dict[str, Tensor]:
    """`model.train_step` of one of several devices on TensorFlow, in which each image counts as in the whole batch.

    TensorFlow's strategies divide the last batch of an epoch unevenly: two devices get 3 and 2 of 5 images, or 1 and
    none. Keras averages each share and then the shares, which counts the images of a small share for more. It crashes
    on a share without images.
    """
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    mean, first = replica_share(x)
    images, labels, weights = pad_batch(x, y, sample_weight, mean)
    variables = model.trainable_weights
    with images_of_batch(first, batch_size_of(images)):
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = model.compute_loss(images, labels, predictions, weights, training=True)
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)  # for which `rematerialize` draws the masks again
    gradients = sync_overflow(gradients, model.optimizer)
    model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return step_logs(model, x, y, predictions, sample_weight, loss, mean)


def replica_test_step(model: keras.Model, data: Any) -> dict[str, Tensor]:
    """`model.test_step` of one of several devices on TensorFlow."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    mean, _ = replica_share(x)
    images, labels, weights = pad_batch(x, y, sample_weight, mean)
    predictions = model(images, training=False)
    loss = model.compute_loss(images, labels, predictions, weights, training=False)
    return step_logs(model, x, y, predictions, sample_weight, loss, mean)


def replica_predict_step(model: keras.Model, data: Any) -> Tensor:
    """`model.predict_step` of one of several devices on TensorFlow."""
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    images, _, _ = pad_batch(x, None, None, batch_size_of(x))
    return map_tensors(lambda tensor: tensor[: batch_size_of(x)], model(images, training=False))


def step_logs(
    model: keras.Model, x: Any, y: Any, predictions: Any, sample_weight: Any, loss: Tensor, mean: Tensor
) -> dict[str, Tensor]:
    """What `fit` shows of a step on TensorFlow, of the images that were given.

    Args:
        predictions: for these, and perhaps for padding after them.
        loss: this device's part of the loss, so that those of all devices add up to that of the batch.
        mean: of images, as `replica_share` gives it.
    """
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    track_loss(model, loss * replicas, mean)
    predictions = map_tensors(lambda tensor: tensor[: batch_size_of(x)], predictions)
    if replicas > 1:
        _check_metrics(model, y, predictions)
    return model.compute_metrics(x, y, predictions, sample_weight=sample_weight)


def stateless_step_logs(
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


def batch_size_of(x: Any) -> Any:
    """How many images this device has; an int where it is known."""
    return ops.shape(keras.tree.flatten(x)[0])[0]


def replica_share(x: Any) -> tuple[Any, Any]:
    """How many images each device has in the mean, and the index in the batch of the first that this device has.

    The mean is what Keras divides by, where it should. Devices share a batch in its order. TensorFlow only.
    """
    import tensorflow as tf

    images, replicas = batch_size_of(x), tf.distribute.get_strategy().num_replicas_in_sync
    if replicas == 1:
        return images, 0
    context = tf.distribute.get_replica_context()
    own_share = tf.one_hot(context.replica_id_in_sync_group, replicas) * tf.cast(images, "float32")
    shares = context.all_reduce("SUM", own_share)
    before = tf.cast(tf.range(replicas) < context.replica_id_in_sync_group, "float32")
    return tf.reduce_sum(shares) / replicas, tf.cast(tf.reduce_sum(shares * before), "int32")


def sync_overflow(gradients: Sequence[Tensor], optimizer: keras.optimizers.Optimizer) -> list:
    """Gradients that are finite on every device or on none, since under loss scaling each decides about the step.

    Keras' `LossScaleOptimizer` checks them as if they were summed over devices, which happens later.
    """
    import tensorflow as tf

    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or _is_one_replica():
        return list(gradients)
    finite = [tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients if gradient is not None]
    overflow = tf.where(tf.reduce_all(finite), 0.0, float("inf"))
    overflow = tf.distribute.get_replica_context().all_reduce("SUM", overflow)
    first = next(index for index, gradient in enumerate(gradients) if gradient is not None)
    marked = gradients[first] + tf.cast(overflow, gradients[first].dtype)  # one that is not finite is enough
    return [*gradients[:first], marked, *gradients[first + 1 :]]


def _is_one_replica() -> bool:
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync == 1


def pad_batch(x: Any, y: Any, sample_weight: Any, mean: Any, multiple: int = 1) -> tuple[Any, Any, Any]:
    """Pads this device's images to a multiple, at least one; padded images have a sample weight of 0.

    They repeat the last image, or are zeros. The other weights are such that the means of all devices add up to that
    of the batch. Losses of layers and regularisers, which have no sample weights, are
    unchanged.

    Args:
        mean: of images, as `replica_share` gives it.
    """
    images = batch_size_of(x)
    if isinstance(images, int) and mean is images and images % multiple == 0:
        return x, y, sample_weight
    larger = max if isinstance(images, int) else ops.maximum  # under XLA the size must stay an int
    size = larger((images + multiple - 1) // multiple * multiple, multiple)
    places = ops.arange(size, dtype="int32")
    rows = ops.minimum(places, larger(images - 1, 0))
    weights = ops.where(places < images, ops.cast(size, "float32") / ops.cast(mean, "float32"), 0.0)

    def repeat_last(tensor: Tensor) -> Tensor:
        one_more = ops.zeros((1, *ops.shape(tensor)[1:]), tensor.dtype)  # for a device without images
        return ops.take(ops.concatenate([tensor, one_more]), rows, axis=0)

    def weighted(given: Tensor) -> Tensor:
        return ops.cast(repeat_last(given), "float32") * ops.reshape(weights, (-1, *[1] * (len(given.shape) - 1)))

    return *map_tensors(repeat_last, (x, y)), weights if sample_weight is None else map_tensors(weighted, sample_weight)


def map_tensors(function: Callable[[Tensor], Tensor], data: Any) -> Any:
    """`function` of every tensor; what is not given, as sample weights, stays `None`."""
    return keras.tree.map_structure(lambda tensor: None if tensor is None else function(tensor), data)


def num_batch_shards() -> int:
    """Devices that share a batch by `keras.distribution`; 1 on other backends, which ignore it."""
    distribution = keras.distribution.distribution() if keras.backend.backend() == "jax" else None
    if distribution is None or distribution.batch_dim_name is None:
        return 1
    mesh = distribution.device_mesh
    return mesh.shape[list(mesh.axis_names).index(distribution.batch_dim_name)]


def pad_dataset(x: Any) -> Any:
    """`x` of `fit` or `evaluate` on JAX; batches of a `tf.data.Dataset` that devices cannot share evenly are padded.

    A padding image has a sample weight of NaN, which no user's image has. The steps leave it out of the loss, of its
    tracker and of all metrics. Data sets of `load_dataset` for training have full batches already.
    """
    copies = num_batch_shards()
    if copies == 1 or not is_dataset(x) or not isinstance(x.element_spec, tuple) or len(x.element_spec) == 1:
        return x
    return pad_batches(x, _shards_per_process(copies))


def predict_padded(predict: Any, x: Any) -> Any:
    """What `predict` gives for each image of a `tf.data.Dataset`, whose batches are filled up for it."""
    multiple, keep = _shards_per_process(num_batch_shards()), []

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


def _shards_per_process(copies: int) -> int:
    """Parts of a batch that this process makes of what it reads."""
    import jax

    return max(copies // jax.process_count(), 1)


def pad_batches(dataset: Any, multiple: int) -> Any:
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


def has_padding_weights(data: Any) -> bool:
    """Whether the weights of a step's `data`, on JAX, may mark images that count nothing."""
    sample_weight = keras.utils.unpack_x_y_sample_weight(data)[2]
    one_array = sample_weight is not None and not keras.tree.is_nested(sample_weight)
    return keras.backend.backend() == "jax" and one_array and num_batch_shards() > 1


def padding_weights(sample_weight: Any) -> tuple[Any, Any, Any]:
    """Weights whose mean over the batch is that over the images that count, which these are, and how many."""
    counts = ops.logical_not(ops.isnan(sample_weight))
    number = ops.sum(ops.cast(counts, "float32")) / (sample_weight.size / sample_weight.shape[0])
    weights = ops.where(counts, sample_weight, 0.0) * (sample_weight.shape[0] / ops.maximum(number, 1.0))
    return weights, ops.cast(counts, "float32"), number


def padded_test_step(model: keras.Model, state: Any, data: Any) -> tuple[Any, Any]:
    """`model.test_step` on JAX, over the images that count."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    trainable, non_trainable, metrics = state
    weights, counts, number = padding_weights(sample_weight)
    _, (loss, predictions, non_trainable, metrics) = model.compute_loss_and_updates(
        trainable, non_trainable, metrics, x, y, weights, training=False
    )
    logs, metrics = padded_step_logs(model, metrics, loss, y, predictions, sample_weight, counts, number)
    return logs, (trainable, non_trainable, metrics)


def padded_step_logs(
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
        seen = model.answers(predictions, y) if hasattr(model, "answers") else predictions  # of a `DenseModel`
        update_metrics(model, y, seen, ops.where(counts > 0, sample_weight, 0.0), counts)
        return model.get_metrics_result()

    return stateless_step_logs(model, metrics, loss, number, update)


def check_accumulation(steps: int, optimizer: Any, losses: Any) -> None:
    """Raises unless accumulation over `steps` micro-batches gives what the whole batch would give.

    Args:
        steps: k.
        optimizer: a Keras optimizer, or `None`.
        losses: the `loss` of `compile`. What has a `reduction` must be a mean over the batch. A function of your own
            must give one value per image, which cannot be checked.

    Raises:
        TypeError, ValueError: for steps below 1. Above 1, for an optimizer that accumulates itself, for a loss that is
            no mean over the batch, and on the torch backend.
    """
    check_positive_int("accumulation_steps", steps)
    if steps == 1:
        return
    if keras.backend.backend() not in _TRAIN_STEPS:
        raise ValueError(
            "accumulation runs on the TensorFlow and JAX backends.\n"
            f"Received: accumulation_steps={steps} on {keras.backend.backend()}. Pass 1."
        )
    of_optimizer = getattr(getattr(optimizer, "inner_optimizer", optimizer), "gradient_accumulation_steps", None)
    if of_optimizer:
        raise ValueError(
            "`accumulation_steps` and the optimizer's `gradient_accumulation_steps` would both divide the batch.\n"
            f"Received: accumulation_steps={steps}, gradient_accumulation_steps={of_optimizer}. Leave the "
            "optimizer's out: its schedule and moving average count micro-batches."
        )
    check_means(losses, "`accumulation_steps`")


def accumulated_train_step(model: keras.Model, *arguments: Any) -> Any:
    """`model.train_step` over `model.accumulation_steps` micro-batches; the arguments are those of Keras' own.

    With Keras' `gradient_accumulation_steps` of an optimizer, a schedule runs k times too fast, a moving average is
    updated k times, metrics see micro-batches, and MirroredStrategy crashes. Here the optimizer is called once, with
    the mean of the gradients.

    Only the activations of one micro-batch are held at a time, and one more set of gradients. On TensorFlow dropout's
    masks are those of the whole batch; on JAX they are drawn anew for each part. Sample and class weights count as in
    the whole batch, and metrics see the predictions for all of it. The last batch of an epoch may be no multiple of k;
    it is filled up with images that count nothing.
    """
    return _TRAIN_STEPS[keras.backend.backend()](model, *arguments)


def _tensorflow_step(model: keras.Model, data: Any) -> dict[str, Tensor]:
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    steps = model.accumulation_steps
    mean, first = replica_share(x)
    whole = pad_batch(x, y, sample_weight, mean, steps)
    size = batch_size_of(whole[0]) // steps
    parts = map_tensors(lambda tensor: _split_batch(tensor, steps, -1), whole)
    variables = model.trainable_weights
    unconnected: set[int] = set()

    def one_part(index: Tensor) -> tuple[Tensor, list[Tensor], Any]:
        x, y, sample_weight = map_tensors(lambda part: part[index], parts)
        moves_on = tf.cast(index == steps - 1, "int32")
        with images_of_batch(first + index * size, size, moves_on):
            with tf.GradientTape() as tape:
                predictions = model(x, training=True)
                loss = model.compute_loss(x, y, predictions, sample_weight, training=True) / steps
                scaled = model.optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, variables)  # for which `rematerialize` draws the masks again
        unconnected.update(i for i, gradient in enumerate(gradients) if gradient is None)
        gradients = [tf.zeros_like(v) if g is None else g for g, v in zip(gradients, variables, strict=True)]
        return loss, gradients, predictions

    def body(index: Tensor, loss: Tensor, gradients: list[Tensor], predictions: list[Any]) -> tuple[Any, ...]:
        part_loss, part_gradients, part_predictions = one_part(index)
        gradients = [total + part for total, part in zip(gradients, part_gradients, strict=True)]
        predictions = [
            array.write(index, part)
            for array, part in zip(predictions, keras.tree.flatten(part_predictions), strict=True)
        ]
        return index + 1, loss + part_loss, gradients, predictions

    outputs = model.outputs
    arrays = [tf.TensorArray(output.dtype, steps, element_shape=[None, *output.shape[1:]]) for output in outputs]
    start = (0, tf.zeros(()), [tf.zeros(v.shape, v.dtype) for v in variables], arrays)
    _, loss, gradients, arrays = tf.while_loop(
        lambda index, *_: index < steps, body, start, parallel_iterations=1, maximum_iterations=steps
    )
    gradients = [None if index in unconnected else gradient for index, gradient in enumerate(gradients)]
    gradients = sync_overflow(gradients, model.optimizer)
    model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    predictions = keras.tree.pack_sequence_as(model.output, [array.concat() for array in arrays])
    return step_logs(model, x, y, predictions, sample_weight, loss, mean)


def _jax_step(model: keras.Model, state: Any, data: Any) -> tuple[Any, Any]:
    import jax

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    steps, marks = (
        model.accumulation_steps,
        padding_weights(sample_weight) if has_padding_weights(data) else None,
    )
    trainable, non_trainable, optimizer, metrics = state
    gradient_of = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)

    def one_part(carry: Any, part: Any) -> tuple[Any, Any]:
        gradients, loss, non_trainable, metrics = carry
        (_, (part_loss, predictions, non_trainable, metrics)), part_gradients = gradient_of(
            trainable, non_trainable, metrics, *part, training=True, optimizer_variables=optimizer
        )
        gradients = jax.tree.map(lambda total, new: total + new / steps, gradients, part_gradients)
        return (gradients, loss + part_loss / steps, non_trainable, metrics), predictions

    batch = batch_size_of(x)
    whole = pad_batch(x, y, marks[0] if marks else sample_weight, batch, steps)
    # Micro-batch i is every k-th image from i on, so that each holds images of every device where the batch is sharded.
    parts = jax.tree.map(lambda tensor: _split_batch(tensor, -1, steps).swapaxes(0, 1), whole)
    start = (jax.tree.map(jax.numpy.zeros_like, trainable), jax.numpy.zeros(()), non_trainable, metrics)
    (gradients, loss, non_trainable, metrics), predictions = jax.lax.scan(one_part, start, parts)
    trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable)
    predictions = jax.tree.map(lambda part: part.swapaxes(0, 1).reshape(-1, *part.shape[2:])[:batch], predictions)
    if marks:
        found, metrics = padded_step_logs(model, metrics, loss, y, predictions, sample_weight, *marks[1:])
    else:
        update = functools.partial(model.compute_metrics, x, y, predictions, sample_weight)
        found, metrics = stateless_step_logs(model, metrics, loss, batch, update)
    return found, (trainable, non_trainable, optimizer, metrics)


_TRAIN_STEPS: dict[str, Callable] = {"tensorflow": _tensorflow_step, "jax": _jax_step}


def _split_batch(tensor: Tensor, *shape: int) -> Tensor:
    """The tensor with its first axis cut in two."""
    return ops.reshape(tensor, (*shape, *tensor.shape[1:]))
