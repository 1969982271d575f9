"""Files of BiT's ResNets: both layouts there and back bitwise, the numbers in their names, and what is no such file."""

import numpy as np
import pytest
from conftest import images, make_tiny, randomise
from published_files import SMALL_RESNET as SMALL

import keras_vit
from keras_vit.config.variants import ResNetConfig
from keras_vit.model.layer_access import weight_paths
from keras_vit.weights.checkpoint import read_checkpoint

LAYOUTS = ("bit", "bit_paper")
NAMES = {  # those of a unit with a projection, a plain unit, and the ends: (published, big_vision's)
    "resnet_root/conv/kernel": ("resnet/root_block/standardized_conv2d/kernel", "root_block/conv_root/kernel"),
    "resnet_stage_1_unit_1/conv_proj/kernel": (
        "resnet/block1/unit01/a/proj/standardized_conv2d/kernel",
        "block1/unit01/conv_proj/kernel",
    ),
    "resnet_stage_1_unit_2/norm_1/gamma": ("resnet/block1/unit02/a/group_norm/gamma", "block1/unit02/gn1/scale"),
    "resnet_stage_1_unit_2/norm_3/beta": ("resnet/block1/unit02/c/group_norm/beta", "block1/unit02/gn3/bias"),
    "resnet_stage_2_unit_1/conv_2/kernel": (
        "resnet/block2/unit01/b/standardized_conv2d/kernel",
        "block2/unit01/conv2/kernel",
    ),
    "resnet_norm/gamma": ("resnet/group_norm/gamma", "norm-pre-head/scale"),
    "head/bias": ("resnet/head/conv2d/bias", "head/bias"),
}


@pytest.fixture
def model():
    return randomise(keras_vit.build_resnet(SMALL, classes=7, input_shape=(37, 50, 3)))


@pytest.fixture
def file(model, tmp_path):
    return keras_vit.save_checkpoint(model, tmp_path / "x.npz")


def assert_same_weights(model, other):
    ours, theirs = weight_paths(model), weight_paths(other)
    assert ours.keys() == theirs.keys()
    for path, variable in ours.items():
        np.testing.assert_array_equal(variable.numpy(), theirs[path].numpy(), err_msg=path)


def rewritten(file, change):
    """The file with other names or arrays: `change` makes a dict of a dict."""
    path = file.with_name("changed.npz")
    np.savez(path, **change(dict(np.load(file))))
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_model_to_file_and_back_is_bitwise(model, tmp_path, layout):
    path = keras_vit.save_checkpoint(model, tmp_path / "x.npz", layout)
    again = keras_vit.build_resnet(SMALL, weights=path, strict=True)
    assert (again.input_shape, again.output_shape, again.load_report) == ((None, 37, 50, 3), (None, 7), ())
    assert_same_weights(model, again)
    filled = keras_vit.build_resnet(SMALL, classes=7, input_shape=(37, 50, 3))
    assert keras_vit.load_checkpoint(filled, path) == ()
    assert_same_weights(model, filled)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_file_has_the_names_and_shapes_of_its_software(model, tmp_path, layout):
    arrays = np.load(keras_vit.save_checkpoint(model, tmp_path / "x.npz", layout))
    assert {names[LAYOUTS.index(layout)] for names in NAMES.values()} <= set(arrays.files)
    assert len([name for name in arrays.files if not name.startswith("_")]) >= len(model.weights)
    if layout == "bit":
        assert arrays["resnet/head/conv2d/kernel"].shape == (1, 1, SMALL.features, 7)
        assert arrays["resnet/group_norm/gamma"].shape == (SMALL.features,)
    else:
        assert arrays["head/kernel"].shape == (SMALL.features, 7)
        assert arrays["norm-pre-head/scale"].shape == (1, 1, 1, SMALL.features)


def test_one_layout_becomes_the_other_without_a_model(model, file, tmp_path):
    there = keras_vit.convert_checkpoint(file, tmp_path / "there.npz", "bit_paper")
    back = keras_vit.convert_checkpoint(there, tmp_path / "back.npz", "bit")
    assert read_checkpoint(there).layout == "bit_paper"
    first, last = np.load(file), np.load(back)
    assert set(first.files) == set(last.files)
    for name in first.files:
        np.testing.assert_array_equal(first[name], last[name], err_msg=name)


def test_numbers_of_layers_in_the_names_say_nothing(model, file):
    def numbered(arrays):
        names = {
            name: name.replace("/standardized_conv2d/", f"/standardized_conv2d_{i}/") for i, name in enumerate(arrays)
        }
        return {names[name]: array for name, array in arrays.items()}

    assert_same_weights(model, keras_vit.build_resnet(SMALL, weights=rewritten(file, numbered)))


