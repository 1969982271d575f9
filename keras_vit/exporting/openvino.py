"""OpenVINO's intermediate representation: a graph in XML with its weights beside it, for Intel's processors.

int8 is for dense layers and convolutions: weights with a scale for each output channel, inputs with one scale that NNCF
has learned on photos. Norms, softmax, GELU and the products of attention stay in float32.
"""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, install_hint, with_parameters
from keras_vit.exporting.budget import give_weights_back
from keras_vit.exporting.engines.kept_networks import Keep
from keras_vit.exporting.folding import folded_task
from keras_vit.exporting.marks import is_signed, sign, tail_of
from keras_vit.exporting.openvino_graph import rewrite
from keras_vit.exporting.pixels import OUTPUTS, pixel_function
from keras_vit.exporting.report import ExportError, Runtime
from keras_vit.exporting.task import ExportTask
from keras_vit.processor import processor_flags
from keras_vit.silence import silence

EXTENSION = ".xml"
PRECISIONS: tuple[str, ...] = ("float32", "float16", "int8")
CALIBRATED: tuple[str, ...] = ("int8",)
FOLDED: tuple[str, ...] = (*PRECISIONS, "bfloat16")  # which an engine has
# SmoothQuant's exponent. Mean difference of logits as a share of their deviation, of a model with widths of 12: 0.019.
# Without it 0.021, with NNCF's 0.95 for transformers 0.024. With 0.5: 600 digits 0.012 (accuracy 0.948, as in float32),
# Ti/16 randomly initialised 0.030.
_SMOOTHING = 0.5
# Whoever compiles a file must name the precision: by default a processor that knows bfloat16 computes all floats in it,
# whatever the file holds. OpenVINO 2026.4 reads no option on it from a file (a test tries them), but the file has it
# where other options stand.
_OPTION, _FLOAT32, _BFLOAT16 = "INFERENCE_PRECISION_HINT", "f32", "bf16"
_VNNI = {"avx512_vnni", "avx_vnni"}  # either adds products of bytes in 32 bits
_MOST_BYTES = 1 << 26  # of a graph; that of H/14 has 1 MB
_PLACES = re.compile(rb'offset="(\d+)"[^>]* size="(\d+)"')  # of constants in the data, in bytes
_KEPT = f"network{EXTENSION}"
_NEXT_TO_NOTHING = 1e-30  # leaves a float32 as it is, unless that is smaller than 1e-23


def write(task: ExportTask, place: Path) -> None:
    """Writes `NAME.xml` and `NAME.bin`: uint8 `(B, H, W, C)` named `pixels` to the outputs of a `pixel_module`.

    In the file's runtime information, `model_info` holds labels and preprocessing under the keys of OpenVINO's Model
    API. `keras_vit` holds all of `task.metadata()` as JSON, and `runtime_options` the precision to compute floats in.

    Args:
        task: an `ExportTask`.
        place: path of the new `.xml`.

    Raises:
        ValueError: if Keras has quantised the model.
        ExportError: if OpenVINO does not take the model.
        ImportError: without OpenVINO or, for int8, NNCF.
    """
    openvino, network = _openvino(), _network(task)
    with silence(), _unreported(), _refusals(task):
        for path, value in _information(task).items():
            network.set_rt_info(value, list(path))
        openvino.save_model(network, str(place), compress_to_fp16=task.precision == "float16")
    sign(place.with_suffix(".bin"))


def wrote(file: Path) -> bool:
    """Whether a file is one that `write` wrote, or one of its data."""
    if file.suffix == ".bin":
        return is_signed(file) or _is_unsigned_data(file)
    return b"<keras_vit>" in tail_of(file, _MOST_BYTES)


def opened(task: ExportTask, threads: int | None, keep: Keep | None = None) -> Runtime:
    """The model compiled for the processor; `run` takes float32 `(B, H, W, C)` as the model does.

    No file is read in between. With one, weights are packed into memory that the conversion has freed, and L/16 in
    bfloat16 took 1 to 4 % more time.

    Args:
        task: with `takes="images"`. In `"bfloat16"` and `"int8"` floats are in bfloat16 where the processor knows it.
            In int8 that is not the larger error, and B/16 takes 7 % less time.
        threads: that compute; by default OpenVINO's choice.
        keep: is given a function that writes the network into a folder, for `reopened`.

    Raises:
        ExportError: if OpenVINO does not take the model.
        ImportError: without OpenVINO or, for int8, NNCF.
    """
    network = _network(task)
    give_weights_back(task.model)  # of the folded copy
    if keep is not None:
        keep(lambda folder: _save(network, folder / _KEPT))
    with _refusals(task):
        return _compiled(network, threads, _floats_in(task.precision))


def reopened(folder: Path, threads: int | None, precision: str) -> Runtime:
    """What `opened` gave, of the network that it wrote into a folder."""
    return _compiled(str(folder / _KEPT), threads, _floats_in(precision))


def _floats_in(precision: str) -> str:
    """What an engine computes floats in."""
    half = precision == "bfloat16" or (precision == "int8" and _knows_bfloat16(_openvino()))
    return _BFLOAT16 if half else _FLOAT32


