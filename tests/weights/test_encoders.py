"""Encoders of today, each by a small random folder that its own software wrote: built without a config.

Expected arrays are of float64: tokens as `forward_features` or `last_hidden_state` gives them, what is pooled, and
logits or the projected embedding, at the size of the position table and at another one.
"""

import json
import re

import numpy as np
import pytest
from conftest import numpy
from safetensors.numpy import load_file, save_file
from weights.encoder_folders import ENCODERS, ENDS, FOLDERS, HEADS, built, changed, difference, expected
from weights.unstored_fields import silent

import keras_vit
from keras_vit.weights.checkpoint import file_in, read_checkpoint
from keras_vit.weights.families import LAYOUTS
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.read.sharded import scan_any

TOWERS = ("timm_qwen3", "timm_deepseek")
MERGES = ("merger.", "aligner.")  # patches, behind the tokens
pytestmark = pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing):UserWarning")  # images are normal


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_alone_gives_the_numbers_of_its_software(folder):
    for end in ENDS:
        for size in ("", "_other"):
            if end + size in expected(folder):
                model = built(folder, end, size)
                assert difference(folder, model, end, size) < 1e-5, (end, size)
                assert silent(model.config) == set(model.provenance)


@pytest.mark.filterwarnings("ignore:.*unless set otherwise:UserWarning")  # a file alone tells no activation
@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_to_model_and_back_is_bitwise(tmp_path, folder):
    """What stands in a file beside the model is written as zeros or not at all, but for DINOv2's mask token.

    DeiT III's table has no row for the class token, and gets one of zeros.
    """
    sides = {"input_shape": (40, 40, 3)} if folder == "huggingface_radio" else {}  # those of the whole table
    ends = HEADS.get(folder, {}) | ({} if "logits" in expected(folder) else {"include_top": False})
    file = file_in(ENCODERS / folder)
    model = keras_vit.build(weights=file.parent, **sides, **ends)
    if folder.startswith("open_clip"):  # with a text tower, which is not written
        layout, of_tower = read_checkpoint(file).layout, ("visual.trunk.", "visual.")
        written = load_file(keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", layout))
        for name, array in load_file(file).items():
            if name.startswith(of_tower):
                short = name.removeprefix(of_tower[0])
                np.testing.assert_array_equal(array, written.pop(short), err_msg=name)
        assert not written
        return
    arrays = load_file(file).items()
    aside = any(name.startswith(MERGES) or (name.endswith("mask_token") and array.any()) for name, array in arrays)
    reads = "only the language model's adapter reads" if folder in TOWERS else "no forward pass reads"
    guessed = ["since nothing says its activation"] * (folder == "timm_uni2")  # whose MLP is passed in Python
    assert [line.rpartition(", ")[2] for line in model.load_report] == [f"which {reads}"] * aside + guessed
    keras_vit.build(model.config, weights=file.parent, **sides, **ends, strict=True)
    layout = read_checkpoint(ENCODERS / folder).layout
    path = keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", layout)
    theirs, ours = (  # whole files of two towers have the prefix, those of a vision class alone have not
        {name.removeprefix("vision_model."): array for name, array in load_file(file).items()} for file in (file, path)
    )
    beside = {name for name in theirs if name.endswith(("mask_token", "position_ids")) or name.startswith(MERGES)}
    assert theirs.keys() - beside == ours.keys() - beside
    if folder == "timm_deit3":
        theirs["pos_embed"] = np.pad(theirs["pos_embed"], [(0, 0), (1, 0), (0, 0)])
    for name in theirs.keys() - beside:
        np.testing.assert_array_equal(theirs[name], ours[name], err_msg=name)
    again = keras_vit.build(model.config, weights=tmp_path / "x.safetensors", include_top="logits" in expected(folder))
    kept = [name for name, array in ours.items() if name.endswith("mask_token") and array.any()]
    for name in kept:
        np.testing.assert_array_equal(theirs[name], ours[name], err_msg=name)
    assert again.load_report == (model.load_report if kept else ())


@pytest.mark.parametrize(
    ("folder", "wrong"),
    [
        ("timm_clip", {"activation": "gelu"}),
        ("timm_clip", {"layer_norm_epsilon": 1e-4}),
        ("huggingface_siglip", {"activation": "gelu"}),
        ("timm_dinov2", {"activation": "quick_gelu"}),
        ("timm_eva02_packed", {"rotary_reference": 16}),
        ("timm_pe_lang", {"rotary_axes": "yx"}),
        ("timm_pe_core", {"rotary_offset": 0.5}),
        ("timm_pe_core", {"map_heads": 3}),
        ("timm_pe_core", {"pool_prefix_tokens": False}),
        ("timm_dinov3", {"rotary_theta": 50.0}),
        ("timm_rope", {"rotary_coordinates": "unit"}),
        ("timm_rope_mixed", {"rotary_axes": "yx"}),
        ("timm_qwen3", {"activation": "gelu"}),
        *((name, {"rotary_axes": "xy"}) for name in TOWERS),
        *((name, {"rotary_layout": "interleaved"}) for name in TOWERS),
        *((name, {"rotary_coordinates": "unit"}) for name in TOWERS),
        ("timm_deepseek", {"layer_norm_epsilon": 1e-3}),
        ("huggingface_mlcd", {"rotary_axes": "xy"}),
        ("huggingface_mlcd", {"rotary_layout": "interleaved"}),
    ],
)
def test_what_no_tensor_tells_changes_the_numbers(folder, wrong):
    """So the arrays would see a wrong default."""
    end = "pooled" if wrong.keys() & {"map_heads", "pool_prefix_tokens"} else "tokens"
    config = built(folder, end).config.replace(**wrong)
    model = keras_vit.build(config, weights=ENCODERS / folder, input_shape=(24, 24, 3), include_top=False)
    assert difference(folder, model, end) > 1e-5
    assert any(next(iter(wrong)) in line for line in model.load_report)


def test_activation_of_a_gated_mlp_is_said_to_be_unused():
    model = built("timm_uni2", activation="gelu_tanh")
    assert "activation gelu_tanh is not used, since an MLP with a gate computes SiLU" in model.load_report
    assert difference("timm_uni2", model) < 1e-5


@pytest.mark.filterwarnings("ignore:.*unless set otherwise:UserWarning")  # of coordinates
@pytest.mark.parametrize("folder", ["timm_pe_core", "timm_pe_lang"])
def test_authors_perception_encoder_resizes_and_turns_by_its_own_rules(tmp_path, folder):
    """Expected: timm's class with the table resized by torch as the authors do it, and unscaled coordinates."""
    layout = folder.removeprefix("timm_").removesuffix("_lang")
    model = built(folder)
    path = keras_vit.save_checkpoint(built(folder, "pooled"), tmp_path / "x.safetensors", layout)
    save_file(load_file(path), path)  # without our note
    for end in ("tokens", "pooled"):
        heads = {"num_heads": 3, **({"map_heads": 4} if end == "pooled" and "core" in folder else {})}
        model = keras_vit.build(weights=path, input_shape=(16, 32, 3), **heads, **ENDS[end])
        wanted = expected(folder)[f"{end}_authors"]
        assert np.abs(numpy(model(expected(folder)["images_other"])) - wanted).max() < 1e-5
    assert any("resized" in line and "bilinear" in line for line in model.load_report)
    assert any("map_heads 8" in line or "core" not in folder for line in model.load_report)


@pytest.mark.parametrize(
    "folder",
    [
        *("timm_eva02_clip", "timm_eva02_packed", "timm_pe_core", "timm_pe_lang", "timm_eva02_clip_e", "timm_rpn"),
        *("timm_clip", *TOWERS),
    ],
)
def test_folder_for_timm_says_all_that_its_class_computes(tmp_path, folder):
    end = next(end for end in ("logits", "pooled", "tokens") if end in expected(folder))
    model, layout = built(folder, end), read_checkpoint(ENCODERS / folder).layout
    path = keras_vit.save_checkpoint(model, tmp_path / "for_timm", layout)
    save_file(load_file(path), path)  # without our note
    again = keras_vit.build(weights=tmp_path / "for_timm", input_shape=(16, 32, 3), **ENDS[end])
    assert difference(folder, again, end, "_other") < 1e-5
    assert again.config == built(folder, end).config


@pytest.mark.filterwarnings("ignore:.*unless set otherwise:UserWarning")  # of coordinates
@pytest.mark.parametrize(("folder", "name"), [("timm_eva02_packed", "mlp.w12"), ("timm_eva02_clip", "mlp.w1")])
def test_authors_eva02_is_that_of_timm_under_other_names(tmp_path, folder, name):
    model = built(folder, "pooled")
    path = keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", "eva02")
    names = load_file(path)
    assert {f"blocks.1.{name}.weight", "blocks.1.attn.q_bias", "blocks.1.mlp.w3.bias"} <= names.keys()
    assert (
        ("blocks.0.attn.inner_attn_ln.weight" in names) == ("blocks.0.mlp.ffn_ln.bias" in names) == ("clip" in folder)
    )
    names = {f"visual.{name}": array for name, array in names.items()}
    save_file(
        names | {"visual.rope.freqs_cos": np.zeros((3, 2), "float32"), "logit_scale": np.zeros(1, "float32")}, path
    )
    fields = {"rotary_reference": model.config.rotary_reference}
    again = keras_vit.build(weights=path, num_heads=3, input_shape=(24, 24, 3), **fields, **ENDS["pooled"])
    np.testing.assert_array_equal(*(numpy(each(expected(folder)["images"])) for each in (again, model)))
    assert read_checkpoint(path).resize_method == "bicubic"


@pytest.mark.parametrize(
    ("folder", "layout", "name", "method"),
    [
        ("huggingface_internvit", "internvit", "encoder.layers.1.ls2", "bicubic"),
        ("huggingface_internvit_6b", "internvit", "encoder.layers.1.attn.q_norm.weight", "bicubic"),
        ("huggingface_tipsv2", "tips", "blocks.1.mlp.c_proj.bias", "bilinear_antialias"),
        ("huggingface_tipsv2_gated", "tips", "blocks.1.mlp.w12.bias", "bilinear_antialias"),
    ],
)
def test_authors_files_have_the_numbers_of_transformers(tmp_path, folder, layout, name, method):
    theirs = built(folder)
    path = keras_vit.save_checkpoint(theirs, tmp_path / f"x{LAYOUTS[layout].suffix}", layout)
    again = keras_vit.build(weights=path, **ENDS["tokens"])
    assert name in scan_any(path).entries
    assert (read_checkpoint(path).layout, read_checkpoint(path).resize_method) == (layout, method)
    x = expected(folder)["images"]
    np.testing.assert_array_equal(numpy(again(x)), numpy(theirs(x)))
    assert again.preprocessing.mean == theirs.preprocessing.mean


def test_table_that_is_cut_is_so_in_a_graph_of_any_size(tmp_path):
    """And the model normalises pixels by itself; layouts that would lose that are refused, as is one other channel."""
    model = keras_vit.build(weights=ENCODERS / "huggingface_radio", input_shape=(None, None, 3), include_top=False)
    assert model.config.pixel_statistics[0] == pytest.approx((0.48145466, 0.4578275, 0.40821073))
    assert model.config.pooled_indices == (0, 2)
    for size in ("", "_other"):
        assert difference("huggingface_radio", model, "pooled", size) < 1e-5
    wide = keras_vit.build(weights=ENCODERS / "huggingface_radio", input_shape=(16, 32, 3), include_top=False)
    again = keras_vit.with_input_shape(wide, (16, 16, 3))  # cut out of what was cut
    direct = keras_vit.build(weights=ENCODERS / "huggingface_radio", input_shape=(16, 16, 3), include_top=False)
    assert numpy(again(expected("huggingface_radio")["images"][:, :16, :16])).shape == (1, direct.output_shape[1])
    with pytest.raises(CheckpointError, match="pixel_statistics"):
        keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", "timm")
    with pytest.raises(ValueError, match="3 means"):
        keras_vit.build(weights=ENCODERS / "huggingface_radio", input_shape=(24, 24, 1), include_top=False)


@pytest.mark.parametrize("old", ["ls{}.gamma", "ls{}.grandma", ""])
def test_layer_scale_of_the_authors_radio_has_other_names_or_is_not_there(tmp_path, old):
    names = load_file(ENCODERS / "huggingface_radio" / "model.safetensors")
    renamed = {
        re.sub(r"layer_scale(\d)\.lambda1", lambda match: old.format(match[1]), name): array
        for name, array in names.items()
        if old or "layer_scale" not in name
    }
    save_file(renamed, tmp_path / "x.safetensors")
    facts = {"num_heads": 3, "activation": "gelu_tanh"}
    model = keras_vit.build(weights=tmp_path / "x.safetensors", input_shape=(24, 24, 3), include_top=False, **facts)
    assert model.config.layer_scale == ("both" if old else "none")
    assert (difference("huggingface_radio", model, "pooled") < 1e-5) == bool(old)


@pytest.mark.parametrize("registers", [False, True])
def test_authors_files_of_dinov2_are_those_of_transformers_under_other_names(tmp_path, registers):
    """At the size of the table the numbers are the same; at another, the authors resize it by another rule."""
    folder = "huggingface_dinov2" + "_registers" * registers
    theirs = keras_vit.build(weights=ENCODERS / folder, **ENDS["tokens"])
    layout = "dinov2_registers" if registers else "dinov2"
    path = keras_vit.save_checkpoint(theirs, tmp_path / "authors.safetensors", layout)
    names = load_file(path)
    assert {"cls_token", "mask_token", "blocks.1.attn.qkv.weight", "blocks.0.ls1.gamma"} <= names.keys()
    assert ("register_tokens" in names, "blocks.0.mlp.w12.weight" in names) == (registers, registers)
    again = keras_vit.build(weights=path, num_heads=3, **ENDS["tokens"])
    x = expected(folder)["images"]
    np.testing.assert_array_equal(numpy(again(x)), numpy(theirs(x)))
    method = "bicubic_antialias" if registers else "bicubic_offset"
    assert read_checkpoint(path).resize_method == method


def test_authors_dinov3_has_stored_periods_and_a_masked_bias_of_the_key(tmp_path):
    """What stands behind the mask is ignored. With computed periods the numbers are those of timm's file."""
    theirs = built("timm_dinov3")
    path = keras_vit.save_checkpoint(theirs, tmp_path / "x.safetensors", "dinov3")
    arrays = load_file(path)
    assert {"storage_tokens", "mask_token", "blocks.1.attn.qkv.bias_mask", "blocks.0.ls2.gamma"} <= arrays.keys()
    np.testing.assert_array_equal(arrays["blocks.0.attn.qkv.bias_mask"], np.repeat([1, 0, 1], 24))
    arrays["blocks.0.attn.qkv.bias"][24:48] = 9
    save_file(arrays | {"rope_embed.periods": np.array([1, 10.0625], "float32")}, path)
    x, ends = expected("timm_dinov3")["images"], {"num_heads": 3, "input_shape": (24, 24, 3), **ENDS["tokens"]}
    stored = keras_vit.build(weights=path, **ends)
    assert any("rotary_periods stored" in line for line in stored.load_report)
    assert 1e-4 < difference("timm_dinov3", stored) < 0.1
    again = keras_vit.save_checkpoint(stored, tmp_path / "again.safetensors", "dinov3")
    np.testing.assert_array_equal(load_file(again)["rope_embed.periods"], np.array([1, 10.0625], "float32"))
    np.testing.assert_array_equal(numpy(keras_vit.build(weights=again, **ends)(x)), numpy(stored(x)))
    with pytest.raises(CheckpointError, match="rotary_positions/periods"):
        keras_vit.save_checkpoint(stored, tmp_path / "y.safetensors", "timm_dinov3")
    computed = keras_vit.build(weights=path, rotary_periods="computed", **ends)
    np.testing.assert_array_equal(numpy(computed(x)), numpy(theirs(x)))
    assert any("set aside rotary_positions" in line for line in computed.load_report)


def test_rotary_positions_of_file_and_model_must_agree(tmp_path):
    plain = built("timm_rope").config.replace(rotary="none", rotary_coordinates="unit")
    with pytest.raises(CheckpointError, match="rotary='none', and 'axial'"):
        keras_vit.build(plain, weights=ENCODERS / "timm_rope", include_top=False)
    model = keras_vit.build(plain, include_top=False, input_shape=(24, 24, 3))
    with pytest.raises(CheckpointError, match="files of this layout as rotary='axial'"):
        keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", "timm_rope")
    with pytest.raises(CheckpointError, match="files of this layout as rotary='none'"):
        keras_vit.save_checkpoint(built("timm_rope"), tmp_path / "x.safetensors", "timm")


@pytest.mark.filterwarnings("ignore:.*unless set otherwise:UserWarning")
def test_openclip_reads_what_transformers_wrote(tmp_path):
    """The same tower under OpenCLIP's names, beside a text tower, and with QuickGELU by the config alone."""
    model = built("huggingface_clip", "logits")
    path = keras_vit.save_checkpoint(model, tmp_path / "model.safetensors", "open_clip")
    arrays = load_file(path)
    assert arrays["visual.proj"].shape == (24, 6)
    save_file(arrays | {"token_embedding.weight": np.zeros((3, 2), "float32")}, path)
    (tmp_path / "open_clip_config.json").write_text(
        '{"model_cfg": {"quick_gelu": true, "vision_cfg": {"width": 24, "head_width": 8, "image_size": 24, "layers": 2,'
        ' "patch_size": 8, "mlp_ratio": 2.0}}}'
    )
    assert difference("huggingface_clip", keras_vit.build(weights=tmp_path), "logits") < 1e-5
    smaller = keras_vit.build(weights=tmp_path, input_shape=(16, 16, 3))
    assert "position embedding resized from (3, 3) to (2, 2) (bicubic_antialias)" in smaller.load_report


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"blocks.0.attn.q_norm.weight": "norm.bias"}, "q_norm"),
        ({"rope.freqs": "norm.bias"}, "rope"),
    ],
)
def test_file_of_a_family_that_is_not_computed_names_what_is_missing(tmp_path, arrays, word):
    known = load_file(ENCODERS / "timm_internvit" / "model.safetensors")
    some = {"norm.weight": known["blocks.0.norm1.weight"], "norm.bias": known["blocks.0.norm1.bias"]}
    save_file(known | {new: some[old] for new, old in arrays.items()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=word):
        keras_vit.build(weights=tmp_path / "model.safetensors", num_heads=3, include_top=False)


def test_rows_of_timms_registers_are_added_to_the_registers(tmp_path):
    """As its so150m models have them; so the other models' numbers stay where a row is taken from its register."""
    file = changed(tmp_path, "timm_sbb", no_embed_class=False) / "model.safetensors"
    arrays = load_file(file)
    rows = np.linspace(-1, 1, arrays["reg_token"].size, dtype="float32").reshape(arrays["reg_token"].shape)
    table = np.concatenate([rows, arrays["pos_embed"]], axis=1)
    save_file(arrays | {"pos_embed": table, "reg_token": arrays["reg_token"] - rows}, file)
    model = keras_vit.build(weights=file.parent, input_shape=(16, 32, 3), include_top=False)
    assert difference("timm_sbb", model, "pooled", "_other") < 1e-5


def test_authors_table_of_the_same_size_stays_as_it_is_in_a_graph_of_any_size(tmp_path):
    theirs = keras_vit.build(weights=ENCODERS / "huggingface_dinov2", **ENDS["tokens"])
    path = keras_vit.save_checkpoint(theirs, tmp_path / "authors.safetensors", "dinov2")
    model = keras_vit.build(weights=path, num_heads=3, input_shape=(None, None, 3), **ENDS["tokens"])
    fixed = keras_vit.build(weights=path, num_heads=3, input_shape=(16, 32, 3), **ENDS["tokens"])
    arrays = expected("huggingface_dinov2")
    np.testing.assert_allclose(numpy(model(arrays["images"])), arrays["tokens"], atol=1e-5)
    other = arrays["images_other"]
    np.testing.assert_allclose(numpy(model(other)), numpy(fixed(other)), atol=1e-5)


def test_authors_file_inside_a_training_is_read(tmp_path):
    model = keras_vit.build(weights=ENCODERS / "huggingface_dinov2_registers", **ENDS["tokens"])
    arrays = load_file(keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", "dinov2_registers"))
    save_file({f"teacher.backbone.{name}": array for name, array in arrays.items()}, tmp_path / "y.safetensors")
    again = keras_vit.build(weights=tmp_path / "y.safetensors", num_heads=3, **ENDS["tokens"])
    x = expected("huggingface_dinov2_registers")["images"]
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))


