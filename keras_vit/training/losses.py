"""Losses and a metric that Keras has with another scale: of yes-or-no questions, of weights, of numbers in units."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Arguments, Tensor
from keras_vit.checks import check_choice, check_fraction

LABELS = ("int", "one_hot")
NUMBER_LOSSES = {"mse": "mean_squared_error", "mae": "mean_absolute_error", "huber": "huber"}


@keras.saving.register_keras_serializable("keras_vit")
class SigmoidCrossentropy(keras.losses.Loss):
    """Sigmoid cross-entropy of logits, summed over the classes. Each class is a yes-or-no question.

    loss = mean over the batch of sum over k of -(q_k log s(x_k) + (1 - q_k) log(1 - s(x_k)))

    with s the sigmoid and q_k = 1 - `label_smoothing` for the classes of an image and `label_smoothing` for the
    others. Keras' `BinaryCrossentropy` takes the mean over the classes, which is K times less, and smooths towards 1/2.

    Example:
        >>> loss = keras_vit.SigmoidCrossentropy()
        >>> labels, logits = np.array([[1.0, 0.0, 0.0]]), np.zeros((1, 3))
        >>> round(float(loss(labels, logits)), 3)  # 3 ln 2
        2.079

    Args:
        label_smoothing: in [0, 1).
        labels: `"one_hot"`, rows of K numbers in [0, 1], or `"int"`.
        positive_weight: K factors of the first term of the sum, above 0; by default 1.

    Call arguments:
        y_true: `(B, K)`, or `(B,)` class numbers with `labels="int"`; one that is no class makes the loss NaN.
        y_pred: logits `(B, K)`.

    Raises:
        ValueError: for a value out of range.

    Source: the pre-training of arXiv:2010.11929, official repository, issues 2 and 34; smoothing as in scenic.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        labels: str = "one_hot",
        name: str = "sigmoid_crossentropy",
        positive_weight: Sequence[float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        check_fraction("label_smoothing", label_smoothing)
        check_choice("labels", labels, LABELS)
        self.label_smoothing = label_smoothing
        self.labels = labels
        self.positive_weight = None if positive_weight is None else tuple(positive_weight)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if self.labels == "int":
            classes = ops.cast(ops.reshape(y_true, (-1,)), "int32")  # Keras has made them (B, 1)
            y_true = ops.one_hot(classes, y_pred.shape[-1], dtype=y_pred.dtype)  # (B, K)
            y_true = ops.where(ops.any(y_true > 0, axis=-1, keepdims=True), y_true, float("nan"))
        target = y_true * (1.0 - 2.0 * self.label_smoothing) + self.label_smoothing
        losses = ops.binary_crossentropy(target, y_pred, from_logits=True)
        if self.positive_weight is not None:
            more = ops.cast(self.positive_weight, y_pred.dtype) - 1
            losses += more * ops.cast(target, y_pred.dtype) * ops.softplus(-y_pred)
        return ops.sum(losses, axis=-1)  # (B,)

    def get_config(self) -> Arguments:
        weight = {} if self.positive_weight is None else {"positive_weight": list(self.positive_weight)}
        return {**super().get_config(), "label_smoothing": self.label_smoothing, "labels": self.labels, **weight}


@keras.saving.register_keras_serializable("keras_vit")
class ClassWeightedLoss(keras.losses.Loss):
    """A loss of logits in which the images of each class have a weight.

    loss = mean over the batch of sum over k of w_k q_k l_k

    with q the target and l_k the loss of the image if its class were k, label smoothing included. The mean is over the
    images, as that of Keras' `class_weight`, and not over the sum of their weights. So an image of one class counts w_k
    times. Of an image that MixUp has made, each part counts with the weight of its class.

    Args:
        loss: of targets `(B, K)`, linear in them, as cross-entropies are.
        weights: K numbers above 0.

    Call arguments:
        y_true: `(B, K)`, rows of K numbers of at least 0 that sum to 1.
        y_pred: logits `(B, K)`.
    """

    def __init__(self, loss: Any, weights: Sequence[float], name: str = "class_weighted_loss", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.loss, self.weights = keras.losses.get(loss), tuple(weights)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        parts = ops.cast(y_true, y_pred.dtype) * ops.cast(self.weights, y_pred.dtype)
        weight = ops.sum(parts, axis=-1, keepdims=True)
        return ops.squeeze(weight, axis=-1) * self.loss.call(parts / weight, y_pred)  # (B,)

    def get_config(self) -> Arguments:
        loss = keras.saving.serialize_keras_object(self.loss)
        return {**super().get_config(), "loss": loss, "weights": list(self.weights)}


@keras.saving.register_keras_serializable("keras_vit")
class StandardizedLoss(keras.losses.Loss):
    """The mean over K numbers of the squared, absolute or Huber's error, in units of their standard deviations.

    Args:
        kind: `"mse"`, `"mae"`, or `"huber"`, which is squared up to one deviation and absolute above it.
        deviations: K standard deviations.

    Call arguments:
        y_true: `(B, K)`.
        y_pred: `(B, K)`.
    """

    def __init__(self, kind: str, deviations: Sequence[float], name: str = "standardized_loss", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        check_choice("kind", kind, NUMBER_LOSSES)
        self.kind, self.deviations = kind, tuple(deviations)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        # Of the difference, since numbers far from 0 would lose their digits first.
        error = (y_pred - ops.cast(y_true, y_pred.dtype)) / ops.cast(self.deviations, y_pred.dtype)
        return getattr(keras.losses, NUMBER_LOSSES[self.kind])(ops.zeros_like(error), error)  # (B,)

    def get_config(self) -> Arguments:
        return {**super().get_config(), "kind": self.kind, "deviations": list(self.deviations)}


@keras.saving.register_keras_serializable("keras_vit")
class StandardizedR2Score(keras.metrics.R2Score):
    """Keras' `R2Score` of standardised numbers, of which it is the same but for rounding.

    Keras subtracts sums of squares in float32, which leaves nothing of numbers that are far from 0 for their spread.

    Args:
        means: K means.
        deviations: K standard deviations.

    Call arguments:
        y_true: `(B, K)`.
        y_pred: `(B, K)`.
    """

    def __init__(self, means: Sequence[float], deviations: Sequence[float], name: str = "r2", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.means, self.deviations = tuple(means), tuple(deviations)

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor = None) -> None:
        means, deviations = ops.cast(self.means, "float32"), ops.cast(self.deviations, "float32")
        found = [(ops.cast(numbers, "float32") - means) / deviations for numbers in (y_true, y_pred)]
        super().update_state(*found, sample_weight)

    def get_config(self) -> Arguments:
        return {**super().get_config(), "means": list(self.means), "deviations": list(self.deviations)}
