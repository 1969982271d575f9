"""Files that are not what the config beside them says: roles that are missing, and tensors of another family."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN
from safetensors.numpy import load_file, save_file
from weights.role_sweep import silent_changes

import keras_vit
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.families import LAYOUTS, MODEL_TYPES
from keras_vit.weights.metadata import timm
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import all_records

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
        # Names by which a layout is known, without which the file looks like one of another layout or of none.
        ("huggingface_clip", "pre_layrnorm.weight", "known here: huggingface_clip, huggingface_clip_classifier"),
        ("huggingface_dinov2", "cls_token", "layout huggingface_dinov2.*in the layout huggingface,"),
        ("timm_mae", "patch_embed.proj.weight", "must be whole(.|\n)*, timm"),
        ("timm_pe_core", "attn_pool.latent", "layout timm_pe_core.*in the layout timm"),
        ("open_clip_gap", "class_embedding", "must be whole.*open_clip_gap"),
    ],
)
def test_role_that_is_missing_in_every_block_is_seen_by_what_the_config_says(tmp_path, folder, role, said):
    """By itself the rest looks like a model without it."""
    (file,) = Path(shutil.copytree(ENCODERS / folder, tmp_path / folder)).glob("*.safetensors")
    save_file({name: array for name, array in load_file(file).items() if not name.endswith(role)}, file)
    with pytest.raises(CheckpointError, match=said) as error:
        keras_vit.build(weights=file.parent, include_top=False)
    assert "official, linen" not in str(error.value)  # of all layouts


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"qk_norm": True}, "none among the arrays that are read; 2 others are there, as blocks.0.attn.k_norm.weight"),
        ({"act_layer": "silu"}, "gated_mlp True, and False"),
    ],
)
def test_argument_of_timm_that_is_not_computed_here_is_the_cause(tmp_path, argument, said):
    """And not that the file lacks what it has."""
    config = json.loads((ENCODERS / "timm_mae" / "config.json").read_text())
    folder = claiming(tmp_path, "timm_mae", model_args=config["model_args"] | argument)
    norms = (
        {f"blocks.0.attn.{part}_norm.weight": np.ones(8, "float32") for part in "qk"} if "qk_norm" in argument else {}
    )
    save_file(load_file(folder / "model.safetensors") | norms, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(folder)


KINDS = ("encoders", "classifiers", "towers")
SWEPT = [f"{kind}/{path.name}" for kind in KINDS for path in sorted((GOLDEN / kind).iterdir())]
NO_FAMILY = ("encoders/huggingface_tipsv2_gated", "encoders/timm_qwen3")  # which a file alone does not say


@pytest.mark.parametrize("folder", SWEPT)
def test_no_role_can_be_missing_in_silence(tmp_path, folder):
    """Each from all blocks, with the config; the rows of tables and the tokens too."""
    assert silent_changes(tmp_path, folder, has_config=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("has_config", [True, False])
@pytest.mark.parametrize("folder", SWEPT)
def test_nothing_can_be_missing_in_silence(tmp_path, folder, has_config):
    if has_config or folder not in NO_FAMILY:
        assert silent_changes(tmp_path, folder, has_config, everything=True) == []


def test_records_have_the_parts_of_their_layout():
    """Each published encoder's config against what files of its layout have."""
    for record in all_records():
        config, parts = record.config, LAYOUTS[record.layout].parts if record.layout else {}
        for part, values in parts.items():
            value = config.has_class_token if part == "class_token" else getattr(config, part, None)
            assert not values or value is None or value in values, (record.name, part, value)


def test_head_of_fewer_classes_than_the_config_says_is_refused(tmp_path):
    file = Path(shutil.copytree(ENCODERS / "timm_clip", tmp_path / "clip")) / "model.safetensors"
    arrays = load_file(file)
    cut = {name: arrays[name][:2].copy() for name in ("head.weight", "head.bias")}
    save_file(arrays | cut, file)
    with pytest.raises(CheckpointError, match="classes 5, and 2"):
        keras_vit.build(weights=file.parent)


def claiming(tmp_path, folder, **said):
    """A copy of a folder whose config.json says other things; `None` takes a word away."""
    copy = tmp_path / f"{folder}{len(list(tmp_path.iterdir()))}"
    shutil.copytree(ENCODERS / folder, copy)
    config = json.loads((copy / "config.json").read_text()) | said
    (copy / "config.json").write_text(json.dumps({word: value for word, value in config.items() if value is not None}))
    return copy


@pytest.mark.parametrize(
    ("folder", "words", "said"),
    [
        ("huggingface_dinov3", {"use_gated_mlp": None, "hidden_act": "gelu"}, "gated_mlp False, and True"),
        (
            "huggingface_beit",
            {"model_type": "data2vec-vision", "architectures": ["Data2VecVisionModel"], "use_mean_pooling": False},
            "final_norm tokens, and pooled",
        ),
    ],
)
def test_word_that_config_leaves_out_or_denies_is_held_against_the_tensors(tmp_path, folder, words, said):
    """transformers takes no for a word that is not there, and leaves the tensors out."""
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(claiming(tmp_path, folder, **words))


def test_role_that_timms_test_vit_lacks_is_seen_by_its_name(tmp_path):
    """No record has its sizes, and the name says its parts."""
    folder = claiming(tmp_path, "timm_mae", architecture="test_vit")
    assert read_checkpoint(folder).is_known
    arrays = load_file(folder / "model.safetensors")
    dropped = {name: array for name, array in arrays.items() if not name.endswith("attn.proj.bias")}
    save_file(dropped, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="proj_bias True, and False"):
        read_checkpoint(folder)


