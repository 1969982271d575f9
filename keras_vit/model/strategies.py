"""TensorFlow's strategies as a model meets them: which it takes, what `compile` refuses and mends for several devices.

What a backend would leave out without a word is refused here too. What each device computes is in `replicas`.
"""

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras

from keras_vit.annotations import Variable
from keras_vit.keras_private import clip_after_sum
from keras_vit.layers.dropout import current_place
from keras_vit.model.replicas import check_means

KINDS = ("MirroredStrategy", "TPUStrategy", "TPUStrategyV2", "OneDeviceStrategy", "_DefaultDistributionStrategy")


def num_replicas(model: keras.Model) -> int:
    """Devices that share this model's batches by a strategy of TensorFlow; 1 on other backends."""
    strategy = getattr(model, "distribute_strategy", None)
    return 1 if strategy is None else strategy.num_replicas_in_sync


def check_engine() -> None:
    """Raises for an option of Keras that the backend, or this package, would not look at.

    Raises:
        ValueError: for `keras.distribution` on another backend than JAX.
    """
    backend = keras.backend.backend()
    distribution = keras.distribution.distribution()
    if backend != "jax" and distribution is not None:
        raise ValueError(
            "`keras.distribution` spreads models and batches on the JAX backend only; others would not look at it.\n"
            f"Received: {type(distribution).__name__} on {backend}. Set KERAS_BACKEND=jax, or "
            "`keras.distribution.set_distribution(None)` and, on TensorFlow, `keras_vit.strategy`."
        )


def check_strategy(strategy: Any) -> None:
    """Raises for a strategy of TensorFlow under which Keras does not train right.

    Raises:
        ValueError: for another one than those of `KINDS`, as `MultiWorkerMirroredStrategy`.
    """
    import tensorflow as tf

    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise ValueError(
            "Keras 3 does not train under MultiWorkerMirroredStrategy; several hosts are for the JAX backend.\n"
            f"Received: {type(strategy).__name__}. Set KERAS_BACKEND=jax and use `keras.distribution`; for the "
            'devices of one machine `keras_vit.strategy("mirrored")`.'
        )
    if not {kind.__name__ for kind in type(strategy).__mro__} & set(KINDS):
        raise ValueError(
            "a strategy must be MirroredStrategy or TPUStrategy, as `keras_vit.strategy` gives them.\n"
            f"Received: {type(strategy).__name__}."
        )


def check_scope(model: keras.Model) -> None:
    """Raises where a model that was built for other devices meets a strategy.

    Raises:
        ValueError: in the scope of a strategy that the model was not built in, and for a strategy that is not taken.
    """
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    own, here = model.distribute_strategy, tf.distribute.get_strategy()  # the same for a model built in none
    check_strategy(own)
    if tf.distribute.has_strategy() and (own is not here or not _made_in_scope(model.weights, here)):
        raise ValueError(
            "a model is trained by the strategy in whose scope it was built, and must be compiled in that one.\n"
            f"Received: {model.name!r}, built in another scope or in none, under {type(here).__name__}. "
            "Build it inside of `with keras_vit.strategy(...):` too."
        )


def warn_of_foreign_step(training: bool | None) -> None:
    """Warns where several devices train through another model's step, as one that a user has wrapped around ours."""
    if not training or keras.backend.backend() != "tensorflow" or current_place() is not None:
        return
    import tensorflow as tf

    if tf.distribute.in_cross_replica_context() or tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return
    warnings.warn(
        "a model or loop of your own trains this model on several devices, with Keras' steps: those clip gradients "
        "before they add them up, count an uneven last batch wrongly or fail, and draw each device's masks alike. "
        "Build the head by `classes=`, or train on one device.",
        stacklevel=2,
    )


def own_scope(model: keras.Model) -> contextlib.AbstractContextManager:
    """The scope of the model's strategy, in which its optimizer and metrics must be made; see `check_scope`."""
    check_scope(model)
    return model.distribute_strategy.scope() if num_replicas(model) > 1 else contextlib.nullcontext()


def check_replicated(model: keras.Model, given: Mapping[str, Any]) -> None:
    """Raises for what several devices cannot compute as one would, once the model is compiled.

    Args:
        model: made in the scope of its strategy.
        given: arguments of `compile`.

    Raises:
        ValueError: for XLA, for a loss that is no mean over the batch, and for an optimizer that accumulates or
            overwrites weights by itself. Also for an optimizer or metric that was made out of the scope.
    """
    devices = num_replicas(model)
    if devices == 1:
        return
    if given.get("jit_compile") is True:
        raise ValueError(
            "XLA cannot compile a step of several devices, which add their gradients up in it.\n"
            f"Received: jit_compile=True under a strategy of {devices} devices. Leave `jit_compile` out."
        )
    check_means(model.loss, "a batch that several devices share")
    for optimizer in _optimizers(model):
        _check_optimizer(optimizer, devices)
    metrics = keras.tree.flatten((given.get("metrics"), given.get("weighted_metrics")))
    for metric in metrics:
        if type(metric) is keras.metrics.MeanMetricWrapper:
            raise ValueError(
                "a metric's function must give a number for each image where several devices share a batch, and "
                f"`MeanMetricWrapper` does not show its function.\nReceived: {metric.name!r}. Pass the function itself."
            )
    parts = [model.optimizer, *_optimizers(model), *metrics]
    for part in parts:
        if not _made_in_scope(getattr(part, "variables", ()), model.distribute_strategy):
            raise ValueError(
                "the optimizer and metrics of several devices must be made in the scope of their strategy, or each "
                f"device counts by itself.\nReceived: {part.name!r} from outside. Make it inside of "
                "`with keras_vit.strategy(...):`."
            )


def _optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The model's optimizer without loss scaling; of `keras.optimizers.MultiOptimizer` all of them."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return [] if optimizer is None else getattr(optimizer, "optimizers", [optimizer])


def _check_optimizer(optimizer: keras.optimizers.Optimizer, devices: int) -> None:
    refused = {
        "gradient_accumulation_steps": "Pass `accumulation_steps` to `compile`.",
        "ema_overwrite_frequency": "Use `keras.callbacks.SwapEMAWeights`, or read the average from the optimizer.",
    }
    for name, advice in refused.items():
        if value := getattr(optimizer, name, None):
            raise ValueError(
                f"Keras' optimizers fail with `{name}` where several devices share a batch.\n"
                f"Received: {name}={value} under a strategy of {devices} devices. {advice}"
            )


def _made_in_scope(variables: Iterable[Variable], strategy: Any) -> bool:
    return all(strategy.extended.variable_created_in_scope(variable.value) for variable in variables)


def mend_optimizer(model: keras.Model) -> None:
    """Lets an optimizer of Keras' own clip the gradients of all devices, not of each; ours do so anyway."""
    if num_replicas(model) > 1:
        for optimizer in _optimizers(model):
            clip_after_sum(optimizer)


def step_by_step(steps: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keras' function of several steps, `steps_per_execution` of them, as one call for each.

    Its own loop is a graph, in which the devices' sums fail. For batches that are no iterator of TensorFlow it loops in
    Python. So nothing is faster, and callbacks are called as often as on one device. Batches are taken out of the
    graph: in it, a step that finds none has moved seeds and counters on by the time it fails.
    """
    import tensorflow as tf

    def function(iterator: Any) -> Any:
        try:
            first = next(iterator)
        except tf.errors.OutOfRangeError as error:
            raise StopIteration from error
        return steps(itertools.chain([first], iterator))

    return function
