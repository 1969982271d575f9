"""The model card of a run: figures are the run's, the Hub's own reader takes it, and no name from outside is markup."""

import json

import pytest
from conftest import make_tiny, tiny_config
from huggingface_hub import ModelCard
from markdown_it import MarkdownIt
from photos import make_photos

import keras_vit
from keras_vit.evaluation.metrics import wilson_interval
from keras_vit.pages.cards import read_card
from keras_vit.pages.formatting import printable
from keras_vit.runs.options import FinetuneOptions
from keras_vit.runs.preparation import weights_origin
from keras_vit.runs.run_card import run_card

EVIL = "a\n---\n# b | [x](javascript:alert(1)) <script>alert('1')</script> `c` &lt; \x1b[31m \u202e \\| 雛菊 *d* _e_"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards")
    options = {"model": tiny_config(num_layers=1), "image_size": (20, 24), "batch_size": 8, "epochs": 2}
    return keras_vit.finetune(make_photos(folder / "shapes"), folder / "run", print_fn=lambda _: None, **options)


@pytest.fixture
def facts(finished):
    """What `config.json` and `result.json` hold, to be changed."""
    return [json.loads((finished.out / name).read_text()) for name in ("config.json", "result.json")]


def test_metadata_and_figures_are_those_of_the_run(finished):
    card, evaluation = ModelCard.load(finished.out / "README.md"), finished.evaluation
    data = card.data
    assert (data.library_name, data.pipeline_tag, data.license) == ("keras", "image-classification", "unknown")
    assert data.tags == ["keras_vit", "vision-transformer"]
    assert not {"datasets", "base_model"} & set(data.to_dict())  # of local photos, from random weights
    figures = {each.metric_type: each.metric_value for each in data.eval_results}
    assert figures == {
        "accuracy": evaluation.accuracy,
        "loss": evaluation.loss,
        "expected_calibration_error": evaluation.calibration_error,
    }
    found = {(each.dataset_type, each.dataset_split, each.dataset_args["images"]) for each in data.eval_results}
    assert found == {("folder", "test", evaluation.count)}
    assert f"| Accuracy | {evaluation.accuracy:.4f} |" in card.text
    low, high = wilson_interval(evaluation.accuracy, evaluation.count)
    assert f"{low:.4f} to {high:.4f}." in card.text
    assert str(finished.out.parent) not in card.content
    assert ModelCard(str(card)).data.to_dict() == data.to_dict()


@pytest.mark.parametrize(
    ("name", "full_name", "on_hub"),
    [
        ("imagenet-1k", None, None),
        ("uoft-cs/cifar10", None, None),
        ("vtab/any", "cifar10/3.0.2", "uoft-cs/cifar10"),
        ("vtab/any", "cifar10_1/v4/1.1.0", None),
        ("vtab/any", "mine/1.0.0", None),
    ],
)
def test_only_a_set_that_is_on_the_hub_is_linked(facts, name, full_name, on_hub):
    facts[0]["data"] |= {"name": name}
    facts[0]["data"] |= {"kind": "tensorflow_datasets", "tensorflow_datasets": full_name} if full_name else {}
    data = ModelCard(run_card(*facts).text()).data
    assert data.datasets == ([on_hub] if on_hub else None)
    kind = on_hub or ("tensorflow_datasets" if full_name else "folder")
    assert {(each.dataset_name, each.dataset_type) for each in data.eval_results} == {(name, kind)}


def test_base_model_is_named_with_its_licence(facts):
    facts[0]["weights_from"] = weights_origin(FinetuneOptions(model="B/16", weights="hf:google/vit-base-patch16-224"))
    card = ModelCard(run_card(*facts).text())
    assert card.data.base_model == "google/vit-base-patch16-224"
    assert "from the published weights hf&#58;google/vit-base-patch16-224." in card.text
    assert "under Apache-2.0: https://huggingface.co/google/" in card.text


