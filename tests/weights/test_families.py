"""Every layout, there and back: bitwise, and with what the file says of itself."""

import dataclasses
import functools
import json
import shutil
import warnings

import numpy as np
import pytest
from conftest import GOLDEN, images, make_tiny, numpy, randomise, tiny_config
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import convert_checkpoint
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.families import LAYOUTS, recognize
from keras_vit.weights.read import CheckpointError

FOREIGN = GOLDEN / "foreign"
ENCODERS = GOLDEN / "encoders"
DEIT = keras_vit.Preprocessing(
    resize="crop", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), interpolation="bicubic", antialias=True
)
MODELS = {
    "token": {},
    "gap": {"pooling": "gap"},
    "map": {"pooling": "map"},
    "distilled": {"distilled": True, "activation": "gelu"},
    "exact": {"activation": "gelu", "layer_norm_epsilon": 1e-12},
    "sincos": {"pooling": "gap", "position_embedding": "sincos2d"},
    "pre_logits": {"representation_size": 9},
    "root": {"resnet_stages": (), "resnet_width_factor": 0.5},
    "stages": {"resnet_stages": (1, 2), "resnet_width_factor": 0.5},
}
BARE = {
    "official": ("gelu_tanh", 1e-6),
    "big_vision": ("gelu_tanh", 1e-6),
    "timm": ("gelu", 1e-6),
    "huggingface": ("gelu", 1e-12),
    "huggingface_beit": ("gelu", 1e-12),
    "huggingface_clip": ("quick_gelu", 1e-5),
    "huggingface_siglip": ("gelu_tanh", 1e-6),
    "open_clip": ("gelu", 1e-5),
    "dinov2": ("gelu", 1e-6),
    "dinov3": ("gelu", 1e-5),
}
NO_PLACE = {  # what a layout cannot hold
    ("official", "map"),
    ("official", "distilled"),
    ("linen", "map"),
    ("linen", "distilled"),
    ("big_vision", "distilled"),
    ("big_vision", "root"),
    ("big_vision", "stages"),
    ("timm", "pre_logits"),
    ("huggingface", "map"),
    ("huggingface", "pre_logits"),
    ("huggingface", "root"),
    ("huggingface", "stages"),
}
CONVERTIBLE = [
    "official",
    "linen",
    "big_vision",
    "timm",
    "huggingface",
]  # the others: test_bit_files.py, test_encoders.py
HELD = [(d, m) for d in CONVERTIBLE for m in MODELS if (d, m) not in NO_PLACE]


@functools.cache
def make(kind):
    """A model that tests read and do not change."""
    config = tiny_config(**MODELS[kind])
    return randomise(keras_vit.build(config, input_shape=(config.stride * 3, config.stride * 5, 3), classes=7))


def path_for(folder, layout):
    return folder / f"x{LAYOUTS[layout].suffix}"


def save(model, path, layout):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of another GELU or pooling, which have tests of their own
        return keras_vit.save_checkpoint(model, path, layout)


@pytest.mark.parametrize(("layout", "kind"), HELD)
def test_model_to_file_and_back_is_bitwise(tmp_path, layout, kind):
    model = make(kind)
    path = save(model, path_for(tmp_path, layout), layout)
    again = keras_vit.build(model.config, weights=path)
    assert (again.input_shape, again.load_report) == (model.input_shape, ())  # the grid travels in the file
    moved = {"token", "table"} if layout == "big_vision" else set()  # the token's row goes into the token
    for ours, theirs in zip(model.weights, again.weights, strict=True):
        if ours.name not in moved:
            np.testing.assert_array_equal(numpy(ours), numpy(theirs), err_msg=ours.path)
    if moved:
        x = images(2, *model.input_shape[1:])
        np.testing.assert_allclose(numpy(model(x)), numpy(again(x)), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("layout", "kind"), sorted(NO_PLACE))
