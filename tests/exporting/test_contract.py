"""The contract of a format, which each of `FORMATS` keeps; at the end what is one format's own.

A file has the model's numbers, names and labels, opens in its own runtime and carries a mark; a wrong argument, a
missing package, a wrong file and a failure on the way leave nothing. Other architectures are compared in
`test_folding`, models as published in `test_acceptance`.
"""

import collections
import dataclasses
import functools
import json
import os
import re
import shutil
import sys
import zipfile

import numpy as np
import onnx as onnx_package
import pytest
import tensorflow as tf
from conftest import make_tiny, numpy, randomise, tiny_config
from fake_format import empty_saved_model
from served import LABELS, differences, make_job, pictures, without_delegate

import keras_vit
from keras_vit.exporting import model_function
from keras_vit.exporting.formats import FORMATS, litert
from keras_vit.exporting.report import ExportError, Runtime
from keras_vit.exporting.request import check_request
from keras_vit.model.copies import with_input_shape

FLOAT32 = 1e-5  # the promise
ODD_LABELS = ('<été> & "co"', "two  lines", *LABELS[2:])
FILES = [name for name, format in FORMATS.items() if format.extension]
RUNTIMES = {"saved_model": "tensorflow 2.", "onnx": "onnxruntime ", "litert": "LiteRT 2.", "openvino": "OpenVINO 202"}
PACKAGES = {"onnx": ("onnx", "onnxruntime", "tf2onnx"), "litert": ("ai_edge_litert",), "openvino": ("openvino", "nncf")}
# A share of the deviation. For float16 11 bits through a few layers; in int8 of ONNX 0.045 was measured, and 0.44 where
# products overflow.
BOUNDS = {"float32": FLOAT32, "float16": 0.01, "bfloat16": 0.25}
INT8_BOUNDS = {"saved_model": 0.5, "onnx": 0.1, "litert": 0.2, "openvino": 0.5}
by_format = pytest.mark.parametrize("form", FORMATS)
by_file = pytest.mark.parametrize("form", FILES)
# Half precisions of a SavedModel are nightly: it has them by the lines that its int8 has.
by_precision = pytest.mark.parametrize(
    ("form", "precision"),
    [
        pytest.param(
            name, precision, marks=pytest.mark.nightly if name == "saved_model" and "float16" in precision else ()
        )
        for name, format in FORMATS.items()
        for precision in format.precisions
    ],
)


def written(form, spec, folder):
    place = folder / f"trees{FORMATS[form].extension}"
    FORMATS[form].write(spec, place)
    return place


def furthest(form, spec, place, *inputs):
    run = FORMATS[form].open_runtime(place).run
    return max(max(differences(spec, run, pixels).values()) for pixels in inputs)


@pytest.fixture(scope="module")
def model():
    """Its kernels are large enough that LiteRT rounds them."""
    return randomise(keras_vit.build(tiny_config(hidden_size=36, mlp_dim=50), input_shape=(20, 28, 3), classes=7))


@pytest.fixture(scope="module")
def exported(model, tmp_path_factory):
    """By format and precision, the report of an export, written once, with labels of odd letters."""

    @functools.cache
    def exported(form, precision="float32"):
        path = tmp_path_factory.mktemp(form) / f"trees{FORMATS[form].extension}"
        options = (
            {"batch_size": "any"}
            if form == "litert"
            else {"max_bytes": 2**17, "top_k": 3}
            if form == "saved_model"
            else {}
        )
        # Of three photos the first is compared, and int8 is calibrated on the others.
        images = np.concatenate([pictures(16)[:, None], pictures(32).reshape(16, 2, 20, 28, 3)], axis=1)
        images = images.reshape(48, 20, 28, 3)
        return keras_vit.export(model, path, form, ODD_LABELS, precision, images=images, options=options)

    return exported


