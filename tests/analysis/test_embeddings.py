"""Components, similarities, outliers and CKA: what was planted is found, and laws hold."""

import itertools

import keras
import numpy as np
import pytest
from conftest import numpy
from kinds import SHAPE, model_of, photos

import keras_vit
from keras_vit import analysis


def test_planted_filters_are_found():
    """Filters that are sums of three patterns: three components, which span the patterns, and no fourth."""
    model = model_of("token")
    rng = np.random.default_rng(0)
    patterns = np.linalg.qr(rng.normal(size=(48, 3)))[0].T  # of 4 x 4 x 3
    weights = rng.normal(size=(12, 3)) * [9, 3, 1]
    kernel = (weights @ patterns).T.reshape(4, 4, 3, 12)
    model.get_layer("patch_embedding").projection.kernel.assign(kernel)
    components, shares = analysis.patch_filters(model, 4)
    assert components.shape == (4, 4, 4, 3)
    flat = components.reshape(4, -1)
    np.testing.assert_allclose(flat @ flat.T, np.eye(4), atol=1e-9)
    inside = np.linalg.norm(flat[:3] @ patterns.T, axis=1)
    np.testing.assert_allclose(inside, 1, atol=1e-5)
    np.testing.assert_allclose(shares.sum(), 1, atol=1e-6)
    assert shares[3] < 1e-9
    assert (np.diff(shares) < 0).all()
    expected = np.linalg.eigvalsh(np.cov((weights @ patterns).T))[::-1]
    np.testing.assert_allclose(shares, expected[:4] / expected.sum(), atol=1e-6)


def test_components_have_the_same_signs_whichever_way_the_rows_are():
    rows = np.random.default_rng(1).normal(size=(30, 8)) * np.arange(1, 9)
    components, _ = analysis.principal_components(rows, 5)
    np.testing.assert_allclose(analysis.principal_components(rows[::-1], 5)[0], components, atol=1e-9)
    np.testing.assert_allclose(analysis.principal_components(-rows, 5)[0], components, atol=1e-9)
    assert (np.take_along_axis(components, np.abs(components).argmax(axis=1)[:, None], axis=1) > 0).all()


@pytest.mark.parametrize("grid", [None, (3, 9)])
def test_positions_are_compared_by_their_angles(grid):
    model = model_of("token")
    found = analysis.position_similarity(model, grid)
    h, w = grid or (5, 7)
    assert found.shape == (h, w, h, w)
    table = numpy(model.get_layer("position_embedding").table_at((h, w)))[0, 1:].reshape(h, w, 12)
    for y, x, row, column in itertools.product(range(h), range(w), (0, h - 1), (0, w - 1)):
        one, other = table[y, x], table[row, column]
        expected = one @ other / np.linalg.norm(one) / np.linalg.norm(other)
        assert abs(found[y, x, row, column] - expected) < 1e-6


def test_sines_are_more_alike_the_nearer_they_are():
    config = keras_vit.ViTConfig(4, 64, 1, 2, 17, position_embedding="sincos2d")
    model = keras_vit.build(config, input_shape=SHAPE, classes=2)
    found = analysis.position_similarity(model)
    np.testing.assert_allclose(np.einsum("hwhw->hw", found), 1)
    assert (np.diff(found[0, 0, 0, :3]) < 0).all()


def test_planted_twin_is_the_most_similar_patch():
    maps = np.random.default_rng(2).normal(size=(2, 4, 6, 32))
    maps[1, 3, 5] = 7 * maps[1, 0, 2]
    found = analysis.token_similarity(maps, (0, 2))
    assert found.shape == (2, 4, 6)
    np.testing.assert_allclose(found[:, 0, 2], 1)
    assert np.unravel_index(np.argsort(found[1].ravel())[-2], (4, 6)) in ((3, 5), (0, 2))
    np.testing.assert_allclose(found[1, 3, 5], 1)
    assert np.sort(found[1].ravel())[-3] < 0.8
    np.testing.assert_array_equal(analysis.token_similarity(maps, (-4, -4)), found)


def test_planted_regions_have_colours_of_their_own():
    rng = np.random.default_rng(3)
    directions = np.linalg.qr(rng.normal(size=(24, 3)))[0].T
    region = rng.integers(0, 3, (5, 8))
    maps = directions[region] * [[[9.0]]] + rng.normal(size=(5, 8, 24)) * 0.01
    colours = analysis.pca_to_rgb(maps)
    assert colours.shape == (5, 8, 3)
    assert (colours.min(axis=(0, 1)), colours.max(axis=(0, 1))) == (pytest.approx([0] * 3), pytest.approx([1] * 3))
    for each in range(3):
        assert colours[region == each][:, :2].std(axis=0).max() < 0.01
    means = [colours[region == each][:, :2].mean(axis=0) for each in range(3)]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(means, 2)) > 0.3
    np.testing.assert_array_equal(analysis.pca_to_rgb(maps), colours)


