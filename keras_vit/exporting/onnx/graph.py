"""An ONNX graph beside its weights, and the few things that every step does to one."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

Proto: TypeAlias = Any  # a message or a repeated field of `onnx`, which ships no types that mypy reads here
Weight: TypeAlias = Any  # an array, a Keras variable or a `Rounded` weight, which `np.asarray` makes an array


@dataclasses.dataclass
class Graph:
    """A model without its weights, and these by name.

    Attributes:
        proto: an `onnx.ModelProto`; each weight is an input of the graph.
        weights: arrays or Keras variables, which `np.asarray` makes arrays.
        single: beginnings of the names of layers that half precision leaves in float32.
    """

    proto: Proto
    weights: dict[str, Weight]
    single: tuple[str, ...] = ()


def become(node: Proto, kind: str, inputs: Sequence[str], **attributes: Any) -> None:
    """Makes of a node another one with the same outputs."""
    import onnx

    node.op_type = kind
    node.input[:] = inputs
    del node.attribute[:]
    node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in attributes.items())


def constant(graph: Graph, name: str) -> np.ndarray | None:
    """The value of a tensor of a `Graph` that is neither computed nor a weight; `None` of another."""
    import onnx

    return next(
        (onnx.numpy_helper.to_array(tensor) for tensor in graph.proto.graph.initializer if tensor.name == name), None
    )


def drop_unused(proto: Proto) -> None:
    """Takes out nodes that nothing reads any more, last ones first."""
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
