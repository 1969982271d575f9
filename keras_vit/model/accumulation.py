"""One training step over k micro-batches, for batches that do not fit into memory at once.

Keras' own `gradient_accumulation_steps` of an optimizer takes each micro-batch for a step: a schedule runs k times
too fast, a moving average is updated k times, metrics and logs see micro-batches, and MirroredStrategy crashes. Here
a step is a step: the gradients of k parts of the batch are averaged, and the optimizer is called once.
"""

from collections.abc import Callable

import keras
from keras import ops

from keras_vit.checks import check_positive_int
from keras_vit.keras_private import track_loss, updated_metrics

MEANS = ("sum_over_batch_size", "mean")  # reductions whose mean over equal parts is that of the whole


def check_accumulation(steps, optimizer, losses) -> None:
    """Raises unless accumulation over `steps` micro-batches gives what the whole batch would give.

    Args:
        steps: k.
        optimizer: a Keras optimizer, or `None`.
        losses: the `loss` of `compile`: what has a `reduction` must be a mean over the batch. (Of a function of your
            own nothing tells; it must be one value per image.)

    Raises:
        TypeError, ValueError: for steps below 1; and above 1, for an optimizer that accumulates itself, for a loss
            that is no mean over the batch, and on the torch backend.
    """
    check_positive_int("accumulation_steps", steps)
    if steps == 1:
        return
    if keras.backend.backend() not in _TRAIN_STEPS:
        raise ValueError(
            "accumulation runs on the TensorFlow and JAX backends.\n"
            f"Received: accumulation_steps={steps} on {keras.backend.backend()}. Pass 1."
        )
    theirs = getattr(getattr(optimizer, "inner_optimizer", optimizer), "gradient_accumulation_steps", None)
    if theirs:
        raise ValueError(
            "`accumulation_steps` and the optimizer's `gradient_accumulation_steps` would both divide the batch.\n"
            f"Received: accumulation_steps={steps}, gradient_accumulation_steps={theirs}. Leave the optimizer's out: "
            "its schedule and moving average count micro-batches."
        )
    for loss in keras.tree.flatten(losses):
        reduction = getattr(loss, "reduction", MEANS[0])
        if reduction not in MEANS:
            raise ValueError(
                "`accumulation_steps` needs a loss that is a mean over the batch, for the micro-batches' losses are "
                f"averaged.\nReceived: {loss!r} with reduction={reduction!r}. Pass one of {MEANS}."
            )
        if getattr(loss, "ignore_class", None) is not None:
            raise ValueError(
                "`accumulation_steps` needs a loss that counts every image, and `ignore_class` divides each "
                f"micro-batch by what is left of it.\nReceived: {loss!r} with ignore_class={loss.ignore_class}. "
                "Give those images a sample weight of 0."
            )


def train_step(model, *arguments):
    """`model.train_step` over `model.accumulation_steps` micro-batches; the arguments are those of Keras' own.

    Only one micro-batch's activations are held at a time, and one set of gradients more than without. Dropout draws
    anew for each. Sample and class weights count as in the whole batch, and metrics see the predictions for all of it.
    A batch (of one replica) that is no multiple of k, as the last of an epoch may be, is filled up with images that
    count nothing.
    """
    return _TRAIN_STEPS[keras.backend.backend()](model, *arguments)


def _tensorflow_step(model, data):
    import tensorflow as tf

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    steps = model.accumulation_steps
    parts = _map(lambda tensor: _cut(tensor, steps, -1), _filled(x, y, sample_weight, steps))
    variables = model.trainable_weights
    unconnected: set[int] = set()

    def one_part(index):
        x, y, sample_weight = _map(lambda part: part[index], parts)
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = model.compute_loss(x, y, predictions, sample_weight, training=True) / steps
            scaled = model.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, variables)
        unconnected.update(i for i, gradient in enumerate(gradients) if gradient is None)
        gradients = [tf.zeros_like(v) if g is None else g for g, v in zip(gradients, variables, strict=True)]
        return loss, gradients, predictions

    def body(index, loss, gradients, predictions):
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
    model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    batch = ops.shape(keras.tree.flatten(x)[0])[0]
    predictions = keras.tree.pack_sequence_as(model.output, [array.concat()[:batch] for array in arrays])
    return _tensorflow_logs(model, x, y, predictions, sample_weight, loss)


