"""What notes and JSON beside the tensors say: followed where understood, told where not, refused where not computed."""

import contextlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import GOLDEN, images, make_tiny, numpy, randomise, tiny_config
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.metadata.reader import read_open_clip, read_timm, read_transformers
from keras_vit.weights.read import CheckpointError

FOREIGN = GOLDEN / "foreign"
SIZES = {"patch_size": 8, "hidden_size": 48, "num_layers": 3, "num_heads": 4, "mlp_dim": 96}
PROCESSOR = {"image_mean": [0.4] * 3, "image_std": [0.2] * 3, "size": 32, "resample": 3}
NOT_UNDERSTOOD = [
    ({"do_rescale": False}, "do_rescale False): images scaled to [-1, 1]"),
    ({"rescale_factor": 1 / 127.5}, "rescale_factor 0.0078"),
    ({"resample": 0}, "resample 0)"),
    ({"do_flip_channel_order": True}, "do_flip_channel_order True)"),
    *(({word: None}, f"{word} None)") for word in ("rescale_factor", "do_rescale")),
    *(
        ({"image_processor_type": f"{kind}ImageProcessorFast"}, f"image_processor_type {kind}ImageProcessorFast)")
        for kind in ("ConvNext", "DPT", "Owlv2", "Siglip2", "Perceiver", "Mine")
    ),
    ({"size": {"shortest_edge": 32, "longest_edge": 40}}, "size {'shortest_edge': 32, 'longest_edge': 40})"),
    *(({word: [0.5] * n}, f"{word} [0.5, 0.5") for word in ("image_mean", "image_std") for n in (2, 4)),
    ({"image_std": [0.2, 0.2, 0]}, "mean=(0.4, 0.4, 0.4), std=(0.2, 0.2, 0.0))"),
    ({"size": {"shortest_edge": 32}}, "size {'shortest_edge': 32})"),
    ({"do_center_crop": True, "crop_size": 64}, "crop_size 64)"),
]
OTHER_SIZE = {"preprocessor_config": PROCESSOR | {"size": 64}}
PRETRAINED = {"input_size": [3, 32, 32], "mean": [0.4] * 3, "std": [0.2] * 3}


