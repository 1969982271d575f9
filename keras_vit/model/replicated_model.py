"""A model that several devices of a TensorFlow strategy train, evaluate and predict with as one device would.

Which strategies it takes, and what `compile` refuses and corrects for several devices. Options that a backend would
ignore silently are refused too. What each device computes is in `training_step`.
"""

import contextlib
import inspect
import itertools
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import keras

from keras_vit.annotations import Variable
from keras_vit.keras_private import HookedModel, build_metrics, clip_after_sum
from keras_vit.layers.dropout import current_place
from keras_vit.model.input_checks import check_weights_learn
from keras_vit.model.training_step import (
    check_means,
    map_tensors,
    replica_predict_step,
    replica_test_step,
    replica_train_step,
)
from keras_vit.silence import keep_signal_stack

_PRECISION = "INFERENCE_PRECISION_HINT"
_LOCK = threading.RLock()
_COMPILED_FOR: weakref.WeakKeyDictionary[Any, list] = weakref.WeakKeyDictionary()


def openvino_step(model: keras.Model, step: Callable[[Any], Any], data: Any) -> Any:
    """What Keras' `predict_step` or `test_step` gives on the OpenVINO backend, in float32 and for the current weights.

    OpenVINO computes in bfloat16 where the processor has it, unless a precision is given, and Keras gives none. Keras
    compiles a model once, and older versions for one batch size.

    Args:
        model: whose step it is.
        step: Keras' own.
        data: of the step.

    Raises:
        RuntimeError: if Keras has compiled the model for another precision all the same.
    """
    import openvino

    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    with _LOCK, _compiling_in_float32(), keep_signal_stack():
        if not _is_compiled_for(model, x):
            model.ov_compiled_model = None  # so that Keras compiles it anew
        _COMPILED_FOR[model] = _values(model)
        found = step(data)
        compiled = model.ov_compiled_model
    if compiled is not None and compiled.get_property(_PRECISION) != openvino.Type.f32:
        raise RuntimeError(
            "a model must compute in float32 on the OpenVINO backend, as on every other one.\n"
            f"Received: {compiled.get_property(_PRECISION)} by Keras {keras.__version__}. Call "
            '`keras_vit.accelerate(model, "openvino")` on TensorFlow.'
        )
    return found


def _values(model: keras.Model) -> list:
    return [weight.value for weight in model.weights]


def _is_compiled_for(model: keras.Model, x: Any) -> bool:
    """Whether a model's network has the current weights, and takes batches like `x`."""
    import openvino

    compiled, before, now = model.ov_compiled_model, _COMPILED_FOR.get(model, []), _values(model)
    if compiled is None or len(before) != len(now) or any(a is not b for a, b in zip(before, now, strict=True)):
        return False
    shapes = [openvino.PartialShape(list(tensor.shape)) for tensor in keras.tree.flatten(x)]
    return all(port.partial_shape.compatible(shape) for port, shape in zip(compiled.inputs, shapes, strict=True))


@contextlib.contextmanager
def _compiling_in_float32() -> Iterator[None]:
    """Inside, `openvino.compile_model` computes in float32 unless another precision is given."""
    import openvino

    compile_model = openvino.compile_model

    def in_float32(model: Any, device_name: str = "AUTO", config: dict | None = None) -> Any:
        return compile_model(model, device_name, {_PRECISION: "f32", **(config or {})})

    openvino.compile_model = in_float32
    try:
        yield
    finally:
        openvino.compile_model = compile_model


KINDS = ("MirroredStrategy", "TPUStrategy", "TPUStrategyV2", "OneDeviceStrategy", "_DefaultDistributionStrategy")


def num_replicas(model: keras.Model) -> int:
    """Devices that share this model's batches by a strategy of TensorFlow; 1 on other backends."""
    strategy = getattr(model, "distribute_strategy", None)
    return 1 if strategy is None else strategy.num_replicas_in_sync


