"""Checks of arguments: integers of Python and of NumPy are integers, and others' words lead to ours."""

import dataclasses

import numpy as np
import pytest
from conftest import images, numpy, tiny_config

import keras_vit
from keras_vit.checks import (
    ArgumentError,
    check_choice,
    check_int,
    check_positive_int,
    check_seed,
    check_steps,
    with_parameters,
)
from keras_vit.data.pipeline import find_shard


@pytest.mark.parametrize("check", [check_positive_int, check_steps, lambda name, value: check_int(name, value, 2)])
@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3)])
def test_integer_of_any_kind_becomes_an_int(check, value):
    number = check("x", value)
    assert (number, type(number)) == (3, int)


@pytest.mark.parametrize("value", [True, np.bool_(True), 3.0, np.float64(3), "3", None, [3], np.array([3, 4])])
def test_what_is_no_integer_is_refused(value):
    with pytest.raises(TypeError, match=f"`x`.* int(.|\n)*{type(value).__name__}"):
        check_positive_int("x", value)


def test_choice_of_an_unhashable_value_is_refused_like_any_other():
    with pytest.raises(ValueError, match=r"`x`.* 'a', 'b'(.|\n)*x=\[\]"):
        check_choice("x", [], {"a": 1, "b": 2})


SIZES = {"patch_size": 4, "hidden_size": 12, "num_layers": 2, "num_heads": 3, "mlp_dim": 17}


def of_numpy(value):
    return {name: number if isinstance(number, bool) else np.int64(number) for name, number in value.items()}


def test_model_of_numpy_integers_is_the_model_of_ints(tmp_path):
    """Also as a file, and after a step: nothing of NumPy's is kept where Keras or JSON wants an int."""
    config = keras_vit.ViTConfig(**of_numpy(SIZES), representation_size=np.int64(5), resnet_stages=None)
    assert config == tiny_config(representation_size=5)
    assert {type(getattr(config, name)) for name in SIZES} == {int}
    model = keras_vit.build(config, input_shape=(np.int64(20), np.int32(28), np.int16(3)), classes=np.int64(7))
    assert (model.input_shape, model.output_shape) == ((None, 20, 28, 3), (None, 7))
    model.save(tmp_path / "x.keras")
    copy = keras_vit.with_input_shape(model, (np.int64(8), 28, 3))
    assert numpy(copy(images(2, 8, 28, 3))).shape == (2, 7)
    keras_vit.add_lora(model, np.int64(2))
    keras_vit.freeze(copy, "last_blocks", blocks=np.int64(1))
    assert keras_vit.Preprocessing((np.int64(4), 4)) == keras_vit.Preprocessing((4, 4))
    assert keras_vit.resize_pos_embed(np.zeros((1, 5, 3)), (np.int64(3), 3)).shape == (1, 10, 3)


@pytest.mark.parametrize(
    ("name", "arguments", "shapes"),
    [
        ("MlpBlock", {"hidden_size": 12, "mlp_dim": 17}, [(2, 5, 12)]),
        ("MultiHeadAttention", {"hidden_size": 12, "num_heads": 3}, [(2, 5, 12)]),
        ("TransformerBlock", {"hidden_size": 12, "num_heads": 3, "mlp_dim": 17, "num_output_tokens": 1}, [(2, 5, 12)]),
        ("AttentionPooling", {"hidden_size": 12, "num_heads": 3, "mlp_dim": 17}, [(2, 5, 12)]),
        ("PatchEmbedding", {"hidden_size": 12, "patch_size": 4}, [(2, 8, 12, 3)]),
        ("ResNetRoot", {"width": 32}, [(2, 8, 12, 3)]),
        ("ResNetUnit", {"filters": 32, "strides": 2, "projection": True}, [(2, 8, 12, 32)]),
    ],
)
def test_layers_take_numpy_integers(name, arguments, shapes):
    make = getattr(keras_vit.layers, name)
    ours, same = make(**of_numpy(arguments)), make(**arguments)
    x = [images(*shape) for shape in shapes]
    assert numpy(ours(*x)).shape == numpy(same(*x)).shape
    kept = {key: ours.get_config()[key] for key in arguments}
    assert kept == arguments
    assert {type(value) for value in kept.values()} <= {int, bool}


def test_recipes_and_augmentations_take_numpy_integers():
    recipe = dataclasses.replace(keras_vit.find_recipe("digits"), batch_size=np.int64(8), image_size=np.int64(24))
    assert (type(recipe.batch_size), type(recipe.image_size)) == (int, int)
    layers = keras_vit.Augmentation(randaugment_layers=np.int64(2)).randaugment_layers
    assert (layers, type(layers)) == (2, int)


def test_seeds_and_shards_take_numpy_integers():
    assert check_seed("seed", np.int64(3)) == 3
    shard = find_shard((np.int64(1), np.int64(2)))
    assert (shard, set(map(type, shard))) == ((1, 2), {int})


def test_error_has_the_names_of_its_arguments_and_keeps_its_class():
    error = with_parameters(FileNotFoundError("no"), "size", "steps")
    assert (type(error), str(error), error.parameters) == (FileNotFoundError, "no", ("size", "steps"))
    with pytest.raises(ValueError, match="at least 1") as caught:
        check_positive_int("epochs", 0)
    assert (type(caught.value), caught.value.parameters) == (ArgumentError, ("epochs",))
    assert ArgumentError("`size` must be even, and step=3 of x == 4.").parameters == ("size", "step")
