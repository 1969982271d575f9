"""Steps of Keras' OpenVINO trainer, played; what the backend computes, `tests/test_backends.py` shows."""

import types

import numpy as np
import pytest

from keras_vit.model.replicated_model import openvino_step

openvino = pytest.importorskip("openvino")


class Model:
    """Compiles as Keras does: once, and for the size of the first batch."""

    def __init__(self):
        self.ov_compiled_model, self.compiled = None, 0
        self.weights = [types.SimpleNamespace(value=np.float32(2))]

    def step(self, data):
        if self.ov_compiled_model is None:
            x = openvino.opset14.parameter(list(data[0].shape), np.float32)
            network = openvino.Model([openvino.opset14.multiply(x, self.weights[0].value)], [x])
            self.ov_compiled_model = openvino.compile_model(network, "CPU")
            self.compiled += 1
        return self.ov_compiled_model([data[0]])[0]


def images(count):
    return np.full((count, 3), 1.5, "float32")


def test_model_is_compiled_in_float32_and_once():
    model, compile_model = Model(), openvino.compile_model
    for _ in range(2):
        np.testing.assert_array_equal(openvino_step(model, model.step, (images(2),)), 2 * images(2))
    assert model.compiled == 1
    assert model.ov_compiled_model.get_property("INFERENCE_PRECISION_HINT") == openvino.Type.f32
    assert openvino.compile_model is compile_model


def test_new_weights_and_other_batches_are_compiled_anew():
    model = Model()
    openvino_step(model, model.step, (images(2),))
    model.weights[0].value = np.float32(4)
    np.testing.assert_array_equal(openvino_step(model, model.step, (images(2),)), 4 * images(2))
    np.testing.assert_array_equal(openvino_step(model, model.step, (images(1),)), 4 * images(1))
    assert model.compiled == 3


def test_other_precision_is_refused():
    model = Model()
    told = types.SimpleNamespace(inputs=[], get_property=lambda name: openvino.Type.bf16)

    def step(data):
        model.ov_compiled_model = told

    with pytest.raises(RuntimeError, match="bfloat16"):
        openvino_step(model, step, (images(1),))
