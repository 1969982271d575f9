"""What saving and converting must refuse or say, since other software would compute something else, or nothing."""

import json
import re
import warnings

import keras
import numpy as np
import pytest
from conftest import GOLDEN, images, make_tiny, numpy, randomise, tiny_config
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import convert_checkpoint, save_checkpoint
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.convert import write_npz, write_safetensors
from keras_vit.weights.read import CheckpointError, scan

TIMM_TOKEN = GOLDEN / "foreign" / "timm_token.safetensors"


@pytest.mark.parametrize(
    ("fields", "name", "layout", "message"),
    [
        ({"layer_norm_epsilon": 1e-3}, "x.npz", "official", "1e-06"),
        ({"layer_norm_epsilon": 1e-3, "activation": "gelu"}, "folder", "timm", "0.001"),
        ({"pooling": "map", "class_token": True}, "x.npz", "big_vision", "class token.* attention pooling"),
        ({"pooling": "gap", "class_token": True}, "x.npz", "big_vision", "class token.* mean pooling"),
        ({"pooling": "gap", "class_token": True}, "x.npz", "official", "class token.* mean pooling"),
        ({"activation": "gelu"}, "x.npz", "official", "tanh GELU"),
        ({}, "x.safetensors", "timm", "exact GELU"),
        ({}, "x.safetensors", "huggingface", "exact GELU"),
    ],
)
def test_what_the_software_computes_otherwise_is_said(tmp_path, fields, name, layout, message):
    with pytest.warns(UserWarning, match=message):
        save_checkpoint(make_tiny(**fields), tmp_path / name, layout)
    assert (tmp_path / name).exists()


def test_a_transformers_folder_says_its_epsilon_itself(tmp_path):
    path = save_checkpoint(make_tiny(layer_norm_epsilon=1e-3), tmp_path / "folder", "huggingface")  # without a warning
    assert json.loads((path.parent / "config.json").read_text())["layer_norm_eps"] == 1e-3


@pytest.mark.parametrize(
    ("fields", "layout", "message"),
    [
        ({"pooling": "none"}, "huggingface", "head on all tokens"),
        ({"position_embedding": "none"}, "huggingface", "without positions"),
        ({"distilled": True}, "big_vision", "^the big_vision layout"),
        ({"resnet_stages": (1,), "resnet_width_factor": 0.5, "patch_size": 1}, "timm", "this ResNet"),
        ({"resnet_stages": (), "resnet_width_factor": 0.5, "patch_size": 1}, "timm", "32 channels"),
    ],
)
def test_what_the_software_has_not_is_refused_and_leaves_nothing(tmp_path, fields, layout, message):
    config = tiny_config(**fields)
    model = keras_vit.build(config, input_shape=(config.stride * 2, config.stride * 3, 3), classes=7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of the other GELU, which big_vision's file has a test for
        with pytest.raises(CheckpointError, match=message):
            save_checkpoint(model, tmp_path / ("x.npz" if layout == "big_vision" else "folder"), layout)
    assert list(tmp_path.iterdir()) == []


def test_a_custom_hybrid_goes_to_timm_as_a_file(tmp_path):
    config = tiny_config(resnet_stages=(1,), resnet_width_factor=0.5, patch_size=1, activation="gelu")
    model = randomise(keras_vit.build(config, input_shape=(8, 12, 3), classes=7))
    save_checkpoint(model, tmp_path / "x.safetensors", "timm")
    assert read_checkpoint(tmp_path / "x.safetensors").measured()[-1] == (1,)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("mode", ["int8", "float8", "one layer"])
def test_a_quantised_model_is_refused_with_what_to_save_instead(tmp_path, mode):
    model = make_tiny(num_layers=1)
    quantised = model.get_layer("block_00").attention.query if mode == "one layer" else model
    quantised.quantize("int8" if mode == "one layer" else mode)
    with pytest.raises(CheckpointError, match=rf"quantised(.|\n)*'{model.name}'.*\.keras"):
        save_checkpoint(model, tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "layout"), [("x.npz", "official"), ("x.safetensors", "timm"), ("folder", "timm")])