@pytest.mark.parametrize(
    ("said", "papers", "licence"),
    [
        (
            {"model_type": "dinov2_with_registers", "license": "my|licence"},
            ["2304.07193", "2309.16588"],
            "my&#124;licence",
        ),
        ({"model_type": "vit_mae"}, ["2111.06377"], None),
        (
            {"architecture": "vit_base_patch16_dinov3", "pretrained_cfg": {"tag": "lvd1689m"}},
            ["2508.10104"],
            "dinov3-license",
        ),
        ({"model_type": "strange"}, None, None),
    ],
)
def test_family_and_licence_are_those_that_the_folder_tells(facts, tmp_path, said, papers, licence):
    (tmp_path / "config.json").write_text(json.dumps(said))
    origin = weights_origin(FinetuneOptions(weights=tmp_path))
    assert (origin["kind"], origin.get("papers")) == ("file", papers)
    facts[0]["weights_from"] = origin
    text = ModelCard(run_card(*facts).text()).text
    assert all(f"arXiv:{number}" in text for number in papers or ())
    assert (f"are under {licence}." if licence else "None was chosen") in text


def test_card_of_a_resnet_says_so(facts):
    facts[0]["model"] = {"name": "resnet", "stages": [1], "width_factor": 0.5}
    card = ModelCard(run_card(*facts).text())
    assert card.data.tags == ["keras_vit", "resnet"]
    assert "arXiv:1912.11370" in card.text


RECORD = keras_vit.find_weights("augreg-imagenet21k", "Ti/16")
PUBLISHED = {"name": RECORD.name, "license": RECORD.license, "url": RECORD.url, "repository": None}


@pytest.mark.parametrize(
    ("options", "kind", "origin"),
    [
        ({}, "random", {}),
        ({"model": tiny_config()}, "random", {}),
        ({"model": make_tiny}, "model", {}),
        ({"model": "ViTTi16"}, "published", PUBLISHED),
        ({"model": "B/16", "weights": "hf:me/mine@v2"}, "file", {"name": "hf:me/mine@v2", "repository": "me/mine"}),
        ({"model": "B/16", "weights": "/home/me/x.npz"}, "file", {"name": "x.npz"}),
        ({"model": "B/16", "weights": "https://me:secret@h/x.npz?key=1"}, "file", {"name": "https://h/x.npz?..."}),
    ],
)
def test_origin_of_weights_has_no_path_and_no_secret(options, kind, origin):
    options = {name: value() if callable(value) else value for name, value in options.items()}
    assert weights_origin(FinetuneOptions(**options)) == {"kind": kind} | origin


def test_limits_name_what_was_not_measured(facts):
    config, result = facts
    rows = [("a", 4, 1.0), ("b*", 4, 0.25), ("c", 0, None)]
    result["per_class"] = [dict(zip(("name", "count", "recall"), row, strict=True), precision=None) for row in rows]
    text = run_card(config, result).text()
    for words in (
        f"trained on {config['data']['sizes']['train']:,} images",
        f"off by {result['calibration_error']:.4f}",
        "b&#42; least: 25.0% of 4 images",
        "without an image in the test set: 1.",
        "groups of people",
    ):
        assert words in text
    chosen = "The best epoch was chosen on the validation set"
    assert chosen not in text
    assert chosen in run_card(config | {"measured_on": "validation"}, result).text()


def test_code_of_the_card_runs(finished, monkeypatch, tmp_path):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(finished.out)
    code = read_card(finished.out).partition("```python\n")[2].partition("```")[0]
    image.new("RGB", (31, 27)).save(tmp_path / "photo.jpg")
    exec(code.replace("photo.jpg", str(tmp_path / "photo.jpg")), {})


def test_hostile_names_are_shown_and_do_nothing(facts):
    """By another reader of Markdown, with tables and HTML: the name is the text of its cell, and nothing more."""
    config, result = facts
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
