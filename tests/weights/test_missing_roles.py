"""Files that lack a role of tensors everywhere, or classes: seen by what the config beside them says."""

import shutil
from pathlib import Path

import pytest
from conftest import GOLDEN
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.weights.reader import CheckpointError

ENCODERS = GOLDEN / "encoders"


@pytest.mark.parametrize(
    ("folder", "role", "said"),
    [
        ("timm_dinov2", "attn.proj.bias", "proj_bias True, and False"),
        ("timm_dinov2", "attn.qkv.bias", "qkv_bias all, and none"),
        ("timm_dinov2", "ls2.gamma", "layer_scale both, and attention"),
        ("timm_dinov2", "patch_embed.proj.bias", "patch_bias True, and False"),
        ("timm_dinov2_registers", "cls_token", "class_token True, and False"),
        ("timm_dinov2", "norm.weight", "final_norm tokens, and none"),
        ("huggingface_dinov2", "layer_scale2.lambda1", "layer_scale both, and attention"),
        ("huggingface_dinov3", "o_proj.bias", "proj_bias True, and False"),
        ("huggingface_clip", "self_attn.out_proj.bias", "proj_bias True, and False"),
        ("huggingface_siglip", "patch_embedding.bias", "patch_bias True, and False"),
    ],
)
def test_role_that_is_missing_in_every_block_is_seen_by_what_the_config_says(tmp_path, folder, role, said):
    """By itself the rest looks like a model without it."""
    file = Path(shutil.copytree(ENCODERS / folder, tmp_path / folder)) / "model.safetensors"
    save_file({name: array for name, array in load_file(file).items() if not name.endswith(role)}, file)
    with pytest.raises(CheckpointError, match=said):
        keras_vit.build(weights=file.parent, include_top=False)


def test_head_of_fewer_classes_than_the_config_says_is_refused(tmp_path):
    file = Path(shutil.copytree(ENCODERS / "timm_clip", tmp_path / "clip")) / "model.safetensors"
    arrays = load_file(file)
    cut = {name: arrays[name][:2].copy() for name in ("head.weight", "head.bias")}
    save_file(arrays | cut, file)
    with pytest.raises(CheckpointError, match="classes 5, and 2"):
        keras_vit.build(weights=file.parent)
