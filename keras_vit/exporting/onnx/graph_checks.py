"""Whether a file is valid ONNX: tf2onnx writes what it does not know as operators that nobody has, and says nothing."""

from collections.abc import Iterator
from pathlib import Path

from keras_vit.checks import ArgumentError
from keras_vit.exporting.onnx.graph import Proto
from keras_vit.exporting.report import ExportError

LOWEST_OPSET = 13


def highest_opset() -> int:
    """The highest opset that both tf2onnx and the onnx package know."""
    import onnx.defs
    from tf2onnx.constants import OPSET_TO_IR_VERSION

    return min(max(OPSET_TO_IR_VERSION), onnx.defs.onnx_opset_version())


def check_opset(opset: int) -> None:
    """Raises for an opset that cannot be converted to."""
    highest = highest_opset()
    if not LOWEST_OPSET <= opset <= highest:
        raise ArgumentError(
            f"`opset` must be from {LOWEST_OPSET} to {highest}, which tf2onnx can write.\nReceived: opset={opset}.",
            parameters=("opset",),
        )


def check_graph(proto: Proto, opset: int) -> None:
    """Raises if a node is not of the standard operators of an opset.

    Args:
        proto: an `onnx.ModelProto`.
        opset: of the standard domain.
    """
    unknown = sorted({_name(node) for node in _nodes(proto.graph) if not _is_standard(node, opset)})
    declared = {entry.domain: entry.version for entry in proto.opset_import}
    if unknown or declared != {"": opset}:
        raise ExportError(
            f"every operator must be one of ONNX's own at opset {opset}, so that any runtime takes the file.\n"
            f"Received: {', '.join(unknown) or 'none other'}, with opsets {declared}."
        )


def check_file(place: Path, opset: int) -> None:
    """Raises unless the ONNX checker finds a file valid, shapes and types included.

    Args:
        place: path of the file.
        opset: that it must have.
    """
    import onnx

    try:
        onnx.checker.check_model(str(place), full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError(f"the ONNX checker must find the file valid.\nReceived: {place}: {error}") from error
    check_graph(onnx.load(str(place), load_external_data=False), opset)


def _nodes(graph: Proto) -> Iterator[Proto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _nodes(inner)


def _is_standard(node: Proto, opset: int) -> bool:
    import onnx.defs

    return not node.domain and onnx.defs.has(node.op_type, opset)


def _name(node: Proto) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type
