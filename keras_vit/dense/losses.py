"""Losses of masks and depths, functions and `keras.losses.Loss`. Each is a float32 scalar, 0 without valid pixels.

Invalid pixels are replaced before the logarithm; masked after it, their gradients would be NaN.
"""

from collections.abc import Callable
from typing import Any, Literal

import keras
import numpy as np
from keras import ops

from keras_vit.checks import ArgumentError, check_choice
from keras_vit.dense.maps import resize

IGNORED = 255  # the label of pixels that do not count, by convention
_BEFORE_LOG = 1e-3
_LEAST_DEPTH = 1e-12
_OF_MEAN = 0.15  # SigLoss' share of the squared mean
_STRIDES = (1, 2, 4, 6)
Average = Literal["valid", "all"]


def cross_entropy(
    logits: Any, labels: Any, ignore_class: int = IGNORED, average: Average = "valid", class_weights: Any = None
) -> Any:
    """Cross-entropy of each pixel's class.

    Args:
        logits: `(B, h, w, K)`, resized to the labels' size (bilinear) if they have another.
        labels: integers `(B, H, W)`.
        ignore_class: label of pixels that do not count.
        average: what the sum is divided by: `"valid"`, the number of pixels that count, as torch; `"all"`, that of all
            pixels, as mmsegmentation by default and DINOv3.
        class_weights: `(K,)`; with `"valid"` the sum is divided by the weights of the pixels that count.

    Returns:
        A scalar; 0 where no pixel counts, and NaN where a label is neither a class nor `ignore_class`.

    Raises:
        ValueError: for such a label where labels are an array, and an unknown `average`.
    """
    check_choice("average", average, ("valid", "all"))
    losses, weights = _pixel_losses(logits, labels, ignore_class, class_weights)
    total = ops.sum(weights) if average == "valid" else ops.cast(ops.size(weights), "float32")
    return ops.sum(losses) / ops.where(total > 0, total, 1.0)


def _pixel_losses(logits: Any, labels: Any, ignore_class: int, class_weights: Any) -> tuple[Any, Any]:
    """Weighted losses and weights `(B, H, W)`, 0 for pixels that do not count; NaN for a label that is no class."""
    logits, labels = _logits_and_labels(logits, labels, ignore_class)
    classes = logits.shape[-1]
    valid = labels != ignore_class
    known = (labels >= 0) & (labels < classes)
    index = ops.where(valid & known, labels, 0)
    losses = -ops.take_along_axis(ops.log_softmax(logits, axis=-1), index[..., None], axis=-1)[..., 0]
    weights = ops.cast(valid, "float32")
    if class_weights is not None:
        weights *= ops.take(ops.cast(ops.convert_to_tensor(class_weights), "float32"), index)
    return losses * weights + ops.where(known | ~valid, 0.0, np.nan), weights


def dice(logits: Any, labels: Any, ignore_class: int = IGNORED, smooth: float = 1.0) -> Any:
    """One less the Dice coefficient of each image and class, as DINOv3 has it: squares in the denominator.

    Args:
        logits: `(B, h, w, K)`, resized to the labels' size (bilinear) if they have another.
        labels: integers `(B, H, W)`.
        ignore_class: label of pixels that do not count in the numerator. In the denominator they do, with the last
            class.
        smooth: added to both.

    Returns:
        A scalar, the mean over images and classes.

    Raises:
        ValueError: for a label that is neither a class nor `ignore_class`, where labels are an array.
    """
    return ops.mean(_image_dice(logits, labels, ignore_class, smooth))


def _image_dice(logits: Any, labels: Any, ignore_class: int, smooth: float) -> Any:
    """That of each image, `(B,)`."""
    logits, labels = _logits_and_labels(logits, labels, ignore_class)
    classes = logits.shape[-1]
    probabilities = ops.softmax(logits, axis=-1)
    truth = ops.one_hot(ops.minimum(labels, classes - 1), classes, dtype="float32")
    valid = ops.cast(labels != ignore_class, "float32")[..., None]
    both = 2 * ops.sum(probabilities * truth * valid, axis=(1, 2)) + smooth
    total = ops.sum(probabilities**2, axis=(1, 2)) + ops.sum(truth**2, axis=(1, 2)) + smooth
    return ops.mean(1 - both / total, axis=1)


def mask_dice(mask_logits: Any, mask_labels: Any) -> Any:
    """One less the Dice coefficient of each mask, as EoMT and Mask2Former have it.

    Args:
        mask_logits: `(Q, H, W)`, of a sigmoid.
        mask_labels: `(Q, H, W)`, 0 or 1.

    Returns:
        A scalar, the mean over masks.
    """
    masks, truth = _masks(mask_logits, mask_labels)
    masks = ops.sigmoid(masks)
    both = 2 * ops.sum(masks * truth, axis=(1, 2)) + 1
    return ops.mean(1 - both / (ops.sum(masks, axis=(1, 2)) + ops.sum(truth, axis=(1, 2)) + 1))


