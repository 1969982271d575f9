"""Masks of classes or depths from files, and the measures of segmentation over a whole split."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError, check_choice
from keras_vit.dense.losses import IGNORED
from keras_vit.dense.maps import resize

_CITYSCAPES = (7, 8, 11, 12, 13, 17, *range(19, 29), 31, 32, 33)  # ids of the 19 classes that count, in their order
_UNITS = {"depth_mm": 1000.0, "depth_kitti": 256.0}  # levels of a metre
_NAMED = ("ade20k", "cityscapes")
_STRETCHED = {"L;2": 85, "L;4": 17}  # what Pillow multiplies grey levels of 2 and 4 bits by
LabelRule = Literal["ade20k", "cityscapes"]


@dataclasses.dataclass(frozen=True)
class SegmentationScores:
    """Measures of one confusion matrix for a whole split, in [0, 1]; NaN for an absent class.

    Args:
        iou: `(K,)`, intersection over union of each class; 0 for one that is only predicted.
        mean_iou: over the classes in labels or predictions.
        accuracy: share of the pixels that count.
        class_accuracy: `(K,)`, share of each class's pixels.
        mean_class_accuracy: over the classes that have labels.
        dice: `(K,)`.
        mean_dice: over the classes in labels or predictions.
        confusion: int64 `(K, K)`, rows of labels and columns of predictions.
    """

    iou: np.ndarray
    mean_iou: float
    accuracy: float
    class_accuracy: np.ndarray
    mean_class_accuracy: float
    dice: np.ndarray
    mean_dice: float
    confusion: np.ndarray


def segmentation_scores(
    labels: Sequence[Any], predictions: Sequence[Any], classes: int, ignore_class: int = IGNORED
) -> SegmentationScores:
    """Intersection over union and its relatives, as mmsegmentation counts them: over all images together.

    Args:
        labels: integers `(H, W)` of each image.
        predictions: integers `(H, W)` of each image, at the labels' sizes.
        classes: K.
        ignore_class: label of pixels that do not count. A prediction is never left out.

    Returns:
        A record.

    Raises:
        ValueError: for sizes that differ, and labels or predictions that are no class.
    """
    if len(labels) != len(predictions):
        raise ArgumentError(
            f"each prediction must have its labels.\nReceived: {len(labels)} labels, {len(predictions)} predictions.",
            parameters=("labels", "predictions"),
        )
    confusion = np.zeros((classes, classes), "int64")
    for number, (truth, found) in enumerate(zip(labels, predictions, strict=True)):
        truth, found = np.asarray(truth), np.asarray(found)
        if truth.shape != found.shape:
            raise ArgumentError(
                f"a prediction must have its labels' size.\nReceived: {found.shape} for {truth.shape}, image {number}.",
                parameters=("predictions",),
            )
        valid = truth != ignore_class
        truth, found = truth[valid].astype("int64"), found[valid].astype("int64")
        for name, values in (("labels", truth), ("predictions", found)):
            if values.size and not (values.min() >= 0 and values.max() < classes):
                wrong = values[(values < 0) | (values >= classes)][0]
                raise ArgumentError(
                    f"`{name}` must be from 0 to {classes - 1}, and labels may be {ignore_class} for pixels that do "
                    f"not count.\nReceived: {wrong} in image {number}."
                )
        confusion += np.bincount(classes * truth + found, minlength=classes**2).reshape(classes, classes)
    return confusion_scores(confusion)


def confusion_scores(confusion: np.ndarray) -> SegmentationScores:
    """The measures of an int64 confusion matrix `(K, K)`, rows of labels and columns of predictions."""
    right, labelled, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    iou = _ratio(right, labelled + predicted - right)
    class_accuracy, dice = _ratio(right, labelled), _ratio(2 * right, labelled + predicted)
    known = (each[~np.isnan(each)] for each in (iou, class_accuracy, dice))
    mean_iou, mean_class_accuracy, mean_dice = (float(each.mean()) if each.size else float("nan") for each in known)
    accuracy = float(_ratio(right.sum(), labelled.sum()))
    return SegmentationScores(iou, mean_iou, accuracy, class_accuracy, mean_class_accuracy, dice, mean_dice, confusion)


def _ratio(part: Any, whole: Any) -> np.ndarray:
    """A quotient, NaN for 0 / 0."""
    return np.where(np.asarray(whole) > 0, part / np.maximum(whole, 1), np.nan)


@keras.saving.register_keras_serializable("keras_vit")
class SegmentationIoU(keras.metrics.Metric):
    """Mean intersection over union of an epoch, by one confusion matrix; for `compile`.

    Args:
        classes: K of the logits `(B, h, w, K)`.
        ignore_class: label of pixels that do not count.

    Labels are integers `(B, H, W)`; logits of another size are resized to it (bilinear) before the class is chosen.
    """

    def __init__(self, classes: int, ignore_class: int = IGNORED, name: str = "mean_iou", **options: Any) -> None:
        super().__init__(name=name, **options)
        self.classes, self.ignore_class = classes, ignore_class
        self.confusion = self.add_variable((classes, classes), "zeros", dtype="float32", name="confusion")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Counts the pixels of a batch; images of weight 0 do not count."""
        labels = ops.cast(ops.convert_to_tensor(y_true), "int32")
        found = ops.argmax(resize(ops.convert_to_tensor(y_pred), tuple(labels.shape[1:3])), axis=-1)
        counts = ops.cast(labels != self.ignore_class, "float32")
        if sample_weight is not None:
            counts *= ops.reshape(ops.cast(sample_weight, "float32") > 0, (-1, 1, 1))
        known = ops.where(counts > 0, labels, 0)
        pairs = ops.reshape(known * self.classes + ops.cast(found, "int32"), (-1,))
        counted = ops.segment_sum(ops.reshape(counts, (-1,)), pairs, self.classes**2)
        self.confusion.assign_add(ops.reshape(counted, self.confusion.shape))

    def result(self) -> Any:
        """The mean over the classes in labels or predictions; 0 before any pixel."""
        right = ops.diagonal(self.confusion)
        union = ops.sum(self.confusion, 0) + ops.sum(self.confusion, 1) - right
        is_present = ops.cast(union > 0, "float32")
        return ops.sum(right / ops.maximum(union, 1)) / ops.maximum(ops.sum(is_present), 1)

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return {**super().get_config(), "classes": self.classes, "ignore_class": self.ignore_class}


