"""Files of training scripts: the model below the names that they put before it, beside what else they save."""

import json
from zipfile import ZipFile

import numpy as np
import pytest
from conftest import GOLDEN
from safetensors.numpy import load_file, save_file
from torch_files import Stored, Tensor, members_of, write_torch

import keras_vit
from keras_vit.weights.checkpoint import read_checkpoint
from keras_vit.weights.read import CheckpointError

FOREIGN = GOLDEN / "foreign"
SMALL = keras_vit.ViTConfig(patch_size=8, hidden_size=48, num_layers=3, num_heads=4, mlp_dim=96)


@pytest.fixture(scope="module")
def arrays():
    return load_file(FOREIGN / "timm_token.safetensors")


def below(prefix, tensors):
    return {prefix + name: tensor for name, tensor in tensors.items()}


def assert_holds(path, arrays, remarks=()):
    found, wanted = read_checkpoint(path), read_checkpoint(FOREIGN / "timm_token.safetensors")
    assert (found.layout, found.remarks) == ("timm", remarks)
    assert found.tensors.keys() == wanted.tensors.keys()
    for name, array in wanted.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], array)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: t,
        lambda t: {"state_dict": t, "epoch": 3, "optimizer": {"state": {}}},
        lambda t: {"model": t},
        lambda t: {"teacher": t},
        lambda t: below("module.", t),
        lambda t: {"state_dict": below("module.backbone.", t), "args": ["--lr"]},
        lambda t: {"checkpoint": {"inner": t}},
    ],
)
def test_model_below_any_prefix_is_found(tmp_path, arrays, wrap):
    assert_holds(write_torch(tmp_path / "x.pth", arrays, wrap), arrays)


def test_prefix_in_safetensors_is_found_too(tmp_path, arrays):
    save_file(below("module.", arrays), tmp_path / "x.safetensors")
    assert_holds(tmp_path / "x.safetensors", arrays)


@pytest.mark.parametrize("prefix", ["module.", "backbone.", "module.model."])
def test_any_prefix_is_found_in_every_layout_of_torch(tmp_path, prefix):
    """Of each committed encoder but that whose names are of two families, in timm's names and in transformers'."""
    of_two_families = {GOLDEN / "encoders" / name for name in ("huggingface_tipsv2_gated", "timm_qwen3")}
    for n, folder in enumerate(set((GOLDEN / "encoders").iterdir()) - of_two_families):
        wanted = read_checkpoint(folder)
        save_file(below(prefix, load_file(wanted.path)), tmp_path / f"{n}.safetensors")
        found = read_checkpoint(tmp_path / f"{n}.safetensors")
        assert found.tensors.keys() == wanted.tensors.keys(), folder


@pytest.mark.parametrize(
    ("taken", "other"), [("teacher", "student"), ("state_dict_ema", "state_dict"), ("model_ema", "model")]
)
def test_of_two_models_the_one_that_its_software_evaluates_is_taken(tmp_path, arrays, taken, other):
    mine = [Stored(array, f"m{n}") for n, array in enumerate(arrays.values())]
    theirs = [Stored(array + 1, f"t{n}") for n, array in enumerate(arrays.values())]
    models = {other: theirs, taken: mine}
    tree = {name: dict(zip(arrays, map(Tensor, model), strict=True)) for name, model in models.items()}
    with ZipFile(tmp_path / "x.pth", "w") as file:
        for name, data in members_of(tree, [*mine, *theirs]).items():
            file.writestr(name, data)
    assert_holds(tmp_path / "x.pth", arrays, (f"took '{taken}', and not '{other}'",))