IDS = ["n02391049", "n02437136"]


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"id2label": {"1": "okapi", "0": "zebra"}}, ("zebra", "okapi")),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}}, None),
        ({"id2label": {"0": "LABEL_1", "1": "LABEL_0"}}, ("LABEL_1", "LABEL_0")),
        ({"id2label": {"0": "zebra", "2": "okapi"}}, None),
        ({"id2label": {"0": "zebra", "1": 3}}, None),
        ({"id2label": {"1": "zebra", "2": "okapi"}}, None),
        ({"id2label": {"0": "zebra", "1": None}, "label2id": {"zebra": 0}}, None),
        ({"label2id": {"okapi": 1, "zebra": "0"}}, ("zebra", "okapi")),
        ({"id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"okapi": 1, "zebra": 0}}, ("zebra", "okapi")),
        ({"id2label": ["0", "1", "2"], "label2id": {"okapi": 1, "zebra": 0}}, ("zebra", "okapi")),
        ({"label2id": {"okapi": 1, "zebra": 1}}, None),
        ({"id2label": ["zebra", "okapi"], "label2id": {"LABEL_0": 0}}, ("zebra", "okapi")),
        ({"id2label": ["zebra", "okapi"], "label2id": {"zebra": 1, "okapi": 0}}, ("zebra", "okapi")),
        ({"id2label": ["zebra", "okapi"], "label2id": {"LABEL_0": 0, "zebra": 1}}, ("zebra", "okapi")),
        ({"id2label": ["zebra"], "vision_config": {}}, ("zebra",)),
        ({"id2label": ["zebra"] * 2, "label2id": {"zebra": 1}}, ("zebra", "zebra")),  # as ImageNet's "crane"
        ({"architecture": "x", "label_names": ["zebra", "okapi"]}, ("zebra", "okapi")),
        ({"architecture": "x", "label_names": {"0": "zebra", "1": "okapi"}}, ("zebra", "okapi")),
        ({"architecture": "x", "pretrained_cfg": {"label_names": ["zebra", "okapi"]}}, ("zebra", "okapi")),
        ({"architecture": "x", "label_names": 3}, None),
        ({"architecture": "x", "label_names": "abc"}, None),
        ({"architecture": "x", "label_descriptions": {"zebra": "stripes"}}, None),
        (
            {"architecture": "x", "label_names": ["zebra"], "pretrained_cfg": {"label_names": ["okapi"]}},
            ("zebra",),
        ),
        (
            {"architecture": "x", "label_names": IDS, "label_descriptions": {IDS[0]: "zebra", IDS[1]: "oryx"}},
            (f"{IDS[0]} zebra", f"{IDS[1]} oryx"),
        ),
        ({"architecture": "x", "label_names": ["zebra"], "label_descriptions": {"zebra": "stripes"}}, ("zebra",)),
    ],
)
def test_class_names_of_the_json_are_read(tmp_path, config, names):
    read = read_timm if "architecture" in config else lambda config, folder: read_transformers(config, {}, folder)
    found = read(config, tmp_path)
    assert found.class_names == names
    is_not_understood = names is None and "LABEL_0" not in str(config)
    set_aside = ({"zebra": 1, "okapi": 0}, {"LABEL_0": 0, "zebra": 1})
    contradicts = {"label_names", "pretrained_cfg"} <= {*config} or config.get("label2id") in set_aside
    contradicts |= config.get("id2label") == ["0", "1", "2"]
    assert any("label" in line for line in found.remarks) == (is_not_understood or contradicts)


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("multi_label_classification", ["classifier_activation='sigmoid'"]),
        ("regression", ["no classes"]),
        ("single_label_classification", []),
        (None, []),
    ],
)
def test_scores_that_are_no_softmax_have_a_line(tmp_path, problem, words):
    config = {"id2label": ["zebra", "okapi"], "problem_type": problem}
    found = read_transformers(config, {}, tmp_path)
    assert found.class_names == ("zebra", "okapi")
    lines = [line for line in found.remarks if "problem_type" in line]
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True))


@pytest.fixture
def folder(tmp_path):
    """Puts a golden file in a folder, with some JSON beside it."""

    def made(case, **files):
        arrays = load_file(FOREIGN / f"{case}.safetensors")
        save_file(arrays, tmp_path / "model.safetensors")
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / f"{name}.json").write_text(text)
        return tmp_path

    return made


def timm(arguments=(), **cfg):
    return {"model_args": dict(arguments), "pretrained_cfg": PRETRAINED | cfg}


@pytest.mark.parametrize(
    ("case", "word"),
    [
        *(("huggingface_vit", word) for word in ("relu", "silu", [])),
        *(("timm_token", word) for word in ("relu", [])),  # of timm's silu is a gate
    ],
)
def test_an_activation_that_is_not_computed_here_is_refused_with_file_and_value(folder, case, word):
    config = {"hidden_act": word} if case == "huggingface_vit" else timm({"act_layer": word})
    with pytest.raises(CheckpointError, match="activation") as error:
        read_checkpoint(folder(case, config=config))
    assert f"{word!r} in {folder(case, config=config) / 'config.json'}" in str(error.value)


def test_an_activation_of_the_note_that_is_not_computed_here_is_refused(edited_note):
    with pytest.raises(CheckpointError, match=r"'relu'.*x\.safetensors"):
        read_checkpoint(edited_note(config={"activation": "relu"}))


