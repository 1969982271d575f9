"""MixUp and CutMix: labels stay distributions and say exactly what the pixels show."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from keras_vit.data.augmentation import Augmentation, augment_batch

BATCH, HEIGHT, WIDTH, CLASSES = 6, 19, 23, 8


@pytest.fixture
def batch():
    rng = np.random.default_rng(6)
    images = rng.uniform(-1, 1, (BATCH, HEIGHT, WIDTH, 3)).astype("float32")
    return images, np.eye(CLASSES, dtype="float32")[[3, 1, 7, 0, 5, 2]]  # all different: shares can be read off


def draws(batch, record, count=600):
    """Mixed images (of the first row of pixels, to save memory) and labels over many seeds."""
    seeds = tf.stack([tf.range(count), tf.fill(count, 11)], axis=1)
    mix = tf.function(lambda seed: augment_batch(*batch, record, seed))
    return [values.numpy() for values in tf.map_fn(mix, seeds, fn_output_signature=(tf.float32, tf.float32))]


def shares(labels, one_hot):
    """What every row kept of its own label."""
    return (labels * one_hot).sum(-1)


def test_record_without_mixing_gives_the_batch_itself(batch):
    images, labels = augment_batch(*batch, Augmentation(), tf.constant([0, 0]))
    np.testing.assert_array_equal(images, batch[0])
    np.testing.assert_array_equal(labels, batch[1])


@pytest.mark.parametrize("alphas", [(0.2, 0), (0, 1.0), (0.2, 1.0)])
def test_labels_stay_distributions(batch, alphas):
    _, labels = draws(batch, Augmentation(mixup_alpha=alphas[0], cutmix_alpha=alphas[1]), 100)
    np.testing.assert_allclose(labels.sum(-1), 1, atol=2e-7)  # one rounding of float32 in each of two terms
    assert labels.min() >= 0


def test_mixup_is_the_weighted_mean_with_the_image_before(batch):
    images, labels = draws(batch, Augmentation(mixup_alpha=0.5), 20)
    for mixed, label in zip(images, labels, strict=True):
        share = shares(label, batch[1])
        assert (share == share[0]).all()  # one for the batch
        assert share[0] >= 0.5
        expected = [share[0] * x + (1 - share[0]) * np.roll(x, 1, axis=0) for x in map(np.float64, batch)]
        np.testing.assert_allclose(mixed, expected[0], atol=3e-7)  # float32 of values up to 1
        np.testing.assert_allclose(label, expected[1], atol=2e-7)


def test_mixing_is_what_keras_layers_make_of_the_same_draw(batch):
    images, labels = augment_batch(*batch, Augmentation(mixup_alpha=0.5), tf.constant([3, 4]))
    share = shares(labels.numpy(), batch[1])
    layer = keras.layers.MixUp()
    draw = {"mix_weight": share, "permutation_order": np.roll(np.arange(BATCH), 1)}
    np.testing.assert_allclose(images, layer.transform_images(batch[0], draw), atol=3e-7)
    np.testing.assert_allclose(labels, layer.transform_labels(batch[1], draw), atol=3e-7)
    images, labels = augment_batch(*batch, Augmentation(cutmix_alpha=1.0), tf.constant([3, 4]))
    layer = keras.layers.CutMix()
    draw = draw | {"mix_weight": shares(labels.numpy(), batch[1]), "batch_masks": (images.numpy() != batch[0])}
    np.testing.assert_array_equal(images, layer.transform_images(batch[0], draw))
    np.testing.assert_allclose(labels, layer.transform_labels(batch[1], draw), atol=3e-7)


@pytest.mark.parametrize("alpha", [0.2, 0.8])
def test_mixup_share_is_the_larger_part_of_a_beta_draw(batch, alpha):
    _, labels = draws(batch, Augmentation(mixup_alpha=alpha))
    share = shares(labels, batch[1])[:, 0]
    beta = stats.beta(alpha, alpha)
    assert stats.kstest(share, lambda t: beta.cdf(t) - beta.cdf(1 - t)).pvalue > 1e-3  # seeds are fixed


def test_cutmix_label_is_exactly_the_share_of_pixels(batch):
    images, labels = draws(batch, Augmentation(cutmix_alpha=1.0))
    own = (images == batch[0]).all(-1)  # (draws, B, H, W)
    before = (images == np.roll(batch[0], 1, axis=0)).all(-1)
    assert (own ^ before).all()
    np.testing.assert_allclose(shares(labels, batch[1]), own.mean((2, 3)), atol=1e-7)  # float32 of the exact share


def test_cutmix_pastes_one_rectangle_at_the_same_place_of_both(batch):
    images, _ = draws(batch, Augmentation(cutmix_alpha=1.0), 100)
    pasted = (images != batch[0]).any(-1)
    assert (pasted == pasted[:, :1]).all()
    for mask in pasted[:, 0]:
        assert mask.sum() == mask.any(0).sum() * mask.any(1).sum()


def test_cutmix_area_is_the_rest_of_a_beta_draw_where_no_border_cuts_it(batch):
    """Alpha = 1 draws evenly, so sqrt(1 - share), a side's part, has the distribution function t^2."""
    images, _ = draws(batch, Augmentation(cutmix_alpha=1.0))
    pasted = (images != batch[0]).any(-1)[:, 0]
    rows, columns = pasted.any(2), pasted.any(1)
    assert rows.any(1).mean() > 0.9
    # A border cuts a side by a quarter of it at most on average; over all: E[side (1 - side/4)], side ~ 2t.
    expected = 2 / 3 - 1 / 8
    for part in (rows.mean(1), columns.mean(1)):
        # down to whole pixels: half a pixel of 19; and four deviations of 600 draws (0.2 each)
        assert expected - 0.5 / 19 - 0.033 < part.mean() < expected + 0.033


def test_cutmix_rectangle_lies_anywhere_in_both_directions(batch):
    images, _ = draws(batch, Augmentation(cutmix_alpha=1.0))
    pasted = (images != batch[0]).any(-1)[:, 0]
    for lines in (pasted.any(2), pasted.any(1)):
        often = lines.mean(0)
        np.testing.assert_allclose(often, often[::-1], atol=0.12)  # no side preferred; four deviations of 600 draws


def test_with_both_half_of_the_batches_take_each(batch):
    images, _ = draws(batch, Augmentation(mixup_alpha=1.0, cutmix_alpha=1.0), 400)
    mixed = ((images != batch[0]) & (images != np.roll(batch[0], 1, axis=0))).mean((1, 2, 3, 4)) > 0.9
    assert abs(mixed.mean() - 0.5) < 4 * 0.5 / math.sqrt(400)  # four deviations


def test_batch_of_unknown_size_is_mixed(batch):
    data = tf.data.Dataset.from_tensor_slices(batch).batch(4)
    data = data.map(
        lambda x, y: augment_batch(x, y, Augmentation(mixup_alpha=0.3, cutmix_alpha=1), tf.constant([1, 2]))
    )
    assert [len(images) for images, _ in data] == [4, 2]


@pytest.mark.parametrize(
    ("labels", "words"),
    [(np.eye(6, 8, dtype="int32"), r"\(6, 8\) int32"), (np.arange(6, dtype="float32"), r"\(6,\)")],
)
def test_labels_that_are_no_float_one_hot_rows_are_refused(batch, labels, words):
    with pytest.raises(ValueError, match=words):
        augment_batch(batch[0], labels, Augmentation(mixup_alpha=0.2), tf.constant([0, 0]))