@pytest.fixture(scope="module")
def file_of(model, exported):
    """By format and precision, a spec of the model in float32 and the file."""

    def file_of(form, precision="float32"):
        fields = {"precision": precision, "labels": ODD_LABELS, "top_k": 5}
        return make_job(model, calibration_photos=pictures(32), **fields), exported(form, precision).path

    return file_of


def names_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def types_of(form, file):
    """How many kernels and tables of each type a file has; in OpenVINO all but scalars."""
    if form == "onnx":
        tensors = [tensor for tensor in onnx_package.load(file).graph.initializer if len(tensor.dims) > 1]
        found = [onnx_package.helper.tensor_dtype_to_np_dtype(tensor.data_type).name for tensor in tensors]
    elif form == "litert":
        from ai_edge_litert.interpreter import Interpreter

        tensors = Interpreter(str(file)).get_tensor_details()
        found = [np.dtype(tensor["dtype"]).name for tensor in tensors if tensor["shape"].size > 1]
    else:
        import openvino as package

        constants = [node for node in package.Core().read_model(file).get_ops() if node.get_type_name() == "Constant"]
        found = [node.get_element_type().to_dtype().name for node in constants if np.prod(node.shape) > 1]
    return collections.Counter(found)


def metadata_of(form, file):
    """The labels that the format has a place for, `None` without any, and what else the file says of itself."""
    if form == "onnx":
        told = {entry.key: entry.value for entry in onnx_package.load(file).metadata_props}
        texts = ("name", "activation", "precision", "keras_vit")
        told = {key: text if key in texts else json.loads(text) for key, text in told.items()}
        return told["labels"], told
    if form == "litert":
        with zipfile.ZipFile(file) as archive:
            assert archive.testzip() is None
            has_labels = "labels.txt" in archive.namelist()
            labels = archive.read("labels.txt").decode().removesuffix("\n").split("\n") if has_labels else None
            return labels, json.loads(archive.read("metadata.json"))
    import openvino as package

    network, place = package.Core().read_model(file), ["model_info", "labels"]
    labels = network.get_rt_info(place).astype(str).split(" ") if network.has_rt_info(place) else None
    return labels, json.loads(network.get_rt_info(["keras_vit", "metadata"]).astype(str))


# The contract: numbers


@by_precision
def test_file_computes_what_the_model_computes_at_every_batch(form, precision, file_of):
    if precision == "float32":
        assert furthest(form, *file_of(form), *map(pictures, (1, 2, 5, 1))) < FLOAT32
    else:
        bound = INT8_BOUNDS[form] if precision == "int8" else BOUNDS[precision]
        assert 1e-6 < furthest(form, *file_of(form, precision), pictures(5), pictures(32)) < bound


@by_precision
def test_report_says_what_its_own_runtime_answered(form, precision, exported):
    report = exported(form, precision)
    assert (report.format, report.precision, report.images) == (form, precision, 16)
    assert report.runtime.startswith(RUNTIMES[form])
    assert report.runtime == FORMATS[form].open_runtime(report.path).name
    assert [drift.output for drift in report.drift][:3] == ["logits", "features", "scores"]
    assert all(0 < drift.max_difference <= drift.bound and drift.within for drift in report.drift)
    assert report.opening == FORMATS[form].load_snippet(str(report.path))
    calibrates, folds = FORMATS[form].calibrates, FORMATS[form].folds
    assert (report.calibrated_on is not None, report.folded is not None) == (
        precision in calibrates,
        precision in folds,
    )


# The contract: what is refused, and what is left of a failure