def test_two_names_for_one_weight_are_refused(file):
    name = "resnet/root_block/standardized_conv2d/kernel"
    twice = rewritten(file, lambda arrays: arrays | {name.replace("2d/", "2d_3/"): arrays[name]})
    with pytest.raises(keras_vit.CheckpointError, match=r"once(.|\n)*changed\.npz"):
        read_checkpoint(twice)


@pytest.mark.parametrize("prefix", ["params/", "opt/target/"])
def test_trainers_state_beside_the_weights_is_set_aside(model, tmp_path, prefix):
    file = keras_vit.save_checkpoint(model, tmp_path / "x.npz", "bit_paper")

    def trained(arrays):
        return {f"{prefix}{name}": array for name, array in arrays.items()} | {"chrono/step": np.ones(1, "float32")}

    path = rewritten(file, trained)
    assert "chrono/step" in read_checkpoint(path).unused_arrays
    assert_same_weights(model, keras_vit.build_resnet(SMALL, weights=path, classes=7))


def test_head_of_another_number_of_classes_is_new(file):
    model = keras_vit.build_resnet(SMALL, weights=file, classes=4)
    assert model.load_report == ("new head", f"set aside head ({SMALL.features}, 7)")
    assert not model.predict(images(1, 37, 50, 3), verbose=0).any()
    with pytest.raises(keras_vit.CheckpointError, match="strict=True"):
        keras_vit.build_resnet(SMALL, weights=file, classes=4, strict=True)


def test_one_channel_gets_the_sum_of_three(model, file):
    """Standardising loses the scale of the sum, and GroupNorm of one channel a group takes it out: 32 channels here."""
    grey = keras_vit.build_resnet(SMALL, weights=file, input_shape=(37, 50, 1))
    assert grey.load_report == ("input channels 3 to 1 (summed)",)
    x = images(2, 37, 50, 1)
    expected = model.predict(x.repeat(3, axis=-1), verbose=0)
    np.testing.assert_allclose(grey.predict(x, verbose=0), expected, atol=2e-5)  # other sums in float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {n: a[n] for n in a if "unit02/b/group_norm/beta" not in n}, r"- resnet_stage_1_unit_2/norm_2"),
        (lambda a: a | {"resnet/block3/unit01/a/group_norm/beta": np.zeros(8, "float32")}, r"resnet_stage_3_unit_1"),
        (lambda a: a | {"resnet/block1/unit1/odd": np.zeros(8, "float32")}, r"\+ block1/unit1/odd \(8,\)"),
        (lambda a: a | {"resnet/group_norm/gamma": np.zeros(8, "float32")}, r"~ resnet_norm/gamma  file \(8,\)"),
    ],
)
def test_file_that_does_not_fit_is_refused_by_name(file, change, message):
    with pytest.raises(keras_vit.CheckpointError, match=rf"{message}(.|\n)*(looks like a ResNet|without)"):
        keras_vit.build_resnet(SMALL, weights=rewritten(file, change))


def test_other_size_is_refused_with_what_the_file_holds(file):
    with pytest.raises(keras_vit.CheckpointError, match=r"stages \(2, 1\), width 32"):
        keras_vit.build_resnet(ResNetConfig((2, 2), 0.5), weights=file)


def test_files_of_the_other_kind_of_model_are_refused(file, tmp_path):
    vit = keras_vit.save_checkpoint(make_tiny(), tmp_path / "vit.npz")
    with pytest.raises(keras_vit.CheckpointError, match=r"ResNet(.|\n)*a ViT of 2 blocks"):
        keras_vit.build_resnet(SMALL, weights=vit)
    with pytest.raises(keras_vit.CheckpointError, match=r"Vision Transformer(.|\n)*a ResNet of stages"):
        keras_vit.ViTB16(weights=file)


def test_layouts_of_the_other_kind_of_model_are_refused(model, file, tmp_path):
    for layout in ("official", "linen", "big_vision", "timm", "huggingface"):
        with pytest.raises(keras_vit.CheckpointError, match=rf"{layout} layout(.|\n)*'bit', 'bit_paper'"):
            keras_vit.convert_checkpoint(file, tmp_path / "y", layout)
    with pytest.raises(keras_vit.CheckpointError, match="official layout"):
        keras_vit.save_checkpoint(model, tmp_path / "y.npz", "official")
    for layout in LAYOUTS:
        with pytest.raises(keras_vit.CheckpointError, match=f"{layout} layout"):
            keras_vit.save_checkpoint(make_tiny(), tmp_path / "y.npz", layout)
    assert not list(tmp_path.glob("y*"))
