"""The model card of a run: figures are the run's, the Hub's own reader takes it, and no name from outside is markup."""

import html
import json
import math
import re

import pytest
from conftest import make_tiny, tiny_config
from huggingface_hub import ModelCard
from photos import make_photos

import keras_vit
from keras_vit.cards import (
    Card,
    Measured,
    classes_section,
    preprocessing_section,
    read_card,
    wilson_interval,
    with_field,
    with_section,
    write_card,
)
from keras_vit.escaping import markdown_text
from keras_vit.runs.card import origin_of, run_card
from keras_vit.runs.options import FinetuneOptions

EVIL = "a\n---\n# b | [x](javascript:alert(1)) <script>alert('1')</script> `c` &lt; \x1b[31m \u202e \\| 雛菊 *d* _e_"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards")
    options = {"model": tiny_config(num_layers=1), "image_size": (20, 24), "batch_size": 8, "epochs": 2}
    return keras_vit.finetune(make_photos(folder / "shapes"), folder / "run", say=lambda _: None, **options)


def facts_of(finished):
    return [json.loads((finished.out / name).read_text()) for name in ("config.json", "result.json")]


# What the Hub reads


def test_card_of_a_run_has_the_metadata_of_the_hub(finished):
    data = ModelCard.load(finished.out / "README.md").data
    found = data.to_dict()
    assert (data.library_name, data.pipeline_tag, data.license) == ("keras", "image-classification", "unknown")
    assert data.datasets == ["shapes"]
    assert data.metrics == ["accuracy", "loss", "expected_calibration_error"]
    assert "base_model" not in found  # it began with random weights
    assert ModelCard(str(ModelCard.load(finished.out / "README.md"))).data.to_dict() == found


def test_figures_are_those_of_the_run_with_split_and_count(finished):
    results = ModelCard.load(finished.out / "README.md").data.eval_results
    figures = {each.metric_type: each.metric_value for each in results}
    evaluation = finished.evaluation
    assert figures == {
        "accuracy": evaluation.accuracy,
        "loss": evaluation.loss,
        "expected_calibration_error": evaluation.calibration_error,
    }
    assert {each.dataset_split for each in results} == {"test"}
    assert {each.dataset_args["images"] for each in results} == {evaluation.count}
    text = read_card(finished.out)
    assert f"| Accuracy | {evaluation.accuracy:.4f} |" in text
    low, high = wilson_interval(evaluation.accuracy, evaluation.count)
    assert f"is {low:.4f} to {high:.4f}." in text


def test_base_model_is_named_with_its_licence(finished):
    config, result = facts_of(finished)
    config["weights_from"] = origin_of(FinetuneOptions(model="B/16", weights="hf:google/vit-base-patch16-224"))
    card = ModelCard(run_card(config, result).text())
    assert card.data.base_model == "google/vit-base-patch16-224"
    assert "from the published weights hf&#58;google/vit-base-patch16-224." in card.text
    assert "Those it began with are under Apache-2.0: https://huggingface.co/google/" in card.text


@pytest.mark.parametrize(
    ("options", "origin"),
    [
        ({}, {"kind": "random"}),
        ({"model": tiny_config()}, {"kind": "random"}),
        (
            {"model": "B/16", "weights": "hf:me/mine@v2"},
            {"kind": "file", "name": "hf:me/mine@v2", "repository": "me/mine"},
        ),
        ({"model": "B/16", "weights": "/home/me/x.npz"}, {"kind": "file", "name": "x.npz"}),
        (
            {"model": "B/16", "weights": "https://me:secret@host/x.npz?key=1"},
            {"kind": "file", "name": "https://host/x.npz?..."},
        ),
    ],
)
def test_origin_of_weights_has_no_path_and_no_secret(options, origin):
    assert origin_of(FinetuneOptions(**options)) == origin


def test_origin_of_published_weights_is_that_of_the_table():
    record = keras_vit.find_weights("augreg-imagenet21k", "Ti/16")
    said = {"license": record.license, "url": record.url, "repository": None}
    assert origin_of(FinetuneOptions(model="ViTTi16")) == {"kind": "published", "name": record.name} | said
    assert origin_of(FinetuneOptions(model=make_tiny())) == {"kind": "model"}


@pytest.mark.parametrize("value", [0.5, 1e-05, 1e-17, 0.1 + 0.2, 1.0, 0.0, 3e20])
def test_figures_come_back_exactly(value):  # YAML 1.1 takes 1e-05 for a text
    measured = Measured("set", "folder", "test", 7, (("loss", "Loss", value),))
    found = ModelCard(Card("t", "keras", (), measured=measured).text()).data.eval_results[0].metric_value
    assert (found, type(found)) == (value, float)


# What people read


def test_limits_name_what_was_not_measured(finished):
    config, result = facts_of(finished)
    text = run_card(config, result).text()
    assert f"It was trained on {config['data']['sizes']['train']:,} images." in text
    assert f"off by {result['calibration_error']:.4f} in the mean" in text
    assert "for some groups of people, places or things than for others was not studied." in text
    assert "The best epoch was chosen" not in text
    assert (
        "The best epoch was chosen on the validation set" in run_card(config, result | {"split": "validation"}).text()
    )


def test_weakest_class_and_those_without_images_are_named(finished):
    config, result = facts_of(finished)
    rows = [("a", 4, 1.0), ("b*", 4, 0.25), ("c", 0, None)]
    result["per_class"] = [dict(zip(("name", "count", "recall"), row, strict=True), precision=None) for row in rows]
    text = run_card(config, result).text()
    assert "- It recognises b&#42; least: 25.0% of 4 images." in text
    assert "- Of 1 classes there was no image in the test set" in text


