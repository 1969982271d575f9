"""ONNX files: uint8 pixels `(batch, H, W, C)` to `logits`, `scores` and `features`.

tf2onnx converts the function with its weights as arguments, so that the graph stays small whatever the model. The
weights are put in afterwards, one by one; above 2 GB they go into a second file. ONNX Runtime opens the file.
"""

import dataclasses
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, PositiveInt
from keras_vit.exporting.formats.format import Format, Options
from keras_vit.exporting.onnx_graph import FIRST_OPSET, Graph, Proto, Weight, convert_model, replace_field
from keras_vit.exporting.onnx_session import open_session, require_packages
from keras_vit.exporting.report import ExportError, Runtime
from keras_vit.exporting.spec import OPSET, ExportSpec
from keras_vit.exporting.staging import has_mark, read_tail, write_mark
from keras_vit.files import read_head
from keras_vit.silence import silence

OPSETS = range(13, 19)  # that tf2onnx 1.17 writes, and files of this package are tested in
_METADATA = 1 << 23  # bytes at the end of a file, by which int8 of earlier versions is known; 21,843 labels are 1 MB
_LARGEST_HALF = float(np.finfo("float16").max)
LARGEST_FILE = 2**31 - 2**24  # bytes of weights in one message; the rest is for the graph
_ALIGNMENT = 2**16  # bytes; what every system can map a file at


@dataclasses.dataclass(frozen=True)
class OnnxOptions(Options):
    """The options of ONNX."""

    opset: PositiveInt = OPSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.opset not in OPSETS:
            raise ArgumentError(
                f"`opset` must be from {OPSETS[0]} to {OPSETS[-1]}, which tf2onnx can write.\n"
                f"Received: opset={self.opset}."
            )

    def of_spec(self, any_size: bool) -> dict[str, Any]:
        return {"opset": int(self.opset)}


class Onnx(Format):
    """The format; weights are put into the graph one by one."""

    name, title, extension = "onnx", "ONNX", ".onnx"
    precisions = folds = ("float32", "float16", "int8")
    Options = OnnxOptions

    def write(self, spec: ExportSpec, place: Path, external_data: bool = False) -> None:
        """Writes `place`, and above 2 GB of weights also `{place.name}.data`.

        Args:
            spec: an `ExportSpec`, with a model in float32.
            place: path of the new file; it may be moved afterwards, together with its data, under the same names.
            external_data: whether weights below 2 GB get that file too: writing B/16 in float32 then takes 0.7 GB less
                memory. int8 has its own rule.
        """
        from keras_vit.exporting.folding import folded_spec

        self.check_packages(spec.precision)
        with silence():
            # LayerNormalization needs a weight, if only ones. Below that opset a norm is many nodes, and without
            # weights there are fewer.
            graph = convert_model(folded_spec(spec, self.folds, bare=spec.opset < FIRST_OPSET))
            if spec.precision == "float16":
                graph = to_float16(graph)
            if spec.precision == "int8":
                write_int8(graph, place)
            else:
                save(graph, place, external_data)
            del graph  # frees its memory before the checker reads the file
        if (data := place.with_name(f"{place.name}.data")).exists():
            write_mark(data)
        check_file(place, spec.opset)

    def is_own_file(self, file: Path) -> bool:
        producer = re.match(rb"\x08.\x12\x09keras_vit", read_head(file) or b"", re.DOTALL)  # its first two fields
        return producer is not None or b"\x0a\x09keras_vit\x12" in read_tail(file, _METADATA) or has_mark(file)

    def check_packages(self, precision: str) -> None:
        require_packages("onnx", "onnxruntime", "tf2onnx")

    def open_runtime(self, place: Path, threads: int | None = None) -> Runtime:
        return open_session(place, threads).runtime


def check_file(place: Path, opset: int) -> None:
    """Raises unless the ONNX checker finds a file valid, with shapes, types, and standard operators of an opset alone.

    Args:
        place: path of the file.
        opset: that it must have.
    """
    import onnx

    try:
        onnx.checker.check_model(str(place), full_check=True, check_custom_domain=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"the ONNX checker must find the file valid.\nReceived: {place}: {error}") from error
    declared = onnx.load(str(place), load_external_data=False).opset_import
    if [(entry.domain, entry.version) for entry in declared] != [("", opset)]:
        raise ExportError(
            f"every operator must be one of ONNX's own at opset {opset}, so that any runtime takes the file.\n"
            f"Received: opsets {[(entry.domain, entry.version) for entry in declared]}."
        )


