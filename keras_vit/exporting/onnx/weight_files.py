"""Weights into the file, or, above 2 GB, which no protobuf message holds, into one file of data beside it."""

import math
from pathlib import Path

import numpy as np

from keras_vit.exporting.onnx.graph import Graph, Proto, replace_field

LARGEST_FILE = 2**31 - 2**24  # bytes of weights in one message; the rest is for the graph
_ALIGNMENT = 2**16  # bytes; what every system can map a file at


def save(graph: Graph, place: Path, beside: bool = False) -> None:
    """Writes a graph with its weights.

    Args:
        graph: a `Graph`, which is used up.
        place: path of the file; its data are `{place.name}.data` in the same folder, which the file names so.
        beside: whether weights go there whatever their size.
    """
    replace_field(graph.proto.graph.input, [e for e in graph.proto.graph.input if e.name not in graph.weights])
    size = sum(4 * math.prod(weight.shape) for weight in graph.weights.values())
    if size < LARGEST_FILE and not beside:
        _put_inside(graph)
    else:
        _put_beside(graph, place.with_name(f"{place.name}.data"))
    place.write_bytes(graph.proto.SerializeToString())


def _put_inside(graph: Graph) -> None:
    import onnx

    for name, weight in graph.weights.items():
        graph.proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(weight), name))


def _put_beside(graph: Graph, place: Path) -> None:
    """Writes one weight after the other, so that no second copy of all of them is ever in memory."""
    with open(place, "wb") as file:
        for name, weight in graph.weights.items():
            array = np.ascontiguousarray(weight)
            start = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
            file.seek(start)
            file.write(array.data)
            graph.proto.graph.initializer.append(_reference(name, array, place.name, start))


def _reference(name: str, array: np.ndarray, location: str, start: int) -> Proto:
    import onnx

    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", start), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
