"""The model as an ONNX graph whose weights are still arguments.

What depends on weights alone, as a standardised kernel, is computed here once. LayerNorm and GELU become the nodes
that runtimes know, and dimensions get names.
"""

import json
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import Tensor, Variable
from keras_vit.exporting.onnx.graph import Graph, Proto, replace_field
from keras_vit.exporting.onnx.patterns import fuse
from keras_vit.exporting.pixels import OUTPUTS, input_spec, pixel_module, prepared
from keras_vit.exporting.task import ExportTask
from keras_vit.kernels.chunked_attention import without_blocks
from keras_vit.model.layer_lookup import float32_layers


def graph_of(task: ExportTask) -> Graph:
    """The model of an `ExportTask`, from what it takes to its answers, in float32."""
    import tf2onnx

    function, variables = _function(task)
    proto, _ = tf2onnx.convert.from_function(
        function,
        input_signature=function.input_signature,
        opset=task.opset,
        custom_op_handlers=dict(HANDLERS),
    )
    graph = Graph(proto, _named(proto, variables), tuple(float32_layers(task.model)))
    _fold(graph)
    fuse(graph, task.opset)
    _tidy(graph, task)
    _describe(proto, task)
    return graph


def _function(task: ExportTask) -> tuple[Any, list[Variable]]:
    """The function from its input and weights, and the variables that the weights stand for."""
    import tensorflow as tf

    module = pixel_module(task)
    variables = module.network.weights
    # Of an argument whose shape it knows TensorFlow's optimiser makes an array, which its pool of memory then keeps.
    unknown = [[None] * len(variable.shape) for variable in variables]
    weights = [
        tf.TensorSpec(u, v.dtype, f"weight_{n}") for n, (u, v) in enumerate(zip(unknown, variables, strict=True))
    ]

    @tf.function(input_signature=[input_spec(task), *weights])
    def answers(given: Tensor, *weights: Tensor) -> dict[str, Tensor]:
        known = [(v, tf.ensure_shape(weight, v.shape)) for v, weight in zip(variables, weights, strict=True)]
        with keras.StatelessScope(state_mapping=known), without_blocks():
            return module.answers(prepared(given, task))

    return answers, variables


def _erfc(context: Any, node: Any, name: str, args: Any) -> None:
    """1 - erf, for tf2onnx: TensorFlow makes exact GELU of erfc, which ONNX does not have."""
    shape, dtype = context.get_shape(node.output[0]), context.get_dtype(node.output[0])
    context.remove_node(node.name)
    one = context.make_const(f"{name}/one", np.ones((), "float32"))
    erf = context.make_node("Erf", node.input, shapes=[shape], dtypes=[dtype])
    context.make_node("Sub", [one.output[0], erf.output[0]], outputs=node.output, shapes=[shape], dtypes=[dtype])


HANDLERS: dict[str, tuple] = {"Erfc": (_erfc, [])}  # of tf2onnx, by TensorFlow's operator


def _named(proto: Proto, variables: Sequence[Variable]) -> dict[str, Variable]:
    """The variables that the graph uses, by their paths, under which they are its inputs from now on."""
    paths = [variable.path for variable in variables]
    names = {
        f"weight_{number}": path if paths.count(path) == 1 else f"{path}_{number}" for number, path in enumerate(paths)
    }
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for entry in proto.graph.input:
        entry.name = names.get(entry.name, entry.name)
    return dict(zip(names.values(), variables, strict=True))


def _fold(graph: Graph) -> None:
    """Computes all nodes that depend on weights and constants alone."""
    import onnx

    constants = {tensor.name for tensor in graph.proto.graph.initializer}
    known, folded = constants | set(graph.weights), []
    for node in graph.proto.graph.node:
        if node.input and all(name in known for name in node.input):
            folded.append(node)
            known.update(node.output)
    inner = {name for node in folded for name in node.output}
    remaining = [node for node in graph.proto.graph.node if node not in folded]
    needed = {name for node in remaining for name in node.input if name in inner}
    for name, value in _computed(graph, folded, sorted(needed)).items() if needed else ():
        if value.dtype == np.float32:
            graph.weights[name] = value
        else:  # the length of an axis
            graph.proto.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    replace_field(graph.proto.graph.node, remaining)


def _computed(graph: Graph, nodes: Sequence[Proto], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Values of the tensors `names`, by ONNX Runtime."""
    import onnx
    import onnxruntime

    used = {name for node in nodes for name in node.input}
    old = graph.proto.graph
    inputs = [entry for entry in old.input if entry.name in used]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    constants = [tensor for tensor in old.initializer if tensor.name in used]
    part = onnx.helper.make_graph(nodes, "weights", inputs, outputs, constants)
    part = onnx.helper.make_model(part, opset_imports=graph.proto.opset_import, ir_version=graph.proto.ir_version)
    session = onnxruntime.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {entry.name: np.asarray(graph.weights[entry.name]) for entry in inputs}
    return dict(zip(names, session.run(names, feeds), strict=True))


def _tidy(graph: Graph, task: ExportTask) -> None:
    """Drops what no node reads, lists the weights as inputs, and puts the outputs in their order."""
    import onnx

    proto = graph.proto.graph
    used = {name for node in proto.node for name in node.input}
    replace_field(proto.initializer, [tensor for tensor in proto.initializer if tensor.name in used])
    graph.weights = {name: value for name, value in graph.weights.items() if name in used}
    given = [entry for entry in proto.input if entry.name == task.takes]
    entries = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, value.shape)
        for name, value in graph.weights.items()
    ]
    replace_field(proto.input, given + entries)
    replace_field(proto.output, sorted(proto.output, key=lambda entry: OUTPUTS.index(entry.name)))
    del proto.value_info[:]


def _describe(proto: Proto, task: ExportTask) -> None:
    """Names of the dimensions, of the graph, and what the file says of itself."""
    import onnx

    names = ("batch", "height", "width")
    for axis, dim in enumerate(proto.graph.input[0].type.tensor_type.shape.dim):
        if not dim.HasField("dim_value"):
            dim.dim_param = names[axis]
    for output in proto.graph.output:
        output.type.tensor_type.shape.dim[0].dim_param = "batch"
    proto.graph.name, proto.graph.doc_string, proto.doc_string = task.name, "", ""
    proto.producer_name, proto.producer_version = "keras_vit", task.metadata()["keras_vit"]
    opsets = [entry for entry in proto.opset_import if not entry.domain]
    replace_field(proto.opset_import, opsets)
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in task.metadata().items()}
    onnx.helper.set_model_props(proto, texts)
