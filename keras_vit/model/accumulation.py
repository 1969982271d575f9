"""One training step over k micro-batches, for batches that do not fit into memory at once.

Keras' own `gradient_accumulation_steps` of an optimizer counts each micro-batch as a step. A schedule runs k times too
fast, a moving average is updated k times, metrics and logs see micro-batches, and MirroredStrategy crashes. Here the
gradients of k parts of the batch are averaged, and the optimizer is called once.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.checks import check_positive_int
from keras_vit.layers.dropout import images_of_batch
from keras_vit.model import batch_padding
from keras_vit.model.replicas import agreed, check_means, count, each, filled, logs, share, stateless_logs


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
    theirs = getattr(getattr(optimizer, "inner_optimizer", optimizer), "gradient_accumulation_steps", None)
    if theirs:
        raise ValueError(
            "`accumulation_steps` and the optimizer's `gradient_accumulation_steps` would both divide the batch.\n"
            f"Received: accumulation_steps={steps}, gradient_accumulation_steps={theirs}. Leave the optimizer's out: "
            "its schedule and moving average count micro-batches."
        )
    check_means(losses, "`accumulation_steps`")


def train_step(model: keras.Model, *arguments: Any) -> Any:
    """`model.train_step` over `model.accumulation_steps` micro-batches; the arguments are those of Keras' own.

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
    mean, first = share(x)
    whole = filled(x, y, sample_weight, mean, steps)
    size = count(whole[0]) // steps
    parts = each(lambda tensor: _cut(tensor, steps, -1), whole)
    variables = model.trainable_weights
    unconnected: set[int] = set()

    def one_part(index: Tensor) -> tuple[Tensor, list[Tensor], Any]:
        x, y, sample_weight = each(lambda part: part[index], parts)
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
    gradients = agreed(gradients, model.optimizer)
    model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
    predictions = keras.tree.pack_sequence_as(model.output, [array.concat() for array in arrays])
    return logs(model, x, y, predictions, sample_weight, loss, mean)


def _jax_step(model: keras.Model, state: Any, data: Any) -> tuple[Any, Any]:
    import jax

    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    steps, marks = (
        model.accumulation_steps,
        batch_padding.counted(sample_weight) if batch_padding.is_marked(data) else None,
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

    batch = count(x)
    whole = filled(x, y, marks[0] if marks else sample_weight, batch, steps)
    # Micro-batch i is every k-th image from i on, so that each holds images of every device where the batch is sharded.
    parts = jax.tree.map(lambda tensor: _cut(tensor, -1, steps).swapaxes(0, 1), whole)
    start = (jax.tree.map(jax.numpy.zeros_like, trainable), jax.numpy.zeros(()), non_trainable, metrics)
    (gradients, loss, non_trainable, metrics), predictions = jax.lax.scan(one_part, start, parts)
    trainable, optimizer = model.optimizer.stateless_apply(optimizer, gradients, trainable)
    predictions = jax.tree.map(lambda part: part.swapaxes(0, 1).reshape(-1, *part.shape[2:])[:batch], predictions)
    if marks:
        found, metrics = batch_padding.updated(model, metrics, loss, y, predictions, sample_weight, *marks[1:])
    else:
        update = functools.partial(model.compute_metrics, x, y, predictions, sample_weight)
        found, metrics = stateless_logs(model, metrics, loss, batch, update)
    return found, (trainable, non_trainable, optimizer, metrics)


_TRAIN_STEPS: dict[str, Callable] = {"tensorflow": _tensorflow_step, "jax": _jax_step}


def _cut(tensor: Tensor, *shape: int) -> Tensor:
    """The tensor with its first axis cut in two."""
    return ops.reshape(tensor, (*shape, *tensor.shape[1:]))
