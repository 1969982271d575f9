"""The model as an ONNX graph whose weights are still arguments.

Nodes that depend on weights alone, as a standardised kernel, are computed once. LayerNorm and GELU become the
operators that runtimes know, in place of the ten nodes that tf2onnx makes of each. Dimensions get names.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_vit.annotations import Tensor, Variable
from keras_vit.exporting.spec import OUTPUTS, ExportSpec

FIRST_OPSET = 18  # of LayerNormalization as an operator it is 17, but ReduceMean has its axes as an input from 18

Pattern: TypeAlias = str | tuple  # a name for one tensor, or an operator and the patterns of its inputs
Found: TypeAlias = dict[str, str]  # tensors by their names in a pattern

_MEAN = ("ReduceMean", "x", "axes")
_DISTANCE = ("Sub", "x", _MEAN)
_VARIANCE = ("ReduceMean", ("Mul", _DISTANCE, _DISTANCE), "axes")
_SCALE = ("Mul", ("Reciprocal", ("Sqrt", ("Add", _VARIANCE, "epsilon"))), "gamma")
LAYER_NORM = ("Add", ("Mul", "x", _SCALE), ("Add", ("Mul", ("Neg", _MEAN), _SCALE), "beta"))
GELU = ("Mul", ("Mul", "half", "x"), ("Sub", "one", ("Erf", ("Mul", ("Neg", "x"), "slope"))))
Proto: TypeAlias = Any  # a message or a repeated field of `onnx`, which ships no types that mypy reads here
Weight: TypeAlias = Any  # an array, a Keras variable or a `Float16Weight`; `np.asarray` gives an array


@dataclasses.dataclass
class Graph:
    """A model without its weights, and these by name.

    Attributes:
        proto: an `onnx.ModelProto`; each weight is an input of the graph.
        weights: arrays or Keras variables, which `np.asarray` makes arrays.
        float32_layers: prefixes of the names of layers that stay in float32.
    """

    proto: Proto
    weights: dict[str, Weight]
    float32_layers: tuple[str, ...] = ()


def convert_model(spec: ExportSpec) -> Graph:
    """The model of an `ExportSpec` as a float32 graph, from its input to its outputs."""
    import tf2onnx

    from keras_vit.model.layer_access import float32_layers

    function, variables = _function(spec)
    proto, _ = tf2onnx.convert.from_function(
        function,
        input_signature=function.input_signature,
        opset=spec.opset,
        custom_op_handlers=dict(HANDLERS),
    )
    graph = Graph(proto, _name_weights(proto, variables), tuple(float32_layers(spec.model)))
    _fold_constants(graph)
    fuse(graph, spec.opset)
    _remove_unused(graph, spec)
    _write_metadata(proto, spec)
    return graph


def _function(spec: ExportSpec) -> tuple[Any, list[Variable]]:
    """The model as a function of its input and weights, and the variables that these weights replace."""
    import keras
    import tensorflow as tf

    from keras_vit import kernels
    from keras_vit.exporting.model_function import input_spec, pixel_module, prepare_input

    module = pixel_module(spec)
    variables = module.network.weights
    # TensorFlow's optimizer copies an argument of known shape into an array, which its memory pool then keeps.
    unknown = [[None] * len(variable.shape) for variable in variables]
    weights = [
        tf.TensorSpec(u, v.dtype, f"weight_{n}") for n, (u, v) in enumerate(zip(unknown, variables, strict=True))
    ]

    @tf.function(input_signature=[input_spec(spec), *weights])
    def answers(given: Tensor, *weights: Tensor) -> dict[str, Tensor]:
        known = [(v, tf.ensure_shape(weight, v.shape)) for v, weight in zip(variables, weights, strict=True)]
        with keras.StatelessScope(state_mapping=known), kernels.use("plain"):
            return module.answers(prepare_input(given, spec))

    return answers, variables


def _erfc(context: Any, node: Any, name: str, args: Any) -> None:
    """1 - erf, for tf2onnx: TensorFlow makes exact GELU of erfc, which ONNX does not have."""
    shape, dtype = context.get_shape(node.output[0]), context.get_dtype(node.output[0])
    context.remove_node(node.name)
    one = context.make_const(f"{name}/one", np.ones((), "float32"))
    erf = context.make_node("Erf", node.input, shapes=[shape], dtypes=[dtype])
    context.make_node("Sub", [one.output[0], erf.output[0]], outputs=node.output, shapes=[shape], dtypes=[dtype])


HANDLERS: dict[str, tuple] = {"Erfc": (_erfc, [])}  # of tf2onnx, by TensorFlow's operator


def _name_weights(proto: Proto, variables: Sequence[Variable]) -> dict[str, Variable]:
    """Names the weights of the graph by the paths of their variables; returns these by name."""
    paths = [variable.path for variable in variables]
    names = {
        f"weight_{number}": path if paths.count(path) == 1 else f"{path}_{number}" for number, path in enumerate(paths)
    }
    for node in proto.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    for entry in proto.graph.input:
        entry.name = names.get(entry.name, entry.name)
    return dict(zip(names.values(), variables, strict=True))


def _fold_constants(graph: Graph) -> None:
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
    for name, value in _evaluate(graph, folded, sorted(needed)).items() if needed else ():
        if value.dtype == np.float32:
            graph.weights[name] = value
        else:  # the length of an axis
            graph.proto.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    replace_field(graph.proto.graph.node, remaining)


def _evaluate(graph: Graph, nodes: Sequence[Proto], names: Sequence[str]) -> dict[str, np.ndarray]:
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


def _remove_unused(graph: Graph, spec: ExportSpec) -> None:
    """Removes unused tensors, lists the weights as inputs, and orders the outputs."""
    import onnx

    proto = graph.proto.graph
    used = {name for node in proto.node for name in node.input}
    replace_field(proto.initializer, [tensor for tensor in proto.initializer if tensor.name in used])
    graph.weights = {name: value for name, value in graph.weights.items() if name in used}
    given = [entry for entry in proto.input if entry.name == spec.takes]
    entries = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, value.shape)
        for name, value in graph.weights.items()
    ]
    replace_field(proto.input, given + entries)
    replace_field(proto.output, sorted(proto.output, key=lambda entry: OUTPUTS.index(entry.name)))
    del proto.value_info[:]


def _write_metadata(proto: Proto, spec: ExportSpec) -> None:
    """Names the dimensions and the graph, and writes the metadata."""
    import onnx

    names = ("batch", "height", "width")
    for axis, dim in enumerate(proto.graph.input[0].type.tensor_type.shape.dim):
        if not dim.HasField("dim_value"):
            dim.dim_param = names[axis]
    for output in proto.graph.output:
        output.type.tensor_type.shape.dim[0].dim_param = "batch"
    proto.graph.name, proto.graph.doc_string, proto.doc_string = spec.name, "", ""
    proto.producer_name, proto.producer_version = "keras_vit", spec.metadata()["keras_vit"]
    opsets = [entry for entry in proto.opset_import if not entry.domain]
    replace_field(proto.opset_import, opsets)
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in spec.metadata().items()}
    onnx.helper.set_model_props(proto, texts)


def fuse(graph: Graph, opset: int) -> None:
    """Replaces every LayerNorm and exact GELU that is found; the others keep their nodes.

    Args:
        graph: a `Graph`.
        opset: of its operators.
    """
    proto = graph.proto.graph
    producers = {name: node for node in proto.node for name in node.output}
    for node in list(proto.node):
        found = next(matches(LAYER_NORM, node.output[0], producers, {}), None) if opset >= FIRST_OPSET else None
        if found and _is_layer_norm(graph, found):
            _to_layer_norm(graph, node, found)
        found = next(matches(GELU, node.output[0], producers, {}), None)
        if found and _is_gelu(graph, found):
            _to_gelu(graph, node, found)
    drop_unused(proto)


def matches(pattern: Pattern, name: str, producers: Mapping[str, Proto], bound: Found) -> Iterator[Found]:
    """All matches of a pattern that ends in the tensor `name`, as dicts from the pattern's names to tensors.

    Args:
        pattern: a name that stands for one tensor, or a tuple of an operator and the patterns of its inputs.
        name: of a tensor.
        producers: nodes by the names of their outputs.
        bound: tensors that names of the pattern are bound to already.
    """
    if isinstance(pattern, str):
        if bound.get(pattern, name) == name:
            yield {**bound, pattern: name}
        return
    node = producers.get(name)
    if node is None or node.op_type != pattern[0] or len(node.input) != len(pattern) - 1:
        return
    orders = itertools.permutations(node.input) if node.op_type in ("Add", "Mul") else [node.input]
    for inputs in orders:
        yield from _match_all(list(zip(pattern[1:], inputs, strict=True)), producers, bound)


def _match_all(pairs: Sequence[tuple[Pattern, str]], producers: Mapping[str, Proto], bound: Found) -> Iterator[Found]:
    if not pairs:
        yield bound
        return
    (pattern, name), *others = pairs
    for found in matches(pattern, name, producers, bound):
        yield from _match_all(others, producers, found)


def _is_layer_norm(graph: Graph, found: Found) -> bool:
    weights: list[Weight] = [graph.weights.get(found[name]) for name in ("gamma", "beta")]
    axes, epsilon = (constant_value(graph, found[name]) for name in ("axes", "epsilon"))
    if axes is None or epsilon is None or any(weight is None for weight in weights):
        return False
    on_last_axis = all(weight.shape[-1] == math.prod(weight.shape) for weight in weights)
    return on_last_axis and epsilon.size == 1 and axes.tolist() in ([-1], [len(weights[0].shape) - 1])


def _to_layer_norm(graph: Graph, node: Proto, found: Found) -> None:
    for name in ("gamma", "beta"):
        graph.weights[found[name]] = np.asarray(graph.weights[found[name]]).reshape(-1)
    epsilon = np.asarray(constant_value(graph, found["epsilon"])).item()
    names = ("x", "gamma", "beta") if np.any(graph.weights[found["beta"]]) else ("x", "gamma")
    rewrite_node(node, "LayerNormalization", [found[name] for name in names], axis=-1, epsilon=epsilon)


def _is_gelu(graph: Graph, found: Found) -> bool:
    wanted = {"half": 0.5, "one": 1.0, "slope": math.sqrt(0.5)}
    constants = {name: constant_value(graph, found[name]) for name in wanted}
    return all(
        value is not None and value.size == 1 and math.isclose(value.item(), wanted[name], rel_tol=1e-6)
        for name, value in constants.items()
    )


def _to_gelu(graph: Graph, node: Proto, found: Found) -> None:
    """The form that ONNX Runtime fuses: `x * (1 + erf(x * slope)) * 0.5`; erf is odd, so nothing changes."""
    import onnx

    stem, proto = node.name, graph.proto.graph
    steps = [
        ("Mul", [found["x"], found["slope"]], f"{stem}/argument"),
        ("Erf", [f"{stem}/argument"], f"{stem}/erf"),
        ("Add", [f"{stem}/erf", found["one"]], f"{stem}/twice_share"),
        ("Mul", [found["x"], f"{stem}/twice_share"], f"{stem}/twice"),
    ]
    place = list(proto.node).index(node)
    for number, (kind, inputs, output) in enumerate(steps):
        proto.node.insert(place + number, onnx.helper.make_node(kind, inputs, [output], name=output))
    node.input[:] = [f"{stem}/twice", found["half"]]


def rewrite_node(node: Proto, kind: str, inputs: Sequence[str], **attributes: Any) -> None:
    """Turns a node into another operator with the same outputs."""
    import onnx

    node.op_type = kind
    node.input[:] = inputs
    del node.attribute[:]
    node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())


def constant_value(graph: Graph, name: str) -> np.ndarray | None:
    """The value of a constant of a `Graph`; `None` for another tensor."""
    import onnx

    return next(
        (onnx.numpy_helper.to_array(tensor) for tensor in graph.proto.graph.initializer if tensor.name == name), None
    )


def drop_unused(proto: Proto) -> None:
    """Removes nodes that nothing reads, from the last to the first."""
    read = {output.name for output in proto.output}
    for node in reversed(list(proto.node)):
        if read.isdisjoint(node.output):
            proto.node.remove(node)
        else:
            read.update(node.input)


def replace_field(field: Proto, items: Iterable[Proto]) -> None:
    """Sets a repeated field."""
    items = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(items)