def test_what_a_layout_cannot_hold_is_refused_and_leaves_no_file(tmp_path, layout, kind):
    with pytest.raises(CheckpointError, match=rf"{layout}|transformers"):
        save(make(kind), path_for(tmp_path, layout), layout)
    assert list(tmp_path.iterdir()) == []


NPZ = ["token", "token_representation", "gap", "hybrid_root", "hybrid_stages"]
OTHERS = [*((GOLDEN, f"{case}.npz", "official", np.load) for case in NPZ)]
OTHERS += [(FOREIGN, f"timm_{case}.safetensors", "timm", load_file) for case in ("token", "map", "distilled")]


@pytest.mark.parametrize(("folder", "name", "layout", "read"), OTHERS)
def test_file_of_other_software_to_ours_and_back_is_bitwise(tmp_path, folder, name, layout, read):
    convert_checkpoint(folder / name, tmp_path / name, layout)
    theirs, back = (dict(read(path)) for path in (folder / name, tmp_path / name))
    assert set(theirs) == set(back)
    for key, array in theirs.items():
        np.testing.assert_array_equal(array, back[key])


HUB_NAMES = {  # of a block in transformers 5, and in the files of the hub
    **{f"attention.{part[0]}_proj": f"attention.attention.{part}" for part in ("query", "key", "value")},
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
    **{name: name for name in ("layernorm_before", "layernorm_after")},
}


@pytest.mark.parametrize("case", ["huggingface_vit", "huggingface_deit"])
def test_transformers_file_to_ours_and_back_is_bitwise(tmp_path, case):
    """The file has the names of transformers 5, ours those of the hub: compared by our paths, and name by name."""
    files = FOREIGN / f"{case}.safetensors", tmp_path / "x.safetensors"
    convert_checkpoint(*files, "huggingface")
    theirs, back = (read_checkpoint(path).tensors for path in files)
    assert set(theirs) == set(back)
    for path, array in theirs.items():
        np.testing.assert_array_equal(array, back[path])
    theirs, back = map(load_file, files)
    kind = case.partition("_")[2]
    for name, of_hub in HUB_NAMES.items():
        for leaf in ("weight", "bias"):
            hub = back[f"{kind}.encoder.layer.1.{of_hub}.{leaf}"]
            np.testing.assert_array_equal(theirs[f"{kind}.layers.1.{name}.{leaf}"], hub)


def test_bare_file_has_the_activation_and_epsilon_of_its_software():
    """Typed from each software's own defaults: the names of transformers' `ViTConfig` are `gelu` and 1e-12."""
    found = {name: (LAYOUTS[name].activation, LAYOUTS[name].layer_norm_epsilon) for name in BARE}
    assert found == BARE


@pytest.mark.parametrize("layout", CONVERTIBLE)
def test_file_of_ours_remembers_what_tensors_do_not_tell(tmp_path, layout):
    model = keras_vit.build(tiny_config(**MODELS["exact"]), input_shape=(12, 48, 3), classes=7)
    model.preprocessing = DEIT
    said = read_checkpoint(save(model, path_for(tmp_path, layout), layout))
    assert (said.fields["activation"], said.fields["layer_norm_epsilon"]) == ("gelu", 1e-12)
    assert (said.layout, said.grid, said.num_heads, said.preprocessing) == (layout, (3, 12), 3, DEIT)


@pytest.mark.filterwarnings("ignore:images reach the model:UserWarning")  # they are no photos
@pytest.mark.parametrize(("layout", "kind"), [("timm", "token"), ("timm", "distilled"), ("huggingface", "exact")])
def test_folder_tells_its_reader_everything_without_our_note(tmp_path, layout, kind):
    model = randomise(keras_vit.build(tiny_config(**MODELS[kind]), input_shape=(20, 20, 3), classes=7))
    rounding = "timm" if layout == "timm" else "transformers"
    model.preprocessing = dataclasses.replace(DEIT, image_size=(20, 20), crop_fraction=0.5, rounding=rounding)
    path = keras_vit.save_checkpoint(model, tmp_path / "folder", layout)
    assert path == tmp_path / "folder" / "model.safetensors"
    save_file(load_file(path), path)  # drops the note
    said = read_checkpoint(path)
    assert said.fields["activation"] == model.config.activation
    assert said.fields["layer_norm_epsilon"] == model.config.layer_norm_epsilon
    assert (said.num_heads, said.preprocessing) == (3, model.preprocessing)
    again = keras_vit.build(model.config, weights=tmp_path / "folder")
    x = images(2, 20, 20, 3)
    np.testing.assert_array_equal(numpy(model(x)), numpy(again(x)))


