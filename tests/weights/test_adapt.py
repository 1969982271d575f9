"""What fits a file to another model: laws that an adaptation must keep, and an independent computation of it."""

from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, randomise, tiny_config

import keras_vit
from keras_vit.weights.adapt import drop_tokens, fit_channels, fit_patches, replaced_layers
from keras_vit.weights.checkpoint import PATCH_KERNEL, Checkpoint
from keras_vit.weights.read import CheckpointError

KERNEL = np.random.default_rng(2).normal(size=(4, 4, 3, 5)).astype("float32")


@pytest.fixture
def saved(tmp_path):
    model = make_tiny()
    keras_vit.save_checkpoint(model, tmp_path / "x.npz")
    return model, tmp_path / "x.npz"


def fitted(fit, shape, kernel=KERNEL):
    tensors = {PATCH_KERNEL: kernel}
    return fit({PATCH_KERNEL: shape}, tensors), tensors[PATCH_KERNEL]


@pytest.mark.parametrize(("channels", "how"), [(1, "1 (summed)"), (4, "4 (repeated)"), (13, "13 (repeated)")])
@pytest.mark.parametrize("resnet", [None, ()])
def test_equal_channels_give_what_the_rgb_model_gives(tmp_path, channels, how, resnet):
    config = tiny_config(patch_size=2 if resnet == () else 4, resnet_stages=resnet, resnet_width_factor=0.5)
    rgb = randomise(keras_vit.build(config, input_shape=(16, 24, 3), classes=7))
    keras_vit.save_checkpoint(rgb, tmp_path / "x.npz")
    model = keras_vit.build(config, weights=tmp_path / "x.npz", input_shape=(16, 24, channels))
    assert model.load_report == (f"input channels 3 to {how}",)
    gray = images(2, 16, 24, 1)
    atol = 1e-6 if resnet is None else 2e-4  # a standardised kernel's scale goes through two epsilons
    np.testing.assert_allclose(
        numpy(model(np.repeat(gray, channels, 3))), numpy(rgb(np.repeat(gray, 3, 3))), atol=atol, rtol=0
    )


IMAGENET = keras_vit.Preprocessing((16, 24), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@pytest.mark.parametrize("channels", [1, 4, 13])
@pytest.mark.parametrize("patch_size", [4, 8])
def test_gray_images_give_what_the_rgb_model_gives_whatever_each_preprocesses(tmp_path, channels, patch_size):
    rgb = make_tiny(input_shape=(16, 24, 3))
    rgb.preprocessing = IMAGENET
    keras_vit.save_checkpoint(rgb, tmp_path / "x.npz")
    config, sides = tiny_config(patch_size=patch_size), (4 * patch_size, 6 * patch_size)
    same, model = (keras_vit.build(config, weights=tmp_path / "x.npz", input_shape=(*sides, c)) for c in (3, channels))
    assert len(set(model.preprocessing.std)) == min(channels, 3)
    gray = np.random.default_rng(0).integers(0, 256, (2, *sides, 1)).astype("uint8")
    ours, expected = (m(m.preprocessing(np.repeat(gray, m.input_shape[-1], 3))) for m in (model, same))
    np.testing.assert_allclose(numpy(ours), numpy(expected), atol=1e-5, rtol=0)


def test_repeated_channels_are_divided_by_how_often_they_stand():
    report, kernel = fitted(fit_channels, (4, 4, 4, 5))
    assert report == ["input channels 3 to 4 (repeated)"]
    expected = np.stack([KERNEL[:, :, 0] / 2, KERNEL[:, :, 1], KERNEL[:, :, 2], KERNEL[:, :, 0] / 2], axis=2)
    np.testing.assert_array_equal(kernel, expected)


def test_channels_are_never_given_up(saved):
    _, path = saved
    with pytest.raises(CheckpointError, match=r"~ patch_embedding/projection/kernel  file \(4, 4, 3, 12\)"):
        keras_vit.build(tiny_config(), weights=path, input_shape=(20, 28, 2))


def test_preprocessing_follows_the_channels(saved):
    _, path = saved
    model = keras_vit.build(tiny_config(), weights=path, input_shape=(20, 28, 13))
    assert model.preprocessing.mean == (0.5,) * 13
    assert model.predict(model.preprocessing(np.full((1, 9, 9, 13), 255)), verbose=0).shape == (1, 7)


@pytest.mark.parametrize("side", [2, 3, 6, 8])
def test_patch_kernel_is_multiplied_by_the_pseudo_inverse_of_a_bilinear_resize(side):
    """The matrix of the resize comes from Keras' own, one basis image at a time."""
    basis = np.eye(16, dtype="float32").reshape(16, 4, 4, 1)
    resized = numpy(keras.ops.image.resize(basis, (side, side), interpolation="bilinear", antialias=False))
    matrix = resized.reshape(16, side * side).T.astype("float64")  # (new pixels, old pixels)
    expected = np.linalg.pinv(matrix.T) @ KERNEL.reshape(16, -1)
    report, kernel = fitted(fit_patches, (side, side, 3, 5))
    assert report == [f"patch kernel resized from 4x4 to {side}x{side} (pseudo-inverse)"]
    np.testing.assert_allclose(kernel.reshape(side * side, -1), expected, atol=1e-5)


def test_larger_patches_of_a_larger_image_give_the_same_tokens(tmp_path):
    small = make_tiny(input_shape=(4, 4, 3))  # one patch, so that no resize crosses from one into the next
    keras_vit.save_checkpoint(small, tmp_path / "x.npz")
    large = keras_vit.build(tiny_config(patch_size=8), weights=tmp_path / "x.npz", input_shape=(8, 8, 3))
    x = images(2, 4, 4, 3)
    twice = numpy(keras.ops.image.resize(x, (8, 8), interpolation="bilinear"))
    np.testing.assert_allclose(numpy(large(twice)), numpy(small(x)), atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"input_shape": (40, 56, 3)}, r"position embedding resized from \(5, 7\) to \(10, 14\)"),
        ({"input_shape": (20, 28, 1)}, "input channels 3 to 1"),
        ({"input_shape": (10, 14, 3), "patch_size": 2}, "patch kernel resized from 4x4 to 2x2"),
        ({"classes": 3}, "new head"),
    ],
)
def test_strict_refuses_every_adaptation_and_says_which(saved, arguments, line):
    _, path = saved
    assert keras_vit.build(tiny_config(), weights=path, strict=True).load_report == ()
    with pytest.raises(CheckpointError, match=line):
        keras_vit.build(tiny_config(), weights=path, strict=True, **arguments)


