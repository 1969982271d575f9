"""What is particular to OpenVINO: the precision that it computes in, and int8 of 7 or 8 bits."""

import dataclasses
import gc
import os
import re
import sys

import numpy as np
import pytest
from conftest import images, make_tiny, tiny_config
from served import differences, make_job, model_says, pictures

import keras_vit
from keras_vit import checks
from keras_vit.exporting.engines.runtimes import open_engine
from keras_vit.exporting.formats import openvino
from keras_vit.exporting.report import ExportError
from keras_vit.silence import signal_stack, silence


def written(spec, folder):
    openvino.OpenVINO().write(spec, folder / "trees.xml")
    return folder / "trees.xml"


def read(file):
    import openvino as package

    return package.Core().read_model(file)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A spec and its file in float32."""
    spec = make_job()
    return spec, written(spec, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def int8(tmp_path_factory):
    """A spec and its file in int8."""
    spec = make_job(precision="int8", calibration_photos=pictures(32))
    return spec, written(spec, tmp_path_factory.mktemp("int8"))


def test_inputs_and_outputs_have_names_and_a_free_batch(plain):
    network = read(plain[1])
    assert [(node.any_name, str(node.partial_shape)) for node in network.inputs] == [("pixels", "[?,20,28,3]")]
    assert {node.any_name for node in network.outputs} == {"features", "logits", "scores"}


def test_outputs_keep_their_names_where_biases_are_zeros(tmp_path):
    model = keras_vit.build(tiny_config(num_layers=1), input_shape=(20, 28, 3), classes=7)
    network = read(written(make_job(model), tmp_path))
    assert sorted((node.names for node in network.outputs), key=sorted) == [{"features"}, {"logits"}, {"scores"}]


def compiled_in(network, **options):
    """Logits of a network or file as OpenVINO compiles it with these options."""
    import openvino as package

    with silence():
        compiled = package.Core().compile_model(network, "CPU", options)
    return compiled(pictures(5))["logits"]


@pytest.mark.skipif(sys.platform != "linux", reason="OpenVINO sets a stack for signals on Linux alone")
@pytest.mark.parametrize("kind", ["plain", "int8"])
def test_signals_are_handled_on_the_stack_of_before(kind, request):
    """Else it is freed memory after networks that are freed in the order of creation, and a signal ends the process."""
    _, file = request.getfixturevalue(kind)
    before = bytes(signal_stack())
    networks = [openvino._compile(str(file), 1, "f32") for _ in range(2)]
    while networks:
        del networks[0]
    assert bytes(signal_stack()) == before


@pytest.mark.parametrize("kind", ["plain", "int8"])
def test_line_of_the_report_opens_the_file_as_it_was_compared(kind, request, tmp_path, monkeypatch):
    """In another folder, and by an odd name."""
    import openvino as package

    _, file = request.getfixturevalue(kind)
    for part in file.parent.iterdir():
        os.link(part, tmp_path / f"an odd 'name'{part.suffix}")
    monkeypatch.chdir(tmp_path)
    compiled = eval(openvino.OpenVINO().load_snippet("an odd 'name'.xml"), {"openvino": package})
    np.testing.assert_array_equal(
        compiled(pictures(5))["logits"], openvino.OpenVINO().open_runtime(file).run(pictures(5))["logits"]
    )


def test_file_says_its_precision_where_openvino_has_options(plain):
    assert read(plain[1]).get_rt_info(["runtime_options", "INFERENCE_PRECISION_HINT"]).astype(str) == "f32"


def test_no_word_in_a_file_keeps_openvino_from_bfloat16(plain, tmp_path):
    """A failure is good news. Then the word goes into every file, and `opening` and its row in the report can go."""
    import openvino as package

    if not openvino._has_bfloat16(package):
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
    far, near = (mean_differences(int8[0], openvino.OpenVINO().open_runtime(place).run) for place in (int8[1], file))
    assert near < 0.8 * far


def most_of_kernels(file):
    """The largest number, without its sign, among kernels of bytes."""
    constants = [node for node in read(file).get_ops() if node.get_type_name() == "Constant"]
    return max(np.abs(node.data.astype(int)).max() for node in constants if node.data.dtype == np.int8)


def mean_differences(spec, run):
    """Of the features of 32 photos, in deviations."""
    photos = pictures(32)
    expected = model_says(spec, photos)["features"]
    return np.abs(run(photos)["features"] - expected).mean() / expected.std()


@pytest.mark.parametrize(
    ("flags", "portable"), [("fpu avx512_vnni", False), ("avx_vnni", False), ("avx512f avx2", True), ("", True)]
)
def test_int8_of_an_engine_is_for_the_processor_that_it_stays_on(flags, portable, tmp_path, monkeypatch):
    facts, seen = tmp_path / "cpuinfo", []
    facts.write_text(f"model name: Some CPU\nflags\t: {flags}\n")
    monkeypatch.setattr(checks, "_PROCESSOR", facts)
    monkeypatch.setattr(openvino, "compile_model", lambda spec, *_: seen.append(spec.portable))
    spec = make_job(precision="int8")
    open_engine("openvino", spec, None)
    assert (spec.portable, seen) == (True, [portable])


def test_int8_takes_layers_without_a_bias(tmp_path):
    """Whose scales OpenVINO would move through the reshape into heads, and fail."""
    model = keras_vit.build(tiny_config(hidden_size=192, num_layers=1), input_shape=(20, 28, 3), classes=7)
    spec = make_job(model, precision="int8", calibration_photos=pictures(32))
    assert not model.get_layer("block_00").attention.value.bias.numpy().any()
    found = differences(spec, openvino.OpenVINO().open_runtime(written(spec, tmp_path)).run, pictures(5))
    assert max(found.values()) < 0.5  # of the deviation


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
    monkeypatch.setattr(openvino, "_convert", lambda spec: None)
    with pytest.raises(ExportError, match="enough"):
        openvino.compile_model(make_job(precision=precision), None)
    with pytest.raises(ExportError, match="enough"):
        openvino.OpenVINO().open_runtime("model.xml")  # as the report of an export says to open it
    assert seen == [told, "f32"]


def test_weights_of_openvino_are_its_own(monkeypatch):
    """Where nothing is folded, as in a ResNet, it converts the model itself, whose arrays it could go on reading."""
    monkeypatch.setattr(openvino.OpenVINO, "folds", ())
    model = make_tiny(num_layers=1)
    run, x = open_engine("openvino", make_job(model, takes="images"), None).run, images(2, 20, 28, 3)
    before = run(x)["features"]
    for weight in model.weights:
        weight.assign(np.full(weight.shape, np.nan))
    del model
    gc.collect()
    assert np.array_equal(run(x)["features"], before)
