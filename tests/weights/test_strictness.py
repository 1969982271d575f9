"""What a loader must refuse: rows N5, N6, N11 and N12 (N10 stands in test_load.py, the rest in test_reader.py)."""

import pickle

import h5py
import keras
import numpy as np
import pytest
from conftest import GOLDEN, make_tiny, numpy, tiny_config
from forged import zipped

import keras_vit
from keras_vit.model.layer_access import weight_paths
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.load import _check_fit
from keras_vit.weights.read import CheckpointError


def abstract(variant):
    """A model of shapes alone, and a checkpoint that fits it: arrays of stride 0 over one number."""
    with keras.StatelessScope(initialize_variables=False):
        model = keras_vit.build(variant)
    shapes = {path: tuple(variable.shape) for path, variable in weight_paths(model).items()}
    return model, {path: np.broadcast_to(np.float32(0), shape) for path, shape in shapes.items()}


def refusal(model, tensors):
    checkpoint = Checkpoint("x.npz", "official", tensors, None)
    with pytest.raises(CheckpointError) as error:
        _check_fit(model, checkpoint, tensors, weight_paths(model))
    return str(error.value)


def test_a_wrong_side_of_any_axis_of_any_weight_of_ti16_is_named():  # N6
    model, tensors = abstract("Ti/16")
    cases = [(path, axis) for path, array in tensors.items() for axis in range(array.ndim)]
    for path, axis in cases:
        shape = list(tensors[path].shape)
        shape[axis] += 1
        wrong = tensors | {path: np.broadcast_to(np.float32(0), shape)}
        line = f"    ~ {path}  file {tuple(shape)}  model {tensors[path].shape}"
        assert line in refusal(model, wrong)
    assert len(cases) > 152


def test_a_transposed_rectangular_kernel_is_never_made_to_fit():  # N6
    model, tensors = abstract("Ti/16")
    path = "block_03/mlp/dense_1/kernel"
    assert f"~ {path}  file (768, 192)  model (192, 768)" in refusal(model, tensors | {path: tensors[path].T})


def test_dropped_added_and_renamed_keys_are_listed_with_their_count():  # N5
    model, tensors = abstract("Ti/16")
    dropped = {path: array for path, array in tensors.items() if not path.startswith("block_07/")}
    message = refusal(model, dropped)
    assert "in the model, not in the file (16):" in message
    assert "    - block_07/norm_1/gamma (192,)" in message
    assert "    ... and 11 more" in message
    assert "in the file, not in the model (1):\n    + noise (3,)" in refusal(model, tensors | {"noise": np.ones(3)})
    renamed = dict(tensors)
    renamed["encoder_norm/delta"] = renamed.pop("encoder_norm/gamma")
    message = refusal(model, renamed)
    assert "+ encoder_norm/delta (192,)" in message
    assert "- encoder_norm/gamma (192,)" in message


@pytest.fixture
def saved(tmp_path):
    model = make_tiny()
    keras_vit.save_checkpoint(model, tmp_path / "x.npz")
    return model, tmp_path / "x.npz"


@pytest.mark.parametrize(
    ("arguments", "outputs", "report"),
    [
        ({}, 7, ()),
        ({"classes": 7}, 7, ()),
        ({"classes": 9}, 9, ("new head", "set aside head (12, 7)")),
        ({"include_top": False}, 12, ("set aside head (12, 7)",)),
    ],
)
def test_number_of_classes_is_the_callers_or_the_files_and_said(saved, arguments, outputs, report):  # N11
    model, path = saved
    again = keras_vit.build(tiny_config(), weights=path, **arguments)
    assert again.output_shape == (None, outputs)
    assert again.load_report == report
    if outputs == 7:
        np.testing.assert_array_equal(numpy(again.get_layer("head").kernel), numpy(model.get_layer("head").kernel))


