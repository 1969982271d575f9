"""What is folded into kernels at export: the same function, in fewer operations."""

import dataclasses
import functools

import numpy as np
import pytest
from conftest import images, numpy, tiny_config
from exporting.fake_format import FakeFormat, register
from served import make_job, pictures, without_delegate

import keras_vit
from keras_vit.exporting import folding
from keras_vit.exporting.formats import FORMATS
from keras_vit.exporting.model_function import pixel_function
from keras_vit.model.copies import with_dtype
from keras_vit.model.outputs import inference_model
from keras_vit.model.precision import in_precision

WRITERS = {name: FORMATS[name] for name in ("onnx", "litert", "openvino")}
FLOAT = ("float32",)
NEAR = 1e-5  # the promise of float32; what is found is 2e-6
ROTARY = {"rotary": "axial", "position_embedding": "none", "hidden_size": 24, "num_heads": 3}
MIXED = {"rotary": "mixed", "rotary_coordinates": "grid"}
# Fields of a config, and how many LayerNorms and queries are folded.
CASES = {
    "token": ({}, 4, 2),
    "gap": ({"pooling": "gap"}, 4, 2),
    "map": ({"pooling": "map"}, 6, 3),
    "pre_logits": ({"representation_size": 9}, 5, 2),
    "gap and pre_logits": ({"pooling": "gap", "representation_size": 9}, 5, 2),
    "map and pre_logits": ({"pooling": "map", "representation_size": 9}, 6, 3),
    "distilled": ({"distilled": True}, 4, 2),
    "relative": ({"position_embedding": "relative"}, 4, 2),
    "axial": ({"attention": "axial", "pooling": "gap"}, 8, 4),
    "positions in blocks": ({"position_injection": "blocks"}, 4, 2),
    "shared positions": ({"position_injection": "blocks_shared"}, 4, 2),
    "all tokens": ({"last_block_outputs": "all"}, 4, 2),
    "exact GELU": ({"activation": "gelu"}, 4, 2),
    "layer scale": ({"layer_scale": "both"}, 4, 2),
    "merging": ({"merged_tokens": 3}, 4, 2),
    "merging, gap and pre_logits": ({"merged_tokens": 3, "pooling": "gap", "representation_size": 9}, 5, 2),
    "rotary": ({**ROTARY, "qk_norm": "head"}, 4, 2),
    "rotary in pairs": ({**ROTARY, "rotary_layout": "interleaved", "qk_norm": "head"}, 4, 2),
    "mixed in pairs": ({**ROTARY, **MIXED, "rotary_layout": "interleaved", "qk_norm": "width"}, 4, 2),
    "grouped in pairs": ({**ROTARY, "rotary_layout": "interleaved", "num_heads": 6, "kv_heads": 2}, 4, 2),
    "hybrid": ({"resnet_stages": (1,), "resnet_width_factor": 0.5, "patch_size": 1}, 4, 2),
}


def striking(model, seed=3):
    """The model with gains of 0.5 to 2, shifts and biases of 0.3, and kernels that keep a variance."""
    rng = np.random.default_rng(seed)

    def drawn(weight):
        if weight.path.endswith("gamma"):
            return rng.uniform(0.5, 2, weight.shape)
        return rng.normal(size=weight.shape) * (
            np.prod(weight.shape[:-1]) ** -0.5 if weight.path.endswith("kernel") else 0.3
        )

    model.set_weights([drawn(weight).astype("float32") for weight in model.weights])
    return model


def model_of(case, **arguments):
    fields = CASES[case][0]
    shape = (32, 64, 3) if "resnet_stages" in fields else (20, 28, 3)
    return striking(keras_vit.build(tiny_config(**fields), input_shape=shape, **{"classes": 7} | arguments))


def in_float64(model, prepared):
    """Answers of the model itself, with twice the digits."""
    network = inference_model(with_dtype(model, "float64"))
    return {name: numpy(array) for name, array in network(prepared.astype("float64")).items()}


def furthest(model, *copies):
    """Of each copy, how far its answers are from those of the model itself."""
    prepared = images(3, *model.input_shape[1:])
    wanted, found = in_float64(model, prepared), [inference_model(copy)(prepared) for copy in copies]
    assert all(set(wanted) == set(each) for each in found)
    return [max(np.abs(numpy(each[name]) - array).max() for name, array in wanted.items()) for each in found]


# Their switches are in other cases too.
ALIKE = ("gap", "map", "pre_logits", "shared positions", "all tokens", "merging", "rotary", "rotary in pairs")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.nightly if case in ALIKE else ()) for case in CASES]
)
def test_twin_computes_what_the_model_computes(case):
    model, (_, norms, queries) = model_of(case), CASES[case]
    before = [weight.numpy().copy() for weight in model.weights]
    copies, (folds, same) = zip(*(folding.fold(model, bare) for bare in (True, False)), strict=True)
    assert max(furthest(model, *copies)) < NEAR
    assert folds == same
    assert (folds.norms, folds.queries) == (norms, queries)
    told = f"gain and shift of {norms} LayerNorms, scale of {queries} queries"
    assert str(folds) == told == str(folding.count_folds(make_job(model, precision="int8")))
    assert all((old == new.numpy()).all() for old, new in zip(before, model.weights, strict=True))


