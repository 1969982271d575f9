"""OpenVINO's intermediate representation: a graph in XML with its weights beside it, for Intel's processors.

int8 is for dense layers and convolutions: weights with a scale for each output channel, inputs with one scale that NNCF
has learned on photos. Norms, softmax, GELU and the products of attention stay in float32.
"""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.checks import ArgumentError, install_hint, with_parameters
from keras_vit.exporting.budget import trim_weight_memory
from keras_vit.exporting.engines.artifact_cache import Store
from keras_vit.exporting.folding import folded_spec
from keras_vit.exporting.model_function import OUTPUTS, pixel_function
from keras_vit.exporting.report import ExportError, Runtime
from keras_vit.exporting.spec import ExportSpec
from keras_vit.exporting.staging import is_signed, read_tail, sign
from keras_vit.processor import processor_flags
from keras_vit.silence import silence

PRECISIONS: tuple[str, ...] = ("float32", "float16", "int8")
CALIBRATES: tuple[str, ...] = ("int8",)
FOLDS: tuple[str, ...] = (*PRECISIONS, "bfloat16")  # which an engine has
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
_FILE = "network.xml"
_NEXT_TO_NOTHING = 1e-30  # leaves a float32 as it is, unless that is smaller than 1e-23
_IN_ROWS = ("Add", "Divide", "Erf", "Gelu", "MatMul", "Multiply", "Power", "Subtract", "Tanh")  # each row by itself


def write(spec: ExportSpec, place: Path) -> None:
    """Writes `NAME.xml` and `NAME.bin`: uint8 `(B, H, W, C)` named `pixels` to the outputs of a `pixel_module`.

    In the file's runtime information, `model_info` holds labels and preprocessing under the keys of OpenVINO's Model
    API. `keras_vit` holds all of `spec.metadata()` as JSON, and `runtime_options` the precision to compute floats in.

    Args:
        spec: an `ExportSpec`.
        place: path of the new `.xml`.

    Raises:
        ValueError: if Keras has quantised the model.
        ExportError: if OpenVINO does not take the model.
        ImportError: without OpenVINO or, for int8, NNCF.
    """
    openvino, network = _openvino(), _network(spec)
    with silence(), _unreported(), _as_export_error(spec):
        for path, value in _information(spec).items():
            network.set_rt_info(value, list(path))
        openvino.save_model(network, str(place), compress_to_fp16=spec.precision == "float16")
    sign(place.with_suffix(".bin"))


def is_own_file(file: Path) -> bool:
    """Whether a file is one that `write` wrote, or one of its data."""
    if file.suffix == ".bin":
        return is_signed(file) or _is_unsigned_data(file)
    return b"<keras_vit>" in read_tail(file, _MOST_BYTES)


def compile_model(spec: ExportSpec, threads: int | None, store: Store | None = None) -> Runtime:
    """The model compiled for the processor; `run` takes float32 `(B, H, W, C)` as the model does.

    No file is read in between. With one, weights are packed into memory that the conversion has freed, and L/16 in
    bfloat16 took 1 to 4 % more time.

    Args:
        spec: with `takes="images"`. In `"bfloat16"` and `"int8"` floats are in bfloat16 where the processor knows it.
            In int8 that is not the larger error, and B/16 takes 7 % less time.
        threads: that compute; by default OpenVINO's choice.
        store: writes the network into a folder of the cache, for `load_compiled`.

    Raises:
        ExportError: if OpenVINO does not take the model.
        ImportError: without OpenVINO or, for int8, NNCF.
    """
    network = _network(spec)
    trim_weight_memory(spec.model)  # of the folded copy
    if store is not None:
        store(lambda folder: _save(network, folder / _FILE))
    with _as_export_error(spec):
        return _compiled(network, threads, _floats_in(spec.precision))


def load_compiled(folder: Path, threads: int | None, precision: str) -> Runtime:
    """What `compile_model` returned, from the folder of its network."""
    return _compiled(str(folder / _FILE), threads, _floats_in(precision))


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


def load_snippet(name: str) -> str:
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
    """What an `.xml` says of its model, `ExportSpec.metadata()`; empty of one that `write` did not make."""
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
    graph = file.with_suffix(".xml")
    return is_own_file(graph) and file.is_file() and file.stat().st_size == _bytes_of_constants(graph)


