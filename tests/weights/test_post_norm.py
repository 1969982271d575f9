"""Files of blocks whose norms stand behind attention and MLP, of which no tensor tells."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.read import CheckpointError

ENCODERS = GOLDEN / "encoders"
FOLDER = ENCODERS / "timm_eva02_clip_e"


def test_eva_of_norms_behind_the_branches_is_known_by_its_sizes(tmp_path):
    """EVA-02-CLIP E/14 has the names of EVA-CLIP g/14, and another order inside its blocks."""
    names = load_file(ENCODERS / "timm_eva" / "model.safetensors")
    names |= {"blocks.0.mlp.fc2.weight": np.zeros((1792, 15360), "float32")}
    save_file(names, tmp_path / "x.safetensors")
    checkpoint = read_checkpoint(tmp_path / "x.safetensors")
    assert checkpoint.fields["norm_position"] == "post"
    assert checkpoint.remarks == ("norm_position post: as timm computes, since the file does not say",)


def test_norms_of_file_and_model_must_stand_in_the_same_places(tmp_path):
    """Either file would fit the other model; layouts of software that has no such blocks are not written."""
    top = {"include_top": False, "input_shape": (24, 24, 3)}
    behind = keras_vit.build(weights=FOLDER, **top).config
    with pytest.raises(CheckpointError, match="norm_position='pre', and 'post'"):
        keras_vit.build(behind.replace(norm_position="pre"), weights=FOLDER, **top)
    model = keras_vit.build(behind, **top)
    said = Path(shutil.copytree(FOLDER, tmp_path / "said"))
    config = json.loads((said / "config.json").read_text())
    config["model_args"]["use_post_norm"] = False
    (said / "config.json").write_text(json.dumps(config))
    for file in (shutil.copy(FOLDER / "model.safetensors", tmp_path), said):
        with pytest.raises(CheckpointError, match="norm_position='post', and 'pre'"):
            keras_vit.load_checkpoint(model, file)
    with pytest.warns(UserWarning, match="timm computes norm_position pre, this model post"):
        noted = keras_vit.save_checkpoint(model, tmp_path / "noted.safetensors", "timm_eva")
    assert read_checkpoint(noted).fields["norm_position"] == "post"
    other = keras_vit.build(behind.replace(qkv_bias="all"), **top)
    for layout in ("official", "huggingface"):
        with pytest.raises(CheckpointError, match="takes files of this layout as norm_position='pre'"):
            keras_vit.save_checkpoint(other, tmp_path / f"x{LAYOUTS[layout].suffix}", layout)
