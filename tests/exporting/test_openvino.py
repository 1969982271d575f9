import dataclasses
import gc
import json
import os
import re
import sys

import numpy as np
import pytest
import tensorflow as tf
from conftest import images, make_tiny, randomise, tiny_config
from served import LABELS, make_job
from test_litert import BATCHES, PUBLISHED, differences, model_says, pictures

import keras_vit
from keras_vit import processor
from keras_vit.exporting import openvino
from keras_vit.exporting.engines.runtimes import opened
from keras_vit.exporting.report import ExportError

ODD_LABELS = ('<été> & "co"', "two\nlines", *LABELS[2:])


def written(task, folder, name="trees.xml"):
    openvino.write(task, folder / name)
    return folder / name


def read(file):
    import openvino as package

    return package.Core().read_model(file)


def stored(file):
    """How many constants of each type are in the file, but for scalars."""
    constants = [node for node in read(file).get_ops() if node.get_type_name() == "Constant"]
    return [node.get_element_type().get_type_name() for node in constants if np.prod(node.shape) > 1]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A task, with labels of odd letters, and its file in float32."""
    task = make_job(labels=ODD_LABELS)
    return task, written(task, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def int8(tmp_path_factory):
    """A task and its file in int8."""
    task = make_job(precision="int8", calibration_photos=pictures(32))
    return task, written(task, tmp_path_factory.mktemp("int8"))


def test_file_computes_what_the_model_computes_at_every_batch(plain):
    task, file = plain
    run = openvino.open_runtime(file).run
    for batch in BATCHES:
        assert max(differences(task, run, pictures(batch)).values()) < 1e-5  # the promise of float32


@pytest.mark.parametrize("arguments", [{"activation": "gelu"}, {"distilled": True}, {"pooling": "map"}])
def test_other_architectures_are_computed_too(arguments, tmp_path):
    task = make_job(
        randomise(keras_vit.build(tiny_config(num_layers=1, **arguments), input_shape=(20, 28, 3), classes=7))
    )
    run = openvino.open_runtime(written(task, tmp_path)).run
    assert max(differences(task, run, pictures(2)).values()) < 1e-5  # the promise of float32


def test_sides_may_be_chosen_at_each_call(tmp_path):
    task = make_job(make_tiny(input_shape=(None, None, 3), num_layers=1))
    run = openvino.open_runtime(written(task, tmp_path)).run
    for batch, height, width in ((2, 20, 28), (1, 36, 24), (3, 8, 44)):
        assert max(differences(task, run, pictures(batch, height, width)).values()) < 1e-5


def test_model_without_head_gives_features_alone(tmp_path):
    task = make_job(make_tiny(include_top=False, classes=None, input_shape=(20, 28, 1), num_layers=1))
    file = written(task, tmp_path)
    assert list(differences(task, openvino.open_runtime(file).run, pictures(2, channels=1))) == ["features"]
    assert not read(file).has_rt_info(["model_info", "labels"])


def test_inputs_and_outputs_have_names_and_a_free_batch(plain):
    network = read(plain[1])
    assert [(node.any_name, str(node.partial_shape)) for node in network.inputs] == [("pixels", "[?,20,28,3]")]
    assert {node.any_name for node in network.outputs} == {"features", "logits", "scores"}


def test_outputs_keep_their_names_where_biases_are_zeros(tmp_path):
    model = keras_vit.build(tiny_config(num_layers=1), input_shape=(20, 28, 3), classes=7)
    network = read(written(make_job(model), tmp_path))
    assert sorted((node.names for node in network.outputs), key=sorted) == [{"features"}, {"logits"}, {"scores"}]


def test_file_still_works_in_another_folder(plain, tmp_path):
    task, file = plain
    for part in file.parent.iterdir():
        os.link(part, tmp_path / part.name)
    assert sorted(part.name for part in tmp_path.iterdir()) == ["trees.bin", "trees.xml"]
    assert max(differences(task, openvino.open_runtime(tmp_path / "trees.xml").run, pictures(2)).values()) < 1e-5


def test_labels_and_preprocessing_are_in_the_file(plain):
    task, file = plain
    network = read(file)
    names = ['<été>_&_"co"', "two_lines", *(name.replace(" ", "_") for name in LABELS[2:])]
    assert network.get_rt_info(["model_info", "labels"]).astype(str).split(" ") == names
    told = json.loads(network.get_rt_info(["keras_vit", "metadata"]).astype(str))
    assert told == json.loads(json.dumps(task.metadata()))


def test_letters_that_xml_knows_are_kept(plain):
    network = read(plain[1])
    assert json.loads(network.get_rt_info(["keras_vit", "metadata"]).astype(str))["labels"] == list(ODD_LABELS)


def compiled_in(network, **options):
    """Logits of a network or file as OpenVINO compiles it with these options."""
    import openvino as package

    compiled = package.Core().compile_model(network, "CPU", options)
    return compiled(pictures(5))["logits"]


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
def test_line_of_the_report_opens_the_file_as_it_was_compared(precision, tmp_path, monkeypatch):
    import openvino as package

    task = make_job(precision=precision, calibration_photos=pictures(32))
    file = written(task, tmp_path, "an odd 'name'.xml")
    monkeypatch.chdir(tmp_path)
    wanted = openvino.open_runtime(file).run(pictures(5))["logits"]
    compiled = eval(openvino.opening(file.name), {"openvino": package})
    np.testing.assert_array_equal(compiled(pictures(5))["logits"], wanted)


def test_file_says_its_precision_where_openvino_has_options(plain):
    assert read(plain[1]).get_rt_info(["runtime_options", "INFERENCE_PRECISION_HINT"]).astype(str) == "f32"


def test_no_word_in_a_file_keeps_openvino_from_bfloat16(plain, tmp_path):
    """A failure is good news. Then the word goes into every file, and `opening` and its row in the report can go."""
    import openvino as package

    if "BF16" not in package.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("a processor that does not know bfloat16 computes in float32 anyway")
    right = compiled_in(plain[1], INFERENCE_PRECISION_HINT="f32")
    network = read(plain[1])
    for option, value in (("EXECUTION_MODE_HINT", "ACCURACY"), ("ENABLE_BF16", "NO")):
        network.set_rt_info(value, ["runtime_options", option])
    marked = tmp_path / "marked.xml"
    package.save_model(network, marked, compress_to_fp16=False)
    marked.write_text(
        re.sub(
            r'(<layer [^>]*type="(?!Parameter|Const|Result)[^>]*>(?:\s*<data [^>]*/>)?)',
            r'\1<rt_info><attribute name="precise" version="0"/></rt_info>',
            marked.read_text(),
        )
    )
    kinds = {
        node.get_type_name() for node in read(marked).get_ops() if any("Precision" in k for k in node.get_rt_info())
    }
    assert {"MatMul", "Convolution", "Add"} <= kinds  # OpenVINO reads the mark, which it loses where it fuses a bias
    for file in (plain[1], marked):
        assert np.abs(compiled_in(file) - right).max() > 1e-4 * right.std(), f"{package.__version__} heeds {file.name}"


def test_float16_is_what_is_stored(tmp_path):
    task = make_job(precision="float16")
    file = written(task, tmp_path)
    assert set(stored(file)) & {"f16", "f32"} == {"f16"}
    assert max(differences(task, openvino.open_runtime(file).run, pictures(5)).values()) < 0.01  # 11 bits, few layers


def test_int8_rounds_the_kernels_and_stays_near(int8):
    task, file = int8
    assert stored(file).count("i8") >= 12  # two blocks of six kernels
    assert max(differences(task, openvino.open_runtime(file).run, pictures(32)).values()) < 0.5  # of the deviation


def test_int8_is_for_dense_layers_and_the_patches_alone(int8):
    network = read(int8[1])
    readers = [
        reader.get_node().get_type_name()
        for node in network.get_ops()
        if node.get_type_name() == "FakeQuantize"
        for reader in node.output(0).get_target_inputs()
    ]
    assert len(readers) > 12
    assert set(readers) == {"MatMul", "Convolution"}


def test_int8_that_stays_on_its_processor_has_all_bits_and_is_nearer(int8, tmp_path):
    file = written(dataclasses.replace(int8[0], portable=False), tmp_path)
    assert [most_of_kernels(place) for place in (int8[1], file)] == [64, 127]
    if not openvino.adds_in_32_bits():
        pytest.skip("the second file is for processors that add products of bytes in 32 bits")
    far, near = (mean_differences(int8[0], openvino.open_runtime(place).run) for place in (int8[1], file))
    assert near < 0.8 * far


def most_of_kernels(file):
    """The largest number, without its sign, among kernels of bytes."""
    constants = [node for node in read(file).get_ops() if node.get_type_name() == "Constant"]
    return max(np.abs(node.data.astype(int)).max() for node in constants if node.data.dtype == np.int8)


def mean_differences(task, run):
    """Of the features of 32 photos, in deviations."""
    photos = pictures(32)
    expected = model_says(task, photos)["features"]
    return np.abs(run(photos)["features"] - expected).mean() / expected.std()


@pytest.mark.parametrize(
    ("flags", "portable"), [("fpu avx512_vnni", False), ("avx_vnni", False), ("avx512f avx2", True), ("", True)]
)
def test_int8_of_an_engine_is_for_the_processor_that_it_stays_on(flags, portable, tmp_path, monkeypatch):
    facts, seen = tmp_path / "cpuinfo", []
    facts.write_text(f"model name: Some CPU\nflags\t: {flags}\n")
    monkeypatch.setattr(processor, "_FACTS", facts)
    monkeypatch.setattr(openvino, "opened", lambda task, threads: seen.append(task.portable))
    task = make_job(precision="int8")
    opened("openvino", task, None)
    assert (task.portable, seen) == (True, [portable])


def test_int8_takes_layers_without_a_bias(tmp_path):
    """Whose scales OpenVINO would move through the reshape into heads, and fail."""
    model = keras_vit.build(tiny_config(hidden_size=192, num_layers=1), input_shape=(20, 28, 3), classes=7)
    task = make_job(model, precision="int8", calibration_photos=pictures(32))
    assert not model.get_layer("block_00").attention.value.bias.numpy().any()
    found = differences(task, openvino.open_runtime(written(task, tmp_path)).run, pictures(5))
    assert max(found.values()) < 0.5  # of the deviation


def test_int8_is_calibrated_on_the_photos(int8, tmp_path):
    dark = make_job(precision="int8", calibration_photos=pictures(32) // 16)
    runs = [openvino.open_runtime(file).run for file in (int8[1], written(dark, tmp_path))]
    near, far = (differences(int8[0], run, pictures(32))["features"] for run in runs)
    assert near < far / 2


def test_nothing_is_heard_and_nothing_else_is_written(tmp_path, monkeypatch, capfd, recwarn):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CI", raising=False)
    folder = tmp_path / "files"
    folder.mkdir()
    openvino.open_runtime(written(make_job(make_tiny(num_layers=1)), folder)).run(pictures(2))
    assert capfd.readouterr() == ("", "")
    assert not recwarn.list
    assert [file.name for file in sorted(tmp_path.rglob("*"))] == ["files", "trees.bin", "trees.xml"]
    assert "CI" not in os.environ


def test_name_of_the_runtime_has_its_version(plain):
    assert openvino.open_runtime(plain[1]).name.startswith("OpenVINO 202")


def test_operation_that_openvino_lacks_is_refused(tmp_path, monkeypatch):
    @tf.function(input_signature=[tf.TensorSpec((3, 4), tf.uint8, "pixels")])
    def odd(pixels):
        return {"features": tf.linalg.svd(tf.cast(pixels, tf.float32), compute_uv=False)}

    monkeypatch.setattr(openvino, "pixel_function", lambda task: odd)
    with pytest.raises(ExportError, match=r"(?s)does not take this model.\nReceived: 'trees'.*Svd"):
        openvino.write(make_job(), tmp_path / "trees.xml")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("package", "precision"), [("openvino", "float32"), ("nncf", "int8")])
def test_missing_package_names_the_extra(package, precision, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=package if package == "nncf" else "OpenVINO") as error:
        openvino.write(make_job(precision=precision), tmp_path / "trees.xml")
    assert 'pip install ".[export]"' in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_models_as_published_are_computed(name, tmp_path):
    task = make_job(PUBLISHED[name](), labels=None)
    run = openvino.open_runtime(written(task, tmp_path)).run
    for batch in (1, 2):
        assert max(differences(task, run, pictures(batch, 224, 224)).values()) < 1e-5  # the promise of float32


@pytest.mark.parametrize(
    ("precision", "capable", "told"),
    [("float32", True, "f32"), ("bfloat16", True, "bf16"), ("int8", True, "bf16"), ("int8", False, "f32")],
)
def test_openvino_is_told_the_precision_of_floats(precision, capable, told, monkeypatch):
    package, seen = pytest.importorskip("openvino"), []

    class Core:
        def get_property(self, *_):
            return ["FP32", "BF16"] if capable else ["FP32"]

        def compile_model(self, place, device, options):
            seen.append(options["INFERENCE_PRECISION_HINT"])
            raise RuntimeError("enough")

    monkeypatch.setattr(package, "Core", Core)
    monkeypatch.setattr(openvino, "_network", lambda task: None)
    with pytest.raises(ExportError, match="enough"):
        openvino.opened(make_job(precision=precision), None)
    with pytest.raises(ExportError, match="enough"):
        openvino.open_runtime("model.xml")  # as the report of an export says to open it
    assert seen == [told, "f32"]


def test_weights_of_openvino_are_its_own(monkeypatch):
    """Where nothing is folded, as in a ResNet, it converts the model itself, whose arrays it could go on reading."""
    monkeypatch.setattr(openvino, "FOLDED", ())
    model = make_tiny(num_layers=1)
    run, x = opened("openvino", make_job(model, takes="images"), None).run, images(2, 20, 28, 3)
    before = run(x)["features"]
    for weight in model.weights:
        weight.assign(np.full(weight.shape, np.nan))
    del model
    gc.collect()
    assert np.array_equal(run(x)["features"], before)