def _save(network: Any, place: Path) -> None:
    """Writes a network as it is; raises `OSError` if not all of it is there, of which OpenVINO may say nothing."""
    try:
        with silence(), _unreported():
            _openvino().save_model(network, str(place), compress_to_fp16=False)
    except RuntimeError as error:
        raise OSError(f"OpenVINO cannot write all of it, as on a full disk: {error}") from error
    if place.with_suffix(".bin").stat().st_size != _bytes_of_constants(place):
        raise OSError("OpenVINO has not written all of it, as on a full disk")


def check_packages(precision: str, opset: int) -> None:
    """Raises `ImportError` if a package is missing.

    Args:
        precision: of the file to be.
        opset: of ONNX, nothing here.
    """
    _openvino()
    if precision == "int8":
        _nncf()


def opening(name: str) -> str:
    """The line of Python that opens a file in the precision that it was compared in.

    Args:
        name: of the file, with its folder.
    """
    return f'openvino.compile_model({json.dumps(name, ensure_ascii=False)}, "CPU", {{"{_OPTION}": "{_FLOAT32}"}})'


def open_runtime(place: Path, threads: int | None = None) -> Runtime:
    """The file compiled for the processor, computing in float32 where it holds floats.

    Args:
        place: path of an `.xml` that `write` made, with its `.bin` beside.
        threads: how many compute; by default OpenVINO's choice.

    Raises:
        ExportError: if OpenVINO cannot compile it.
        ImportError: without OpenVINO.
    """
    try:
        return _compiled(str(place), threads, _FLOAT32)
    except RuntimeError as error:
        raise ExportError(
            f"OpenVINO does not take the file that it wrote.\nReceived: {place}. It says: {error}"
        ) from error


def facts_of(place: Path) -> dict[str, Any]:
    """What an `.xml` says of its model, `ExportTask.metadata()`; empty of one that `write` did not make."""
    try:
        said = _openvino().Core().read_model(str(place)).get_rt_info(["keras_vit", "metadata"])
        return json.loads(said.astype(str))
    except (RuntimeError, ValueError):
        return {}


def check_bfloat16() -> None:
    """Raises `ValueError` unless the processor computes in bfloat16; OpenVINO would take float32 without a word."""
    if not _knows_bfloat16(_openvino()):
        raise ArgumentError(
            "OpenVINO computes in bfloat16 where the processor has instructions for it.\n"
            'Received: precision="bfloat16" on a processor without them. Pass precision="float32" or "int8".',
            parameters=("precision",),
        )


def adds_in_32_bits() -> bool:
    """Whether this processor is known to add products of bytes in 32 bits, as those with VNNI do."""
    return not _VNNI.isdisjoint(processor_flags())


def _is_unsigned_data(file: Path) -> bool:
    """Whether a file ends where the constants of our graph beside it end; earlier versions put no mark behind them."""
    graph = file.with_suffix(EXTENSION)
    return wrote(graph) and file.is_file() and file.stat().st_size == _bytes_of_constants(graph)


def _bytes_of_constants(graph: Path) -> int:
    """Bytes of the data of a graph, as its file tells them."""
    places = _PLACES.findall(tail_of(graph, _MOST_BYTES))
    return max((int(offset) + int(size) for offset, size in places), default=-1)


def _network(task: ExportTask) -> Any:
    """OpenVINO's own form of the model, with its outputs named."""
    openvino, nncf = _openvino(), _nncf() if task.precision == "int8" else None
    with silence():  # Keras reads weights by a way of which NumPy warns
        function = pixel_function(folded_task(task, FOLDED))
    concrete = function.get_concrete_function()
    with silence(), _unreported(), _refusals(task):
        # Shared arrays would change with the model, and be freed with it.
        network = openvino.convert_model(concrete, share_weights=False)
        _name_outputs(network, concrete.structured_outputs)
        if nncf is not None:
            rewrite(network)  # for floats it is no faster
            network = _in_int8(openvino, nncf, network, task)
        return _in_order(openvino, network)


def _compiled(network: Any, threads: int | None, precision: str) -> Runtime:
    """A network or the path of its file, compiled for the processor."""
    openvino = _openvino()
    options: dict[str, Any] = {_OPTION: precision}
    if threads is not None:
        options["INFERENCE_NUM_THREADS"] = threads
    with silence():
        compiled = openvino.Core().compile_model(network, "CPU", options)
    names = [output.any_name for output in compiled.outputs]

    def run(images: np.ndarray) -> dict[str, np.ndarray]:
        found = compiled(images)
        return {name: found[name] for name in names}

    return Runtime(f"OpenVINO {openvino.__version__.split('-')[0]}", run)


