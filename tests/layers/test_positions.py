"""Where patches are: tables by kind and grid, what relative positions add, and blocks that add positions again."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import images, make_tiny, numpy, randomise

import keras_vit
from keras_vit import kernels
from keras_vit.config.position_tables import RESIZE_METHODS, resize_pos_embed, sincos2d
from keras_vit.layers import AddPositionEmbs, MultiHeadAttention, RelativePositions, TransformerBlock
from keras_vit.training.optimizers import layer_multipliers


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
@pytest.mark.parametrize("grid", [(3, 5), (5, 3), (6, 2), (1, 7), (3, 2)])
def test_positions_resized_in_the_layer_equal_those_resized_in_numpy(method, grid):
    layer = make_positions(resize_method=method)
    x = images(2, 1 + grid[0] * grid[1], 8)
    feature_map = images(2, 4 * grid[0], 4 * grid[1], 3)
    table = resize_pos_embed(numpy(layer.table), grid, (3, 5), method=method)
    np.testing.assert_allclose(numpy(layer(x, feature_map)), x + table, atol=1e-6)
    np.testing.assert_array_equal(layer.table_at(grid), table)


@pytest.mark.parametrize("method", RESIZE_METHODS)
def test_native_grid_needs_no_resize(method):
    """Bitwise, also in a graph that takes any size."""
    layer, x, feature_map = make_positions(resize_method=method), images(2, 16, 8), images(2, 12, 20, 3)
    any_size = tf.function(
        layer, input_signature=[tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, None, None, 3))]
    )
    np.testing.assert_array_equal(layer.table_at((3, 5)), numpy(layer.table))
    for found in (layer(x, feature_map), any_size(x, feature_map)):
        np.testing.assert_array_equal(numpy(found), numpy(layer(x)))


def test_positions_of_sincos_are_fixed_and_follow_the_grid():
    layer = make_positions(kind="sincos2d")
    assert layer.weights == []
    x = np.zeros((1, 1 + 2 * 7, 8), "float32")
    tokens = numpy(layer(x, images(1, 8, 28, 3)))
    np.testing.assert_array_equal(tokens[0, 0], np.zeros(8))
    np.testing.assert_allclose(tokens[0, 1:], sincos2d(np.arange(2.0), np.arange(7.0), 8), atol=1e-6)


def test_positions_refuse_what_they_cannot_place():
    with pytest.raises(ValueError, match="17 tokens"):
        AddPositionEmbs((3, 5), 4).build((None, 17, 8))
    for arguments in ({"kind": "relative"}, {"resize_method": "nearest"}):
        (word,) = arguments.values()
        with pytest.raises(ValueError, match=word):
            AddPositionEmbs((3, 5), 4, **arguments)
    with pytest.raises(ValueError, match="Received: 7"):
        make_positions(size=7, kind="learned2d")
    with pytest.raises(ValueError, match="hidden_size=9"):
        make_tiny(position_embedding="learned2d", hidden_size=9, num_heads=3)
    with pytest.raises(ValueError, match="relative_patches=6"):
        TransformerBlock(12, 3, 17, relative_patches=6)(images(1, 6, 12), num_queries=1)


@pytest.mark.parametrize("prefix", [0, 2])
def test_positions_in_2d_share_columns_and_rows(prefix):
    layer = make_positions(kind="learned2d", num_prefix_tokens=prefix)
    randomise(layer)
    assert sum(int(np.prod(weight.shape)) for weight in layer.weights) == (3 + 5) * 4 + prefix * 8
    table = layer.table_at((3, 5))
    x = images(2, prefix + 15, 8)
    np.testing.assert_allclose(numpy(layer(x)), x + table, atol=1e-6)
    patches = table[0, prefix:].reshape(3, 5, 8)
    for row, column in np.ndindex(3, 5):
        expected = np.concatenate([numpy(layer.columns)[0, column], numpy(layer.rows)[0, row]])
        np.testing.assert_array_equal(patches[row, column], expected)
    if prefix:
        np.testing.assert_array_equal(table[0, :prefix], numpy(layer.prefix)[0])


@pytest.mark.parametrize("method", RESIZE_METHODS)
def test_positions_in_2d_resize_as_the_table_that_they_make(method):
    layer = make_positions(kind="learned2d", resize_method=method)
    randomise(layer)
    x, feature_map = images(2, 1 + 4 * 3, 8), images(2, 16, 12, 3)
    whole = resize_pos_embed(layer.table_at((3, 5)), (4, 3), (3, 5), method=method)  # separable, so the same
    np.testing.assert_allclose(layer.table_at((4, 3)), whole, atol=2e-6)
    np.testing.assert_allclose(numpy(layer(x, feature_map)), x + whole, atol=2e-6)


def make_relative(num_patches=6, prefix=1, heads=3, width=4):
    layer = RelativePositions(heads * width, heads, num_patches, prefix)
    layer.build((None, heads, None, width))
    randomise(layer)
    return layer


def brute_force(query, table, prefix):
    """What every query makes of the vector for each key's distance, one pair after the other."""
    batch, heads, tokens, width = query.shape
    vectors, count = table.reshape(-1, heads, width), tokens - prefix
    expected = np.zeros((batch, heads, tokens, tokens))
    for q, k in np.ndindex(count, count):
        vector = vectors[count - 1 + k - q]
        expected[:, :, prefix + q, prefix + k] = np.einsum("bad,ad->ba", query[:, :, prefix + q], vector)
    return expected


