"""Weights of a user's own layers: no file has a place for them, so saving and loading refuse and list each."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, randomise, tiny_config
from published_files import SMALL_RESNET

import keras_vit
from keras_vit.model.layer_access import weight_paths
from keras_vit.weights.read import CheckpointError

SHAPE = (20, 28, 3)


def backbone():
    return make_tiny(include_top=False, classes=None)


def with_projection():
    inner = backbone()
    return keras.Model(inner.input, keras.layers.Dense(5, name="projection")(inner.output))


def with_statistics():
    inner = backbone()
    return keras.Model(inner.input, keras.layers.BatchNormalization(name="bn")(inner.output))


def with_adapter():
    bands = keras.Input((20, 28, 13))
    return keras_vit.build(tiny_config(), input_tensor=keras.layers.Conv2D(3, 1, name="adapter")(bands), classes=7)


def resnet_with_head():
    inner = keras_vit.build_resnet(SMALL_RESNET, include_top=False, input_shape=(37, 50, 3))
    return keras.Model(inner.input, keras.layers.Dense(5, name="projection")(inner.output))


def with_weight_of_its_own():
    model = make_tiny(name="scaled")
    model.scale = model.add_weight(name="scale", shape=(3,))
    return model


def with_one_name_twice():
    class Twice(keras.layers.Layer):
        def build(self, shape):
            self.one, self.other = (self.add_weight(name="scale", shape=(n,)) for n in (1, shape[-1]))

        def call(self, x):
            return x * self.one * self.other

    inner = backbone()
    return keras.Model(inner.input, Twice(name="twice")(inner.output))


OWN = [
    (with_projection, [r"projection/kernel \(12, 5\)", r"projection/bias \(5,\)"]),
    (with_statistics, [rf"bn/{name} \(12,\)" for name in ("gamma", "beta", "moving_mean", "moving_variance")]),
    (with_adapter, [r"adapter/kernel \(1, 1, 13, 3\)", r"adapter/bias \(3,\)"]),
    (resnet_with_head, [r"projection/kernel \(\d+, 5\)", r"projection/bias \(5,\)"]),
    (with_weight_of_its_own, [r"scaled/scale \(3,\)"]),
    (with_one_name_twice, [r"twice/scale \(1,\)", r"twice/scale\+\d+ \(12,\)"]),
]


def listed(lines):
    return r"(.|\n)*" + "".join(rf" +(- )?{line}\n" for line in lines)


@pytest.mark.parametrize(("make", "lines"), OWN, ids=lambda value: getattr(value, "__name__", ""))
def test_saving_lists_weights_that_no_layout_has_and_leaves_no_file(tmp_path, make, lines):
    with pytest.raises(CheckpointError, match=rf"no place{listed(lines)}(.|\n)*\.keras"):
        keras_vit.save_checkpoint(make(), tmp_path / "x.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("make", "lines"), OWN, ids=lambda value: getattr(value, "__name__", ""))
def test_loading_lists_weights_that_the_file_cannot_have_and_changes_nothing(tmp_path, make, lines):
    model = make()
    plain = keras_vit.build_resnet(SMALL_RESNET, include_top=False) if make is resnet_with_head else backbone()
    if any(layer.name == "head" for layer in model.layers):
        plain = make_tiny()
    keras_vit.save_checkpoint(plain, tmp_path / "x.npz")
    before = model.get_weights()
    with pytest.raises(CheckpointError, match=rf"no layout.* \({len(lines)}\){listed(lines)}"):
        keras_vit.load_checkpoint(model, tmp_path / "x.npz", strict=make is with_adapter)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_the_model_that_own_layers_were_put_on_is_saved_and_loaded_as_ever(tmp_path):
    inner = backbone()
    keras_vit.save_checkpoint(inner, tmp_path / "x.npz")
    model = keras.Model(inner.input, keras.layers.Dense(5, name="projection")(inner.output))
    inner.set_weights([0 * weight for weight in inner.get_weights()])
    assert keras_vit.load_checkpoint(inner, tmp_path / "x.npz", strict=True) == ()
    assert numpy(model.get_layer("encoder_norm").gamma).all()
    outer = randomise(with_adapter())
    behind = keras.Model(outer.get_layer("adapter").output, outer.output)
    keras_vit.save_checkpoint(behind, tmp_path / "y.npz")
    assert keras_vit.load_checkpoint(behind, tmp_path / "y.npz", strict=True) == ()


def test_layers_that_compute_nothing_at_inference_need_no_place(tmp_path):
    """Keras does not count a seed generator's state as a weight."""
    inner = make_tiny()
    x = keras.layers.Dropout(0.5, seed=3, name="own")(inner.output)
    model = keras.Model(inner.input, x)
    assert len(model.variables) > len(model.weights)
    keras_vit.save_checkpoint(model, tmp_path / "x.npz")
    assert keras_vit.load_checkpoint(keras.models.clone_model(model), tmp_path / "x.npz", strict=True) == ()


