"""What is private in Keras and used all the same: each hook still does what the package relies on.

A failure says what breaks in the package and where a public way may be by now. Mend `keras_vit/keras_private.py`.
"""

import functools
import importlib
import inspect
import re
import types
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import images, numpy
from keras import ops
from private_hooks import ADVICE, relies_on

import keras_vit
from keras_vit import keras_private
from keras_vit.model.deferred import deferred_variables


def test_every_hook_has_a_test_and_advice():
    hooks = {name for name, value in vars(keras_private).items() if inspect.isfunction(value) and name[0] != "_"}
    hooks |= {"HookedModel", "HookedOptimizer"}
    assert set(ADVICE) == hooks
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_keras_private*.py"))
    assert set(re.findall(r'with relies_on\("(\w+)"\)', tests)) == hooks


def test_failure_says_what_to_do():
    with (
        pytest.raises(
            pytest.fail.Exception, match=r"(?s)`keras_private\.averages_of` .*What breaks: .*What to do: look"
        ),
        relies_on("averages_of"),
    ):
        keras_private.averages_of(keras.optimizers.SGD(use_ema=False))


def test_flatten_layers_finds_parts_of_parts(tiny):
    block = tiny.get_layer("block_00")
    with relies_on("flatten_layers"):
        parts = keras_private.flatten_layers(block)
        assert parts[0] is block
        assert {id(block.mlp), id(block.mlp.dense_1), id(block.attention.query)} <= set(map(id, parts))
        assert len(set(map(id, parts))) == len(parts)
        assert keras_private.flatten_layers(block, include_self=False) == parts[1:]
        assert block.mlp.dense_1 in keras_private.flatten_layers(tiny)


def test_layer_of_a_map_of_policies_gets_its_own():
    policies = keras.dtype_policies.DTypePolicyMap("mixed_bfloat16", {"some/dense": keras.DTypePolicy("float64")})
    parts = {name: keras.layers.Dense(3, dtype=policies, name=name) for name in ("dense", "other", "unbuilt")}
    with relies_on("settle_policy"):
        with keras.name_scope("some"):
            parts["dense"].build((None, 2))
            parts["other"].build((None, 2))
        for part in parts.values():
            keras_private.settle_policy(part)
        names = {name: part.dtype_policy.name for name, part in parts.items()}
        assert names == {"dense": "float64", "other": "mixed_bfloat16", "unbuilt": "mixed_bfloat16"}


def test_initializer_gives_a_deferred_variable_its_value():
    given = images(3, 5)
    with relies_on("set_initializer"):
        with deferred_variables():
            variable = keras.Variable(lambda shape, dtype: pytest.fail("drawn at random"), shape=(3, 5))
        keras_private.set_initializer(variable, lambda shape, dtype: ops.convert_to_tensor(given, dtype))
        with keras.StatelessScope():
            pass  # leaving it gives values to what waits
        np.testing.assert_array_equal(numpy(variable), given)


def test_layout_is_none_where_nothing_is_distributed():
    with relies_on("layout_of"):
        assert keras_private.layout_of(keras.Variable(0.0)) is None


def test_layout_of_a_variable_on_jax_is_the_one_given():
    """Keras' variables on JAX are a class of their own, which can be made in a process that runs on TensorFlow."""
    jax = pytest.importorskip("jax")
    with relies_on("layout_of"):
        from keras.src.backend.jax.core import JaxVariable

        layout = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        assert keras_private.layout_of(JaxVariable(np.zeros(3, "float32"), layout=layout)) is layout


class Tracked(keras.Model):
    """Tells `fit` ten times its input as its loss."""

    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        keras_private.track_loss(self, 10 * ops.mean(x), ops.shape(x)[0])
        return self.compute_metrics(x, y, x, weight)


def test_tracked_loss_is_the_mean_over_images_in_the_logs_of_fit():
    x = np.array([[1.0], [1.0], [7.0]], "float32")
    inputs = keras.Input((1,))
    model = Tracked(inputs, keras.layers.Dense(1)(inputs))
    with relies_on("track_loss"):
        model.compile(optimizer="sgd", loss="mse")
        assert model.fit(x, x, batch_size=2, shuffle=False, verbose=0).history["loss"] == [30.0]


