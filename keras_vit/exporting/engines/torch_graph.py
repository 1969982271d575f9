"""An ONNX graph as a list of torch's calls, made once.

Each value has a slot. Steps read and write slots, and let go of what no later step reads. What is computed from sizes
alone stays on the CPU. In bfloat16, weights and products are; norms of ResNets and what `is_single` names stay float32.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from keras_vit.exporting.engines.torch_operators import NUMBERS, operators
from keras_vit.exporting.engines.torch_patterns import join
from keras_vit.exporting.onnx.convert import Graph
from keras_vit.exporting.onnx.precision import is_single
from keras_vit.exporting.report import ExportError

_SIZES = "sizes"  # tensors on the CPU, as they are
_NUMBERS = "numbers"  # a list or a number
# Compute in what they are given, which may be places as floats, too large for bfloat16.
_FOLLOWING = {"Neg", "ReduceMean", "Reshape", "Slice", "Squeeze", "TopK", "Transpose", "Unsqueeze"}
_LAYERS = {"Conv", "Linear"}  # whose second input is a kernel


class _Step(NamedTuple):
    """A call; `dead` are slots that nothing reads after it."""

    function: Callable[..., Any]
    inputs: list[int]
    outputs: list[int]
    dead: list[int]


class TorchGraph:
    """A graph in torch, called with a tensor for its one input.

    Attributes:
        kinds: operators of the steps in their order, as they were joined.
    """

    def __init__(self, graph: Graph, precision: str = "float32", device: str = "cpu") -> None:
        """Reads a graph.

        Args:
            graph: whose weights are still arguments; it is used up.
            precision: `"float32"` or `"bfloat16"`.
            device: of torch.

        Raises:
            ExportError: for an operator that is not known, by its name, or in a form that is not known.
        """
        self._integers = _integers(graph)
        join(graph)
        proto = graph.proto.graph
        self.kinds = [node.op_type for node in proto.node]
        self._precision, self._device, self._constants = precision, device, _constants(graph)
        self._values: list[Any] = []  # of all slots; `None` for what is computed
        self._slots: dict[tuple[str, str, bool], int] = {}  # by name, form and whether it is laid out as a kernel
        self._forms: dict[str, str] = {}  # of what is computed: `_SIZES` or a precision
        self._steps: list[_Step] = []
        (given,) = (entry.name for entry in proto.input if entry.name not in graph.weights)
        self._input = self._computed(given, precision)
        for node in proto.node:
            self._add(node)
        self._outputs = {output.name: self._slot(output.name, "float32") for output in proto.output}
        self._constants.clear()
        self._bury()

    def __call__(self, images: Any) -> dict[str, Any]:
        """The answers by their names, float32 on the CPU.

        Args:
            images: float32 tensor `(B, H, W, C)` on the CPU.
        """
        values = list(self._values)
        values[self._input] = _converted(images, self._precision, self._device)
        for function, inputs, outputs, dead in self._steps:
            found = function(*[values[slot] for slot in inputs])
            for slot, value in zip(outputs, (found,) if len(outputs) == 1 else found, strict=True):
                values[slot] = value
            for slot in dead:
                values[slot] = None
        return {name: values[slot].cpu() for name, slot in self._outputs.items()}

    def _add(self, node):
        """The steps of one node."""
        form, numbers = self._form(node), NUMBERS.get(node.op_type, ())
        function = _function(node, "float32" if form == _SIZES else form)
        inputs = [
            self._slot(name, _NUMBERS if place in numbers else form, node.op_type in _LAYERS and place == 1)
            for place, name in enumerate(node.input)
        ]
        self._steps.append(_Step(function, inputs, [self._computed(name, form) for name in node.output], []))

    def _form(self, node):
        """Where and in which precision a node computes."""
        forms = [self._forms[name] for name in node.input if name in self._forms]
        if node.op_type == "Shape" or set(forms) <= {_SIZES}:
            return _SIZES
        if node.op_type in _FOLLOWING and forms[0] != _SIZES:
            return forms[0]
        places = node.op_type == "Cast" and node.input[0] in self._integers
        singles = ("norm", "encoder_norm", "position_embedding", "head")
        single = is_single(node, singles) and node.op_type != "GroupNorm"  # which sums in float32 by itself
        single = single or "encoder_norm" in node.name  # whose answer the head reads
        return "float32" if single or places else self._precision

    def _slot(self, name, form, kernel=False):
        """Where a value is in a form; a step makes it so where it is not."""
        key = (name, form, kernel and name in self._constants)
        if key not in self._slots and name in self._constants:
            self._slots[key] = self._new(_loaded(self._constants[name], form, self._device, kernel))
        if key not in self._slots:
            convert = functools.partial(_converted, form=form, device=self._device)
            source = self._slots[name, self._forms[name], False]
            self._slots[key] = self._new()
            self._steps.append(_Step(convert, [source], [self._slots[key]], []))
        return self._slots[key]

    def _computed(self, name, form):
        """A new slot for what a step computes."""
        self._forms[name] = form
        self._slots[name, form, False] = slot = self._new()
        return slot

    def _new(self, value=None):
        self._values.append(value)
        return len(self._values) - 1

    def _bury(self):
        """Tells each step what nothing reads after it, but for answers and constants."""
        needed = set(self._outputs.values()) | {slot for slot, value in enumerate(self._values) if value is not None}
        for step in reversed(self._steps):
            used = {*step.inputs, *step.outputs} - needed
            step.dead.extend(used)
            needed |= used


def _integers(graph):
    """Names of what is computed in integers."""
    import onnx

    found = onnx.shape_inference.infer_shapes(graph.proto).graph.value_info
    return {value.name for value in found if value.type.tensor_type.elem_type != onnx.TensorProto.FLOAT}


def _constants(graph):
    """Arrays, or Keras variables, by their names."""
    import onnx

    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.proto.graph.initializer}
    return {**arrays, **graph.weights, "": None}


def _loaded(array, form, device, kernel):
    """A constant as a tensor of its own, or as numbers; a kernel `(M, D)`, or `(D, C, P, P)` with channels last."""
    import torch

    if array is None:  # an input that is left out
        return None
    array = np.asarray(array)
    tensor = torch.tensor(np.ascontiguousarray(array.T) if kernel and array.ndim == 2 else array)
    tensor = tensor.contiguous(memory_format=torch.channels_last) if kernel and array.ndim == 4 else tensor
    return _converted(tensor, form, device)


def _converted(tensor, form, device):
    import torch

    if form == _NUMBERS:
        return tensor.tolist()
    if form == _SIZES:
        return tensor.cpu()
    return tensor.to(device, getattr(torch, form)) if tensor.is_floating_point() else tensor.to(device)


def _function(node, precision):
    """What computes a node, with its attributes."""
    attributes = {attribute.name: _value(attribute) for attribute in node.attribute}
    if node.op_type == "Cast":
        return _cast(attributes["to"], precision)
    function = operators().get(node.op_type)
    missing = set(attributes) - set(inspect.signature(function).parameters) if function and attributes else ()
    if function is None or missing:
        raise ExportError(
            "every operator of a graph must be known to be computed in torch.\n"
            f"Received: {node.op_type}{''.join(f' with {name}' for name in sorted(missing))}, in {node.name!r}."
        )
    return functools.partial(function, **attributes) if attributes else function


def _cast(number, precision):
    """To the type with ONNX's number; floats are of a precision."""
    import onnx
    import torch

    dtype = onnx.helper.tensor_dtype_to_np_dtype(number).name
    return functools.partial(torch.Tensor.to, dtype=getattr(torch, precision if dtype == "float32" else dtype))


def _value(attribute):
    import onnx
    import torch

    value = onnx.helper.get_attribute_value(attribute)
    return torch.tensor(onnx.numpy_helper.to_array(value)) if isinstance(value, onnx.TensorProto) else value
