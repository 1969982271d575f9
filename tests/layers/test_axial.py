"""Axial attention mixes what stands in one row, then what stands in one column, and nothing else."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy, randomise

import keras_vit
from keras_vit.layers import AxialBlock, TransformerBlock

SIZES = {"hidden_size": 12, "num_heads": 3, "mlp_dim": 17}


def make_block(**arguments):
    block = AxialBlock(patch_size=4, **SIZES, **arguments)
    block.build((None, 15, 12), (None, 12, 20, 3))
    return randomise(block)


@pytest.mark.parametrize("grid", [(3, 5), (5, 2), (2, 4)])
def test_each_line_is_what_a_plain_block_makes_of_it(grid):
    """So that nothing of another row, and then of another column, is seen; in any grid."""
    block, plain = make_block(), TransformerBlock(**SIZES)
    plain.build((None, None, 12))
    x, feature_map = images(2, grid[0] * grid[1], 12), images(2, 4 * grid[0], 4 * grid[1], 3)
    plain.set_weights(block.row.get_weights())
    rows = [numpy(plain(line)) for line in x.reshape(2, *grid, 12).transpose(1, 0, 2, 3)]  # h times (B, w, D)
    expected = np.stack(rows, axis=1)  # (B, h, w, D)
    np.testing.assert_allclose(numpy(block.row(x, feature_map=feature_map)), expected.reshape(x.shape), atol=1e-5)
    plain.set_weights(block.column.get_weights())
    columns = [numpy(plain(line)) for line in expected.transpose(2, 0, 1, 3)]  # w times (B, h, D)
    np.testing.assert_allclose(numpy(block(x, feature_map)), np.stack(columns, axis=2).reshape(x.shape), atol=1e-5)


def test_stochastic_depth_leaves_out_a_branch_of_whole_images():
    block = make_block(stochastic_depth_rate=0.7)
    for half in (block.row, block.column):
        half.mlp.set_weights([0 * weight for weight in half.mlp.get_weights()])
    x = images(64, 15, 12)
    moved = np.abs(numpy(block.row(x, feature_map=images(64, 12, 20, 3), training=True)) - x).max(axis=2) > 0  # (B, N)
    assert (moved.all(axis=1) | ~moved.any(axis=1)).all()  # never some rows of an image alone
    assert 0 < moved.all(axis=1).mean() < 0.6


def test_rematerialized_gradients_are_the_same_and_learn():
    weights = {}
    for rematerialize in (False, True):
        model = make_tiny(attention="axial", pooling="gap", rematerialize=rematerialize, num_layers=1)
        model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        losses = model.fit(images(4, 20, 28, 3), np.arange(4), batch_size=4, epochs=3, verbose=0).history["loss"]
        assert losses[-1] < losses[0]
        weights[rematerialize] = model.get_weights()
    for plain, again in zip(weights[False], weights[True], strict=True):
        np.testing.assert_allclose(plain, again, atol=1e-6)


def test_model_with_axial_blocks_moves_freezes_and_counts_its_blocks():
    model = make_tiny(attention="axial", pooling="gap")
    moved, anywhere = (keras_vit.with_input_shape(model, shape) for shape in ((32, 16, 3), (None, None, 3)))
    x = images(2, 32, 16, 3)
    np.testing.assert_allclose(numpy(moved(x)), numpy(anywhere(x)), atol=2e-6)
    assert list(keras_vit.features(model, images(2, 20, 28, 3), blocks=(1, 2)).maps) == [1, 2]
    keras_vit.freeze(model, "last_blocks", blocks=1)
    assert all(weight.path.startswith(("block_01", "encoder_norm", "head")) for weight in model.trainable_weights)
    estimate = keras_vit.estimate_memory(make_tiny(attention="axial", pooling="gap"), 8)
    plain = keras_vit.estimate_memory(make_tiny(pooling="gap"), 8)
    assert plain.activations < estimate.activations < 2 * plain.activations  # two MLPs, and weights of lines only


def test_what_needs_weights_between_all_tokens_refuses_axial_attention(tmp_path):
    model = make_tiny(attention="axial", pooling="gap")
    for look_inside in (keras_vit.attention_maps, lambda *both: keras_vit.class_relevance(*both, [0, 1])):
        with pytest.raises(ValueError, match="axial"):
            look_inside(model, images(2, 20, 28, 3))
    with pytest.raises(keras_vit.CheckpointError, match="block_00/row"):
        keras_vit.save_checkpoint(model, tmp_path / "model.npz")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "prefix_tokens="),
        ({"pooling": "none"}, "class_token=False"),
        ({"pooling": "gap", "class_token": True}, "prefix_tokens="),
        ({"pooling": "gap", "position_embedding": "relative"}, "position_embedding=.relative"),
        ({"pooling": "gap", "patch_dropout_rate": 0.5}, "patch_dropout_rate=0.5"),
    ],
)
def test_axial_attention_refuses_what_has_no_line(fields, reason):
    with pytest.raises(ValueError, match=reason):
        make_tiny(attention="axial", **fields)