def hostile_files(folder):
    """Programs in the guise of weights, as people get them sent."""
    trap = keras.Sequential([keras.Input((3,)), keras.layers.Lambda(lambda x: x + 1)])
    trap.save(folder / "lambda.keras")
    with h5py.File(folder / "lambda.h5", "w") as file:
        file.attrs["model_config"] = "{}"
        file["outside"] = h5py.ExternalLink("/etc/passwd", "/")
    (folder / "torch.bin").write_bytes(pickle.dumps({"weight": [1.0]}))
    zipped(folder / "torch.pt", [("archive/data.pkl", pickle.dumps([1.0]))])
    saved_model = folder / "saved_model"
    saved_model.mkdir()
    (saved_model / "saved_model.pb").write_bytes(b"\x08\x01")
    return ["lambda.keras", "lambda.h5", "torch.bin", "torch.pt", "saved_model"]


def test_files_that_are_programs_are_refused_and_never_loaded(tmp_path, monkeypatch):  # N12
    names = hostile_files(tmp_path)

    def loaded(*arguments, **keywords):
        raise AssertionError("a file was loaded as a program")

    for module, function in ((keras.saving, "load_model"), (keras.models, "load_model"), (pickle, "load")):
        monkeypatch.setattr(module, function, loaded)
    for name in names:
        with pytest.raises(ValueError, match=r"\.npz, safetensors|holds no tensor|a checkpoint|one file|no \.npy"):
            keras_vit.build(tiny_config(), weights=tmp_path / name)


def test_nonfinite_values_are_refused_by_name_and_count(saved):  # N7, through the builder
    _, path = saved
    arrays = dict(np.load(path))
    arrays["head/kernel"][2, 1:4] = np.nan, np.inf, -np.inf
    np.savez(path, **arrays)
    with pytest.raises(CheckpointError, match="'head/kernel' holds 3 NaN"):
        keras_vit.build(tiny_config(), weights=path)


def test_npz_with_every_weight_twice_says_which_it_took(saved):
    _, path = saved
    arrays = dict(np.load(path))
    np.savez(path, **arrays, **{f"params/{name}": array + 1 for name, array in arrays.items()})
    model = keras_vit.build(tiny_config(), weights=path, input_shape=(20, 28, 3))
    assert "took 'params', and not the names without a prefix" in model.load_report


@pytest.mark.parametrize(
    ("part", "change", "words"),
    [
        ("/key/", lambda key: key[..., :3], r"keys of \d+ numbers, where a head has 4"),
        ("/key/", lambda key: key[..., :0], r"keys of \d+ numbers, where a head has 4"),
        ("/query/kernel", lambda kernel: kernel[..., :0], "integer (division or )?modulo by zero"),
        ("pos_embedding", np.ravel, r"position table of shape \(\d+,\)"),
        ("pos_embedding", lambda table: table[..., :0], r"position table of shape \(1, \d+, 0\)"),
    ],
)
def test_shapes_of_no_weights_are_refused_with_the_file(saved, part, change, words):
    _, path = saved
    arrays = {name: change(array) if part in name else array for name, array in np.load(path).items()}
    np.savez(path, **arrays)
    with pytest.raises(CheckpointError, match=rf"shapes of weights(?s:.*){words}(?s:.*){path.name}"):
        keras_vit.build(tiny_config(), weights=path)


def test_strict_leaves_out_the_end_alone_and_attention_pooling_is_the_files():
    def opened(name, **arguments):
        return keras_vit.build(weights=GOLDEN / "encoders" / name, **arguments)

    tokens = {"include_top": False, "pooling": "none", "strict": True}
    assert opened("timm_dinov3", **tokens).load_report == ("pooling none, where the file says token",)
    assert any("set aside pooling" in line for line in opened("huggingface_siglip", **tokens).load_report)
    with pytest.raises(CheckpointError, match=r"`strict=True`(?s:.*)new head"):
        opened("timm_dinov3", strict=True, classes=9)
    for name, pooling, words in (("huggingface_siglip", "gap", "pooling='map'"), ("timm_dinov3", "map", "another")):
        with pytest.raises(CheckpointError, match=f"attention pooling has weights(?s:.*){words}"):
            opened(name, include_top=False, pooling=pooling)
    for channels in (1, 4):
        with pytest.raises(ValueError, match=rf"statistics of pixels(?s:.*)=\(\d+, \d+, {channels}\), 3 means"):
            opened("huggingface_radio", include_top=False, input_shape=(32, 32, channels))