def map_labels(labels: Any, rule: LabelRule | Mapping[int, int] | Sequence[int] | np.ndarray) -> np.ndarray:
    """Labels of a file as classes.

    Args:
        labels: integers of any shape.
        rule: `"ade20k"`, where 0 does not count and others move down by one; `"cityscapes"`, of `labelIds` files to
            the 19 classes; or a table from each label to a class.

    Returns:
        int32 of the same shape; 255 does not count.

    Raises:
        ValueError: for an unknown rule, and labels that the table has not.
    """
    labels = np.asarray(labels)
    if isinstance(rule, str):
        check_choice("rule", rule, _NAMED)
    if isinstance(rule, str) and rule == "ade20k":
        return np.where((labels == 0) | (labels == IGNORED), IGNORED, labels.astype("int32") - 1).astype("int32")
    if isinstance(rule, str):
        table = {number: IGNORED for number in range(-1, 256)}
        rule = table | {number: index for index, number in enumerate(_CITYSCAPES)}
    rule = rule if isinstance(rule, Mapping) else dict(enumerate(np.asarray(rule).tolist()))
    values, places = np.unique(labels, return_inverse=True)
    if unknown := [value for value in values.tolist() if value not in rule]:
        raise ArgumentError(f"`rule` must have each label.\nReceived: {len(rule)} labels, without {unknown[0]}.")
    mapped = np.array([rule[value] for value in values.tolist()], "int32")
    return mapped[places].reshape(labels.shape)


def read_mask(
    path: FilePath, rule: Literal["ade20k", "cityscapes", "depth_mm", "depth_kitti"] | None = None
) -> np.ndarray:
    """The classes or depths in a picture file; palette files are read as indices, never as colours.

    Args:
        path: of a PNG, or another file without loss, of indices or grey levels of 1, 2, 4, 8 or 16 bits.
        rule: `None` for levels as they are; `"ade20k"` or `"cityscapes"` as of `map_labels`; `"depth_mm"` for
            millimetres, as NYUv2; `"depth_kitti"` for 1/256 m.

    Returns:
        int32 `(H, W)`, or float32 `(H, W)` in metres, where 0 is not known.

    Raises:
        ValueError: for an unknown rule, a picture of colours, and a JPEG, whose levels are not those written.
        OSError: for a file that cannot be read.
    """
    from PIL import Image

    check_choice("rule", rule, (None, *_NAMED, *_UNITS))
    with Image.open(path) as file:
        if file.format == "JPEG":
            raise ArgumentError(
                f"a mask must be kept without loss.\nReceived: the JPEG {path}. Write it as PNG.", parameters=("path",)
            )
        stretched = _STRETCHED.get(file.tile[0][3], 1) if file.tile and file.format == "PNG" else 1
        levels = np.array(file)
    levels = levels // stretched if stretched > 1 else levels
    if levels.ndim == 3:
        colours = levels[..., :3].reshape(-1, min(levels.shape[-1], 3))
        if not (colours == colours[:, :1]).all():
            count = len(np.unique(colours, axis=0))
            raise ArgumentError(
                f"a mask must hold the number of a class in each pixel.\nReceived: {path} with {count} colours. Map "
                "each colour to a number, and write it as a grey PNG.",
                parameters=("path",),
            )
        levels = levels[..., 0]
    if rule == "depth_mm" or rule == "depth_kitti":
        return (levels / _UNITS[rule]).astype("float32")
    levels = levels.astype("int32")
    return levels if rule is None else map_labels(levels, rule)
