"""ONNX files in ONNX Runtime against the model, and what is refused rather than written."""

import functools
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import tensorflow as tf
from conftest import make_tiny, randomise, run_python, tiny_config

import keras_vit
from keras_vit.exporting import onnx as writer
from keras_vit.exporting.onnx import graph_checks, graph_conversion, weight_files
from keras_vit.exporting.onnx.graph import Graph
from keras_vit.exporting.pixels import pixel_function
from keras_vit.exporting.report import ExportError
from keras_vit.exporting.task import ExportTask
from keras_vit.model.classifiers import has_head
from keras_vit.model.copies import with_input_shape

# TensorFlow counts the tracing of every test's own function as one that is traced again and again.
pytestmark = pytest.mark.filterwarnings("ignore:.*triggered tf.function retracing")

FLOAT32 = 1e-5  # the promise
HYBRID = {"patch_size": 1, "resnet_stages": (1, 2), "resnet_width_factor": 0.5}


def job_of(model, **fields):
    labels = tuple(f"class {k}" for k in range(model.output_shape[-1])) if has_head(model) else None
    usual = {"precision": "float32", "activation": "softmax" if labels else "none", "opset": 18, "name": "tiny"}
    rest = {
        "top_k": 3,
        "max_bytes": 1,
        "max_pixels": 1,
        "max_batch": 1,
        "jit_compile": False,
        "calibration_photos": None,
    }
    return ExportTask(**{"model": model, "labels": labels, **usual, **rest} | fields)


def pixels(batch, height=20, width=28, channels=3):
    return np.random.default_rng(batch).integers(0, 256, (batch, height, width, channels), dtype="uint8")


def written(task, folder):
    place = folder / "model.onnx"
    writer.write(task, place)
    return place


def largest_difference(task, place, inputs):
    """Over all outputs, which are compared by name; a share of the largest number where that is above 1."""
    run, wanted = writer.open_runtime(place).run, pixel_function(task)
    largest = 0.0
    for images in inputs:
        found, right = run(images), wanted(tf.constant(images))
        assert set(found) == set(right)
        for name, tensor in right.items():
            largest = max(largest, np.abs(found[name] - tensor.numpy()).max() / max(1, np.abs(tensor.numpy()).max()))
    return largest


def kinds(place):
    return [node.op_type for node in onnx.load(place, load_external_data=False).graph.node]


MODELS = {
    "tanh": lambda: make_tiny(),
    "exact": lambda: config_model(activation="gelu"),
    "features": lambda: make_tiny(include_top=False, classes=None, num_layers=1, pooling="gap"),
    "distilled": lambda: config_model(distilled=True),
    "map": lambda: config_model(pooling="map", position_embedding="sincos2d"),
    "ends in scores": lambda: make_tiny(classifier_activation="softmax"),
}
_SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("distilled", "map", "ends in scores")]


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    """By a name in `MODELS`, the task and the file in float32, written once and not to be changed."""

    @functools.cache
    def file_of(name):
        task = job_of(MODELS[name](), **({"activation": "none"} if name == "ends in scores" else {}))
        return task, written(task, tmp_path_factory.mktemp("model"))

    return file_of


@pytest.fixture
def plain(file_of):
    """The file of a tiny model in float32."""
    return file_of("tanh")[1]


def config_model(input_shape=(20, 28, 3), **fields):
    return randomise(keras_vit.build(tiny_config(**fields), input_shape=input_shape, classes=7))


@pytest.mark.parametrize("name", ["tanh", "exact", "features", *_SLOW])
def test_file_equals_the_model_at_any_batch(name, file_of):
    task, place = file_of(name)
    assert largest_difference(task, place, [pixels(batch) for batch in (1, 2, 5)]) <= FLOAT32


def test_hybrid_equals_the_model_with_kernels_standardised_in_the_file(tmp_path):
    task = job_of(config_model((64, 96, 3), **HYBRID))
    place = written(task, tmp_path)
    assert largest_difference(task, place, [pixels(2, 64, 96)]) <= FLOAT32
    constants = {tensor.name for tensor in onnx.load(place).graph.initializer}
    convolutions = [node for node in onnx.load(place).graph.node if node.op_type == "Conv"]
    assert all(node.input[1] in constants for node in convolutions)


@pytest.mark.parametrize("method", ["align_corners", pytest.param("bicubic", marks=pytest.mark.slow)])
def test_any_height_and_width_resize_the_position_table_in_the_graph(method, tmp_path):
    model = with_input_shape(make_tiny(num_layers=1), (None, None, 3))
    model.get_layer("position_embedding").resize_method = method
    task = job_of(model)
    place = written(task, tmp_path)
    sizes = [(2, 20, 28), (1, 28, 20), (3, 36, 44), (1, 8, 12)]
    assert largest_difference(task, place, [pixels(*size) for size in sizes]) <= FLOAT32
    (entry,) = onnx.load(place).graph.input
    assert [dim.dim_param or dim.dim_value for dim in entry.type.tensor_type.shape.dim] == [
        "batch",
        "height",
        "width",
        3,
    ]