def test_another_function_behind_the_pre_logits_is_refused_where_they_are_used(tmp_path):
    model = make_tiny(representation_size=12, include_top=False, classes=None)
    with pytest.warns(UserWarning, match="GELU"):
        keras_vit.save_checkpoint(model, tmp_path / "model.safetensors", "huggingface")
    save_file(load_file(tmp_path / "model.safetensors"), tmp_path / "model.safetensors")
    config = {"hidden_act": "gelu_new", "image_size": [20, 28], "pooler_act": "relu", "num_attention_heads": 3}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"pooler_act 'relu'.*config\.json"):
        keras_vit.build(tiny_config(), weights=tmp_path, include_top=False, representation_size=12)
    with pytest.raises(CheckpointError, match=r"pooler_act 'relu'.*config\.json"):
        keras_vit.convert_checkpoint(tmp_path, tmp_path / "x.npz", "official")
    assert keras_vit.build(tiny_config(), weights=tmp_path, include_top=False).output_shape == (None, 12)


@pytest.mark.parametrize(("word", "pooling"), [("token", "token"), ("avg", "gap"), ("", "none")])
@pytest.mark.parametrize("top_level", [True, False])
def test_pooling_of_timms_json_is_followed(folder, word, pooling, top_level):
    config = timm() | {"global_pool": word} if top_level else timm({"global_pool": word})
    model = keras_vit.build("Ti/16", weights=folder("timm_token", config=config), **SIZES)
    assert (model.config.pooling, model.config.has_class_token) == (pooling, True)
    assert model.load_report == ()
    assert model.preprocessing.mean == (0.4, 0.4, 0.4)


