"""A file of ours in ONNX Runtime, opened without Keras, and what the file says of its model."""

import importlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.checks import cores, install_hint
from keras_vit.exporting.report import ExportError, Runtime
from keras_vit.silence import silence

_LARGE = 1 << 20  # numbers of one photo, from which on memory is given back after a call


class OnnxSession(NamedTuple):
    """A file that is open.

    Attributes:
        runtime: that computes it.
        takes: `"pixels"`, uint8 that the file scales, or `"images"`, floats that were prepared before.
        outputs: their names.
        facts: `ExportSpec.metadata()` of the model; empty of a file of other software.
    """

    runtime: Runtime
    takes: str
    outputs: tuple[str, ...]
    facts: dict[str, Any]


def open_session(place: Path, threads: int | None = None) -> OnnxSession:
    """The file in ONNX Runtime, on the CPU.

    Args:
        place: path of a file of ONNX.
        threads: how many compute; by default the runtime's choice. The runtime counts all cores of the machine. So a
            process that may not use all of them gets a thread for each of its own.

    Raises:
        ImportError: if ONNX Runtime is missing.
        ExportError: if it does not take the file.
    """
    required("onnxruntime")
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
    names = tuple(output.name for output in session.get_outputs())

    frees = onnxruntime.RunOptions()
    frees.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        # The runtime keeps what a call has held for the next one: of B/16 at 1,024 pixels 1.7 GB.
        options = frees if images[:1].size > _LARGE else None
        return dict(zip(names, session.run(names, {given: images}, options), strict=True))

    runtime = Runtime(f"onnxruntime {onnxruntime.__version__}", run)
    return OnnxSession(runtime, given, names, _facts(session.get_modelmeta()))


def required(*packages: str) -> None:
    """Raises an `ImportError` that names the extra, unless these can be imported."""
    for package in packages:
        try:
            with silence():
                importlib.import_module(package)
        except ImportError as error:
            raise ImportError(f"ONNX needs {package}: {install_hint('export')}") from error


def _facts(said: Any) -> dict[str, Any]:
    """What `onnx_graph` wrote: texts as they are, and all else as JSON."""
    texts = said.custom_metadata_map
    if said.producer_name != "keras_vit" and "keras_vit" not in texts:
        return {}
    return {name: text if name in ("name", "activation", "precision") else _value(text) for name, text in texts.items()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _cores_if_not_all() -> int:
    mine = len(cores())
    return mine if mine < (os.cpu_count() or 1) else 0