@pytest.mark.parametrize("opset", [13, pytest.param(17, marks=pytest.mark.slow)])
def test_older_opsets_equal_the_model(opset, tmp_path):
    task = job_of(config_model(activation="gelu", num_layers=1), opset=opset)
    place = written(task, tmp_path)
    assert onnx.load(place).opset_import[0].version == opset
    assert largest_difference(task, place, [pixels(2)]) <= FLOAT32


@pytest.mark.parametrize("opset", [12, 19])
def test_an_opset_that_cannot_be_is_refused_with_the_range(opset, tiny, tmp_path):
    with pytest.raises(ValueError, match=f"from 13 to 18.*\nReceived: opset={opset}"):
        writer.write(job_of(tiny, opset=opset), tmp_path / "model.onnx")


def test_inputs_and_outputs_have_names_and_a_named_batch(plain):
    graph = onnx.load(plain).graph
    shapes = {
        entry.name: [dim.dim_param or dim.dim_value for dim in entry.type.tensor_type.shape.dim]
        for entry in [*graph.input, *graph.output]
    }
    assert shapes == {
        "pixels": ["batch", 20, 28, 3],
        "features": ["batch", 12],
        "logits": ["batch", 7],
        "scores": ["batch", 7],
    }
    assert graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.UINT8


def test_weights_have_the_names_they_have_in_keras(plain):
    names = {tensor.name for tensor in onnx.load(plain).graph.initializer}
    assert {"head/kernel", "block_00/mlp/dense_1/kernel", "class_token/token"} <= names


def test_metadata_tells_labels_and_preprocessing(plain):
    found = {entry.key: entry.value for entry in onnx.load(plain).metadata_props}
    assert json.loads(found["labels"]) == [f"class {k}" for k in range(7)]
    assert json.loads(found["preprocessing"])["mean"] == [0.5, 0.5, 0.5]
    assert found["precision"] == "float32"


def test_layer_norms_and_gelus_are_what_runtimes_know(file_of):
    found = kinds(file_of("exact")[1])
    assert found.count("LayerNormalization") == 5  # two in each of two blocks, and the last
    assert found.count("Erf") == 2
    assert not {"ReduceMean", "Sqrt", "Neg"} & set(found)


_OTHERS = [pytest.param(fields, marks=pytest.mark.slow) for fields in ({"distilled": True}, {"pooling": "map"})]


