"""OpenVINO's intermediate representation for Intel's processors: a graph in XML and a file of weights.

int8 is for dense layers and convolutions: weights with a scale for each output channel, inputs with one scale that NNCF
calibrates on photos. Norms, softmax, GELU and the products of attention stay in float32.
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

from keras_vit.cache import Store
from keras_vit.checks import ArgumentError, install_hint, processor_flags, with_parameters
from keras_vit.exporting.budget import trim_weight_memory
from keras_vit.exporting.formats.format import Format
from keras_vit.exporting.report import ExportError, Runtime
from keras_vit.exporting.spec import OUTPUTS, ExportSpec
from keras_vit.exporting.staging import has_mark, read_tail, write_mark
from keras_vit.silence import silence

# SmoothQuant's exponent. Mean difference of logits as a share of their deviation, of a model with widths of 12: 0.019.
# Without it 0.021, with NNCF's 0.95 for transformers 0.024. With 0.5: 600 digits 0.012 (accuracy 0.948, as in float32),
# Ti/16 randomly initialised 0.030.
_SMOOTHING = 0.5
# Who compiles a file must pass the precision: by default a processor with bfloat16 computes all floats in it, whatever
# the file holds. OpenVINO 2026.4 does not read this option from a file (a test tries it); the file has it nevertheless.
_OPTION, _FLOAT32, _BFLOAT16 = "INFERENCE_PRECISION_HINT", "f32", "bf16"
_VNNI = {"avx512_vnni", "avx_vnni"}  # either adds products of bytes in 32 bits
_MAX_BYTES = 1 << 26  # of a graph; that of H/14 has 1 MB
_PLACES = re.compile(rb'offset="(\d+)"[^>]* size="(\d+)"')  # offset and bytes of each constant in the data
_FILE = "network.xml"
_TINY = 1e-30  # leaves a float32 as it is, unless that is smaller than 1e-23
_IN_ROWS = (
    "Add",
    "Divide",
    "Erf",
    "Gelu",
    "MatMul",
    "Multiply",
    "Power",
    "Subtract",
    "Tanh",
)  # that treat each row by itself


class OpenVINO(Format):
    """The format; a file is two, the graph and its weights."""

    name, title, extension = "openvino", "OpenVINO", ".xml"
    precisions = ("float32", "float16", "int8")
    calibrates = ("int8",)
    folds = (*precisions, "bfloat16")  # an engine has it

    def write(self, spec: ExportSpec, place: Path) -> None:
        """Writes `NAME.xml` and `NAME.bin`: uint8 `(B, H, W, C)` named `pixels` to the outputs of a `pixel_module`.

        In the file's runtime information, `model_info` holds labels and preprocessing under the keys of OpenVINO's
        Model API. `keras_vit` holds all of `spec.metadata()` as JSON, and `runtime_options` the precision to compute
        floats in.
        """
        openvino, network = _openvino(), _convert(spec)
        with silence(), _without_telemetry(), _as_export_error(spec):
            for path, value in _runtime_info(spec).items():
                network.set_rt_info(value, list(path))
            openvino.save_model(network, str(place), compress_to_fp16=spec.precision == "float16")
        write_mark(place.with_suffix(".bin"))

    def is_own_file(self, file: Path) -> bool:
        if file.suffix == ".bin":
            return has_mark(file) or _is_unmarked_data(file)
        return b"<keras_vit>" in read_tail(file, _MAX_BYTES)

    def check_packages(self, precision: str) -> None:
        _openvino()
        if precision == "int8":
            _nncf()

    def open_runtime(self, place: Path, threads: int | None = None) -> Runtime:
        """Compiles the file for the processor, with floats in float32."""
        try:
            return _compile(str(place), threads, _FLOAT32)
        except RuntimeError as error:
            raise ExportError(
                f"OpenVINO does not take the file that it wrote.\nReceived: {place}. It says: {error}"
            ) from error

    def load_snippet(self, name: str) -> str:
        return f'openvino.compile_model({json.dumps(name, ensure_ascii=False)}, "CPU", {{"{_OPTION}": "{_FLOAT32}"}})'


def compile_model(spec: ExportSpec, threads: int | None, store: Store | None = None) -> Runtime:
    """Compiles the model for the processor; `run` takes float32 `(B, H, W, C)` as the model does.

    It does not go through a file: weights were then packed into memory that the conversion had freed, and L/16 in
    bfloat16 took 1 to 4 % more time.

    Args:
        spec: with `takes="images"`. In `"bfloat16"` and `"int8"` floats are in bfloat16 where the processor has it:
            in int8 B/16 takes 7 % less time, and the error of bfloat16 is the smaller one.
        threads: number of threads; by default OpenVINO's choice.
        store: writes the network into a folder of the cache, for `load_compiled`.

    Raises:
        ExportError: if OpenVINO does not take the model.
        ImportError: without OpenVINO or, for int8, NNCF.
    """
    network = _convert(spec)
    trim_weight_memory(spec.model)  # of the folded copy
    if store is not None:
        store(lambda folder: _save(network, folder / _FILE))
    with _as_export_error(spec):
        return _compile(network, threads, _float_type(spec.precision))


def load_compiled(folder: Path, threads: int | None, precision: str) -> Runtime:
    """What `compile_model` returned, from the folder of its network."""
    return _compile(str(folder / _FILE), threads, _float_type(precision))


def _float_type(precision: str) -> str:
    """The type in which an engine computes floats."""
    half = precision == "bfloat16" or (precision == "int8" and _has_bfloat16(_openvino()))
    return _BFLOAT16 if half else _FLOAT32


def _save(network: Any, place: Path) -> None:
    """Writes a network; raises `OSError` if the file is incomplete, which OpenVINO may not report."""
    try:
        with silence(), _without_telemetry():
            _openvino().save_model(network, str(place), compress_to_fp16=False)
    except RuntimeError as error:
        raise OSError(f"OpenVINO cannot write all of it, as on a full disk: {error}") from error
    if place.with_suffix(".bin").stat().st_size != _constants_size(place):
        raise OSError("OpenVINO has not written all of it, as on a full disk")


def read_metadata(place: Path) -> dict[str, Any]:
    """`ExportSpec.metadata()` in an `.xml`; empty if `write` did not write it."""
    try:
        metadata = _openvino().Core().read_model(str(place)).get_rt_info(["keras_vit", "metadata"])
        return json.loads(metadata.astype(str))
    except (RuntimeError, ValueError):
        return {}


def check_bfloat16() -> None:
    """Raises `ValueError` unless the processor computes in bfloat16; OpenVINO would silently use float32."""
    if not _has_bfloat16(_openvino()):
        raise ArgumentError(
            "OpenVINO computes in bfloat16 where the processor has instructions for it.\n"
            'Received: precision="bfloat16" on a processor without them. Pass precision="float32" or "int8".'
        )


def adds_in_32_bits() -> bool:
    """Whether this processor adds products of bytes in 32 bits, as those with VNNI do."""
    return not _VNNI.isdisjoint(processor_flags())


def _is_unmarked_data(file: Path) -> bool:
    """Whether the size of a data file is that of its graph's constants; earlier versions wrote no mark after them."""
    graph = file.with_suffix(".xml")
    return OpenVINO().is_own_file(graph) and file.is_file() and file.stat().st_size == _constants_size(graph)