def test_weights_that_are_not_finite_are_refused_with_key_and_count_and_leave_nothing(tmp_path, name, layout):
    model = make_tiny(activation="gelu" if layout == "timm" else "gelu_tanh")
    bias = model.get_layer("head").bias
    bias.assign(np.array([0, np.nan, np.inf, 0, 0, 0, 0], "float32"))
    with pytest.raises(CheckpointError, match=r"2 NaN.*'head[./]bias'"):
        save_checkpoint(model, tmp_path / name, layout)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "layout"), [("x.safetensors", "timm"), ("x.npz", "official")])
def test_lora_is_merged_or_has_no_place(tmp_path, name, layout):
    model = keras_vit.add_lora(make_tiny(activation="gelu_tanh" if layout == "official" else "gelu"), 2)
    for weight in model.trainable_weights:
        weight.assign(weight + 0.1)
    bare = keras.Model(model.input, model.output)
    with pytest.raises(CheckpointError, match=rf"{layout}(.|\n)*24 of 64(.|\n)* block_00/attention/query/lora"):
        save_checkpoint(bare, tmp_path / name, layout)
    assert list(tmp_path.iterdir()) == []
    loaded = make_tiny(activation=model.config.activation)
    keras_vit.load_checkpoint(loaded, save_checkpoint(model, tmp_path / name, layout))
    x = images(2, 20, 28, 3)
    np.testing.assert_allclose(numpy(loaded(x)), numpy(model(x)), atol=1e-5)  # A B is added to a kernel first


@pytest.mark.parametrize(("layout", "name"), [("official", "x.npz"), ("timm", "x.safetensors")])
def test_file_without_its_last_block_is_no_smaller_model(tmp_path, layout, name):
    activation = "gelu_tanh" if layout == "official" else "gelu"
    path = save_checkpoint(make_tiny(num_layers=3, activation=activation), tmp_path / name, layout)
    file = scan(path)
    kept = {key: array for key, array in file.read(list(file.entries)).items() if not re.search("(_|s.)2[/.]", key)}
    (write_npz if layout == "official" else write_safetensors)(path, kept.items(), file.note)
    with pytest.raises(CheckpointError, match="num_layers 3, and 2 in the file"):
        keras_vit.build(weights=path)


def test_a_folder_that_was_there_stays_after_a_fault(tmp_path):
    model = make_tiny(activation="gelu")
    (tmp_path / "folder").mkdir()
    model.get_layer("head").bias.assign(np.full(7, np.nan, "float32"))
    with pytest.raises(CheckpointError, match="finite"):
        save_checkpoint(model, tmp_path / "folder", "timm")
    assert (tmp_path / "folder").is_dir()


def test_a_model_without_positions_goes_to_a_folder_with_its_image_size(tmp_path):
    model = make_tiny(position_embedding="none", activation="gelu")
    path = save_checkpoint(model, tmp_path / "folder", "timm")
    save_file(load_file(path), path)  # drops the note
    said = read_checkpoint(path)
    assert (said.image_size, said.fields["position_embedding"]) == ((20, 28), "none")


def test_a_folder_is_read_loaded_and_converted(tmp_path):
    model = make_tiny(activation="gelu")
    save_checkpoint(model, tmp_path / "folder", "timm")
    twin = keras.models.clone_model(model)
    assert keras_vit.load_checkpoint(twin, tmp_path / "folder", strict=True) == ()
    x = images(2, 20, 28, 3)
    np.testing.assert_array_equal(numpy(twin(x)), numpy(model(x)))
    convert_checkpoint(tmp_path / "folder", tmp_path / "x.safetensors", "huggingface")
    assert read_checkpoint(tmp_path / "x.safetensors").grid == (5, 7)
    with pytest.raises(FileNotFoundError):
        read_checkpoint(tmp_path / "nothing")


