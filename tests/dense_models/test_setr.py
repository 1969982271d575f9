"""SETR-PUP: the layer against NumPy, and files of mmsegmentation.

The program gives the numbers of mmsegmentation 1.2.2 too: on a small random model the largest difference was 3.6e-7 of
logits up to 10, on TensorFlow, JAX and torch.
"""

import json

import keras
import numpy as np
import pytest
from checks import fixed_and_open, is_same, on_other_backends, random_weights
from conftest import images, numpy, randomise
from dpt_in_numpy import convolution, relu
from safetensors.numpy import load_file, save_file

import keras_vit
from keras_vit import dense
from keras_vit.layers import SETRHead
from keras_vit.weights.families import HEAD_LAYOUTS
from keras_vit.weights.read import CheckpointError

WIDTH = 6
MISTAKES = ("no norm", "epsilon of the norm", "epsilon of BatchNorm", "corners", "resized once", "resized before")
NEAR = 4e-6  # of the largest number, in float32
ONE, THREE = ((4, 3),), ((4, 3), (5, 3), (4, 3))  # heads that only training reads


def random_head(auxiliary=ONE, seed=1):
    """A `SETRHead` of random weights, and these by path."""
    layer = SETRHead(3, 5, auxiliary=auxiliary, name="segmentation_head")
    return layer, random_weights(layer, [(None, None, None, WIDTH)], seed=seed)


def in_numpy(weights, tap, mistake="", convolutions=4, factor=2, start=""):
    """What a head makes of `(B, h, w, D)`, written from the paper."""

    def resized(x, n):
        return dense.resize(x, tuple(n * side for side in x.shape[1:3]), align_corners=mistake == "corners")

    x = tap - tap.mean(-1, keepdims=True)
    x /= np.sqrt((x**2).mean(-1, keepdims=True) + (1e-3 if mistake == "epsilon of the norm" else 1e-6))
    x = tap if mistake == "no norm" else x * weights[f"{start}norm/gamma"] + weights[f"{start}norm/beta"]
    for number in range(convolutions):
        name = f"{start}up_{number}"
        x = resized(x, factor) if mistake == "resized before" else x
        x = convolution(x, weights[f"{name}/conv/kernel"])
        parts = ("gamma", "beta", "moving_mean", "moving_variance")
        gamma, beta, mean, variance = (weights[f"{name}/batch_norm/{part}"] for part in parts)
        epsilon = 1e-3 if mistake == "epsilon of BatchNorm" else 1e-5
        x = relu((x - mean) / np.sqrt(variance + epsilon) * gamma + beta)
        x = x if mistake in ("resized before", "resized once") else resized(x, factor)
    x = resized(x, factor**convolutions) if mistake == "resized once" else x
    return convolution(x, weights[f"{start}classifier/kernel"], weights[f"{start}classifier/bias"])


def taps():
    return np.random.default_rng(2).normal(0.2, 0.3, size=(2, 3, 5, WIDTH))


def test_layer_is_that_of_the_paper_and_every_mistake_shows():
    layer, weights = random_head()
    tap = taps()
    found, wanted = numpy(layer([tap.astype("float32")])), in_numpy(weights, tap)
    assert found.shape == layer.compute_output_shape([tap.shape]) == (2, 48, 80, 3)
    largest = np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, 0, NEAR * largest)
    for mistake in MISTAKES:
        assert np.abs(found - in_numpy(weights, tap, mistake)).max() > 1e-4 * largest, mistake
    other = numpy(layer.others[0]([tap.astype("float32")]))  # one convolution, and four times the size
    wanted = in_numpy(weights, tap, convolutions=1, factor=4, start="auxiliary/")
    np.testing.assert_allclose(other, wanted, 0, NEAR * np.abs(wanted).max())


def faults_elsewhere():
    """On another backend, at an open size too."""
    layer, weights = random_head()
    tap = taps()
    return fixed_and_open(layer, [tap], in_numpy(weights, tap), NEAR)


def test_open_sizes_give_the_same():
    assert faults_elsewhere() == {}


@on_other_backends
def test_heads_compute_the_same_on_other_backends(backend, found):
    assert found == {}, backend


CONFIG = {"model_type": "mmseg", "num_attention_heads": 2, "patch_size": 8, "blocks": [1, 2, 3, 4]}
CONFIG |= {"interpolate_mode": "bilinear", "final_norm": False}


