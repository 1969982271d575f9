"""Images and labels in memory, and the scanned digits that come with scikit-learn."""

from collections.abc import Mapping

import numpy as np

from keras_vit.data.source import Source
from keras_vit.data.splits import SPELLINGS, ArraySplit, divide


def open_arrays(what, seed: int, name: str = "arrays") -> Source:
    """A `Source` of arrays; see `open_source`.

    Args:
        what: `(images, labels)`, or a dict of those by split, which may hold `"class_names"`.
        seed: of the division of a single pair into splits.
        name: of the data set.

    Raises:
        ValueError: for an empty set, images of another shape or range, or labels out of range.
        TypeError: for anything but pairs.
    """
    given = dict(what) if isinstance(what, Mapping) else {None: what}
    names = given.pop("class_names", None)
    parts = {_split_name(split): _pair(pair, split or "training") for split, pair in given.items()}
    if None not in parts and "train" not in parts:
        raise ValueError(f"a dict of arrays must have a split `train`.\nReceived: the keys {sorted(given)}.")
    classes = _class_count(parts, names)
    _check_labels(parts, classes)
    if None in parts:
        images, labels = parts[None]
        parts = {split: (images[rows], labels[rows]) for split, rows in divide(labels, seed).items()}
    _check_channels(parts)
    facts = {"divided_by_seed": seed if None in given else None}
    class_names = tuple(map(str, range(classes) if names is None else names))
    return Source(name, "arrays", class_names, {split: ArraySplit(*pair) for split, pair in parts.items()}, facts=facts)


def open_digits(seed: int) -> Source:
    """1,797 digits of 8 x 8 grey pixels, written by 43 people; the test set that scikit-learn carries.

    Raises:
        ImportError: without scikit-learn.

    Source: UCI Machine Learning Repository, "Optical Recognition of Handwritten Digits".
    """
    import dataclasses

    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError('the digits come with scikit-learn: pip install "keras-vit-zoo[data]"') from error
    digits = load_digits()
    images = np.round(digits.images[..., None] * (255 / 16)).astype("uint8")  # 0..16 in the file
    return dataclasses.replace(open_arrays((images, digits.target), seed, "digits"), kind="digits")


def _split_name(split):
    if split is not None and split not in SPELLINGS:
        raise ValueError(f"a split must be train, validation or test.\nReceived: {split!r}.")
    return SPELLINGS.get(split)


def _pair(pair, split):
    """Images as uint8 or float32, labels as int64."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"arrays must come as (images, labels).\nReceived: {type(pair).__name__} for {split}.")
    images, labels = map(np.asarray, pair)
    if len(images) == 0 or len(labels) == 0:
        raise ValueError(f"the {split} set is empty.\nReceived: {len(images)} images and {len(labels)} labels.")
    if images.ndim != 4 or images.shape[-1] not in (1, 3, 4) or images.dtype.kind not in "uif" or images.size == 0:
        raise ValueError(
            "images must have shape (n, H, W, C) with 1, 3 or 4 channels, as integers or floats.\n"
            f"Received: shape {images.shape} of {images.dtype} for {split}."
        )
    low, high = images.min(), images.max()
    if not (low >= 0 and high <= 255) or (images.dtype.kind == "f" and 0 < high <= 1):
        raise ValueError(
            "pixel values must be in [0, 255], and floats that do not exceed 1 seem scaled already.\n"
            f"Received: values from {low} to {high} for {split}."
        )
    if len(images) != len(labels):
        raise ValueError(
            f"each image needs one label.\nReceived: {len(images)} images, {len(labels)} labels for {split}."
        )
    return images.astype("float32" if images.dtype.kind == "f" else "uint8"), labels


def _class_count(parts, names):
    widths = {labels.shape[1] for _, labels in parts.values() if labels.ndim == 2}
    if len(widths) > 1:
        raise ValueError(
            f"one-hot labels must have the same classes in every split.\nReceived: widths {sorted(widths)}."
        )
    if names is not None:
        return len(names)
    first = parts[None if None in parts else "train"][1]
    usable = first.ndim == 1 and first.dtype.kind in "uif" and np.isfinite(first).all()
    return widths.pop() if widths else max(int(first.max()) + 1, 1) if usable else 1


def _check_labels(parts, classes):
    """Makes all labels int64 in [0, classes), in place."""
    for split, (images, labels) in parts.items():
        parts[split] = (images, whole_labels(labels, classes, split or "training"))
    if classes < 2:
        raise ValueError(f"there must be at least two classes.\nReceived: {classes}.")


def whole_labels(labels, classes: int, split: str) -> np.ndarray:
    """Labels as int64 in [0, classes); one-hot rows become their class.

    Raises:
        ValueError: for anything else; the error has the least and the greatest label and the number of classes.
    """
    if labels.ndim == 2 and labels.dtype.kind in "buif":
        one_hot = labels.shape[1] == classes and np.isin(labels, (0, 1)).all() and (labels.sum(axis=1) == 1).all()
        if one_hot:
            return labels.argmax(axis=1).astype("int64")
    whole = labels.ndim == 1 and labels.dtype.kind in "uif" and np.isfinite(labels).all()
    if not whole or (labels != np.floor(labels)).any() or labels.min() < 0 or labels.max() >= classes:
        numbers = f", from {labels.min()} to {labels.max()}" if labels.dtype.kind in "uif" and labels.size else ""
        raise ValueError(
            f"labels must be whole numbers in [0, {classes}), or one-hot rows of {classes}, one for each class.\n"
            f"Received: labels of {split} with shape {labels.shape} and {labels.dtype}{numbers}, for {classes} classes."
        )
    return labels.astype("int64")


def _check_channels(parts):
    channels = {images.shape[-1] for images, _ in parts.values()}
    if len(channels) > 1:
        raise ValueError(f"images must have the same channels in every split.\nReceived: {sorted(channels)}.")
