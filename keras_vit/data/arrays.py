"""Images and labels in memory, and the scanned digits that come with scikit-learn."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_vit.checks import install_hint
from keras_vit.data.label_checks import check_trained_classes, warn_similar_class_names
from keras_vit.data.source import Source
from keras_vit.data.splits import SPLIT_ALIASES, ArraySplit, divide
from keras_vit.data.targets import CLASS_LABELS, Targets

_Parts: TypeAlias = dict[Any, tuple[np.ndarray, np.ndarray]]  # images and labels by split; `None` if not divided yet


def open_arrays(what: Any, seed: int, name: str = "arrays", targets: Targets = CLASS_LABELS) -> Source:
    """A `Source` of arrays; see `open_source`.

    Args:
        what: `(images, labels)`, or a dict of those by split, which may hold `"class_names"`.
        seed: divides a single pair into splits.
        name: name of the data set.
        targets: what the labels are.

    Raises:
        ValueError: for an empty set, images of another shape or range, and labels out of range. Also for a name of two
            classes, and for a class without an example that neither names nor one-hot rows declare.
        TypeError: for anything but pairs, or class names that are not strings.

    Warns:
        UserWarning: if `train` has no example of a class that another split has, and of class names that differ only
            in case, spaces or Unicode form.
    """
    given = dict(what) if isinstance(what, Mapping) else {None: what}
    names = _checked_names(given.pop("class_names", None))
    parts: _Parts = {_split_name(split): _pair(pair, split or "training") for split, pair in given.items()}
    rows = {split: targets.of_array(split or "training", labels, names) for split, (_, labels) in parts.items()}
    if None not in parts and "train" not in parts:
        raise ValueError(f"a dict of arrays must have a split `train`.\nReceived: the keys {sorted(map(str, given))}.")
    class_names: Sequence[str] = ()
    for split, found in rows.items():
        if found is not None:
            class_names, parts[split] = found[0], (parts[split][0], found[1])
    class_names = class_names or _checked_classes(parts, names)
    if None in parts:
        images, labels = parts[None]
        members = divide(targets.strata(labels), seed)
        parts = {split: (images[numbers], labels[numbers]) for split, numbers in members.items()}
    _check_channels(parts)
    facts = {"divided_by_seed": seed if None in given else None}
    splits = {split: ArraySplit(*pair) for split, pair in parts.items()}
    return Source(name, "arrays", tuple(class_names), splits, facts=facts)


def _checked_classes(parts: _Parts, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """Makes all labels int64 in [0, K), in place, and gives the K names."""
    for split, (_, labels) in parts.items():
        _check_form(labels, split or "training")
    classes = _class_count(parts, names)
    declared = names is not None or any(labels.ndim == 2 for _, labels in parts.values())
    _check_labels(parts, classes)
    _check_examples(parts, classes, declared)
    class_names = names or tuple(map(str, range(classes)))
    check_trained_classes({split or "train": _labels_in(labels) for split, (_, labels) in parts.items()}, class_names)
    return class_names


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
        raise ImportError(f"the digits come with scikit-learn: {install_hint('data')}") from error
    digits = load_digits()
    images = np.round(digits.images[..., None] * (255 / 16)).astype("uint8")  # the file has levels 0 to 16
    return dataclasses.replace(open_arrays((images, digits.target), seed, "digits"), kind="digits")


def _split_name(split: str | None) -> str | None:
    if split is not None and split not in SPLIT_ALIASES:
        raise ValueError(f"a split must be train, validation or test.\nReceived: {split!r}.")
    return None if split is None else SPLIT_ALIASES[split]


def _pair(pair: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images as uint8 or float32, and labels, whose form is not checked yet."""
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"arrays must come as (images, labels).\nReceived: {type(pair).__name__} for {split}.")
    images, labels = pair
    # The pairs of training and test set, as `keras.datasets` returns them, look like images and labels.
    if isinstance(labels, (tuple, list)) and len(labels) and getattr(labels[0], "ndim", 0) > 2:
        raise TypeError(
            "arrays must come as (images, labels), and several splits as a dict.\n"
            f'Received: images for labels in {split}. Pass a dict by split: {{"train": (images, labels), ...}}.'
        )
    images = np.asarray(images)
    has_text = isinstance(labels, (tuple, list)) and any(isinstance(label, str) for label in labels)
    labels = np.asarray(labels, object if has_text else None)  # of texts and numbers NumPy would make texts
    if len(images) == 0 or len(labels) == 0:
        raise ValueError(f"the {split} set is empty.\nReceived: {len(images)} images and {len(labels)} labels.")
    if images.ndim != 4 or images.shape[-1] not in (1, 3, 4) or images.dtype.kind not in "uif" or images.size == 0:
        raise ValueError(
            "images must have shape (n, H, W, C) with 1, 3 or 4 channels, as integers or floats.\n"
            f"Received: shape {images.shape} of {images.dtype} for {split}."
        )
    low, high = images.min(), images.max()
    if np.isnan(low):
        raise ValueError(f"pixel values must be numbers in [0, 255].\nReceived: NaN among those for {split}.")
    # An all-black image is 0 on either scale.
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


