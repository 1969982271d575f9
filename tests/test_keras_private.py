"""What is private in Keras and used all the same: each hook does what the package relies on, and its absence is borne.

If a test of a hook fails, its docstring in `keras_vit/keras_private.py` says what breaks.
"""

import ast
import inspect
import re
import sys
import types

import keras
import numpy as np
import pytest
from conftest import ROOT, images, numpy
from keras import ops

import keras_vit
from keras_vit import keras_private
from keras_vit.model.copies import initialize_variables, uninitialized_variables

NAMES = {
    "_dtype_policy",
    "_initializer",
    "global_state",
    "_flat_metrics",
    "_flat_weighted_metrics",
    "_initial_epoch",
    "_symbolic_build",
    "_clip_gradients",
    "_all_reduce_sum_gradients",
    "_nodes_by_depth",
    "_distributed_dataset",
    "_maybe_symbolic_build",
}


def test_private_names_of_keras_are_a_dozen():
    found = set()
    for node in ast.walk(ast.parse((ROOT / "keras_vit" / "keras_private.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("keras.src"):
            found |= {alias.name for alias in node.names}
        texts = [getattr(node, name, None) for name in ("attr", "name", "value")]
        found |= {text for text in texts if isinstance(text, str) and re.fullmatch("_[a-z][a-z_]*", text)}
    assert found == NAMES
    assert len(NAMES) <= 12


class Without:
    """An object that lacks some attributes, and is another one besides."""

    def __init__(self, whole, *names):
        self.__dict__.update(_whole=whole, _names=names)

    def __getattr__(self, name):
        if name in self._names:
            raise AttributeError(name)
        return getattr(self._whole, name)


# Precision of parts


def test_layer_of_a_map_of_policies_gets_its_own():
    policies = keras.dtype_policies.DTypePolicyMap("mixed_bfloat16", {"some/dense": keras.DTypePolicy("float64")})
    parts = {name: keras.layers.Dense(3, dtype=policies, name=name) for name in ("dense", "other", "unbuilt")}
    with keras.name_scope("some"):
        parts["dense"].build((None, 2))
        parts["other"].build((None, 2))
    for part in parts.values():
        keras_private.set_own_policy(part)
    names = {name: part.dtype_policy.name for name, part in parts.items()}
    assert names == {"dense": "float64", "other": "mixed_bfloat16", "unbuilt": "mixed_bfloat16"}


def test_without_a_policy_to_set_the_map_stays():
    policies = keras.dtype_policies.DTypePolicyMap("float32")
    layer = types.SimpleNamespace(dtype_policy=policies, path="some")
    keras_private.set_own_policy(layer)
    assert vars(layer) == {"dtype_policy": policies, "path": "some"}


# Variables without values


@pytest.mark.parametrize("has_hook", [True, False])
def test_deferred_variable_gets_the_value_that_it_is_given(monkeypatch, has_hook):
    given, drawn = images(3, 5), []

    def draw(shape, dtype):
        drawn.append(shape)
        return ops.zeros(shape, dtype)

    if not has_hook:
        monkeypatch.setattr("keras_vit.model.copies.set_initializer", lambda variable, initializer: False)
    with uninitialized_variables():
        variable = keras.Variable(draw, shape=(3, 5))
    tensors = {"kernel": given}
    initialize_variables({"kernel": variable}, tensors)
    np.testing.assert_array_equal(numpy(variable), given)
    assert (drawn, tensors) == ([] if has_hook else [(3, 5)], {})
    assert not keras_private.set_initializer(Without(variable, "_initializer"), draw)


def test_variables_that_wait_are_not_made_later(monkeypatch):
    def fails(shape, dtype):
        raise AssertionError("made all the same")

    with keras.StatelessScope(initialize_variables=False):
        keras.Variable(initializer=fails, shape=(1,))
    keras_private.drop_uninitialized_variables()
    with keras.StatelessScope():
        pass  # leaving it makes Keras initialize all that waits
    monkeypatch.setitem(sys.modules, "keras.src.backend.common", types.ModuleType("another"))
    keras_private.drop_uninitialized_variables()


def test_model_knows_that_one_around_it_is_traced_and_without_the_hook_it_does_not(tiny, monkeypatch):
    pytest.importorskip("tensorflow")
    around, told = keras.Sequential([keras.Input((20, 28, 3)), tiny]), []
    monkeypatch.setattr(
        type(tiny), "call", lambda self, x, **_: told.append(keras_private.is_traced_by_outer_model(tiny)) or x
    )
    for model in (around, tiny):
        model.predict(images(2, 20, 28, 3), verbose=0)
    monkeypatch.setitem(sys.modules, "keras.src.backend.common", types.ModuleType("another"))
    around.predict_function = None
    around.predict(images(2, 20, 28, 3), verbose=0)
    assert told == [True, False, False]


# Metrics


def model_with_metrics():
    x = np.zeros((3, 1), "float32")
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mse"])
    model.evaluate(x, x, verbose=0)
    model.reset_metrics()
    return model, x


def test_metrics_count_an_image_as_often_as_they_are_told():
    model, x = model_with_metrics()
    far = np.array([[1.0], [2.0], [9.0]], "float32")
    keras_private.update_metrics(model, x, far, np.array([3.0, 1.0, 5.0]), np.array([1.0, 1.0, 0.0]))
    found = {name: float(value) for name, value in model.get_metrics_result().items()}
    assert (found["mae"], found["mse"]) == (1.5, (3 * 1 + 1 * 4) / 4)


def test_metrics_that_cannot_be_told_are_refused_and_none_are_fine():
    model, x = model_with_metrics()
    metrics = [Without(metric, "_flat_metrics") for metric in model.metrics]
    with pytest.raises(RuntimeError, match=re.escape(keras.__version__)):
        keras_private.update_metrics(types.SimpleNamespace(metrics=metrics), x, x, np.ones(3), np.ones(3))
    keras_private.update_metrics(types.SimpleNamespace(metrics=[]), x, x, np.ones(3), np.ones(3))


@pytest.mark.parametrize("has_hook", [True, False])
def test_metrics_are_built_from_the_shapes_of_a_batch_and_stay_at_zero(has_hook):
    import tensorflow as tf

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"])
    given = model if has_hook else Without(model, "_symbolic_build")
    spec = (tf.TensorSpec((None, 3), "float32"), tf.TensorSpec((None, 2), "float32"))
    assert len(model.metrics_variables) == 2  # of the loss alone
    weights = model.get_weights()
    keras_private.build_metrics(given, spec)
    assert len(model.metrics_variables) == 4
    assert not any(float(numpy(variable)) for variable in model.metrics_variables)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    keras_private.build_metrics(model, None)  # once is enough


# Epochs


class StartAt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch, self.begun = epoch, []

    def on_train_begin(self, logs=None):
        keras_private.start_at_epoch(self.model, self.epoch)

    def on_epoch_begin(self, epoch, logs=None):
        self.begun.append(epoch)


def test_epochs_start_where_a_callback_says_and_0_leaves_it_to_fit():
    x = np.ones((4, 1), "float32")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    begun = []
    for epoch, given in ((2, 0), (0, 1), (4, 0)):
        callback = StartAt(epoch)
        model.fit(x, x, epochs=4, initial_epoch=given, verbose=0, callbacks=[callback])
        begun.append(callback.begun)
    assert begun == [[2, 3], [1, 2, 3], []]


def test_without_the_hook_a_run_goes_on_where_fit_is_told_and_nowhere_else(monkeypatch, tmp_path):
    monkeypatch.setattr("keras_vit.training.checkpoints.start_at_epoch", lambda model, epoch: None)
    x = np.ones((4, 1), "float32")

    def fit(**arguments):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        checkpoints = keras_vit.Checkpoints(tmp_path)
        try:
            return model.fit(x, x, verbose=0, callbacks=[checkpoints], **arguments).epoch
        finally:
            checkpoints.close()

    assert fit(epochs=2) == [0, 1]
    with pytest.raises(ValueError, match="initial_epoch=2"):
        fit(epochs=3)
    assert fit(epochs=3, initial_epoch=2) == [2]


# Optimizers of Keras on several devices


def test_keras_clips_what_was_added_up_once():
    optimizer = keras.optimizers.SGD(1.0, clipnorm=1.0)
    variable = keras.Variable(np.zeros(2, "float32"))
    optimizer.build([variable])
    calls = []
    optimizer._all_reduce_sum_gradients = lambda pairs: calls.append("sum") or [(2 * g, v) for g, v in pairs]
    for _ in range(2):  # compiled twice
        keras_private.clip_after_sum(optimizer)
    optimizer.apply([ops.convert_to_tensor([3.0, 4.0])])
    assert calls == ["sum"]
    np.testing.assert_allclose(numpy(variable), [-0.6, -0.8], rtol=1e-6)


def test_optimizers_that_need_no_mending_are_left_alone():
    for optimizer in (keras.optimizers.SGD(1.0), keras_vit.SGD(1.0, global_clipnorm=1.0)):
        keras_private.clip_after_sum(optimizer)
        assert not {"_clip_gradients", "_all_reduce_sum_gradients"} & set(vars(optimizer))


def test_optimizer_that_cannot_be_mended_is_refused():
    optimizer = Without(keras.optimizers.SGD(1.0, clipnorm=1.0, name="descent"), "_clip_gradients")
    with pytest.raises(RuntimeError, match="'descent'"):
        keras_private.clip_after_sum(optimizer)


# Models around a model


def test_graph_tells_what_a_model_among_its_layers_gets(tiny):
    x = keras.Input((20, 28, 3))
    scaled = keras.layers.Rescaling(2.0)(x)
    functional = keras.Model(x, tiny(scaled))
    ((tensor,),) = keras_private.call_inputs(functional, tiny)
    assert tensor is scaled
    assert keras_private.call_inputs(functional, functional) == []
    assert {node.operation for node in keras_private.graph_nodes(functional)} == {*functional.layers}
    without = Without(functional, "_nodes_by_depth")
    assert keras_private.call_inputs(without, tiny) == keras_private.graph_nodes(without) == []


def test_exact_gelu_has_an_operator_of_onnx_where_keras_exports_to_it(monkeypatch):
    from keras_vit.kernels.plain import activate

    def export_onnx():
        import tensorflow as tf

        traced = tf.function(lambda x: activate(x, "gelu")).get_concrete_function(tf.TensorSpec((None, 3)))
        return traced, {operation.type for operation in traced.graph.get_operations()}

    traced, found = export_onnx()
    x = images(2, 3)
    np.testing.assert_allclose(numpy(traced(ops.convert_to_tensor(x))), numpy(activate(x, "gelu")), atol=1e-7)
    assert "Erf" in found - {"Erfc"} == found
    monkeypatch.setattr(keras_private, "inspect", types.SimpleNamespace(currentframe=lambda: None))
    assert "Erfc" in export_onnx()[1]  # without the hook


@pytest.mark.parametrize("save", [keras.saving.save_model, keras.models.save_model])
def test_model_is_told_that_it_goes_to_hdf5_and_a_model_around_it_may(tiny, tmp_path, monkeypatch, save):
    with pytest.raises(ValueError, match=r"saved as \.keras.*\n.*save_weights"):
        save(tiny, tmp_path / "x.h5")
    around, x = keras.Sequential([keras.Input((20, 28, 3)), tiny]), images(2, 20, 28, 3)
    save(around, tmp_path / "around.h5")
    np.testing.assert_array_equal(numpy(keras.models.load_model(tmp_path / "around.h5")(x)), numpy(tiny(x)))
    code = types.SimpleNamespace(co_name="another")  # without the hook
    frame = types.SimpleNamespace(f_code=code, f_globals={"__name__": "keras.another"})
    held = types.SimpleNamespace(f_back=frame)
    monkeypatch.setattr(keras_private, "inspect", types.SimpleNamespace(currentframe=lambda: held))
    save(tiny, tmp_path / "x.h5")
    again = keras.models.load_model(tmp_path / "x.h5", {"VisionTransformer": keras_vit.VisionTransformer})
    np.testing.assert_array_equal(numpy(again(x)), numpy(tiny(x)))


def test_fit_builds_on_one_share_of_a_first_batch(monkeypatch):
    """With devices that are played; what two do, `tests/model/test_replica_steps.py` shows."""
    tf = pytest.importorskip("tensorflow")

    class Hooked(keras_private.HookedModel, keras.Model):
        replicas = 1
        distribute_strategy = property(lambda self: types.SimpleNamespace(num_replicas_in_sync=self.replicas))

    built = []
    inputs = keras.Input((2,))
    model = Hooked(inputs, keras.layers.Dense(1)(inputs))
    spec = tf.TensorSpec((None, 2), "float32")
    iterator = types.SimpleNamespace(_distributed_dataset=types.SimpleNamespace(element_spec=(spec,)))
    monkeypatch.setattr(keras.Model, "_maybe_symbolic_build", lambda self, *given: built.append(given))
    assert "self._maybe_symbolic_build(iterator=epoch_iterator)" in inspect.getsource(keras.Model.fit.__wrapped__)
    model._maybe_symbolic_build(iterator=iterator)
    assert built.pop() == (iterator, None)  # one device: as Keras has it
    model.replicas = 2
    model._maybe_symbolic_build(iterator=iterator)
    assert built.pop() == (None, (spec,))
    model._maybe_symbolic_build(iterator=Without(iterator, "_distributed_dataset"))
    assert isinstance(built.pop()[0], Without)
