"""`keras_vit.strategy`: what it picks on machines that are played, and what `with` sets and restores."""

import types
import unittest.mock

import keras
import numpy as np
import pytest
from conftest import images, make_tiny

import keras_vit
from keras_vit.checks import STRATEGIES
from keras_vit.model import precision as precision_module

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies are TensorFlow's")


def machine(monkeypatch, gpus=(), tpus=0, **environment):
    """A machine with GPUs of these compute capabilities."""
    import tensorflow as tf

    for name in ("TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    devices = {"GPU": list(range(len(gpus))), "TPU": ["TPU:0"] * tpus, "CPU": ["CPU:0"]}
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: devices[kind])
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda gpu: {"compute_capability": gpus[gpu]} if gpus[gpu] else {}
    )
    made = []
    played = types.SimpleNamespace(num_replicas_in_sync=max(len(gpus), 1))
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda *given: made.append(given) or played)
    return made


@pytest.mark.parametrize(
    ("gpus", "kind", "precision", "reason"),
    [
        ((), "one", "float32", "no GPU"),
        (((9, 0),), "one", "mixed_bfloat16", "one GPU"),
        (((9, 0), (8, 0)), "mirrored", "mixed_bfloat16", "2 GPUs"),
        (((9, 0), (7, 5)), "mirrored", "mixed_float16", "7.5"),
        (((7, 0),), "one", "mixed_float16", "float16"),
        (((6, 1),), "one", "float32", "tensor cores"),
        ((None,), "one", "float32", "capability 0.0"),
    ],
)
def test_auto_picks_by_what_is_there(monkeypatch, gpus, kind, precision, reason):
    made = machine(monkeypatch, gpus)
    devices = keras_vit.strategy()
    assert (devices.kind, devices.precision, devices.num_replicas) == (kind, precision, max(len(gpus), 1))
    assert reason in devices.reason
    assert made == ([()] if kind == "mirrored" else [])


def test_precision_that_is_asked_for_holds(monkeypatch):
    machine(monkeypatch, ((9, 0),))
    devices = keras_vit.strategy("one", precision="float32")
    assert (devices.precision, devices.reason) == ("float32", "one: asked for; float32: asked for")


@pytest.mark.parametrize("users", [True, False])
def test_float32_is_computed_in_float32_until_another_precision_is_asked_for(users, monkeypatch):
    import tensorflow as tf

    monkeypatch.setattr(precision_module, "_rounding", {})
    switch = tf.config.experimental
    before = switch.tensor_float_32_execution_enabled()

    def found(precision):
        with keras_vit.strategy("one", precision=precision):
            policy = keras.config.dtype_policy().name
        return policy, switch.tensor_float_32_execution_enabled()

    try:
        switch.enable_tensor_float_32_execution(users)
        for word, policy, rounded in (
            ("mixed_bfloat16", "mixed_bfloat16", users),
            ("float32", "float32", False),
            ("mixed_bfloat16", "mixed_bfloat16", users),
            ("tensorfloat32", "float32", True),
            ("float32", "float32", False),
            ("mixed_float16", "mixed_float16", users),
            ("float32", "float32", False),
        ):
            assert found(word) == (policy, rounded)
        switch.enable_tensor_float_32_execution(True)  # by the user, since
        assert [found(word)[1] for word in ("mixed_float16", "float32", "mixed_float16")] == [True, False, True]
    finally:
        switch.enable_tensor_float_32_execution(before)


def products_on_jax():
    """By precision, what the step of a model says of its products; and what `auto` is on devices that are played."""
    import jax

    found = {"switch": []}
    for precision in ("mixed_float16", "float32", "mixed_bfloat16", "tensorfloat32", "float32", "mixed_float16"):
        with keras_vit.strategy(precision=precision):
            found["switch"].append(jax.config.jax_default_matmul_precision)
    for precision in ("float32", "tensorfloat32"):
        with keras_vit.strategy(precision=precision):
            model = make_tiny()
        values = [[v.value for v in part] for part in (model.trainable_variables, model.non_trainable_variables)]

        def loss(*given, model=model):
            return model.stateless_call(*given, training=True)[0].sum()

        program = str(jax.make_jaxpr(jax.grad(loss))(*values, images(2, 20, 28, 3)))
        found[precision] = sorted({line.strip() for line in program.splitlines() if "precision=" in line})
    jax.config.update("jax_default_matmul_precision", None)
    for platform, capability in (("gpu", "9.0"), ("gpu", "7.5"), ("tpu", ""), ("cpu", "")):
        played = types.SimpleNamespace(platform=platform, compute_capability=capability)
        with unittest.mock.patch("jax.local_devices", return_value=[played]):
            found[f"{platform} {capability}".strip()] = keras_vit.strategy().precision
    return found


