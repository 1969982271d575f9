"""LiteRT, the format of TensorFlow Lite for phones: one file of built-in operations, with the labels inside.

Its shapes are static, including the batch, since most delegates, as that of a phone's GPU, refuse computed shapes.

int8 is for dense layers and convolutions. Weights have a scale for each output channel, inputs and outputs one scale
that is calibrated on photos. Norms, softmax, GELU and the products of attention stay in float32.
"""

import dataclasses
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, check_positive_int, install_hint
from keras_vit.exporting.formats.format import Format, Options
from keras_vit.exporting.report import ExportError, Runtime
from keras_vit.exporting.spec import OUTPUTS, ExportSpec
from keras_vit.files import open_regular
from keras_vit.silence import silence

LABELS, METADATA = "labels.txt", "metadata.json"  # in the archive at the end of the file
_MOST_METADATA = 1 << 24  # bytes; 21,843 labels are 1 MB
MAX_BYTES = 2**31 - 2**26  # of weights: a flatbuffer holds 2 GB, of which 64 MB are for the rest
_BYTES = {"float32": 4, "float16": 2, "int8": 4}  # of a weight; int8 is made from a float32 file
# Mean differences of logits as shares of their deviation, on 600 digits (accuracy in float32 0.948) and with random
# weights of Ti/16 and B/16. Calibrated on photos: 0.014 (accuracy 0.948), 0.030, 0.025. With ranges of each call
# ("dynamic range"): 0.008 (0.950), 0.017, 0.018, but Ti/16 takes twice the time. With all else in int8 too:
# 0.046, 0.15.
_INT8_OPERATORS = ("CONV_2D", "FULLY_CONNECTED")
_PHOTOS = 32  # to calibrate on; B/16 takes a second or more for each in the calibrating interpreter


@dataclasses.dataclass(frozen=True)
class LiteRTOptions(Options):
    """The options of LiteRT."""

    batch_size: int | str = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size != "any":
            check_positive_int("batch_size", self.batch_size)

    def of_spec(self, any_size: bool) -> dict[str, Any]:
        return {"batch_size": None if any_size or self.batch_size == "any" else int(self.batch_size)}


class LiteRT(Format):
    """The format; its shapes may be static."""

    name, title, extension = "litert", "LiteRT", ".tflite"
    precisions = ("float32", "float16", "int8")
    calibrates = ("int8",)
    # Not in int8: with folding, Ti/16 with gains of 0.5 to 2 is off by 0.025 of its deviation, without by 0.022. The
    # model of 600 digits is off by 0.012 either way.
    folds = ("float32", "float16")
    Options = LiteRTOptions

    def write(self, spec: ExportSpec, place: Path) -> None:
        """Writes one file with the signature `pixels`: uint8 `(B, H, W, C)` to the dict of a `pixel_module`.

        Of a text tower the signature is `ids`, int32 `(B, T)`. B is the spec's `batch_size`. Outputs have the order of
        `OUTPUTS`.

        A ZIP archive with `labels.txt`, a label on each line, and `metadata.json` is appended, as TensorFlow Lite
        appends associated files. Interpreters do not see it, and any program for ZIP files opens it.
        """
        self.check_packages(spec.precision)
        _check_size(spec)
        content = _order_outputs(_convert(spec, self.folds, place.parent))
        place.write_bytes(content)
        _append_files(spec, place)

    def is_own_file(self, file: Path) -> bool:
        try:
            with open_regular(file) as opened, zipfile.ZipFile(opened) as archive, archive.open(METADATA) as member:
                return b'"keras_vit": ' in member.read(_MOST_METADATA)
        except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
            return False

    def check_packages(self, precision: str) -> None:
        _interpreter()

    def open_runtime(self, place: Path) -> Runtime:
        """Opens the file in LiteRT's interpreter, on all cores, with XNNPACK by default."""
        with silence():
            package, interpreter_class = _interpreter()
            interpreter = interpreter_class(str(place), num_threads=os.cpu_count())
            interpreter.allocate_tensors()  # which prints a line about its delegate
            answer = interpreter.get_signature_runner()
        ((takes, details),) = answer.get_input_details().items()
        size = int(details["shape_signature"][0])  # -1 for any

        def run(pixels: np.ndarray) -> dict[str, np.ndarray]:
            """Runs batches of the size that the file takes; the last one is padded."""
            if size < 0:
                return answer(**{takes: pixels})
            parts = []
            for start in range(0, len(pixels), size):
                part = pixels[start : start + size]
                found = answer(**{takes: np.resize(part, (size, *part.shape[1:]))})
                parts.append({name: array[: len(part)].copy() for name, array in found.items()})
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

        return Runtime(f"LiteRT {package.__version__}", run)