def _bytes_of_constants(graph: Path) -> int:
    """Bytes of the data of a graph, as its file tells them."""
    places = _PLACES.findall(read_tail(graph, _MOST_BYTES))
    return max((int(offset) + int(size) for offset, size in places), default=-1)


def _network(spec: ExportSpec) -> Any:
    """OpenVINO's own form of the model, with its outputs named."""
    openvino, nncf = _openvino(), _nncf() if spec.precision == "int8" else None
    with silence():  # Keras reads weights by a way of which NumPy warns
        function = pixel_function(folded_spec(spec, FOLDS))
    concrete = function.get_concrete_function()
    with silence(), _unreported(), _as_export_error(spec):
        # Shared arrays would change with the model, and be freed with it.
        network = openvino.convert_model(concrete, share_weights=False)
        _name_outputs(network, concrete.structured_outputs)
        if nncf is not None:
            rewrite(network)  # for floats it is no faster
            network = _in_int8(openvino, nncf, network, spec)
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
def _as_export_error(spec: ExportSpec) -> Iterator[None]:
    """Makes an `ExportError` of what OpenVINO raises, which is of many classes."""
    try:
        yield
    except (ExportError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise with_parameters(
            ExportError(
                "OpenVINO does not take this model.\n"
                f"Received: {spec.name!r}, precision={spec.precision!r}. It says: {error}"
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


def _in_int8(openvino: Any, nncf: Any, network: Any, spec: ExportSpec) -> Any:
    """The network with weights in int8, 7 bits of which are used.

    With all 8 bits, pairs of products overflow 16 bits on processors without VNNI, and the same file gives other
    answers there. On digits they are three times as far from the model. A spec that is not portable uses all 8 bits, in
    the same time.
    """
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    _fence(openvino, network)
    advanced = nncf.AdvancedQuantizationParameters(
        overflow_fix=nncf.OverflowFix.ENABLE if spec.portable else nncf.OverflowFix.DISABLE,
        activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,  # means cut values off: 0.16
        disable_bias_correction=True,  # no better with whole ranges, and sometimes worse
        smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=_SMOOTHING),
    )
    return nncf.quantize(
        network,
        nncf.Dataset([photo[None] for photo in spec.calibration_photos]),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(spec.calibration_photos),
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


def _information(spec: ExportSpec) -> dict[tuple[str, str], str]:
    """Values by their path in the runtime information, without the mean: the graph scales pixels itself."""
    record = spec.model.preprocessing
    information = {
        ("model_info", "model_type"): "Classification",
        ("model_info", "model_name"): spec.name,
        ("model_info", "resize_type"): "standard" if record.resize == "squash" else record.resize,
        ("model_info", "multilabel"): str(spec.activation == "sigmoid"),
        ("runtime_options", _OPTION): _FLOAT32,
        ("keras_vit", "metadata"): json.dumps(spec.metadata(), ensure_ascii=False),
    }
    if spec.labels is None:
        del information["model_info", "model_type"], information["model_info", "multilabel"]
    else:
        # Blanks separate labels, so those inside a label become underscores.
        information["model_info", "labels"] = " ".join("_".join(label.split()) for label in spec.labels)
    return information


def rewrite(network: Any) -> None:
    """Rewrites a network in place.

    Args:
        network: an `openvino.Model` that was converted of a TensorFlow function.
    """
    join_norms(network)
    keep_tokens(network)
    network.validate_nodes_and_infer_types()


def join_norms(network: Any) -> int:
    """Makes one `MVN` of each LayerNorm without gain and shift. Gives how many it found."""
    from openvino import opset13

    found = 0
    for node in network.get_ordered_ops():
        if parts := _norm(node):
            x, epsilon = parts
            norm = opset13.mvn(x, np.array([-1]), True, epsilon, "INSIDE_SQRT")
            norm.set_friendly_name(node.get_friendly_name())
            node.output(0).replace(norm.output(0))
            found += 1
    return found


def keep_tokens(network: Any) -> int:
    """Lets dense layers take tokens as `(B, T, D)`. Gives how many it found."""
    from openvino import opset13

    found = 0
    for node in network.get_ordered_ops():
        if _is(node, "MatMul") and _is(_before(node, 0), "Reshape") and _comes_back(node):
            rows = _before(node, 0)
            tokens, width = rows.input_value(0), rows.get_output_partial_shape(0)[1]
            shape = tokens.get_partial_shape()
            if not width.is_static or shape.rank.get_length() not in (3, 4):
                continue
            if shape.rank.get_length() == 4:  # of heads
                tokens = opset13.reshape(tokens, np.array([0, 0, -1]), True).output(0)
            if tokens.get_partial_shape()[2] == width:
                node.input(0).replace_source_output(tokens)
                found += 1
    return found


def _norm(node: Any) -> tuple[Any, float] | None:
    """What a LayerNorm's last sum norms, and its epsilon: `x r - m r`, `r = (v + e) ** -0.5`, along the last axis."""
    if not (_is(node, "Add") and _is(_before(node, 0), "Multiply") and _is(_before(node, 1), "Multiply")):
        return None
    scaled, shift = _before(node, 0), _before(node, 1)
    power, negative = _before(scaled, 1), _before(shift, 0)
    if not (_is(power, "Power") and _same(_before(shift, 1), power) and _is(negative, "Multiply")):
        return None
    padded, mean, x = _before(power, 0), _before(negative, 0), scaled.input_value(0)
    variance = _before(padded, 0)
    if _constant(power, 1) != -0.5 or _constant(negative, 1) != -1 or not _is(padded, "Add"):
        return None
    if not (_is_mean(mean) and _is_mean(variance) and mean.input_value(0) == x):
        return None
    squares, epsilon = _before(variance, 0), _constant(padded, 1)
    if not _is(squares, "SquaredDifference") or epsilon is None:
        return None
    differs = squares.input_value(0) == x and _same(_before(squares, 1), mean)
    return (x, epsilon) if differs else None


def _is_mean(node: Any) -> bool:
    """Whether a node is a mean along the last axis that keeps it."""
    if not (_is(node, "ReduceMean") and node.get_keep_dims()):
        return False
    return _constant(node, 1) in (-1, node.get_output_partial_shape(0).rank.get_length() - 1)


def _comes_back(start: Any) -> bool:
    """Whether what a product makes of rows is reshaped before anything looks at more than one of them."""
    rows = {start.get_friendly_name(): start}
    queue = [start]
    while queue:
        for reader in queue.pop().output(0).get_target_inputs():
            node = reader.get_node()
            if _is(node, "Reshape") and reader.get_index() == 0:
                continue
            if not _is(node, *_IN_ROWS):
                return False
            if node.get_friendly_name() not in rows:
                rows[node.get_friendly_name()] = node
                queue.append(node)
    return _reads(start, {}) and all(_reads(node, rows) for node in rows.values() if node is not start)


def _reads(node: Any, rows: Mapping[str, Any]) -> bool:
    """Whether a node reads these rows and, beside them, constants that are the same for each; a product a kernel."""
    if _is(node, "MatMul"):
        kernel = _is(_before(node, 1), "Constant") and len(_before(node, 1).get_output_shape(0)) == 2
        return kernel and not node.get_attributes()["transpose_a"] and (not rows or _name(node, 0) in rows)
    sources = [_before(node, place) for place in range(node.get_input_size())]
    others = [source for source in sources if source.get_friendly_name() not in rows]
    return all(_is(each, "Constant") and set(list(each.get_output_shape(0))[:-1]) <= {1} for each in others)


def _name(node: Any, place: int) -> str:
    return _before(node, place).get_friendly_name()


def _before(node: Any, place: int) -> Any:
    return node.input_value(place).get_node()


def _is(node: Any, *types: str) -> bool:
    return node.get_type_name() in types


def _same(one: Any, other: Any) -> bool:
    return one.get_friendly_name() == other.get_friendly_name()


def _constant(node: Any, place: int) -> float | None:
    """The one number of a constant input, or `None`."""
    given = _before(node, place)
    values = given.get_data() if _is(given, "Constant") else np.empty(0)
    return values.item() if values.size == 1 else None
