"""What torch computes in one call, found in an ONNX graph: dense layers, GELU, attention and GroupNorm.

A found group of nodes becomes one node of a kind that only `torch_operators` knows. What is not found stays, and right.
"""

import math

from keras_vit.exporting.onnx.patterns import LAYER_NORM, become, constant, drop_unused, matches

_CUBE = ("Mul", "cubic", ("Pow", "x", "three"))
_TANH_GELU = ("Mul", ("Mul", "half", "x"), ("Add", "one", ("Tanh", ("Mul", "slope", ("Add", "x", _CUBE)))))
_EXACT_GELU = ("Mul", ("Mul", "x", ("Add", ("Erf", ("Mul", "x", "slope")), "one")), "half")
_TANH_NUMBERS = {"half": 0.5, "one": 1.0, "three": 3.0, "slope": math.sqrt(2 / math.pi), "cubic": 0.044715}
_EXACT_NUMBERS = {"half": 0.5, "one": 1.0, "slope": math.sqrt(0.5)}
_DENSE = ("Add", ("MatMul", "x", "kernel"), "bias")
_ATTENTION = ("MatMul", ("Softmax", ("MatMul", "query", "key")), "value")
_GROUPED = ("Reshape", "x", "groups")


def join(graph) -> None:
    """Rewrites a `Graph`, whose weights are still arguments.

    A `Linear` has a tensor, a kernel `(D, M)` and perhaps a bias. A `Gelu` has one tensor. An `Attention` has query
    `(..., Q, d)`, scaled, key `(..., d, T)` and value `(..., T, d)`. A `GroupNorm` has `(B, H, W, C)`, gain and shift.
    """
    proto = graph.proto.graph
    nodes = list(proto.node)
    producers = {name: node for node in nodes for name in node.output}
    for node in reversed(nodes):  # an addition before its product
        for rewrite in _REWRITES.get(node.op_type, ()):
            if rewrite(graph, node, producers):
                break
    drop_unused(proto)


def _gelu(graph, node, producers):
    for pattern, numbers, approximate in (
        (_TANH_GELU, _TANH_NUMBERS, "tanh"),
        (_EXACT_GELU, _EXACT_NUMBERS, "none"),
    ):
        for found in matches(pattern, node.output[0], producers, {}):
            if all(_is(graph, found[name], number) for name, number in numbers.items()):
                become(node, "Gelu", [found["x"]], approximate=approximate)
                return True
    return False


def _dense(graph, node, producers):
    for found in matches(_DENSE, node.output[0], producers, {}):
        kernel, bias = (graph.weights.get(found[name]) for name in ("kernel", "bias"))
        if kernel is not None and bias is not None and len(kernel.shape) == 2 and tuple(bias.shape) == kernel.shape[1:]:
            become(node, "Linear", [found["x"], found["kernel"], found["bias"]])
            return True
    return False


def _dense_without_bias(graph, node, producers):
    kernel = graph.weights.get(node.input[1])
    if kernel is None or len(kernel.shape) != 2:
        return False
    become(node, "Linear", list(node.input))
    return True


def _attention(graph, node, producers):
    for found in matches(_ATTENTION, node.output[0], producers, {}):
        if _axis(producers[node.input[0]]) == -1:
            become(node, "Attention", [found[name] for name in ("query", "key", "value")])
            return True
    return False


def _group_norm(graph, node, producers):
    """Moments of pixels and a group's channels, between a reshape `(B, H, W, G, C/G)` and one back."""
    for found in matches(LAYER_NORM, node.input[0], producers, {}):
        grouped: dict[str, str] = next(matches(_GROUPED, found["x"], producers, {}), {})
        axes, epsilon = (constant(graph, found[name]) for name in ("axes", "epsilon"))
        weights = [graph.weights.get(found[name]) for name in ("gamma", "beta")]
        if not grouped or any(value is None for value in (axes, epsilon, *weights)) or axes.tolist() != [1, 2, 4]:
            continue
        sizes = {tuple(weight.shape[-2:]) for weight in weights}  # (G, C/G)
        if len(sizes) == 1 and all(math.prod(weight.shape) == math.prod(*sizes) for weight in weights):
            inputs = [grouped["x"], found["gamma"], found["beta"]]
            become(node, "GroupNorm", inputs, groups=sizes.pop()[0], epsilon=float(epsilon.item()))
            return True
    return False


_REWRITES = {
    "Mul": (_gelu,),
    "Add": (_dense,),
    "MatMul": (_attention, _dense_without_bias),
    "Reshape": (_group_norm,),
}


def _is(graph, name, number):
    """Whether a tensor is one number."""
    value = constant(graph, name)
    return value is not None and value.size == 1 and math.isclose(value.item(), number, rel_tol=1e-6)


def _axis(softmax):
    return next((attribute.i for attribute in softmax.attribute if attribute.name == "axis"), -1)