def test_updated_metrics_are_logs_and_variables_of_a_stateless_step():
    """Keras' trainer for JAX on a model that runs on TensorFlow: nothing in the method is one backend's alone."""
    x = np.ones((4, 1), "float32")
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile(optimizer="sgd", loss="mse", metrics=["mae"])
    model.train_on_batch(x, x)
    model.reset_metrics()
    with relies_on("updated_metrics"):
        from keras.src.backend.jax.trainer import JAXTrainer

        stateless = types.SimpleNamespace(
            metrics_variables=model.metrics_variables,
            compute_metrics=model.compute_metrics,
            _loss_tracker=model._loss_tracker,
        )
        method = types.MethodType(JAXTrainer._update_metrics_variables, stateless)
        stateless._update_metrics_variables = method
        before = [ops.convert_to_tensor(variable) for variable in model.metrics_variables]
        logs, after = keras_private.updated_metrics(stateless, before, ops.convert_to_tensor(3.0), x, x, x + 2, None)
        assert {name: float(value) for name, value in logs.items()} == {"loss": 3.0, "mae": 2.0}
        assert len(after) == len(before)
        assert [float(value) for value in after] != [float(value) for value in before]
        assert not any(float(numpy(variable)) for variable in model.metrics_variables)  # the model's own stay


def test_metrics_count_an_image_as_often_as_they_are_told():
    x = np.zeros((3, 1), "float32")
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mse"])
    model.evaluate(x, x, verbose=0)
    model.reset_metrics()
    far = np.array([[1.0], [2.0], [9.0]], "float32")
    with relies_on("update_metrics"):
        keras_private.update_metrics(model, x, far, np.array([3.0, 1.0, 5.0]), np.array([1.0, 1.0, 0.0]))
        found = {name: float(value) for name, value in model.get_metrics_result().items()}
        assert (found["mae"], found["mse"]) == (1.5, (3 * 1 + 1 * 4) / 4)


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
    with relies_on("start_at_epoch"):
        begun = []
        for epoch, given in ((2, 0), (0, 1), (4, 0)):
            callback = StartAt(epoch)
            model.fit(x, x, epochs=4, initial_epoch=given, verbose=0, callbacks=[callback])
            begun.append(callback.begun)
        assert begun == [[2, 3], [1, 2, 3], []]


def test_metrics_are_built_from_the_shapes_of_a_batch_and_stay_at_zero():
    import tensorflow as tf

    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"])
    spec = (tf.TensorSpec((None, 3), "float32"), tf.TensorSpec((None, 2), "float32"))
    with relies_on("build_metrics"):
        assert len(model.metrics_variables) == 2  # of the loss alone
        keras_private.build_metrics(model, spec)
        assert len(model.metrics_variables) == 4
        assert not any(float(numpy(variable)) for variable in model.metrics_variables)
        keras_private.build_metrics(model, None)  # once is enough


def test_schedule_of_an_optimizer_is_the_one_given():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    with relies_on("schedule_of"):
        assert keras_private.schedule_of(keras.optimizers.SGD(schedule)) is schedule
        assert float(ops.convert_to_numpy(keras_private.schedule_of(keras.optimizers.SGD(0.25)))) == 0.25


def test_averages_are_those_of_the_weights_in_their_order():
    variables = [keras.Variable(np.full(shape, 1.0, "float32")) for shape in ((2,), (3,))]
    optimizer = keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5)
    optimizer.build(variables)
    with relies_on("averages_of"):
        for _ in range(2):
            optimizer.apply([ops.ones((2,)), ops.ones((3,)) * 2])
        first, second = map(numpy, keras_private.averages_of(optimizer))
        np.testing.assert_array_equal(first, [-0.5] * 2)  # 0 after the first step, then (0 + -1) / 2
        np.testing.assert_array_equal(second, [-2.0] * 3)  # -1, then (-1 + -3) / 2


