"""A model that several devices of a TensorFlow strategy train, evaluate and ask as one device would."""

import contextlib
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import keras

from keras_vit.annotations import Variable
from keras_vit.keras_private import HookedModel, build_metrics
from keras_vit.model.input_checks import check_weights_learn
from keras_vit.model.openvino_steps import openvino_step
from keras_vit.model.replicas import each, predict_step, test_step, train_step
from keras_vit.model.strategies import (
    check_engine,
    check_replicated,
    mend_optimizer,
    num_replicas,
    own_scope,
    step_by_step,
)


class ReplicatedModel(HookedModel):
    """Takes Keras' steps for one device, and for several those in which each image of a batch counts once.

    It stands before `keras.Model` among the bases of a model, and is none itself: Keras makes the bases of a functional
    model functional for good, so that one of another kind could not have them.
    """

    train_function: Any  # Keras sets them in `compile`
    test_function: Any
    metric_functions: tuple[Callable, ...] = ()

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Keras' `compile`, in the scope of the model's strategy.

        Raises:
            ValueError: for what a strategy of several devices cannot compute.
        """
        given = inspect.signature(keras.Model.compile).bind(self, *args, **kwargs).arguments
        check_engine()
        metrics = keras.tree.flatten((given.get("metrics"), given.get("weighted_metrics")))
        self.metric_functions = tuple(filter(_is_function, metrics))
        with own_scope(self):
            super().compile(*args, **kwargs)
        check_replicated(self, given)
        mend_optimizer(self)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' `fit`, whose failure is told to callbacks that have `on_train_failure`."""
        callbacks = inspect.signature(keras.Model.fit).bind(self, *args, **kwargs).arguments.get("callbacks")
        try:
            return super().fit(*args, **kwargs)
        except BaseException:
            for callback in getattr(callbacks, "callbacks", callbacks) or ():
                getattr(callback, "on_train_failure", _nothing)()
            raise

    def train_step(self, *args: Any) -> Any:
        return train_step(self, *args) if num_replicas(self) > 1 else super().train_step(*args)

    def test_step(self, *args: Any) -> Any:
        if keras.backend.backend() == "openvino":
            return openvino_step(self, super().test_step, *args)
        return test_step(self, *args) if num_replicas(self) > 1 else super().test_step(*args)

    def predict_step(self, *args: Any) -> Any:
        if keras.backend.backend() == "openvino":
            return openvino_step(self, super().predict_step, *args)
        return predict_step(self, *args) if num_replicas(self) > 1 else super().predict_step(*args)

    def predict_on_batch(self, x: Any) -> Any:
        """Keras' `predict_on_batch`, which on several devices has all images once for each device."""
        found = super().predict_on_batch(x)
        if num_replicas(self) == 1:
            return found
        size = len(keras.tree.flatten(x)[0])
        return each(lambda rows: rows[:size], found)

    def make_train_function(self, force: bool = False) -> Any:
        if self.train_function is None or force:
            check_weights_learn(self)
            super().make_train_function(force)
            if num_replicas(self) > 1 and self.steps_per_execution > 1:
                self.train_function = step_by_step(self.train_function)
            elif num_replicas(self) == 1 and keras.backend.backend() == "tensorflow":
                self.train_function = _built_before(self, self.train_function)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        if self.test_function is None or force:
            super().make_test_function(force)
            if num_replicas(self) > 1 and self.steps_per_execution > 1:
                self.test_function = step_by_step(self.test_function)
        return self.test_function


def _is_function(metric: Any) -> bool:
    """Whether a metric of `compile` is a function of labels and answers."""
    return callable(metric) and not isinstance(metric, (type, keras.metrics.Metric))


def _nothing() -> None:
    """What is called of a callback without `on_train_failure`."""


def _built_before(model: keras.Model, steps: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keras' train function on TensorFlow, in which no variable of optimizer or metrics is left to be made.

    TensorFlow traces a function that makes variables twice, which doubles the time until the first step is done. And
    moments that are made in a step lie among its arrays, so that the next steps take 0.2 GiB more for B/16. For the
    same reason weights that lie in memory of NumPy are moved before. A step of B/16 that moved some took up to 0.4 GiB
    more.
    """
    is_first = True

    def function(iterator: Any) -> Any:
        nonlocal is_first
        if is_first:
            if hasattr(iterator, "element_spec"):
                batch = iterator.element_spec
            else:  # `train_on_batch` has a generator of one
                batch = next(iterator)
                iterator = iter([batch])
            _move_into_tensorflow(model.trainable_variables)
            with contextlib.suppress(Exception):  # for data that do not fit the step itself raises a clearer error
                build_metrics(model, batch)
        is_first = False
        return steps(iterator)

    return function


def _move_into_tensorflow(variables: Iterable[Variable]) -> None:
    """Copies variables on the CPU into memory of TensorFlow.

    One that was assigned an array of NumPy may share its memory. TensorFlow writes into no such memory, and so copies
    the variable at its first update.
    """
    import tensorflow as tf

    for variable in variables:
        value = variable.value
        if isinstance(value, tf.Variable) and value.device.endswith("CPU:0"):
            value.assign(tf.raw_ops.DeepCopy(x=value))
