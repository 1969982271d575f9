"""What trainings without labels share: batches by name, values by step, and sums over all devices of a batch.

Each loss is a number for each image, so that means over a batch are those over all devices.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Arguments, Rate, Tensor, Variable
from keras_vit.checks import ArgumentError, check_process
from keras_vit.model.replicated_model import ReplicatedModel, num_replicas
from keras_vit.training.masked_patches import MeanOverImages

_OWN = ("optimizer", "loss", "loss_weights", "metrics", "weighted_metrics")  # what a training decides itself


class ValuesByStep(keras.optimizers.schedules.LearningRateSchedule):
    """One value for each step; the last one holds on."""

    def __init__(self, values: Sequence[float] | np.ndarray) -> None:
        super().__init__()
        self.values = np.asarray(values, "float32")

    def __call__(self, step: Tensor) -> Tensor:
        place = ops.minimum(ops.cast(step, "int32"), len(self.values) - 1)
        return ops.take(ops.convert_to_tensor(self.values), place)

    def get_config(self) -> Arguments:
        return {"values": self.values.tolist()}


def schedule(name: str, value: Any, least: float = 0.0, most: float = np.inf, above: bool = False) -> Rate:
    """A number, an array of one value a step, or a schedule, as what Keras takes as a rate.

    Args:
        name: of the argument.
        value: of it.
        least: smallest value that is allowed.
        most: largest one.
        above: whether values must be above `least`.

    Raises:
        ValueError: for what is none of these, and for values out of range.
    """
    if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
        return value
    try:
        values = np.asarray(value, "float64")
    except (TypeError, ValueError):
        values = np.empty((0,))
    fits = values.ndim < 2 and values.size and np.isfinite(values).all() and not isinstance(value, bool)
    if not fits or values.min() < least or values.max() > most or (above and values.min() <= least):
        limits = f"{'above' if above else 'at least'} {least:g}" + ("" if most == np.inf else f" and at most {most:g}")
        raise ArgumentError(
            f"`{name}` must be a number, an array of one for each step, or a schedule of Keras; numbers {limits}.\n"
            f"Received: {name}={value!r:.200}."
        )
    return ValuesByStep(values) if values.ndim else float(values)


class UnlabeledModel(ReplicatedModel, keras.Model):
    """A model that trains an encoder without labels; its subclasses say by what.

    Attributes:
        inputs_by_name: what a batch must have, with the meaning of its axes.
        needs_batch: why parts of a batch would train otherwise, if they would.
        loss_names: of the numbers that `fit` shows besides the loss.
        step: how many steps were made, a variable.
    """

    needs_batch = ""
    inputs_by_name: ClassVar[Mapping[str, str]] = {}
    loss_names: tuple[str, ...] = ()

    def __init__(self, name: str) -> None:
        check_process()
        super().__init__(name=name)
        self.step = self.add_weight(
            name="step", shape=(), dtype="int32", initializer="zeros", trainable=False, aggregation="only_first_replica"
        )
        self._mean = MeanOverImages(name="mean_over_images", dtype="float32")
        self.loss_means = {each: keras.metrics.Mean(name=each) for each in self.loss_names}
        self.built = True

    def losses_of(
        self, x: dict[str, Tensor], found: Any, there: Tensor | None, training: bool | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss `(B,)` of each image, and the same of what `fit` shows.

        Args:
            x: the batch.
            found: what `call` gives.
            there: booleans `(B,)`, False for images that only fill up a device's share; `None` if there are none.
            training: whether this is a step of a training.
        """
        raise NotImplementedError

    def after_step(self) -> None:
        """What follows the optimizer's step."""
        self.step.assign_add(1)

    def fit(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Keras' `fit`, on batches without labels.

        Args:
            x: a dict of arrays, a data set or `keras.utils.PyDataset` of such dicts, a list of them, which is an epoch,
                or a generator. The last two keep their order.
            *args: as in `keras.Model.fit`.
            **kwargs: as in `keras.Model.fit`.
        """
        batches = _as_tuples(x)
        if batches is not x:
            kwargs.setdefault("shuffle", False)
        return super().fit(batches, *args, **kwargs)

    def train_step(self, *args: Any) -> Any:
        if keras.backend.backend() != "jax":
            logs = super().train_step(*args)
            self.after_step()
            return logs
        logs, (trainable, non_trainable, *others) = super().train_step(*args)
        mapping = [*zip(self.trainable_variables, trainable, strict=True)]
        mapping += zip(self.non_trainable_variables, non_trainable, strict=True)
        with keras.StatelessScope(state_mapping=mapping) as scope:
            self.after_step()
            moved = [scope.get_current_value(variable) for variable in self.non_trainable_variables]
        return logs, (trainable, moved, *others)

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """What Keras calls before a step on torch, which would not find layers that stand in a dict."""
        for variable in self.trainable_variables:
            variable.value.grad = None

    def compile_with(self, optimizer: Any, arguments: Arguments) -> None:
        """Keras' `compile` with an optimizer; raises for what is decided here."""
        if "accumulation_steps" in arguments or getattr(optimizer, "gradient_accumulation_steps", None):
            raise ArgumentError(
                f"{type(self).__name__} takes its gradients of a whole batch{self.needs_batch}.\n"
                "Received: accumulated gradients. Leave them out; memory is saved by `rematerialize=True` in the "
                "encoder's config, smaller crops or more devices.",
                parameters=("accumulation_steps",),
            )
        given = inspect.signature(keras.Model.compile).bind(self, **arguments).arguments
        if refused := [name for name in _OWN if given.get(name) is not None]:
            raise ArgumentError(
                f"{type(self).__name__} sets its losses and metrics, and what is left open of the optimizer.\n"
                f"Received: {', '.join(refused)}. Leave them out.",
                parameters=tuple(refused),
            )
        super().compile(optimizer, **arguments)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Tensor = None,
        training: bool | None = True,
    ) -> Tensor:
        """The mean over the images of all devices. Labels are ignored."""
        there = None if sample_weight is None else ops.convert_to_tensor(sample_weight) > 0
        total, shown = self.losses_of(x, y_pred, there, training)
        for name, values in shown.items():
            self.loss_means[name].update_state(values, sample_weight=there)
        return self._mean(total, total, sample_weight=sample_weight)

    def check_batch(self, x: Any) -> None:
        """Raises unless a batch has all that it must have, with axes as many as their names."""
        needed = ", ".join(f"{name!r} {axes}" for name, axes in self.inputs_by_name.items())
        if not isinstance(x, dict):
            raise ArgumentError(
                f"a batch must be a dict of {needed}.\nReceived: {type(x).__name__}.", parameters=("x",)
            )
        if missing := [name for name in self.inputs_by_name if name not in x]:
            raise ArgumentError(
                f"a batch must be a dict of {needed}.\nReceived: {', '.join(map(repr, x)) or 'nothing'}, and no "
                f"{' and no '.join(map(repr, missing))}.",
                parameters=tuple(missing),
            )
        for name, axes in self.inputs_by_name.items():
            shape = tuple(x[name].shape)
            if len(shape) != axes.count(",") + 1:
                raise ArgumentError(f"`{name}` must be {axes}.\nReceived: shape {shape}.")