def test_features_alone_keep_their_gain_and_shift():
    model = model_of("token", classes=None, include_top=False)
    assert max(furthest(model, folding.fold(model)[0])) < NEAR


def test_last_norm_stays_where_features_are_read_from_it():
    for case, stays in (("token", True), ("gap", True), ("distilled", True), ("map", False), ("pre_logits", False)):
        copy, _ = folding.fold(model_of(case))
        assert (copy.get_layer("encoder_norm").gamma is not None) is stays


def test_kernel_behind_a_norm_in_closed_form():
    gain, shift, kernel, bias = np.array([2.0, 3.0]), np.array([5.0, 7.0]), np.array([[1.0, 10.0], [2.0, 20.0]]), [4, 6]
    found = folding.fold_affine(gain, shift, kernel, np.array(bias))
    np.testing.assert_array_equal(found[0], [[2, 20], [6, 60]])
    np.testing.assert_array_equal(found[1], [4 + 5 + 14, 6 + 50 + 140])


WRONG = {
    "no shift": lambda gain, shift, kernel, bias: (gain[:, None] * kernel, bias),
    "no gain": lambda gain, shift, kernel, bias: (kernel, bias + shift @ kernel),
    "shift with gain": lambda gain, shift, kernel, bias: (gain[:, None] * kernel, bias + (gain * shift) @ kernel),
    "rows mistaken": lambda gain, shift, kernel, bias: (gain[::-1, None] * kernel, bias + shift @ kernel),
}


def test_wrong_folds_and_a_scale_of_queries_left_out_are_detected(monkeypatch):
    model = model_of("token")
    copies = [folding.fold(model)[0]]
    for attention in folding._attentions(copies[0]):
        attention.query_scale = 0.5
    for wrong in WRONG.values():
        monkeypatch.setattr(folding, "fold_affine", wrong)
        copies.append(folding.fold(model)[0])
    assert min(furthest(model, *copies)) > 1000 * NEAR


def test_lora_is_merged_first():
    model = model_of("token")
    keras_vit.add_lora(model, 2)
    striking(model)
    copy, folds = folding.fold(in_precision(model, "float32"))
    assert folds.norms == 4
    assert max(furthest(in_precision(model, "float32"), copy)) < NEAR


def test_what_has_nothing_to_fold_stays_as_it_is():
    resnet = keras_vit.build_resnet(keras_vit.ResNetConfig((1, 1), 0.5), classes=3, input_shape=(32, 32, 3))
    quantised = in_precision(model_of("token"), "int8")
    for model in (resnet, quantised):
        assert folding.fold(model) == (model, folding.Folds())
        assert str(folding.count_folds(make_job(model))) == "nothing"
        spec = make_job(model)
        assert folding.folded_spec(spec, FLOAT) == spec


def with_preprocessing(spec, given):
    """How far a spec folded in float32 is from the model itself, of pixels."""
    prepared = np.asarray(spec.model.preprocessing(given), "float64")
    found = pixel_function(folding.folded_spec(spec, FLOAT))(given)
    wanted = in_float64(spec.model, prepared)
    return max(np.abs(found[name].numpy() - array).max() for name, array in wanted.items())


