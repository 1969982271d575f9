"""Attention maps of every model, and what is made of them: laws, and the brute-force computation."""

import itertools

import keras
import numpy as np
import pytest
from conftest import make_tiny, numpy
from kinds import KINDS, SHAPE, model_of, numpy_attention, photos

import keras_vit
from keras_vit.analysis import drop_smallest, mean_attention_distance, rollout
from keras_vit.model.layer_access import encoder_blocks

pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")


def random_attention(*shape, seed=0):
    weights = np.random.default_rng(seed).exponential(size=shape)
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("kind", KINDS)
def test_maps_are_those_of_the_weights_in_every_block(kind):
    model = model_of(kind)
    images = photos(model, 3)
    before = numpy(model(images))
    maps = keras_vit.attention_maps(model, images, batch_size=2)
    assert maps.blocks.dtype == "float32"
    assert maps.blocks.shape[:3] == (2, 3, 3)
    np.testing.assert_allclose(maps.blocks, numpy_attention(model, images), atol=1e-6)
    np.testing.assert_allclose(maps.blocks.sum(axis=-1), 1, atol=1e-6)
    np.testing.assert_array_equal(numpy(model(images)), before)  # nothing is left behind
    h, w = maps.grid
    assert (h * maps.stride, w * maps.stride) == images.shape[1:3]
    assert maps.rollout().shape == (3, h, w)
    assert maps.mean_distance().shape == (2, 3)
    np.testing.assert_allclose(maps.reading.sum(axis=-1), 1, atol=1e-6)
    assert (maps.pooling is not None) == kind.startswith("map")


def test_probe_of_attention_pooling_reads_its_patches():
    model = model_of("map with a class token")
    images = photos(model)
    maps = keras_vit.attention_maps(model, images)
    pooling = model.get_layer("pooling")
    tokens = keras.Model(model.input, pooling.input)(images)[:, 1:]
    probe = keras.ops.broadcast_to(pooling.probe, (2, 1, 12))
    np.testing.assert_allclose(maps.pooling, numpy(pooling.attention.scores(tokens, probe))[:, :, 0], atol=1e-6)
    expected = np.einsum("bt,bts->bs", maps.reading, rollout(maps.blocks))[:, 1:]
    np.testing.assert_allclose(maps.rollout(), expected.reshape(2, 5, 7))
    np.testing.assert_allclose(maps.reading[:, 0], 0)


@pytest.mark.parametrize("around", ["functional", "sequential", "twice"])
def test_model_inside_a_users_own_sees_what_it_gets_there(around, tiny):
    doubled, halved = keras.layers.Rescaling(1.2), keras.layers.Rescaling(0.5, 0.1)
    if around == "sequential":
        outer = keras.Sequential([keras.Input(SHAPE), doubled, tiny, keras.layers.Dense(3)])
    else:
        x = keras.Input(SHAPE)
        outer = keras.Model(x, keras.layers.Dense(3)(tiny(doubled(x))))
    scale = lambda images: 1.2 * images  # noqa: E731
    if around == "twice":
        y = keras.Input(SHAPE)
        outer = keras.Model(y, outer(halved(y)))
        scale = lambda images: 1.2 * (0.5 * images + 0.1)  # noqa: E731
    images = photos(tiny)
    expected = keras_vit.attention_maps(tiny, scale(images))
    np.testing.assert_allclose(keras_vit.attention_maps(outer, images).blocks, expected.blocks, atol=1e-6)
    assert keras_vit.class_relevance(outer, images).shape == (2, 5, 7)
    found = keras_vit.features(outer, images, blocks=(1,))
    np.testing.assert_allclose(found[1], keras_vit.features(tiny, scale(images), blocks=(1,))[1], atol=1e-6)


def test_resized_model_lora_and_int8_are_looked_into_as_they_compute():
    wide = keras_vit.with_input_shape(make_tiny(), (32, 16, 3))
    assert keras_vit.attention_maps(wide, photos(wide)).grid == (8, 4)
    adapted = make_tiny()
    plain = keras_vit.attention_maps(adapted, photos(adapted)).blocks
    keras_vit.add_lora(adapted, 2)
    for block in (adapted.get_layer("block_00"), adapted.get_layer("block_01")):
        block.attention.query.lora_kernel_b.assign(np.full(block.attention.query.lora_kernel_b.shape, 0.3))
    learned = keras_vit.attention_maps(adapted, photos(adapted)).blocks
    assert np.abs(learned - plain).max() > 1e-3
    np.testing.assert_allclose(learned, numpy_attention(adapted, photos(adapted)), atol=1e-6)
    quantised = make_tiny()
    quantised.quantize("int8")
    near = keras_vit.attention_maps(quantised, photos(quantised)).blocks
    assert 0 < np.abs(near - plain).max() < 0.1