@pytest.mark.parametrize("layout", ["timm", "huggingface"])
def test_folder_says_its_gelu(tmp_path, layout):
    keras_vit.save_checkpoint(make_tiny(), tmp_path / "folder", layout)  # says so itself: warnings are errors here
    activation = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert "gelu_tanh" in json.dumps(activation) or "gelu_pytorch_tanh" in json.dumps(activation)


@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/", "img/", "params/img/"])
def test_big_vision_prefixes_are_taken_off(prefix):
    names = [f"{prefix}{name}" for name in ("embedding/kernel", "pos_embedding")]
    assert recognize("npz", [*names, "opt/0/count", "chrono/steps"]) == ("big_vision", prefix)


def test_sam_files_hold_official_names_below_the_optimizer(tmp_path):
    arrays = {f"opt/target/{name}": array for name, array in np.load(GOLDEN / "token.npz").items()}
    np.savez(tmp_path / "x.npz", **arrays, **{"opt/state/step": np.int32(7)})
    checkpoint = read_checkpoint(tmp_path / "x.npz")
    assert (checkpoint.layout, checkpoint.unused_arrays) == ("official", ("opt/state/step",))
    assert set(checkpoint.tensors) == set(read_checkpoint(GOLDEN / "token.npz").tensors)


@pytest.mark.parametrize("old", ["Transformer/pos_embedding", "with a class row", "inlined head"])
def test_older_big_vision_layouts_are_read(tmp_path, old):
    source = "big_vision_map" if old == "inlined head" else "big_vision_tok"
    arrays = {
        name.removeprefix("params/img/").removeprefix("opt/target/"): array
        for name, array in np.load(FOREIGN / f"{source}.npz").items()
    }
    if old == "inlined head":
        arrays = {name.removeprefix("MAPHead_0/"): array for name, array in arrays.items()}
    elif old == "with a class row":
        row = np.random.default_rng(0).normal(size=(1, 1, 48)).astype("float32")
        arrays["pos_embedding"] = np.concatenate([row, arrays["pos_embedding"]], axis=1)
        arrays["cls"] = arrays["cls"] - row
    else:
        arrays[old] = arrays.pop("pos_embedding")
    np.savez(tmp_path / "x.npz", **arrays)
    config = keras_vit.ViTConfig(8, 48, 3, 4, 96, pooling="map" if old == "inlined head" else "token")
    model = keras_vit.build(config, weights=tmp_path / "x.npz")
    with np.load(FOREIGN / f"{source}.expected.npz") as expected:
        np.testing.assert_allclose(model.predict_on_batch(expected["images"]), expected["logits"], atol=2e-5)


def test_void_bfloat16_is_read_in_big_vision_files_only(tmp_path):  # N8
    arrays = dict(np.load(GOLDEN / "token.npz"))
    arrays["head/kernel"] = arrays["head/kernel"].astype("float16").view("V2")
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(CheckpointError, match="'head/kernel'"):
        read_checkpoint(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("layout", "method"),
    [
        *((d, "align_corners") for d in ("official", "big_vision")),
        ("timm", "bicubic_antialias"),
        ("huggingface", "bicubic"),
    ],
)
def test_positions_are_resized_as_the_layouts_own_software_does(tmp_path, layout, method):
    path = save(make("exact"), path_for(tmp_path, layout), layout)
    model = keras_vit.build(tiny_config(**MODELS["exact"]), weights=path, input_shape=(20, 20, 3))
    assert model.load_report == (f"position embedding resized from (3, 5) to (5, 5) ({method})",)
    whole, x = keras_vit.build(tiny_config(**MODELS["exact"]), weights=path), images(1, 20, 20, 3)
    np.testing.assert_allclose(numpy(keras_vit.with_input_shape(whole, (20, 20, 3))(x)), numpy(model(x)), atol=1e-5)
    any_size = keras_vit.build(tiny_config(**MODELS["exact"]), weights=path, input_shape=(None, None, 3))
    np.testing.assert_allclose(numpy(any_size(x)), numpy(model(x)), atol=1e-5)


