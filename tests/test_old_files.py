"""Files that earlier versions wrote load with the outputs that they had: models, runs, checkpoints and a server's.

`old_files/version_0_4_0.zip` is of 0.4.0, `commit_a8209dd.zip` of the last commit before the config became parts. Each
holds `answers.npz`: images `x`, and for every file the outputs that the model gave when it was written.
"""

import dataclasses
import json
import shutil
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import numpy

import keras_vit
from keras_vit.runs import preparation
from keras_vit.runs.load import read_facts

OLD = Path(__file__).parent / "old_files"
SAME = {"rtol": 1e-5, "atol": 1e-6}  # another order of additions, as another processor has it


@pytest.fixture(scope="module", params=["version_0_4_0", "commit_a8209dd"])
def old(request, tmp_path_factory):
    """The folder with the files of one version, and their answers."""
    folder = tmp_path_factory.mktemp(request.param)
    with zipfile.ZipFile(OLD / f"{request.param}.zip") as archive:
        archive.extractall(folder)
    return folder, dict(np.load(folder / "answers.npz"))


def test_every_model_answers_as_before_and_is_saved_again(old, tmp_path):
    folder, answers = old
    files = sorted(folder.glob("*.keras"))
    assert len(files) >= 8
    for file in files:
        model = keras.saving.load_model(file, compile=False)
        np.testing.assert_allclose(numpy(model(answers["x"])), answers[file.stem], **SAME, err_msg=file.name)
        model.save(tmp_path / "again.keras")
        again = keras.saving.load_model(tmp_path / "again.keras")
        assert again.config == model.config
        np.testing.assert_array_equal(numpy(again(answers["x"])), numpy(model(answers["x"])))


def test_checkpoints_answer_as_before(old):
    folder, answers = old
    names = [*folder.glob("*.npz"), *folder.glob("*.safetensors"), *folder.glob("*_folder")]
    paths = [path for path in names if path.stem != "answers"]
    assert len(paths) >= 3
    for path in paths:
        config = keras_vit.ViTConfig(patch_size=4, hidden_size=12, num_layers=2, num_heads=3, mlp_dim=20)
        model = keras_vit.build(config_of(path, config), weights=path)
        np.testing.assert_allclose(numpy(model(answers["x"])), answers[path.stem], **SAME, err_msg=path.name)


def config_of(path, config):
    """The config of a file's model: fields of a config that is the caller's own are the caller's to say."""
    said = {"big_vision": {"pooling": "map"}, "huggingface_deit_folder": {"distilled": True}}.get(path.stem, {})
    if path.name.endswith("_folder"):
        said = said | {"activation": "gelu"}
    return dataclasses.replace(config, **said)


def test_run_answers_and_tells_its_data_as_before(old):
    folder, answers = old
    model = keras.saving.load_model(folder / "run" / "best.keras")
    facts = read_facts(folder / "run" / "config.json")
    assert facts.class_names == ("class0", "class1", "class2")
    assert facts.seed == 3
    if "run" in answers:
        np.testing.assert_allclose(numpy(model(answers["x"][:, :16, :16])), answers["run"], **SAME)


def test_run_that_was_stopped_goes_on_under_the_versions_that_it_began_with(old, tmp_path, monkeypatch):
    folder, _ = old
    if not (folder / "stopped_run").is_dir():
        pytest.skip("0.4.0 had no checkpoints of a run")
    shutil.copytree(folder / "photos", tmp_path / "photos")
    shutil.copytree(folder / "stopped_run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    told = json.loads((tmp_path / "run" / "config.json").read_text())
    config = keras_vit.ViTConfig(patch_size=4, hidden_size=12, num_layers=2, num_heads=3, mlp_dim=20)
    said = []
    options = {"image_size": 16, "batch_size": 6, "epochs": 2, "checkpoint_every": 2, "seed": 3, "resume": "must"}
    with pytest.raises(ValueError, match=r"versions.keras_vit: 0\.4\.0 before"):
        keras_vit.finetune("photos", "run", model=config, print_fn=said.append, **options)
    monkeypatch.setattr(preparation, "versions", lambda: told["versions"])
    keras_vit.finetune("photos", "run", model=config, print_fn=said.append, **options)
    ours, theirs = (keras.saving.load_model(place / "best.keras") for place in (tmp_path / "run", folder / "run"))
    for one, other in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)  # the finished run is of the same seed


def test_saved_model_answers_as_before(old):
    tf = pytest.importorskip("tensorflow")
    folder, answers = old
    if "served" not in answers:
        pytest.skip("not among the files of this version")
    served = tf.saved_model.load(str(folder / "served" / "1"))
    pixels = np.round((answers["x"] + 1) * 127.5).astype("uint8")
    logits = served.signatures["predict_pixels"](pixels=tf.constant(pixels))["logits"].numpy()
    np.testing.assert_allclose(logits, answers["served"], atol=4e-3)  # half a grey level of rounding gives 6e-4
