"""A model opened in each of the engines: prepared images to its outputs.

TensorFlow and XLA compute with the model's own weights where these have the precision. ONNX Runtime reads a file that
is written for it, OpenVINO a network that its converter makes of the model; both pack the weights anew.
"""

import dataclasses
import os
import tempfile
from pathlib import Path

import numpy as np

from keras_vit.cache import Store
from keras_vit.checks import ArgumentError
from keras_vit.exporting.budget import trim_weight_memory
from keras_vit.exporting.formats import ENGINES, Format, check_engine, openvino
from keras_vit.exporting.formats.onnx import Onnx
from keras_vit.exporting.formats.openvino import OpenVINO
from keras_vit.exporting.model_function import input_spec, pixel_module
from keras_vit.exporting.report import Runtime
from keras_vit.exporting.spec import ExportSpec
from keras_vit.images.preprocessing import Preprocessing, preprocess_input

ALL = ENGINES[1:]  # without "auto"
_ONNX, _OPENVINO = Onnx(), OpenVINO()
_WRITERS: dict[str, Format] = {"openvino": _OPENVINO, "onnxruntime": _ONNX}  # by engine
_FILE = "network.onnx"
_EXTERNAL = os.name == "posix"  # whether weights have a file of their own, which is mapped; Windows cannot remove one


def engine_writer(engine: str) -> Format | None:
    """The format in which an engine takes a model; `None` of TensorFlow, which computes the model itself."""
    return _WRITERS.get(engine)


def is_calibrated(engine: str, precision: str) -> bool:
    """Whether an engine, or any of them for `"auto"`, is calibrated on photos for a precision."""
    writers = [engine_writer(name) for name in (ALL if engine == "auto" else (engine,))]
    return any(precision in writer.calibrates for writer in writers if writer is not None)


def check_available(engine: str, precision: str, threads: int | None, quantized: bool) -> None:
    """Raises unless an engine can do this on this machine.

    Args:
        engine: one of `ALL`.
        precision: one of `formats.ENGINE_PRECISIONS`.
        threads: how many, or `None`.
        quantized: whether Keras has quantised the model.

    Raises:
        ImportError: if a package is missing.
        ValueError: for anything else.
    """
    check_engine(engine, precision, threads)
    writer = engine_writer(engine)
    if writer is None:
        return
    if quantized:
        raise ArgumentError(
            "a model that Keras quantised runs in TensorFlow only; other engines quantise by their own means.\n"
            f'Received: engine="{engine}". Pass the model that it was made from, and precision="int8".'
        )
    writer.check_packages(precision)
    if (engine, precision) == ("openvino", "bfloat16"):
        openvino.check_bfloat16()


def open_engine(engine: str, spec: ExportSpec, threads: int | None, store: Store | None = None) -> Runtime:
    """A model in an engine; `run` takes float32 `(B, H, W, C)` as the model does.

    Args:
        engine: one of `ALL`.
        spec: with `takes="images"`.
        threads: how many, or `None` for the engine's choice.
        store: writes the converted network into a folder of the cache.

    Raises:
        ExportError: if the engine does not take the model.
    """
    if engine not in _WRITERS:
        return _in_tensorflow(spec)
    # An engine stays on this processor, so int8 takes all 8 bits where products are added in 32.
    spec = dataclasses.replace(spec, portable=not openvino.adds_in_32_bits())
    if engine == "openvino":
        return openvino.compile_model(spec, threads, store)
    if store is not None and (folder := store(lambda folder: _ONNX.write(spec, folder / _FILE, _EXTERNAL))):
        trim_weight_memory(spec.model)  # of the folded copy
        return _ONNX.open_runtime(folder / _FILE, threads)
    with tempfile.TemporaryDirectory(prefix="keras_vit-") as temporary:
        place = Path(temporary, _FILE)
        _ONNX.write(spec, place, _EXTERNAL)
        trim_weight_memory(spec.model)
        return _ONNX.open_runtime(place, threads)


def load_engine(engine: str, folder: Path, threads: int | None, precision: str) -> Runtime:
    """What `open_engine` returned, from the folder of its network: `"openvino"` or `"onnxruntime"`."""
    if engine == "openvino":
        return openvino.load_compiled(folder, threads, precision)
    return _ONNX.open_runtime(folder / _FILE, threads)


def _in_tensorflow(spec: ExportSpec) -> Runtime:
    import tensorflow as tf

    module = pixel_module(spec)
    signature = [input_spec(spec)]
    function = tf.function(module.answers, input_signature=signature, autograph=False, jit_compile=spec.jit_compile)
    network = function.get_concrete_function()
    network.module = module  # its weights live as long as it

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        return {name: tensor.numpy() for name, tensor in network(tf.constant(images)).items()}

    return Runtime(f"tensorflow {tf.__version__}{' with XLA' if spec.jit_compile else ''}", run)


def with_preprocessing(runtime: Runtime, preprocessing: Preprocessing) -> Runtime:
    """The runtime with preprocessing in front, for pixels at the model's size."""
    return dataclasses.replace(runtime, run=lambda pixels: runtime.run(preprocess_input(pixels, preprocessing)))