def test_strict_leaves_out_the_head_that_is_not_asked_for_and_says_so(saved):
    _, path = saved
    model = keras_vit.build(tiny_config(), weights=path, strict=True, include_top=False)
    assert len(model.load_report) == 1
    assert "set aside head" in model.load_report[0]


def test_strict_load_leaves_the_model_as_it_was(saved):
    _, path = saved
    other = randomise(keras_vit.build(tiny_config(), input_shape=(20, 28, 1), classes=7), seed=9)
    before = other.get_weights()
    with pytest.raises(CheckpointError, match="strict=True"):
        keras_vit.load_checkpoint(other, path, strict=True)
    for old, new in zip(before, other.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert keras_vit.load_checkpoint(other, path) == ("input channels 3 to 1 (summed)",)


def file_with(*names, rows=7):
    """A file with these layers, of one number each, and a position table whose rows are numbered."""
    table = np.broadcast_to(np.arange(rows, dtype="float32")[None, :, None], (1, rows, 5))
    tensors = {name: np.zeros((3, 4), "float32") for name in names} | {"position_embedding/table": table}
    return Checkpoint(path=Path("x"), layout="timm", tensors=tensors, num_heads=2)


@pytest.mark.parametrize(("before", "row"), [(["class_token/token"], 1), ([], 0)])
def test_a_token_that_the_model_lacks_goes_with_its_row_and_its_head(before, row):
    file = file_with(*before, "distillation_token/token", "head/kernel", "head_distillation/kernel")
    assert drop_tokens(file, ["class", "distillation"]).tensors.keys() == file.tensors.keys()
    cut = drop_tokens(file, ["class"])
    assert {*cut.tensors} == {*before, "head/kernel", "position_embedding/table"}
    assert cut.tensors["position_embedding/table"][0, :, 0].tolist() == [r for r in range(7) if r != row]
    assert [line.split(",")[0] for line in cut.remarks] == [
        "set aside distillation_token",
        f"set aside row {row} of position_embedding",
        "set aside head_distillation (3",
    ]


def test_a_class_token_is_never_set_aside():
    assert "class_token/token" in drop_tokens(file_with("class_token/token"), []).tensors


@pytest.mark.parametrize(
    ("classes", "tokens", "hidden", "unwanted", "fresh"),
    [
        (4, ["class"], None, [], []),
        (9, ["class"], None, ["head", "pre_logits"], ["head"]),
        (9, [], None, ["head", "pre_logits"], ["head"]),
        (
            9,
            ["class", "distillation"],
            None,
            ["head", "head_distillation", "pre_logits"],
            ["head", "head_distillation"],
        ),
        (9, ["class"], 6, ["head"], ["pre_logits", "head"]),
        (0, ["class"], None, ["head", "pre_logits"], []),
    ],
)
def test_another_number_of_classes_replaces_the_end(classes, tokens, hidden, unwanted, fresh):
    found = replaced_layers(file_with("head/kernel"), classes, tokens, hidden)
    assert [*map(list, found)] == [unwanted, fresh]
    if hidden:  # pre-logits of the file stay
        kept = replaced_layers(file_with("head/kernel", "pre_logits/kernel"), classes, tokens, hidden)
        assert [*map(list, kept)] == [["head"], ["head"]]
