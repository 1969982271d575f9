"""The formats of `export`, and what can be chosen for an export and an engine; without Keras, for the command line.

A format is a row of `FORMATS` and the module of that name in this folder, which has what `Format` declares.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from keras_vit.checks import ArgumentError

if TYPE_CHECKING:
    from keras_vit.exporting.report import Runtime
    from keras_vit.exporting.spec import ExportSpec

FORMATS = {  # ends of files' names; none for a folder with a version for each export
    "saved_model": "",
    "onnx": ".onnx",
    "litert": ".tflite",
    "openvino": ".xml",
}
PRECISIONS = ("float32", "bfloat16", "float16", "int8")
ENGINES = ("auto", "tensorflow", "xla", "openvino", "onnxruntime")
ENGINE_PRECISIONS = ("float32", "bfloat16", "int8")
ACTIVATIONS = ("softmax", "sigmoid")  # from logits to scores
MAX_BYTES = 8 * 2**20  # of one image file
MAX_PIXELS = 12 * 2**20  # of one image; a phone takes 4032 x 3024, a few more would be 100 MB above the base
MAX_BATCH = 128  # images of one call; 128 of 224 x 224 are 77 MB as float32
OPSET = 18  # of ONNX


class Format(Protocol):
    """The module of a format.

    Attributes:
        PRECISIONS: precisions that the format has.
        CALIBRATES: those of them that are calibrated on photos.
        FOLDS: those of them in which `write` passes its spec to `folded_spec`.
    """

    PRECISIONS: tuple[str, ...]
    CALIBRATES: tuple[str, ...]
    FOLDS: tuple[str, ...]

    def check_packages(self, precision: str, opset: int) -> None:
        """Raises `ImportError` if a package is missing that writes or opens a file of this precision and opset."""

    def write(self, spec: "ExportSpec", place: Path) -> None:
        """Writes the file or the folder `place`, which does not exist."""

    def is_own_file(self, file: Path) -> bool:
        """Whether a file, or one of its data, carries the mark of `write`."""

    def open_runtime(self, place: Path) -> "Runtime":
        """Opens what `write` wrote in the software that will serve it."""

    def load_snippet(self, name: str) -> str | None:
        """The line of Python that opens the file `name` in the precision that it was compared in, if one is needed."""


_UNSUPPORTED = {
    ("onnxruntime", "bfloat16"): ("ONNX Runtime has no bfloat16 on a CPU", 'precision="float32" or "int8"'),
}


def check_engine(engine: str, precision: str, threads: int | None) -> None:
    """Raises for a precision or threads that an engine, other than `"auto"`, has on no machine."""
    if (engine, precision) in _UNSUPPORTED:
        reason, instead = _UNSUPPORTED[engine, precision]
        raise ArgumentError(
            f'{reason}.\nReceived: engine="{engine}", precision="{precision}". Pass {instead}.',
            parameters=("engine", "precision"),
        )
    if threads is not None and engine in ("tensorflow", "xla"):
        raise ArgumentError(
            "TensorFlow takes its number of threads once, for the whole process, before it computes anything.\n"
            f'Received: threads={threads}, engine="{engine}". Set TF_NUM_INTRAOP_THREADS before Python starts, or '
            'pass engine="openvino" or "onnxruntime".',
            parameters=("threads", "engine"),
        )


def find_format(name: str) -> Format:
    """The module of a format, by its name in `FORMATS`."""
    return cast(Format, importlib.import_module(f"{__name__}.{name}"))
