"""Every private hook of Keras and its backends that this package uses: why there is no public way, in one place.

`tests/test_keras_private*.py` have a test for each, which fails when a new Keras has it no more and says what to do.
"""

import inspect
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import keras
from keras import ops

from keras_vit.annotations import Tensor, Variable

if TYPE_CHECKING:
    from keras import Model as _Model
else:
    _Model = object


def flatten_layers(layer: keras.Layer, include_self: bool = True) -> list:
    """A layer, its parts, and theirs. Publicly a model lists its own layers only, and a layer none."""
    return list(layer._flatten_layers(include_self=include_self))


def settle_policy(layer: keras.Layer) -> None:
    """Gives a layer that shares a map of dtype policies, as a reloaded one does, its own: that of its path.

    Publicly the map stays, and Keras' dense layers ask it for their quantisation as if it were their own.
    """
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
        layer._dtype_policy = policy[layer.path] if layer.path else policy.default_policy


def set_initializer(variable: Variable, initializer: Callable[..., Tensor]) -> None:
    """What gives a variable that has no value yet its first one. Publicly the initializer is fixed when it is made."""
    variable._initializer = initializer


def forget_waiting_variables() -> None:
    """Lets go of variables made without values, which the next scope that is left would make. Publicly none is told."""
    from keras.src.backend.common import global_state

    global_state.set_global_attribute("uninitialized_variables", None)


def layout_of(variable: Variable) -> Any:
    """How a variable is spread over devices, on JAX; `None` elsewhere. Publicly a layout can be set, not read."""
    return getattr(variable, "_layout", None)


def track_loss(model: keras.Model, loss: Tensor, count: Tensor) -> None:
    """Adds the mean `loss` of `count` images to what `fit` shows as `loss`. Publicly only Keras' own step does."""
    model._loss_tracker.update_state(loss, sample_weight=count)


def updated_metrics(
    model: keras.Model,
    metrics_variables: Sequence[Tensor],
    loss: Tensor,
    x: Tensor,
    y: Tensor,
    y_pred: Tensor,
    sample_weight: Tensor,
) -> tuple[dict[str, Tensor], Sequence[Tensor]]:
    """Logs and new metric variables of a stateless step on JAX. Publicly only Keras' own step makes them."""
    return model._update_metrics_variables(metrics_variables, loss, x, y, y_pred, sample_weight)


def update_metrics(model: keras.Model, y: Tensor, y_pred: Tensor, sample_weight: Tensor, counts: Tensor) -> None:
    """Updates the metrics of `compile`, in which an image counts by `counts`, 0 or 1.

    Publicly those of `metrics=` count every row of a batch, and only those of `weighted_metrics=` see a weight.
    """
    metrics = model._compile_metrics
    if metrics is None:
        return
    true, predicted = keras.tree.flatten(y), keras.tree.flatten(y_pred)
    for kinds, weight in ((metrics._flat_metrics, counts), (metrics._flat_weighted_metrics, sample_weight * counts)):
        for kind, t, p in zip(kinds, true, predicted, strict=True):
            if kind:
                kind.update_state(t, p, weight)


def scalar_metrics(model: keras.Model, y: Tensor, y_pred: Tensor) -> list[str]:
    """Names of metrics by a function that gives one number for a whole batch. Publicly nothing tells a metric's."""
    metrics = model._compile_metrics
    if metrics is None:
        return []
    found = []  # a distiller's outputs are more than its labels; any of them has the rank
    for kinds in (metrics._flat_metrics, metrics._flat_weighted_metrics):
        for kind, t, p in zip(kinds, keras.tree.flatten(y), keras.tree.flatten(y_pred), strict=False):
            means = [m for m in (kind.metrics if kind else ()) if isinstance(m, keras.metrics.MeanMetricWrapper)]
            found += [m.name for m in means if not ops.shape(m._fn(t, p, **m._fn_kwargs))]
    return found