OPERATIONS = {
    "a layer in front": lambda x: (keras.layers.Rescaling(2.0)(x), None),
    "an operation in front": lambda x: (2 * x, None),
    "a model in front": lambda x: (keras.Sequential([keras.Input(SHAPE), keras.layers.Rescaling(2.0)])(x), None),
    "a layer behind": lambda x: (x, keras.layers.Softmax()),
}


@pytest.mark.parametrize("kind", OPERATIONS)
def test_operations_without_weights_are_refused_where_they_would_be_left_out(tmp_path, kind):
    """A file, an export or a model of merged tokens without them would compute something else."""
    x = keras.Input(SHAPE)
    front, behind = OPERATIONS[kind](x)
    model = keras_vit.build(tiny_config(), input_tensor=front, classes=7)
    model = model if behind is None else keras.Model(x, behind(model.output))
    with pytest.raises(CheckpointError, match="layers of your own"):
        keras_vit.save_checkpoint(model, tmp_path / "x.npz")
    with pytest.raises(TypeError, match="not served"):
        keras_vit.export(model, tmp_path / "x.onnx", "onnx")
    with pytest.raises(TypeError, match="not served"):
        keras_vit.accelerate(model, "tensorflow")
    if behind is None:
        with pytest.raises(ValueError, match="layers of your own"):
            keras_vit.merge_tokens(model, 2)
    assert list(tmp_path.iterdir()) == []


def test_augmentation_in_front_is_no_operation_of_a_file(tmp_path):
    flips = keras.Sequential([keras.Input(SHAPE), keras.layers.RandomFlip(), keras.layers.RandomContrast(0.1)])
    model = keras_vit.build(tiny_config(), input_tensor=flips(keras.Input(SHAPE)), classes=7)
    keras_vit.save_checkpoint(model, tmp_path / "x.npz")
    crop = keras.layers.RandomCrop(20, 28)(keras.Input((30, 30, 3)))
    model = keras_vit.build(tiny_config(), input_tensor=crop, classes=7)
    with pytest.raises(CheckpointError, match="random_crop"):
        keras_vit.save_checkpoint(model, tmp_path / "y.npz")


@pytest.mark.parametrize("channels", [1, 13])
def test_preprocessing_is_for_what_the_model_takes_before_layers_in_front(channels):
    front = keras.layers.Conv2D(3, 1)(keras.Input((20, 28, channels)))
    small = keras_vit.ResNetConfig((1, 1), 0.5)
    for build, config in ((keras_vit.build, tiny_config()), (keras_vit.build_resnet, small)):
        model = build(config, input_tensor=front, classes=7)
        x = model.preprocessing(np.full((1, 40, 40, channels), 255, "uint8"))
        assert x.shape == (1, 20, 28, channels)
        np.testing.assert_allclose(x, 1, atol=1e-6)
        assert numpy(model(x)).shape == (1, 7)


def test_builder_keeps_what_stands_before_the_model_and_says_so(tmp_path):
    tiny = make_tiny()
    keras_vit.save_checkpoint(tiny, tmp_path / "x.npz")
    front = keras.Sequential([keras.Input(SHAPE), keras.layers.Dense(3, kernel_initializer="identity")], name="front")
    arguments = {"input_tensor": front(keras.Input(SHAPE)), "weights": tmp_path / "x.npz"}
    model = keras_vit.build(tiny_config(), **arguments)
    assert model.load_report == ("kept front, which is no part of the file",)
    x = images(2, *SHAPE)
    np.testing.assert_allclose(numpy(model(x)), numpy(tiny(x)), atol=1e-6)  # other sums in float32
    with pytest.raises(CheckpointError, match="kept front"):
        keras_vit.build(tiny_config(), **arguments, strict=True)
    with pytest.raises(CheckpointError, match="does not fit"):
        keras_vit.build(tiny_config(num_layers=3), **arguments)
    np.testing.assert_array_equal(numpy(front.layers[0].kernel), np.eye(3))  # a failed build takes nothing away


def test_every_weight_of_a_model_has_a_path():
    for model in (make_tiny(), with_projection(), with_statistics(), with_adapter(), with_one_name_twice()):
        assert sorted(map(id, weight_paths(model).values())) == sorted(map(id, model.weights))


def test_layer_by_the_name_of_the_head_that_computes_otherwise_is_ones_own(tmp_path):
    core = backbone()
    head = keras.layers.Dense(3, activation="relu", name="head")
    with pytest.raises(CheckpointError, match="layers of your own"):
        keras_vit.save_checkpoint(keras.Model(core.input, head(core.output)), tmp_path / "x.npz")