@by_format
def test_wrong_argument_is_refused_before_anything_is_written(form, model, tmp_path):
    format = FORMATS[form]
    others = {
        "opset": 17,
        "batch_size": 3,
        "jit_compile": True,
        "top_k": 3,
        "max_bytes": 9999,
        "max_pixels": 9999,
        "max_batch": 3,
    }
    own = {field.name for field in dataclasses.fields(format.Options)}
    rows = [({"options": {name: value}}, rf"`{name}` is of") for name, value in others.items() if name not in own]
    rows += [({"options": {"nmae": "x"}}, r"`options`.*\n.*nmae.* Did you mean .*'name'")]
    rows += [({"options": {"activation": "relu"}}, "activation='relu'"), ({"precision": "fp16"}, "precision='fp16'")]
    rows += [({"options": {name: -1}}, f"{name}=-1") for name in own & others.keys() - {"jit_compile"}]
    rows += [({"precision": name}, "the format has") for name in {"bfloat16"} - set(format.precisions)]
    for given, message in rows:
        with pytest.raises(ValueError, match=message):
            keras_vit.export(model, tmp_path / "new" / f"x{format.extension}", form, **given)
    with pytest.raises(ValueError, match="must end in" if format.extension else "goes to a folder"):
        keras_vit.export(model, tmp_path / ("x.pb" if format.extension else "x.onnx"), form)
    with pytest.raises(TypeError, match="options=3"):
        keras_vit.export(model, tmp_path / f"x{format.extension}", form, options=3)
    assert names_below(tmp_path) == []


@by_format
def test_options_are_a_record_of_their_own_with_their_defaults_in_the_docstring(form):
    format = FORMATS[form]
    for field in dataclasses.fields(format.Options):
        text = re.search(rf"`{field.name}`[:,]((?s:.*?)(?:\.\s|\n\n))", keras_vit.export.__doc__)[1]
        has_number = field.name in ("top_k", "max_batch", "opset", "batch_size")
        assert re.findall(r"by default (\d+)", text) == [str(field.default)] * has_number
    with pytest.raises(dataclasses.FrozenInstanceError):
        format.Options().name = "x"


@by_format
@pytest.mark.parametrize("fault", ["wrong", "unopened", "killed", "disk", "interrupted"])
def test_failure_leaves_nothing(form, fault, model, tmp_path, monkeypatch):
    """What the format writes stands in for a file; its own files are in the other tests."""
    format = FORMATS[form]

    def write(spec, place):
        file = place if format.extension else place / "saved_model.pb"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(empty_saved_model())
        if fault in ("killed", "disk"):
            raise {"killed": KeyboardInterrupt(), "disk": OSError(28, "disk is full")}[fault]

    def open_runtime(place):
        if fault == "unopened":
            raise RuntimeError("no such file")
        return Runtime("fake", answer)

    def answer(pixels):
        if fault == "interrupted":
            raise KeyboardInterrupt
        return {"logits": np.zeros((len(pixels), 7), "float32")}

    monkeypatch.setattr(format, "write", write)
    monkeypatch.setattr(format, "open_runtime", open_runtime)
    wanted = {"wrong": ExportError, "unopened": ExportError, "disk": OSError}.get(fault, KeyboardInterrupt)
    with pytest.raises(wanted):
        keras_vit.export(model, tmp_path / "new" / f"x{format.extension}", form)
    assert names_below(tmp_path) == []


@by_file
def test_only_own_file_is_replaced(form, model, exported, tmp_path):
    folder = shutil.copytree(exported(form).path.parent, tmp_path / "x")
    path, format = folder / f"trees{FORMATS[form].extension}", FORMATS[form]
    before = {name: (folder / name).read_bytes() for name in names_below(folder)}
    for call in (check_request, lambda *given: keras_vit.export(model, *given)):
        with pytest.raises(FileExistsError, match="overwrite=True"):
            call(path, form)
    assert check_request(path, form, overwrite=True).path == path
    assert {name: (folder / name).read_bytes() for name in names_below(folder)} == before
    path.write_bytes(b"precious")
    assert not format.is_own_file(path)
    with pytest.raises(FileExistsError, match="only a file that an export"):
        keras_vit.export(model, path, form, overwrite=True)
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("form", "package"), [(form, package) for form, names in PACKAGES.items() for package in names]
)
def test_missing_package_is_reported_before_a_model_is_needed(form, package, tmp_path, monkeypatch):
    precision, format = "int8" if package == "nncf" else "float32", FORMATS[form]
    place = tmp_path / f"x{format.extension}"
    monkeypatch.setitem(sys.modules, package, None)
    calls = [lambda: check_request(place, form, precision), lambda: format.write(make_job(precision=precision), place)]
    if package in ("onnxruntime", "ai_edge_litert", "openvino"):
        calls.append(lambda: format.open_runtime(place))
    for call in calls:
        with pytest.raises(ImportError, match=r'pip install "\.\[export\]"'):
            call()