def start_at_epoch(model: keras.Model, epoch: int) -> None:
    """Where the epochs of the `fit` that begins now start, told from `on_train_begin`; 0 leaves it to `fit`.

    Publicly only the caller of `fit` says so; Keras' `BackupAndRestore` has this way.
    """
    model._initial_epoch = epoch


def build_metrics(model: keras.Model, batch: Any) -> None:
    """Makes the variables of metrics, for batches as `batch` (shapes and types). Publicly the first step makes them."""
    model._symbolic_build(data_batch=batch)


def schedule_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """The schedule that an optimizer was given, or its rate. Publicly `learning_rate` is the number of this step."""
    return optimizer._learning_rate


def averages_of(optimizer: keras.optimizers.Optimizer) -> list:
    """The moving averages that `use_ema` keeps, in the order of the weights. Publicly they can only be swapped in."""
    return optimizer._model_variables_moving_average


def clip_after_sum(optimizer: keras.optimizers.Optimizer) -> None:
    """Lets an optimizer of Keras clip gradients after their sum over TensorFlow's replicas, and sum them once.

    Keras clips those of each replica first, and sums in a later private method. No public method is between.
    """
    clips = any(getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue"))
    if not clips or isinstance(optimizer, HookedOptimizer) or "_clip_gradients" in vars(optimizer):
        return
    clip, add_up = optimizer._clip_gradients, optimizer._all_reduce_sum_gradients
    optimizer._clip_gradients = lambda grads: clip([total for total, _ in add_up([(grad, None) for grad in grads])])
    optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars


def flash_attention_was_enabled() -> bool:
    """Whether `keras.config.enable_flash_attention` was called. Publicly that leaves it as it was by default."""
    from keras.src.backend.common.global_state import GLOBAL_STATE_TRACKER

    return getattr(GLOBAL_STATE_TRACKER, "flash_attention", False) is None


def tensors_into(model: keras.Model, layer: keras.Layer) -> list:
    """What a functional model hands to one of its layers, a list of Keras tensors for each call.

    Publicly a layer tells its input, but a model among the layers tells its own.
    """
    graph = getattr(model, "_functional", None) or model
    nodes = [node for depth in getattr(graph, "_nodes_by_depth", {}).values() for node in depth]
    return [node.input_tensors for node in nodes if node.operation is layer]


def gpu_memory_limit() -> int:
    """Bytes that TensorFlow may take of its first GPU. Publicly it tells only what is in use."""
    from tensorflow.python.client import device_lib

    return next(device.memory_limit for device in device_lib.list_local_devices() if device.device_type == "GPU")


def without_tuning(method: Any) -> Callable:
    """`fit`, `evaluate` or `predict` of Keras, bound, that reads arrays on TensorFlow without tf.data's autotuning.

    The thread of that ends a pass over arrays only at the next of its looks, .63, 1.27, 2.55, ... seconds from the
    start. Publicly these methods make their own batches of arrays, or take a dataset of a user.
    """
    if keras.backend.backend() != "tensorflow":
        return method
    import tensorflow as tf
    from keras.src.backend.tensorflow import trainer
    from keras.src.trainers.data_adapters import array_data_adapter
    from keras.src.utils import traceback_utils

    if method.__func__ is not vars(trainer.TensorFlowTrainer)[method.__name__]:
        return method  # somebody has put one of their own around Keras'

    class EpochIterator(trainer.TFEpochIterator):
        def _get_batches(self):
            options = tf.data.Options()
            options.autotune.enabled = False
            return self._tuned_batches().with_options(options)

        @property
        def data_adapter(self):
            return self._adapter

        @data_adapter.setter
        def data_adapter(self, adapter):
            if isinstance(adapter, array_data_adapter.ArrayDataAdapter):
                self._tuned_batches, adapter.get_tf_dataset = adapter.get_tf_dataset, self._get_batches
            self._adapter = adapter

    return traceback_utils.filter_traceback(_with_globals(method, TFEpochIterator=EpochIterator))


def _with_globals(method, **given):
    """A bound method whose code sees other objects under these names of its module; other calls keep theirs."""
    code = inspect.unwrap(method.__func__)
    here = {**code.__globals__, **given}
    copy = types.FunctionType(code.__code__, here, code.__name__, code.__defaults__, code.__closure__)
    return types.MethodType(copy, method.__self__)


class HookedModel(_Model):
    """What stands before `keras.Model`, for arrays, for a first batch of uneven shares, and for answers of OpenVINO.

    `fit`, `evaluate` and `predict` wait after their work, if they are given arrays (`without_tuning`). `fit` averages
    the shares of its first batch, to learn their shapes, and fails where these differ. On the OpenVINO backend
    `predict` and `evaluate` compile a model without a word of its precision, and keep it when weights change. No public
    method comes before.
    """

    _values_compiled = types.SimpleNamespace(values=[])

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        return without_tuning(super().fit)(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        return without_tuning(super().evaluate)(*args, **kwargs)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        return without_tuning(super().predict)(*args, **kwargs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Builds what `compile` was given on one device's share of the first batch."""
        if iterator is not None and getattr(self, "_distribute_strategy", None) is not None:
            specs = iterator._distributed_dataset.element_spec  # which costs no batch of a generator
            iterator = None
            data_batch = keras.tree.map_structure(lambda spec: getattr(spec, "_value_specs", [spec])[0], specs)
        super()._maybe_symbolic_build(iterator, data_batch)

    def _get_compiled_model(self, data):
        """Keras' own, for the weights of now, by a compiler that computes every number in the type that it has."""
        import openvino

        def compile_model(network, device):
            return openvino.compile_model(network, device, {"INFERENCE_PRECISION_HINT": "f32"})

        values, compiled = [weight.value for weight in self.weights], self._values_compiled.values
        if len(values) != len(compiled) or any(new is not old for new, old in zip(values, compiled, strict=True)):
            self.ov_compiled_model = None
        told = types.SimpleNamespace(Model=openvino.Model, compile_model=compile_model)
        found = _with_globals(super()._get_compiled_model, ov=told)(data)
        self._values_compiled = types.SimpleNamespace(values=values)
        return found


class HookedOptimizer(keras.optimizers.Optimizer):
    """An optimizer whose subclass sees the gradients of all devices at once, in `update_all`.

    Keras clips and decays before the sum over replicas, each in a private method that runs before the one public hook,
    `update_step`, which sees one variable. So these are made to do nothing, and `update_all` does it in order.
    """

    def update_all(self, gradients: Sequence[Tensor], variables: Sequence[Variable], learning_rate: Tensor) -> None:
        """One step: `gradients` are those of this replica; it ends by calling `update_each`."""
        raise NotImplementedError

    def update_each(self, gradients: Sequence[Tensor], variables: Sequence[Variable], learning_rate: Any) -> None:
        """Calls `update_step` for every variable, on every device, with `learning_rate` handed on as it is."""
        super()._backend_update_step(gradients, variables, learning_rate)

    def sum_over_replicas(self, gradients: Sequence[Tensor]) -> list:
        """Gradients added up over the replicas of TensorFlow's strategies."""
        if self.num_replicas == 1:
            return list(gradients)
        pairs = super()._all_reduce_sum_gradients([(gradient, None) for gradient in gradients])
        return [gradient for gradient, _ in pairs]

    @property
    def num_replicas(self) -> int:
        """Replicas of TensorFlow's strategy; 1 on other backends, whose gradients are summed by the compiler."""
        strategy = getattr(self, "_distribution_strategy", None)
        return 1 if strategy is None else strategy.num_replicas_in_sync

    def index_of(self, variable: Variable) -> int:
        """The place of a variable among those that the optimizer was built with."""
        return self._get_variable_index(variable)

    def _backend_update_step(self, grads, trainable_variables, learning_rate):
        self.update_all(grads, trainable_variables, learning_rate)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        """Done in `update_all`."""
        return grads_and_vars

    def _clip_gradients(self, grads):
        """Done in `update_all`, after the sum."""
        return grads

    def _apply_weight_decay(self, variables):
        """Done in `update_step`, for kernels only."""