@pytest.mark.parametrize(("num_patches", "prefix"), [(6, 1), (7, 0), (5, 2), (1, 1)])
def test_relative_positions_equal_a_product_for_each_pair(num_patches, prefix):
    layer = make_relative(num_patches, prefix)
    query = images(2, 3, prefix + num_patches, 4)
    expected = brute_force(query, numpy(layer.table), prefix)
    np.testing.assert_allclose(numpy(layer(query)), expected, atol=1e-5)


def test_relative_positions_of_another_number_of_patches_are_interpolated():
    layer = make_relative(6, 1)
    query = images(2, 3, 1 + 4, 4)
    places = np.linspace(0, 10, 7)  # 2 * 4 - 1 distances over the 2 * 6 - 1 there are
    table = np.stack([np.interp(places, np.arange(11), column) for column in numpy(layer.table).T], axis=1)
    np.testing.assert_allclose(numpy(layer(query)), brute_force(query, table, 1), atol=1e-5)
    np.testing.assert_allclose(layer.weights_at(4)["table"], table, atol=1e-6)


def test_attention_adds_relative_positions_before_the_softmax():
    layer = MultiHeadAttention(12, 3, relative_patches=6, num_prefix_tokens=1)
    layer.build((None, 7, 12))
    randomise(layer)
    x = images(2, 7, 12)
    query, key = (numpy(dense(x)).reshape(2, 7, 3, 4).transpose(0, 2, 1, 3) for dense in (layer.query, layer.key))
    logits = query / 2 @ key.transpose(0, 1, 3, 2) + brute_force(query / 2, numpy(layer.relative.table), 1)
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(numpy(layer.scores(x)), expected, atol=1e-6)
    mixed = expected @ numpy(layer.value(x)).reshape(2, 7, 3, 4).transpose(0, 2, 1, 3)
    output = numpy(layer.out(mixed.transpose(0, 2, 1, 3).reshape(2, 7, 12).astype("float32")))
    np.testing.assert_allclose(numpy(layer(x)), output, atol=1e-5)
    with pytest.raises(ValueError, match="queries"):
        layer(x, x[:, :1])


