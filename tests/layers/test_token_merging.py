"""Merging joins the most alike pairs of patches into their mean, and counts them in attention as many times."""

import numpy as np
import pytest
from conftest import images, make_tiny, numpy, randomise

import keras_vit
from keras_vit.layers import MergingBlock, MultiHeadAttention, TransformerBlock
from keras_vit.layers.kinds.token_merging import merged, sized_attention
from keras_vit.weights.read import CheckpointError

SIZES = {"hidden_size": 12, "num_heads": 3, "mlp_dim": 17}


def merged_by_loops(tokens, sizes, keys, count, prefix):
    """One image, patch after patch, in float64; which patches are joined is decided by sorting all pairs."""
    first = [place for place in range(prefix, len(tokens)) if place % 2 == 0]
    second = [place for place in range(prefix, len(tokens)) if place % 2 == 1]
    unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    best = [max((unit[one] @ unit[other], -other, other) for other in second) for one in first]
    ranked = sorted(zip(best, first, strict=True), key=lambda pair: -pair[0][0])
    pairs = {one: other for (_, _, other), one in ranked[:count]}
    groups = [[place] for place in range(prefix)] + [[one] for one in first if one not in pairs]
    groups += [[other, *(one for one, to in pairs.items() if to == other)] for other in second]
    weights = sizes[:, 0]
    means = [np.average(tokens[group], axis=0, weights=weights[group]) for group in groups]
    return np.stack(means), np.stack([weights[group].sum(keepdims=True) for group in groups])


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_merging_is_that_of_loops_over_pairs(prefix, count):
    tokens, keys = images(2, 12, 6), images(2, 12, 4, seed=1)
    sizes = np.random.default_rng(2).integers(1, 5, (2, 12, 1)).astype("float32")
    found = [numpy(each) for each in merged(tokens, sizes, keys, count, prefix)]
    for index in range(2):
        alone = (each[index].astype("float64") for each in (tokens, sizes, keys))
        expected = merged_by_loops(*alone, count, prefix)
        np.testing.assert_allclose(found[0][index], expected[0], atol=1e-5)
        np.testing.assert_array_equal(found[1][index], expected[1])


def test_token_of_several_patches_attends_as_often_as_they_would():
    layer = MultiHeadAttention(12, 3)
    layer.build((None, None, 12))
    randomise(layer)
    tokens, sizes = images(1, 4, 12), np.array([1, 3, 2, 1])
    whole = numpy(layer(np.repeat(tokens, sizes, axis=1)))
    found, keys = sized_attention(layer, tokens, sizes[None, :, None].astype("float32"))
    np.testing.assert_allclose(numpy(found), whole[:, [0, 1, 4, 6]], atol=1e-5)
    assert keys.shape == (1, 4, 4)


@pytest.mark.parametrize(("kept", "where"), [(None, "pre"), (1, "pre"), (1, "post")])
def test_block_that_merges_nothing_is_a_plain_block(kept, where):
    kinds = TransformerBlock, MergingBlock
    plain, block = (kind(**SIZES, norm_position=where) for kind in kinds)
    for each in (plain, block):
        each.build((None, 9, 12))
    block.set_weights(randomise(plain).get_weights())
    tokens, sizes = block(images(2, 9, 12), num_queries=kept)
    np.testing.assert_allclose(numpy(tokens), numpy(plain(images(2, 9, 12), num_queries=kept)), atol=1e-5)
    np.testing.assert_array_equal(numpy(sizes), np.ones((2, kept or 9, 1)))


def test_model_that_merges_nothing_answers_as_before():
    model = make_tiny()
    model.logit_scale, model.logit_bias = 2.5, -1.5
    copy = keras_vit.merge_tokens(model, 0)
    assert (copy.logit_scale, copy.logit_bias) == (2.5, -1.5)
    x = images(2, *model.input_shape[1:])
    np.testing.assert_allclose(numpy(copy(x)), numpy(model(x)), atol=1e-6)
    assert [weight.path for weight in copy.weights] == [weight.path for weight in model.weights]


def test_merged_patches_of_one_colour_change_nothing():
    """Without positions equal patches give equal tokens, of which merging loses only their number, which counts."""
    model = make_tiny(position_embedding="none")
    x = np.tile(images(2, 1, 1, 3), (1, *model.input_shape[1:3], 1))
    np.testing.assert_allclose(numpy(keras_vit.merge_tokens(model, 9)(x)), numpy(model(x)), atol=1e-5)


def test_mean_of_merged_tokens_counts_patches():
    pooling = keras_vit.layers.TokenPooling("gap", num_prefix_tokens=1)
    tokens, sizes = images(2, 4, 12), np.array([1, 1, 4, 2], "float32")[None, :, None].repeat(2, 0)
    expected = numpy(pooling(np.repeat(tokens, [1, 1, 4, 2], axis=1)))
    np.testing.assert_allclose(numpy(pooling(tokens, sizes)), expected, atol=1e-6)


def test_no_block_merges_more_than_half():
    model = make_tiny(num_layers=4)
    sides = [layer.output[0].shape[1] for layer in keras_vit.merge_tokens(model, 1000).layers if "block" in layer.name]
    count, expected = model.get_layer("block_00").input.shape[1], []
    for _ in range(3):
        count -= (count - 1) // 2
        expected.append(count)
    assert sides == [*expected, 1]


def test_merging_model_is_saved_resized_and_exported(tmp_path):
    import keras

    merging = keras_vit.merge_tokens(make_tiny(), 3)
    x = images(2, *merging.input_shape[1:])
    merging.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.config.merged_tokens == 3
    np.testing.assert_allclose(numpy(again(x)), numpy(merging(x)), atol=1e-6)
    larger = keras_vit.with_input_shape(merging, (48, 64, 3))
    assert larger.get_layer("block_00").output[0].shape[1] == larger.get_layer("block_00").input.shape[1] - 3
    report = keras_vit.export(merging, tmp_path / "merging.onnx", "onnx")
    assert report.max_difference < 1e-5
    half = keras_vit.merge_tokens(make_tiny(), 1000)  # whose blocks leave no patch of one part
    assert keras_vit.export(half, tmp_path / "half.onnx", "onnx").max_difference < 1e-5
    with pytest.raises(CheckpointError, match="merged"):
        keras_vit.save_checkpoint(merging, tmp_path / "merging.npz")


def test_what_cannot_be_merged_is_refused():
    for fields in ({"pooling": "map"}, {"position_embedding": "relative"}, {"attention": "axial", "pooling": "gap"}):
        with pytest.raises(ValueError, match="merged"):
            keras_vit.merge_tokens(make_tiny(**fields), 2)
    with pytest.raises(ValueError, match="relative"):
        MergingBlock(**SIZES, relative_patches=6)
    with pytest.raises(ValueError, match="merged_tokens=-1"):
        keras_vit.merge_tokens(make_tiny(), -1)
    with pytest.raises(ValueError, match="None, None"):
        keras_vit.merge_tokens(make_tiny(input_shape=(None, None, 3)), 2)
    with pytest.raises(ValueError, match="merged"):
        keras_vit.attention_maps(keras_vit.merge_tokens(make_tiny(), 2), images(1, *make_tiny().input_shape[1:]))
    with pytest.raises(TypeError):
        keras_vit.merge_tokens("B/16", 2)
