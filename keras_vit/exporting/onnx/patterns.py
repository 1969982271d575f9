"""LayerNorm and GELU as runtimes know them, in place of the ten nodes that a conversion makes of each."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from keras_vit.exporting.onnx.graph import Graph, Proto, Weight, become, constant, drop_unused

FIRST_OPSET = 18  # of LayerNormalization as an operator it is 17, but ReduceMean has its axes as an input from 18

Pattern: TypeAlias = str | tuple  # a name for one tensor, or an operator and the patterns of its inputs
Found: TypeAlias = dict[str, str]  # tensors by their names in a pattern

_MEAN = ("ReduceMean", "x", "axes")
_DISTANCE = ("Sub", "x", _MEAN)
_VARIANCE = ("ReduceMean", ("Mul", _DISTANCE, _DISTANCE), "axes")
_SCALE = ("Mul", ("Reciprocal", ("Sqrt", ("Add", _VARIANCE, "epsilon"))), "gamma")
LAYER_NORM = ("Add", ("Mul", "x", _SCALE), ("Add", ("Mul", ("Neg", _MEAN), _SCALE), "beta"))
GELU = ("Mul", ("Mul", "half", "x"), ("Sub", "one", ("Erf", ("Mul", ("Neg", "x"), "slope"))))


def fuse(graph: Graph, opset: int) -> None:
    """Rewrites every LayerNorm and exact GELU that is found; others stay as they are, and right.

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
    """Every way in which the tensor `name` is what `pattern` says, as dicts from the names in it to tensors.

    Args:
        pattern: a name that stands for one tensor, or a tuple of an operator and the patterns of its inputs.
        name: of a tensor.
        producers: nodes by the names of their outputs.
        bound: what names in the pattern stand for already.
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
    axes, epsilon = (constant(graph, found[name]) for name in ("axes", "epsilon"))
    if axes is None or epsilon is None or any(weight is None for weight in weights):
        return False
    on_last_axis = all(weight.shape[-1] == math.prod(weight.shape) for weight in weights)
    return on_last_axis and epsilon.size == 1 and axes.tolist() in ([-1], [len(weights[0].shape) - 1])


def _to_layer_norm(graph: Graph, node: Proto, found: Found) -> None:
    for name in ("gamma", "beta"):
        graph.weights[found[name]] = np.asarray(graph.weights[found[name]]).reshape(-1)
    epsilon = np.asarray(constant(graph, found["epsilon"])).item()
    names = ("x", "gamma", "beta") if np.any(graph.weights[found["beta"]]) else ("x", "gamma")
    become(node, "LayerNormalization", [found[name] for name in names], axis=-1, epsilon=epsilon)


def _is_gelu(graph: Graph, found: Found) -> bool:
    wanted = {"half": 0.5, "one": 1.0, "slope": math.sqrt(0.5)}
    constants = {name: constant(graph, found[name]) for name in wanted}
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
