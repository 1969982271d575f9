"""ONNX files: uint8 pixels `(batch, H, W, C)` to `logits`, `scores` and `features`.

tf2onnx converts the function with its weights as arguments, so that the graph stays small whatever the model. The
weights are put in afterwards, one by one, above 2 GB into a file beside. ONNX Runtime opens the file.
"""

import re
from pathlib import Path

from keras_vit.exporting.folding import folded_task
from keras_vit.exporting.marks import is_signed, sign, tail_of
from keras_vit.exporting.onnx.graph_checks import check_file, check_graph, check_opset
from keras_vit.exporting.onnx.graph_conversion import graph_of
from keras_vit.exporting.onnx.lower_precision import in_float16, write_int8
from keras_vit.exporting.onnx.patterns import FIRST_OPSET
from keras_vit.exporting.onnx.weight_files import save
from keras_vit.exporting.onnx_session import open_session, required
from keras_vit.exporting.report import Runtime
from keras_vit.exporting.task import ExportTask
from keras_vit.files import read_head
from keras_vit.silence import silence

EXTENSION = ".onnx"
PRECISIONS: tuple[str, ...] = ("float32", "float16", "int8")
CALIBRATED: tuple[str, ...] = ()
FOLDED = PRECISIONS
_METADATA = 1 << 23  # bytes at the end of a file, by which int8 of earlier versions is known; 21,843 labels are 1 MB


def write(task: ExportTask, place: Path, beside: bool = False) -> None:
    """Writes `place`, and above 2 GB the weights beside it, in `{place.name}.data`.

    Args:
        task: an `ExportTask`, with a model in float32.
        place: path of the new file; it may be moved afterwards, together with its data, under the same names.
        beside: whether the weights lie beside it below 2 GB too. B/16 in float32 is then written with 0.7 GB less. int8
            has its own rule.

    Raises:
        ValueError: for an opset that cannot be.
        ImportError: if a package of ONNX is missing.
        ExportError: if the file would not be valid ONNX.
    """
    check_packages(task.precision, task.opset)
    with silence():
        # A LayerNorm of one node needs weights, if only ones. Below that opset it is many nodes, and fewer of them
        # without weights.
        graph = graph_of(folded_task(task, FOLDED, bare=task.opset < FIRST_OPSET))
        check_graph(graph.proto, task.opset)
        if task.precision == "float16":
            graph = in_float16(graph)
        if task.precision == "int8":
            write_int8(graph, place)
        else:
            save(graph, place, beside)
        del graph  # so that it is gone when the checker reads the file
    if (data := place.with_name(f"{place.name}.data")).exists():
        sign(data)
    check_file(place, task.opset)


def wrote(file: Path) -> bool:
    """Whether a file is one that `write` wrote, or one of its data."""
    producer = re.match(rb"\x08.\x12\x09keras_vit", read_head(file) or b"", re.DOTALL)  # its first two fields
    return producer is not None or b"\x0a\x09keras_vit\x12" in tail_of(file, _METADATA) or is_signed(file)


def check_packages(precision: str, opset: int) -> None:
    """Raises if a package is missing, or cannot write an opset.

    Args:
        precision: of the file to be.
        opset: of ONNX.

    Raises:
        ValueError: for the opset.
        ImportError: for a package.
    """
    required("onnx", "onnxruntime", "tf2onnx")
    check_opset(opset)


def open_runtime(place: Path, threads: int | None = None) -> Runtime:
    """The file in ONNX Runtime; arguments and errors are those of `open_session`."""
    return open_session(place, threads).runtime


def opening(name: str) -> None:
    """None is needed: ONNX Runtime computes in the precision of the file."""
