"""Checkpoints in several files: index and shards must agree in every name, and stay in their folder."""

import json

import numpy as np
import pytest
from conftest import GOLDEN
from safetensors.numpy import load_file, save_file
from torch_files import write_torch

import keras_vit
from keras_vit import cli
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.file_checks import check_file
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.read.sharded import scan_any
from keras_vit.weights.resolve import find_file

WHOLE = GOLDEN / "foreign" / "huggingface_vit.safetensors"
NAME = "model-0000{}-of-00002.safetensors"


@pytest.fixture
def shards(tmp_path):
    """A folder with a checkpoint in two shards; gives the function that writes its index anew, edited."""
    arrays = load_file(WHOLE)
    names = sorted(arrays)
    for number in (1, 2):
        save_file({name: arrays[name] for name in names[number - 1 :: 2]}, tmp_path / NAME.format(number))
    places = {name: NAME.format(number) for number in (1, 2) for name in names[number - 1 :: 2]}

    def edit(**replaced):
        said = places | replaced
        said = {name: file for name, file in said.items() if file is not None}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": said}))

    edit()
    return tmp_path, edit, names


def assert_refused(folder, said):
    with pytest.raises(CheckpointError, match=said) as error:
        read_checkpoint(folder)
    assert "index.json" in str(error.value)


@pytest.mark.parametrize("named", ["", "model.safetensors.index.json"])
def test_shards_hold_what_the_whole_file_holds(shards, named):
    folder, _, _ = shards
    found, wanted = read_checkpoint(folder / named), read_checkpoint(WHOLE)
    assert (found.layout, found.num_heads) == (wanted.layout, wanted.num_heads)
    assert found.tensors.keys() == wanted.tensors.keys()
    for name, array in wanted.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], array)
    assert find_file(folder, None).path == folder / "model.safetensors.index.json"
    check_file(folder / "model.safetensors.index.json")


def test_arrays_come_under_their_names_in_any_order_and_the_size_is_that_of_all_shards(shards, capsys):
    folder, _, names = shards  # neighbours are in different shards
    found, wanted = scan_any(folder / "model.safetensors.index.json").read(names), load_file(WHOLE)
    assert list(found) == names
    assert all((found[name] == wanted[name]).all() for name in names)
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert scan_any(folder / "model.safetensors.index.json").size == size
    assert cli.main(["weights", "inspect", str(folder)]) == 0
    assert f"safetensors, {size / 1e6:.1f} MB" in capsys.readouterr().out


def test_model_is_built_of_shards(shards):
    folder, _, _ = shards
    config = keras_vit.ViTConfig(patch_size=8, hidden_size=48, num_layers=3, num_heads=4, mlp_dim=96)
    models = [keras_vit.build(config, weights=weights, input_shape=(32, 32, 3)) for weights in (folder, WHOLE)]
    x = np.random.default_rng(3).uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    np.testing.assert_array_equal(*(model.predict_on_batch(x) for model in models))


def test_shards_of_torch_are_read(shards):
    folder, _, _ = shards
    arrays = load_file(WHOLE)
    (folder / "model.safetensors.index.json").unlink()
    write_torch(folder / "pytorch_model-00001-of-00001.bin", arrays)
    said = {"weight_map": dict.fromkeys(arrays, "pytorch_model-00001-of-00001.bin")}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(said))
    assert read_checkpoint(folder).tensors.keys() == read_checkpoint(WHOLE).tensors.keys()


@pytest.mark.parametrize(
    "file", ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..\\x.safetensors", "x.pkl", "", 3, None, ["a"]]
)
def test_path_outside_of_the_folder_is_refused(shards, file):
    folder, _, names = shards
    index = folder / "model.safetensors.index.json"
    said = json.loads(index.read_text())
    said["weight_map"][names[0]] = file
    index.write_text(json.dumps(said))
    assert_refused(folder, "in the folder of its index")


def test_index_and_shards_that_differ_are_refused(shards):
    folder, edit, names = shards
    edit(**{names[0]: None})
    assert_refused(folder, f"{names[0]!r} is in the shard .* the index does not")
    edit(**{names[0]: NAME.format(2)})
    assert_refused(folder, "is in the shard .*the index does not|is not in the shard")
    edit(extra=NAME.format(2))
    assert_refused(folder, "'extra' is not in the shard")
    edit(extra="model-00003-of-00002.safetensors")
    assert_refused(folder, "'model-00003-of-00002.safetensors' of the index is missing")
    edit()
    second = load_file(folder / NAME.format(2)) | {names[0]: np.zeros(3, "float32")}
    save_file(second, folder / NAME.format(2))
    assert_refused(folder, f"{names[0]!r} is in the shard")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "readable JSON"),
        ("[" * 100_000, "readable JSON"),
        ("[]", "weight_map"),
        ("{}", "weight_map"),
        ('{"weight_map": {}}', "weight_map"),
        ('{"weight_map": ["a"]}', "weight_map"),
        ('{"weight_map": {"a": "x.bin", "a": "y.bin"}}', "twice"),
        (" " * 4_000_000, "readable JSON"),
    ],
)
def test_index_that_is_none_is_refused(shards, text, said):
    folder, _, _ = shards
    (folder / "model.safetensors.index.json").write_text(text)
    assert_refused(folder, said)


def test_shards_beside_a_whole_file_get_a_line(shards):
    folder, _, _ = shards
    arrays = load_file(WHOLE)
    save_file({name: 2 * array for name, array in arrays.items()}, folder / "model.safetensors")
    line = "took model.safetensors, and not the shards that model.safetensors.index.json names, in the same folder"
    found = read_checkpoint(folder)
    assert found.remarks[0] == line
    np.testing.assert_array_equal(
        found.tensors["class_token/token"].ravel(), 2 * arrays["vit.embeddings.cls_token"].ravel()
    )
    config = {"model_type": "vit", "hidden_act": "gelu", "layer_norm_eps": 1e-12, "num_attention_heads": 4}
    (folder / "config.json").write_text(json.dumps(config))
    assert keras_vit.build(weights=folder, strict=True).load_report == (line,)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"x": "model.safetensors"}}')
    assert line not in read_checkpoint(folder).remarks


def test_one_shard_is_no_checkpoint_and_an_index_has_no_digest(shards):
    folder, _, _ = shards
    with pytest.raises(CheckpointError, match=r"one shard of 2(.|\n)*Pass its folder"):
        read_checkpoint(folder / NAME.format(1))
    with pytest.raises(ValueError, match="sha256"):
        find_file(folder, None, sha256="0" * 64)
