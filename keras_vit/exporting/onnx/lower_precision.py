"""float16 and int8, by ONNX Runtime's own converters.

Pixels stay uint8 and answers float32. In float16, softmax, norms and the head stay in float32, for the sake of their
sums. int8 is for the kernels of dense layers; their inputs are rounded as they come.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.exporting.onnx.graph import Graph, Proto, Weight, replace_field
from keras_vit.exporting.onnx.weight_files import LARGEST_FILE, save

_LARGEST_HALF = float(np.finfo("float16").max)


def in_float16(graph: Graph) -> Graph:
    """A graph with weights and products in float16.

    Args:
        graph: a `Graph`, which is used up.
    """
    from onnxruntime.transformers import float16

    answers = [output.name for output in graph.proto.graph.output]
    graph.proto = float16.convert_float_to_float16(
        graph.proto,
        keep_io_types=answers,
        op_block_list=[*float16.DEFAULT_OP_BLOCK_LIST, "Softmax"],
        node_block_list=[node.name for node in graph.proto.graph.node if is_single(node, graph.single)],
    )
    _skip_double_casts(graph.proto.graph)
    _round_weights(graph)
    _order(graph.proto.graph)
    del graph.proto.graph.value_info[:]
    return graph


def write_int8(graph: Graph, place: Path) -> None:
    """Writes a graph with the kernels of its dense layers, but for the head, in 8 bits.

    Rounding to 8 bits happens for each output of a kernel by itself, and for each batch of inputs by its own range.

    Args:
        graph: a `Graph`, which is used up.
        place: path of the new file.
    """
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    metadata = list(graph.proto.metadata_props)
    opset = list(graph.proto.opset_import)
    size = sum(math.prod(weight.shape) for weight in graph.weights.values())
    excluded = [node.name for node in graph.proto.graph.node if is_single(node, graph.single)]
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        whole = Path(folder, place.name)
        save(graph, whole)
        quantize_dynamic(
            whole,
            place,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            # Signed bytes times unsigned inputs overflow 16 bits on a CPU without VNNI. The mean error on Ti/16 is then
            # 0.24 of the deviation instead of 0.013, with fixed ranges of the inputs as well.
            weight_type=QuantType.QUInt8,
            nodes_to_exclude=excluded,
            use_external_data_format=size > LARGEST_FILE,
        )
    proto = onnx.load(str(place), load_external_data=False)
    for field, entries in (("metadata_props", metadata), ("opset_import", opset)):
        replace_field(getattr(proto, field), entries)
    proto.producer_name, proto.producer_version = graph.proto.producer_name, graph.proto.producer_version
    del proto.graph.value_info[:]
    place.write_bytes(proto.SerializeToString())


def is_single(node: Proto, single: tuple[str, ...]) -> bool:
    """Whether a node stays in float32: of a layer whose name begins as in `single`, or of none, as pixels' scaling."""
    parts = node.name.split("/")
    if node.op_type == "LayerNormalization":
        return False  # which sums in float32 by definition
    return len(parts) == 1 or any(part.startswith(single) for part in parts)


def _skip_double_casts(graph: Proto) -> None:
    """Takes out roundings to float16 between two nodes in float32, which the converter makes."""
    producers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        before = producers.get(node.input[0]) if node.op_type == "Cast" and _target(node) == "float32" else None
        if before is not None and before.op_type == "Cast" and before.name.endswith("_cast_to_fp16_node"):
            node.input[0] = before.input[0]
    read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    # The key is the output, since the converter casts once for each reader, under the same name.
    kept = {node.output[0]: node for node in reversed(graph.node) if not read.isdisjoint(node.output)}
    replace_field(graph.node, reversed(kept.values()))


def _round_weights(graph: Graph) -> None:
    """Rounds the weights that the graph now takes in float16; those that are cast back at once it takes as they are."""
    import onnx

    inputs = {entry.name: entry.type.tensor_type for entry in graph.proto.graph.input}
    for name in graph.weights:
        if inputs[name].elem_type != onnx.TensorProto.FLOAT16:
            continue
        readers = [node for node in graph.proto.graph.node if name in node.input]
        if all(node.op_type == "Cast" for node in readers):
            inputs[name].elem_type = onnx.TensorProto.FLOAT
        else:
            graph.weights[name] = Rounded(graph.weights[name])


class Rounded:
    """A weight that becomes an array in float16 when it is written.

    Attributes:
        shape: of the array.
    """

    def __init__(self, weight: Weight) -> None:
        self.shape = weight.shape
        self._weight = weight

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.clip(np.asarray(self._weight), -_LARGEST_HALF, _LARGEST_HALF).astype(dtype or "float16")


def _order(graph: Proto) -> None:
    """Sorts nodes so that each stands behind those it reads, as ONNX wants it; the converter appends its casts."""
    nodes, made = list(graph.node), {name for node in graph.node for name in node.output}
    ordered = []
    while nodes:
        waiting = []
        for node in nodes:
            if made.isdisjoint(node.input):
                ordered.append(node)
                made.difference_update(node.output)
            else:
                waiting.append(node)
        nodes = waiting
    replace_field(graph.node, ordered)


def _target(cast: Proto) -> str:
    import onnx

    return onnx.helper.tensor_dtype_to_np_dtype(cast.attribute[0].i).name