@pytest.mark.elsewhere("jax", "products_on_jax")
def test_products_of_both_ways_have_the_precision_that_is_asked_for_on_jax(found):
    assert found["switch"] == [None, "float32", None, "tensorfloat32", "float32", None]
    assert found["float32"] == ["precision=(Precision.HIGHEST, Precision.HIGHEST)"]
    assert found["tensorfloat32"] == ["precision=(Precision.HIGH, Precision.HIGH)"]
    auto = {"gpu 9.0": "mixed_bfloat16", "gpu 7.5": "mixed_float16", "tpu": "mixed_bfloat16", "cpu": "float32"}
    assert {name: found[name] for name in auto} == auto


@pytest.mark.parametrize(
    ("tpus", "environment", "name"),
    [
        (1, {}, "local"),
        (0, {"TPU_NAME": "grpc://10.0.0.2:8470"}, "grpc://10.0.0.2:8470"),
        (0, {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.2:8470"}, None),
    ],
)
def test_tpu_is_found_connected_and_initialised_in_this_order(monkeypatch, tpus, environment, name):
    """With a TPU that is played; none was run."""
    import tensorflow as tf

    machine(monkeypatch, tpus=tpus, **environment)
    calls = []

    def noted(call, result=None):
        return lambda *given, **named: calls.append((call, *given, *named.values())) or result

    engine = types.SimpleNamespace(num_replicas_in_sync=8)
    resolvers = tf.distribute.cluster_resolver
    monkeypatch.setattr(resolvers, "TPUClusterResolver", noted("resolve", "the resolver"))
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", noted("connect"))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", noted("initialize"))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", noted("strategy", engine))
    devices = keras_vit.strategy("auto")
    steps = [(step, "the resolver") for step in ("connect", "initialize", "strategy")]
    assert calls == [("resolve", name), *steps]
    assert (devices.kind, devices.precision, devices.num_replicas) == ("tpu", "mixed_bfloat16", 8)
    assert devices.engine is engine


def test_tpu_that_is_not_there_is_said(monkeypatch):
    import tensorflow as tf

    machine(monkeypatch)
    with pytest.raises(ValueError, match="TPU_NAME"):
        keras_vit.strategy("tpu")
    machine(monkeypatch, TPU_NAME="nowhere")

    def fail(**given):
        raise ValueError("nobody of that name")

    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", fail)
    with pytest.raises(ValueError, match="nobody of that name"):
        keras_vit.strategy("auto")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("none", "Did you mean 'one'?"),
        ("mirored", "'mirrored'"),
        ("MultiWorkerMirroredStrategy", "KERAS_BACKEND=jax"),
        ("multi_worker", "several hosts"),
        (None, "'auto', 'one', 'mirrored', 'tpu'"),
    ],
)
def test_other_words_are_refused_with_what_to_use(word, said):
    for call in (keras_vit.strategy, lambda word: keras_vit.FinetuneOptions(strategy=word)):
        with pytest.raises(ValueError, match="`strategy`") as error:
            call(word)
        assert said in str(error.value)


@pytest.mark.parametrize("word", ["tf32", "TF32", "tensor_float_32", "tensor-float-32"])
def test_tensorfloat32_is_named_to_who_calls_it_otherwise(word):
    with pytest.raises(ValueError, match="Did you mean 'tensorfloat32'\\?"):
        keras_vit.strategy(precision=word)


@pytest.mark.parametrize("kind", STRATEGIES[:2])
def test_other_backends_have_one_device(monkeypatch, kind):
    monkeypatch.setattr(keras.backend, "backend", lambda: "torch")
    devices = keras_vit.strategy(kind)
    assert (devices.kind, devices.precision, devices.num_replicas, devices.engine) == ("one", "float32", 1, None)
    with pytest.raises(ValueError, match="torch"):
        keras_vit.strategy("mirrored")


def test_policy_holds_inside_only_also_after_an_error_and_nested():
    devices = keras_vit.strategy("one", precision="mixed_bfloat16")
    with devices as inside, devices:
        assert inside is devices
        assert keras.config.dtype_policy().name == "mixed_bfloat16"
    with pytest.raises(RuntimeError), devices:
        raise RuntimeError
    assert keras.config.dtype_policy().name == "float32"


def mirrored_by_one_call():
    """Of a model built and compiled inside, and trained outside: devices, precision, and a loss."""
    with keras_vit.strategy("mirrored", precision="mixed_bfloat16") as devices:
        model = make_tiny(num_layers=1)
        model.compile(keras_vit.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    history = model.fit(images(7, 20, 28, 3), np.arange(7), 7, verbose=0).history
    shares = model.distribute_strategy.num_replicas_in_sync
    return [devices.num_replicas, shares, model.dtype_policy.name, keras.config.dtype_policy().name, history["loss"][0]]


@pytest.mark.elsewhere("two devices", "mirrored_by_one_call")
def test_one_call_gives_the_scope_of_all_devices(found):
    *facts, loss = found
    assert facts == [3, 3, "mixed_bfloat16", "float32"]  # the child has three logical CPUs
    assert np.isfinite(loss)
