"""The laws of attention in blocks: the numbers, masks and gradients of attention at once, and never all its weights."""

import contextlib
import unittest.mock

import keras
import numpy as np
import oracle
import pytest
from conftest import images, make_tiny, numpy, randomise

import keras_vit
from keras_vit import kernels
from keras_vit.kernels import chunked_attention, tensorflow_cpu
from keras_vit.layers import MultiHeadAttention, TransformerBlock
from keras_vit.layers.dropout import Dropout, images_of_batch
from keras_vit.layers.kinds.token_merging import sized_attention

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="other backends have no such blocks")
RUNS = {"eager": lambda f: f, "graph": tf.function, "xla": lambda f: tf.function(f, jit_compile=True)}


@contextlib.contextmanager
def blocks(numbers=30, above=0):
    """Blocks of so many weights, in attention of more than `above`."""
    with unittest.mock.patch.multiple(chunked_attention, CHUNK_WEIGHTS=numbers, MIN_WEIGHTS=above):
        yield


def values(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1.5, shape)


def by_numpy(query, key, value, *added, **kept):
    """Attention in float64, and the gradients of its sum of products with `values`."""
    upstream = values(*query.shape[:3], value.shape[-1], seed=9)
    return oracle.attention_with_gradients(query, key, value, upstream, *added, **kept)


def with_gradients(function, *arguments):
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        found = function(*arguments)
        loss = tf.reduce_sum(found * tf.cast(values(*found.shape, seed=9), found.dtype))
    return found, *tape.gradient(loss, arguments)


def in_blocks(query, key, value, *added, **options):
    return chunked_attention.attention(query, key, value, *added, **{"training": True} | options)


