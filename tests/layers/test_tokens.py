import numpy as np
import pytest
from conftest import images, numpy, randomise

from keras_vit.layers import AddPositionEmbs, ClassToken
from keras_vit.posembed import RESIZE_METHODS, resize_pos_embed, sincos2d


def test_class_token_stands_first_and_is_the_same_for_every_image():
    x = images(2, 6, 5)
    layer = ClassToken()
    layer.build(x.shape)
    assert (numpy(layer.token) == 0).all()
    randomise(layer)
    tokens = numpy(layer(x))
    np.testing.assert_array_equal(tokens[:, 0], np.repeat(numpy(layer.token)[0], 2, axis=0))
    np.testing.assert_array_equal(tokens[:, 1:], x)


def make_positions(grid=(3, 5), size=8, **arguments):
    layer = AddPositionEmbs(grid, 4, **arguments)
    rows = layer.num_prefix_tokens + grid[0] * grid[1]
    layer.build((None, rows, size))
    return layer


def test_positions_are_added():
    layer = make_positions()
    x = images(2, 16, 8)
    np.testing.assert_allclose(numpy(layer(x)) - x, np.repeat(numpy(layer.table), 2, axis=0), atol=1e-6)
    assert numpy(layer.table).std() == pytest.approx(0.02, rel=0.2)


@pytest.mark.parametrize("method", RESIZE_METHODS)
@pytest.mark.parametrize("grid", [(3, 5), (5, 3), (6, 2), (1, 7)])
def test_positions_resized_in_the_layer_equal_those_resized_in_numpy(method, grid):
    layer = make_positions(resize_method=method)
    x = images(2, 1 + grid[0] * grid[1], 8)
    cut_map = images(2, 4 * grid[0], 4 * grid[1], 3)
    table = resize_pos_embed(numpy(layer.table), grid, (3, 5), method=method)
    np.testing.assert_allclose(numpy(layer(x, cut_map)), x + table, atol=1e-6)
    np.testing.assert_array_equal(layer.table_at(grid), table)


def test_positions_of_sincos_are_fixed_and_follow_the_grid():
    layer = make_positions(kind="sincos2d")
    assert layer.weights == []
    x = np.zeros((1, 1 + 2 * 7, 8), "float32")
    tokens = numpy(layer(x, images(1, 8, 28, 3)))
    np.testing.assert_array_equal(tokens[0, 0], np.zeros(8))
    np.testing.assert_allclose(tokens[0, 1:], sincos2d(np.arange(2.0), np.arange(7.0), 8), atol=1e-6)


def test_positions_refuse_another_count_without_a_map():
    with pytest.raises(ValueError, match="Received: 17 tokens, num_prefix_tokens=1, grid=\\(3, 5\\)"):
        AddPositionEmbs((3, 5), 4).build((None, 17, 8))


@pytest.mark.parametrize("arguments", [{"kind": "relative"}, {"resize_method": "nearest"}])
def test_positions_refuse_unknown_words(arguments):
    with pytest.raises(ValueError, match="must be one of"):
        AddPositionEmbs((3, 5), 4, **arguments)