TIMM = {  # folder: architectures of other families, or of none that is computed here
    "timm_dinov3": ("eva02_large_patch14_224", "vit_base_patch16_224", "vit_pe_spatial_base_patch16_512"),
    "timm_eva02_clip": ("vit_base_patch16_224", "vit_giant_patch16_lingbot", "beit_base_patch16_224"),
    "timm_mae": ("qwen3_vit_88m_enc", "deepseek_vit_412m_enc"),
    "timm_deepseek": ("qwen3_vit_88m_enc", "deepseek_vit_412m_align", "qwen3_vit_88m_merge.x", "gemma4_vit_x"),
    "timm_dinov2": ("vit_giant_patch16_lingbot", "vit_small_patch16_rope_224", "vit_giant_patch16_gap_224"),
    "timm_clip": ("vit_pe_core_base_patch16_224", "swin_tiny_patch4_window7_224", "vit_relpos_base_patch16_224"),
    "timm_beit": ("vit_base_patch16_224", "naflexvit_base_patch16_siglip", "vit_small_patch16_18x2_224", "resnet50"),
}
TRANSFORMERS = {
    "huggingface_dinov2": ("clip_vision_model", "dinov3_vit", "dinov2_with_registers", "swin", "dinov3_convnext"),
    "huggingface_siglip": ("vit", "ijepa", "vit_msn", "qwen3_vl_vision"),
    "huggingface_clip": ("mlcd_vision_model",),
    "huggingface_mlcd": ("clip_vision_model",),
    "huggingface_beit": ("dinov2", "radio"),
}


@pytest.mark.parametrize(
    ("word", "cases", "unknown"), [("architecture", TIMM, "vit_base_patch16_foo"), ("model_type", TRANSFORMERS, "foo")]
)
def test_family_that_config_json_names_must_be_that_of_the_tensors(tmp_path, word, cases, unknown):
    """By the rules of another family they would give other numbers; an unknown one is read by its tensors."""
    for folder, others in cases.items():
        right = read_checkpoint(ENCODERS / folder)
        for other in others:
            with pytest.raises(CheckpointError, match=other):
                read_checkpoint(claiming(tmp_path, folder, **{word: other}))
        for name in (unknown, None):
            again = read_checkpoint(claiming(tmp_path, folder, **{word: name}))
            assert (again.layout, again.is_known) == (right.layout, False)


def test_closed_architecture_is_refused_by_the_part_that_is_missing():
    """Each name of the census that no switch of ours computes."""
    parts = {
        "relative positions by an MLP": "relative positions of another kind",
        "a convolutional stem": "another stem",
        "attention in windows": "stages with windows",
        "differential attention": "differential attention",
        "parallel halves of a block": "attention and MLP side by side",
    }
    lines = list(csv.DictReader((GOLDEN.parent / "census.csv").read_text().splitlines()))
    closed = [(name, line["lacks"]) for line in lines if line["lacks"] for name in line["names"].split()]
    assert len(closed) == 21
    for name, lacks in closed:
        words = "|".join(parts[part] for part in lacks.split("; ") if part in parts)
        with pytest.raises(CheckpointError, match=f"(?s){words}.*{name}"):
            timm.timm_layouts(name, {}, "x")
    with pytest.raises(CheckpointError, match="batches of patches with grids"):
        timm.timm_layouts("naflexvit_base_patch16_gap", {}, "x")


def test_each_layout_of_a_family_is_one_of_ours():
    rows = [row for _, row in timm._ARCHITECTURES.values()] + [kind.layouts for kind in MODEL_TYPES.values()]
    assert {name for row in rows for name in row} <= set(LAYOUTS)


def test_what_no_source_says_of_a_file_alone_is_said(tmp_path):
    file = shutil.copy(ENCODERS / "timm_clip" / "model.safetensors", tmp_path)
    alone = keras_vit.build(weights=file, num_heads=3, include_top=False, activation="quick_gelu")
    assert "layer_norm_epsilon 1e-06: as timm computes, since the file does not say" in alone.load_report
    assert alone.provenance["layer_norm_epsilon"] == ("1e-06", "timm, by default")
    strange = keras_vit.build(weights=claiming(tmp_path, "timm_clip", architecture="mine"), include_top=False)
    assert strange.load_report[:2] == (
        "architecture 'mine' is not known here: took the layout timm by the tensors",
        "activation gelu, layer_norm_epsilon 1e-06: as timm computes, since the file does not say",
    )


def test_rotary_arguments_under_an_unknown_architecture_are_taken(tmp_path):
    """What they leave open is said."""
    said = {"ref_feat_shape": [7, 7], "rope_temperature": 50.0}
    config = json.loads((ENCODERS / "timm_eva02_clip" / "config.json").read_text())
    folder = claiming(tmp_path, "timm_eva02_clip", architecture="mine", model_args=config["model_args"] | said)
    fields, remarks = read_checkpoint(folder).fields, " ".join(read_checkpoint(folder).remarks)
    assert (fields["rotary"], fields["rotary_reference"], fields["rotary_theta"]) == ("axial", 7, 50.0)
    assert "rotary_layout interleaved" in remarks
    assert "rotary_reference" not in remarks
