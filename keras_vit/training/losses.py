"""The loss of pre-training, which Keras has with another scale."""

from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Arguments, Tensor
from keras_vit.checks import check_choice, check_fraction

LABELS = ("int", "one_hot")


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

    Call arguments:
        y_true: `(B, K)`, or `(B,)` class numbers with `labels="int"`; one that is no class makes the loss NaN.
        y_pred: logits `(B, K)`.

    Raises:
        ValueError: for a value out of range.

    Source: the pre-training of arXiv:2010.11929, official repository, issues 2 and 34; smoothing as in scenic.
    """

    def __init__(
        self, label_smoothing: float = 0.0, labels: str = "one_hot", name: str = "sigmoid_crossentropy", **kwargs: Any
    ) -> None:
        super().__init__(name=name, **kwargs)
        check_fraction("label_smoothing", label_smoothing)
        check_choice("labels", labels, LABELS)
        self.label_smoothing = label_smoothing
        self.labels = labels

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if self.labels == "int":
            classes = ops.cast(ops.reshape(y_true, (-1,)), "int32")  # Keras has made them (B, 1)
            y_true = ops.one_hot(classes, y_pred.shape[-1], dtype=y_pred.dtype)  # (B, K)
            y_true = ops.where(ops.any(y_true > 0, axis=-1, keepdims=True), y_true, float("nan"))
        target = y_true * (1.0 - 2.0 * self.label_smoothing) + self.label_smoothing
        return ops.sum(ops.binary_crossentropy(target, y_pred, from_logits=True), axis=-1)  # (B,)

    def get_config(self) -> Arguments:
        return {**super().get_config(), "label_smoothing": self.label_smoothing, "labels": self.labels}
