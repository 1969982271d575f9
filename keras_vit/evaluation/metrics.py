"""Metrics of a classifier from its scores: accuracy, confusion, classes and calibration."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

CALIBRATION_BINS = 15  # as in arXiv:1706.04599
_TOP = 5
_MOST_SCORES = 2**22  # of float64 at once: 32 MB
_Z = 1.959964  # quantile of the normal distribution, two-sided 95 %


@dataclasses.dataclass(frozen=True)
class ClassResult:
    """One class of an evaluation.

    Args:
        name: name of the class.
        count: number of its examples.
        recall: part of its examples that were recognised; `None` without examples.
        precision: part of the predictions of this class that are right; `None` without predictions.
    """

    name: str
    count: int
    recall: float | None
    precision: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of `evaluate`: accuracy, loss, calibration, and the answer for every example.

    Example:
        >>> result = keras_vit.evaluate(model, photos, "test")
        >>> round(result.accuracy, 3), result.count
        (0.333, 3)
        >>> result.confusion.tolist()
        [[1, 0, 0], [1, 0, 0], [1, 0, 0]]

    Attributes:
        accuracy: part of the examples whose class has the highest score; the first of equal scores counts.
        top5_accuracy: part whose class is among the five highest; `None` with five classes or fewer.
        loss: mean softmax cross-entropy in nats.
        calibration_error: mean distance of confidence and accuracy over 15 equal bins of confidence, weighted by
            their numbers of examples (arXiv:1706.04599, equation 3).
        count: number of examples.
        class_names: names of the K classes.
        labels: int64 `(n,)`, the true classes in the order of the data.
        predictions: int64 `(n,)`.
        confidences: `(n,)`, probability of the predicted class.
        seconds: duration of the evaluation.
        real_accuracy: part of the images with ReaL labels whose prediction is one of these; `None` without labels.
        real_count: number of images with ReaL labels.
    """

    accuracy: float
    top5_accuracy: float | None
    loss: float
    calibration_error: float
    count: int
    class_names: tuple[str, ...]
    labels: np.ndarray
    predictions: np.ndarray
    confidences: np.ndarray
    seconds: float = 0.0
    real_accuracy: float | None = None
    real_count: int | None = None

    def __repr__(self) -> str:
        figures = {"accuracy": self.accuracy, "top5_accuracy": self.top5_accuracy, "loss": self.loss}
        shown = ", ".join(f"{name}={figure:.4f}" for name, figure in figures.items() if figure is not None)
        return f"Evaluation({shown}, count={self.count}, classes={len(self.class_names)})"

    @property
    def confusion(self) -> np.ndarray:
        """int64 `(K, K)`, rows are true classes, columns predicted ones. Of 21,843 classes it takes 3.8 GB."""
        return confusion_matrix(self.labels, self.predictions, len(self.class_names))

    @property
    def classes(self) -> tuple[ClassResult, ...]:
        """Count, recall and precision of each class."""
        return class_results(self.labels, self.predictions, self.class_names)

    def mistakes(self) -> np.ndarray:
        """Numbers of the wrongly predicted examples, in order of falling confidence."""
        wrong = np.flatnonzero(self.labels != self.predictions)
        return wrong[np.argsort(-self.confidences[wrong], kind="stable")]

    def summary(self) -> dict:
        """The single numbers and each class, ready for JSON."""
        fields = ("accuracy", "top5_accuracy", "loss", "calibration_error", "count", "seconds")
        facts = {field: getattr(self, field) for field in fields}
        facts["images_per_second"] = self.count / self.seconds if self.seconds else None
        if self.real_accuracy is not None:
            facts |= {"real_accuracy": self.real_accuracy, "real_count": self.real_count}
        return facts | {"classes": [dataclasses.asdict(result) for result in self.classes]}