# The contract: files


@pytest.mark.parametrize(
    ("form", "method"),
    [*((form, "align_corners") for form in FILES), pytest.param("onnx", "bicubic", marks=pytest.mark.slow)],
)
def test_sides_may_be_chosen_at_each_call(form, method, tmp_path):
    model = with_input_shape(make_tiny(num_layers=1), (None, None, 3))
    model.get_layer("position_embedding").resize_method = method
    spec = make_job(model)
    inputs = [pictures(*size) for size in ((2, 20, 28), (1, 28, 20), (3, 36, 44), (1, 8, 12))]
    assert furthest(form, spec, written(form, spec, tmp_path), *inputs) < FLOAT32


@by_file
def test_model_without_head_gives_features_alone(form, tmp_path):
    spec = make_job(make_tiny(include_top=False, classes=None, input_shape=(20, 28, 1), num_layers=1))
    file = written(form, spec, tmp_path)
    assert list(differences(spec, FORMATS[form].open_runtime(file).run, pictures(2, channels=1))) == ["features"]
    assert metadata_of(form, file)[0] is None


@by_file
def test_float16_is_what_is_stored_and_near(form, file_of):
    found = types_of(form, file_of(form, "float16")[1])
    assert found["float16"] >= 13  # two blocks of six kernels, and the patches'
    # ONNX keeps the head in float32; LiteRT lists what kernels are widened to.
    assert (found["float32"] == 0) is (form == "openvino")


@pytest.mark.parametrize(
    ("form", "kind", "count"),
    [("onnx", "uint8", range(12, 13)), ("litert", "int8", range(12, 99)), ("openvino", "int8", range(12, 99))],
)
def test_int8_rounds_the_kernels(form, kind, count, file_of):
    """Six kernels in each of two blocks; ONNX leaves the head's."""
    assert types_of(form, file_of(form, "int8")[1])[kind] in count