def mask_cross_entropy(mask_logits: Any, mask_labels: Any) -> Any:
    """Binary cross-entropy of each mask's pixels, as EoMT and Mask2Former have it.

    Args:
        mask_logits: `(Q, H, W)`, of a sigmoid.
        mask_labels: `(Q, H, W)`, 0 or 1.

    Returns:
        A scalar, the mean over masks of means over pixels.
    """
    masks, truth = _masks(mask_logits, mask_labels)
    return ops.mean(ops.relu(masks) - masks * truth + ops.log1p(ops.exp(-ops.abs(masks))))


def sig_loss(prediction: Any, target: Any, warm_up: bool = False) -> Any:
    """Root of the variance of log ratios and 0.15 of their squared mean, by which DINOv2 and DINOv3 train depth.

    Args:
        prediction: depths `(B, H, W)`, at least 0.
        target: depths `(B, H, W)`; pixels of 0 do not count.
        warm_up: whether the variance is left out, as in the first 100 steps.

    Returns:
        A scalar; the variance is unbiased.
    """
    ratios, valid = _log_ratios(prediction, target)
    count = ops.sum(valid)
    mean = ops.sum(ratios) / ops.maximum(count, 1)
    variance = ops.sum((ratios - mean) ** 2 * valid) / ops.maximum(count - 1, 1)
    return _root(_OF_MEAN * mean**2 + (0 if warm_up else variance))


def silog_loss(prediction: Any, target: Any, weight: float = 0.5) -> Any:
    """Root of the mean squared log ratio less a share of the squared mean, by which Depth Anything V2 trains.

    Args:
        prediction: depths `(B, H, W)`, above 0.
        target: depths `(B, H, W)`; pixels of 0 do not count.
        weight: share of the squared mean.

    Returns:
        A scalar, over all pixels of the batch.
    """
    ratios, valid = _log_ratios(prediction, target, added=0)
    count = ops.maximum(ops.sum(valid), 1)
    return _root(ops.sum(ratios**2) / count - weight * (ops.sum(ratios) / count) ** 2)


def gradient_loss(prediction: Any, target: Any, space: Literal["log", "depth"] = "log") -> Any:
    """Differences of the errors of pixels two apart, at strides of 1, 2, 4 and 6, as DINOv3 has it.

    Args:
        prediction: depths `(B, H, W)`, at least 0.
        target: depths `(B, H, W)`; pixels of 0 do not count.
        space: whether errors are log ratios or differences of depths.

    Returns:
        A scalar; each stride is divided by the number of its valid pixels.

    Raises:
        ValueError: for an unknown space.
    """
    check_choice("space", space, ("log", "depth"))
    errors, valid = _log_ratios(prediction, target)
    if space == "depth":
        errors = (ops.cast(prediction, "float32") - ops.cast(target, "float32")) * valid
    total: Any = 0.0
    for stride in _STRIDES:
        error, one = errors[:, ::stride, ::stride], valid[:, ::stride, ::stride]
        rows = ops.abs(error[:, 2:] - error[:, :-2]) * one[:, 2:] * one[:, :-2]
        columns = ops.abs(error[:, :, 2:] - error[:, :, :-2]) * one[:, :, 2:] * one[:, :, :-2]
        total += (ops.sum(rows) + ops.sum(columns)) / ops.maximum(ops.sum(one), 1)
    return total


def _logits_and_labels(logits: Any, labels: Any, ignore_class: int) -> tuple[Any, Any]:
    """float32 logits of the labels' size, and int32 labels; raises for labels beyond the classes."""
    logits = ops.cast(ops.convert_to_tensor(logits), "float32")
    labels = known_labels(labels, logits.shape[-1], ignore_class)
    return resize(logits, tuple(labels.shape[1:3])), labels


def known_labels(labels: Any, classes: int, ignore_class: int) -> Any:
    """int32 labels; raises for an array with one beyond the classes."""
    if isinstance(labels, np.ndarray):
        others = np.setdiff1d(labels, [*range(classes), ignore_class])
        if others.size:
            raise ArgumentError(
                f"labels must be from 0 to {classes - 1}, or {ignore_class} for pixels that do not count.\n"
                f"Received: the label {others[0]} in {int((labels == others[0]).sum())} pixels.",
                parameters=("labels",),
            )
    return ops.cast(ops.convert_to_tensor(labels), "int32")


def _masks(mask_logits: Any, mask_labels: Any) -> tuple[Any, Any]:
    return tuple(ops.cast(ops.convert_to_tensor(masks), "float32") for masks in (mask_logits, mask_labels))