def _check_form(labels: np.ndarray, split: str) -> None:
    """Refuses arrays whose shape or type cannot be labels, before the number of classes is known."""
    rows = labels.ndim == 2 and labels.shape[1] > 1
    if labels.dtype.kind in ("buif" if rows else "uif") and (labels.ndim == 1 or rows) and np.isfinite(labels).all():
        return
    column = " Pass labels.ravel()." if labels.ndim == 2 and not rows else ""
    finite = labels.dtype.kind != "f" or np.isfinite(labels).all()
    raise ValueError(
        "labels must be whole numbers of shape (n,), from 0 and one for each class, or one-hot rows of shape (n, K).\n"
        f"Received: labels of {split} with shape {labels.shape} of {labels.dtype}"
        f"{'' if finite else ', not all of them finite'}.{column}"
    )


def _checked_names(names: Any) -> tuple[str, ...] | None:
    """The class names as a tuple, or `None`; each name stands once."""
    if names is None:
        return None
    several = isinstance(names, (tuple, list, np.ndarray))
    if not several or not all(isinstance(name, str) for name in names):
        raise TypeError(f"`class_names` must be a list of texts, one for each class.\nReceived: class_names={names!r}.")
    names = tuple(map(str, names))
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise ValueError(f"`class_names` must differ, to tell classes apart.\nReceived: {twice[:5]} more than once.")
    warn_similar_class_names(names)
    return names


def _class_count(parts: _Parts, names: Sequence[str] | None) -> int:
    """The number of classes: that of the names, of the one-hot columns, or the greatest training label plus one."""
    widths = {labels.shape[1] for _, labels in parts.values() if labels.ndim == 2}
    if len(widths) > 1:
        raise ValueError(
            f"one-hot labels must have the same classes in every split.\nReceived: widths {sorted(widths)}."
        )
    if names is not None:
        return len(names)
    first = parts[None if None in parts else "train"][1]
    # `class_labels` refuses a label beyond the cap as out of range.
    return widths.pop() if widths else min(max(int(first.max()) + 1, 1), 2**31)


def _check_labels(parts: _Parts, classes: int) -> None:
    """Makes all labels int64 in [0, classes), in place."""
    for split, (images, labels) in parts.items():
        parts[split] = (images, class_labels(labels, classes, split or "training"))
    if classes < 2:
        raise ValueError(f"there must be at least two classes.\nReceived: {classes}.")


def _check_examples(parts: _Parts, classes: int, declared: bool) -> None:
    """Refuses a class without a training example, unless names or one-hot rows declare it.

    A gap in plain integer labels is most likely a mistake.
    """
    trained = _labels_in(parts[None if None in parts else "train"][1])
    if not declared and len(trained) < classes:
        missing = list(itertools.islice((label for label in range(classes) if label not in trained), 5))
        raise ValueError(
            "every class from 0 to the greatest label must have an example to train on.\n"
            f"Received: labels to {classes - 1} with none of {', '.join(map(str, missing))}"
            f"{', ...' if classes - len(trained) > 5 else ''}. Number the classes from 0 without gaps, or pass one-hot "
            "rows or a dict with `class_names` if classes may be empty."
        )


def _labels_in(labels: np.ndarray) -> set[int]:
    return set(np.unique(labels).tolist())


def class_labels(labels: np.ndarray, classes: int, split: str) -> np.ndarray:
    """Labels as int64 in [0, classes); one-hot rows become their class.

    Raises:
        ValueError: for other labels; the message has the least and the greatest label and the number of classes.
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


def _check_channels(parts: _Parts) -> None:
    channels = {images.shape[-1] for images, _ in parts.values()}
    if len(channels) > 1:
        raise ValueError(f"images must have the same channels in every split.\nReceived: {sorted(channels)}.")