@pytest.mark.parametrize("form", ["litert", "openvino"])
def test_int8_is_calibrated_on_the_photos(form, file_of, tmp_path):
    spec, file = file_of(form, "int8")
    dark = make_job(spec.model, precision="int8", calibration_photos=spec.calibration_photos // 16)
    runs = [FORMATS[form].open_runtime(path).run for path in (file, written(form, dark, tmp_path))]
    near, far = (differences(spec, run, pictures(32))["features"] for run in runs)
    assert near < far / 2


# What a file says of itself


@pytest.mark.parametrize(
    ("form", "odd", "space"),
    [
        ("onnx", ODD_LABELS[:2], " "),
        ("litert", ('<été> & "co"', "two lines"), " "),
        ("openvino", ('<été>_&_"co"', "two_lines"), "_"),
    ],
)
def test_labels_and_preprocessing_are_in_the_file(form, odd, space, file_of):
    for precision in ("float32", "int8"):
        spec, file = file_of(form, precision)
        labels, told = metadata_of(form, file)
        assert labels == [*odd, *(name.replace(" ", space) for name in LABELS[2:])]
        assert told == json.loads(json.dumps(spec.metadata()))
        assert (told["labels"], told["precision"]) == (list(ODD_LABELS), precision)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@by_file
def test_own_file_is_known_and_no_other_of_the_format(form, precision, file_of, tmp_path):
    writer, file = FORMATS[form], shutil.copytree(file_of(form, precision)[1].parent, tmp_path / "x") / "trees"
    file, data = file.with_suffix(FORMATS[form].extension), file.with_suffix(".bin")
    assert writer.is_own_file(file)
    for another in (b"", b"keras_vit", b'"keras_vit": ', b"PK\5\6" + bytes(18)):
        (tmp_path / file.name).write_bytes(another)
        assert not writer.is_own_file(tmp_path / file.name)
    if form == "openvino":
        assert writer.is_own_file(data)  # by itself, as a killed export leaves it
        file.rename(tmp_path / "moved")
        assert writer.is_own_file(data)
        data.write_bytes(data.read_bytes()[:-30])
        assert not writer.is_own_file(data)
        (tmp_path / "moved").rename(file)
        assert writer.is_own_file(data)  # of an earlier version, beside its graph
        unsigned = data.read_bytes()
        for another in (b"firmware of the user", unsigned[:-1], unsigned + b"0"):
            data.write_bytes(another)
            assert not writer.is_own_file(data)  # of another origin, though beside our graph
        data.write_bytes(unsigned)
        file.write_text(file.read_text("utf-8").replace("keras_vit", "another"), "utf-8")
        assert not writer.is_own_file(data)
    if form == "onnx":
        graph = onnx_package.load(file)
        graph.producer_name = "another"
        file.write_bytes(graph.SerializeToString())
        assert writer.is_own_file(file)  # its metadata tell, as of int8 of an earlier version
        del graph.metadata_props[:]
        file.write_bytes(graph.SerializeToString())
    assert writer.is_own_file(file) == (form == "litert")


# What is refused, and what is not said


@pytest.mark.parametrize("form", ["litert", "openvino"])
def test_nothing_is_heard_and_nothing_else_is_written(form, tmp_path, monkeypatch, capfd, recwarn):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "files").mkdir()
    file = written(form, make_job(make_tiny(num_layers=1)), tmp_path / "files")
    FORMATS[form].open_runtime(file).run(pictures(2))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    found = sorted(path.name for path in tmp_path.rglob("*"))
    assert found == {"litert": ["files", "trees.tflite"], "openvino": ["files", "trees.bin", "trees.xml"]}[form]
    assert "CI" not in os.environ


@pytest.mark.parametrize("form", ["litert", "openvino"])
def test_operation_that_the_format_lacks_is_refused(form, tmp_path, monkeypatch):
    @tf.function(input_signature=[tf.TensorSpec((3, 4), tf.uint8, "pixels")])
    def odd(pixels):
        return {"features": tf.linalg.svd(tf.cast(pixels, tf.float32), compute_uv=False)}

    monkeypatch.setattr(model_function, "pixel_function", lambda spec: odd)
    with pytest.raises(ExportError, match=r"(?s)Received: 'trees'.*Svd"):
        written(form, make_job(), tmp_path)
    assert not list(tmp_path.iterdir())


# LiteRT alone


def test_first_kernel_is_that_of_the_model(tmp_path, monkeypatch):
    """The converter folds no scaling into it: it would read pixels up to 255, and int8 be half as far off again."""
    from ai_edge_litert.interpreter import Interpreter

    monkeypatch.setattr(litert.LiteRT, "folds", ())
    spec = make_job()
    file = written("litert", spec, tmp_path)
    expected = numpy(spec.model.get_layer("patch_embedding").projection.kernel)
    reader = Interpreter(str(file))
    reader.allocate_tensors()
    order = np.moveaxis(expected, -1, 0)
    places = [tensor["index"] for tensor in reader.get_tensor_details() if tuple(tensor["shape"]) == order.shape]
    assert any(np.array_equal(reader.get_tensor(index), order) for index in places)


