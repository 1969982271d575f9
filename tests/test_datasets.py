import re

import pytest

from keras_vit.config.datasets import OFFICIAL_DATASETS, VTAB_TASKS, find_dataset

# The second copy, typed from SPEC 5.6 (scenic's VTAB configuration) and arXiv:2010.11929, table 9.
CLASSES = [102, 100, 47, 102, 37, 397, 10, 2, 10, 45, 5, 8, 6, 6, 16, 16, 4, 18, 9]
NO_CROP = {
    "clevr_count_all",
    "clevr_closest_object_distance",
    "dmlab",
    "kitti_closest_vehicle_distance",
    "dsprites_x_position",
}
NO_FLIP = {"dsprites_x_position", "dsprites_orientation", "smallnorb_azimuth"}
TRAIN_IMAGES = {"caltech101": 3060, "cifar100": 50000, "oxford_iiit_pet": 3680, "svhn": 73257}
SHARE = {"caltech101": 90, "cifar100": 90, "oxford_iiit_pet": 80, "svhn": 90, "eurosat": 60, "resisc45": 60}
SHARE |= {
    "clevr_count_all": 90,
    "clevr_closest_object_distance": 90,
    "dsprites_x_position": 80,
    "dsprites_orientation": 80,
}
TRAIN_IMAGES |= {"eurosat": 27000, "resisc45": 31500, "clevr_count_all": 70000, "clevr_closest_object_distance": 70000}
TRAIN_IMAGES |= {"dsprites_x_position": 737280, "dsprites_orientation": 737280}


def test_vtab_has_nineteen_tasks_with_their_classes_in_order():
    assert [record.classes for record in VTAB_TASKS.values()] == CLASSES
    groups = [record.group for record in VTAB_TASKS.values()]
    assert groups == ["natural"] * 7 + ["specialised"] * 4 + ["structured"] * 8


def test_vtab_trains_on_800_and_chooses_by_200():
    def size(split):
        return sum(int(stop) - int(start or 0) for start, stop in re.findall(r"\[(\d*):(\d+)\]", split))

    for record in VTAB_TASKS.values():
        assert (size(record.train), size(record.dev_train), size(record.dev)) == (1000, 800, 200)
        assert record.train == f"{record.dev_train}+{record.dev}"


@pytest.mark.parametrize("task", SHARE)
def test_vtab_chooses_by_what_follows_the_share_of_training(task):
    start = TRAIN_IMAGES[task] * SHARE[task] // 100
    assert find_dataset(f"vtab/{task}").dev == f"train[{start}:{start + 200}]"


@pytest.mark.parametrize(("task", "share"), [("eurosat", 80), ("resisc45", 80), ("dsprites_orientation", 90)])
def test_vtab_tests_on_the_rest_where_there_is_no_test_split(task, share):
    assert find_dataset(f"vtab/{task}").test == f"train[{TRAIN_IMAGES[task] * share // 100}:]"


def test_vtab_crops_and_flips_where_the_label_allows():
    names = {name.removeprefix("vtab/"): record for name, record in VTAB_TASKS.items()}
    assert {name for name, record in names.items() if not record.crop} == NO_CROP
    flipless = {name for name, record in names.items() if not record.flip}
    assert flipless == NO_FLIP


@pytest.mark.parametrize(
    ("name", "classes", "dev_train", "dev", "test"),
    [
        ("cifar10", 10, "train[:98%]", "train[98%:]", "test"),
        ("cifar100", 100, "train[:98%]", "train[98%:]", "test"),
        ("imagenet2012", 1000, "train[:99%]", "train[99%:]", "validation"),
        ("oxford_iiit_pet", 37, "train[:90%]", "train[90%:]", "test"),
        ("oxford_flowers102", 102, "train[:90%]", "train[90%:]", "test"),
    ],
)
def test_official_splits_are_those_of_the_official_configurations(name, classes, dev_train, dev, test):
    record = find_dataset(name)
    assert (record.classes, record.dev_train, record.dev, record.test) == (classes, dev_train, dev, test)
    assert record.train == "train"


def test_every_record_says_where_it_comes_from():
    assert all(record.source for record in (OFFICIAL_DATASETS | VTAB_TASKS).values())
    assert not set(OFFICIAL_DATASETS) & set(VTAB_TASKS)


def test_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'vtab/caltech101'"):
        find_dataset("vtab/caltech")