def _constants_size(graph: Path) -> int:
    """Size of a graph's data in bytes, from its XML."""
    places = _PLACES.findall(read_tail(graph, _MAX_BYTES))
    return max((int(offset) + int(size) for offset, size in places), default=-1)


def _convert(spec: ExportSpec) -> Any:
    """The model as a network of OpenVINO, with named outputs."""
    from keras_vit.exporting.folding import folded_spec
    from keras_vit.exporting.model_function import pixel_function

    openvino, nncf = _openvino(), _nncf() if spec.precision == "int8" else None
    with silence():  # Keras reads weights in a way that NumPy warns about
        function = pixel_function(folded_spec(spec, OpenVINO.folds))
    concrete = function.get_concrete_function()
    with silence(), _without_telemetry(), _as_export_error(spec):
        # Shared arrays would change with the model and be freed with it.
        network = openvino.convert_model(concrete, share_weights=False)
        _name_outputs(network, concrete.structured_outputs)
        if nncf is not None:
            rewrite(network)  # floats get no faster by it
            network = _quantize(openvino, nncf, network, spec)
        return _order_outputs(openvino, network)


def _compile(network: Any, threads: int | None, precision: str) -> Runtime:
    """Compiles a network, or the path of its file, for the processor."""
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
    """Turns exceptions of OpenVINO, which are of many classes, into an `ExportError`."""
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


def _has_bfloat16(openvino: Any) -> bool:
    with silence():
        return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _openvino() -> Any:
    try:
        with silence(), _without_telemetry():
            import openvino
    except ImportError as error:
        raise ImportError(f"OpenVINO is missing: {install_hint('export')}") from error
    return openvino


