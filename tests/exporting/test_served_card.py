"""The card beside a served model's versions: about the newest one, with code that runs, and in nobody's way."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import make_tiny
from huggingface_hub import ModelCard
from served import LABELS, make_job

import keras_vit
from keras_vit.cards import read_card
from keras_vit.exporting.card import served_card
from keras_vit.exporting.report import Drift, ExportReport

PHOTOS = [np.random.default_rng(seed).integers(0, 256, (33, 41, 3), "uint8") for seed in range(2)]


def code_of(folder):
    return read_card(folder).partition("```python\n")[2].partition("```")[0]


def test_card_tells_the_version_and_what_was_compared(tmp_path):
    drift = Drift("logits", 3.4e-6, 1e-6, 0.71, 1e-5, 1e-5)
    facts = {"runtime": "tensorflow 2.21", "images": 16, "drift": (drift,), "top1_agreement": 0.9375}
    report = ExportReport(tmp_path / "trees" / "2", "saved_model", "float32", 1234, **facts)
    card = ModelCard(served_card(make_job(), report).text())
    assert (card.data.library_name, card.data.pipeline_tag) == ("tensorflow", "image-classification")
    assert "version 2, in float32: images of 20 x 28 pixels in 3 channels, 7 classes." in card.text
    assert "on 16 photos, by tensorflow 2.21. The best class is the model's on 93.8% of them" in card.text
    assert "| logits | 3.4e-06 | 1e-05 | 0.71 |" in card.text
    assert "| 3 | douglas fir |" in card.text
    assert "metrics" not in card.data.to_dict()  # nothing was measured on labelled photos


def test_code_of_the_card_runs(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "trees"
    keras_vit.export(make_tiny(num_layers=1), folder, labels=LABELS, images=PHOTOS, verify=False)
    assert "version 1, in float32" in read_card(folder)
    assert "It was not compared" in read_card(folder)
    monkeypatch.chdir(folder)
    (folder / "photo.jpg").write_bytes(tf.io.encode_jpeg(PHOTOS[0]).numpy())
    exec(code_of(folder), {})
    assert "'status'" in capsys.readouterr().out


def test_edited_card_stays_beside_a_model_of_features(tmp_path, monkeypatch, capsys):
    model, folder = make_tiny(num_layers=1, include_top=False, classes=None), tmp_path / "features"
    keras_vit.export(model, folder, images=PHOTOS, verify=False, image_size="any")
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == "image-feature-extraction"
    assert "images of any x any pixels in 3 channels, no head, so it gives features." in card.text
    monkeypatch.chdir(folder)
    exec(code_of(folder), {})
    assert "'features'" in capsys.readouterr().out
    (folder / "README.md").write_text("# Our features\n")
    with pytest.warns(UserWarning, match=r"README\.md stays as it is"):
        report = keras_vit.export(model, folder, images=PHOTOS, verify=False)
    assert report.path.name == "2"
    assert (folder / "README.md").read_text() == "# Our features\n"