def write_folder(folder, config=CONFIG, auxiliary=ONE, drop=()):
    """A folder of mmsegmentation's encoder and head."""
    folder.mkdir()
    fields = {"activation": "gelu", "layer_norm_epsilon": 1e-6, "final_norm": "none"}
    fields = keras_vit.ViTConfig(8, WIDTH, 4, 2, 12, **fields)
    inner = randomise(keras_vit.build(fields, include_top=False, pooling="none", input_shape=(24, 24, 3)))
    part = keras_vit.save_checkpoint(inner, folder / "part.safetensors", "mmseg")
    found = {f"backbone.{key}": array for key, array in load_file(part).items()}
    part.unlink()
    found |= HEAD_LAYOUTS["mmseg_setr"].to_file(random_head(auxiliary)[1])
    found = {key: np.ascontiguousarray(array, "float32") for key, array in found.items() if not key.startswith(drop)}
    counts = {key.replace("running_mean", "num_batches_tracked") for key in found if key.endswith("running_mean")}
    save_file(found | dict.fromkeys(counts, np.array(7, "int64")), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("auxiliary", [ONE, *(pytest.param(each, marks=pytest.mark.nightly) for each in (THREE, ()))])
def test_files_are_written_as_they_were_read(auxiliary, tmp_path):
    """The head reads the last of the blocks; the others are of heads that only training reads."""
    write_folder(tmp_path / "folder", auxiliary=auxiliary)
    model = keras_vit.segmenter(weights=tmp_path / "folder", input_shape=(24, 24, 3))
    assert (model.layouts, model.blocks, model.normed) == (("mmseg_setr", "mmseg"), (4,), False)
    assert (model.output_shape, model.head.auxiliary) == ((None, 24, 24, 3), auxiliary)
    assert model.provenance["resize_method"][0] == "bilinear"
    photo = images(1, 24, 24, 3) * 2
    tap = keras_vit.features(model.encoder, photo, [4], norm=False)[4]
    wanted = dense.resize(in_numpy(random_head(auxiliary)[1], tap.astype("float64")), (24, 24))
    np.testing.assert_allclose(numpy(model(photo)), wanted, 0, 1e-5 * np.abs(wanted).max())
    written = keras_vit.save_checkpoint(model, tmp_path / "again")
    assert is_same(load_file(tmp_path / "folder" / "model.safetensors"), load_file(written))
    model.save(tmp_path / "model.keras")
    kept = keras.models.load_model(tmp_path / "model.keras")
    for each in (kept, keras_vit.segmenter(weights=written, input_shape=(24, 24, 3))):
        np.testing.assert_array_equal(numpy(each(photo)), numpy(model(photo)))
    (tmp_path / "folder" / "config.json").unlink()
    alone = keras_vit.segmenter(weights=tmp_path / "folder", encoder=model.encoder, input_shape=(24, 24, 3))
    assert alone.blocks == (4,)


@pytest.mark.parametrize(
    ("change", "drop", "words"),
    [
        ({"patch_size": 16}, (), "patch_size 16, and 8 in the tensors, .*folder"),
        ({"final_norm": True}, (), "final_norm True, and False"),
        ({"blocks": [1, 2, 3, 5]}, (), r"1 numbers from 1 to 4.*\nReceived: blocks=\(5,\), of .*folder"),
        ({"interpolate_mode": "nearest"}, (), "'bilinear' or 'bicubic'"),
        ({}, ("decode_head.up_convs.3", "decode_head.up_convs.2"), "four convolutions of 3 x 3.*\nReceived: .* with 2"),
    ],
)
def test_contradictions_are_refused(change, drop, words, tmp_path):
    write_folder(tmp_path / "folder", CONFIG | change, drop=drop)
    with pytest.raises(ValueError, match=words):
        keras_vit.segmenter(weights=tmp_path / "folder", input_shape=(24, 24, 3))


def test_another_number_of_classes_gets_a_new_last_layer(tmp_path):
    write_folder(tmp_path / "folder")
    model = keras_vit.segmenter(weights=tmp_path / "folder", classes=7, input_shape=(24, 24, 3))
    assert model.load_report[-2:] == ("new classifier", "set aside classifier of 3 classes")
    assert not numpy(model(images(1, 24, 24, 3) * 2)).any()
    with pytest.raises(CheckpointError, match="strict"):
        keras_vit.segmenter(weights=tmp_path / "folder", classes=7, strict=True)
