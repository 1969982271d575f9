import keras
import numpy as np
import pytest
from conftest import images, make_tiny, numpy

from keras_vit.layers import PatchDropout
from keras_vit.layers.tokens import kept_patches


def numbered(batch=6, prefix=1, patches=35):
    """Tokens that tell where they stood: token t of every example is (t, t)."""
    return np.tile(np.arange(prefix + patches, dtype="float32")[None, :, None], (batch, 1, 2))


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_kept_tokens_are_a_subset_behind_all_prefix_tokens(prefix):
    kept = numpy(PatchDropout(0.4, prefix)(numbered(prefix=prefix), training=True))[..., 0]
    assert kept.shape == (6, prefix + 21)
    np.testing.assert_array_equal(kept[:, :prefix], np.tile(np.arange(prefix), (6, 1)))
    for example in kept[:, prefix:]:
        assert len(set(example)) == 21
        assert set(example) <= set(range(prefix, prefix + 35))


def test_kept_tokens_keep_all_their_numbers():
    x = images(2, 8, 5)
    kept = numpy(PatchDropout(0.5, 1)(x, training=True))
    assert all(any((token == before).all() for before in x[i]) for i in range(2) for token in kept[i])


def test_every_example_and_every_call_draws_anew():
    layer = PatchDropout(0.5, 1)
    first, second = (numpy(layer(numbered(), training=True))[..., 0] for _ in range(2))
    drawn = {tuple(sorted(example)) for example in [*first, *second]}
    assert len(drawn) == 12  # of 2.3e9 subsets


def test_every_patch_is_kept_as_often_as_any_other():
    kept = numpy(PatchDropout(0.75, 1)(numbered(batch=4000, patches=8), training=True))[..., 0]
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


def test_patch_dropout_of_unknown_numbers_keeps_as_many():
    inputs = keras.Input((None, 2))
    model = keras.Model(inputs, PatchDropout(0.4, 1)(inputs))
    assert model.output_shape == (None, None, 2)
    assert numpy(model(numbered(), training=True)).shape == (6, 22, 2)


def test_patch_dropout_stands_behind_the_positions_and_only_where_asked():
    names = [layer.name for layer in make_tiny(patch_dropout_rate=0.5).layers]
    assert names.index("patch_dropout") == names.index("block_00") - 1 > names.index("position_embedding")
    assert "patch_dropout" not in [layer.name for layer in make_tiny().layers]


def test_prediction_is_that_of_the_whole_image():
    x = images(2, 20, 28, 3)
    np.testing.assert_array_equal(numpy(make_tiny(patch_dropout_rate=0.5)(x)), numpy(make_tiny()(x)))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_model_trains_with_fewer_tokens(jit_compile):
    model = make_tiny(patch_dropout_rate=0.5, num_layers=1)
    before = numpy(model.get_layer("patch_embedding").weights[0]).copy()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=jit_compile)
    assert np.isfinite(model.train_on_batch(images(4, 20, 28, 3), np.arange(4)))
    assert np.abs(numpy(model.get_layer("patch_embedding").weights[0]) - before).max() > 1e-6


def test_patch_dropout_survives_its_config_and_repeats_its_seed():
    layers = [PatchDropout.from_config(PatchDropout(0.4, 2, seed=5).get_config()) for _ in range(2)]
    kept = [numpy(layer(numbered(prefix=2), training=True)) for layer in layers]
    np.testing.assert_array_equal(*kept)
    assert (layers[0].rate, layers[0].num_prefix_tokens) == (0.4, 2)


@pytest.mark.parametrize(("rate", "error"), [(1.0, ValueError), (-0.1, ValueError), ("0.5", TypeError)])
def test_patch_dropout_refuses_a_rate_that_is_none(rate, error):
    with pytest.raises(error, match="`rate`"):
        PatchDropout(rate, 1)
