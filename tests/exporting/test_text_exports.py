"""Text towers and zero-shot classifiers as files: in every format the numbers of Keras, and ids that cannot be."""

import functools
import json

import numpy as np
import pytest
from conftest import GOLDEN, assert_one_line, numpy

import keras_vit
from keras_vit.checks import ArgumentError
from keras_vit.exporting.formats import FORMATS

pytestmark = pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing):UserWarning")
TOWERS = GOLDEN / "text" / "towers"
SMALL = keras_vit.TextConfig(64, 8, 16, num_layers=1, num_heads=2, mlp_dim=32, projection_size=12)
TEXTS = ["a red car", "", "two dogs & a cat " * 9]


@pytest.fixture(scope="module")
def tower():
    return keras_vit.build_text(weights=TOWERS / "hf_clip")


@pytest.fixture(scope="module")
def file_of(tower, tmp_path_factory):
    """By format, the report of an export and the file's function of ids, written once."""

    @functools.cache
    def file_of(form):
        place = tmp_path_factory.mktemp(form) / f"words{FORMATS[form].extension}"
        report = keras_vit.export(tower, place, options={"batch_size": "any"} if form == "litert" else None)
        return report, FORMATS[form].open_runtime(report.path).run

    return file_of


@pytest.mark.parametrize("form", FORMATS)
def test_file_embeds_the_ids_of_its_tokenizer(form, tower, file_of):
    """The tokenizer's file makes the same ids; a text whose id is none of the vocabulary gets no numbers."""
    report, run = file_of(form)
    tokenizer = keras_vit.tokenizer(report.tokenizer)
    ids = tokenizer(TEXTS)
    np.testing.assert_array_equal(ids, tower.tokenizer(TEXTS))
    assert (tokenizer.clean, tokenizer.end_id) == (tower.tokenizer.clean, tower.tokenizer.end_id)
    assert report.compared_on == "texts"
    assert report.max_difference < report.drift[0].bound
    expected = numpy(tower(ids))
    np.testing.assert_allclose(run(ids)["embeddings"], expected, atol=1e-5)
    np.testing.assert_allclose(run(ids[:1])["embeddings"], expected[:1], atol=1e-5)
    twice = ids.copy()
    twice[0, int(ids[0].argmax()) + 1 :] = ids[0].max()  # transformers pads with the end: the first one counts
    np.testing.assert_allclose(run(twice)["embeddings"], expected, atol=1e-5)
    for wrong in (-1, tower.config.vocabulary_size):
        twice[1, 2] = wrong
        if form == "saved_model":
            with pytest.raises(Exception, match="ids must be from 0 to 663"):
                run(twice)
        else:
            found = run(twice)["embeddings"]
            assert np.isnan(found[1]).all()
            np.testing.assert_allclose(found[[0, 2]], expected[[0, 2]], atol=1e-5)


@pytest.mark.parametrize("form", FORMATS)
def test_file_names_its_input(form, tower, file_of):
    """int32 `(B, T)`, B of any size; and what no tensor says."""
    report, _ = file_of(form)
    if form == "saved_model":
        import tensorflow as tf

        signature = tf.saved_model.load(str(report.path)).signatures["serving_default"]
        given = signature.structured_input_signature[1]["ids"]
        found = (tuple(given.shape), given.dtype.name)
        assert "keras_vit.tokenizer(" in (report.path.parent / "README.md").read_text()
    elif form == "onnx":
        import onnxruntime

        from keras_vit.exporting.onnx_session import open_session

        given = onnxruntime.InferenceSession(report.path).get_inputs()[0]
        found = ((None, *given.shape[1:]), given.type.removeprefix("tensor(").removesuffix(")"))
        facts = open_session(report.path).metadata
        assert facts["tokenizer"]["clean"] == tower.tokenizer.clean
        assert facts["logit_scale"] == pytest.approx(tower.logit_scale)
    elif form == "litert":
        from ai_edge_litert.interpreter import Interpreter

        given = Interpreter(str(report.path)).get_signature_runner("ids").get_input_details()["ids"]
        found = ((None, *given["shape_signature"][1:]), np.dtype(given["dtype"]).name)
    else:
        import openvino

        given = openvino.Core().read_model(report.path).input("ids")
        shape = given.partial_shape
        found = ((None, shape[1].get_length()), given.element_type.to_dtype().name)
    assert found == ((None, 24), "int32")


