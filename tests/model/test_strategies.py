"""Which strategies a model takes, and what of Keras' options is refused because nothing would look at it."""

import keras
import pytest
from conftest import make_tiny
from mirrored import engine

import keras_vit

LOSS = "mse"
on_tensorflow = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="strategies are TensorFlow's")


def refusal(function, *arguments, **keywords):
    with pytest.raises(ValueError) as error:  # noqa: PT011  the caller looks at it
        function(*arguments, **keywords)
    return str(error.value)


def refused_scopes():
    """What `compile` says of things that were made in the wrong place, and of options that Keras fails with."""
    import tensorflow as tf

    outside, strategy = make_tiny(num_layers=1), engine(2)
    optimizer, metric = keras_vit.SGD(0.1), keras.metrics.MeanSquaredError()
    said = {}
    with strategy.scope():
        said["model"] = refusal(outside.compile, "sgd", LOSS)
        model = make_tiny(num_layers=1)
        for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
            arguments = {name: 2} | ({"use_ema": True} if name.startswith("ema") else {})
            said[name] = refusal(model.compile, keras.optimizers.SGD(0.1, **arguments), LOSS)
    with engine(3).scope():
        said["another"] = refusal(model.compile, "sgd", LOSS)
    said["optimizer"] = refusal(model.compile, optimizer, LOSS)
    said["metric"] = refusal(model.compile, "sgd", LOSS, metrics=[metric])
    model.compile("sgd", LOSS, metrics=["mae"])  # by name they are made in the model's scope
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        said["several hosts"] = refusal(make_tiny(num_layers=1).compile, "sgd", LOSS)
    return said


@pytest.mark.elsewhere("two devices", "refused_scopes")
@on_tensorflow
def test_what_was_made_for_other_devices_is_refused(found):
    words = {
        "model": "keras_vit.strategy",
        "another": "MirroredStrategy",
        "gradient_accumulation_steps": "accumulation_steps",
        "ema_overwrite_frequency": "ema_overwrite_frequency=2",
        "optimizer": "'sgd'",
        "metric": "outside",
        "several hosts": "KERAS_BACKEND=jax",
    }
    assert {name: word for name, word in words.items() if word not in found[name]} == {}


def test_distribution_of_another_backend_is_refused(tiny):
    if keras.backend.backend() == "jax":
        pytest.skip("JAX looks at it")
    mesh = keras.distribution.DeviceMesh((1,), ["batch"], ["cpu:0"])
    keras.distribution.set_distribution(keras.distribution.DataParallel(device_mesh=mesh))
    try:
        with pytest.raises(ValueError, match="DataParallel"):
            tiny.compile("sgd", LOSS)
    finally:
        keras.distribution.set_distribution(None)
    tiny.compile("sgd", LOSS)
