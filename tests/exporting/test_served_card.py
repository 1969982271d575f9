"""The card beside a served model's versions: about the newest one, with code that runs, and in nobody's way."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import make_tiny
from huggingface_hub import ModelCard
from served import LABELS, make_job

import keras_vit
from keras_vit.exporting.report import Drift, ExportReport
from keras_vit.exporting.serving_files import served_card
from keras_vit.pages.cards import Card

PHOTOS = [np.random.default_rng(seed).integers(0, 256, (33, 41, 3), "uint8") for seed in range(2)]


def test_card_tells_the_version_and_what_was_compared(tmp_path):
    drift = Drift("logits", 3.4e-6, 1e-6, 0.71, 1e-5, 1e-5)
    facts = {"runtime": "tensorflow 2.21", "images": 16, "drift": (drift,), "top1_agreement": 0.9375}
    report = ExportReport(tmp_path / "trees" / "2", "saved_model", "float32", 1234, **facts)
    card = ModelCard(served_card(make_job(), report).text())
    assert (card.data.library_name, card.data.pipeline_tag) == ("tensorflow", "image-classification")
    assert "version 2, in float32: images of 20 x 28 pixels in 3 channels, 7 classes." in card.text
    assert "on 16 photos, by tensorflow 2.21. The best class is the model's on 93.8% of them" in card.text
    assert "| logits | 3.4e-06 | 1e-05 | 1e-06 | 0.71 |" in card.text
    assert "| 3 | douglas fir |" in card.text
    assert "metrics" not in card.data.to_dict()  # nothing was measured on labelled photos


def test_card_tells_what_the_run_knows(tmp_path):
    sections = {
        "Model": "keras_vit trained it.",
        "Use": "Not this.",
        "Results": "| Accuracy | 0.9 |",
        "Training": "Epochs",
    }
    metadata = {"metrics": ["accuracy"], "datasets": ["mnist"]}
    of_run = Card("run", "keras", sections, limits="- Few images.", licence="Under mit.", metadata=metadata)
    report = ExportReport(tmp_path / "trees" / "2", "saved_model", "float32", 1234)
    card = ModelCard(served_card(make_job(), report, of_run).text())
    for told in ("version 2", "keras_vit trained it.", "| Accuracy | 0.9 |", "Epochs", "- Few images.", "Under mit."):
        assert told in card.text
    assert "Not this." not in card.text
    assert "douglas fir" in card.text
    assert card.data.library_name == "tensorflow"
    assert card.data.datasets == ["mnist"]


@pytest.mark.parametrize(
    ("model", "options", "answer", "shown"),
    [
        ({}, {"labels": LABELS}, "status", "images of 20 x 28 pixels in 3 channels, 7 classes"),
        (
            {"include_top": False, "classes": None},
            {"options": {"image_size": "any"}},
            "features",
            "images of any x any pixels",
        ),
    ],
)
def test_code_of_the_card_runs_and_an_edited_card_stays(tmp_path, monkeypatch, capsys, model, options, answer, shown):
    model, folder = make_tiny(num_layers=1, **model), tmp_path / "model"
    keras_vit.export(model, folder, images=PHOTOS, verify=False, **options)
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == ("image-classification" if "labels" in options else "image-feature-extraction")
    assert shown in card.text
    assert "It was not compared" in card.text
    monkeypatch.chdir(folder)
    (folder / "photo.jpg").write_bytes(tf.io.encode_jpeg(PHOTOS[0]).numpy())
    exec(card.text.partition("```python\n")[2].partition("```")[0], {})
    assert f"'{answer}'" in capsys.readouterr().out
    if "labels" not in options:
        return
    (folder / "README.md").write_text("# Ours\n")
    with pytest.warns(UserWarning, match=r"README\.md stays as it is"):
        report = keras_vit.export(model, folder, images=PHOTOS, verify=False)
    assert report.path.name == "2"
    assert (folder / "README.md").read_text() == "# Ours\n"