@pytest.mark.filterwarnings("ignore:.*unless set otherwise:UserWarning")
@pytest.mark.parametrize("layout", ["dinov2", "huggingface_dinov2", "open_clip"])
def test_model_without_what_a_family_has_is_refused(tmp_path, layout):
    model = keras_vit.build(weights=ENCODERS / "timm_mae", include_top=False, pooling="gap", class_token=True)
    with pytest.raises(CheckpointError, match="recognised"):
        keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", layout)
    gated = keras_vit.build(weights=ENCODERS / "huggingface_dinov2_registers", include_top=False)
    with pytest.raises(CheckpointError, match="gated MLP"):
        keras_vit.save_checkpoint(gated, tmp_path / "for_timm", "timm")


@pytest.mark.parametrize("folder", ["huggingface_dinov2", "huggingface_dinov2_registers"])
def test_dinov2_is_written_as_a_folder_of_transformers(tmp_path, folder):
    model = keras_vit.build(weights=ENCODERS / folder, include_top=False)
    file = keras_vit.save_checkpoint(model, tmp_path / "folder", folder)
    theirs, ours = (json.loads((place / "config.json").read_text()) for place in (ENCODERS / folder, file.parent))
    assert {name: value for name, value in ours.items() if name in theirs} == {
        name: theirs[name] for name in ours if name in theirs
    }
    assert set(ours) - set(theirs) == {"id2label", "label2id"}
    again = keras_vit.build(weights=file.parent, include_top=False)
    images = expected(folder)["images"]
    np.testing.assert_array_equal(numpy(again(images)), numpy(model(images)))
    odd = keras_vit.build(model.config.replace(gated_mlp=True, mlp_dim=33), include_top=False, input_shape=(24, 24, 3))
    with pytest.raises(CheckpointError, match="share of the width"):
        keras_vit.save_checkpoint(odd, tmp_path / "odd", folder)


@pytest.mark.parametrize("folder", ["huggingface_dinov2", "huggingface_dinov3"])
def test_photos_of_another_size_than_the_weights_are_said_unless_the_size_is_chosen(tmp_path, folder):
    """transformers takes the processor's size, 224 for DINOv2, whose table is of 518."""
    copy = changed(tmp_path, folder)
    processor = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (copy / "preprocessor_config.json").write_text(json.dumps(processor | {"resample": 3, "do_resize": True}))
    model = keras_vit.build(weights=copy, include_top=False)
    own = " x ".join(map(str, model.input_shape[1:3]))
    said = [line for line in model.load_report if line.startswith(f"photos are resized to {own}")]
    assert [("16 x 16 of the folder" in line, own != "16 x 16") for line in said] == [(True, True)]
    chosen = keras_vit.build(weights=copy, include_top=False, input_shape=(16, 16, 3))
    assert chosen.preprocessing.image_size == (16, 16)
    assert not [line for line in chosen.load_report if line.startswith("photos")]
