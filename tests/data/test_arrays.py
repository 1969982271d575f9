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


def named(labels, images=IMAGES):
    """Arrays whose three classes have names."""
    return {"train": (images, labels), "class_names": ["a", "b", "c"]}


def without(index):
    """The images with one value that is not a number."""
    return np.where(np.arange(IMAGES.size) == index, np.nan, IMAGES.ravel()).reshape(IMAGES.shape)


PAIR = (IMAGES, LABELS)
REFUSED = {
    "label 3 of 3": (named(np.where(LABELS == 2, 3, LABELS)), r"labels(?s:.*)\[0, 3\)(?s:.*)from 0 to 3"),
    "masked labels": ((IMAGES, np.ma.masked_equal(LABELS, 2)), "labels must not be masked(?s:.*)20 masked values"),
    "masked images": ((np.ma.masked_equal(IMAGES, IMAGES[0, 0, 0, 0]), LABELS), "images must not be masked"),
    "negative label": (named(LABELS - 1), "from -1 to 1"),
    "fraction": (named(LABELS + 0.5), "from 0.5 to 2.5"),
    "one-hot too wide": (named(np.eye(4)[LABELS]), r"\(60, 4\)"),
    "no one-hot": (named(np.ones((60, 3))), r"\(60, 3\)"),
    "nan label": ((IMAGES, np.where(LABELS == 1, np.nan, LABELS)), "labels(?s:.*)float64, not all of them finite"),
    "column": ((IMAGES, LABELS.reshape(60, 1)), r"\(60, 1\)(?s:.*)labels\.ravel\(\)"),
    "rank of labels": ((IMAGES, LABELS.reshape(60, 1, 1)), r"\(60, 1, 1\)"),
    "bool": ((IMAGES, LABELS > 0), "bool"),
    "text": ((IMAGES, LABELS.astype(str)), "<U21"),
    "object": ((IMAGES, LABELS.astype(object)), "object"),
    "complex": ((IMAGES, LABELS.astype(complex)), "complex128"),
    "classes without an example": ((IMAGES, LABELS * 2), "none of 1, 3"),
    "many of them": ((IMAGES, np.where(LABELS == 2, 10**9, LABELS)), r"none of 2, 3, 4, 5, 6, \.\.\."),
    "classes of another split": ({"train": (IMAGES, LABELS * 2), "test": PAIR}, "none of 1, 3"),
    "label of another split": ({"train": (IMAGES, LABELS % 2), "test": PAIR}, r"\[0, 2\)(?s:.*)test"),
    "one class": ((IMAGES, LABELS * 0), "two classes"),
    "an empty name": ({"train": PAIR, "class_names": ["a", " ", "c"]}, "not empty.*\n.*' ' for class 1"),
    "one name for two classes": ({"train": PAIR, "class_names": ["a", "b", "a"]}, "must differ.*\n.*'a' more"),
    "empty train": ({"train": (IMAGES[:0], LABELS[:0])}, "train set is empty"),
    "empty test": ({"train": PAIR, "test": (IMAGES[:0], LABELS[:0])}, "test set is empty"),
    "no train": ({"test": PAIR}, "`train`"),
    "unknown split": ({"train": PAIR, "rest": PAIR}, "train, validation or test"),
    "scaled": ((IMAGES / 255, LABELS), "scaled"),
    "negative pixel": ((IMAGES.astype("float32") - 128, LABELS), "from -128"),
    "nan pixel": ((without(9), LABELS), "NaN"),
    "rank": ((IMAGES[..., 0], LABELS), r"\(60, 5, 7\)"),
    "channels": ((IMAGES[..., :2], LABELS), r"\(60, 5, 7, 2\)"),
    "16 bits": ((IMAGES.astype("uint16") * 256, LABELS), "from 0 to 65280"),
    "one too few": ((IMAGES[:59], LABELS), "59 images, 60 labels"),
    "no rows": ((IMAGES[:, :0], LABELS), r"\(60, 0, 7, 3\)"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_arrays_that_cannot_be_trained_on_are_refused(kind):
    what, words = REFUSED[kind]
    with pytest.raises(ValueError, match=words):
        open_source(what)


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"train": PAIR, "class_names": "abc"}, "`class_names`"),
        ({"train": PAIR, "class_names": [1, 2, 3]}, "`class_names`"),
        ((PAIR, PAIR), "dict by split"),
        ({"train": IMAGES}, r"\(images, labels\)"),
    ],
)
def test_containers_of_another_type_are_refused(what, words):
    with pytest.raises(TypeError, match=words):
        open_source(what)


def test_class_of_another_split_only_is_warned_of_where_names_are_given():
    with pytest.warns(UserWarning, match=r"1 class\(es\).*\['b'\]"):
        open_source({"train": (IMAGES, LABELS * 2), "test": PAIR, "class_names": list("abcde")})


def test_empty_class_is_right_where_names_or_rows_tell_of_it():
    assert open_source({"train": PAIR, "class_names": list("abcd")}).class_names == tuple("abcd")
    assert open_source((IMAGES, np.eye(5)[LABELS])).class_names == tuple("01234")


def test_splits_of_two_sizes_are_not_joined():
    source = open_source({"train": PAIR, "test": (IMAGES[:, 1:], LABELS)})
    with pytest.raises(ValueError, match=r"\(5, 7, 3\) and \(4, 7, 3\)"):
        source.split("train+test")


def test_digits_are_meant_despite_a_folder_of_that_name(tmp_path, monkeypatch):
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


def test_division_draws_each_class_by_itself():
    parts = divide(np.arange(80) // 40, seed=0)
    drawn = [[part[part // 40 == label] % 40 for part in parts.values()] for label in (0, 1)]
    assert any(one.tolist() != other.tolist() for one, other in zip(*drawn, strict=True))


def test_division_keeps_groups_together():
    groups = np.arange(100) // 4
    parts = divide(np.arange(100) % 2, seed=3, groups=groups)
    sets = [set(groups[part]) for part in parts.values()]
    assert all(sets)
    assert sum(map(len, sets)) == len(set.union(*sets))


def test_division_of_copies_keeps_the_shares():
    """7 classes of 40 photos and 17 copies; where a copy followed its first, a class had from 2 to 9 in a split."""
    labels = np.repeat(np.arange(7), 57)
    copies = [np.random.default_rng(k).integers(0, 40, 17) for k in range(7)]
    groups = np.concatenate([np.r_[:40, rows] + 40 * k for k, rows in enumerate(copies)])
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
