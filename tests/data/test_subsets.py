"""Fewer training images: exactly as many, the same every time, and each set within the larger ones."""

import itertools

import numpy as np
import pytest
from photos import make_photos
from pictures import picture
from prepared_sets import prepare_set

from keras_vit.data import load_dataset, open_source
from keras_vit.data.source import fingerprint
from keras_vit.images.preprocessing import Preprocessing

SIZES = (5, 6, 13, 29, 60)
IMAGES = np.arange(60, dtype="uint8")[:, None, None, None] + np.zeros((60, 3, 4, 1), "uint8")
LABELS = np.repeat(np.arange(5), [2, 4, 9, 20, 25])


@pytest.fixture
def source():
    return open_source({"train": (IMAGES, LABELS), "test": (IMAGES[:7], LABELS[:7])})


def members(source):
    """Numbers of the images that are left."""
    return source.split("train").images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("order", ["balanced", "random"])
@pytest.mark.parametrize("seed", [0, 3])
def test_subsets_are_exact_and_each_lies_in_the_larger_ones(source, order, seed):
    found = [members(source.subset(size, seed=seed, order=order)) for size in SIZES]
    assert [len(set(each)) for each in found] == list(SIZES)
    assert all(set(small) < set(large) for small, large in itertools.pairwise(found))
    assert found[-1] == list(range(60))


@pytest.mark.parametrize("order", ["balanced", "random"])
def test_subset_is_a_function_of_its_seed(source, order):
    again = open_source({"train": (IMAGES, LABELS), "test": (IMAGES[:7], LABELS[:7])})
    assert members(source.subset(20, order=order)) == members(again.subset(20, order=order))
    assert members(source.subset(20, order=order)) != members(source.subset(20, seed=1, order=order))


def test_classes_take_turns_until_one_has_no_more(source):
    def counts(size):
        return np.bincount(source.subset(size).split("train").labels, minlength=5).tolist()

    assert counts(5) == [1] * 5
    assert counts(10) == [2] * 5
    assert sorted(counts(8)) == [1, 1, 2, 2, 2]
    assert counts(18) == [2, 4, 4, 4, 4]
    assert counts(33) == [2, 4, 9, 9, 9]


def test_random_subsets_have_the_shares_of_the_whole(source):
    counts = [np.bincount(source.subset(30, seed=seed, order="random").split("train").labels) for seed in range(200)]
    # half of each class; 5 deviations of a hypergeometric mean over 200 draws, at most sqrt(30/4 / 2 / 200)
    np.testing.assert_allclose(np.mean(counts, axis=0), [1, 2, 4.5, 10, 12.5], atol=0.7)


def test_labels_stay_with_their_images_and_other_splits_stay(source):
    small = source.subset(13)
    assert small.sizes == {"train": 13, "test": 7}
    np.testing.assert_array_equal(small.split("train").labels, LABELS[members(small)])
    assert small.split("test") is source.split("test")
    assert small.describe()["subset"] == {"train_images": 13, "seed": 0, "order": "balanced"}
    assert small.class_names == source.class_names


def test_subset_of_files_names_the_files(tmp_path):
    whole = open_source(make_photos(tmp_path / "set", 10))
    small = whole.subset(7)
    rows = {row["path"]: row["class"] for row in whole.rows("train")}
    assert [rows[row["path"]] for row in small.rows("train")] == [row["class"] for row in small.rows("train")]
    assert small.sizes == {**whole.sizes, "train": 7}
    assert len({fingerprint(each) for each in (whole, small, whole.subset(8), whole.subset(7, seed=1))}) == 4


def test_batches_are_those_of_the_subset(source):
    record = Preprocessing(image_size=(3, 4)).with_channels(1)
    small = source.subset(12)
    train = load_dataset(small, batch_size=4, preprocessing=record, training=True, seed=1)
    images = np.concatenate([batch.numpy() for batch, _ in train.take(3)])[:, 0, 0, 0]  # one epoch
    assert sorted(np.round(images * 127.5 + 127.5).astype(int).tolist()) == members(small)
    assert train.num_examples == 12


@pytest.mark.parametrize(
    ("size", "arguments", "error", "message"),
    [
        (0, {}, ValueError, "`train_images`"),
        (2.0, {}, TypeError, "`train_images`"),
        (61, {}, ValueError, "train_images=61, for 60"),
        (4, {}, ValueError, "train_images=4, for 5 classes"),
        (9, {"order": "balance"}, ValueError, "'balanced'"),
        (9, {"seed": -1}, ValueError, "`seed`"),
    ],
)
def test_subsets_that_cannot_be_are_refused(source, size, arguments, error, message):
    with pytest.raises(error, match=message):
        source.subset(size, **arguments)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """40 training and 9 test images of three classes."""
    splits = {
        name: {n: {"image": picture(6, 5, seed=[count, n]), "label": n % 3} for n in range(count)}
        for name, count in (("train", 40), ("test", 9))
    }
    builder = prepare_set(
        tmp_path_factory.mktemp("tfds"),
        splits,
        lambda kinds: {"image": kinds.Image(shape=(6, 5, 3)), "label": kinds.ClassLabel(num_classes=3)},
    )
    return open_source(builder.data_path)


def encoded(source):
    """The training images as they lie in the set."""
    return [example["bytes"].numpy() for _, example in source.split("train").stream(None)]


def test_subset_of_a_prepared_set_reads_over_the_others(prepared):
    small = prepared.subset(6)
    whole, few, more = map(encoded, (prepared, small, prepared.subset(11)))
    assert len(set(few)) == 6
    assert set(few) < set(more) < set(whole)
    assert np.bincount(small.split("train").labels).tolist() == [2, 2, 2]
    assert [row["label"] for row in small.rows("train")] == small.split("train").labels.tolist()
    assert len({fingerprint(each) for each in (prepared, small, prepared.subset(7))}) == 3
    again = small.subset(4)  # of a subset
    assert set(encoded(again)) < set(few)


def test_subset_of_a_prepared_set_is_trained_on_alone(prepared):
    small, record = prepared.subset(6), Preprocessing(image_size=(6, 5))
    train = load_dataset(small, batch_size=3, preprocessing=record, training=True, seed=1)
    images = np.concatenate([batch.numpy() for batch, _ in train.take(4)])  # two epochs
    assert len({image.tobytes() for image in images}) == 6
    with pytest.raises(ValueError, match="one of them a subset"):
        small.split("train+validation")
