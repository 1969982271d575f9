"""ONNX files: uint8 pixels `(batch, H, W, C)` to `logits`, `scores` and `features`.

The function is converted by tf2onnx with its weights as arguments, so that the graph stays small whatever the
model; weights are put in afterwards, one by one, above 2 GB into a file beside. Opened by ONNX Runtime.
"""

import importlib
import os

from keras_vit.checks import cores, install_hint
from keras_vit.exporting.folding import folded_task
from keras_vit.exporting.onnx.check import check_file, check_graph, check_opset
from keras_vit.exporting.onnx.convert import graph_of
from keras_vit.exporting.onnx.files import save
from keras_vit.exporting.onnx.patterns import FIRST_OPSET
from keras_vit.exporting.onnx.precision import in_float16, write_int8
from keras_vit.exporting.report import ExportError, Runtime
from keras_vit.silence import silence

EXTENSION = ".onnx"
PRECISIONS = ("float32", "float16", "int8")
CALIBRATED = ()
FOLDED = PRECISIONS


def write(task, place) -> None:
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
        # As one node each LayerNorms need weights, if of ones; below that opset they are many nodes, and fewer without.
        graph = graph_of(folded_task(task, FOLDED, bare=task.opset < FIRST_OPSET))
        check_graph(graph.proto, task.opset)
        if task.precision == "float16":
            graph = in_float16(graph)
        if task.precision == "int8":
            write_int8(graph, place)
        else:
            save(graph, place)
    check_file(place, task.opset)


def check_packages(precision, opset) -> None:
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


def open_runtime(place, threads=None) -> Runtime:
    """The file in ONNX Runtime, on the CPU.

    Args:
        place: path of a file that `write` wrote.
        threads: that compute; by default the runtime's choice, or one for each core that this process may use if it
            may not use all, which the runtime does not look at.

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

    def run(images):
        return dict(zip(names, session.run(names, {given: images}), strict=True))

    return Runtime(f"onnxruntime {onnxruntime.__version__}", run)


def _cores_if_not_all():
    mine = len(cores())
    return mine if mine < (os.cpu_count() or 1) else 0


def _required(*packages):
    for package in packages:
        try:
            with silence():
                importlib.import_module(package)
        except ImportError as error:
            raise ImportError(f"ONNX needs {package}: {install_hint('export')}") from error
