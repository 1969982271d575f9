"""BEiT's relative bias: its index pair by pair, its resize by a second computation, and places in the graph."""

import numpy as np
import pytest
from conftest import images, make_tiny, numpy
from scipy.interpolate import RectBivariateSpline

import keras_vit
from keras_vit.config.position_tables import offset_matrix, resize_relative_table
from keras_vit.layers import RelativeBias
from keras_vit.model.layer_access import bias_layers

SIDE = 4  # of a patch in pixels


def made(grid=(3, 5), **arguments):
    layer = RelativeBias(grid, 2, SIDE, **arguments)
    layer.build((None, grid[0] * SIDE, grid[1] * SIDE, 3))
    layer.table.assign(images(*layer.table.shape))
    return layer


def pictures(height, width):
    return np.zeros((2, height * SIDE, width * SIDE, 1), "float32")


def by_pairs(table, grid):
    """(A, T, T) from the offset of every two patches; the last three rows are the class token's."""
    (height, width), rows = grid, len(table)
    places = [None] + [(y, x) for y in range(height) for x in range(width)]
    bias = np.empty((table.shape[1], len(places), len(places)))
    for i, query in enumerate(places):
        for j, key in enumerate(places):
            if query is None or key is None:
                row = rows - 1 if query is key else rows - 3 if query is None else rows - 2
            else:
                row = (query[0] - key[0] + height - 1) * (2 * width - 1) + query[1] - key[1] + width - 1
            bias[:, i, j] = table[row]
    return bias


def test_every_pair_reads_the_row_of_its_offset_and_the_class_token_its_own():
    layer = made()
    expected = by_pairs(numpy(layer.table), (3, 5))
    np.testing.assert_array_equal(numpy(layer(pictures(3, 5)))[0], expected.astype("float32"))
    places = np.array([[4, 0, 14], [7, 8, 2]])
    some = numpy(layer(pictures(3, 5), patch_indices=places, training=True))
    for example, kept in enumerate(places):
        tokens = [0, *(kept + 1)]
        np.testing.assert_array_equal(some[example], expected[:, tokens][:, :, tokens].astype("float32"))
    assert numpy(layer(pictures(3, 5), patch_indices=places)).shape == (1, 2, 16, 16)  # else every patch is there


def progression(new, old):
    """Offsets of a table for `old` patches, of which the farthest comes nearest to that of `new` ones."""
    ratios = np.linspace(1.01, 1.5, 200_001)
    reach = sum(ratios**k for k in range(old - 1))
    ratio = ratios[np.abs(reach - (new - 1)).argmin()]
    steps = np.cumsum(ratio ** np.arange(old - 1))
    return np.concatenate([-steps[::-1], [0], steps])


@pytest.mark.parametrize(("old", "new"), [(4, 6), (7, 5), (5, 23), (4, 4)])
def test_resize_goes_by_a_geometric_progression_of_offsets(old, new):
    offsets, targets = progression(new, old), np.arange(1 - new, new)
    matrix = offset_matrix(new, old, "geometric_linear")
    values = images(2 * old - 1).astype("float64")
    np.testing.assert_allclose(matrix @ values, np.interp(targets, offsets, values), atol=2e-4)  # of the two searches
    other = images(2 * old + 3)[: 2 * old - 1].astype("float64")
    spline = RectBivariateSpline(offsets, offsets, np.outer(values, other), s=0)  # the authors' call of FITPACK
    cubic = offset_matrix(new, old, "geometric_cubic")
    near = targets.clip(offsets[0], offsets[-1])
    np.testing.assert_allclose(np.outer(cubic @ values, cubic @ other), spline(near, near), atol=2e-3)


def test_resized_table_keeps_the_rows_of_the_class_token_and_its_own_grid():
    table = images(5 * 9 + 3, 2)
    assert resize_relative_table(table, (3, 5), (3, 5), "geometric_linear") is table
    for method in ("geometric_linear", "bilinear"):
        other = resize_relative_table(table, (4, 2), (3, 5), method)
        assert other.shape == (7 * 3 + 3, 2)
        np.testing.assert_array_equal(other[-3:], table[-3:])
    with pytest.raises(ValueError, match=r"at least four offsets(.|\n)*3 offsets"):
        resize_relative_table(images(12, 2), (4, 4), (2, 2), "geometric_cubic")


@pytest.mark.parametrize("method", ["geometric_linear", "geometric_cubic", "bilinear"])
def test_other_grid_in_the_graph_gives_what_resized_weights_give(method):
    import tensorflow as tf

    layer, other = made(resize_method=method), made((4, 7), resize_method=method)
    other.table.assign(layer.weights_at((4, 7))["table"])
    np.testing.assert_allclose(numpy(layer(pictures(4, 7))), numpy(other(pictures(4, 7))), atol=1e-5)
    any_size = tf.function(layer, input_signature=[tf.TensorSpec((None, None, None, 1))])
    if method == "geometric_cubic":
        with pytest.raises(ValueError, match="input_shape="):
            any_size(pictures(4, 7))
        return
    np.testing.assert_allclose(numpy(any_size(pictures(4, 7))), numpy(other(pictures(4, 7))), atol=1e-5)
    np.testing.assert_array_equal(numpy(any_size(pictures(3, 5))), numpy(layer(pictures(3, 5))))


@pytest.mark.parametrize(("kind", "learning"), [("blocks", ["relative_bias_01"]), ("shared", [])])
def test_bias_of_the_last_blocks_learns_with_them(kind, learning):
    model = make_tiny(relative_bias=kind, position_embedding="none")
    keras_vit.freeze(model, "last_blocks", 1)
    assert [layer.name for layer in bias_layers(model) if layer.trainable_weights] == learning
    depths = [weight.layer_depth[0] for layer in bias_layers(model) for weight in layer.weights]
    assert depths == ([1, 2] if kind == "blocks" else [0])
