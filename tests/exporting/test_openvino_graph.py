"""Graphs that say the same in fewer steps: how much of a model is rewritten, and that a look-alike is left alone."""

import keras
import numpy as np
import pytest
from conftest import make_tiny, randomise
from served import differences, make_job, pictures

from keras_vit.exporting.folding import folded_spec
from keras_vit.exporting.formats import openvino as writer
from keras_vit.exporting.model_function import pixel_function
from keras_vit.silence import silence

openvino = pytest.importorskip("openvino")
pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="exports need TensorFlow")
TOKENS = np.random.default_rng(3).normal(size=(2, 5, 4)).astype("float32")
KERNEL = np.random.default_rng(4).normal(size=(4, 4)).astype("float32")


def types(network):
    return [node.get_type_name() for node in network.get_ordered_ops()]


@pytest.mark.parametrize(
    ("options", "norms", "layers"),
    [
        ({}, 4, 9),  # query, key, value, output and the first of the MLP; the last block's query is one token's
        ({"activation": "gelu"}, 4, 9),
        ({"pooling": "map"}, 6, 14),
        ({"input_shape": (None, None, 3)}, 4, 10),
    ],
    ids=["token", "exact GELU", "map", "any size"],
)
def test_model_says_the_same_in_fewer_steps(options, norms, layers, tmp_path, monkeypatch):
    spec = make_job(randomise(make_tiny(num_layers=2, **{"input_shape": (20, 28, 3)} | options)))
    function = pixel_function(folded_spec(spec, writer.OpenVINO.folds)).get_concrete_function()
    with writer._without_telemetry():  # its report to its maker would leave by a process of its own
        network = openvino.convert_model(function)
    found = [writer.fuse_norms(network), writer.keep_token_shape(network)]
    assert found == [norms, layers]
    assert types(network).count("MVN") == norms
    assert not writer.fuse_norms(network)
    monkeypatch.setattr(openvino, "convert_model", rewritten(openvino.convert_model))
    writer.OpenVINO().write(spec, tmp_path / "model.xml")
    run = writer.OpenVINO().open_runtime(tmp_path / "model.xml").run
    assert types(openvino.Core().read_model(tmp_path / "model.xml")).count("MVN") == norms
    assert max(differences(spec, run, pictures(3)).values()) < 1e-5  # the promise of float32


def rewritten(convert):
    def converted(function, **options):
        network = convert(function, **options)
        writer.rewrite(network)
        return network

    return converted


# Look-alikes


def norm(ops, exponent=-0.5, sign=-1.0, axis=2, other=False):
    """A LayerNorm as TensorFlow says it, with one thing that may be otherwise."""
    x = ops.parameter([-1, 5, 4], np.float32)
    mean = ops.reduce_mean(x, np.array([axis]), True)
    squares = ops.squared_difference(ops.multiply(x, x) if other else x, mean)
    power = ops.power(ops.add(ops.reduce_mean(squares, np.array([axis]), True), np.float32(1e-6)), np.float32(exponent))
    shift = ops.multiply(ops.multiply(mean, np.float32(sign)), power)
    return openvino.Model([ops.add(ops.multiply(x, power), shift)], [x])


@pytest.mark.parametrize("changes", [{"exponent": -1}, {"sign": 1.0}, {"axis": 1}, {"other": True}], ids=str)
def test_what_is_no_layer_norm_is_left_alone(changes):
    from openvino import opset13 as ops

    network = norm(ops, **changes)
    assert writer.fuse_norms(network) == 0
    assert "MVN" not in types(network)


def test_layer_norm_keeps_its_numbers():
    from openvino import opset13 as ops

    network = norm(ops)
    before = answer(network)
    assert writer.fuse_norms(network) == 1
    np.testing.assert_allclose(answer(network), before, atol=1e-6)
    centred = TOKENS - TOKENS.mean(-1, keepdims=True)
    np.testing.assert_allclose(before, centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6), atol=1e-5)


def dense(ops, behind, transposed=False, bias=(1, 4)):
    """A kernel times tokens in rows, and what stands behind before the tokens are tokens again."""
    x = ops.parameter([-1, 5, 4], np.float32)
    rows = ops.reshape(x, np.array([-1, 4]), False)
    rows = ops.matmul(rows, ops.constant(KERNEL), False, transposed)
    rows = behind(ops.add(rows, ops.constant(np.ones(bias, "float32"))))
    return openvino.Model([ops.reshape(rows, np.array([-1, 5, 4]), False)], [x])


def answer(network):
    with silence():
        compiled = openvino.compile_model(network, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return compiled(TOKENS)[0]


def test_dense_layers_keep_their_numbers():
    from openvino import opset13 as ops

    network = dense(ops, lambda rows: ops.gelu(rows, "erf"), transposed=True)
    before = answer(network)
    assert writer.keep_token_shape(network) == 1
    network.validate_nodes_and_infer_types()
    np.testing.assert_allclose(answer(network), before, atol=1e-6)


@pytest.mark.parametrize(
    "behind",
    [
        lambda ops, rows: ops.softmax(rows, 0),
        lambda ops, rows: ops.add(rows, ops.constant(np.ones((10, 4), "float32"))),
        lambda ops, rows: ops.multiply(rows, ops.reduce_mean(rows, np.array([0]), True)),
        lambda ops, rows: ops.matmul(ops.constant(np.ones((10, 10), "float32")), rows, False, False),
        lambda ops, rows: ops.matmul(rows, ops.constant(KERNEL), True, False),
    ],
    ids=["along rows", "one for each row", "two readers", "mixes rows", "transposed"],
)
def test_rows_that_something_looks_at_stay_rows(behind):
    from openvino import opset13 as ops

    if behind.__code__.co_names[-1] == "KERNEL":
        x = ops.parameter([4, 1, 4], np.float32)
        rows = ops.reshape(x, np.array([-1, 4]), False)
        rows = ops.matmul(ops.matmul(rows, ops.constant(KERNEL), False, False), ops.constant(KERNEL), True, False)
        network = openvino.Model([ops.reshape(rows, np.array([4, 1, 4]), False)], [x])
    else:
        network = dense(ops, lambda rows: behind(ops, rows))
    assert writer.keep_token_shape(network) == 0
