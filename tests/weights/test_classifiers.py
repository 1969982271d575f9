"""transformers' classes for classification, whose heads read something else than the encoder's own pooled vector.

Expected arrays are what transformers computes in float64 of small random folders that it wrote.
"""

import json
import shutil

import numpy as np
import pytest
from conftest import GOLDEN, numpy
from safetensors.numpy import load_file

import keras_vit
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.read import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing|prepares photos)")  # images are normal
CLASSIFIERS = GOLDEN / "classifiers"
FOLDERS = sorted(path.name for path in CLASSIFIERS.iterdir())
# What the head does not read.
LEFT = {
    "siglip": ("set aside pooling (1, 1, 24)",),
    "clip": ("set aside encoder_norm (24,)",),
}
READ = {"dinov2": 48, "dinov2_registers": 48}  # channels, elsewhere 24


def opened(folder, size="", **arguments):
    with np.load(CLASSIFIERS / folder / "expected.npz") as arrays:
        x = arrays[f"images{size}"]
        model = keras_vit.build(weights=CLASSIFIERS / folder, input_shape=x.shape[1:], **arguments)
        return model, numpy(model(x)), dict(arrays)


@pytest.mark.parametrize("folder", FOLDERS)
def test_logits_are_those_of_transformers_and_no_head_vanishes_in_silence(folder):
    for size in ("", "_other"):
        model, logits, expected = opened(folder, size)
        np.testing.assert_allclose(logits, expected[f"logits{size}"], atol=1e-5)
    assert model.load_report[: len(LEFT.get(folder, ()))] == LEFT.get(folder, ())
    set_aside = f"set aside head ({READ.get(folder, 24)}, 5)"
    for end, pooling in (("tokens", "none"), ("pooled", None)):
        model, found, expected = opened(folder, include_top=False, pooling=pooling)
        assert set_aside in model.load_report
        if end in expected:
            np.testing.assert_allclose(found, expected[end], atol=1e-5)
    model, _, _ = opened(folder, classes=3)
    assert {"new head", set_aside} <= {*model.load_report}
    assert model.get_layer("head").kernel.shape == (READ.get(folder, 24), 3)


@pytest.mark.parametrize("folder", FOLDERS)
def test_classifier_is_written_as_it_was_read(tmp_path, folder):
    model, logits, expected = opened(folder)
    layout = read_checkpoint(CLASSIFIERS / folder).layout
    place = tmp_path / ("folder" if layout == "huggingface" else "x.safetensors")
    path = keras_vit.save_checkpoint(model, place, layout)
    theirs, ours = load_file(CLASSIFIERS / folder / "model.safetensors"), load_file(path)
    unread = {name for name in theirs if name.endswith("mask_token") or name.startswith("vision_model.head.")}
    unread |= {"vision_model.post_layernorm.weight", "vision_model.post_layernorm.bias"} if folder == "clip" else set()
    assert ours.keys() - unread == theirs.keys() - unread
    for name in theirs.keys() - unread:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
    again = keras_vit.build(weights=path, num_heads=3)
    np.testing.assert_array_equal(numpy(again(expected["images"])), logits)
    if layout == "huggingface":
        known = json.loads((CLASSIFIERS / folder / "config.json").read_text())
        said = json.loads((path.parent / "config.json").read_text())
        assert {name: said[name] for name in said if name in known and name not in ("id2label", "label2id")} == {
            name: known[name] for name in said if name in known and name not in ("id2label", "label2id")
        }
    fresh = keras_vit.build(model.config, classes=5, input_shape=(24, 24, 3))
    keras_vit.load_checkpoint(fresh, CLASSIFIERS / folder)
    np.testing.assert_allclose(numpy(fresh(expected["images"])), expected["logits"], atol=1e-5)


@pytest.mark.parametrize("folder", FOLDERS)
def test_number_of_labels_that_the_head_has_not_is_refused(tmp_path, folder):
    copy = shutil.copytree(CLASSIFIERS / folder, tmp_path / folder)
    config = json.loads((copy / "config.json").read_text()) | {"num_labels": 7}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"classes 7, and 5 in the file, .*model\.safetensors"):
        read_checkpoint(copy)


def test_classifier_that_pools_otherwise_than_the_layouts_is_refused(tmp_path):
    model, _, _ = opened("dinov2", pooling="token", classes=3)
    for layout in ("huggingface_dinov2", "huggingface_clip_classifier"):
        with pytest.raises(CheckpointError, match=r"must pool as|no place"):
            keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", layout)
    model, _, _ = opened("dinov2")
    for layout in ("timm", "dinov2"):
        with pytest.raises(CheckpointError, match=r"no class token with a mean|no place"):
            keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", layout)
    with pytest.warns(UserWarning, match="set aside pooling(?s:.*)does not read"):
        keras_vit.convert_checkpoint(CLASSIFIERS / "siglip", tmp_path / "x.safetensors", "huggingface_siglip")