def test_keras_clips_what_was_added_up_once():
    optimizer = keras.optimizers.SGD(1.0, clipnorm=1.0)
    variable = keras.Variable(np.zeros(2, "float32"))
    optimizer.build([variable])
    calls = []
    with relies_on("clip_after_sum"):
        optimizer._all_reduce_sum_gradients = lambda pairs: calls.append("sum") or [(2 * g, v) for g, v in pairs]
        for _ in range(2):  # compiled twice
            keras_private.clip_after_sum(optimizer)
        optimizer.apply([ops.convert_to_tensor([3.0, 4.0])])
        assert calls == ["sum"]
        np.testing.assert_allclose(numpy(variable), [-0.6, -0.8], rtol=1e-6)


def test_optimizers_that_need_no_mending_are_left_alone():
    for optimizer in (keras.optimizers.SGD(1.0), keras_vit.SGD(1.0)):
        keras_private.clip_after_sum(optimizer)
        assert not {"_clip_gradients", "_all_reduce_sum_gradients"} & set(vars(optimizer))


def test_enabling_flash_attention_can_be_told_from_the_default():
    keras.config.disable_flash_attention()
    with relies_on("flash_attention_was_enabled"):
        assert not keras_private.flash_attention_was_enabled()
        keras.config.enable_flash_attention()
        assert keras_private.flash_attention_was_enabled()
        keras.config.disable_flash_attention()
        assert not keras_private.flash_attention_was_enabled()


def test_graph_tells_what_a_model_among_its_layers_gets(tiny):
    x = keras.Input((20, 28, 3))
    scaled = keras.layers.Rescaling(2.0)(x)
    functional = keras.Model(x, tiny(scaled))
    sequential = keras.Sequential([keras.Input((20, 28, 3)), keras.layers.Rescaling(2.0), tiny])
    with relies_on("tensors_into"):
        ((tensor,),) = keras_private.tensors_into(functional, tiny)
        assert tensor is scaled
        ((tensor,),) = keras_private.tensors_into(sequential, tiny)
        assert numpy(keras.Model(sequential.inputs[0], tensor)(np.ones((1, 20, 28, 3), "float32"))).max() == 2
        assert keras_private.tensors_into(functional, functional) == []


def test_tensorflow_lists_devices_with_their_memory_limit(monkeypatch):
    with relies_on("gpu_memory_limit"):
        from tensorflow.python.client import device_lib

        (device, *_) = device_lib.list_local_devices()
        assert (device.device_type, device.memory_limit > 0) == ("CPU", True)
    devices = [types.SimpleNamespace(device_type=kind, memory_limit=n) for n, kind in enumerate(("CPU", "GPU", "GPU"))]
    monkeypatch.setattr(device_lib, "list_local_devices", lambda: devices)
    assert keras_private.gpu_memory_limit() == 1


def test_arrays_are_read_without_tuning_to_the_same_numbers(tiny, monkeypatch):
    tf = pytest.importorskip("tensorflow")
    x, labels = images(5, *tiny.input_shape[1:]), np.arange(5) % 3
    read, iterate = [], tf.data.Dataset.__iter__

    def keep(dataset):
        read.append(dataset.options().autotune.enabled)
        return iterate(dataset)

    def trained(kind):
        keras.utils.set_random_seed(1)
        model = keras.models.clone_model(tiny)
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        given = {"batch_size": 2, "verbose": 0}
        weighted = {"class_weight": {0: 1.0, 1: 2.0, 2: 3.0}, "validation_split": 0.4, "epochs": 2}
        kept = kind.fit(model, x, labels, **given, **weighted).history
        others = {"sample_weight": np.arange(5.0), "validation_data": (x, labels)}
        kept |= {f"{name} 2": value for name, value in kind.fit(model, x, labels, **given, **others).history.items()}
        kept["evaluate"] = kind.evaluate(model, x, labels, steps=2, **given)
        return kept | {"predict": kind.predict(model, ops.convert_to_tensor(x), **given)}

    with relies_on("without_tuning"):
        expected = trained(keras.Model)
        monkeypatch.setattr(tf.data.Dataset, "__iter__", keep)
        found = trained(type(tiny))
    assert len(read) >= 2 * 2 + 2 + 2  # a pass of each epoch, each validation, `evaluate` and `predict`
    assert set(read) == {False}
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_what_others_put_around_fit_is_called(tiny, monkeypatch):
    """As experiment trackers do."""
    pytest.importorskip("tensorflow")
    calls, fit = [], keras.Model.fit

    @functools.wraps(fit)
    def tracked(*args, **kwargs):
        calls.append(1)
        return fit(*args, **kwargs)

    monkeypatch.setattr(keras.Model, "fit", tracked)
    model = keras.models.clone_model(tiny)
    model.compile("sgd", "mse")
    model.fit(images(2, *tiny.input_shape[1:]), np.zeros((2, tiny.output_shape[-1])), verbose=0)
    assert calls == [1]


