"""The software that can compute a model on this machine, and a model opened in each: prepared images to its answers.

TensorFlow and XLA compute with the model's own weights where these are in the asked precision. ONNX Runtime reads a
file that is written for it, and OpenVINO what its converter makes of the model; both pack the weights anew.
"""

import dataclasses
import os
import tempfile
from pathlib import Path

import numpy as np

from keras_vit.checks import ArgumentError
from keras_vit.exporting import onnx, openvino
from keras_vit.exporting.budget import give_weights_back
from keras_vit.exporting.engines.kept_networks import Keep
from keras_vit.exporting.formats import ENGINES, OPSET
from keras_vit.exporting.pixels import input_spec, pixel_module
from keras_vit.exporting.report import Runtime
from keras_vit.exporting.task import ExportTask
from keras_vit.exporting.writers import Writer
from keras_vit.images.preprocessing import Preprocessing, preprocess_input

ALL = ENGINES[1:]  # without "auto"
_WRITERS: dict[str, Writer] = {"openvino": openvino, "onnxruntime": onnx}  # that bring a model into an engine
_KEPT = f"network{onnx.EXTENSION}"
_BESIDE = os.name == "posix"  # whether weights lie beside the file, which is mapped; Windows removes none that is
_NOT_IN = {
    ("onnxruntime", "bfloat16"): ("ONNX Runtime has no bfloat16 on a CPU", 'precision="float32" or "int8"'),
}


def writer_of(engine: str) -> Writer | None:
    """The module that brings a model into an engine; `None` of TensorFlow, which computes the model itself."""
    return _WRITERS.get(engine)


def is_calibrated(engine: str, precision: str) -> bool:
    """Whether an engine, or of `"auto"` any of them, is calibrated on photos for a precision."""
    writers = [writer_of(name) for name in (ALL if engine == "auto" else (engine,))]
    return any(precision in writer.CALIBRATED for writer in writers if writer is not None)


def check_possible(engine: str, precision: str, threads: int | None, quantized: bool) -> None:
    """Raises for what this engine cannot do, or not on this machine.

    Args:
        engine: one of `ALL`.
        precision: one of `formats.ENGINE_PRECISIONS`.
        threads: how many, or `None`.
        quantized: whether Keras has quantised the model.

    Raises:
        ImportError: if a package is missing.
        ValueError: for anything else.
    """
    if (engine, precision) in _NOT_IN:
        reason, instead = _NOT_IN[engine, precision]
        raise ArgumentError(
            f'{reason}.\nReceived: engine="{engine}", precision="{precision}". Pass {instead}.',
            parameters=("engine", "precision"),
        )
    writer = writer_of(engine)
    if writer is None:
        return _check_threads(engine, threads)
    if quantized:
        raise ArgumentError(
            "a model that Keras quantised runs in TensorFlow only; other engines quantise by their own means.\n"
            f'Received: engine="{engine}". Pass the model that it was made from, and precision="int8".',
            parameters=("engine", "precision"),
        )
    writer.check_packages(precision, OPSET)
    if (engine, precision) == ("openvino", "bfloat16"):
        openvino.check_bfloat16()


def _check_threads(engine: str, threads: int | None) -> None:
    if threads is not None:
        raise ArgumentError(
            "TensorFlow takes its number of threads once, for the whole process, before it computes anything.\n"
            f'Received: threads={threads}, engine="{engine}". Set TF_NUM_INTRAOP_THREADS before Python starts, or '
            'pass engine="openvino" or "onnxruntime".',
            parameters=("threads", "engine"),
        )


def opened(engine: str, task: ExportTask, threads: int | None, keep: Keep | None = None) -> Runtime:
    """A model in an engine; `run` takes float32 `(B, H, W, C)` as the model does.

    Args:
        engine: one of `ALL`.
        task: with `takes="images"`.
        threads: how many, or `None` for the engine's choice.
        keep: is given a function that writes the converted network into a folder, and gives the folder if it is
            written.

    Raises:
        ExportError: if the engine does not take the model.
    """
    if engine not in _WRITERS:
        return _in_tensorflow(task)
    # An engine stays on this processor, so int8 takes all 8 bits where products are added in 32.
    task = dataclasses.replace(task, portable=not openvino.adds_in_32_bits())
    if engine == "openvino":
        return openvino.opened(task, threads, keep)
    if keep is not None and (folder := keep(lambda folder: onnx.write(task, folder / _KEPT, _BESIDE))):
        give_weights_back(task.model)  # of the folded copy
        return onnx.open_runtime(folder / _KEPT, threads)
    with tempfile.TemporaryDirectory(prefix="keras_vit-") as temporary:
        place = Path(temporary, _KEPT)
        onnx.write(task, place, _BESIDE)
        give_weights_back(task.model)
        return onnx.open_runtime(place, threads)


def reopened(engine: str, folder: Path, threads: int | None, precision: str) -> Runtime:
    """What `opened` gave, of the network that it wrote into a folder: "openvino" or "onnxruntime"."""
    if engine == "openvino":
        return openvino.reopened(folder, threads, precision)
    return onnx.open_runtime(folder / _KEPT, threads)


def _in_tensorflow(task: ExportTask) -> Runtime:
    import tensorflow as tf

    module = pixel_module(task)
    spec = [input_spec(task)]
    function = tf.function(module.answers, input_signature=spec, autograph=False, jit_compile=task.jit_compile)
    network = function.get_concrete_function()
    network.module = module  # its weights live as long as it

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in network(tf.constant(images)).items()}

    return Runtime(f"tensorflow {tf.__version__}{' with XLA' if task.jit_compile else ''}", run)


def of_pixels(runtime: Runtime, preprocessing: Preprocessing) -> Runtime:
    """The runtime for pixels at the model's size, as files are compared with the model."""
    return dataclasses.replace(runtime, run=lambda pixels: runtime.run(preprocess_input(pixels, preprocessing)))
