import gc
import weakref

import numpy as np
import pytest

from keras_vit.data import open_source
from keras_vit.data.splits import SPLITS, divide

IMAGES = np.random.default_rng(0).integers(0, 256, (60, 5, 7, 3), dtype="uint8")
LABELS = np.arange(60) % 3


def test_pair_is_divided_without_loss():
    source = open_source((IMAGES, LABELS))
    assert source.sizes == {"train": 48, "validation": 6, "test": 6}
    images = np.concatenate([source.split(split).images for split in SPLITS])
    assert sorted(image.tobytes() for image in images) == sorted(image.tobytes() for image in IMAGES)


def test_dict_of_splits_is_taken_as_it_is():
    parts = {"train": (IMAGES[:40], LABELS[:40]), "test": (IMAGES[40:], LABELS[40:]), "class_names": ["a", "b", "c"]}
    source = open_source(parts)
    assert source.sizes == {"train": 40, "test": 20}
    assert source.class_names == ("a", "b", "c")
    np.testing.assert_array_equal(source.pixels("test", 3), IMAGES[43])
    assert source.rows("test")[3] == {"index": 3, "label": 1, "class": "b"}


def test_one_hot_labels_are_the_same_as_numbers():
    whole, one_hot = (open_source((IMAGES, labels)) for labels in (LABELS, np.eye(3)[LABELS]))
    np.testing.assert_array_equal(whole.split("train").labels, one_hot.split("train").labels)
    assert whole.class_names == one_hot.class_names == ("0", "1", "2")


def test_splits_can_be_joined():
    source = open_source((IMAGES, LABELS))
    joined = source.split("train+validation")
    parts = [source.split(name).images for name in ("train", "validation")]
    np.testing.assert_array_equal(joined.images, np.concatenate(parts))


def test_source_is_given_back_as_it_is():
    source = open_source((IMAGES, LABELS))
    assert open_source(source) is source


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (np.where(LABELS == 2, 3, LABELS), "from 0 to 3, for 3 classes"),
        (LABELS - 1, "from -1 to 1, for 3 classes"),
        (LABELS + 0.5, "from 0.5 to 2.5, for 3 classes"),
        (np.eye(4)[LABELS], r"shape \(60, 4\)"),
        (np.ones((60, 3)), r"shape \(60, 3\)"),
    ],
    ids=["3 of 3", "negative", "fraction", "one too wide", "no one-hot"],
)
def test_label_that_is_no_class_is_refused_with_its_range(labels, found):
    with pytest.raises(ValueError, match=rf"labels must be whole numbers in \[0, 3\)(?s:.*){found}"):
        open_source({"train": (IMAGES, labels), "class_names": ["a", "b", "c"]})


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (np.where(LABELS == 1, np.nan, LABELS), r"shape \(60,\) of float64, not all of them finite\.$"),
        (LABELS.reshape(60, 1), r"shape \(60, 1\) of int64\. Pass labels\.ravel\(\)\.$"),
        (LABELS.reshape(60, 1, 1), r"shape \(60, 1, 1\) of int64\.$"),
        (LABELS > 0, r"shape \(60,\) of bool\.$"),
        (LABELS.astype(str), r"of <U21\.$"),
        (LABELS.astype(object), r"of object\.$"),
        (LABELS.astype(complex), r"of complex128\.$"),
    ],
    ids=["nan", "column", "rank", "bool", "text", "object", "complex"],
)
def test_what_can_be_no_labels_is_refused_without_a_number_of_classes(labels, found):
    with pytest.raises(ValueError, match=rf"labels must be whole numbers of shape \(n,\)(?s:.*){found}"):
        open_source((IMAGES, labels))


@pytest.mark.parametrize(
    ("labels", "missing"),
    [
        (LABELS * 2, "labels to 4 with none of 1, 3. Number"),
        (np.where(LABELS == 2, 10**9, LABELS), "none of 2, 3, 4, 5, 6, ..."),
    ],
)
def test_class_without_an_example_is_refused_by_number(labels, missing):
    with pytest.raises(ValueError, match=missing):
        open_source((IMAGES, labels))


def test_class_of_another_split_only_is_refused_or_warned_of():
    parts = {"train": (IMAGES, LABELS * 2), "test": (IMAGES, LABELS)}
    with pytest.raises(ValueError, match=r"an example to train on(?s:.*)none of 1, 3"):
        open_source(parts)
    with pytest.warns(UserWarning, match=r"no example of 1 class\(es\) that other splits have, as \[1\]"):
        open_source({**parts, "class_names": list("abcde")})


def test_empty_class_is_right_where_names_or_rows_tell_of_it():
    assert open_source({"train": (IMAGES, LABELS), "class_names": list("abcd")}).class_names == tuple("abcd")
    assert open_source((IMAGES, np.eye(5)[LABELS])).class_names == tuple("01234")


@pytest.mark.parametrize(
    ("names", "error"), [("abc", TypeError), ([1, 2, 3], TypeError), (["a", "b", "a"], ValueError)]
)
def test_names_that_tell_no_classes_apart_are_refused(names, error):
    with pytest.raises(error, match="`class_names` must"):
        open_source({"train": (IMAGES, LABELS), "class_names": names})


def test_pairs_without_names_of_splits_are_refused():
    with pytest.raises(TypeError, match="Pass a dict by split"):
        open_source(((IMAGES, LABELS), (IMAGES, LABELS)))


def test_splits_of_two_sizes_are_not_joined():
    source = open_source({"train": (IMAGES, LABELS), "test": (IMAGES[:, 1:], LABELS)})
    with pytest.raises(ValueError, match=r"\(5, 7, 3\) and \(4, 7, 3\)"):
        source.split("train+test")


