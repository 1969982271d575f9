"""What a training changes, in groups of variables: of the model, of its optimizer, and of others that it holds.

Keras knows the first two. A model's own `train_step` may move more: a second optimizer, a metric that `metrics` does
not name, a variable of TensorFlow. They are found in the attributes of the model and of its layers.
"""

from collections.abc import Collection, Iterator
from typing import Any

import keras

from keras_vit.annotations import Variable
from keras_vit.layers.configurable import flatten_layers
from keras_vit.model.replicated_model import num_replicas
from keras_vit.model.training_step import num_batch_shards
from keras_vit.training.resuming.coordination import processes

MODEL, OPTIMIZER, OTHERS = "model", "optimizer", "others"
_COMPILE_ATTRIBUTES = ("_loss_tracker", "_compile_metrics", "_compile_loss")  # of an inner model, which nobody updates
_TENSORFLOW_PREFIX = "_self_"  # its own lists of what other attributes hold
_MOST_SHOWN = 8


class TrainingState:
    """The variables of a training.

    Args:
        model: compiled, as its first step finds it.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._before = {id(variable) for _, variable in self._known()}
        self._others: list[Variable] | None = None

    def groups(self, has_optimizer: bool = True) -> list[tuple[str, list[Variable]]]:
        """`(name, variables)` of what is saved whole.

        Args:
            has_optimizer: whether `model.optimizer` has made a step; one that `train_step` leaves alone is not saved.
        """
        if keras.backend.backend() == "jax":
            self._model.jax_state_sync()
        model, optimizer = self._model, self._model.optimizer
        groups = [(MODEL, model.variables)]
        if has_optimizer and optimizer is not None:
            if not optimizer.built:
                optimizer.build(model.trainable_variables)
            groups.append((OPTIMIZER, optimizer.variables))
        if self._others is None:
            self._others = [variable for _, variable in _others(model)]
        return [*groups, (OTHERS, self._others)]

    def check_complete(self) -> None:
        """Refuses, after the first step, what was made in it: a new process could not be given its values.

        Raises:
            ValueError: for such variables.
        """
        made = list(dict.fromkeys(name for name, each in self._known() if id(each) not in self._before))
        if not made:
            return
        more = f" and {len(made) - _MOST_SHOWN} more" if len(made) > _MOST_SHOWN else ""
        raise ValueError(
            "a run goes on by giving every variable its value again, so all must be there before `fit`.\n"
            f"Received: {type(self._model).__name__}, whose first step has made "
            f"{', '.join(made[:_MOST_SHOWN])}{more}. Build optimizers of your own, as "
            "model.d_optimizer.build(model.discriminator.trainable_variables); make variables in `__init__` or "
            "`build`; and build the model, as by model.build(input_shape)."
        )

    def _known(self) -> Iterator[tuple[str, Variable]]:
        """What `fit` does not make by itself, as it does the state of `model.optimizer` and of metrics."""
        yield from ((variable.path, variable) for variable in self._model.variables)
        yield from _others(self._model)


def count_examples(model: keras.Model) -> int | None:
    """Examples of the running epoch up to now, as Keras' mean of the loss counts them.

    `None` where nothing counts them, and where devices share batches, which may be filled up.
    """
    if processes()[1] > 1 or num_replicas(model) > 1 or num_batch_shards() > 1:
        return None
    loss = next((metric for metric in model.metrics if metric.name == "loss" and hasattr(metric, "count")), None)
    return (round(float(keras.ops.convert_to_numpy(loss.count))) or None) if loss is not None else None


def _others(model: keras.Model) -> Iterator[tuple[str, Variable]]:
    """`(name, variable)` of what the model and its layers hold besides what Keras lists, each once, in their order."""
    listed = [*model.variables, *model.metrics_variables]
    listed += model.optimizer.variables if model.optimizer is not None else []
    seen = {id(variable) for variable in listed}
    for layer in flatten_layers(model):
        for name, held in vars(layer).items():
            skipped = name in _COMPILE_ATTRIBUTES or name.startswith(_TENSORFLOW_PREFIX)
            for variable in () if skipped else _variables_in(held, layer):
                if id(variable) not in seen:
                    seen.add(id(variable))
                    yield name, variable


def _variables_in(held: Any, layer: keras.Layer) -> Collection[Variable]:
    """The variables of an attribute of a layer, which may be a list or a dict of what holds some."""
    if isinstance(held, keras.optimizers.Optimizer):
        # One that is not built has made no step, and that of a frozen inner model makes none.
        return held.variables if held.built and layer.trainable_variables else ()
    if isinstance(held, keras.metrics.Metric):
        return held.variables
    if isinstance(held, keras.random.SeedGenerator):
        return (held.state,)
    if isinstance(held, dict):
        held = list(held.values())
    if isinstance(held, (list, tuple, set)):
        return [variable for each in held for variable in _variables_in(each, layer)]
    return (held,) if _is_variable(held) else ()


def _is_variable(held: Any) -> bool:
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return isinstance(held, (keras.Variable, tf.Variable))
    return isinstance(held, keras.Variable)