def to_float16(graph: Graph) -> Graph:
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
        node_block_list=[node.name for node in graph.proto.graph.node if stays_float32(node, graph.float32_layers)],
    )
    _skip_double_casts(graph.proto.graph)
    _round_weights(graph)
    _sort_nodes(graph.proto.graph)
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
    excluded = [node.name for node in graph.proto.graph.node if stays_float32(node, graph.float32_layers)]
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


def stays_float32(node: Proto, float32_layers: tuple[str, ...]) -> bool:
    """Whether a node stays in float32: if its layer's name has a prefix of `float32_layers`, or it has no layer."""
    parts = node.name.split("/")
    if node.op_type == "LayerNormalization":
        return False  # which sums in float32 by definition
    return len(parts) == 1 or any(part.startswith(float32_layers) for part in parts)


def _skip_double_casts(graph: Proto) -> None:
    """Removes roundings to float16 between two float32 nodes, which the converter adds."""
    producers = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        before = producers.get(node.input[0]) if node.op_type == "Cast" and _cast_dtype(node) == "float32" else None
        if before is not None and before.op_type == "Cast" and before.name.endswith("_cast_to_fp16_node"):
            node.input[0] = before.input[0]
    read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    # By the output, since the converter adds a cast for each reader under the same name.
    kept = {node.output[0]: node for node in reversed(graph.node) if not read.isdisjoint(node.output)}
    replace_field(graph.node, reversed(kept.values()))


def _round_weights(graph: Graph) -> None:
    """Rounds the weights that the graph takes in float16, but those that it casts back at once."""
    import onnx

    inputs = {entry.name: entry.type.tensor_type for entry in graph.proto.graph.input}
    for name in graph.weights:
        if inputs[name].elem_type != onnx.TensorProto.FLOAT16:
            continue
        readers = [node for node in graph.proto.graph.node if name in node.input]
        if all(node.op_type == "Cast" for node in readers):
            inputs[name].elem_type = onnx.TensorProto.FLOAT
        else:
            graph.weights[name] = Float16Weight(graph.weights[name])


class Float16Weight:
    """A weight that is rounded to float16 when it is written.

    Attributes:
        shape: of the array.
    """

    def __init__(self, weight: Weight) -> None:
        self.shape = weight.shape
        self._weight = weight

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.clip(np.asarray(self._weight), -_LARGEST_HALF, _LARGEST_HALF).astype(dtype or "float16")


def _sort_nodes(graph: Proto) -> None:
    """Sorts nodes topologically, as ONNX requires; the converter appends its casts at the end."""
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


def _cast_dtype(cast: Proto) -> str:
    import onnx

    return onnx.helper.tensor_dtype_to_np_dtype(cast.attribute[0].i).name


def save(graph: Graph, place: Path, external_data: bool = False) -> None:
    """Writes a graph with its weights.

    Args:
        graph: a `Graph`, which is used up.
        place: path of the file; external data are `{place.name}.data` in the same folder.
        external_data: whether weights go there whatever their size.
    """
    replace_field(graph.proto.graph.input, [e for e in graph.proto.graph.input if e.name not in graph.weights])
    size = sum(4 * math.prod(weight.shape) for weight in graph.weights.values())
    if size < LARGEST_FILE and not external_data:
        _embed_weights(graph)
    else:
        _write_external_data(graph, place.with_name(f"{place.name}.data"))
    place.write_bytes(graph.proto.SerializeToString())


def _embed_weights(graph: Graph) -> None:
    import onnx

    for name, weight in graph.weights.items():
        graph.proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(weight), name))


def _write_external_data(graph: Graph, place: Path) -> None:
    """Writes one weight after the other, so that memory never holds a second copy of all."""
    with open(place, "wb") as file:
        for name, weight in graph.weights.items():
            array = np.ascontiguousarray(weight)
            start = -(-file.tell() // _ALIGNMENT) * _ALIGNMENT
            file.seek(start)
            file.write(array.data)
            graph.proto.graph.initializer.append(_external_tensor(name, array, place.name, start))


def _external_tensor(name: str, array: np.ndarray, location: str, start: int) -> Proto:
    import onnx

    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape, data_location=onnx.TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", start), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
