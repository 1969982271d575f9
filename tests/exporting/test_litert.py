import dataclasses
import json
import sys
import zipfile

import numpy as np
import pytest
import tensorflow as tf
from conftest import make_tiny, numpy, randomise, tiny_config
from served import LABELS, make_job

import keras_vit
from keras_vit.exporting import litert
from keras_vit.exporting.pixels import pixel_function
from keras_vit.exporting.report import ExportError

BATCHES = (1, 2, 5, 1)
ODD_LABELS = ("été", "two\nlines", *LABELS[2:])


def pictures(batch, height=20, width=28, channels=3):
    return np.random.default_rng(batch).integers(0, 256, (batch, height, width, channels), "uint8")


def model_says(task, pixels):
    return {name: value.numpy() for name, value in pixel_function(task)(pixels).items()}


def written(task, folder, name="trees.tflite"):
    litert.write(task, folder / name)
    return folder / name


def differences(task, run, pixels):
    """The largest difference of each output, as a share of 1 or the deviation of the model's numbers if above."""
    wanted, found = model_says(task, pixels), run(pixels)
    assert set(wanted) == set(found)
    return {name: np.abs(found[name] - value).max() / max(1, value.std()) for name, value in wanted.items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A task, with labels of odd letters, and its file in float32."""
    task = make_job(labels=ODD_LABELS)
    return task, written(task, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A model with kernels large enough that int8 rounds them, and its files."""
    model = keras_vit.build(tiny_config(hidden_size=36, mlp_dim=50), input_shape=(20, 28, 3), classes=7)
    folder, task = tmp_path_factory.mktemp("wide"), make_job(randomise(model), calibration_photos=pictures(32))
    jobs = {precision: dataclasses.replace(task, precision=precision) for precision in litert.PRECISIONS}
    return {precision: (task, written(task, folder, f"{precision}.tflite")) for precision, task in jobs.items()}


def test_file_computes_what_the_model_computes_at_every_batch(plain):
    task, file = plain
    run = litert.open_runtime(file).run
    for batch in BATCHES:
        assert max(differences(task, run, pictures(batch)).values()) < 1e-5  # the promise of float32


@pytest.mark.parametrize("arguments", [{"activation": "gelu"}, {"distilled": True}, {"pooling": "map"}])
def test_other_architectures_are_computed_too(arguments, tmp_path):
    task = make_job(
        randomise(keras_vit.build(tiny_config(num_layers=1, **arguments), input_shape=(20, 28, 3), classes=7))
    )
    run = litert.open_runtime(written(task, tmp_path)).run
    assert max(differences(task, run, pictures(2)).values()) < 1e-5  # the promise of float32


def test_sides_may_be_chosen_at_each_call(tmp_path):
    task = make_job(make_tiny(input_shape=(None, None, 3), num_layers=1))
    run = litert.open_runtime(written(task, tmp_path)).run
    for batch, height, width in ((2, 20, 28), (1, 36, 24), (3, 8, 44)):
        assert max(differences(task, run, pictures(batch, height, width)).values()) < 1e-5


def test_model_without_head_gives_features_alone(tmp_path):
    task = make_job(make_tiny(include_top=False, classes=None, input_shape=(20, 28, 1), num_layers=1))
    file = written(task, tmp_path)
    assert list(differences(task, litert.open_runtime(file).run, pictures(2, channels=1))) == ["features"]
    assert zipfile.ZipFile(file).namelist() == ["metadata.json"]


def test_first_kernel_is_that_of_the_model(tmp_path, monkeypatch):
    """The converter folds no scaling into it: it would read pixels up to 255, and int8 be half as far off again."""
    from ai_edge_litert.interpreter import Interpreter

    monkeypatch.setattr(litert, "FOLDED", ())
    task = make_job(labels=ODD_LABELS)
    file = written(task, tmp_path)
    expected = numpy(task.model.get_layer("patch_embedding").projection.kernel)
    reader = Interpreter(str(file))
    reader.allocate_tensors()
    order = np.moveaxis(expected, -1, 0)
    places = [tensor["index"] for tensor in reader.get_tensor_details() if tuple(tensor["shape"]) == order.shape]
    assert any(np.array_equal(reader.get_tensor(index), order) for index in places)


def test_inputs_and_outputs_have_names(plain):
    from ai_edge_litert.interpreter import Interpreter

    assert Interpreter(str(plain[1])).get_signature_list() == {
        "pixels": {"inputs": ["pixels"], "outputs": ["features", "logits", "scores"]}
    }


@pytest.mark.parametrize("precision", litert.PRECISIONS)
def test_all_operations_are_built_in(wide, precision):
    interpreter = without_delegate(wide[precision][1])
    operations = {operation["op_name"] for operation in interpreter._get_ops_details()}
    assert "FULLY_CONNECTED" in operations
    assert not [name for name in operations if name.startswith("Flex") or not name.isupper()]


def without_delegate(file):
    """An interpreter that keeps the file's operations as they are."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    return Interpreter(str(file), experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)


def test_labels_and_preprocessing_are_in_the_file(plain):
    task, file = plain
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert archive.read("labels.txt").decode().splitlines()[2:] == list(LABELS[2:])
        assert json.loads(archive.read("metadata.json")) == json.loads(json.dumps(task.metadata()))


def test_labels_keep_their_letters_and_one_line_each(plain):
    lines = zipfile.ZipFile(plain[1]).read("labels.txt").decode().split("\n")
    assert lines == ["été", "two lines", *LABELS[2:], ""]


def test_float16_halves_the_weights_and_stays_near(wide):
    task, file = wide["float16"]
    assert max(differences(task, litert.open_runtime(file).run, pictures(5)).values()) < 0.01  # 11 bits, a few layers
    kernels = {precision: weights(file).count(precision) for precision in ("float16", "float32")}
    assert kernels["float16"] > 20


def test_int8_rounds_the_kernels_and_stays_near(wide):
    task, file = wide["int8"]
    found = differences(task, litert.open_runtime(file).run, pictures(5))
    assert 1e-5 < max(found.values()) < 0.2  # of the deviation; 8 bits
    assert weights(file).count("int8") >= 12  # two blocks of six kernels


def test_int8_is_for_dense_layers_and_the_patches_alone(wide):
    interpreter = without_delegate(wide["int8"][1])
    types = {tensor["index"]: np.dtype(tensor["dtype"]).name for tensor in interpreter.get_tensor_details()}
    rounded = set()
    for operation in interpreter._get_ops_details():
        if "int8" in {types.get(index) for index in (*operation["inputs"], *operation["outputs"])}:
            rounded.add(operation["op_name"])
    assert rounded == {"CONV_2D", "FULLY_CONNECTED", "QUANTIZE", "DEQUANTIZE"}


def test_int8_is_calibrated_on_the_photos(wide, tmp_path):
    task, file = wide["int8"]
    dark = dataclasses.replace(task, calibration_photos=task.calibration_photos // 16)
    runs = [litert.open_runtime(path).run for path in (file, written(dark, tmp_path))]
    near, far = (differences(task, run, pictures(5))["features"] for run in runs)
    assert near < far / 2


def weights(file):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(file))
    return [np.dtype(tensor["dtype"]).name for tensor in interpreter.get_tensor_details() if tensor["shape"].size > 0]


def test_nothing_is_heard_and_nothing_else_is_written(tmp_path, capfd, recwarn):
    runtime = litert.open_runtime(written(make_job(make_tiny(num_layers=1)), tmp_path))
    runtime.run(pictures(2))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert [file.name for file in tmp_path.iterdir()] == ["trees.tflite"]


def test_name_of_the_runtime_has_its_version(plain):
    assert litert.open_runtime(plain[1]).name.startswith("LiteRT 2.")


def test_model_above_two_gigabytes_is_refused_before_it_is_converted(tmp_path, monkeypatch):
    monkeypatch.setattr(litert, "MAX_BYTES", 10_000)
    monkeypatch.setattr(litert, "_converted", None)
    with pytest.raises(ValueError, match=r'can hold 2 GB.\nReceived: .* in float32. Pass format="onnx" or "openvino"'):
        litert.write(make_job(), tmp_path / "trees.tflite")
    assert not list(tmp_path.iterdir())


def test_int8_is_counted_as_the_floats_that_it_is_made_of(tmp_path, monkeypatch):
    monkeypatch.setattr(litert, "MAX_BYTES", 10_000)
    with pytest.raises(ValueError, match=r"of weights in float32, of which int8 is made"):
        litert.write(make_job(precision="int8"), tmp_path / "trees.tflite")


def test_operation_that_is_not_built_in_is_refused(tmp_path, monkeypatch):
    @tf.function(input_signature=[tf.TensorSpec((3, 4), tf.uint8, "pixels")])
    def odd(pixels):
        return {"features": tf.linalg.svd(tf.cast(pixels, tf.float32), compute_uv=False)}

    monkeypatch.setattr(litert, "pixel_function", lambda task: odd)
    with pytest.raises(ExportError, match=r"(?s)built-in operations alone.*Received: 'trees'.*Svd"):
        litert.write(make_job(), tmp_path / "trees.tflite")
    assert not list(tmp_path.iterdir())


def test_missing_interpreter_names_the_extra(plain, monkeypatch):
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(ImportError, match=r'pip install "\.\[export\]"'):
        litert.open_runtime(plain[1])


PUBLISHED = {
    "Ti/16": lambda: keras_vit.ViTTi16(weights=None, input_shape=(224, 224, 3), classes=10),
    "B/16": lambda: keras_vit.ViTB16(weights=None, input_shape=(224, 224, 3), classes=10),
    "hybrid": lambda: keras_vit.RViTTi16(weights=None, input_shape=(224, 224, 3), classes=10),
    "DeiT": lambda: keras_vit.ViTTi16(
        weights=None, input_shape=(224, 224, 3), classes=10, distilled=True, activation="gelu"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_models_as_published_are_computed(name, tmp_path):
    task = make_job(PUBLISHED[name](), labels=None)
    run = litert.open_runtime(written(task, tmp_path)).run
    for batch in (1, 2):
        assert max(differences(task, run, pictures(batch, 224, 224)).values()) < 1e-5  # the promise of float32
