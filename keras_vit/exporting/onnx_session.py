"""An exported ONNX file opened in ONNX Runtime, without Keras, and its metadata."""

import importlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.checks import cores, install_hint
from keras_vit.exporting.report import ExportError, Runtime
from keras_vit.silence import silence

_LARGE = 1 << 20  # numbers in one photo, above which memory is freed after a call


class OnnxSession(NamedTuple):
    """A file that is open.

    Attributes:
        runtime: that computes it.
        takes: `"pixels"`, uint8 that the file scales, or `"images"`, floats that are prepared already.
        outputs: their names.
        metadata: `ExportSpec.metadata()` of the model; empty for a file of other software.
    """

    runtime: Runtime
    takes: str
    outputs: tuple[str, ...]
    metadata: dict[str, Any]


def open_session(place: Path, threads: int | None = None) -> OnnxSession:
    """Opens a file in ONNX Runtime on the CPU.

    Args:
        place: path of a file of ONNX.
        threads: number of threads; by default the runtime's choice. It counts all cores of the machine, so a process
            that may not use all of them gets a thread for each of its own.

    Raises:
        ImportError: if ONNX Runtime is missing.
        ExportError: if it does not take the file.
    """
    require_packages("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    options.intra_op_num_threads = threads or _available_cores()
    options.add_session_config_entry(
        "session.force_spinning_stop", "1"
    )  # else spinning threads slow what follows a call
    try:
        session = onnxruntime.InferenceSession(str(place), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of many classes, all below RuntimeError or Exception itself
        raise ExportError(f"ONNX Runtime must take the file.\nReceived: {place}: {error}") from error
    (given,) = (entry.name for entry in session.get_inputs())
    names = tuple(output.name for output in session.get_outputs())

    frees = onnxruntime.RunOptions()
    frees.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        # The runtime keeps the memory of a call for the next one: 1.7 GB for B/16 at 1,024 pixels.
        options = frees if images[:1].size > _LARGE else None
        return dict(zip(names, session.run(names, {given: images}, options), strict=True))

    runtime = Runtime(f"onnxruntime {onnxruntime.__version__}", run)
    return OnnxSession(runtime, given, names, _read_metadata(session.get_modelmeta()))


def require_packages(*packages: str) -> None:
    """Raises an `ImportError` that names the extra, unless the packages can be imported."""
    for package in packages:
        try:
            with silence():
                importlib.import_module(package)
        except ImportError as error:
            raise ImportError(f"ONNX needs {package}: {install_hint('export')}") from error


def _read_metadata(model: Any) -> dict[str, Any]:
    """The metadata that `onnx_graph` wrote: texts as they are, other values as JSON."""
    texts = model.custom_metadata_map
    if model.producer_name != "keras_vit" and "keras_vit" not in texts:
        return {}
    return {name: text if name in ("name", "activation", "precision") else _parse(text) for name, text in texts.items()}


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _available_cores() -> int:
    mine = len(cores())
    return mine if mine < (os.cpu_count() or 1) else 0
