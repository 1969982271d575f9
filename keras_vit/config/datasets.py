"""The data sets of the paper: tensorflow-datasets names, the official splits, and the 19 tasks of VTAB-1k.

Splits are written as tensorflow-datasets slices them. `train` is what final runs train on, `dev_train` and `dev`
are its two parts by which hyper-parameters are chosen, `test` is what is reported.
"""

import dataclasses
from typing import Any

from keras_vit.checks import did_you_mean

SHARD_FORMATS = ("tar", "tfrecord", "array_record", "parquet")  # that `pack` writes
SHARD_BYTES = 2**28  # of photos in a shard, by default


@dataclasses.dataclass(frozen=True)
class DatasetRecord:
    """Where a data set is, how it is split, and what an example's label is.

    Args:
        name: in tensorflow-datasets, with its configuration.
        classes: K.
        train: split that final runs train on.
        dev_train: split to train on while hyper-parameters are chosen.
        dev: split to choose them by.
        test: split that is reported.
        source: where the splits come from.
        group: `"transfer"`, or of VTAB `"natural"`, `"specialised"` or `"structured"`.
        label: key of the label among the features; or of a rule of `data.tensorflow_datasets.LABEL_RULES`.
        label_classes: how many values the stored label has, where they are merged evenly into K; else `None`.
        image: key of the image.
        white: value of white in the stored image.
        crop: whether training images are cropped at random.
        flip: whether training images are flipped at random.
    """

    name: str
    classes: int
    train: str
    dev_train: str
    dev: str
    test: str
    source: str
    group: str = "transfer"
    label: str = "label"
    label_classes: int | None = None
    image: str = "image"
    white: int = 255
    crop: bool = True
    flip: bool = True


_CONFIGS = "google-research/vision_transformer, vit_jax/configs/common.py; arXiv:2010.11929, appendix B.1.1"
_BIG_VISION = "google-research/big_vision, configs/transfer.py; arXiv:2010.11929, appendix B.1.1"
_VTAB = "arXiv:1910.04867; google-research/task_adaptation, data/; random changes: google-research/scenic, vtab config"


def _percent(name: str, classes: int, part: int, source: str, test: str = "test") -> DatasetRecord:
    return DatasetRecord(name, classes, "train", f"train[:{part}%]", f"train[{part}%:]", test, source)


OFFICIAL_DATASETS = {
    "cifar10": _percent("cifar10", 10, 98, _CONFIGS),
    "cifar100": _percent("cifar100", 100, 98, _CONFIGS),
    "imagenet2012": _percent("imagenet2012", 1000, 99, _CONFIGS, test="validation"),
    "oxford_iiit_pet": _percent("oxford_iiit_pet", 37, 90, _BIG_VISION),
    "oxford_flowers102": _percent("oxford_flowers102", 102, 90, _BIG_VISION),
}

# Names on the Hugging Face Hub, of those sets that are there in their own name: what a model card may link.
HUB_DATASETS = {
    "cifar10": "uoft-cs/cifar10",
    "cifar100": "uoft-cs/cifar100",
    "imagenet2012": "ILSVRC/imagenet-1k",
}


def _task(group: str, name: str, classes: int, dev: str, test: str = "test", **fields: Any) -> DatasetRecord:
    """800 images to train and 200 to choose by; `dev` is the split those 200 start."""
    train = "train[:800]"
    return DatasetRecord(name, classes, f"{train}+{dev}", train, dev, test, _VTAB, group, **fields)


# Where a set has no validation split, the 200 start where the protocol's share of `train` ends: 90 % of 3,060
# images for Caltech-101, 50,000 for CIFAR-100 and 73,257 for SVHN, 80 % of 3,680 for Pets, 60 % of 27,000 for
# EuroSAT and 31,500 for Resisc45 (whose last 20 % are tested), 90 % of 70,000 for CLEVR, 80 % of 737,280 for
# dSprites (whose last 10 % are tested); small NORB's are the first of its test images, whose second half is tested.
_NORB = {"dev": "test[:200]", "test": "test[50%:]"}
_SPRITES: dict[str, Any] = {
    "dev": "train[589824:590024]",
    "test": "train[663552:]",
    "white": 1,
    "crop": False,
    "flip": False,
}
_CLEVR: dict[str, Any] = {"dev": "train[63000:63200]", "test": "validation", "crop": False}
_VALIDATION = "validation[:200]"
VTAB_TASKS = {
    "vtab/caltech101": _task("natural", "caltech101", 102, "train[2754:2954]"),
    "vtab/cifar100": _task("natural", "cifar100", 100, "train[45000:45200]"),
    "vtab/dtd": _task("natural", "dtd", 47, _VALIDATION),
    "vtab/oxford_flowers102": _task("natural", "oxford_flowers102", 102, _VALIDATION),
    "vtab/oxford_iiit_pet": _task("natural", "oxford_iiit_pet", 37, "train[2944:3144]"),
    "vtab/sun397": _task("natural", "sun397/tfds", 397, _VALIDATION),
    "vtab/svhn": _task("natural", "svhn_cropped", 10, "train[65931:66131]"),
    "vtab/patch_camelyon": _task("specialised", "patch_camelyon", 2, _VALIDATION),
    "vtab/eurosat": _task("specialised", "eurosat/rgb", 10, "train[16200:16400]", "train[21600:]"),
    "vtab/resisc45": _task("specialised", "resisc45", 45, "train[18900:19100]", "train[25200:]"),
    "vtab/diabetic_retinopathy": _task("specialised", "diabetic_retinopathy_detection/btgraham-300", 5, _VALIDATION),
    "vtab/clevr_count_all": _task("structured", "clevr", 8, label="clevr_count_all", **_CLEVR),
    "vtab/clevr_closest_object_distance": _task(
        "structured", "clevr", 6, label="clevr_closest_object_distance", **_CLEVR
    ),
    "vtab/dmlab": _task("structured", "dmlab", 6, _VALIDATION, crop=False),
    "vtab/dsprites_x_position": _task(
        "structured", "dsprites", 16, label="label_x_position", label_classes=32, **_SPRITES
    ),
    "vtab/dsprites_orientation": _task(
        "structured", "dsprites", 16, label="label_orientation", label_classes=40, **_SPRITES | {"crop": True}
    ),
    "vtab/kitti_closest_vehicle_distance": _task(
        "structured", "kitti", 4, _VALIDATION, label="kitti_closest_vehicle_distance", crop=False
    ),
    "vtab/smallnorb_azimuth": _task("structured", "smallnorb", 18, label="label_azimuth", flip=False, **_NORB),
    "vtab/smallnorb_elevation": _task("structured", "smallnorb", 9, label="label_elevation", **_NORB),
}


def find_dataset(name: str) -> DatasetRecord:
    """Finds a data set of the paper by its name, and gives its record.

    Example:
        >>> record = keras_vit.find_dataset("cifar10")
        >>> record.classes, record.train, record.test
        (10, 'train', 'test')

    Args:
        name: a key of `OFFICIAL_DATASETS`, as `"cifar10"`, or of `VTAB_TASKS`, as `"vtab/caltech101"`.

    Raises:
        ValueError: for another name; the error lists the nearest ones.
    """
    records = OFFICIAL_DATASETS | VTAB_TASKS
    if name not in records:
        raise ValueError(
            f"the name must be one of the paper's data sets: {', '.join(records)}.\n"
            f"Received: {name!r}.{did_you_mean(name, records)}"
        )
    return records[name]
