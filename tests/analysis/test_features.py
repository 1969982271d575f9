"""Features behind blocks and stages, against the model cut off there."""

import keras
import numpy as np
import pytest
from conftest import numpy, tiny_config
from kinds import KINDS, model_of, photos

import keras_vit


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_the_tokens_behind_each_block(kind):
    model = model_of(kind)
    images = photos(model, 3)
    found = keras_vit.features(model, images, blocks=(0, 1, 2), norm=False, batch_size=2)
    count = model.config.num_prefix_tokens
    first, second = model.get_layer("block_00"), model.get_layer("block_01")
    for number, tensor in ((0, first.input), (1, second.input)):
        expected = numpy(keras.Model(model.input, tensor)(images))
        h, w = model.config.grid(*images.shape[1:3])
        np.testing.assert_allclose(found[number], expected[:, count:].reshape(3, h, w, 12), atol=1e-5)
        np.testing.assert_allclose(found.prefix_tokens[number], expected[:, :count], atol=1e-5)
    whole = numpy(second.forward(keras.Model(model.input, second.input)(images)))
    np.testing.assert_allclose(found[2].reshape(3, -1, 12), whole[:, count:], atol=1e-5)
    if second.output.shape[1] != second.input.shape[1]:  # which computes these alone
        short = numpy(keras.Model(model.input, second.output)(images))
        np.testing.assert_allclose(found.prefix_tokens[2], short, atol=1e-5)


def test_normed_features_of_the_last_block_are_what_the_head_reads(tiny):
    images = photos(tiny)
    found = keras_vit.features(tiny, images, blocks=(2,))
    head = tiny.get_layer("head")
    logits = found.prefix_tokens[2][:, 0] @ numpy(head.kernel) + numpy(head.bias)
    np.testing.assert_allclose(logits, numpy(tiny(images)), atol=1e-5)
    mean = model_of("gap")
    expected = numpy(keras.Model(mean.input, mean.get_layer("pooling").output)(images))
    pooled = keras_vit.features(mean, images, blocks=(2,))[2].mean(axis=(1, 2))
    np.testing.assert_allclose(pooled, expected, atol=1e-5)


@pytest.mark.parametrize(("layers", "expected"), [(12, (3, 6, 9, 12)), (6, (2, 3, 5, 6)), (2, (1, 2)), (1, (1,))])
def test_default_blocks_fit_the_depth(layers, expected):
    model = keras_vit.build(tiny_config(num_layers=layers), input_shape=(8, 8, 3), classes=3)
    images = np.zeros((1, 8, 8, 3), "float32")
    assert tuple(keras_vit.features(model, images).maps) == expected
    assert tuple(keras_vit.analysis.logit_lens(model, images).maps) == expected


def test_blocks_above_the_last_one_are_not_computed(tiny, monkeypatch):
    def call(*args, **kwargs):
        raise AssertionError("computed")

    monkeypatch.setattr(tiny.get_layer("block_01"), "call", call)
    assert keras_vit.features(tiny, photos(tiny), blocks=1)[1].shape == (2, 5, 7, 12)


def test_stages_of_a_hybrid_are_maps():
    model = model_of("hybrid")
    images = photos(model)
    found = keras_vit.features(model, images, blocks=("root", "stage_1", "stage_2", 1))
    assert {name: array.shape for name, array in found.maps.items()} == {
        "root": (2, 8, 12, 32),
        "stage_1": (2, 8, 12, 128),
        "stage_2": (2, 4, 6, 256),
        1: (2, 4, 6, 12),
    }
    assert set(found.prefix_tokens) == {1}
    expected = keras.Model(model.input, model.get_layer("resnet_stage_1_unit_1").output)(images)
    np.testing.assert_allclose(found["stage_1"], numpy(expected), atol=1e-5)


def test_patches_stand_in_a_row_without_spatial(tiny):
    found = keras_vit.features(tiny, photos(tiny), blocks=(1,), spatial=False)
    assert found[1].shape == (2, 35, 12)
    np.testing.assert_array_equal(found[1].reshape(2, 5, 7, 12), keras_vit.features(tiny, photos(tiny), blocks=(1,))[1])


@pytest.mark.parametrize("blocks", [(3,), (), (-1,), ("stage_1",), (True,), (1.5,)])
def test_blocks_that_are_not_there_are_named(blocks):
    model = model_of("token")
    with pytest.raises(ValueError, match="from 0 to 2"):
        keras_vit.features(model, photos(model), blocks=blocks)
    with pytest.raises(ValueError, match="Did you mean 'stage_1'"):
        keras_vit.features(model_of("hybrid"), photos(model_of("hybrid")), blocks=("stage1",))
