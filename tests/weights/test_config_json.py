"""What stands beside the tensors of an encoder: missing, not to be read, against the tensors, or telling a switch."""

import json
import shutil

import numpy as np
import pytest
from conftest import GOLDEN, make_tiny, numpy
from safetensors.numpy import load_file, save_file
from weights.encoder_folders import ENCODERS, ENDS, changed, difference

import keras_vit
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.families.clip import CLIP_PHOTOS
from keras_vit.weights.metadata.transformers import read_transformers
from keras_vit.weights.read import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:.*(scaled|range|preprocessing):UserWarning")  # images are normal


def test_model_without_a_config_needs_weights_that_tell_it(tmp_path):
    with pytest.raises(TypeError, match="config=None, weights=None"):
        keras_vit.build()
    alone = tmp_path / "model.safetensors"
    alone.write_bytes((ENCODERS / "timm_dinov2" / "model.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="num_heads="):
        keras_vit.build(weights=alone, include_top=False)
    with pytest.raises(ValueError, match=r"hold one file: a mirror's"):
        keras_vit.build(
            weights=shutil.copytree(ENCODERS / "timm_mae", tmp_path / "a", ignore=lambda *_: ["model.safetensors"])
        )


@pytest.mark.parametrize("text", ["{", "[]", "", '{"model_type": "deit", "num_attention_heads": 5, "qkv_bias": false}'])
def test_config_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    shutil.copy(ENCODERS / "timm_dinov2" / "model.safetensors", tmp_path)
    if "deit" in text:
        shutil.copy(GOLDEN / "classifiers" / "deit" / "model.safetensors", tmp_path)
    with pytest.raises(CheckpointError, match=r"(config.json|noted) not understood(?s:.*)Correct that, or pass"):
        keras_vit.build(weights=tmp_path, include_top=False)


def test_head_outside_of_a_model_is_not_dropped_in_silence(tmp_path):
    """As of a training whose model has an encoder and a head of its own."""
    arrays = load_file(ENCODERS / "timm_dinov2" / "model.safetensors")
    arrays = {f"backbone.{name}": array for name, array in arrays.items()} | {"fc.weight": np.ones((5, 24), "float32")}
    save_file(arrays, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"a head of no known place(?s:.*)fc.weight"):
        keras_vit.build(weights=tmp_path / "x.safetensors", num_heads=3)
    model = keras_vit.build(weights=tmp_path / "x.safetensors", num_heads=3, include_top=False)
    assert "set aside head outside of the model, as fc.weight" in model.load_report


@pytest.mark.parametrize(
    ("folder", "facts", "said"),
    [
        ("huggingface_dinov2", {"num_hidden_layers": 3}, "num_layers 3, and 2 in the file"),
        ("huggingface_dinov2", {"hidden_size": 48, "patch_size": 16}, "hidden_size 48.*patch_size 16"),
        ("huggingface_dinov2_registers", {"num_register_tokens": 3}, "registers 3, and 4"),
        ("timm_sbb", {"reg_tokens": 0}, "registers 0, and 4"),
        ("timm_sbb", {"pool_include_prefix": True}, "pool_include_prefix=True"),
        ("timm_dinov3", {"rope_grid_offset": 1.0}, "rope_grid_offset=1.0"),
        ("timm_rope_mixed", {"rope_rotate_half": True}, "rope_rotate_half=True"),
        ("timm_dinov2", {"depth": 12}, "num_layers 12"),
        ("timm_beit3", {"scale_mlp_norm": False}, "mlp_norm False, and True in the file"),
        ("timm_eva", {"qkv_bias": False}, "qkv_bias none, and query_value in the file"),
        ("timm_mae", {"mlp_layer": "glu"}, "mlp_layer='glu'"),
        ("timm_qwen3", {"encoder_pool": "merge"}, "encoder_pool='merge'"),
        ("timm_mae", {"fc_norm": True}, "final_norm pooled, and tokens in the file"),
        ("timm_clip", {"qk_norm": True}, "qk_norm head, and none"),
        ("huggingface_aimv2", {"hidden_act": "gelu"}, "'silu'(.|\n)*'gelu'"),
        ("huggingface_aimv2", {"is_native": True}, "position_table False, and True"),
        ("huggingface_aimv2_native", {"is_native": False}, "position_table True, and False"),
        ("huggingface_sapiens2", {"use_qk_norm": False}, "qk_norm none, and head"),
        ("huggingface_mlcd", {"rope_parameters": {"rope_type": "linear"}}, "'linear'"),
        ("huggingface_mlcd", {"rope_theta": 50.0}, "rope_theta=50.0, and 10000.0"),
        ("huggingface_sapiens2", {"num_key_value_heads_per_layer": [3, 3]}, r"kv_heads \(3, 3\), and \(3, 1\)"),
        ("timm_beit", {"use_shared_rel_pos_bias": True}, "relative_bias blocks and shared, and blocks"),
        ("timm_sapiens2", {"num_kv_heads": [3, 3]}, r"kv_heads \(3, 3\), and \(3, 1\) in the file"),
        ("timm_beit", {"img_size": [32, 32]}, r"grid \(4, 4\), which has 52 rows, and 28"),
        ("huggingface_dinov3", {"use_gated_mlp": False, "hidden_act": "gelu"}, "gated_mlp False, and True"),
        ("huggingface_dinov3", {"key_bias": True}, "qkv_bias all, and query_value"),
        ("huggingface_dinov3", {"query_bias": False}, "biases in attention"),
        ("huggingface_dinov2", {"mlp_ratio": 7}, "mlp_dim .*, and"),
        ("huggingface_dinov2", {"patch_size": [4, 5]}, "a square"),
        ("huggingface_clip", {"projection_dim": 99}, "projection_dim 99, and"),
        ("timm_dinov2", {"init_values": None}, "layer_scale none, and both"),
        ("timm_dinov2", {"init_values": 0}, "layer_scale none, and both"),
        ("timm_dinov2", {"use_post_norm": True}, "(?s)VisionTransformer.*use_post_norm=True"),
        ("timm_deit3", {"use_rot_pos_emb": False}, "(?s)VisionTransformer.*use_rot_pos_emb=False"),
        ("timm_beit", {"act_layer": "gelu_tanh"}, "(?s)Beit.*act_layer='gelu_tanh'"),
        ("timm_eva", {"pre_norm": True}, "(?s)Eva.*pre_norm=True"),
        ("timm_clip", {"in_chans": 1}, "channels 1, and 3"),
        ("timm_clip", {"pos_embed": "rope"}, "pos_embed(?s:.*)'rope'"),
        ("timm_dinov3", {"attn_type": "rope"}, "qkv_bias all, and query_value"),
        ("timm_dinov3", {"num_kv_heads": 1}, r"kv_heads \(1, 1\), and \(3, 3\)"),
        ("timm_rope", {"attn_only_layer_scale": True}, "layer_scale attention, and both"),
        ("timm_rope", {"use_abs_pos_emb": False}, "position_table False, and True"),
        ("timm_rope", {"global_pool": "avg"}, "final_norm pooled, and tokens"),
        ("timm_rope", {"use_post_transformer_norm": False}, "final_norm none, and tokens"),
        ("timm_eva02_packed", {"global_pool": "token"}, "final_norm tokens, and pooled"),
        ("timm_eva02_packed", {"mlp_ratio": 3.3}, "mlp_dim .*, and"),
        ("timm_aimv2", {"mlp_ratio": 3.3}, "mlp_dim .*, and"),
        ("timm_beit", {"global_pool": "token"}, "final_norm tokens, and pooled"),
        ("timm_beit3", {"fc_norm": False}, "final_norm tokens, and pooled"),
        ("timm_internvit", {"final_norm": True}, "final_norm tokens, and none"),
        ("timm_pe_core", {"attn_pool_mlp_ratio": 2.0}, "map_rows .*, and"),
        ("timm_dinov2", {"class_token": False}, "class_token False, and True"),
        ("timm_dinov2", {"global_pool": "avg"}, "final_norm pooled, and tokens"),
        ("timm_dinov2", {"mlp_ratio": 7.0}, "mlp_rows .*, and"),
        ("timm_uni2", {"act_layer": "gelu"}, "gated_mlp False, and True"),
        ("timm_mae", {"act_layer": "silu"}, "gated_mlp True, and False"),
        ("huggingface_dinov3", {"hidden_act": "gelu"}, "gate of the MLP"),
        (
            "huggingface_dinov3",
            {"rope_parameters": {"rope_theta": 70.0}},
            "rope_theta=50.0, and 70.0 in rope_parameters",
        ),
        ("huggingface_internvit", {"norm_type": "rms_norm"}, "norm rms, and layer in the file"),
        ("huggingface_internvit_6b", {"use_qk_norm": False}, "qk_norm none, and width in the file"),
        ("huggingface_radio", {"num_registers": 9}, "special_tokens 13, and 7"),
        ("huggingface_beit", {"use_shared_relative_position_bias": False}, "relative_bias none, and shared"),
        ("huggingface_beit", {"use_relative_position_bias": True}, "relative_bias blocks and shared, and shared"),
        ("huggingface_clip", {"num_channels": 1}, "channels 1, and 3"),
        *(
            (f"huggingface_{name}", {"mlp_ratio": 3}, "mlp_dim .*, and")
            for name in ("dinov2_registers", "pixio", "tipsv2_gated")
        ),
        ("huggingface_internvit", {"norm_type": "foo"}, "norm foo, and layer"),
        ("huggingface_internvit_6b", {"layer_norm_eps": 1e-5}, "epsilon of an InternViT(.|\n)*1e-05"),
        ("huggingface_dinov2", {"layer_norm_eps": 0}, "epsilon of a norm(.|\n)*: 0 in"),
        ("huggingface_dinov2", {"layer_norm_eps": "1e-6"}, "epsilon of a norm(.|\n)*'1e-6'"),
        ("timm_qwen3", {"norm_eps": -1e-6}, "epsilon of a norm(.|\n)*: -1e-06 in"),
        ("open_clip_siglip", {"timm_model_name": "vit_base_patch32_siglip_256"}, "hidden_size 768, and 24"),
        ("open_clip_gap", {"mlp_ratio": 4.0}, "mlp_dim 96, and 48"),
        ("timm_mae", {"depth": None}, "num_layers 12, and 2"),
        ("timm_mae", {"patch_size": None}, "patch_size 16, and 8"),
        ("huggingface_clip", {"vision_config": {"model_type": "siglip_vision_model"}}, "model_type"),
        ("huggingface_dinov2", {"model_type": ["dinov2"]}, r"`model_type` must be a text.*\n.*\['dinov2'\] in .*json"),
        ("huggingface_dinov2", {"architectures": ["Dinov2WithRegistersModel"]}, "'dinov2', and architectures 'Dinov2W"),
        ("huggingface_beit", {"architectures": ["ViTForImageClassification"]}, "'beit', and architectures 'ViTFor"),
        (
            "huggingface_siglip2",
            {"architectures": ["SiglipVisionModel"]},
            "architectures 'SiglipVisionModel' in .*json",
        ),
        ("open_clip_gap", {"layers": 12}, "num_layers 12, and 2"),
        ("huggingface_dinov3", {"rope_theta": None, "rope_parameters": {"rope_type": "yarn"}}, "yarn"),
    ],
)
def test_config_that_contradicts_the_tensors_is_refused(tmp_path, folder, facts, said):
    with pytest.raises(CheckpointError, match=said):
        keras_vit.build(weights=changed(tmp_path, folder, **facts), include_top=False)


def test_words_that_transformers_passes_over_contradict_nothing(tmp_path):
    """Pixio's width of the MLP is by its ratio alone, and it has no switch for biases or registers."""
    aside = {"intermediate_size": 64, "proj_bias": False, "use_swiglu_ffn": False, "num_register_tokens": 9}
    assert read_checkpoint(changed(tmp_path, "huggingface_pixio", **aside)).fields["proj_bias"]


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("huggingface_aimv2", "AIMv2Model"),  # Apple's own class
        ("huggingface_internvit", "InternVisionModel"),
        ("huggingface_radio", "RADIOModel"),
        ("huggingface_dinov2", "Dinov2Backbone"),
        ("huggingface_clip", "CLIPVisionModel"),
    ],
)
def test_classes_of_the_family_and_of_its_authors_contradict_no_model_type(tmp_path, folder, name):
    assert read_checkpoint(changed(tmp_path, folder, architectures=[name])).layout