class _Batches(keras.utils.PyDataset):
    """A list of batches, which Keras takes in a tuple each."""

    def __init__(self, batches: Sequence[Any]) -> None:
        super().__init__()
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return (self.batches[index],)


def _as_tuples(x: Any) -> Any:
    """Batches from a generator or list as Keras takes them; all else as it is."""
    if isinstance(x, (list, tuple)) and x and isinstance(x[0], dict):
        return _Batches(x)
    if isinstance(x, Iterator) and not hasattr(x, "element_spec"):
        return ((batch,) if isinstance(batch, dict) else batch for batch in x)
    return x


def flat_views(crops: Tensor) -> Tensor:
    """Crops `(B, V, H, W, C)` as images `(B V, H, W, C)`, those of an image one after the other.

    In this order devices that share a batch draw the same dropout as one.
    """
    return ops.reshape(crops, (-1, *crops.shape[2:]))


def by_view(rows: Tensor, views: int) -> Tensor:
    """Rows `(B V, ...)` of `flat_views` as `(V, B, ...)`."""
    rows = ops.reshape(rows, (-1, views, *rows.shape[1:]))
    return ops.swapaxes(rows, 0, 1)


def sum_of_all_devices(model: keras.Model, tensor: Tensor) -> Tensor:
    """The sum of the tensors of all devices of a strategy, with gradients to each. On JAX a batch is whole already."""
    if num_replicas(model) == 1:
        return tensor
    import tensorflow as tf

    return tf.distribute.get_replica_context().all_reduce("SUM", tensor)


def assign_on_all_devices(
    model: keras.Model, pairs: Sequence[tuple[Variable, Variable]], function: Callable[..., Tensor], *scalars: Tensor
) -> None:
    """Gives each first variable `function(first, second, *scalars)`, on every device."""
    if num_replicas(model) == 1:
        for kept, new in pairs:
            kept.assign(function(kept, new, *scalars))
        return
    import tensorflow as tf

    def update(kept: Any, new: Any, *scalars: Any) -> Any:
        return kept.assign(function(kept, new, *scalars))

    def on_all(strategy: Any, *scalars: Any) -> None:
        for kept, new in pairs:
            strategy.extended.update(kept.value, update, args=(new.value, *scalars), group=False)

    tf.distribute.get_replica_context().merge_call(on_all, args=scalars)