@pytest.mark.parametrize("precision", FORMATS["litert"].precisions)
def test_all_operations_are_built_in(file_of, precision):
    interpreter = without_delegate(file_of("litert", precision)[1])
    operations = {operation["op_name"] for operation in interpreter._get_ops_details()}
    assert "FULLY_CONNECTED" in operations
    assert not [name for name in operations if name.startswith("Flex") or not name.isupper()]


def test_int8_is_for_dense_layers_and_the_patches_alone(file_of):
    interpreter = without_delegate(file_of("litert", "int8")[1])
    types = {tensor["index"]: np.dtype(tensor["dtype"]).name for tensor in interpreter.get_tensor_details()}
    rounded = set()
    for operation in interpreter._get_ops_details():
        if "int8" in {types.get(index) for index in (*operation["inputs"], *operation["outputs"])}:
            rounded.add(operation["op_name"])
    assert rounded == {"CONV_2D", "FULLY_CONNECTED", "QUANTIZE", "DEQUANTIZE"}


@pytest.mark.parametrize("precision", ["float32", "int8"])  # which is made of floats
def test_model_above_two_gigabytes_is_refused_before_it_is_converted(precision, tmp_path, monkeypatch):
    monkeypatch.setattr(litert, "MAX_BYTES", 10_000)
    monkeypatch.setattr(litert, "_convert", None)
    with pytest.raises(ValueError, match=r"(?s)2 GB.*Received: .* in float32"):
        litert.LiteRT().write(make_job(precision=precision), tmp_path / "trees.tflite")
    assert not list(tmp_path.iterdir())


@by_file
def test_first_output_is_the_answer(file_of, form):
    """Many programs take output 0; before, it was `features`, by the alphabet."""
    _, file = file_of(form)
    if form == "onnx":
        names = [entry.name for entry in onnx_package.load(file).graph.output]
    elif form == "openvino":
        import openvino as package

        names = [output.any_name for output in package.Core().read_model(file).outputs]
    else:
        interpreter, pixels = without_delegate(file), pictures(1)
        named = interpreter.get_signature_runner()(pixels=pixels)
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], pixels)
        interpreter.invoke()
        arrays = [interpreter.get_tensor(output["index"]) for output in interpreter.get_output_details()]
        names = [name for array in arrays for name in named if np.array_equal(named[name], array)]
    assert names == ["logits", "scores", "features"]


@pytest.mark.parametrize(("precision", "size"), [("float32", 1), ("float16", 3), ("int8", 1)])
def test_litert_has_static_shapes(file_of, tmp_path, precision, size):
    """Delegates as that of a phone's GPU refuse a graph in which any shape is computed."""
    spec, _ = file_of("litert", precision)
    file = written("litert", dataclasses.replace(spec, batch_size=size), tmp_path)
    interpreter = without_delegate(file)
    assert all((tensor["shape_signature"] > 0).all() for tensor in interpreter.get_tensor_details())
    assert not {"SHAPE", "PACK", "FILL"} & {operation["op_name"] for operation in interpreter._get_ops_details()}
    assert furthest("litert", spec, file, pictures(1), pictures(5)) < (FLOAT32 if precision == "float32" else 0.2)
    assert json.loads(zipfile.ZipFile(file).read("metadata.json"))["batch_size"] == size


def test_exported_litert_takes_one_image_unless_any(tmp_path):
    model = make_tiny(num_layers=1)
    for asked, size in ((None, 1), (2, 2), ("any", -1)):
        file = keras_vit.export(
            model, tmp_path / "x.tflite", verify=False, overwrite=True, options={"batch_size": asked}
        ).path
        assert without_delegate(file).get_input_details()[0]["shape_signature"][0] == size
    file = keras_vit.export(model, file, verify=False, overwrite=True, options={"image_size": "any"}).path
    assert list(without_delegate(file).get_input_details()[0]["shape_signature"]) == [-1, -1, -1, 3]