@pytest.mark.parametrize("case", ["token", "hybrid"])
def test_pixels_are_scaled_by_the_first_kernel(case, monkeypatch):
    model = model_of(case)
    model.preprocessing = dataclasses.replace(model.preprocessing, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    spec, given = make_job(model), pictures(3, *model.input_shape[1:3])
    assert with_preprocessing(spec, given) < NEAR
    assert folding.folded_spec(spec, FLOAT).scales is (case == "hybrid")
    told = ", mean and deviation of pixels"
    assert str(folding.count_folds(spec)).endswith(told) is (case == "token")
    for fields in ({"precision": "float16"}, {"precision": "int8"}, {"takes": "images"}):
        other = dataclasses.replace(spec, **fields)
        assert folding.folded_spec(other, (other.precision,)).scales
        assert not str(folding.count_folds(other)).endswith(told)
    monkeypatch.setattr(folding, "_fold_pixels", lambda copy: None)
    assert bool(with_preprocessing(spec, given) > 1000 * NEAR) is (case == "token")


SIMILAR = ("pre_logits", "distilled")  # to "token" in their operations
nightly = pytest.mark.nightly  # the product; by default each format once, and each case once


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    """By format, case and fields of a spec: the spec and the path of its file, written once."""

    @functools.cache
    def file_of(form, case, **fields):
        spec, place = make_job(model_of(case), **fields), tmp_path_factory.mktemp(form) / f"a{FORMATS[form].extension}"
        WRITERS[form].write(spec, place)
        return spec, place

    return file_of


@pytest.mark.parametrize(
    ("form", "case"),
    [
        pytest.param(form, case, marks=() if case == "token" or (form == "onnx" and case not in SIMILAR) else nightly)
        for form in WRITERS
        for case in ["token", "map", "merging", "hybrid", "exact GELU", *SIMILAR]
    ],
)
def test_files_are_the_model(form, case, file_of):
    spec, place = file_of(form, case)
    given = pictures(3, *spec.image_size)
    found = WRITERS[form].open_runtime(place).run(given)
    for name, wanted in in_float64(spec.model, np.asarray(spec.model.preprocessing(given), "float64")).items():
        assert np.abs(found[name] - wanted).max() < NEAR


def operations(form, place):
    """How many operations of each kind a file has."""
    if form == "onnx":
        import onnx as package

        names = [node.op_type for node in package.load(place).graph.node]
    elif form == "litert":
        names = [operation["op_name"] for operation in without_delegate(place)._get_ops_details()]
    else:
        import openvino as package

        names = [node.get_type_name() for node in package.Core().read_model(place).get_ops()]
    return names


ARITHMETIC = ("mul", "multiply", "add", "sub", "subtract", "div", "divide")
PIXELS, NORMS, QUERIES = 2, 4 * 2, 2  # mean and deviation; gain and shift of four LayerNorms; a scale for each block
# Their converters fold by themselves: LiteRT's the scale of queries, OpenVINO's the deviation of pixels. Of ONNX's
# nodes LayerNormalization the shift is gone; below opset 18 there are none, and gains are gone too.
GONE = {
    ("litert", 18): PIXELS + NORMS,
    ("openvino", 18): PIXELS - 1 + NORMS + QUERIES,
    ("onnx", 18): PIXELS + QUERIES,
    ("onnx", 15): PIXELS + NORMS + QUERIES,
}


@pytest.mark.parametrize(("form", "opset"), GONE)
def test_operations_are_gone_from_the_file(form, opset, file_of, tmp_path, monkeypatch):
    fields = {"opset": opset} if opset < 18 else {}
    less = operations(form, file_of(form, "token", **fields)[1])
    monkeypatch.setattr(type(WRITERS[form]), "folds", ())
    place = tmp_path / f"plain{FORMATS[form].extension}"
    WRITERS[form].write(make_job(model_of("token"), opset=opset), place)
    plain = operations(form, place)
    counts = [len([name for name in names if name.lower() in ARITHMETIC]) for names in (plain, less)]
    assert counts[0] - counts[1] == GONE[form, opset]


def test_rotation_of_onnx_has_no_step_more_for_pairs(file_of):
    """A split, a concatenation, two products and a sum turn queries or keys, and nothing is gathered or transposed."""
    halves, pairs = (operations("onnx", file_of("onnx", f"rotary{kind}")[1]) for kind in ("", " in pairs"))
    assert sorted(halves) == sorted(pairs)
    assert {kind: halves.count(kind) for kind in ("Split", "Transpose", "Gather")} == {
        "Split": 2 * 2,
        "Transpose": 2 * 4,
        "Gather": 0,
    }


def test_layer_norms_of_onnx_have_no_shift(file_of):
    import onnx as package

    nodes = package.load(file_of("onnx", "token")[1]).graph.node
    assert sorted(len(node.input) for node in nodes if node.op_type == "LayerNormalization") == [2, 2, 2, 2, 3]


def test_engine_in_bfloat16_is_folded_too():
    """Which is told to its runtime: what is written is the same."""
    spec = make_job(model_of("token"), precision="bfloat16", takes="images")
    assert folding.folded_spec(spec, FORMATS["openvino"].folds) != spec


def test_operations_are_gone_from_the_graph():
    spec = make_job(model_of("token"))
    graphs = [pixel_function(each).get_concrete_function().graph for each in (spec, folding.folded_spec(spec, FLOAT))]
    kinds = ("Mul", "AddV2", "Sub", "RealDiv")
    plain, less = (len([each for each in graph.get_operations() if each.type in kinds]) for graph in graphs)
    assert plain - less == PIXELS + NORMS + QUERIES


def test_export_says_what_it_folded(tmp_path, monkeypatch):
    model, format = model_of("token"), register(monkeypatch, "fake", FakeFormat())
    assert keras_vit.export(model, tmp_path / "a.fake", "fake", verify=False).folded is None
    format.folds = FLOAT
    found = keras_vit.export(model, tmp_path / "b.fake", "fake", verify=False)
    assert found.folded == "gain and shift of 4 LayerNorms, scale of 2 queries, mean and deviation of pixels"
    assert f"| folded into kernels | {found.folded} |" in found.table().splitlines()
    assert keras_vit.export(model, tmp_path / "c.fake", "fake", precision="float16", verify=False).folded is None
    assert "int8" not in FORMATS["litert"].folds
