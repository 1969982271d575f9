"""ONNX files: uint8 pixels `(batch, H, W, C)` to `logits`, `scores` and `features`.

tf2onnx converts the function with its weights as arguments, so that the graph stays small whatever the model. The
weights are put in afterwards, one by one, above 2 GB into a file beside. ONNX Runtime opens the file.
"""

import importlib
import os
import re
from pathlib import Path

import numpy as np

from keras_vit.checks import cores, install_hint
from keras_vit.exporting.folding import folded_task
from keras_vit.exporting.marks import is_signed, sign, tail_of
from keras_vit.exporting.onnx.graph_checks import check_file, check_graph, check_opset
from keras_vit.exporting.onnx.graph_conversion import graph_of
from keras_vit.exporting.onnx.lower_precision import in_float16, write_int8
from keras_vit.exporting.onnx.patterns import FIRST_OPSET
from keras_vit.exporting.onnx.weight_files import save
from keras_vit.exporting.report import ExportError, Runtime
from keras_vit.exporting.task import ExportTask
from keras_vit.files import head_of
from keras_vit.silence import silence

EXTENSION = ".onnx"
PRECISIONS: tuple[str, ...] = ("float32", "float16", "int8")
CALIBRATED: tuple[str, ...] = ()
FOLDED = PRECISIONS
_LARGE = 1 << 20  # numbers of one photo, from which on memory is given back after a call
_METADATA = 1 << 23  # bytes at the end of a file, by which int8 of earlier versions is known; 21,843 labels are 1 MB


def write(task: ExportTask, place: Path) -> None:
    """Writes `place`, and above 2 GB the weights beside it, in `{place.name}.data`.

    Args:
        task: an `ExportTask`, with a model in float32.
        place: path of the new file; it may be moved afterwards, together with its data, under the same names.

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
            save(graph, place)
    if (data := place.with_name(f"{place.name}.data")).exists():
        sign(data)
    check_file(place, task.opset)


def wrote(file: Path) -> bool:
    """Whether a file is one that `write` wrote, or one of its data."""
    producer = re.match(rb"\x08.\x12\x09keras_vit", head_of(file) or b"", re.DOTALL)  # its first two fields
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
    _required("onnx", "onnxruntime", "tf2onnx")
    check_opset(opset)


def open_runtime(place: Path, threads: int | None = None) -> Runtime:
    """The file in ONNX Runtime, on the CPU.

    Args:
        place: path of a file that `write` wrote.
        threads: how many compute; by default the runtime's choice. The runtime counts all cores of the machine. So a
            process that may not use all of them gets a thread for each of its own.

    Raises:
        ImportError: if ONNX Runtime is missing.
        ExportError: if it does not take the file.
    """
    _required("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads or _cores_if_not_all()
    options.add_session_config_entry("session.force_spinning_stop", "1")  # else they slow what comes after a call
    try:
        session = onnxruntime.InferenceSession(str(place), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of many classes, all below RuntimeError or Exception itself
        raise ExportError(f"ONNX Runtime must take the file.\nReceived: {place}: {error}") from error
    (given,) = (entry.name for entry in session.get_inputs())
    names = [output.name for output in session.get_outputs()]

    frees = onnxruntime.RunOptions()
    frees.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        # The runtime keeps what a call has held for the next one: of B/16 at 1,024 pixels 1.7 GB.
        options = frees if images[:1].size > _LARGE else None
        return dict(zip(names, session.run(names, {given: images}, options), strict=True))

    return Runtime(f"onnxruntime {onnxruntime.__version__}", run)


def opening(name: str) -> None:
    """None is needed: ONNX Runtime computes in the precision of the file."""


def _cores_if_not_all() -> int:
    mine = len(cores())
    return mine if mine < (os.cpu_count() or 1) else 0


def _required(*packages: str) -> None:
    for package in packages:
        try:
            with silence():
                importlib.import_module(package)
        except ImportError as error:
            raise ImportError(f"ONNX needs {package}: {install_hint('export')}") from error
