"""The card beside a served model's versions: about the newest one, with code that runs, and in nobody's way."""

import numpy as np
import pytest
import tensorflow as tf
from conftest import make_tiny
from huggingface_hub import ModelCard
from served import LABELS

import keras_vit
from keras_vit.cards import read_card

PHOTOS = [np.random.default_rng(seed).integers(0, 256, (33, 41, 3), "uint8") for seed in range(2)]


def code_of(folder):
    return read_card(folder).partition("```python\n")[2].partition("```")[0]


def test_card_tells_the_newest_version_and_its_code_runs(tmp_path, monkeypatch, capsys):
    model, folder = make_tiny(num_layers=1), tmp_path / "trees"
    keras_vit.export(model, folder, labels=LABELS, images=PHOTOS, verify=False)
    assert "version 1, in float32" in read_card(folder)
    assert "It was not compared" in read_card(folder)
    report = keras_vit.export(model, folder, labels=LABELS, images=PHOTOS)
    card = ModelCard.load(folder / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("tensorflow", "image-classification")
    assert "version 2, in float32: images of 20 x 28 pixels in 3 channels, 7 classes." in card.text
    assert f"on 2 photos, by tensorflow {tf.__version__}. The best class is the model's on 100.0% of them" in card.text
    drift = report.drift[0]
    assert f"| {drift.output} | {drift.max_difference:.2g} |" in card.text
    assert "| 3 | douglas fir |" in card.text
    assert "metrics" not in card.data.to_dict()  # nothing was measured on labelled photos
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