def test_two_models_of_unknown_names_are_refused(tmp_path, arrays):
    save_file({**below("base_encoder.", arrays), **below("momentum_encoder.", arrays)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"'base_encoder\.' and 'momentum_encoder\.'"):
        read_checkpoint(tmp_path / "x.safetensors")


def test_parts_of_masked_training_are_set_aside(tmp_path, arrays):
    more = {"mask_token": np.zeros((1, 1, 9), "float32"), "decoder_blocks.0.norm1.weight": np.ones(9, "float32")}
    path = write_torch(tmp_path / "x.pth", arrays | more, lambda t: {"model": t})
    assert read_checkpoint(path).unused_arrays == tuple(sorted(below("model.", more)))
    line = "set aside model.decoder_blocks.0.norm1.weight, which no forward pass reads"  # the token is of zeros
    assert_holds(path, arrays, (line,))


def test_parts_of_another_model_around_the_encoder_are_named(tmp_path, arrays):
    """As of Segmenter, whose own code computes with torch's epsilon: 3e-4 off by timm's."""
    more = {"decoder.cls_emb": np.ones((1, 3, 48), "float32"), "optimizer.state": np.ones(3, "float32")}
    save_file({**below("encoder.", arrays), **more}, tmp_path / "x.safetensors")
    line = "set aside 1 arrays outside of 'encoder', as decoder.cls_emb, which another model uses"
    told = "layer_norm_epsilon 1e-05, as Segmenter computes with timm's names"
    assert_holds(tmp_path / "x.safetensors", arrays, (told, line))
    model = keras_vit.build(weights=tmp_path / "x.safetensors", num_heads=4)
    assert model.config.layer_norm_epsilon == 1e-5


@pytest.mark.parametrize("case", ["timm_token", "huggingface_vit"])
def test_config_of_defaults_follows_the_file_of_another_software(tmp_path, case):
    """timm and transformers compute exact GELU, which no tensor tells; a `ViTConfig` has tanh by default."""
    folder = tmp_path / "folder"
    folder.mkdir()
    write_torch(folder / "pytorch_model.bin", load_file(FOREIGN / f"{case}.safetensors"))
    (folder / "config.json").write_text(json.dumps({"layer_norm_eps": 1e-5} if case != "timm_token" else {}))
    model = keras_vit.build(SMALL, weights=folder, input_shape=(32, 32, 3))
    assert (model.config.activation, model.load_report) == ("gelu", ())
    assert model.config.layer_norm_epsilon == (1e-6 if case == "timm_token" else 1e-5)
    if case == "timm_token":
        with np.load(FOREIGN / f"{case}.expected.npz") as expected:
            logits = model.predict_on_batch(expected["images"])
            np.testing.assert_allclose(logits, expected["logits"], atol=2e-5, rtol=0)  # as in test_foreign.py
    kept = keras_vit.build(SMALL, weights=folder, input_shape=(32, 32, 3), activation="gelu_tanh")
    assert kept.config.activation == "gelu_tanh"
    assert any(line.startswith("activation gelu_tanh") for line in kept.load_report)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("rope.periods", (4,)),
        ("blocks.1.attn.q_norm.weight", (12,)),
        ("blocks.1.ls3.weight", (48,)),
        ("blocks.1.attn.relative_position_bias_table", (9, 4)),
    ],
)
def test_part_that_no_model_here_has_is_named(tmp_path, arrays, name, shape):
    save_file(arrays | {name: np.ones(shape, "float32")}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=name.replace(".", "[./]")):
        keras_vit.build(SMALL, weights=tmp_path / "x.safetensors", input_shape=(32, 32, 3))


@pytest.mark.parametrize(
    ("more", "less"),
    [
        ({"blocks.0.ls1.gamma": (48,)}, None),
        ({"reg_token": (1, 4, 48)}, None),
        ({}, "blocks.{}.attn.qkv.bias"),
        ({}, "patch_embed.proj.bias"),
    ],
)
def test_part_that_the_config_has_not_leads_to_the_file_alone(tmp_path, arrays, more, less):
    gone = {less.format(block) for block in range(3)} if less else set()
    arrays = {name: array for name, array in arrays.items() if name not in gone}
    save_file(arrays | {name: np.ones(shape, "float32") for name, shape in more.items()}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match=r"`keras_vit\.build|must be those that config\.json"):
        keras_vit.build(SMALL, weights=tmp_path / "x.safetensors", input_shape=(32, 32, 3))


def test_file_of_fewer_blocks_lacks_no_biases(tmp_path, arrays):
    with pytest.raises(CheckpointError, match="block_03"):
        keras_vit.build(
            SMALL.replace(num_layers=4), weights=FOREIGN / "timm_token.safetensors", input_shape=(32, 32, 3)
        )