def _tensorflow_logs(model, x, y, predictions, sample_weight, loss):
    import tensorflow as tf

    # Keras divides the loss by the replicas, so that their gradients can be summed; what is shown is not divided.
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    track_loss(model, loss * replicas, ops.shape(keras.tree.flatten(x)[0])[0])
    return model.compute_metrics(x, y, predictions, sample_weight=sample_weight)


def _jax_step(model, state, data):
    import jax

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    steps = model.accumulation_steps
    trainable, non_trainable, optimizer, metrics = state
    gradient_of = jax.value_and_grad(model.compute_loss_and_updates, has_aux=True)

    def one_part(carry, part):
        gradients, loss, non_trainable, metrics = carry
        (_, (part_loss, predictions, non_trainable, metrics)), part_gradients = gradient_of(
            trainable, non_trainable, metrics, *part, training=True, optimizer_variables=optimizer
        )
        gradients = jax.tree.map(lambda total, new: total + new / steps, gradients, part_gradients)
        return (gradients, loss + part_loss / steps, non_trainable, metrics), predictions

    filled, batch = _filled(x, y, sample_weight, steps), keras.tree.flatten(x)[0].shape[0]
    # Micro-batch i is every k-th image from i on: so each holds some of every device's, where the batch is sharded.
    parts = jax.tree.map(lambda tensor: _cut(tensor, -1, steps).swapaxes(0, 1), filled)
    start = (jax.tree.map(jax.numpy.zeros_like, trainable), jax.numpy.zeros(()), non_trainable, metrics)
    (gradients, loss, non_trainable, metrics), predictions = jax.lax.scan(one_part, start, parts)
    trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable)
    predictions = jax.tree.map(lambda part: part.swapaxes(0, 1).reshape(-1, *part.shape[2:])[:batch], predictions)
    logs, metrics = updated_metrics(model, metrics, loss, x, y, predictions, sample_weight)
    return logs, (trainable, non_trainable, optimizer, metrics)


_TRAIN_STEPS: dict[str, Callable] = {"tensorflow": _tensorflow_step, "jax": _jax_step}


def _filled(x, y, sample_weight, steps):
    """The batch with as many images as are a multiple of `steps`: the last one again, with a sample weight of 0.

    The mean over the larger batch is that over the given one, since the others' weights grow as it does. Losses of
    layers and regularisers, which have no sample weights, stay as they are.
    """
    batch = ops.shape(keras.tree.flatten(x)[0])[0]
    if isinstance(batch, int) and batch % steps == 0:
        return x, y, sample_weight
    size = (batch + steps - 1) // steps * steps
    rows = ops.minimum(ops.arange(size), batch - 1)
    counts = ops.where(ops.arange(size) < batch, ops.cast(size, "float32") / ops.cast(batch, "float32"), 0.0)

    def again(tensor):
        return ops.take(tensor, rows, axis=0)

    def weighed(weights):
        return ops.cast(again(weights), "float32") * ops.reshape(counts, (-1, *[1] * (len(weights.shape) - 1)))

    return *_map(again, (x, y)), counts if sample_weight is None else _map(weighed, sample_weight)


def _cut(tensor, *shape):
    """The first axis in two."""
    return ops.reshape(tensor, (*shape, *tensor.shape[1:]))


def _map(function, data):
    """`function` of every tensor; what is not given, as sample weights, stays `None`."""
    return keras.tree.map_structure(lambda tensor: None if tensor is None else function(tensor), data)