@pytest.mark.parametrize("fields", [{"activation": "gelu"}, *_OTHERS], ids=str)
def test_float16_holds_half_the_bytes_is_near_and_leaves_the_model_as_it_was(fields, tmp_path):
    task = job_of(config_model(**fields), precision="float16")
    before = task.model.get_weights()
    place = written(task, tmp_path)
    for old, new in zip(before, task.model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    # 11 bits of mantissa through two blocks; measured .003 of a deviation of 1.
    assert largest_difference(task, place, [pixels(batch) for batch in (1, 5)]) <= 0.01
    kernels = {tensor.name: tensor.data_type for tensor in onnx.load(place).graph.initializer}
    assert kernels["block_00/mlp/dense_1/kernel"] == onnx.TensorProto.FLOAT16
    assert kernels["head/kernel"] == onnx.TensorProto.FLOAT


@pytest.mark.slow
def test_float16_sums_of_older_opsets_stay_single(tmp_path):
    """Their LayerNorms are single nodes, whose squares must not be rounded on the way."""
    task = job_of(config_model(), precision="float16", opset=15)
    place = written(task, tmp_path)
    graph = onnx.shape_inference.infer_shapes(onnx.load(place)).graph
    types = {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    means = [node for node in graph.node if node.op_type in ("ReduceMean", "Sqrt", "Softmax")]
    assert means
    assert all(types.get(node.output[0], onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT for node in means)
    assert largest_difference(task, place, [pixels(2)]) <= 0.01


@pytest.mark.slow
def test_float16_takes_any_height_and_width(tmp_path):
    task = job_of(with_input_shape(make_tiny(), (None, None, 3)), precision="float16")
    place = written(task, tmp_path)
    assert largest_difference(task, place, [pixels(2), pixels(1, 36, 44)]) <= 0.01


def test_int8_kernels_are_bytes_and_answers_near(tmp_path):
    task = job_of(make_tiny(), precision="int8")
    place = written(task, tmp_path)
    model = onnx.load(place)
    held = [tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.UINT8 and tensor.dims]
    assert sum(tensor.name.endswith("kernel_quantized") for tensor in held) == 12  # six in each block, not the head's
    assert [entry.value for entry in model.metadata_props if entry.key == "precision"] == ["int8"]
    # Measured .045 of a deviation of 1; .44 where products overflow.
    assert largest_difference(task, place, [pixels(batch) for batch in (1, 5)]) <= 0.1


@pytest.mark.parametrize(
    "precision", ["float32", *[pytest.param(p, marks=pytest.mark.slow) for p in ("float16", "int8")]]
)
def test_weights_of_a_large_model_stand_in_one_file_beside(precision, monkeypatch, tmp_path):
    monkeypatch.setattr(weight_files, "LARGEST_FILE", 0)
    monkeypatch.setattr("keras_vit.exporting.onnx.lower_precision.LARGEST_FILE", 0)
    task = job_of(make_tiny(num_layers=1), precision=precision)
    staged = tmp_path / "staged"
    staged.mkdir()
    place = written(task, staged)
    moved = tmp_path / "elsewhere"
    staged.rename(moved)
    assert sorted(path.name for path in moved.iterdir()) == ["model.onnx", "model.onnx.data"]
    bound = {"float32": FLOAT32, "float16": 0.01, "int8": 0.1}[precision]
    assert largest_difference(task, moved / place.name, [pixels(2)]) <= bound


def test_weights_are_counted_in_bytes(tmp_path, monkeypatch):
    """15 numbers are 60 bytes, too many for one message of 50."""
    monkeypatch.setattr(weight_files, "LARGEST_FILE", 50)
    proto = onnx.helper.make_model(onnx.helper.make_graph([], "graph", [], []))
    for name, count in (("small", 12), ("large", 15)):
        weight_files.save(Graph(proto, {"weight": np.zeros(count, "float32")}), tmp_path / f"{name}.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.onnx", "large.onnx.data", "small.onnx"]


def test_an_operator_that_nobody_has_is_not_written(monkeypatch, tmp_path):
    monkeypatch.setattr(graph_conversion, "HANDLERS", {})  # as tf2onnx is by itself
    with pytest.raises(ExportError, match=r"ONNX's own at opset 18.*\nReceived: .*Erfc"):
        writer.write(job_of(config_model(activation="gelu", num_layers=1)), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_node_of_another_domain_is_refused():
    node = onnx.helper.make_node("FusedGelu", ["x"], ["y"], domain="com.microsoft")
    graph = onnx.helper.make_graph([node], "g", [], [])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    with pytest.raises(ExportError, match=r"com\.microsoft\.FusedGelu"):
        graph_checks.check_graph(model, 18)


def test_a_damaged_file_is_refused_by_checker_and_runtime(plain, tmp_path):
    place = tmp_path / "model.onnx"
    model = onnx.load(plain)
    del model.graph.node[4]
    onnx.save(model, place)
    with pytest.raises(ExportError, match="checker must find the file valid"):
        graph_checks.check_file(place, 18)
    with pytest.raises(ExportError, match="ONNX Runtime must take the file"):
        writer.open_runtime(place)


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "tf2onnx"])
def test_a_missing_package_is_named_with_the_extra(package, tiny, monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ImportError, match=rf'needs {package}: pip install "\.\[export\]"'):
        writer.write(job_of(tiny), tmp_path / "model.onnx")


def published(name, classes=1000, **arguments):
    model = getattr(keras_vit, name)(weights=None, classes=classes, **arguments)
    rng = np.random.default_rng(4)
    for head in (layer for layer in model.layers if layer.name.startswith("head")):
        head.kernel.assign(rng.normal(0, 0.02, head.kernel.shape))  # zeros at the start, which hide differences
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fields"), [("ViTTi16", {}), ("ViTB16", {}), ("ViTTi16", {"distilled": True}), ("R26ViTS32", {})]
)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_published_sizes_equal_the_model(name, fields, precision, tmp_path):
    task = job_of(published(name, **fields), precision=precision)
    place = written(task, tmp_path)
    bound = {"float32": FLOAT32, "float16": 0.02}[precision]
    size = task.image_size
    assert largest_difference(task, place, [pixels(batch, *size) for batch in (1, 2, 5)]) <= bound


_LARGE = """
import pathlib, resource, sys
sys.path[:0] = sys.argv[2:]
import test_onnx as t
task = t.job_of(t.published("ViTH14"))
place = pathlib.Path(sys.argv[1]) / "model.onnx"
t.writer.write(task, place)
print(t.largest_difference(task, place, [t.pixels(1, 224, 224)]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_huge_model_has_its_data_beside_and_fits_in_memory(tmp_path):
    folder = Path(__file__).parent
    difference, peak = map(float, run_python(_LARGE, tmp_path, folder, folder.parent, timeout=1700).split())
    assert (tmp_path / "model.onnx.data").stat().st_size > 2**31
    assert difference <= FLOAT32
    assert peak <= 12  # GiB; measured 5.8 with the model, the runtime and the comparison in one process