def test_fit_builds_on_one_share_of_a_first_batch(monkeypatch):
    """With devices that are played; what two do, `tests/model/test_replicas.py` shows."""

    class Hooked(keras_private.HookedModel, keras.Model):
        pass

    built = []
    inputs = keras.Input((2,))
    model = Hooked(inputs, keras.layers.Dense(1)(inputs))
    share = types.SimpleNamespace(_value_specs=["first", "second"])
    iterator = types.SimpleNamespace(_distributed_dataset=types.SimpleNamespace(element_spec=(share,)))
    monkeypatch.setattr(keras.Model, "_maybe_symbolic_build", lambda self, *given: built.append(given))
    with relies_on("HookedModel"):
        assert "self._maybe_symbolic_build(iterator=epoch_iterator)" in inspect.getsource(keras.Model.fit.__wrapped__)
        model._maybe_symbolic_build(iterator=iterator)
        assert built.pop() == (iterator, None)  # without a strategy: as Keras has it
        model._distribute_strategy = object()
        model._maybe_symbolic_build(iterator=iterator)
        assert built[-1] == (None, ("first",))


def test_openvino_compiles_in_float32_for_the_weights_of_now(monkeypatch):
    """By Keras' own method, and a compiler that is played; what is computed, `tests/test_backends.py` shows."""
    openvino = pytest.importorskip("openvino")
    trainer = importlib.import_module("keras.src.backend.openvino.trainer").OpenVINOTrainer

    class Hooked(keras_private.HookedModel, trainer):
        _call_has_training_arg = False

        def __init__(self):
            self.ov_compiled_model, self.weights = None, [types.SimpleNamespace(value=object())]

        def __call__(self, given):
            return given

    told = []
    monkeypatch.setattr(openvino, "compile_model", lambda network, *given: told.append(given) or object())
    model, image = Hooked(), np.ones((2, 3), "float32")
    with relies_on("HookedModel"):
        source = inspect.getsource(trainer._get_compiled_model)
        assert set(re.findall(r"\bov\.(\w+)", source)) == {"Model", "compile_model"}
        first = model._get_compiled_model(image)
        assert model._get_compiled_model(image) is first
        assert told == [("CPU", {"INFERENCE_PRECISION_HINT": "f32"})]
        model.weights[0].value = object()
        assert model._get_compiled_model(image) is not first
        assert len(told) == 2


def test_metrics_of_one_number_for_a_batch_are_known():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])

    def mean(y, p):
        return ops.mean(p)

    def each(y, p):
        return ops.abs(y - p)

    model.compile("sgd", "mse", metrics=[mean, each, "mae", keras.metrics.AUC()], weighted_metrics=[mean])
    x, y = np.ones((3, 2)), np.ones((3, 1))
    model.fit(x, y, verbose=0)
    with relies_on("scalar_metrics"):
        assert keras_private.scalar_metrics(model, y, model(x)) == ["mean", "mean"]


def test_variables_that_wait_are_not_made_later():
    def fails(shape, dtype):
        raise AssertionError("made all the same")

    with relies_on("forget_waiting_variables"):
        with keras.StatelessScope(initialize_variables=False):
            keras.Variable(initializer=fails, shape=(1,))
        keras_private.forget_waiting_variables()
        with keras.StatelessScope():
            pass  # leaving it makes Keras initialise all that waits