def test_half_precision_is_near_and_its_rows_sum_to_one(tiny):
    keras.config.set_dtype_policy("mixed_bfloat16")
    half = make_tiny()
    half.set_weights(tiny.get_weights())
    maps = keras_vit.attention_maps(half, photos(tiny))
    assert maps.blocks.dtype == "float32"
    np.testing.assert_allclose(maps.blocks.sum(axis=-1), 1, atol=0.02)
    np.testing.assert_allclose(maps.blocks, keras_vit.attention_maps(tiny, photos(tiny)).blocks, atol=0.05)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.9, 0.999])
def test_rows_sum_to_one_after_dropping_the_smallest(share):
    attention = random_attention(2, 3, 7, 7)
    kept = drop_smallest(attention, share)
    np.testing.assert_allclose(kept.sum(axis=-1), 1)
    assert ((kept == 0).sum(axis=-1) == min(int(share * 7), 6)).all()
    assert (kept.argmax(axis=-1) == attention.argmax(axis=-1)).all()
    assert (drop_smallest(np.full((1, 100), 0.01), 0.29) > 0).sum() == 71  # of equal ones too
    above = attention >= np.sort(attention, axis=-1)[..., [min(int(share * 7), 6)]]
    np.testing.assert_allclose(kept, np.where(above, attention, 0) / np.where(above, attention, 0).sum(-1)[..., None])


def test_identity_rolls_out_to_itself():
    identity = np.broadcast_to(np.eye(6), (3, 2, 4, 6, 6))
    np.testing.assert_array_equal(rollout(identity), np.broadcast_to(np.eye(6), (2, 6, 6)))
    np.testing.assert_array_equal(rollout(identity, discard=0.5), np.broadcast_to(np.eye(6), (2, 6, 6)))


@pytest.mark.parametrize("discard", [0.0, 0.4])
def test_rollout_is_the_sum_over_all_paths(discard):
    attention = random_attention(3, 2, 4, 5, 5)
    found = rollout(attention, discard)
    steps = [(drop_smallest(block.mean(axis=1), discard) + np.eye(5)) / 2 for block in attention]
    for image, end, start in itertools.product(range(2), range(5), range(5)):
        paths = itertools.product(range(5), repeat=2)
        total = sum(steps[2][image, end, b] * steps[1][image, b, a] * steps[0][image, a, start] for a, b in paths)
        assert abs(found[image, end, start] - total) < 1e-14
    np.testing.assert_allclose(found.sum(axis=-1), 1)