def test_openclip_takes_clips_photos_of_the_towers_size_where_its_file_is_silent(tmp_path):
    folder = changed(tmp_path, "open_clip_siglip")
    config = json.loads((folder / "open_clip_config.json").read_text()) | {"preprocess_cfg": {"size": 99}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    photos = read_checkpoint(folder).preprocessing
    assert (photos.image_size, photos.resize, photos.mean) == ((24, 24), "crop", CLIP_PHOTOS.mean)


def test_beit_without_relative_positions_or_a_pooling_layer_loads(tmp_path):
    """A table of zeros adds nothing, so a file without it gives the same numbers; transformers' were 1e-6 away."""
    arrays = load_file(ENCODERS / "huggingface_beit" / "model.safetensors")
    table = next(name for name in arrays if name.endswith("relative_position_bias_table"))
    models = []
    for model_type, without in ({"beit": (), "data2vec-vision": (table, "classifier", "pooler")}).items():
        flags = {"use_shared_relative_position_bias": not without, "model_type": model_type}
        if without:
            flags["architectures"] = ["Data2VecVisionModel"]
        folder = changed(tmp_path / model_type, "huggingface_beit", **flags)
        kept = {name.removeprefix("beit." * bool(without)): a for name, a in arrays.items()}
        kept |= {table: np.zeros_like(arrays[table])} if not without else {}
        kept = {name: a for name, a in kept.items() if not any(word in f"beit.{name}" for word in without)}
        save_file(kept, folder / "model.safetensors")
        models.append(keras_vit.build(weights=folder, input_shape=(24, 24, 3), **ENDS["tokens"]))
    assert models[1].config.relative_bias == "none"
    x = np.random.default_rng(0).uniform(-1, 1, (2, 24, 24, 3)).astype("float32")
    assert np.abs(numpy(models[0](x)) - numpy(models[1](x))).max() < 1e-5


@pytest.mark.parametrize(
    ("folder", "name", "shape"),
    [
        ("timm_dinov2", "blocks.0.mlp.fc1.weight", ()),
        ("huggingface_aimv2", "encoder.layers.0.attention.q_proj.weight", (0,)),
        ("huggingface_radio", "radio_model.model.patch_generator.embedder.weight", ()),
        ("huggingface_siglip2", "embeddings.patch_embedding.weight", (24, 0)),
    ],
)
def test_array_without_axes_or_numbers_is_refused(tmp_path, folder, name, shape):
    file = changed(tmp_path, folder) / "model.safetensors"
    arrays = load_file(file)
    prefix = next(key for key in arrays if key.endswith(name)).removesuffix(name)
    save_file(arrays | {prefix + name: np.zeros(shape, "float32")}, file)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        keras_vit.build(weights=file.parent, include_top=False)


@pytest.mark.parametrize(("folder", "names"), [("timm_clip", "label_names"), ("huggingface_beit", "id2label")])
def test_class_names_of_another_number_than_the_heads_get_a_line(tmp_path, folder, names):
    copy = changed(tmp_path, folder)
    config = json.loads((copy / "config.json").read_text()) | {names: {"0": "gnu", "1": "okapi"}}
    (copy / "config.json").write_text(json.dumps(config))
    model = keras_vit.build(weights=copy)
    assert model.class_names is None
    assert "set aside 2 class names, since the head has 5 classes" in model.load_report


def test_rotary_positions_are_of_the_kind_that_timms_config_names(tmp_path):
    """Expected: as timm computes its DINOv3's, whose tests are above; what timm passes over changes nothing."""
    config = keras_vit.build(weights=changed(tmp_path, "timm_eva", rope_type="dinov3"), **ENDS["tokens"]).config
    assert (config.rotary_coordinates, config.rotary_offset, config.rotary_reference) == ("unit", 0.0, None)
    folder = changed(tmp_path, "timm_rope_mixed", rope_grid_offset=1.0, ref_feat_shape=[7, 7])
    assert difference("timm_rope_mixed", keras_vit.build(weights=folder, **ENDS["tokens"]), "tokens") < 1e-5


def test_prefix_tokens_are_pooled_by_attention_where_timms_config_says_so(tmp_path):
    """timm's `test_vit3` does it by its name; its numbers from a made file were 4.3e-7 away."""
    fields = {"pooling": "map", "registers": 2, "class_token": False, "layer_scale": "both", "pool_prefix_tokens": True}
    tiny = make_tiny(num_layers=1, activation="gelu", **fields)
    file = keras_vit.save_checkpoint(tiny, tmp_path / "timm", "timm")
    save_file(load_file(file), file)  # without our note
    config = json.loads((tmp_path / "timm" / "config.json").read_text())
    assert config["model_args"].pop("pool_include_prefix") is True
    x = np.random.default_rng(0).uniform(-1, 1, (2, 20, 28, 3)).astype("float32")
    for said, name in (({"pool_include_prefix": True}, config["architecture"]), ({}, "test_vit3"), ({}, "own")):
        told = {"architecture": name, "model_args": config["model_args"] | said}
        (tmp_path / "timm" / "config.json").write_text(json.dumps(config | told))
        model = keras_vit.build(weights=tmp_path / "timm", input_shape=(20, 28, 3))
        assert (np.abs(numpy(model(x)) - numpy(tiny(x))).max() < 1e-5) == (name != "own")
        assert any("pool_prefix_tokens False" in line for line in model.load_report) == (name == "own")


def test_biases_of_the_head_of_aimv2_are_added_to_its_output(tmp_path):
    """Those of the keys change nothing, and the golden numbers are without any."""
    folder = changed(tmp_path, "huggingface_aimv2", qkv_bias=True)
    arrays, random = load_file(folder / "model.safetensors"), np.random.default_rng(0)
    names = [name for name in arrays if "_proj.weight" in name and (".attention." in name or "head." in name)]
    biased = {name.replace("weight", "bias"): np.zeros(24, "float32") for name in names} | arrays
    biased |= {f"head.{part}_proj.bias": random.normal(size=24).astype("float32") for part in "kv"}
    biased["head.output_proj.bias"] -= arrays["head.output_proj.weight"] @ biased["head.v_proj.bias"]
    save_file(biased, folder / "model.safetensors")
    model = keras_vit.build(weights=folder, **ENDS["pooled"])
    assert difference("huggingface_aimv2", model, "pooled") < 1e-5
    written = load_file(keras_vit.save_checkpoint(model, tmp_path / "x.safetensors", "huggingface_aimv2"))
    assert not {*biased} - {*written}
    del biased["head.v_proj.bias"]
    save_file(biased, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="all have biases"):
        keras_vit.build(weights=folder, include_top=False)


@pytest.mark.parametrize(
    ("folder", "heads"),  # of transformers 5.24, by which a config of another width than usual is read too
    [("huggingface_aimv2", 8), ("huggingface_dinov3", 6), ("huggingface_siglip", 12), ("huggingface_dinov2", 12)],
)
def test_heads_that_a_config_leaves_out_are_those_of_transformers(tmp_path, folder, heads):
    """And not where it leaves out the width too, which here is not the usual one: transformers opens no such folder."""
    copy = changed(tmp_path, folder)
    config = json.loads((copy / "config.json").read_text())
    del config["num_attention_heads"]
    (copy / "config.json").write_text(json.dumps(config))
    checkpoint = read_checkpoint(copy)
    assert checkpoint.num_heads == heads
    assert f"num_heads {heads}: as transformers computes, since config.json does not say" in checkpoint.remarks
    del config["hidden_size"]
    (copy / "config.json").write_text(json.dumps(config))
    assert read_checkpoint(copy).num_heads is None


def test_timms_proj_bias_is_that_of_the_mlp_too(tmp_path):
    folder = changed(tmp_path, "timm_mae", proj_bias=False)
    arrays = load_file(folder / "model.safetensors")
    dropped = ("attn.proj.bias", "mlp.fc1.bias", "mlp.fc2.bias")
    save_file({name: arrays[name] for name in arrays if not name.endswith(dropped)}, folder / "model.safetensors")
    fields = read_checkpoint(folder).fields
    assert (fields["proj_bias"], fields["mlp_bias"]) == (False, False)


@pytest.mark.parametrize(("kind", "epsilon"), [("vit_msn", 1e-6), ("vit", None)])
def test_epsilon_that_a_config_of_msn_leaves_out_is_not_vits(tmp_path, kind, epsilon):
    """Of ViT's other kinds it is that of the layout, 1e-12."""
    found = read_transformers({"model_type": kind}, {}, tmp_path)
    assert found.fields.get("layer_norm_epsilon") == epsilon


def test_swiglu_of_timm_in_two_kernels_is_that_in_one(tmp_path):
    """As `mlp_layer=SwiGLU` in Python makes it; `SwiGLUPacked` is in the golden folder, gate first."""
    folder = changed(tmp_path, "timm_uni2", mlp_ratio=64.5 / 24)
    arrays = load_file(folder / "model.safetensors")
    for name in [name for name in arrays if ".mlp.fc1." in name]:
        both = np.split(arrays.pop(name), 2)
        arrays |= {name.replace("fc1", part): half.copy() for part, half in zip(("fc1_g", "fc1_x"), both, strict=True)}
    save_file(arrays, folder / "model.safetensors")
    model = keras_vit.build(weights=folder, **ENDS["tokens"])
    assert difference("timm_uni2", model) < 1e-5
    assert model.config.mlp_dim == 64


@pytest.mark.parametrize(
    ("architecture", "facts", "is_said"),
    [
        ("vit_giant_patch14_224", {}, True),
        ("vit_giant_patch14_224", {"act_layer": "silu"}, False),
        ("vit_giant_patch14_reg4_dinov2", {}, False),
    ],
)
def test_gate_of_a_timm_folder_that_nothing_says_is_said(tmp_path, architecture, facts, is_said):
    """timm's default is GELU, and `mlp_layer=SwiGLUPacked` stands in Python alone."""
    folder = changed(tmp_path, "timm_uni2", **facts)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architecture": architecture}))
    report = keras_vit.build(weights=folder, **ENDS["tokens"]).load_report
    assert ("gated MLP: SiLU, since nothing says its activation" in report) is is_said