def given(queries, added=None, dtype="float64", tokens=7):
    shapes = [(2, 3, queries, 5), (2, 3, 5, tokens), (2, 3, tokens, 5), *([added] if added else [])]
    return [tf.constant(values(*shape, seed=i), dtype) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize(
    ("added", "run"),
    [
        pytest.param(added, run, marks=() if run == "eager" or added == (2, 3, 6, 7) else pytest.mark.nightly)
        for added in (None, (1, 3, 6, 7), (2, 3, 6, 7), (2, 1, 1, 7))
        for run in RUNS
    ],
    ids=str,
)
def test_attention_and_its_gradients_are_those_of_float64(added, run):
    """Three blocks of 2 rows; and two of 3, of which the last is filled up with zeros."""
    for queries, numbers in ((6, 13), (5, 20)):
        side = added and tuple(queries if n == 6 else n for n in added)
        arguments = given(queries, side)
        expected = by_numpy(*map(numpy, arguments))
        with blocks(numbers):
            ours = RUNS[run](lambda *each: with_gradients(in_blocks, *each))(*arguments)
            unlearning = RUNS[run](lambda *each: with_gradients(lambda *e: in_blocks(*e, training=False), *each))
            plain = unlearning(*arguments)
        for one, other, second in zip(ours, expected, plain, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-12)  # float64 rounding
            np.testing.assert_allclose(second, other, atol=1e-12)


def test_masked_keys_are_not_seen_and_rows_without_any_are_nan_as_at_once():
    arguments = given(6, (2, 3, 6, 7))
    mask = np.zeros((2, 3, 6, 7))
    mask[..., 5:] = -np.inf
    mask[1, 2, 4] = -np.inf  # this query sees no key
    arguments[3] = tf.constant(mask)
    with blocks(), np.errstate(invalid="ignore"):
        found, expected = numpy(in_blocks(*arguments)), by_numpy(*map(numpy, arguments))[0]
        slopes = [numpy(x)[0] for x in with_gradients(in_blocks, *arguments)]  # of the other image
    assert np.isnan(expected[1, 2, 4]).all()
    assert np.isnan(expected).sum() == 5
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert all(np.isfinite(x).all() for x in slopes)
    assert (slopes[3][:, 5:] == 0).all()


@pytest.mark.parametrize("where", ["query", "key", "value"])
def test_nan_stays_with_the_rows_that_it_reaches(where):
    arguments = [numpy(x).copy() for x in given(6)]
    arguments[["query", "key", "value"].index(where)][1, 2, 3, 4] = np.nan
    expected = by_numpy(*arguments)
    with blocks(21):
        found = with_gradients(in_blocks, *map(tf.constant, arguments))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


@pytest.mark.parametrize("run", RUNS)
def test_dropout_is_the_same_on_the_way_back(run):
    """Values that are a unit matrix show the weights, and so which were dropped."""
    arguments, eye = given(6, tokens=40), tf.eye(40, batch_shape=(2, 3), dtype=tf.float64)
    dropout = Dropout(0.3, seed=5)

    @RUNS[run]
    def found(query, key, value):
        options = {"rate": 0.3, "draw": dropout.draw_by_part()}
        slopes = with_gradients(lambda *each: in_blocks(*each, **options), query, key, value)
        return in_blocks(query, key, eye, **options), *slopes

    with blocks(79):
        weights, *ours = found(*arguments)
        other = numpy(found(*arguments)[0]) > 0
    kept = numpy(weights) > 0
    for one, theirs in zip(ours, by_numpy(*map(numpy, arguments), kept=kept / 0.7), strict=True):
        np.testing.assert_allclose(one, theirs, atol=1e-12)  # float64 rounding
    assert abs(kept.mean() - 0.7) < 0.05  # of 1,440 draws, 4 deviations
    rows = np.concatenate([kept, other]).reshape(72, 40)
    assert len(np.unique(rows, axis=0)) == 72  # each step, image, head, block and row has its own


def test_dropout_of_an_image_is_the_same_in_a_part_of_its_batch():
    query, key, value = given(6)
    dropout = Dropout(0.3, seed=5)
    generator = dropout.seed_generator
    start = generator.state.value + 0
    with blocks():
        whole = in_blocks(query, key, value, rate=0.3, draw=dropout.draw_by_part())
        ends = numpy(generator.state).copy()
        generator.state.assign(start)
        parts = []
        for index in range(2):
            with images_of_batch(index, 1, tf.constant(index)):
                part = (x[index:][:1] for x in (query, key, value))
                parts.append(in_blocks(*part, rate=0.3, draw=dropout.draw_by_part()))
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(generator.state, ends)
    np.testing.assert_array_equal(ends - numpy(start), [0, 1])  # once for all blocks


LAYERS = {
    "plain": {},
    "groups": {"kv_heads": 1, "qk_norm": "head"},
    "relative": {"relative_patches": 6, "num_prefix_tokens": 1},
    "turned": {"rotary_layout": "half"},
    "bias": {},
    "fewer queries": {},
    "relative, dropped patches": {"relative_patches": 9, "num_prefix_tokens": 1},
}


@pytest.mark.parametrize("kind", LAYERS)
def test_layer_gives_the_same_and_learns_the_same_in_blocks(kind):
    layer, x = MultiHeadAttention(12, 3, **LAYERS[kind]), images(2, 7, 12)
    layer.build(x.shape)
    randomise(layer)
    more = {"rotation": images(1, 2, 7, 1, 4)} if kind == "turned" else {}
    more |= {"bias": tf.Variable(images(1, 3, 7, 7))} if kind == "bias" else {}
    more |= {"queries": x[:, :4], "bias": tf.Variable(images(2, 3, 7, 7))} if kind == "fewer queries" else {}
    more |= {"patch_indices": np.array([[0, 2, 3, 5, 7, 8]] * 2)} if "dropped" in kind else {}

    def learned(training):
        with tf.GradientTape() as tape:
            found = layer(x, training=training, **more)
            loss = tf.reduce_sum(found * values(*found.shape))
        weights = [weight.value for weight in layer.trainable_weights]
        return found, *tape.gradient(loss, [*weights, *(each for name, each in more.items() if name == "bias")])

    plain = learned(True)
    with blocks():
        assert chunked_attention.is_worthwhile(4, 7)
        for training in (True, False):
            for ours, theirs in zip(learned(training), plain, strict=True):
                np.testing.assert_allclose(ours, theirs, atol=2e-5)  # float32 rounding of sums over 84 numbers


def test_merged_tokens_count_in_blocks_too():
    layer, x, sizes = MultiHeadAttention(12, 3), images(2, 7, 12), 1 + np.arange(14.0).reshape(2, 7, 1)
    layer.build(x.shape)
    plain = sized_attention(layer, x, sizes)[0]
    with blocks():
        np.testing.assert_allclose(sized_attention(layer, x, sizes)[0], plain, atol=1e-6)


def test_weights_that_are_looked_at_are_whole_and_few_are_computed_at_once(tiny):
    x = images(2, 20, 28, 3)
    plain, usual = keras_vit.attention_maps(tiny, x).blocks, numpy(tiny(x))
    with blocks():
        np.testing.assert_array_equal(keras_vit.attention_maps(tiny, x).blocks, plain)
        np.testing.assert_allclose(tiny(x), usual, atol=1e-5)
    with unittest.mock.patch.object(chunked_attention, "attention", side_effect=AssertionError), blocks(above=36 * 36):
        tiny(x)


def trained(numbers=None, jit=False, **fields):
    """Weights after two steps, of which the first is in blocks if there are `numbers`."""
    keras.utils.set_random_seed(1)
    model = make_tiny(input_shape=(None, None, 3), position_embedding="sincos2d", num_layers=1, **fields)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=jit)
    with blocks(numbers, 20 * 36) if numbers else contextlib.nullcontext():
        for height in (20, 12):
            model.train_on_batch(images(4, height, 28, 3), np.arange(4))
    return [numpy(variable) for variable in model.variables]


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_training_at_any_size_moves_weights_as_at_once(jit):
    for ours, theirs in zip(trained(300, jit), trained(), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)  # float32 rounding