def test_distances_of_known_attention():
    h, w, stride = 3, 5, 16
    count = h * w
    places = np.array([(i // w, i % w) for i in range(count)])
    one = lambda matrix: np.broadcast_to(matrix, (2, 3, 4, count, count))  # noqa: E731
    np.testing.assert_array_equal(mean_attention_distance(one(np.eye(count)), (h, w), stride), np.zeros((2, 4)))
    apart = [np.hypot(*(a - b)) for a in places for b in places]
    uniform = mean_attention_distance(one(np.full((count, count), 1 / count)), (h, w), stride)
    np.testing.assert_allclose(uniform, stride * np.mean(apart))
    shift = np.eye(count)[np.roll(np.arange(count), 1)]  # reads the patch before; the first reads the last
    steps = [1.0] * count
    for row in range(h):
        steps[row * w] = np.hypot(1, w - 1)
    steps[0] = np.hypot(h - 1, w - 1)
    np.testing.assert_allclose(mean_attention_distance(one(shift), (h, w), stride), stride * np.mean(steps))


def test_distance_leaves_prefix_tokens_out_without_scaling():
    attention = random_attention(2, 3, 4, 17, 17)
    found = mean_attention_distance(attention, (3, 5), 8, num_prefix_tokens=2)
    places = np.array([(i // 5, i % 5) for i in range(15)])
    expected = np.zeros((2, 4))
    for q, k in itertools.product(range(15), repeat=2):
        expected += attention[:, :, :, q + 2, k + 2].mean(axis=1) * 8 * np.hypot(*(places[q] - places[k])) / 15
    np.testing.assert_allclose(found, expected)


SQUARE = np.ones((1, 1, 1, 6, 6))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda model, images: keras_vit.attention_maps(model, images[0]), "one image"),
        (lambda model, images: keras_vit.attention_maps(model, images, batch_size=0), "batch_size"),
        (lambda model, images: keras_vit.attention_maps(flat(), images), "one Vision Transformer"),
        (lambda model, images: keras_vit.attention_maps(around(model), images), "functional or sequential"),
        (lambda model, images: keras_vit.attention_maps(model, images).rollout(discard=1.0), r"\[0, 1\)"),
        (lambda model, images: mean_attention_distance(SQUARE, (2, 2), 16), "all tokens"),
        (lambda model, images: mean_attention_distance(SQUARE, (-3, -2), 16), "`grid`"),
        (lambda model, images: drop_smallest(np.zeros((2, 2)), 0.5), "weights"),
        (lambda model, images: rollout(np.ones((2, 3, 4))), "blocks, images, heads"),
    ],
)
def test_wrong_input_is_named(tiny, act, words):
    with pytest.raises(ValueError, match=words):
        act(tiny, photos(tiny))


FLAT = ("token", "gap", "map with a class token", "none", "distilled", "hybrid", "all tokens")


@pytest.mark.parametrize(
    "kind", [*FLAT[2:5], *(pytest.param(kind, marks=pytest.mark.nightly) for kind in (*FLAT[:2], *FLAT[5:]))]
)
def test_flat_graph_with_layers_of_the_users_is_looked_into(kind, tmp_path):
    """As `keras.Model(backbone.input, head(backbone.output))`, in which no layer is the Vision Transformer."""
    inner = model_of(kind)
    images, last = photos(inner), len(encoder_blocks(inner))
    x = inner.output if kind != "none" else keras.layers.GlobalAveragePooling1D()(inner.output)
    flat = keras.Model(inner.input, keras.layers.Dense(3, name="classes")(x))
    flat.save(tmp_path / "flat.keras")
    for model in (flat, keras.saving.load_model(tmp_path / "flat.keras")):
        found, expected = (keras_vit.attention_maps(each, images) for each in (model, inner))
        for name in ("blocks", "reading", "pooling"):
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert (found.grid, found.stride, found.prefix_tokens) == (
            expected.grid,
            expected.stride,
            expected.prefix_tokens,
        )
        tokens = keras_vit.features(model, images, blocks=(last,))
        np.testing.assert_array_equal(tokens[last], keras_vit.features(inner, images, blocks=(last,))[last])
        nested = keras.Model(inner.input, keras.layers.Dense(3)(inner(inner.input)) if kind != "none" else x)
        if kind != "none":
            nested.layers[-1].set_weights(flat.get_layer("classes").get_weights())
            relevance = [keras_vit.class_relevance(each, images, [0, 2]) for each in (model, nested)]
            np.testing.assert_allclose(*relevance, atol=1e-9)


def test_layers_in_front_that_resize_are_looked_into_by_the_patches_of_what_they_give(tiny):
    front = keras.layers.Resizing(20, 28)(keras.Input((40, 28, 3)))
    model = keras_vit.build(tiny.config, input_tensor=front, classes=7)
    model.set_weights(tiny.get_weights())
    images = photos(tiny)
    found = keras_vit.attention_maps(model, np.repeat(images, 2, axis=1))
    np.testing.assert_allclose(found.blocks, keras_vit.attention_maps(tiny, images).blocks, atol=1e-6)
    assert found.rollout().shape == (2, 5, 7)
    with pytest.raises(ValueError, match="in front"):
        keras_vit.with_input_shape(model, (20, 28, 3))


def test_what_is_no_model_and_no_scaled_image_is_named(tiny):
    with pytest.raises(TypeError, match="not yet scaled"):
        keras_vit.attention_maps(tiny, np.zeros((1, 20, 28, 3), "uint8"))
    with pytest.raises(TypeError, match="Keras model"):
        keras_vit.attention_maps(tiny.get_layer("block_00"), photos(tiny))


def flat():
    return keras.Sequential([keras.Input(SHAPE), keras.layers.Flatten()])


def around(model):
    """A subclassed model, whose layers cannot be followed."""

    class Around(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = model

        def call(self, x):
            return self.inner(x)

    return Around()


def looked_inside():
    """All that is found in a distilled model, on this backend."""
    model = model_of("distilled")
    images = photos(model)
    maps = keras_vit.attention_maps(model, images)
    relevance = keras_vit.class_relevance(model, images, [1, 2])
    found = [maps.blocks, maps.rollout(0.3), relevance, keras_vit.features(model, images, blocks=(2,))[2]]
    return [np.asarray(each, "float64").ravel().tolist() for each in found]


def check_same(found):
    for theirs, ours in zip(found, looked_inside(), strict=True):
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=2e-6)


@pytest.mark.elsewhere("jax", "looked_inside")
def test_jax_sees_the_same(found):
    check_same(found)


@pytest.mark.elsewhere("torch", "looked_inside")
def test_torch_sees_the_same(found):
    check_same(found)