def test_pooling_that_timms_json_does_not_say_is_that_of_its_architecture(folder):
    """Whatever the norm: `fc_norm` names one after the pooling, which is of the class token all the same."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "mlp_ratio": 2}
    config = timm({"fc_norm": True, **sizes}) | {"architecture": "vit_tiny_patch16_224"}
    path = folder("timm_token", config=config) / "model.safetensors"
    save_file({re.sub(r"^norm", "fc_norm", name): array for name, array in load_file(path).items()}, path)
    found = read_checkpoint(path.parent).fields
    assert (found["pooling"], found["final_norm"]) == ("token", "pooled")


@pytest.mark.parametrize(
    ("architecture", "computed", "told"),
    [
        ("vit_base_patch16_siglip_224", "gelu", 1),
        ("vit_so400m_patch14_siglip_gap_384", "gelu", 1),
        ("vit_base_patch32_siglip_256", "gelu_tanh", 0),
        ("vit_large_patch16_siglip_gap_512", "gelu_tanh", 0),
        ("vit_so400m_patch16_siglip_256", "gelu_tanh", 0),
    ],
)
def test_gelu_of_a_siglip_folder_is_timms_and_says_where_the_authors_is_another(folder, architecture, computed, told):
    sizes = {"num_heads": 4, "embed_dim": 48, "depth": 3, "patch_size": 8}
    config = {"architecture": architecture, **timm(sizes)}
    model = keras_vit.build(weights=folder("timm_map", config=config))
    assert model.config.activation == computed
    assert sum("gelu_tanh" in line for line in model.load_report) == told


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({}, "model_cfg of open_clip_config.json not understood"),
        ({"model_cfg": {"vision_cfg": {"width": "x"}}}, "heads of open_clip_config.json not understood"),
        ({"model_cfg": {"vision_cfg": {"width": 64, "head_width": 0}}}, "heads of open_clip_config.json"),
    ],
)
def test_what_openclips_json_says_and_is_not_understood_is_told(config, line):
    assert any(line in remark for remark in read_open_clip(config, Path("x")).remarks)


@pytest.mark.parametrize(
    ("vision", "said"),
    [
        ({"attentional_pool": True}, "attentional_pool=True"),
        ({"qk_norm": True}, "qk_norm=True"),
        ({"layers": [3, 4, 6, 3]}, r"layers=\[3, 4, 6, 3\]"),
        ({"pool_type": "avg", "no_ln_pre": True}, "final_ln_after_pool=False, no_ln_pre=True"),
        ({"timm_model_name": "vit_medium_patch16_gap_256", "timm_proj": "linear"}, "timm_proj='linear'"),
        ({"timm_model_name": "vit_relpos_medium_patch16_cls_224"}, "relative positions of another kind"),
        ({"timm_model_name": "vit_medium_patch16_gap_256"}, "timm_proj='linear'"),
        ({"act_kwargs": {"approximate": "x"}}, "act_kwargs={'approximate': 'x'}"),
        ({"act_kwargs": [1]}, r"act_kwargs=\[1\]"),
        ({"norm_kwargs": {"bias": False}}, "norm_kwargs={'bias': False}"),
        ({"norm_kwargs": {"eps": 0}}, "epsilon of a norm(.|\n)*: 0 in"),
        ({"num_heads": 3}, "num_heads=3"),
    ],
)
def test_tower_of_openclip_that_is_not_computed_here_is_refused(vision, said):
    with pytest.raises(CheckpointError, match=said):
        read_open_clip({"model_cfg": {"vision_cfg": vision}}, Path("x"))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (timm({"global_pool": "avgmax"}), r"pooling(.|\n)*'avgmax'"),
        (timm() | {"num_classes": 7}, "classes 7, and"),
        (timm() | {"num_classes": 0}, "classes 0, and"),
        (timm(num_classes=7), "classes 7, and"),
        (timm({"num_classes": 5}) | {"num_classes": 7}, "num_classes 7, and 5 in model_args"),
    ],
)
def test_a_pooling_or_a_head_that_timm_alone_computes_is_refused(folder, config, said):
    with pytest.raises(CheckpointError, match=said):
        read_checkpoint(folder("timm_token", config=config))


def test_a_class_token_that_is_said_and_is_not_there_is_refused(folder):
    config = timm({"global_pool": "avg", "class_token": True})
    arrays = load_file(folder("timm_map", config=config) / "model.safetensors")
    assert "cls_token" not in arrays
    with pytest.raises(CheckpointError, match="class_token True, and False"):
        keras_vit.build("Ti/16", weights=folder("timm_map", config=config), **SIZES)


@pytest.mark.parametrize(
    ("case", "config"),
    [("timm_token", timm({"img_size": [16, 64]})), ("huggingface_vit", {"image_size": [16, 64], "patch_size": 8})],
)
def test_image_size_of_the_json_is_the_grid_of_the_positions(folder, case, config):
    path = folder(case, config=config)
    assert read_checkpoint(path).grid == (2, 8)
    assert keras_vit.build("Ti/16", weights=path, **SIZES).input_shape == (None, 16, 64, 3)


@pytest.mark.parametrize("size", [64, [32, 40]])
def test_a_noted_grid_that_the_table_has_not_is_refused(folder, size):
    with pytest.raises(CheckpointError, match=r"grid .* 17 rows"):
        read_checkpoint(folder("huggingface_vit", config={"image_size": size}))
    assert read_checkpoint(folder("huggingface_vit", config={"image_size": size}), grid=(2, 8)).grid == (2, 8)


@pytest.mark.parametrize(
    ("files", "line"),
    [
        ({"config": ""}, "config.json not understood (Expecting value"),
        ({"config": "[1]"}, "config.json not understood (list)"),
        ({"config": '{"id2label": {"0": "a", "0": "b"}}'}, "config.json not understood (the name '0' twice)"),
        ({"preprocessor_config": "{"}, "preprocessor_config.json not understood"),
        (
            {"processor_config": {"image_processor": {"do_pad": True, **PROCESSOR}}},
            "do_pad of processor_config.json not",
        ),
        ({"config": {"num_attention_heads": 5}}, "not understood (5 do not divide 48)"),
        ({"config": {"num_attention_heads": True}}, "num_attention_heads of config.json not understood (True)"),
        ({"config": {"num_attention_heads": 10**4000}}, "num_attention_heads of config.json not understood (1000"),
        ({"config": {"image_size": [10**4000, 10**4000]}}, "image_size of config.json not understood (1000"),
        ({"config": {"image_size": 10**400}}, "image_size of config.json not understood (1000"),
        ({"config": '{"hidden_size": ' + "9" * 5000 + "}"}, "config.json not understood (Exceeds the limit"),
        ({"config": {"image_size": [32]}}, "image_size of config.json not understood (size [32])"),
        ({"preprocessor_config": PROCESSOR | {"do_pad": True}}, "do_pad of preprocessor_config.json not understood"),
        (
            {"config": {"id2label": ["a", "b"], "label2id": {"a": 1, "b": 0}}},
            "label2id of config.json contradicts its id2",
        ),
        (OTHER_SIZE | {"config": {"model_type": "vit"}}, "photos of 64 x 64 by preprocessor_config.json, where"),
        *(
            (
                {"preprocessor_config": PROCESSOR | said},
                f"preprocessing of preprocessor_config.json not understood ({why}",
            )
            for said, why in NOT_UNDERSTOOD
        ),
    ],
)
def test_unknown_words_of_transformers_json_are_reported_and_strict_refuses_them(folder, recwarn, files, line):
    path = folder("huggingface_vit", **files)
    model = keras_vit.build("Ti/16", weights=path, **SIZES)
    of_photos = "config" not in files or any(
        word in line for word in ("Expecting", "Exceeds", "(list)", "twice", "photos of", "contradicts")
    )
    assert any(line in str(warning.message) for warning in recwarn) == of_photos  # which commands print
    assert [line in told for told in model.load_report if "2 class names" not in told] == [True]
    with pytest.raises(CheckpointError, match=r"not understood|photos of 64|contradicts"):
        keras_vit.build("Ti/16", weights=path, strict=True, **SIZES)


def of_timm(**arguments):
    small = {"patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4}
    return {"architecture": "vit_base_patch16_224", **timm(small | arguments, input_size=[3, 64, 64])}


@pytest.mark.parametrize(
    ("case", "config", "has_line"),
    [
        ("timm_token", of_timm(img_size=32), 1),
        ("timm_token", of_timm(), 0),  # timm resizes the table then
        ("timm_token", of_timm(img_size=32, dynamic_img_size=True), 0),
        ("huggingface_vit", {"model_type": "vit", "image_size": 39}, 0),  # of 4 patches of 8 pixels
        ("huggingface_vit", {}, 0),  # of no family
    ],
)
def test_photos_of_another_size_than_the_positions_are_named_where_the_software_refuses_them(
    folder, case, config, has_line
):
    """DINOv2 is published with a table for 518 pixels and photos of 224, which its class resizes the table to."""
    size = {"size": 38} if "image_size" in config else {}
    files = {} if case == "timm_token" else {"preprocessor_config": OTHER_SIZE["preprocessor_config"] | size}
    remarks = read_checkpoint(folder(case, config=config, **files)).remarks
    assert sum(line.startswith("photos of") for line in remarks) == has_line


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"pretrained_cfg": 3}, "config.json not understood (pretrained_cfg 3)"),
        (timm(interpolation="random"), "(interpolation='random')"),
        (timm(crop_mode="border"), "photos that are not square are squashed, where crop_mode border"),
        (timm(crop_mode="rim"), "(crop_mode rim)"),
        (timm(std=[0, 1, 1]), "std=(0.0, 1.0, 1.0))"),
        (timm({"num_heads": "4"}), "num_heads of config.json not understood ('4')"),
    ],
)
def test_what_timms_json_says_and_is_not_understood_is_told(folder, config, line):
    model = keras_vit.build("Ti/16", weights=folder("timm_token", config=config), **SIZES)
    assert [line in told for told in model.load_report] == [True]


CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (("DeiTImageProcessor", {"size": 36, "crop_size": 32}), ("squash_crop", 32 / 36, (0.5, 0.5, 0.5))),
        (("BeitFeatureExtractor", {"size": 36, "crop_size": 32, "do_center_crop": True}), ("squash_crop", 32 / 36)),
        (("BeitImageProcessor", {"size": 32}), ("squash", 1.0, (0.5, 0.5, 0.5), "bicubic")),
        (("SiglipImageProcessor", {"size": 32}), ("squash", 1.0, (0.5, 0.5, 0.5), "bicubic")),
        (("ViTImageProcessor", {"size": 32}), ("squash", 1.0, (0.5, 0.5, 0.5), "bilinear")),
        (("CLIPImageProcessorFast", {"size": 36, "crop_size": 32}), ("crop", 32 / 36, CLIP_STD)),
        (("BitImageProcessor", {"size": {"shortest_edge": 36}, "crop_size": 32}), ("crop", 32 / 36, CLIP_STD)),
        (
            ("CLIPImageProcessor", {"size": {"height": 36, "width": 36}, "crop_size": 32, "do_center_crop": None}),
            ("squash_crop", 32 / 36, CLIP_STD),
        ),
        (("DINOv3ViTImageProcessor", {"size": 32}), ("squash", 1.0, (0.229, 0.224, 0.225))),
    ],
)
def test_processor_that_is_silent_has_the_values_of_its_class(folder, processor, expected):
    name, given = processor
    word = "feature_extractor_type" if name.endswith("Extractor") else "image_processor_type"
    found = read_checkpoint(folder("huggingface_vit", preprocessor_config={word: name, **given})).preprocessing
    assert (found.resize, found.crop_fraction, found.std, found.interpolation)[: len(expected)] == expected
    assert found.image_size == (32, 32)


@pytest.mark.parametrize("mode", ["squash", "border"])  # of a square photo both are the same
def test_timms_squash_cuts_the_centre_out_below_a_fraction_of_one(folder, mode):
    config = timm(crop_mode=mode, crop_pct=0.9, interpolation="bicubic")
    assert read_checkpoint(folder("timm_token", config=config)).preprocessing.resize == "squash_crop"


def test_images_that_are_not_normalised_have_a_record(folder):
    whole = {"image_processor": PROCESSOR | {"do_normalize": False}}  # as transformers 5 writes it, which comes first
    said = read_checkpoint(folder("huggingface_vit", preprocessor_config=PROCESSOR, processor_config=whole))
    assert (said.preprocessing.value_range, said.remarks) == ((0, 1), ())


@pytest.fixture
def edited_note(tmp_path):
    """A file of ours with some entries of its note replaced."""
    from keras_vit.weights.convert import write_safetensors
    from keras_vit.weights.read import scan

    path = tmp_path / "x.safetensors"
    with pytest.warns(UserWarning, match="GELU"):
        keras_vit.save_checkpoint(make_tiny(), path, "timm")

    def edit(**entries):
        write_safetensors(path, load_file(path).items(), scan(path).note | entries)
        return path

    return edit


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ({"config": [1]}, "config of the file's note not understood ([1])"),
        ({"config": {"layer_norm_epsilon": float("nan")}}, "(layer_norm_epsilon=nan)"),
        ({"num_heads": 5}, "not understood (5 do not divide 12)"),
        ({"position_grid": [True, 35]}, "position_grid of the file's note not understood"),
        ({"preprocessing": {"mean": [0.1]}}, "preprocessing of the file's note not understood (mean=(0.1,)"),
        ({"preprocessing": 3}, "preprocessing of the file's note not understood (3)"),
    ],
)
def test_a_damaged_note_is_told_in_one_line(edited_note, entries, line):
    remarks = read_checkpoint(edited_note(**entries)).remarks
    assert [line in told for told in remarks] == [True]


@pytest.mark.filterwarnings("ignore:.* prepares photos otherwise")
@pytest.mark.parametrize(
    ("layout", "edit", "words"),
    [
        ("huggingface", {}, ()),
        ("timm", {}, ()),
        (
            "huggingface",
            {"num_attention_heads": 1, "hidden_act": "gelu", "layer_norm_eps": 1e-3},
            ("set aside activation gelu, layer_norm_epsilon 0.001, num_heads 1 of", "activation gelu_tanh, layer_norm"),
        ),
        ("huggingface", {"num_hidden_layers": 7}, ("set aside num_layers 7 of", "followed: num_layers 1")),
        ("huggingface", {"hidden_act": "relu"}, ("set aside the folder's JSON ('relu' in ",)),
        (
            "timm",
            {"model_args": {"global_pool": "avg"}},
            ("set aside pooling gap, ", "followed: pooling token"),
        ),
        ("timm", {"pretrained_cfg": PRETRAINED}, ("set aside mean (0.4, 0.4, 0.4), std (", "followed: mean (0.5, ")),
    ],
)
def test_json_that_was_edited_beside_a_file_of_ours_is_told(tmp_path, layout, edit, words):
    model = make_tiny(num_layers=1, pooling="token")
    keras_vit.save_checkpoint(model, tmp_path / "x", layout)
    place = tmp_path / "x" / "config.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | edit))
    with pytest.warns(UserWarning, match="a model is computed otherwise") if edit else contextlib.nullcontext():
        found = keras_vit.build(weights=tmp_path / "x")
    assert (found.config.num_heads, found.config.activation) == (3, "gelu_tanh")
    lines = [line for line in found.load_report if line.endswith("followed") or "followed:" in line]
    assert [[word in line for word in words] for line in lines] == [[True] * len(words)] * bool(edit)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"layer_norm_epsilon": 1e-3}, "layer_norm_epsilon 0.001, where the file says 1e-06"),
        ({"pooling": "gap", "class_token": True}, "pooling gap, where the file says token"),
        ({"activation": "gelu"}, "activation gelu, where the file says gelu_tanh"),
    ],
)
def test_what_is_computed_otherwise_than_the_file_says_is_told_and_strict_refuses_it(tmp_path, fields, line):
    keras_vit.save_checkpoint(make_tiny(), tmp_path / "x.npz")
    config = tiny_config(**fields)
    assert keras_vit.build(config, weights=tmp_path / "x.npz").load_report == (line,)
    with pytest.raises(CheckpointError, match=line):
        keras_vit.build(config, weights=tmp_path / "x.npz", strict=True)


def test_epsilons_of_1e_6_and_1e_12_are_one(tmp_path):
    keras_vit.save_checkpoint(make_tiny(), tmp_path / "x.npz")
    config = tiny_config(layer_norm_epsilon=1e-12)
    assert keras_vit.build(config, weights=tmp_path / "x.npz", strict=True).load_report == ()


@pytest.mark.parametrize(
    ("kind", "word"),
    [("aimv2_vision_model", "rms"), ("sapiens2", "rms"), ("internvl_vision", "layer"), ("vit", "layer")],
)
def test_epsilon_is_that_of_the_word_which_transformers_reads_for_the_family(kind, word):
    config = {"model_type": kind, "layer_norm_eps": 0.1, "rms_norm_eps": 0.1, f"{word}_norm_eps": 1e-5}
    assert read_transformers(config, {}, Path("x")).fields["layer_norm_epsilon"] == 1e-5


def test_a_sincos_file_that_is_loaded_as_a_learned_table_is_told(tmp_path):
    keras_vit.save_checkpoint(make_tiny(position_embedding="sincos2d"), tmp_path / "x.npz")
    model = keras_vit.build(tiny_config(), weights=tmp_path / "x.npz")
    assert model.load_report == ("position_embedding learned, where the file says sincos2d",)


def test_a_file_that_lacks_a_table_for_sincos_is_told_where_the_model_has_no_positions():
    path = FOREIGN / "big_vision_sincos.npz"
    model = keras_vit.build("Ti/16", weights=path, position_embedding="none", input_shape=(32, 32, 3), **SIZES)
    assert model.load_report == ("position_embedding none, where big_vision computes sincos2d",)


@pytest.mark.parametrize(("layout", "kind"), [("big_vision", "sincos2d"), ("timm", "none"), ("official", "none")])
def test_a_file_without_a_table_reopens_at_its_resolution(tmp_path, layout, kind):
    config = tiny_config(position_embedding=kind, pooling="gap", activation="gelu" if layout == "timm" else "gelu_tanh")
    model = randomise(keras_vit.build(config, input_shape=(20, 28, 3), classes=7))
    destination = tmp_path / ("folder" if layout == "timm" else "x.npz")
    path = keras_vit.save_checkpoint(model, destination, layout)
    again = keras_vit.build("Ti/16", weights=path, patch_size=4, hidden_size=12, num_layers=2, num_heads=3, mlp_dim=17)
    assert again.input_shape == (None, 20, 28, 3)
    x = images(2, 20, 28, 3)
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))


def test_the_files_channels_are_the_models(tmp_path):
    keras_vit.save_checkpoint(make_tiny(input_shape=(20, 28, 5)), tmp_path / "x.npz")
    assert keras_vit.build(tiny_config(), weights=tmp_path / "x.npz").input_shape == (None, 20, 28, 5)
    with pytest.raises(CheckpointError, match=r"\(4, 4, 5, 12\)  model \(4, 4, 3, 12\)"):
        keras_vit.build(tiny_config(), weights=tmp_path / "x.npz", input_shape=(20, 28, 3))


@pytest.mark.parametrize(
    ("layout", "field", "of_file", "written"),
    [
        ("timm", "activation", "gelu", "gelu_tanh"),
        ("huggingface", "activation", "gelu", "gelu_tanh"),
        ("huggingface", "layer_norm_epsilon", 1e-12, 1e-6),
    ],
)
def test_value_that_the_caller_writes_stands_and_one_left_out_is_the_files(tmp_path, layout, field, of_file, written):
    sizes = {"patch_size": 4, "hidden_size": 12, "num_layers": 2, "num_heads": 3, "mlp_dim": 20}
    said = {"activation": "gelu", "layer_norm_epsilon": 1e-12} if layout == "huggingface" else {"activation": "gelu"}
    model = randomise(keras_vit.build(keras_vit.ViTConfig(**sizes, **said), input_shape=(16, 16, 3), classes=3))
    folder = keras_vit.save_checkpoint(model, tmp_path / "saved", layout)
    open_config, written_config = keras_vit.ViTConfig(**sizes), keras_vit.ViTConfig(**sizes, **{field: written})
    assert getattr(keras_vit.build(open_config, weights=folder).config, field) == of_file
    assert getattr(keras_vit.build(open_config, weights=folder, **{field: None}).config, field) == of_file
    for found in (
        keras_vit.build(written_config, weights=folder),
        keras_vit.build(open_config, weights=folder, **{field: written}),
        keras_vit.build(written_config.replace(dropout_rate=0.1), weights=folder),
    ):
        assert getattr(found.config, field) == written
        assert getattr(found.get_layer("block_00"), field) == written
    assert keras_vit.build(open_config, input_shape=(16, 16, 3)).config.blocks.unspecified == ()  # it is computed so


def test_timms_first_form_of_one_object_has_names_and_pixels(folder):
    """As timm reads it: `labels` are its names, and everything else is of photos."""
    said = {"labels": ["zebra", "okapi"], "mean": [0.1, 0.2, 0.3], "std": [0.4] * 3, "input_size": [3, 20, 28]}
    path = folder("timm_token", config={"architecture": "mine", "crop_pct": 0.9, **said})
    found = read_checkpoint(path)
    assert found.recorded_names == ("zebra", "okapi")
    assert (found.preprocessing.mean, found.preprocessing.crop_fraction) == ((0.1, 0.2, 0.3), 0.9)
