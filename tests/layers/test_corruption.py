import keras
import numpy as np
import pytest
from conftest import numpy

from keras_vit.layers import PatchCorruption

MASK = -1.0  # what hides a token in these tests


def numbered(batch, patches):
    """Tokens that tell where they stood: token t of every image is (t, t)."""
    return np.tile(np.arange(patches, dtype="float32")[None, :, None], (batch, 1, 2))


def corrupted(batch=3000, patches=35, training=True, **arguments):
    """What became of numbered tokens, `(B, N)`, and whether each is hidden."""
    layer = PatchCorruption(**{"seed": 1} | arguments)
    layer.build((None, patches, 2))
    layer.mask_token.assign(np.full((1, 1, 2), MASK, "float32"))
    tokens, hidden = layer(numbered(batch, patches), training=training)
    np.testing.assert_array_equal(numpy(tokens)[..., 0], numpy(tokens)[..., 1])  # a token is replaced as a whole
    return numpy(tokens)[..., 0], numpy(hidden)


def kinds(tokens, hidden):
    """Bool `(B, N)` of each kind of hidden token."""
    own = tokens == np.arange(tokens.shape[1])
    return {"masked": tokens == MASK, "replaced": ~own & (tokens != MASK), "unchanged": own & hidden}


def test_only_hidden_tokens_are_changed():
    tokens, hidden = corrupted()
    changed = tokens != np.arange(35)
    assert changed.any()
    assert not (changed & ~hidden).any()


@pytest.mark.parametrize("patches", [35, 20, 7])
def test_counts_are_those_of_the_paper_in_expectation_and_within_one_in_every_image(patches):
    tokens, hidden = corrupted(patches=patches)
    shares = {"masked": 0.4, "replaced": 0.05, "unchanged": 0.05}
    counted = [(kind.sum(axis=1), patches * shares[name]) for name, kind in kinds(tokens, hidden).items()]
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


def test_every_image_and_every_call_draws_anew_in_training():
    layer = PatchCorruption(seed=1)
    drawn = {tuple(row) for _ in range(2) for row in numpy(layer(numbered(6, 35), training=True)[1])}
    assert len(drawn) == 12  # of 4.5e9 halves


def test_outside_of_training_all_images_have_one_draw_that_is_always_the_same():
    (one, hidden), (more, _) = corrupted(1, training=False, seed=1), corrupted(5, training=False, seed=2)
    np.testing.assert_array_equal(more, np.repeat(one, 5, axis=0))
    assert hidden.sum() in (17, 18)


@pytest.mark.parametrize(("masked", "expected"), [(1.0, MASK), (0.0, None)])
def test_extreme_shares_change_all_tokens_or_none(masked, expected):
    tokens, hidden = corrupted(50, 7, rate=1.0, mask_share=masked, random_share=0.0)
    assert hidden.all()
    np.testing.assert_array_equal(tokens, np.arange(7) + np.zeros((50, 1)) if expected is None else expected)


def test_unknown_numbers_of_patches_are_corrupted_by_the_same_shares():
    inputs = keras.Input((None, 2))
    model = keras.Model(inputs, PatchCorruption(seed=1)(inputs))
    assert [output.shape for output in model.outputs] == [(None, None, 2), (None, None)]
    assert set(numpy(model(numbered(40, 20), training=True)[1]).sum(axis=1)) == {10}


def test_half_precision_keeps_its_type_and_the_draw():
    half, hidden = PatchCorruption(seed=1, dtype="mixed_bfloat16")(numbered(4, 35), training=True)
    assert keras.backend.standardize_dtype(half.dtype) == "bfloat16"
    np.testing.assert_array_equal(numpy(hidden), corrupted(4)[1])


def test_corruption_survives_its_config_and_repeats_its_seed():
    arguments = {"rate": 0.4, "mask_share": 0.5, "random_share": 0.25, "seed": 5}
    layers = [PatchCorruption.from_config(PatchCorruption(**arguments).get_config()) for _ in range(2)]
    first, second = (numpy(layer(numbered(6, 20), training=True)[1]) for layer in layers)
    np.testing.assert_array_equal(first, second)
    assert {name: getattr(layers[0], name) for name in arguments} == arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"rate": 0}, ValueError, "`rate` must be above 0"),
        ({"rate": 1.1}, ValueError, "`rate` is a share of the patches"),
        ({"rate": float("nan")}, ValueError, "`rate` is a share of the patches"),
        ({"rate": "half"}, TypeError, "`rate` must be a number"),
        ({"mask_share": 0.8, "random_share": 0.3}, ValueError, "at most 1 together"),
    ],
)
def test_shares_that_are_none_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        PatchCorruption(**arguments)


@pytest.mark.parametrize(("patches", "rate"), [(1, 1.0), (5, 0.15)])
def test_too_few_patches_are_refused(patches, rate):
    with pytest.raises(ValueError, match=rf"two patches or more.*\nReceived: {patches} patches, rate={rate}"):
        PatchCorruption(rate)(numbered(2, patches))
