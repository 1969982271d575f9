"""The formats of `export`, and what can be chosen for an export and an engine; without Keras, for the command line.

A format is an object of `FORMATS`; `Format` says what it has.
"""

from keras_vit.checks import ArgumentError
from keras_vit.exporting.formats.format import ACTIVATIONS, PRECISIONS, Format, Options
from keras_vit.exporting.formats.litert import LiteRT
from keras_vit.exporting.formats.onnx import Onnx
from keras_vit.exporting.formats.openvino import OpenVINO
from keras_vit.exporting.formats.saved_model import SavedModel

__all__ = ["ACTIVATIONS", "ENGINES", "ENGINE_PRECISIONS", "FORMATS", "PRECISIONS", "Format", "Options", "check_engine"]

_ALL: list[Format] = [
    SavedModel(),
    Onnx(),
    LiteRT(),
    OpenVINO(),
]
FORMATS = {format.name: format for format in _ALL}
ENGINES = ("auto", "tensorflow", "xla", "openvino", "onnxruntime")
ENGINE_PRECISIONS = ("float32", "bfloat16", "int8")
_UNSUPPORTED = {
    ("onnxruntime", "bfloat16"): ("ONNX Runtime has no bfloat16 on a CPU", 'precision="float32" or "int8"'),
}


def check_engine(engine: str, precision: str, threads: int | None) -> None:
    """Raises for a precision or threads that an engine, other than `"auto"`, has on no machine."""
    if (engine, precision) in _UNSUPPORTED:
        reason, instead = _UNSUPPORTED[engine, precision]
        raise ArgumentError(f'{reason}.\nReceived: engine="{engine}", precision="{precision}". Pass {instead}.')
    if threads is not None and engine in ("tensorflow", "xla"):
        raise ArgumentError(
            "TensorFlow takes its number of threads once, for the whole process, before it computes anything.\n"
            f'Received: threads={threads}, engine="{engine}". Set TF_NUM_INTRAOP_THREADS before Python starts, or '
            'pass engine="openvino" or "onnxruntime".'
        )