def check_distribution_backend() -> None:
    """Raises for an option of Keras that the backend, or this package, would ignore.

    Raises:
        ValueError: for `keras.distribution` on another backend than JAX.
    """
    backend = keras.backend.backend()
    distribution = keras.distribution.distribution()
    if backend != "jax" and distribution is not None:
        raise ValueError(
            "`keras.distribution` spreads models and batches on the JAX backend only; others would ignore it.\n"
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
    """Raises where a model that was built for other devices is used under a strategy.

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


def warn_custom_train_step(training: bool | None) -> None:
    """Warns where several devices train through another model's step, as that of a user's model around this one."""
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


def strategy_scope(model: keras.Model) -> contextlib.AbstractContextManager:
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


def fix_gradient_clipping(model: keras.Model) -> None:
    """Makes an optimizer of Keras clip the summed gradients of all devices; those of this package do so anyway."""
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


class ReplicatedModel(HookedModel):
    """Takes Keras' steps for one device, and for several those in which each image of a batch counts once.

    It stands before `keras.Model` among the bases of a model, and is none itself: Keras makes the bases of a functional
    model functional permanently, so that a model of another kind could not have them.
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
        check_distribution_backend()
        metrics = keras.tree.flatten((given.get("metrics"), given.get("weighted_metrics")))
        self.metric_functions = tuple(filter(_is_function, metrics))
        with strategy_scope(self):
            super().compile(*args, **kwargs)
        check_replicated(self, given)
        fix_gradient_clipping(self)

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Keras' `fit`, which on an error calls `on_train_failure` of callbacks that have it."""
        callbacks = inspect.signature(keras.Model.fit).bind(self, *args, **kwargs).arguments.get("callbacks")
        try:
            return super().fit(*args, **kwargs)
        except BaseException:
            for callback in getattr(callbacks, "callbacks", callbacks) or ():
                getattr(callback, "on_train_failure", _nothing)()
            raise

    def train_step(self, *args: Any) -> Any:
        return replica_train_step(self, *args) if num_replicas(self) > 1 else super().train_step(*args)

    def test_step(self, *args: Any) -> Any:
        if keras.backend.backend() == "openvino":
            return openvino_step(self, super().test_step, *args)
        return replica_test_step(self, *args) if num_replicas(self) > 1 else super().test_step(*args)

    def predict_step(self, *args: Any) -> Any:
        if keras.backend.backend() == "openvino":
            return openvino_step(self, super().predict_step, *args)
        return replica_predict_step(self, *args) if num_replicas(self) > 1 else super().predict_step(*args)

    def predict_on_batch(self, x: Any) -> Any:
        """Keras' `predict_on_batch`, which on several devices has all images once for each device."""
        found = super().predict_on_batch(x)
        if num_replicas(self) == 1:
            return found
        size = len(keras.tree.flatten(x)[0])
        return map_tensors(lambda rows: rows[:size], found)

    def make_train_function(self, force: bool = False) -> Any:
        if self.train_function is None or force:
            check_weights_learn(self)
            super().make_train_function(force)
            if num_replicas(self) > 1 and self.steps_per_execution > 1:
                self.train_function = step_by_step(self.train_function)
            elif num_replicas(self) == 1 and keras.backend.backend() == "tensorflow":
                self.train_function = _build_variables_first(self, self.train_function)
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        if self.test_function is None or force:
            super().make_test_function(force)
            if num_replicas(self) > 1 and self.steps_per_execution > 1:
                self.test_function = step_by_step(self.test_function)
        return self.test_function


def _is_function(metric: Any) -> bool:
    """Whether a metric of `compile` is a function of labels and predictions."""
    return callable(metric) and not isinstance(metric, (type, keras.metrics.Metric))


def _nothing() -> None:
    """What is called of a callback without `on_train_failure`."""


def _build_variables_first(model: keras.Model, steps: Callable[[Any], Any]) -> Callable[[Any], Any]:
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

    A variable that was assigned an array of NumPy may share its memory. TensorFlow does not write into it, and copies
    the variable at its first update.
    """
    import tensorflow as tf

    for variable in variables:
        value = variable.value
        if isinstance(value, tf.Variable) and value.device.endswith("CPU:0"):
            value.assign(tf.raw_ops.DeepCopy(x=value))
