import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy

import keras_vit


def test_another_shape_keeps_weights_config_and_what_is_frozen(tiny):
    tiny.get_layer("block_00").trainable = False
    tiny.get_layer("block_01").attention.query.trainable = False
    moved = keras_vit.with_input_shape(tiny, (32, 16, 3))
    assert moved.input_shape == (None, 32, 16, 3)
    assert moved.config == tiny.config
    assert moved.preprocessing.image_size == (32, 16)
    assert tiny.preprocessing.image_size == (20, 28)
    assert moved.load_report == ("position embedding resized from (5, 7) to (8, 4) (align_corners)",)
    assert [w.path for w in moved.trainable_weights] == [w.path for w in tiny.trainable_weights]
    for ours, theirs in zip(tiny.weights, moved.weights, strict=True):
        if ours.path != "position_embedding/table":
            np.testing.assert_array_equal(numpy(ours), numpy(theirs))
    table = keras_vit.resize_pos_embed(numpy(tiny.get_layer("position_embedding").table), (8, 4), (5, 7))
    np.testing.assert_allclose(numpy(moved.get_layer("position_embedding").table), table, atol=1e-7)


def test_the_same_shape_gives_the_same_numbers_from_weights_of_its_own(tiny):
    copy = keras_vit.with_input_shape(tiny, (20, 28, 3))
    x = images(2, 20, 28, 3)
    before = numpy(tiny(x))
    np.testing.assert_array_equal(numpy(copy(x)), before)
    copy.set_weights([w * 0 for w in copy.get_weights()])
    np.testing.assert_array_equal(numpy(tiny(x)), before)


def test_a_compiled_and_trained_model_moves_and_is_not_compiled(tiny):
    tiny.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    tiny.fit(images(2, 20, 28, 3), np.arange(2), verbose=0)
    moved = keras_vit.with_input_shape(tiny, (32, 16, 3))
    assert type(moved) is keras_vit.VisionTransformer
    assert not moved.compiled
    np.testing.assert_array_equal(numpy(moved.get_layer("head").kernel), numpy(tiny.get_layer("head").kernel))


def test_a_sincos_table_is_computed_anew_and_not_interpolated():
    model = make_tiny(position_embedding="sincos2d")
    moved = keras_vit.with_input_shape(model, (32, 16, 3))
    fresh = make_tiny(position_embedding="sincos2d", input_shape=(32, 16, 3))
    x = images(2, 32, 16, 3)
    np.testing.assert_allclose(numpy(moved(x)), numpy(fresh(x)), atol=1e-6)
    assert moved.load_report == ()


def test_a_model_on_a_users_own_layers_moves_with_them():
    inputs = keras.Input((20, 28, 3))
    model = make_tiny(input_tensor=keras.layers.Dense(3, name="own")(inputs), input_shape=None)
    moved = keras_vit.with_input_shape(model, (40, 56, 3))
    np.testing.assert_array_equal(numpy(moved.get_layer("own").kernel), numpy(model.get_layer("own").kernel))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"input_shape": (21, 28, 3)}, ValueError, "21"),
        ({"input_shape": (20, 28, 1)}, ValueError, "channels"),
        ({"input_shape": (20, 28, 3), "resize_method": "nearest"}, ValueError, "resize_method=.nearest"),
    ],
)
def test_another_shape_refuses(tiny, arguments, error, message):
    with pytest.raises(error, match=message):
        keras_vit.with_input_shape(tiny, **arguments)


def test_another_shape_keeps_lora(tiny):
    tiny.get_layer("block_00").attention.query.enable_lora(2, lora_alpha=5)
    query = keras_vit.with_input_shape(tiny, (32, 16, 3)).get_layer("block_00").attention.query
    assert (query.lora_rank, query.lora_alpha) == (2, 5)
    assert [weight.trainable for weight in query.weights] == [False, True, True, True]
    np.testing.assert_array_equal(query.lora_kernel_a, tiny.get_layer("block_00").attention.query.lora_kernel_a)


def test_another_shape_needs_a_model_of_ours(tiny):
    features = keras.Model(tiny.input, tiny.get_layer("block_00").output)
    with pytest.raises(TypeError, match="VisionTransformer"):
        keras_vit.with_input_shape(features, (20, 28, 3))


def test_stochastic_depth_grows_linearly_with_depth():
    model = make_tiny(num_layers=4, stochastic_depth_rate=0.3)
    rates = [model.get_layer(f"block_{i:02}").stochastic_depth_2.rate for i in range(4)]
    np.testing.assert_allclose(rates, [0, 0.1, 0.2, 0.3])