@pytest.fixture
def rectangular(tmp_path):
    """A timm file of 14 patches and no word on grid, heads and activation."""
    arrays = load_file(TIMM_TOKEN)
    arrays["pos_embed"] = np.ascontiguousarray(arrays["pos_embed"][:, :15])
    save_file(arrays, tmp_path / "x.safetensors")
    return tmp_path / "x.safetensors"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "number of heads and the image size.*`num_heads=` and `grid=`"),
        ({"num_heads": 4}, "the image size.*`grid=`"),
        ({"grid": (2, 7)}, "the number of heads.*`num_heads=`"),
    ],
)
def test_conversion_to_a_folder_names_what_it_lacks(tmp_path, rectangular, arguments, message):
    with pytest.raises(CheckpointError, match=f"(?s){message}"):
        convert_checkpoint(rectangular, tmp_path / "folder", "timm", **arguments)
    assert not (tmp_path / "folder").exists()


def test_conversion_takes_grid_and_heads(tmp_path, rectangular):
    path = convert_checkpoint(rectangular, tmp_path / "folder", "timm", grid=(2, 7), num_heads=4)
    said = read_checkpoint(path)
    assert (said.grid, said.num_heads) == ((2, 7), 4)


@pytest.mark.parametrize(
    ("num_heads", "error", "message"),
    [
        (5, ValueError, "num_heads=5, width 48"),
        (2.0, TypeError, "`num_heads`"),
        (0, ValueError, "`num_heads`"),
    ],
)
def test_conversion_refuses_a_number_of_heads(tmp_path, num_heads, error, message):
    with pytest.raises(error, match=message):
        convert_checkpoint(TIMM_TOKEN, tmp_path / "x.npz", "official", num_heads=num_heads)


def test_conversion_refuses_another_number_of_heads_than_the_files(tmp_path):
    with pytest.raises(ValueError, match="num_heads=6"):
        convert_checkpoint(GOLDEN / "token.npz", tmp_path / "x.npz", "linen", num_heads=6)


DISTILLED = (
    "set aside distillation_token, to which the file's patches attend",
    "set aside row 1 of position_embedding, the distillation token's",
    "set aside head_distillation (12, 7)",
)


@pytest.mark.parametrize(("arguments", "lines"), [({}, ()), ({"classes": 5}, ("new head", "set aside head (12, 7)"))])
def test_a_distilled_file_without_its_distillation_says_what_is_set_aside(tmp_path, arguments, lines):
    model = make_tiny(distilled=True, activation="gelu")
    save_checkpoint(model, tmp_path / "x.safetensors", "timm")
    plain = keras_vit.build(tiny_config(activation="gelu"), weights=tmp_path / "x.safetensors", **arguments)
    assert plain.load_report == (*DISTILLED, *lines)
    expected = np.delete(numpy(model.get_layer("position_embedding").table), 1, axis=1)
    np.testing.assert_array_equal(numpy(plain.get_layer("position_embedding").table), expected)
    with pytest.raises(CheckpointError, match="set aside distillation_token"):
        keras_vit.build(tiny_config(activation="gelu"), weights=tmp_path / "x.safetensors", strict=True, **arguments)


def test_a_deit_file_with_one_head_reads_the_class_token_alone(tmp_path):
    model = make_tiny(distilled=True, activation="gelu")
    save_checkpoint(model, tmp_path / "x.safetensors", "huggingface")
    arrays = {
        name.replace("cls_classifier", "classifier"): array
        for name, array in load_file(tmp_path / "x.safetensors").items()
        if "distillation_classifier" not in name
    }
    save_file(arrays, tmp_path / "x.safetensors")
    sizes = {"patch_size": 4, "hidden_size": 12, "num_layers": 2, "num_heads": 3, "mlp_dim": 17}
    sizes |= {"weights": tmp_path / "x.safetensors", "input_shape": (20, 28, 3)}
    for end in ({}, {"classes": 3}, {"include_top": False}):
        config = keras_vit.build("Ti/16", **sizes, **end).config
        assert (config.distilled, config.class_tokens, config.pooled_indices) == (False, 2, (0,))
    with pytest.raises(ValueError, match="distilled=True with class_tokens=2"):
        keras_vit.build("Ti/16", distilled=True, **sizes)