def test_label_that_training_does_not_have_is_refused():
    with pytest.raises(ValueError, match=r"in \[0, 2\)(?s:.*)labels of test"):
        open_source({"train": (IMAGES[:30], LABELS[:30] % 2), "test": (IMAGES[30:], LABELS[30:])})


@pytest.mark.parametrize("split", ["train", "test"])
def test_empty_set_is_refused(split):
    with pytest.raises(ValueError, match=f"the {split} set is empty"):
        open_source({"train": (IMAGES, LABELS), split: (IMAGES[:0], LABELS[:0])})


@pytest.mark.parametrize(
    ("images", "error"),
    [
        (IMAGES / 255, "seem scaled already"),
        (IMAGES.astype("float32") - 128, "values from -128"),
        (np.where(np.arange(IMAGES.size) == 9, np.nan, IMAGES.ravel()).reshape(IMAGES.shape), "NaN among those"),
        (IMAGES[..., 0], r"shape \(60, 5, 7\)"),
        (IMAGES[..., :2], r"shape \(60, 5, 7, 2\)"),
        (IMAGES.astype("uint16") * 256, "values from 0 to 65280"),
        (IMAGES[:59], "59 images, 60 labels"),
        (IMAGES[:, :0], r"shape \(60, 0, 7, 3\)"),
    ],
    ids=["scaled", "negative", "nan", "rank", "channels", "16 bits", "one too few", "no rows"],
)
def test_images_that_are_none_are_refused(images, error):
    with pytest.raises(ValueError, match=error):
        open_source((images, LABELS))


def test_single_class_and_odd_containers_are_refused():
    with pytest.raises(ValueError, match="at least two classes"):
        open_source((IMAGES, LABELS * 0))
    with pytest.raises(ValueError, match="must have a split `train`"):
        open_source({"test": (IMAGES, LABELS)})
    with pytest.raises(ValueError, match="train, validation or test"):
        open_source({"train": (IMAGES, LABELS), "rest": (IMAGES, LABELS)})
    with pytest.raises(TypeError, match=r"must come as \(images, labels\)"):
        open_source({"train": IMAGES})


def test_digits_are_meant_beside_a_folder_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert open_source("digits").sizes["train"] > 1000
    with pytest.raises(ValueError, match="digits"):
        open_source("./digits")


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    source = open_source("digits")
    assert source.sizes == {"train": 1439, "validation": 179, "test": 179}
    everything = np.concatenate([source.split(split).images for split in SPLITS])[..., 0]
    # 17 grey levels, spread over 256: rounding moves each by at most half a level
    known = {image.astype(int).tobytes() for image in load_digits().images}
    assert {np.round(image / 255 * 16).astype(int).tobytes() for image in everything} == known


@pytest.mark.parametrize(
    ("count", "sizes"), [(1, (1, 0, 0)), (2, (1, 0, 1)), (3, (1, 1, 1)), (10, (8, 1, 1)), (25, (21, 2, 2))]
)
def test_division_of_one_class_is_80_10_10_with_none_left_out(count, sizes):
    parts = divide(np.zeros(count, int), seed=0)
    assert tuple(len(part) for part in parts.values()) == sizes
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(count))


def test_division_keeps_groups_together():
    groups = np.arange(100) // 4
    parts = divide(np.arange(100) % 2, seed=3, groups=groups)
    sets = [set(groups[part]) for part in parts.values()]
    assert all(sets)
    assert sum(map(len, sets)) == len(set.union(*sets))


def test_division_of_copies_keeps_the_shares():
    """7 classes of 40 photos and 17 copies; where a copy followed its first, a class had from 2 to 9 in a split."""
    labels = np.repeat(np.arange(7), 57)
    groups = np.concatenate([np.r_[:40, rng.integers(0, 40, 17)] + 40 * k for k, rng in enumerate(generators(7))])
    for seed in range(5):
        parts = divide(labels, seed, groups)
        assert [np.bincount(labels[part]).tolist() for part in parts.values()] == [[45] * 7, [6] * 7, [6] * 7]
        assert sum(len(set(groups[part])) for part in parts.values()) == len(set(groups))


def test_division_trains_on_a_class_of_one_photo_and_its_copies():
    parts = divide([0] * 9, 0, [0] * 9)
    assert [len(part) for part in parts.values()] == [9, 0, 0]


@pytest.mark.parametrize(("pairs", "sizes"), [(2, (2, 0, 2)), (3, (2, 2, 2)), (5, (6, 2, 2)), (10, (16, 2, 2))])
def test_division_of_a_class_whose_photos_all_stand_twice_has_a_test_set(pairs, sizes):
    for seed in range(5):
        parts = divide([0] * 2 * pairs, seed, [*range(pairs)] * 2)
        assert tuple(len(part) for part in parts.values()) == sizes


def generators(count):
    return [np.random.default_rng(seed) for seed in range(count)]


def test_readers_of_a_split_share_their_copy_of_the_images_while_one_of_them_lives():
    """As of a training whose images grow, which reads the same images for each size."""
    split = open_source((IMAGES, LABELS)).split("train")
    readers = [split.reader(), split.reader()]
    first, second = ([cell.cell_contents for cell in reader.__closure__] for reader in readers)
    assert all(one is other for one, other in zip(first, second, strict=True))
    np.testing.assert_array_equal(readers[1](7)["pixels"], split.images[7])
    kept = weakref.ref(first[0])
    del readers, first, second
    gc.collect()
    assert kept() is None
    np.testing.assert_array_equal(split.reader()(7)["pixels"], split.images[7])