def test_builder_follows_what_the_file_decides(tmp_path):
    """By variant name only what is left open follows; these are Ti/16's sizes."""
    fields = {"distilled": True, "activation": "gelu", "num_layers": 1}
    model = randomise(keras_vit.build("Ti/16", input_shape=(32, 48, 3), classes=5, **fields))
    save(model, tmp_path / "x.safetensors", "timm")
    again = keras_vit.ViTTi16(weights=tmp_path / "x.safetensors", num_layers=1)
    assert again.config == model.config
    assert again.input_shape == model.input_shape
    tanh = keras_vit.ViTTi16(weights=tmp_path / "x.safetensors", num_layers=1, activation="gelu_tanh")
    assert tanh.load_report == ("activation gelu_tanh, where the file says gelu",)
    with pytest.raises(CheckpointError, match="activation gelu_tanh, where the file says gelu"):
        keras_vit.ViTTi16(weights=tmp_path / "x.safetensors", num_layers=1, activation="gelu_tanh", strict=True)


def test_conversion_that_lacks_the_number_of_heads_asks_for_it(tmp_path):
    source = FOREIGN / "timm_token.safetensors"
    with pytest.raises(CheckpointError, match="`num_heads=`"):
        convert_checkpoint(source, tmp_path / "x.npz", "official")
    with pytest.warns(UserWarning, match="tanh GELU"):
        convert_checkpoint(source, tmp_path / "x.npz", "official", num_heads=4)
    assert read_checkpoint(tmp_path / "x.npz").num_heads == 4


def test_file_of_two_families_is_asked_for_unless_something_tells(tmp_path):
    """TIPSv2 g/14 and DINOv2 g/14 have the same names, and the same shapes if that has one register."""
    file = shutil.copy(ENCODERS / "huggingface_tipsv2_gated" / "model.safetensors", tmp_path)
    build = functools.partial(keras_vit.build, weights=file, num_heads=3, include_top=False, pooling="none")
    both = r'dinov2_registers \(.*huggingface_tipsv2 \(.*"model_type": "dinov2_registers" or "tipsv2_vision_model"'
    with pytest.raises(CheckpointError, match=both):
        build()
    rules = {"tipsv2_vision_model": "bilinear_antialias", "dinov2_registers": "bicubic_antialias"}
    for kind, rule in rules.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
        assert build().provenance["resize_method"][0] == rule
        assert not any("not known" in line for line in build().load_report)
    (tmp_path / "config.json").unlink()
    tensors = load_file(file)
    save_file(tensors | {"register_tokens": tensors["register_tokens"].repeat(4, axis=1)}, file)
    assert build().config.registers == 4
    assert build().load_report == (
        "set aside mask_token, which no forward pass reads",
        "layer_norm_epsilon 1e-06: as the authors' DINOv2 computes, since the file does not say",
        "registers 4: read off the tensors, since no config says what the model has",
    )


@pytest.mark.parametrize(("folder", "rule"), [("siglip", "bicubic"), ("siglip2", "bilinear_antialias")])
def test_shape_of_the_patches_tells_naflex_from_siglip(tmp_path, folder, rule):
    file = shutil.copy(ENCODERS / f"huggingface_{folder}" / "model.safetensors", tmp_path)
    checkpoint = read_checkpoint(file)
    assert (checkpoint.layout, checkpoint.resize_method) == (f"huggingface_{folder}", rule)