NAMES = ["Ähre", "Igel", "Katze, graue", "a", "b", "c", "d"]


def test_class_names_stand_in_every_file_and_are_read_from_it(tmp_path):
    for layout, name in (("official", "x.npz"), ("huggingface", "hf"), ("timm", "x.safetensors"), ("timm", "timm")):
        model = make_tiny(num_layers=1, activation="gelu_tanh" if layout == "official" else "gelu")
        model.class_names = tuple(NAMES)
        file = save_checkpoint(model, tmp_path / name, layout)
        assert read_checkpoint(file).class_names == model.class_names
        keras_vit.convert_checkpoint(file, tmp_path / f"again-{name}", layout)
        assert read_checkpoint(tmp_path / f"again-{name}").class_names == model.class_names
    built = keras_vit.build(weights=tmp_path / "timm")
    assert built.class_names == keras_vit.with_input_shape(built, (32, 16, 3)).class_names == model.class_names
    assert keras_vit.build(weights=tmp_path / "timm", classes=3).class_names is None  # a new head
    with pytest.raises(ValueError, match=r"order(?s:.*)'Igel' where the model has 'Ähre'"):
        save_checkpoint(model, tmp_path / "other", "timm", labels=[NAMES[1], NAMES[0], *NAMES[2:]])


def test_labels_stand_in_the_json_of_a_folder(tmp_path):
    path = save_checkpoint(make_tiny(), tmp_path / "a", "huggingface", labels=NAMES)
    config = json.loads((path.parent / "config.json").read_text("utf-8"))
    assert config["id2label"] == dict(zip("0123456", NAMES, strict=True))
    assert config["label2id"] == {name: k for k, name in enumerate(NAMES)}
    (path.parent / "config.json").write_text(
        json.dumps(config | {"id2label": dict(zip("1234567", NAMES, strict=True))})
    )
    assert [line for line in read_checkpoint(path).remarks if "id2label of config.json not understood" in line]
    path = save_checkpoint(make_tiny(activation="gelu"), tmp_path / "b", "timm", labels=tuple(NAMES))
    assert json.loads((path.parent / "config.json").read_text("utf-8"))["label_names"] == NAMES


@pytest.mark.parametrize(
    ("labels", "name", "error", "message"),
    [
        (NAMES[:6], "folder", ValueError, "6 names for 7 classes"),
        ([*NAMES[:6], "Igel"], "folder", ValueError, "'Igel' 2 times"),
        ([*NAMES[:6], ""], "folder", ValueError, "empty"),
        ([*NAMES[:6], 3], "folder", TypeError, "strings"),
        ("abcdefg", "folder", TypeError, "list"),
        ({*NAMES}, "folder", TypeError, "order of the outputs, and a set"),
        (NAMES, "x.safetensors", ValueError, "folder"),
    ],
)
def test_labels_that_are_not_one_name_for_each_class_are_refused(tmp_path, labels, name, error, message):
    with pytest.raises(error, match=message):
        save_checkpoint(make_tiny(), tmp_path / name, "huggingface", labels=labels)
    assert list(tmp_path.iterdir()) == []


def test_checkpoint_replaces_one_of_ours_and_nothing_else(tmp_path):
    model, theirs = make_tiny(), {"model.safetensors": b"theirs", "config.json": b"{}", "PREPROCESSING.md": b"notes"}
    for name, content in theirs.items():
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_bytes(content)
        with pytest.raises(FileExistsError, match=name):
            save_checkpoint(model, folder, "timm")
        assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [(name, content)]
    (tmp_path / "x.npz").write_bytes((GOLDEN / "token.npz").read_bytes())
    with pytest.raises(FileExistsError, match=r"x\.npz"):
        convert_checkpoint(GOLDEN / "gap.npz", tmp_path / "x.npz", "linen")
    assert (tmp_path / "x.npz").read_bytes() == (GOLDEN / "token.npz").read_bytes()
    for destination, layout in (("y.npz", "official"), ("own", "timm")):
        first = save_checkpoint(model, tmp_path / destination, layout)
        assert save_checkpoint(model, tmp_path / destination, layout) == first