def test_dropout_in_blocks_is_the_same_where_they_are_computed_again():
    dropouts = {"attention_dropout_rate": 0.2, "dropout_rate": 0.1}
    found = [trained(300, rematerialize=again, **dropouts) for again in (False, True)]
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)  # other masks would be off by 1e-2


def test_half_precision_is_as_near_as_its_rounding():
    arguments = given(6, dtype="bfloat16")
    expected = by_numpy(*(numpy(tf.cast(x, "float64")) for x in arguments))
    with blocks():
        found = with_gradients(in_blocks, *arguments)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == tf.bfloat16
        np.testing.assert_allclose(tf.cast(ours, "float64"), theirs, atol=0.02 * np.abs(theirs).max())
    logits = tf.cast(values(64, 4099), "bfloat16")
    exact = tf.cast(tf.nn.softmax(tf.cast(logits, "float32")), "bfloat16")
    for files in (contextlib.nullcontext, lambda: kernels.use("portable")):
        with files():
            np.testing.assert_array_equal(tensorflow_cpu.softmax(logits), exact)


@pytest.mark.parametrize("training", [False, True])
def test_a_graph_never_holds_the_weights_of_all_queries(training):
    """Of 50 x 50 weights in 3 heads, a block has 7 rows, and no array of the graph is larger than the tokens."""
    block, x = TransformerBlock(12, 3, 12, attention_dropout_rate=0.5), tf.constant(images(2, 50, 12))
    block(x)
    sizes = []
    softmax = tensorflow_cpu.softmax

    def watched(logits, *added):
        sizes.append(logits.shape.num_elements())
        return softmax(logits, *added)

    @tf.function
    def slopes(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(block(x, training=training)))
        return tape.gradient(loss, [weight.value for weight in block.trainable_weights]) if training else loss

    with blocks(300), unittest.mock.patch.object(tensorflow_cpu, "softmax", watched):
        graph = slopes.get_concrete_function(x).graph
    assert set(sizes) == {7 * 50}
    arrays = [output.shape for operation in graph.get_operations() for output in operation.outputs]
    assert max(shape.num_elements() or 0 for shape in arrays if shape.rank is not None) <= 2 * 56 * 12  # 8 blocks
