"""The model card of a run: figures are the run's, the Hub's own reader takes it, and no name from outside is markup."""

import json

import pytest
from conftest import make_tiny, tiny_config
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from photos import make_photos

import keras_vit
from keras_vit.cards import read_card, wilson_interval
from keras_vit.escaping import printable
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
    assert "datasets" not in found
    assert {each.dataset_type for each in data.eval_results} == {"folder"}
    assert data.metrics == ["accuracy", "loss", "expected_calibration_error"]
    assert "base_model" not in found  # it began with random weights
    assert ModelCard(str(ModelCard.load(finished.out / "README.md"))).data.to_dict() == found


@pytest.mark.parametrize("name", ["imagenet-1k", "cifar10", "labels.csv", "uoft-cs/cifar10"])
def test_local_data_are_not_called_a_set_of_the_hub(finished, name):
    config, result = facts_of(finished)
    config["data"]["name"] = name
    data = ModelCard(run_card(config, result).text()).data
    assert data.datasets is None
    assert {(each.dataset_name, each.dataset_type) for each in data.eval_results} == {(name, "folder")}


@pytest.mark.parametrize(
    ("full_name", "on_hub"), [("cifar10/3.0.2", "uoft-cs/cifar10"), ("cifar10_1/v4/1.1.0", None), ("mine/1.0.0", None)]
)
def test_a_set_that_is_on_the_hub_is_linked(finished, full_name, on_hub):
    config, result = facts_of(finished)
    config["data"] |= {"name": "vtab/any", "kind": "tensorflow_datasets", "tensorflow_datasets": full_name}
    data = ModelCard(run_card(config, result).text()).data
    assert data.datasets == ([on_hub] if on_hub else None)
    assert {each.dataset_type for each in data.eval_results} == {on_hub or "tensorflow_datasets"}


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


def test_card_of_a_resnet_says_so(finished):
    config, result = facts_of(finished)
    config["model"] = {"name": "resnet", "stages": [1], "width_factor": 0.5}
    card = ModelCard(run_card(config, result).text())
    assert card.data.tags == ["keras_vit", "resnet"]
    assert "a ResNet (BiT, arXiv:1912.11370) of" in card.text
    assert ModelCard.load(finished.out / "README.md").data.tags == ["keras_vit", "vision-transformer"]


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
    assert "- Classes without an image in the test set: 1." in text


def test_code_of_the_card_runs(finished, monkeypatch, tmp_path):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(finished.out)
    code = read_card(finished.out).partition("```python\n")[2].partition("```")[0]
    image.new("RGB", (31, 27)).save(tmp_path / "photo.jpg")
    exec(code.replace("photo.jpg", str(tmp_path / "photo.jpg")), {})


def test_no_path_of_the_machine_is_in_the_card(finished):
    assert str(finished.out.parent) not in read_card(finished.out)


# Names from outside


def test_hostile_names_are_shown_and_do_nothing(finished):
    """By another reader of Markdown, with tables and HTML: the name is the text of its cell, and nothing more."""
    config, result = facts_of(finished)
    config["data"]["name"] = config["model"]["name"] = EVIL
    config["data"]["class_names"] = [EVIL, "b", "c"]
    result["per_class"][0]["name"] = EVIL
    card = ModelCard(run_card(config, result).text())
    assert card.data.library_name == "keras"
    assert all(line.isprintable() for line in card.content.split("\n"))
    tokens = MarkdownIt("commonmark").enable("table").parse(card.text)
    texts = ["".join(child.content for child in token.children) for token in tokens if token.type == "inline"]
    assert texts.count(printable(EVIL)) == 2  # its row of the classes, and the data set's of the training
    assert f"{printable(EVIL)}, {printable(EVIL)}" in texts  # the heading
    kinds = {child.type for token in tokens for child in token.children or ()} | {token.type for token in tokens}
    assert not kinds & {"html_inline", "html_block", "link_open", "image", "em_open", "strong_open"}
    assert sum(token.type == "heading_open" for token in tokens) == 9