def test_components_that_tokens_do_not_have_are_no_colour():
    line = np.arange(12.0).reshape(3, 4, 1) * np.random.default_rng(0).normal(size=7) + 0.37
    colours = analysis.pca_to_rgb(line)
    assert (colours[..., 0].min(), colours[..., 0].max()) == (0, 1)
    np.testing.assert_array_equal(colours[..., 1:], 0)
    assert analysis.pca_to_rgb(np.random.default_rng(0).random((1, 2, 8))).shape == (1, 2, 3)
    np.testing.assert_array_equal(analysis.pca_to_rgb(np.ones((1, 1, 8))), np.zeros((1, 1, 3)))


def test_planted_outlier_is_found_and_no_other():
    tokens = np.random.default_rng(4).normal(size=(2, 5, 7, 64))
    tokens[1, 2, 3] *= 5
    expected = np.zeros((2, 5, 7), bool)
    expected[1, 2, 3] = True
    np.testing.assert_array_equal(analysis.outlier_tokens(tokens), expected)
    np.testing.assert_allclose(analysis.token_norms(tokens), np.sqrt((tokens**2).sum(axis=-1)))


def test_cka_is_1_for_a_turned_and_stretched_copy_and_small_for_a_stranger():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(400, 6)) * np.arange(1, 7)
    turned = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    assert abs(analysis.linear_cka(x, 3 * x @ turned + 2) - 1) < 1e-12
    y = rng.normal(size=(400, 9))
    assert analysis.linear_cka(x, y) < 0.05
    gram = [z - z.mean(0) for z in (x, y)]
    k, m = gram[0] @ gram[0].T, gram[1] @ gram[1].T
    np.testing.assert_allclose(analysis.linear_cka(x, y), (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum()))
    assert abs(analysis.linear_cka(x.reshape(20, 20, 6), x) - 1) < 1e-12


@pytest.mark.parametrize("kind", ["token", "gap", "map", "map with a class token", "distilled", "hidden"])
def test_lens_behind_the_last_block_gives_the_logits(kind):
    model = model_of(kind)
    images = photos(model)
    found = analysis.logit_lens(model, images, (1, 2))
    assert found[1].shape == found[2].shape == (2, 5, 7, 7)
    logits = numpy(model(images))
    if kind in ("token", "hidden"):
        np.testing.assert_allclose(found.prefix_tokens[2][:, 0], logits, atol=1e-5)
    elif kind == "gap":
        np.testing.assert_allclose(found[2].mean(axis=(1, 2)), logits, atol=1e-5)
    elif kind == "distilled":
        np.testing.assert_allclose(found.prefix_tokens[2].mean(axis=1), logits, atol=1e-5)
    else:  # each patch as if it were the whole image
        tokens = keras.ops.convert_to_tensor(keras_vit.features(model, images, (2,), spatial=False)[2])
        count = model.config.num_prefix_tokens
        padded = keras.ops.repeat(tokens[:, 3:4], count + 4, axis=1)  # of equal tokens attention takes any
        expected = numpy(model.get_layer("head")(model.get_layer("pooling")(padded)))
        np.testing.assert_allclose(found[2].reshape(2, 35, 7)[:, 3], expected, atol=1e-5)


MAPS, RANDOM = np.zeros((5, 7, 3)), np.random.default_rng(0).random((2, 3, 4, 1))


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (lambda: analysis.patch_filters(model_of("token"), 13), "`count` .*12"),
        (lambda: analysis.patch_filters(model_of("hybrid")), "pixels"),
        (lambda: analysis.token_similarity(MAPS, (5, 0)), r"\(5, 7\)"),
        (lambda: analysis.token_similarity(MAPS, 3), "`patch`"),
        (lambda: analysis.token_similarity(MAPS, (1.0, 2.0)), "`patch`"),
        (lambda: analysis.pca_to_rgb(np.zeros((5, 7))), "`features`"),
        (lambda: analysis.pca_to_rgb(np.full((2, 2, 3), np.nan)), "finite"),
        (lambda: analysis.linear_cka(np.eye(3), np.eye(4)), "same examples"),
        (lambda: analysis.linear_cka(RANDOM, RANDOM.swapaxes(1, 2)), "same examples"),
        (lambda: analysis.linear_cka(np.ones((3, 2)), np.eye(3)), "differ"),
        (lambda: analysis.linear_cka(np.full((3, 2), 0.1), np.eye(3)), "differ"),
        (lambda: analysis.linear_cka(np.full((3, 2), np.nan), np.eye(3)), "differ"),
        (lambda: analysis.position_similarity(model_of("token"), (3,)), r"\(h, w\)"),
        (lambda: analysis.position_similarity(model_of("token"), 3), r"\(h, w\)"),
        (lambda: analysis.position_similarity(bare()), "position embeddings"),
        (lambda: lens("none", (1,)), "without one"),
        (lambda: lens("hybrid", ("stage_1", 1)), "a head can read"),
    ],
)
def test_wrong_input_is_named(act, words):
    with pytest.raises(ValueError, match=words):
        act()


def bare():
    """A model that knows no positions."""
    return keras_vit.build(keras_vit.ViTConfig(4, 12, 1, 2, 17, position_embedding="none"), input_shape=SHAPE)


def lens(kind, blocks):
    model = model_of(kind)
    return analysis.logit_lens(model, photos(model), blocks)
