"""Patches that training leaves out or hides: which, how many, and how anew they are drawn."""

import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy

from keras_vit.layers import PatchCorruption, PatchDropout
from keras_vit.layers.tokens import kept_patches

MASK = -1.0  # what hides a token in these tests


def numbered(batch=6, tokens=36):
    """Tokens that tell where they stood: token t of every image is (t, t)."""
    return np.tile(np.arange(tokens, dtype="float32")[None, :, None], (batch, 1, 2))


def corrupted(batch=3000, patches=35, training=True, **arguments):
    """What became of numbered tokens, `(B, N)`, and whether each is hidden."""
    layer = PatchCorruption(**{"seed": 1} | arguments)
    layer.build((None, patches, 2))
    layer.mask_token.assign(np.full((1, 1, 2), MASK, "float32"))
    tokens, hidden = layer(numbered(batch, patches), training=training)
    np.testing.assert_array_equal(numpy(tokens)[..., 0], numpy(tokens)[..., 1])  # a token is replaced as a whole
    return numpy(tokens)[..., 0], numpy(hidden)


# Both layers


def drawn(layer, tokens):
    """Whatever a layer draws for each image, by which another draw is known."""
    found = layer(tokens, training=True)
    return numpy(found[1] if isinstance(found, tuple) else found[..., 0])


@pytest.mark.parametrize("make", [lambda: PatchDropout(0.5, 1), lambda: PatchCorruption(seed=1)])
def test_every_image_and_every_call_draws_anew_in_training(make):
    layer = make()
    seen = {tuple(row) for _ in range(2) for row in drawn(layer, numbered())}
    assert len(seen) == 12  # of 2.3e9 subsets and more


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (PatchDropout, {"rate": 0.4, "num_prefix_tokens": 2, "seed": 5}),
        (PatchCorruption, {"rate": 0.4, "mask_share": 0.5, "random_share": 0.25, "seed": 5}),
    ],
)
def test_a_config_repeats_the_draws_of_a_seed(kind, arguments):
    layers = [kind.from_config(kind(**arguments).get_config()) for _ in range(2)]
    np.testing.assert_array_equal(*(drawn(layer, numbered()) for layer in layers))


def test_unknown_numbers_of_patches_are_treated_by_the_same_shares():
    inputs = keras.Input((None, 2))
    dropped, hidden = PatchDropout(0.4, 1)(inputs), PatchCorruption(seed=1)(inputs)
    model = keras.Model(inputs, [dropped, *hidden])
    assert [output.shape for output in model.outputs] == [(None, None, 2), (None, None, 2), (None, None)]
    dropped, _, hidden = model(numbered(), training=True)
    assert numpy(dropped).shape == (6, 22, 2)
    assert set(numpy(hidden).sum(axis=1)) == {18}


@pytest.mark.parametrize(
    ("kind", "arguments", "error", "words"),
    [
        (PatchDropout, {"rate": 1.0}, ValueError, "rate=1.0"),
        (PatchDropout, {"rate": -0.1}, ValueError, "rate=-0.1"),
        (PatchDropout, {"rate": "0.5"}, TypeError, "`rate`"),
        (PatchCorruption, {"rate": 0}, ValueError, "rate=0"),
        (PatchCorruption, {"rate": 1.1}, ValueError, "1.1"),
        (PatchCorruption, {"rate": float("nan")}, ValueError, "nan"),
        (PatchCorruption, {"rate": "half"}, TypeError, "`rate`"),
        (PatchCorruption, {"mask_share": 0.8, "random_share": 0.3}, ValueError, "mask_share=0.8"),
    ],
)
def test_shares_that_are_none_are_refused(kind, arguments, error, words):
    with pytest.raises(error, match=words):
        kind(**arguments)


# Patch dropout


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_kept_tokens_are_a_subset_behind_all_prefix_tokens(prefix):
    kept = numpy(PatchDropout(0.4, prefix)(numbered(tokens=prefix + 35), training=True))
    assert kept.shape == (6, prefix + 21, 2)
    np.testing.assert_array_equal(kept[..., 0], kept[..., 1])  # a token keeps all its numbers
    np.testing.assert_array_equal(kept[:, :prefix, 0], np.tile(np.arange(prefix), (6, 1)))
    for example in kept[:, prefix:, 0]:
        assert len(set(example)) == 21
        assert set(example) <= set(range(prefix, prefix + 35))


def test_every_patch_is_kept_as_often_as_any_other():
    kept = numpy(PatchDropout(0.75, 1)(numbered(4000, 9), training=True))[..., 0]
    counts = np.bincount(kept[:, 1:].astype(int).ravel(), minlength=9)[1:]
    np.testing.assert_allclose(counts, 1000, atol=140)  # 5 standard deviations of a binomial (4000, 1/4)