def _nncf() -> Any:
    try:
        with silence(), _without_telemetry():
            import nncf
    except ImportError as error:
        raise ImportError(f"OpenVINO is quantised by nncf, which is missing: {install_hint('export')}") from error
    return nncf


@contextlib.contextmanager
def _without_telemetry() -> Iterator[None]:
    """Turns off the telemetry of OpenVINO and NNCF.

    Both send usage data outside of a CI, unless the user has declined. They share one reporter, which may run already,
    so its consent is withdrawn too.
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
    """Keeps only the requested name of each output; one whose bias of zeros was dropped has a second name."""
    for output in network.outputs:
        output.get_tensor().set_names(output.get_names() & set(names))


def _order_outputs(openvino: Any, network: Any) -> Any:
    """The network with its outputs in the order of `OUTPUTS`; the converter sorts them by name."""
    pairs = zip(network.outputs, network.get_results(), strict=True)
    results = [result for _, result in sorted(pairs, key=lambda pair: OUTPUTS.index(pair[0].any_name))]
    return openvino.Model(results, network.get_parameters(), network.get_friendly_name())


def _quantize(openvino: Any, nncf: Any, network: Any, spec: ExportSpec) -> Any:
    """The network with weights in int8, of which 7 bits are used.

    With 8 bits, pairs of products overflow 16 bits on processors without VNNI: on digits the difference from the model
    is then three times as large. A spec that is not portable uses all 8 bits, in the same time.
    """
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    _fence(openvino, network)
    in_float = ["ScaledDotProductAttention"]
    if spec.of_pixels or spec.of_queries:  # a head of maps in int8 is far off
        in_float += ["Convolution", "ConvolutionBackpropData"]
    advanced = nncf.AdvancedQuantizationParameters(
        overflow_fix=nncf.OverflowFix.ENABLE if spec.portable else nncf.OverflowFix.DISABLE,
        activations_range_estimator_params=RangeEstimatorParametersSet.MINMAX,  # means clip values: 0.16
        disable_bias_correction=True,  # no better with whole ranges, and sometimes worse
        smooth_quant_alphas=nncf.AdvancedSmoothQuantParameters(matmul=_SMOOTHING),
    )
    return nncf.quantize(
        network,
        nncf.Dataset([photo[None] for photo in spec.calibration_photos]),
        model_type=nncf.ModelType.TRANSFORMER,
        subset_size=len(spec.calibration_photos),
        ignored_scope=nncf.IgnoredScope(names=_attention_matmuls(network), types=in_float, validate=False),
        advanced_parameters=advanced,
    )


def _fence(openvino: Any, network: Any) -> None:
    """Adds a tiny constant between each dense layer and the reshape after it.

    OpenVINO moves a layer's scales through a following reshape, and fails where that splits channels into heads. A bias
    stops it, but a bias of zeros is removed earlier.
    """
    operations = openvino.opset13
    for node in _matmuls(network):
        channels = node.output(0).partial_shape[-1]
        readers = [reader for reader in node.output(0).get_target_inputs() if _node_type(reader) == "Reshape"]
        if not readers or channels.is_dynamic:
            continue
        nothing = operations.constant(np.full(channels.get_length(), _TINY, "float32"))
        fence = operations.add(node, nothing)
        for reader in readers:
            reader.replace_source_output(fence.output(0))
    network.validate_nodes_and_infer_types()


def _matmuls(network: Any) -> list[Any]:
    return [node for node in network.get_ordered_ops() if node.get_type_name() == "MatMul"]


def _attention_matmuls(network: Any) -> list[str]:
    """Names of the products without a weight, where attention was not recognised as one operation."""
    return [
        node.get_friendly_name()
        for node in _matmuls(network)
        if all(_node_type(factor.get_source_output()) != "Constant" for factor in node.inputs())
    ]


def _node_type(end: Any) -> str:
    """Operator of the node at an input or output."""
    return end.get_node().get_type_name()


def _runtime_info(spec: ExportSpec) -> dict[tuple[str, str], str]:
    """The runtime information by path. It has no mean and deviation, since the graph scales pixels itself."""
    written = {
        ("model_info", "model_name"): spec.name,
        ("runtime_options", _OPTION): _FLOAT32,
        ("keras_vit", "metadata"): json.dumps(spec.metadata(), ensure_ascii=False),
    }
    if spec.takes == "ids":
        return written
    record = spec.model.preprocessing
    information = written | {
        ("model_info", "model_type"): "Classification",
        ("model_info", "resize_type"): "standard" if record.resize == "squash" else record.resize,
        ("model_info", "multilabel"): str(spec.activation == "sigmoid"),
    }
    if not spec.model.output_spec.classifies:
        del information["model_info", "model_type"], information["model_info", "multilabel"]
    if spec.labels is not None:
        # Blanks separate labels, so those inside a label become underscores.
        information["model_info", "labels"] = " ".join("_".join(label.split()) for label in spec.labels)
    return information


def rewrite(network: Any) -> None:
    """Rewrites a network in place.

    Args:
        network: an `openvino.Model` that was converted of a TensorFlow function.
    """
    fuse_norms(network)
    keep_token_shape(network)
    network.validate_nodes_and_infer_types()


def fuse_norms(network: Any) -> int:
    """Replaces each LayerNorm without gain and shift by one `MVN`; returns their number."""
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


def keep_token_shape(network: Any) -> int:
    """Lets dense layers take tokens as `(B, T, D)`; returns their number."""
    from openvino import opset13

    found = 0
    for node in network.get_ordered_ops():
        if _is(node, "MatMul") and _is(_producer(node, 0), "Reshape") and _is_reshaped_back(node):
            rows = _producer(node, 0)
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
    """Input and epsilon of a LayerNorm that ends in this sum: `x r - m r`, `r = (v + e) ** -0.5`, on the last axis."""
    if not (_is(node, "Add") and _is(_producer(node, 0), "Multiply") and _is(_producer(node, 1), "Multiply")):
        return None
    scaled, shift = _producer(node, 0), _producer(node, 1)
    power, negative = _producer(scaled, 1), _producer(shift, 0)
    if not (_is(power, "Power") and _same(_producer(shift, 1), power) and _is(negative, "Multiply")):
        return None
    padded, mean, x = _producer(power, 0), _producer(negative, 0), scaled.input_value(0)
    variance = _producer(padded, 0)
    if _constant(power, 1) != -0.5 or _constant(negative, 1) != -1 or not _is(padded, "Add"):
        return None
    if not (_is_mean(mean) and _is_mean(variance) and mean.input_value(0) == x):
        return None
    squares, epsilon = _producer(variance, 0), _constant(padded, 1)
    if not _is(squares, "SquaredDifference") or epsilon is None:
        return None
    differs = squares.input_value(0) == x and _same(_producer(squares, 1), mean)
    return (x, epsilon) if differs else None


def _is_mean(node: Any) -> bool:
    """Whether a node is a mean along the last axis that keeps it."""
    if not (_is(node, "ReduceMean") and node.get_keep_dims()):
        return False
    return _constant(node, 1) in (-1, node.get_output_partial_shape(0).rank.get_length() - 1)


def _is_reshaped_back(start: Any) -> bool:
    """Whether a product of rows is reshaped before any operation mixes rows."""
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
    return _is_row_wise(start, {}) and all(_is_row_wise(node, rows) for node in rows.values() if node is not start)


def _is_row_wise(node: Any, rows: Mapping[str, Any]) -> bool:
    """Whether a node treats each row alike: it reads rows and constants, or, as a product, rows and a kernel."""
    if _is(node, "MatMul"):
        kernel = _is(_producer(node, 1), "Constant") and len(_producer(node, 1).get_output_shape(0)) == 2
        return kernel and not node.get_attributes()["transpose_a"] and (not rows or _producer_name(node, 0) in rows)
    sources = [_producer(node, place) for place in range(node.get_input_size())]
    others = [source for source in sources if source.get_friendly_name() not in rows]
    return all(_is(each, "Constant") and set(list(each.get_output_shape(0))[:-1]) <= {1} for each in others)


def _producer_name(node: Any, place: int) -> str:
    return _producer(node, place).get_friendly_name()


def _producer(node: Any, place: int) -> Any:
    return node.input_value(place).get_node()


def _is(node: Any, *types: str) -> bool:
    return node.get_type_name() in types


def _same(one: Any, other: Any) -> bool:
    return one.get_friendly_name() == other.get_friendly_name()


def _constant(node: Any, place: int) -> float | None:
    """The one number of a constant input, or `None`."""
    given = _producer(node, place)
    values = given.get_data() if _is(given, "Constant") else np.empty(0)
    return values.item() if values.size == 1 else None
