"""What is joined for torch in the graphs of our models, and look-alikes that are not; without torch."""

from collections import Counter

import numpy as np
import onnx
import pytest
from conftest import make_tiny, randomise, tiny_config
from exporting.test_onnx import job_of

import keras_vit
from keras_vit.exporting.engines.torch_patterns import join
from keras_vit.exporting.folding import folded_task
from keras_vit.exporting.onnx.convert import Graph, graph_of

pytestmark = pytest.mark.filterwarnings("ignore:.*triggered tf.function retracing")


def kinds(graph):
    return Counter(node.op_type for node in graph.proto.graph.node)


def joined(model):
    graph = graph_of(folded_task(job_of(model, takes="images"), ("float32",), bare=False))
    join(graph)
    return kinds(graph)


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu"])
def test_every_dense_layer_gelu_and_attention_is_found(activation):
    model = keras_vit.build(tiny_config(activation=activation), input_shape=(20, 28, 3), classes=7)
    found = joined(randomise(model))
    assert (found["Linear"], found["Gelu"], found["Attention"]) == (2 * 6 + 1, 2, 2)
    assert not {"MatMul", "Tanh", "Erf", "Pow", "Mul"} & set(found)
    assert found["Softmax"] == 1  # of the scores


@pytest.mark.parametrize("sides", [(37, 50), (None, None)])
def test_every_group_norm_of_a_resnet_is_found(sides):
    model = keras_vit.build_resnet(keras_vit.ResNetConfig((2, 1), 0.5), classes=7, input_shape=(*sides, 3))
    found = joined(randomise(model))
    assert found["GroupNorm"] == 3 * 3 + 1  # three in each of three units, and one behind them
    assert not {"Sqrt", "Reciprocal", "Sub", "Mul"} & set(found)


def test_features_without_a_head_are_joined_too():
    assert joined(make_tiny(include_top=False, classes=None, num_layers=1))["Linear"] == 6


def small_graph(nodes, weights=(), numbers=()):
    weights = dict(weights)
    given = [onnx.helper.make_tensor_value_info(name, 1, None) for name in ("images", "other", *weights)]
    constants = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in dict(numbers).items()]
    answer = onnx.helper.make_tensor_value_info("answer", 1, None)
    return Graph(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", given, [answer], constants)), weights)


def test_product_of_two_tensors_is_no_dense_layer():
    graph = small_graph([onnx.helper.make_node("MatMul", ["images", "other"], ["answer"])])
    join(graph)
    assert kinds(graph) == {"MatMul": 1}


def test_bias_of_another_length_is_added_for_itself():
    nodes = [
        onnx.helper.make_node("MatMul", ["images", "kernel"], ["product"]),
        onnx.helper.make_node("Add", ["product", "bias"], ["answer"]),
    ]
    graph = small_graph(nodes, {"kernel": np.zeros((3, 5)), "bias": np.zeros((1, 5, 5))})
    join(graph)
    assert kinds(graph) == {"Linear": 1, "Add": 1}


def test_softmax_over_another_axis_is_no_attention():
    nodes = [
        onnx.helper.make_node("MatMul", ["images", "other"], ["logits"]),
        onnx.helper.make_node("Softmax", ["logits"], ["weights"], axis=1),
        onnx.helper.make_node("MatMul", ["weights", "other"], ["answer"]),
    ]
    graph = small_graph(nodes)
    join(graph)
    assert kinds(graph) == {"MatMul": 2, "Softmax": 1}


@pytest.mark.parametrize(("slope", "expected"), [(0.5**0.5, {"Gelu": 1}), (0.7, {"Mul": 3, "Erf": 1, "Add": 1})])
def test_gelu_is_known_by_its_numbers(slope, expected):
    nodes = [
        onnx.helper.make_node("Mul", ["images", "slope"], ["a"]),
        onnx.helper.make_node("Erf", ["a"], ["b"]),
        onnx.helper.make_node("Add", ["b", "one"], ["c"]),
        onnx.helper.make_node("Mul", ["images", "c"], ["d"]),
        onnx.helper.make_node("Mul", ["d", "half"], ["answer"]),
    ]
    graph = small_graph(nodes, numbers={"slope": np.float32(slope), "one": np.float32(1), "half": np.float32(0.5)})
    join(graph)
    assert kinds(graph) == expected
