"""Every private hook of Keras that this package uses: why there is no public way, and what happens without it.

A Keras that lacks a hook makes something slower, or it is refused in words. `tests/test_keras_private.py` has a test
of each hook, and one of its absence.
"""

import inspect
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import keras

from keras_vit.annotations import Tensor, Variable

if TYPE_CHECKING:
    from keras import Model as _Model
else:
    _Model = object


def set_own_policy(layer: keras.Layer) -> None:
    """Gives a layer that shares a map of dtype policies, as a reloaded one does, its own: that of its path.

    The public setter writes into the shared map, from which Keras' dense layers read their quantisation. Without the
    hook the map stays, and Keras refuses to save such a model again.
    """
    policy = layer.dtype_policy
    if isinstance(policy, keras.dtype_policies.DTypePolicyMap) and hasattr(layer, "_dtype_policy"):
        layer._dtype_policy = policy[layer.path] if layer.path else policy.default_policy


def set_initializer(variable: Variable, initializer: Callable[..., Tensor]) -> bool:
    """Sets what gives a variable without a value its first one, and says whether that is possible.

    Publicly the initializer is fixed when the variable is made. Without the hook the variable is drawn at random, and
    assigned to afterwards: slower, and with the memory of one more array.
    """
    if not hasattr(variable, "_initializer"):
        return False
    variable._initializer = initializer
    return True


def drop_uninitialized_variables() -> None:
    """Drops variables that were made without values.

    Publicly none can be dropped, and the next `keras.StatelessScope` that is left makes them all. Without the hook it
    does so: slower, and with their memory until they are collected.
    """
    try:
        from keras.src.backend.common import global_state
    except ImportError:
        return
    global_state.set_global_attribute("uninitialized_variables", None)


def update_metrics(model: keras.Model, y: Tensor, y_pred: Tensor, sample_weight: Tensor, counts: Tensor) -> None:
    """Updates the metrics of `compile`, in which an image counts by `counts`, 0 or 1.

    Publicly those of `metrics=` count every row of a batch, and only those of `weighted_metrics=` see a weight.

    Raises:
        RuntimeError: without the hook.
    """
    compiled = next((metric for metric in model.metrics if metric.name == "compile_metrics"), None)
    if compiled is None:
        return
    names = ("_flat_metrics", "_flat_weighted_metrics")
    kinds = [getattr(compiled, name) for name in names if hasattr(compiled, name)]
    if len(kinds) < len(names):
        raise RuntimeError(
            "metrics cannot leave out the images that fill a batch up.\n"
            f"Received: Keras {keras.__version__}, which holds its metrics elsewhere, and a batch that the devices "
            "cannot share evenly. Pass batches of a multiple of the devices, or `compile` without metrics."
        )
    true, predicted = keras.tree.flatten(y), keras.tree.flatten(y_pred)
    for metrics, weight in zip(kinds, (counts, sample_weight * counts), strict=True):
        for metric, t, p in zip(metrics, true, predicted, strict=True):
            if metric:
                metric.update_state(t, p, weight)


def start_at_epoch(model: keras.Model, epoch: int) -> None:
    """Sets where the epochs of the `fit` that begins now start, from `on_train_begin`; 0 leaves it to `fit`.

    Publicly only the caller of `fit` says so. Keras' `BackupAndRestore` has this way. Without the hook nothing is set,
    and `Checkpoints` refuses an epoch that is not the one to go on with.
    """
    if hasattr(model, "_initial_epoch"):
        model._initial_epoch = epoch


def build_metrics(model: keras.Model, batch: Any) -> None:
    """Makes the variables of the metrics, for batches of the shapes and types of `batch`.

    Publicly the first step makes them. Without the hook that is a step of an evaluation of zeros: slower.
    """
    if hasattr(model, "_symbolic_build"):
        model._symbolic_build(data_batch=batch)
        return

    def zeros(spec: Any) -> Tensor:
        return keras.ops.zeros([side or 1 for side in spec.shape], keras.backend.standardize_dtype(spec.dtype))

    model.test_on_batch(*keras.tree.map_structure(zeros, batch))
    model.reset_metrics()