@contextlib.contextmanager
def _refusals(task: ExportTask) -> Iterator[None]:
    """Makes an `ExportError` of what OpenVINO raises, which is of many classes."""
    try:
        yield
    except (ExportError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise with_parameters(
            ExportError(
                "OpenVINO does not take this model.\n"
                f"Received: {task.name!r}, precision={task.precision!r}. It says: {error}"
            ),
            "precision",
        ) from error


def _knows_bfloat16(openvino: Any) -> bool:
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _openvino() -> Any:
    try:
        with silence(), _unreported():
            import openvino
    except ImportError as error:
        raise ImportError(f"OpenVINO is missing: {install_hint('export')}") from error
    return openvino


def _nncf() -> Any:
    try:
        with silence(), _unreported():
            import nncf
    except ImportError as error:
        raise ImportError(f"OpenVINO is quantised by nncf, which is missing: {install_hint('export')}") from error
    return nncf


@contextlib.contextmanager
def _unreported() -> Iterator[None]:
    """Inside, neither package reports its use to its maker or stores an id for that.

    Unless the user has declined, both do so outside of a CI. They share one reporter, which may run already, so its
    consent is withdrawn too.
    """
    before = os.environ.get("CI")
    reporter: Any = getattr(sys.modules.get("openvino.tools.ovc"), "telemetry", None)
    consent = getattr(reporter, "consent", None)
    os.environ["CI"] = "true"
    if consent:
        reporter.consent = False
    try:
        yield
    finally:
        if consent:
            reporter.consent = consent
        if before is None:
            del os.environ["CI"]
        else:
            os.environ["CI"] = before


def _name_outputs(network: Any, names: Iterable[str]) -> None:
    """Leaves each output the name that was asked for; an output whose bias of zeros was dropped has a second name."""
    for output in network.outputs:
        output.get_tensor().set_names(output.get_names() & set(names))


def _in_order(openvino: Any, network: Any) -> Any:
    """The network with its outputs in the order of all formats; the converter sorts them by their names."""
    pairs = zip(network.outputs, network.get_results(), strict=True)
    results = [result for _, result in sorted(pairs, key=lambda pair: OUTPUTS.index(pair[0].any_name))]
    return openvino.Model(results, network.get_parameters(), network.get_friendly_name())


def _in_int8(openvino: Any, nncf: Any, network: Any, task: ExportTask) -> Any:
    """The network with weights in int8, 7 bits of which are used.

    With all 8 bits, pairs of products overflow 16 bits on processors without VNNI, and the same file gives other
    answers there. On digits they are three times as far from the model. A task that is not portable uses all 8 bits, in
    the same time.
    """
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    _fence(openvino, network)
    advanced = nncf.AdvancedQuantizationParameters(
        overflow_fix=nncf.OverflowFix.ENABLE if task.portable else nncf.OverflowFix.DISABLE,
        activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,  # means cut values off: 0.16
        disable_bias_correction=True,  # no better with whole ranges, and sometimes worse
        smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=_SMOOTHING),
    )
    return nncf.quantize(
        network,
        nncf.Dataset([photo[None] for photo in task.calibration_photos]),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(task.calibration_photos),
        ignored_scope=nncf.IgnoredScope(
            names=_products_of_activations(network), types=["ScaledDotProductAttention"], validate=False
        ),
        advanced_parameters=advanced,
    )


def _fence(openvino: Any, network: Any) -> None:
    """Adds next to nothing between each dense layer and a reshape behind it.

    OpenVINO moves a layer's scales through a reshape that follows, and fails where that splits channels into heads.
    A bias holds them up; one of zeros is no bias any more.
    """
    operations = openvino.opset13
    for node in _products(network):
        channels = node.output(0).partial_shape[-1]
        readers = [reader for reader in node.output(0).get_target_inputs() if _type(reader) == "Reshape"]
        if not readers or channels.is_dynamic:
            continue
        nothing = operations.constant(np.full(channels.get_length(), _NEXT_TO_NOTHING, "float32"))
        fence = operations.add(node, nothing)
        for reader in readers:
            reader.replace_source_output(fence.output(0))
    network.validate_nodes_and_infer_types()


def _products(network: Any) -> list[Any]:
    return [node for node in network.get_ordered_ops() if node.get_type_name() == "MatMul"]


def _products_of_activations(network: Any) -> list[str]:
    """Names of the products of which no factor is a weight, where attention was not recognised as such."""
    return [
        node.get_friendly_name()
        for node in _products(network)
        if all(_type(factor.get_source_output()) != "Constant" for factor in node.inputs())
    ]


def _type(end: Any) -> str:
    """Type of the node at an input or output."""
    return end.get_node().get_type_name()


def _information(task: ExportTask) -> dict[tuple[str, str], str]:
    """Values by their path in the runtime information, without the mean: the graph scales pixels itself."""
    record = task.model.preprocessing
    information = {
        ("model_info", "model_type"): "Classification",
        ("model_info", "model_name"): task.name,
        ("model_info", "resize_type"): "standard" if record.resize == "squash" else record.resize,
        ("model_info", "multilabel"): str(task.activation == "sigmoid"),
        ("runtime_options", _OPTION): _FLOAT32,
        ("keras_vit", "metadata"): json.dumps(task.metadata(), ensure_ascii=False),
    }
    if task.labels is None:
        del information["model_info", "model_type"], information["model_info", "multilabel"]
    else:
        # Blanks separate labels, so those inside a label become underscores.
        information["model_info", "labels"] = " ".join("_".join(label.split()) for label in task.labels)
    return information