def test_what_no_text_tower_can_be_written_from_is_refused(tower, tmp_path):
    of_images = {"image_size": "any"}, {"activation": "sigmoid"}
    for given in ({"labels": ["a"]}, {"images": tmp_path}, *({"options": options} for options in of_images)):
        with pytest.raises(ArgumentError, match="is for models of images"):
            keras_vit.export(tower, tmp_path / "x.onnx", **given)
    with pytest.raises(ValueError, match="one row for each text"):
        keras_vit.export(keras_vit.build_text(SMALL, pooling="none"), tmp_path / "x.onnx")
    with pytest.raises(ArgumentError, match="float32, bfloat16 or float16"):
        keras_vit.export(tower, tmp_path / "x", precision="int8")
    other = keras_vit.build_text(SMALL)
    other.tokenizer = keras_vit.tokenizer("clip", max_length=8)
    with pytest.raises(ValueError, match="the vocabulary that it was trained with"):
        keras_vit.export(other, tmp_path / "x.onnx")
    shorter = keras_vit.build_text(weights=TOWERS / "hf_clip", max_length=20)
    shorter.tokenizer = tower.tokenizer
    with pytest.raises(ValueError, match="24 ids, and a tower of 20"):
        keras_vit.export(shorter, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())


def test_tower_without_tokenizer_is_written_alone(tmp_path):
    report = keras_vit.export(keras_vit.build_text(SMALL), tmp_path / "x.xml")
    assert report.tokenizer is None
    assert sorted(file.name for file in tmp_path.iterdir()) == ["x.bin", "x.xml"]


def test_command_writes_the_text_tower_and_replaces_its_own_files_alone(run, tower, tmp_path):
    tower.save(tmp_path / "words.keras")
    options = ("export", tmp_path / "words.keras", tmp_path / "words.xml", "--text")
    code, lines, error = run(*options, "--json")
    assert (code, error) == (0, [])
    assert json.loads("".join(lines))["tokenizer"] == str(tmp_path / "words.xml.tokenizer.json")
    assert run(*options)[0] == 1
    assert run(*options, "--overwrite", "--no-verify")[0] == 0
    (tmp_path / "words.xml.tokenizer.json").write_text("mine")
    code, _, error = run(*options, "--overwrite", "--no-verify")
    assert code == 1
    assert_one_line(error, "replaces only a file that an export")
    code, _, error = run("export", TOWERS / "hf_clip", tmp_path / "other.xml", "--text", "--classes", "cat,dog")
    assert code == 1
    assert_one_line(error, "--text and --classes")
    (tmp_path / "names.txt").write_text("dog\ncat\n")
    options = ("--classes", "cat,dog", "--labels", tmp_path / "names.txt")
    code, _, error = run("export", TOWERS / "hf_clip", tmp_path / "other.xml", *options)
    assert code == 1
    assert_one_line(error, "names of --classes in their order")


@pytest.mark.parametrize("name", [pytest.param("hf_clip", marks=pytest.mark.slow), "hf_siglip"])
@pytest.mark.parametrize(
    "form", [form if form == "openvino" else pytest.param(form, marks=pytest.mark.slow) for form in FORMATS]
)
def test_zero_shot_classifier_is_exported_like_any_other(form, name, tmp_path):
    """Class embeddings, scale and bias are in the head."""
    names = ["cat", "red car", "two dogs"]
    model = keras_vit.zero_shot(TOWERS / name, classes=names)
    report = keras_vit.export(model, tmp_path / f"zero{FORMATS[form].extension}")
    if (form, name) == ("openvino", "hf_siglip"):  # of which nothing else has one
        assert 'type="Sigmoid"' in report.path.read_text()
    assert report.top1_agreement == 1
    assert all(drift.within for drift in report.drift)
    assert {"logits", "scores"} <= {drift.output for drift in report.drift}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hf_siglip", "hf_tipsv2", "hf_metaclip2", "oc_clipa", "dinotxt_text"])
@pytest.mark.parametrize("form", FORMATS)
def test_towers_of_other_families_are_compared_in_every_format(form, name, tmp_path):
    index = json.loads((TOWERS / "index.json").read_text())[name]
    given = {field: index[key] for field, key in (("num_heads", "heads"), ("max_length", "length")) if key in index}
    model = keras_vit.build_text(weights=TOWERS / name, **given)
    for precision in FORMATS[form].precisions:
        if (form, precision) != ("saved_model", "int8"):
            report = keras_vit.export(model, tmp_path / f"{precision}{FORMATS[form].extension}", precision=precision)
            assert all(drift.within for drift in report.drift)