def clip_after_sum(optimizer: keras.optimizers.Optimizer) -> None:
    """Lets an optimizer of Keras clip gradients after their sum over TensorFlow's replicas, and sum them once.

    Keras clips those of each replica first, and sums in a later private method. No public method is between. Ours say
    `clips_after_sum`, and are left alone.

    Raises:
        RuntimeError: without the hook, for an optimizer that clips.
    """
    clips = any(getattr(optimizer, name, None) for name in ("clipnorm", "global_clipnorm", "clipvalue"))
    if not clips or getattr(optimizer, "clips_after_sum", False):
        return
    if not (hasattr(optimizer, "_clip_gradients") and hasattr(optimizer, "_all_reduce_sum_gradients")):
        raise RuntimeError(
            "Keras' optimizers clip the gradients of each device before their sum, which is another training.\n"
            f"Received: {optimizer.name!r} of Keras {keras.__version__} on several devices. Take `keras_vit.SGD` or "
            "`keras_vit.AdamW`, or leave the clipping out."
        )
    if "_clip_gradients" in vars(optimizer):
        return  # compiled twice
    clip, add_up = optimizer._clip_gradients, optimizer._all_reduce_sum_gradients
    optimizer._clip_gradients = lambda grads: clip([total for total, _ in add_up([(grad, None) for grad in grads])])
    optimizer._all_reduce_sum_gradients = lambda grads_and_vars: grads_and_vars


def call_inputs(model: keras.Model, layer: keras.Layer) -> list:
    """What a functional model hands to one of its layers, a list of Keras tensors for each call.

    `layer.input` is public, but of a model among the layers it is the input of that model alone. Without the hook the
    list is empty, and the analysis needs the inner model as its argument.
    """
    return [node.input_tensors for node in graph_nodes(model) if node.operation is layer]


def graph_nodes(model: keras.Model) -> list:
    """The calls in the graph of a functional model, each with its `operation`, `arguments` and `output_tensors`.

    Publicly a model tells its layers alone. Without the hook the list is empty, and the memory of a head is not known.
    """
    return [node for depth in getattr(model, "_nodes_by_depth", {}).values() for node in depth]


def is_traced_by_outer_model(model: keras.Model) -> bool:
    """Whether TensorFlow traces `fit`, `evaluate` or `predict` of a model around this one, without XLA.

    Publicly a model does not know who calls it. Without the hook it is never so, and such a model's images are not
    looked at.
    """
    try:
        from keras.src.backend.common import global_state
    except ImportError:
        return False
    outer = getattr(global_state.get_global_attribute("current_call_ctx"), "entry_layer", None)
    if not isinstance(outer, keras.Model) or outer is model or outer.jit_compile:
        return False
    import tensorflow as tf

    # One that is trained inside of another model's step has no such function, and that step may be compiled by XLA.
    steps = (getattr(outer, name, None) for name in ("train_function", "test_function", "predict_function"))
    graph = getattr(tf.compat.v1.get_default_graph(), "name", "")
    return any(step is not None for step in steps) and graph in ("one_step_on_data", "one_step_on_data_distributed")


def is_written_to_hdf5() -> bool:
    """Whether the calling `get_config` is that of the outermost model that `keras.saving.save_model` writes to HDF5.

    No public argument shows the format. Without the hook it writes the file, which `load_model` takes with
    `custom_objects=` alone.
    """
    frame: FrameType | None = inspect.currentframe()
    frame = frame and frame.f_back
    while frame is not None and frame.f_code.co_name == "get_config":
        frame = frame.f_back
    name = frame and (frame.f_globals.get("__name__", "").partition(".")[0], frame.f_code.co_name)
    return name == ("keras", "model_metadata")


def is_exported_to_onnx() -> bool:
    """Whether `model.export(format="onnx")` of Keras traces the calling layer by TensorFlow.

    No public argument shows the format. Without the hook exact GELU becomes TensorFlow's `Erfc`, which tf2onnx writes
    into the file as it is, and no runtime opens that.
    """
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    frame: FrameType | None = None if tf.executing_eagerly() else inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "export_onnx":
        frame = frame.f_back
    return frame is not None


class HookedModel(_Model):
    """What stands before `keras.Model`, for a first batch of uneven shares on several devices of TensorFlow.

    Keras averages the shares of the first batch to learn their shapes, which fails where these differ. No public method
    comes before. Without the hook it fails as in Keras, and a first batch that the devices share evenly trains.
    """

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Builds what `compile` was given on the shapes of one device's share."""
        dataset = getattr(iterator, "_distributed_dataset", None)  # whose shapes cost no batch of a generator
        if dataset is not None and self.distribute_strategy.num_replicas_in_sync > 1:
            import tensorflow as tf

            def of_one_device(spec: Any) -> Any:
                return tf.nest.flatten(spec, expand_composites=True)[0]

            iterator, data_batch = None, keras.tree.map_structure(of_one_device, dataset.element_spec)
        super()._maybe_symbolic_build(iterator, data_batch)