def test_code_of_the_card_runs(finished, monkeypatch, tmp_path):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(finished.out)
    code = read_card(finished.out).partition("```python\n")[2].partition("```")[0]
    image.new("RGB", (31, 27)).save(tmp_path / "photo.jpg")
    exec(code.replace("photo.jpg", str(tmp_path / "photo.jpg")), {})


def test_no_path_of_the_machine_is_in_the_card(finished):
    assert str(finished.out.parent) not in read_card(finished.out)


def test_interval_is_wilsons():
    """Newcombe, Statistics in Medicine 17 (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    wanted = {(81, 263): (0.2553, 0.3662), (15, 148): (0.0624, 0.1605), (0, 20): (0, 0.1611), (1, 29): (0.0061, 0.1718)}
    for (hits, count), bounds in wanted.items():
        assert wilson_interval(hits / count, count) == pytest.approx(bounds, abs=5e-5)  # four digits are printed
    assert wilson_interval(1.0, 20) == pytest.approx((1 - 0.1611, 1), abs=5e-5)
    assert all(0 <= bound <= 1 and math.isfinite(bound) for n in (1, 10**9) for bound in wilson_interval(1.0, n))


def test_preprocessing_is_told_as_it_is():
    record = keras_vit.Preprocessing((20, 24), "crop", (0.1, 0.2, 0.3), interpolation="bicubic", crop_fraction=0.875)
    text = preprocessing_section(record)
    assert "| height x width | 20 x 24 pixels |" in text
    assert "0.875 of each side" in text
    assert "| mean, white is 1 | 0.1, 0.2, 0.3 |" in text
    assert "| interpolation | bicubic, without antialias |" in text
    assert "interpolation" not in preprocessing_section(keras_vit.Preprocessing(None, "none"))


def test_many_classes_are_cut_short_and_counted():
    text = classes_section([f"class {k}" for k in range(107)])
    assert text.count("\n| ") == 1 + 1 + 100
    assert text.endswith("And 7 more.")


# Names from outside


def test_hostile_names_are_shown_and_do_nothing(finished):
    config, result = facts_of(finished)
    config["data"]["name"] = config["model"]["name"] = EVIL
    config["data"]["class_names"] = [EVIL, "b", "c"]
    result["per_class"][0]["name"] = EVIL
    text = run_card(config, result).text()
    card = ModelCard(text)
    assert card.data.library_name == "keras"
    assert re.fullmatch(r"[\w.-]+", card.data.datasets[0], re.ASCII)
    assert all(line.isprintable() for line in text.split("\n"))
    assert not re.search(r"<script|\]\(|`c`|\*d\*", card.text)
    row = next(line for line in text.splitlines() if line.startswith("| 0 |"))
    assert html.unescape(row.split("|")[2].strip()) == r"a\n---\n# b | [x](javascript:alert(1)) <script>alert('1')" + (
        r"</script> `c` &lt; \x1b[31m \u202e \\| 雛菊 *d* _e_"
    )
    assert len(row.split("|")) == 7  # five cells


@pytest.mark.parametrize("text", ["golden_retriever", "tabby (cat)", "Saint-Denis, 3.5", "Gänseblümchen"])
def test_usual_names_stay_readable(text):
    assert markdown_text(text) == text


@pytest.mark.parametrize("text", ["www.evil.com", "http://evil.com", "me@evil.com", "_x_", "a<b", "$x$", "x\\|y"])
def test_markup_becomes_references_of_the_same_text(text):
    escaped = markdown_text(text)
    assert escaped != text
    assert html.unescape(escaped) == text


# The file


def test_card_that_was_edited_stays_and_is_told(tmp_path):
    write_card(tmp_path, "one\n")
    write_card(tmp_path, "two\n")  # as it was written, so it is replaced
    assert read_card(tmp_path) == "two\n"
    (tmp_path / "README.md").write_text((tmp_path / "README.md").read_text().replace("two", "mine"))
    with pytest.warns(UserWarning, match=r"README\.md stays as it is.*\n.*Remove it"):
        write_card(tmp_path, "three\n")
    assert "mine" in read_card(tmp_path)


@pytest.mark.parametrize("content", [b"# a project\n", b"\xff\xfe", b""])
def test_readme_of_somebody_else_stays(tmp_path, content):
    (tmp_path / "README.md").write_bytes(content)
    with pytest.warns(UserWarning, match="stays as it is"):
        write_card(tmp_path, "ours\n")
    assert (tmp_path / "README.md").read_bytes() == content


def test_card_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "README.md").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"must have its card, README\.md, in UTF-8"):
        read_card(tmp_path)
    (tmp_path / "other" / "README.md").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"must have its card, README\.md, in UTF-8"):
        read_card(tmp_path / "other")


def test_one_section_or_field_changes_and_nothing_else():
    text = Card("t", "keras", (("Use", "old"), ("Used", "stays"), ("Last", "old"))).text()
    assert with_section(text, "Use", "new\n\\1") == text.replace("old", "new\n\\1", 1)
    assert with_section(text, "Last", "new") == "new".join(text.rsplit("old", 1))
    assert with_section(text, "None", "new") == text
    assert with_field(text, "library_name", 'a"b') == text.replace('"keras"', '"a\\"b"', 1)
    assert with_field(text, "none", "x") == text
