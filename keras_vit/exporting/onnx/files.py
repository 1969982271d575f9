"""Weights into the file, or, above 2 GB, which no protobuf message holds, into one file of data beside it."""

import math

import numpy as np

LARGEST_FILE = 2**31 - 2**24  # bytes of weights in one message; the rest is for the graph
_ALIGNMENT = 2**16  # bytes; what every system can map a file at


def save(graph, place) -> None:
    """Writes a graph with its weights.

    Args:
        graph: a `Graph`, which is used up.
        place: path of the file; its data are `{place.name}.data` in the same folder, which the file names so.
    """
    inputs = [entry for entry in graph.proto.graph.input if entry.name not in graph.weights]
    del graph.proto.graph.input[:]
    graph.proto.graph.input.extend(inputs)
    size = sum(4 * math.prod(weight.shape) for weight in graph.weights.values())
    if size < LARGEST_FILE:
        _put_inside(graph)
    else:
        _put_beside(graph, place.with_name(f"{place.name}.data"))
    place.write_bytes(graph.proto.SerializeToString())


def _put_inside(graph):
    import onnx

    for name, weight in graph.weights.items():
        graph.proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(weight), name))


def _put_beside(graph, place):
    """One weight after the other, so that no second copy of all of them is ever in memory."""
    with open(place, "wb") as file:
        for name, weight in graph.weights.items():
            array = np.ascontiguousarray(weight)
            start = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
            file.seek(start)
            file.write(array.data)
            graph.proto.graph.initializer.append(_reference(name, array, place.name, start))


def _reference(name, array, location, start):
    import onnx

    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", start), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