def _log_ratios(prediction: Any, target: Any, added: float = _BEFORE_LOG) -> tuple[Any, Any]:
    """Logarithms of prediction over target, 0 where the target is not valid; and float32 ones where it is."""
    prediction, target = (ops.cast(ops.convert_to_tensor(each), "float32") for each in (prediction, target))
    if tuple(prediction.shape) != tuple(target.shape):
        raise ArgumentError(
            "prediction and target must have one shape.\n"
            f"Received: {tuple(prediction.shape)} and {tuple(target.shape)}. Resize the prediction to the target.",
            parameters=("prediction", "target"),
        )
    valid = target > 0
    above = ops.where(valid, ops.maximum(prediction, 0 if added else _LEAST_DEPTH), 1.0) + added
    return ops.log(above) - ops.log(ops.where(valid, target, 1.0) + added), ops.cast(valid, "float32")


def _root(value: Any) -> Any:
    """Square root, whose gradient at 0 is 0."""
    return ops.where(value > 0, ops.sqrt(ops.where(value > 0, value, 1.0)), 0.0)


class _Dense(keras.losses.Loss):
    """A loss of whole maps: one scalar for a batch, which Keras must not divide again.

    Images of weight 0, as those that fill up a batch on several devices, do not count; other weights do not matter.
    """

    _function: Callable[..., Any]

    def __init__(self, name: str | None = None, reduction: str = "none", **arguments: Any) -> None:
        super().__init__(name=name, reduction=reduction)
        self._arguments = arguments

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if sample_weight is not None and self.reduction == "none":
            y_true, ignored = ops.convert_to_tensor(y_true), self._arguments.get("ignore_class", 0)
            known = ops.reshape(ops.cast(sample_weight, "float32") > 0, (-1,) + (1,) * (len(y_true.shape) - 1))
            y_true, sample_weight = ops.where(known, y_true, ops.cast(ignored, y_true.dtype)), None
        return super().__call__(y_true, y_pred, sample_weight)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self._function(y_pred, y_true, **self._arguments)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, **self._arguments}


@keras.saving.register_keras_serializable("keras_vit")
class CrossEntropy(_Dense):
    """`cross_entropy` for `compile`; labels are integers `(B, H, W)`.

    With `average="all"` it is a mean over images, so that devices and micro-batches may share a batch.

    Examples:
        >>> keras_vit.dense.CrossEntropy(ignore_class=0)(np.zeros((1, 2, 2), "int32"), np.ones((1, 2, 2, 3))).item()
        0.0
    """

    _function = staticmethod(cross_entropy)

    def __init__(
        self,
        ignore_class: int = IGNORED,
        average: Average = "valid",
        class_weights: Any = None,
        name: str | None = None,
    ) -> None:
        weights = None if class_weights is None else np.asarray(class_weights).tolist()
        check_choice("average", average, ("valid", "all"))
        reduction = "sum_over_batch_size" if average == "all" else "none"
        super().__init__(name, reduction, ignore_class=ignore_class, average=average, class_weights=weights)

    def call(self, y_true: Any, y_pred: Any) -> Any:
        if self.reduction == "none":
            return super().call(y_true, y_pred)
        arguments = self._arguments["ignore_class"], self._arguments["class_weights"]
        losses, _ = _pixel_losses(y_pred, y_true, *arguments)
        return ops.mean(losses, axis=(1, 2))


@keras.saving.register_keras_serializable("keras_vit")
class Dice(_Dense):
    """`dice` for `compile`; labels are integers `(B, H, W)`. It is a mean over images, so devices may share a batch."""

    _function = staticmethod(_image_dice)

    def __init__(self, ignore_class: int = IGNORED, smooth: float = 1.0, name: str | None = None) -> None:
        super().__init__(name, "sum_over_batch_size", ignore_class=ignore_class, smooth=smooth)


@keras.saving.register_keras_serializable("keras_vit")
class SigLoss(_Dense):
    """`sig_loss` for `compile`, perhaps with a share of `gradient_loss`; labels are depths `(B, H, W)`.

    DINOv2's heads of DPT have a share of 0.5.
    """

    def __init__(self, warm_up: bool = False, gradient_weight: float = 0.0, name: str | None = None) -> None:
        super().__init__(name, warm_up=warm_up, gradient_weight=gradient_weight)

    @staticmethod
    def _function(prediction: Any, target: Any, warm_up: bool, gradient_weight: float) -> Any:
        found = sig_loss(prediction, target, warm_up)
        return found + gradient_weight * gradient_loss(prediction, target) if gradient_weight else found


@keras.saving.register_keras_serializable("keras_vit")
class SiLogLoss(_Dense):
    """`silog_loss` for `compile`; labels are depths `(B, H, W)`."""

    _function = staticmethod(silog_loss)

    def __init__(self, weight: float = 0.5, name: str | None = None) -> None:
        super().__init__(name, weight=weight)


@keras.saving.register_keras_serializable("keras_vit")
class GradientLoss(_Dense):
    """`gradient_loss` for `compile`; labels are depths `(B, H, W)`."""

    _function = staticmethod(gradient_loss)

    def __init__(self, space: Literal["log", "depth"] = "log", name: str | None = None) -> None:
        super().__init__(name, space=space)