@pytest.mark.parametrize(
    ("kind", "name"), [("blocks_shared", "position_embedding_shared"), ("stem", "position_embedding")]
)
def test_blocks_with_tables_of_their_own_can_be_those_of_one_table(kind, name):
    """The same table in every block, or that of the stem in the first and zeros in the others."""
    one, own = make_tiny(position_injection=kind), make_tiny(position_injection="blocks")
    randomise(one)
    values = {weight.path: numpy(weight) for weight in one.weights}
    for weight in own.weights:
        if weight.path in values:
            weight.assign(values[weight.path])
    table = one.get_layer(name).table
    for index in range(own.config.num_layers):
        own.get_layer(f"position_embedding_{index:02}").table.assign(0 * table if kind == "stem" and index else table)
    x = images(2, 20, 28, 3)
    np.testing.assert_allclose(numpy(own(x)), numpy(one(x)), atol=1e-6)


KINDS = [
    {"position_embedding": "learned2d"},
    {"position_embedding": "relative"},
    {"position_embedding": "learned2d", "position_injection": "blocks"},
    {"position_embedding": "sincos2d", "position_injection": "blocks_shared"},
]


@pytest.mark.parametrize("fields", KINDS, ids=lambda fields: "-".join(fields.values()))
def test_another_size_is_the_same_in_a_copy_and_inside_the_graph(fields):
    model = make_tiny(**fields)
    moved = keras_vit.with_input_shape(model, (32, 16, 3))
    anywhere = keras_vit.with_input_shape(model, (None, None, 3))
    x = images(2, 32, 16, 3)
    np.testing.assert_allclose(numpy(moved(x)), numpy(anywhere(x)), atol=2e-6)
    resized = "relative positions resized from 35 to 32 patches (linear)"
    learned = "position embedding resized from (5, 7) to (8, 4) (align_corners)"
    expected = {"relative": (resized,), "learned2d": (learned,)}
    assert moved.load_report == expected.get(fields["position_embedding"], ())
    back = images(2, 20, 28, 3)
    np.testing.assert_allclose(numpy(anywhere(back)), numpy(model(back)), atol=2e-6)


def test_copy_of_another_size_resizes_by_the_method_that_is_passed():
    model = make_tiny()
    moved = keras_vit.with_input_shape(model, (32, 16, 3), "bicubic")
    before, after = (numpy(each.get_layer("position_embedding").table) for each in (model, moved))
    np.testing.assert_allclose(after, resize_pos_embed(before, (8, 4), (5, 7), method="bicubic"), atol=1e-6)


@pytest.mark.parametrize("fields", KINDS[1:], ids=lambda fields: "-".join(fields.values()))
def test_no_checkpoint_takes_positions_that_its_software_does_not_have(fields, tmp_path):
    with pytest.raises(keras_vit.CheckpointError):
        keras_vit.save_checkpoint(make_tiny(**fields), tmp_path / "model.npz")
    assert not list(tmp_path.iterdir())


def test_relative_positions_know_the_places_of_patches_that_stay():
    """As all patches would attend if the others had no weight: masked behind the softmax, which is then made whole."""
    count, prefix = 11, 2
    block = randomise_layer(TransformerBlock(12, 3, 17, relative_patches=count, num_prefix_tokens=prefix))
    tokens, places = images(2, prefix + count, 12), np.array([[3, 0, 10, 7], [1, 2, 9, 5]])
    kept = np.concatenate([np.tile(np.arange(prefix), (2, 1)), prefix + places], axis=1)
    mask = np.zeros((2, 1, 1, prefix + count), "float32")
    np.put_along_axis(mask, kept[:, None, None], 1, axis=-1)
    with kernels.intercept_attention(
        lambda layer, weights: weights * mask / keras.ops.sum(weights * mask, -1, keepdims=True)
    ):
        every = numpy(block(tokens))
    some = numpy(block(np.take_along_axis(tokens, kept[..., None], 1), patch_indices=places, training=True))
    np.testing.assert_allclose(some, np.take_along_axis(every, kept[..., None], 1), atol=2e-6)