@pytest.mark.parametrize(("rate", "training"), [(0.0, True), (0.5, False), (0.5, None)])
def test_patch_dropout_is_else_the_identity(rate, training):
    x = numbered()
    np.testing.assert_array_equal(numpy(PatchDropout(rate, 1)(x, training=training)), x)


@pytest.mark.parametrize(
    ("number", "rate", "expected"), [(196, 0.5, 98), (10, 0.8, 2), (10, 0.7, 3), (7, 0.5, 3), (5, 0.99, 1), (9, 0.0, 9)]
)
def test_count_is_the_floor_of_the_share_and_at_least_one(number, rate, expected):
    assert kept_patches(number, rate) == expected


def test_patch_dropout_stands_behind_the_positions_and_only_where_asked():
    names = [layer.name for layer in make_tiny(patch_dropout_rate=0.5).layers]
    assert names.index("patch_dropout") == names.index("block_00") - 1 > names.index("position_embedding")
    assert "patch_dropout" not in [layer.name for layer in make_tiny().layers]


def test_model_trains_with_fewer_tokens():
    """Under XLA, which needs to know how many."""
    model = make_tiny(patch_dropout_rate=0.5, num_layers=1)
    before = numpy(model.get_layer("patch_embedding").weights[0]).copy()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=True)
    assert np.isfinite(model.train_on_batch(images(4, 20, 28, 3), np.arange(4)))
    assert np.abs(numpy(model.get_layer("patch_embedding").weights[0]) - before).max() > 1e-6


# Corruption


@pytest.mark.parametrize("patches", [35, 20, 7])
def test_counts_are_those_of_the_paper_in_expectation_and_within_one_in_every_image(patches):
    tokens, hidden = corrupted(patches=patches)
    own = tokens == np.arange(patches)
    assert own[~hidden].all()
    kinds = {"masked": tokens == MASK, "replaced": ~own & (tokens != MASK), "unchanged": own & hidden}
    shares = {"masked": 0.4, "replaced": 0.05, "unchanged": 0.05}
    counted = [(kind.sum(axis=1), patches * shares[name]) for name, kind in kinds.items()]
    for counts, expected in [*counted, (hidden.sum(axis=1), patches * 0.5)]:
        assert set(counts) <= {np.floor(expected + 1e-9), np.ceil(expected - 1e-9)}
        part = expected % 1  # a count is 0 or 1 above the floor, so its variance is part * (1 - part)
        assert abs(counts.mean() - expected) <= 5 * np.sqrt(part * (1 - part) / len(counts)) + 1e-9


def test_every_patch_is_hidden_and_masked_as_often_as_any_other():
    tokens, hidden = corrupted(4000, 8)
    np.testing.assert_allclose(hidden.sum(axis=0), 2000, atol=160)  # 5 deviations of a binomial (4000, 1/2)
    np.testing.assert_allclose((tokens == MASK).sum(axis=0), 1600, atol=155)  # (4000, .4)


def test_replaced_tokens_are_any_other_token_of_the_image_alike():
    tokens, _ = corrupted(4000, 5, rate=1, mask_share=0, random_share=1)
    steps = (tokens - np.arange(5)) % 5
    counts = np.bincount(steps.astype(int).ravel(), minlength=5)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:], 5000, atol=310)  # 5 deviations of a binomial (20000, 1/4)


def test_what_replaces_a_token_is_what_stood_there_before():
    tokens, _ = corrupted(200, 6, rate=1, mask_share=0.5, random_share=0.5)
    assert set(np.unique(tokens)) == {MASK, *range(6)}


def test_outside_of_training_all_images_have_one_draw_that_is_always_the_same():
    (one, hidden), (more, _) = corrupted(1, training=False, seed=1), corrupted(5, training=False, seed=2)
    np.testing.assert_array_equal(more, np.repeat(one, 5, axis=0))
    assert hidden.sum() in (17, 18)


@pytest.mark.parametrize(("masked", "expected"), [(1.0, MASK), (0.0, np.tile(np.arange(7), (50, 1)))])
def test_extreme_shares_change_all_tokens_or_none(masked, expected):
    tokens, hidden = corrupted(50, 7, rate=1.0, mask_share=masked, random_share=0.0)
    assert hidden.all()
    np.testing.assert_array_equal(tokens, np.broadcast_to(expected, tokens.shape))


def test_half_precision_keeps_its_type_and_the_draw():
    half, hidden = PatchCorruption(seed=1, dtype="mixed_bfloat16")(numbered(4, 35), training=True)
    assert keras.backend.standardize_dtype(half.dtype) == "bfloat16"
    np.testing.assert_array_equal(numpy(hidden), corrupted(4)[1])


@pytest.mark.parametrize(("patches", "rate"), [(1, 1.0), (5, 0.15)])
def test_too_few_patches_are_refused(patches, rate):
    with pytest.raises(ValueError, match=rf"{patches} patches, rate={rate}"):
        PatchCorruption(rate)(numbered(2, patches))