def _interpreter() -> tuple[Any, Any]:
    try:
        import ai_edge_litert
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise ImportError(
            f"a LiteRT file is opened by ai-edge-litert, which is missing: {install_hint('export')}"
        ) from error
    return ai_edge_litert, Interpreter


def _check_size(spec: ExportSpec) -> None:
    size = spec.model.count_params() * _BYTES[spec.precision]
    what = "float32, of which int8 is made" if spec.precision == "int8" else spec.precision
    if size > MAX_BYTES:
        raise ArgumentError(
            "a LiteRT file can hold 2 GB.\n"
            f"Received: {spec.name!r} with {size / 1e9:.1f} GB of weights in {what}. Pass "
            'format="onnx" or "openvino", or precision="float16" where that is small enough.'
        )


def _convert(spec: ExportSpec, folds: Sequence[str], folder: Path) -> bytes:
    """The file's bytes; intermediate ones are written to a folder below `folder`."""
    import tensorflow as tf

    from keras_vit.exporting.folding import folded_spec
    from keras_vit.exporting.model_function import pixel_function

    with silence():  # Keras reads weights in a way that NumPy warns about
        function = pixel_function(folded_spec(spec, folds))
    concrete = function.get_concrete_function()
    with tempfile.TemporaryDirectory(prefix=".litert-", dir=folder) as saved, silence():
        holder = tf.Module()
        holder.held = list(concrete.graph.variables)  # if Keras' objects track them, the converter does not read them
        tf.saved_model.save(holder, saved, signatures={spec.takes: concrete})
        converter = tf.lite.TFLiteConverter.from_saved_model(saved, signature_keys=[spec.takes])
        if spec.precision == "float16":
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [tf.float16]
        try:
            return _quantize(converter, spec) if spec.precision == "int8" else converter.convert()
        except Exception as error:  # of a private class of TensorFlow
            raise ExportError(
                "a LiteRT file is made of built-in operations alone, and this model has one that is none.\n"
                f"Received: {spec.name!r}. The converter says: {error}"
            ) from error


def _order_outputs(content: bytes) -> bytearray:
    """The file with its outputs in the order of `OUTPUTS`; the converter sorts them by name.

    The graph lists the indices of the output tensors, so the list is reordered in place. Signatures use the indices,
    which stay.
    """
    from ai_edge_litert.schema_py_generated import Model

    ordered = bytearray(content)
    model = Model.GetRootAsModel(ordered, 0)
    signature = model.SignatureDefs(0)
    named = [signature.Outputs(place) for place in range(signature.OutputsLength())]
    order = sorted(named, key=lambda output: OUTPUTS.index(output.Name().decode()))
    numbers = [output.TensorIndex() for output in order]
    listed = model.Subgraphs(signature.SubgraphIndex()).OutputsAsNumpy()
    if sorted(listed) != sorted(numbers):
        raise ExportError(f"a graph must give what its signature names.\nReceived: {numbers}, {listed.tolist()}.")
    listed[:] = numbers  # a view of the bytes of `ordered`
    return ordered


def _quantize(converter: Any, spec: ExportSpec) -> bytes:
    """The file in int8, by the quantization debugger: only it can keep single operations in float."""
    import tensorflow as tf
    from ai_edge_litert.schema_py_generated import BuiltinOperator

    photos = spec.calibration_photos[np.linspace(0, len(spec.calibration_photos) - 1, _PHOTOS).astype(int)]

    def calls() -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        for photo in photos:
            yield spec.takes, {spec.takes: np.repeat(photo[None], spec.batch_size or 1, axis=0)}

    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = calls
    of_maps = spec.of_pixels or spec.of_queries  # a head of these in int8 is far off
    in_int8 = _INT8_OPERATORS[1:] if of_maps else _INT8_OPERATORS
    in_float = [name for name in vars(BuiltinOperator) if name.isupper() and name not in in_int8]
    options = tf.lite.experimental.QuantizationDebugOptions(denylisted_ops=in_float)
    debugger = tf.lite.experimental.QuantizationDebugger(converter=converter, debug_options=options)
    return debugger.get_nondebug_quantized_model()


def _append_files(spec: ExportSpec, place: Path) -> None:
    metadata = json.dumps(spec.metadata(), indent=2, ensure_ascii=False)
    files = {METADATA: metadata} if spec.labels is None else {LABELS: _label_lines(spec.labels), METADATA: metadata}
    with zipfile.ZipFile(place, "a") as archive:  # not compressed, so that a phone can memory-map it
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)  # dated 1980, so that one model gives one file


def _label_lines(labels: Sequence[str]) -> str:
    return "".join(" ".join(label.split()) + "\n" for label in labels)