@pytest.mark.parametrize("shape", [(20, 28, 3), (None, None, 3)])
def test_relative_positions_behind_patch_dropout_are_those_of_the_images_size(shape):
    """Images that grow have fewer patches first, 3 x 5 of 5 x 7: in NumPy, from the table at their number."""
    fields = {"position_embedding": "relative", "pooling": "gap", "num_layers": 1, "patch_dropout_rate": 0.4}
    model = make_tiny(input_shape=shape, **fields)
    block, dropout = model.get_layer("block_00"), model.get_layer("patch_dropout")
    tokens = images(2, 15, 12, seed=3)
    kept, places = (numpy(each) for each in dropout(tokens, training=True))
    found = numpy(block(kept, training=True, patch_indices=(places, tokens)))
    resized = TransformerBlock(12, 3, 17, relative_patches=15)
    resized.build((None, None, 12))
    values = [numpy(w) for w in block.weights]
    at = [w.path.endswith("relative/table") for w in block.weights].index(True)
    values[at] = block.attention.relative.weights_at(15)["table"]
    resized.set_weights(values)
    expected = numpy(resized(kept, training=True, patch_indices=places))
    np.testing.assert_allclose(found, expected, atol=5e-5)  # the table is resized in float32, here in float64
    small = images(3, 12, 20, 3)
    model.input_spec = keras.InputSpec(shape=(None, None, None, 3))  # as training with growing images has it
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    before = numpy(block.attention.relative.table)
    model.train_on_batch(small, np.arange(3))
    model.train_on_batch(images(3, 20, 28, 3), np.arange(3))
    assert np.isfinite(numpy(block.attention.relative.table)).all()
    assert (numpy(block.attention.relative.table) != before).any()


def test_model_with_relative_positions_trains_behind_patch_dropout(tmp_path):
    fields = {"position_embedding": "relative", "pooling": "gap", "num_layers": 1}
    model, plain = make_tiny(patch_dropout_rate=0.5, **fields), make_tiny(**fields)
    plain.set_weights([numpy(w) for w in model.weights])
    x = images(3, 20, 28, 3)
    np.testing.assert_allclose(numpy(model(x)), numpy(plain(x)), atol=1e-6)
    before = numpy(model.get_layer("block_00").attention.relative.table)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    model.fit(x, np.arange(3), verbose=0)
    assert (numpy(model.get_layer("block_00").attention.relative.table) != before).any()
    model.save(tmp_path / "model.keras")
    np.testing.assert_array_equal(numpy(keras.saving.load_model(tmp_path / "model.keras")(x)), numpy(model(x)))


def randomise_layer(block):
    block.build((None, None, 12))
    rng = np.random.default_rng(3)
    block.set_weights([rng.normal(0, 0.3, w.shape) for w in block.weights])
    return block


def test_layer_decay_knows_tables_of_blocks():
    model = make_tiny(position_injection="blocks")
    weights = model.trainable_weights
    factors = dict(zip([w.path for w in weights], layer_multipliers(weights, 0.5), strict=True))
    assert factors["position_embedding_01/table"] == factors["block_01/norm_1/gamma"]
    assert factors["position_embedding_00/table"] == factors["block_00/norm_1/gamma"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"position_embedding": "relative", "position_injection": "blocks"}, "position_injection=.blocks"),
        ({"position_embedding": "none", "position_injection": "blocks_shared"}, "position_injection=.blocks_shared"),
        ({"position_injection": "blocks", "patch_dropout_rate": 0.5}, "position_injection=.blocks"),
        ({"position_embedding": "2d"}, "position_embedding=.2d"),
        ({"position_injection": "stern"}, "'stem'"),
    ],
)
def test_positions_that_contradict_are_refused(fields, reason):
    with pytest.raises(ValueError, match=reason):
        make_tiny(**fields)


def test_tables_of_a_trained_step_all_move():
    model = make_tiny(position_embedding="learned2d", position_injection="blocks")
    before = {weight.path: numpy(weight) for weight in model.weights}
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=True)
    randomise(model.get_layer("head"))
    model.fit(images(4, 20, 28, 3), np.arange(4) % 2, verbose=0)
    tables = [weight for weight in model.weights if weight.path.startswith("position_embedding")]
    assert len(tables) == 3 * model.config.num_layers
    assert all((numpy(weight) != before[weight.path]).any() for weight in tables)