def measure(scores: Any, labels: Any, class_names: Sequence[str], from_logits: bool = True) -> Evaluation:
    """The result of `evaluate`, from given scores.

    Args:
        scores: `(n, K)` logits, or probabilities.
        labels: int `(n,)` in [0, K).
        class_names: K names.
        from_logits: whether `scores` are logits.

    Raises:
        ValueError: for no examples, labels out of range, or scores that are not finite.
    """
    scores, labels = np.asarray(scores), np.asarray(labels, "int64")
    _check_shape(scores, labels, class_names)
    rows = max(_MOST_SCORES // len(class_names), 1)
    parts = (slice(start, start + rows) for start in range(0, len(labels), rows))
    return measure_batches(((scores[part], labels[part]) for part in parts), class_names, from_logits)


def measure_batches(
    batches: Iterable[tuple[Any, Any]], class_names: Sequence[str], from_logits: bool = True
) -> Evaluation:
    """As `measure`, from pairs of scores and labels, of which one is in memory at a time."""
    found: list[tuple[np.ndarray, ...]] = []
    count = 0
    for scores, labels in batches:
        scores, labels = np.asarray(scores, "float64"), np.asarray(labels, "int64")
        _check_scores(scores, labels, class_names, count)
        found.append((labels, *_outcomes(scores, labels, from_logits)))
        count += len(labels)
    if not count:
        raise ValueError("the set is empty, so nothing can be measured on it.\nReceived: 0 examples.")
    labels, predictions, confidences, losses, in_top = map(np.concatenate, zip(*found, strict=True))
    correct = predictions == labels
    return Evaluation(
        accuracy=float(correct.mean()),
        top5_accuracy=float(in_top.mean()) if len(class_names) > _TOP else None,
        loss=float(losses.mean()),
        calibration_error=_calibration_error(confidences, correct),
        count=count,
        class_names=tuple(class_names),
        labels=labels,
        predictions=predictions,
        confidences=confidences,
    )


def confusion_matrix(labels: np.ndarray, predictions: np.ndarray, classes: int) -> np.ndarray:
    """Number of examples by true and predicted class.

    Args:
        labels: int `(n,)` in [0, K).
        predictions: int `(n,)` in [0, K).
        classes: K.

    Returns:
        int64 `(K, K)`, rows are true classes.
    """
    return np.bincount(labels * classes + predictions, minlength=classes**2).reshape(classes, classes)


def class_results(
    labels: np.ndarray, predictions: np.ndarray, class_names: Sequence[str], passes: int = 1
) -> tuple[ClassResult, ...]:
    """Count, recall and precision of each class.

    Args:
        labels: int `(n,)` in [0, K).
        predictions: int `(n,)` in [0, K).
        class_names: K names.
        passes: how often each example is among the labels.
    """
    kinds = labels[labels == predictions], labels, predictions
    correct, true, predicted = (np.bincount(kind, minlength=len(class_names)) for kind in kinds)
    return tuple(
        ClassResult(name, int(n) // passes, float(hits / n) if n else None, float(hits / m) if m else None)
        for name, hits, n, m in zip(class_names, correct, true, predicted, strict=True)
    )


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share measured on `count` examples (Wilson, JASA 22, 1927).

    Args:
        share: in [0, 1].
        count: above 0.
    """
    centre, square = share + _Z**2 / (2 * count), _Z**2 / count
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max((centre - half) / (1 + square), 0.0), min((centre + half) / (1 + square), 1.0)


def _check_shape(scores: np.ndarray, labels: np.ndarray, class_names: Sequence[str]) -> None:
    if scores.shape != (len(labels), len(class_names)):
        raise ValueError(
            "there must be one row of scores for each label, with one for each class.\n"
            f"Received: scores of shape {scores.shape}, {len(labels)} labels, {len(class_names)} classes."
        )


def _check_scores(scores: np.ndarray, labels: np.ndarray, class_names: Sequence[str], before: int) -> None:
    """Refuses what cannot be measured; `before` is the number of examples in earlier batches."""
    _check_shape(scores, labels, class_names)
    if len(labels) and (labels.min() < 0 or labels.max() >= len(class_names)):
        raise ValueError(
            f"labels must be in [0, {len(class_names)}).\nReceived: labels from {labels.min()} to {labels.max()}."
        )
    if not np.isfinite(scores).all():
        first = before + np.argmin(np.isfinite(scores).all(axis=1))
        raise ValueError(
            f"scores must be finite; NaN comes from damaged weights or images.\nReceived: example {first} has others."
        )


def _outcomes(scores: np.ndarray, labels: np.ndarray, from_logits: bool) -> tuple[np.ndarray, ...]:
    """For each example the predicted class, its probability, the loss, and whether the true class is in the top 5."""
    rows = np.arange(len(labels))
    # The logarithm of a probability of 0 would be infinite.
    log_probabilities = _log_softmax(scores) if from_logits else np.log(np.maximum(scores, np.finfo("float32").tiny))
    predictions = scores.argmax(axis=1)
    confidences = np.exp(log_probabilities[rows, predictions])
    return predictions, confidences, -log_probabilities[rows, labels], _in_top(scores, labels)


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _in_top(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Whether fewer than five scores come before that of the true class; of equal ones the first class does."""
    true, is_earlier = scores[np.arange(len(labels)), labels, None], np.arange(scores.shape[1]) < labels[:, None]
    return ((scores > true) | ((scores == true) & is_earlier)).sum(axis=1) < _TOP


def _calibration_error(confidences: np.ndarray, correct: np.ndarray) -> float:
    bins = np.clip(np.ceil(confidences * CALIBRATION_BINS).astype(int) - 1, 0, CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=correct - confidences, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(correct))
