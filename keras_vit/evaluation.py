"""How good a classifier is on a split: accuracy, confusion, each class, and whether its confidence is deserved."""

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.checks import check_positive_int
from keras_vit.model.heads import ends_in_logits, output_activation
from keras_vit.model.image_model import ImageModel

CALIBRATION_BINS = 15  # as in arXiv:1706.04599
_TOP = 5


@dataclasses.dataclass(frozen=True)
class ClassResult:
    """One class of an evaluation.

    Args:
        name: of the class.
        count: examples that belong to it.
        recall: part of these that were recognised; `None` without any.
        precision: part of those taken for it that belong to it; `None` if there were none.
    """

    name: str
    count: int
    recall: float | None
    precision: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class Evaluation:
    """What `evaluate` measured.

    Attributes:
        accuracy: part of the examples whose highest score is that of their class; the first of equal scores counts.
        top5_accuracy: part whose class is among the five highest; `None` with five classes or fewer.
        loss: mean softmax cross-entropy in nats.
        calibration_error: mean distance of confidence and accuracy over 15 equal bins of confidence, weighted by
            their examples (arXiv:1706.04599, equation 3).
        count: examples.
        class_names: of the K classes.
        confusion: int64 `(K, K)`, rows are true classes, columns predicted ones.
        labels: int64 `(n,)`, the true classes in the order of the data.
        predictions: int64 `(n,)`.
        confidences: `(n,)`, probability of the predicted class.
        seconds: that it took.
    """

    accuracy: float
    top5_accuracy: float | None
    loss: float
    calibration_error: float
    count: int
    class_names: tuple[str, ...]
    confusion: np.ndarray
    labels: np.ndarray
    predictions: np.ndarray
    confidences: np.ndarray
    seconds: float = 0.0

    def __repr__(self):
        figures = {"accuracy": self.accuracy, "top5_accuracy": self.top5_accuracy, "loss": self.loss}
        shown = ", ".join(f"{name}={figure:.4f}" for name, figure in figures.items() if figure is not None)
        return f"Evaluation({shown}, count={self.count}, classes={len(self.class_names)})"

    @property
    def classes(self) -> tuple[ClassResult, ...]:
        """Count, recall and precision of each class."""
        correct, true, predicted = self.confusion.diagonal(), self.confusion.sum(axis=1), self.confusion.sum(axis=0)
        return tuple(
            ClassResult(name, int(n), float(hits / n) if n else None, float(hits / m) if m else None)
            for name, hits, n, m in zip(self.class_names, correct, true, predicted, strict=True)
        )

    def mistakes(self) -> np.ndarray:
        """Numbers of the examples that were taken for another class, the surest first."""
        wrong = np.flatnonzero(self.labels != self.predictions)
        return wrong[np.argsort(-self.confidences[wrong], kind="stable")]

    def summary(self) -> dict:
        """The single numbers and each class, ready for JSON."""
        fields = ("accuracy", "top5_accuracy", "loss", "calibration_error", "count", "seconds")
        facts = {field: getattr(self, field) for field in fields}
        facts["images_per_second"] = self.count / self.seconds if self.seconds else None
        return facts | {"classes": [dataclasses.asdict(result) for result in self.classes]}


def evaluate(
    model: ImageModel,
    data: Any,
    split: str = "test",
    *,
    batch_size: int = 32,
    class_names: Sequence[str] | None = None,
    seed: int = 0,
) -> Evaluation:
    """Measures a classifier on every example of a split, the last ones of an incomplete batch too.

    Args:
        model: a `VisionTransformer` or `ResNet` with a head that gives logits, or probabilities by softmax.
        data: a `Source` or what `keras_vit.open_source` takes, whose images `model.preprocessing` prepares; or a
            dataset of (prepared images, int or one-hot labels) that ends.
        split: `"train"`, `"validation"` or `"test"`, or several, as `"train+validation"`; not for a dataset.
        batch_size: images at once; the numbers do not depend on it. Not for a dataset.
        class_names: that the model was trained with, in order; the data must have the same, unless it is a dataset.
        seed: of the division into splits, where the data has none; that of the training.

    Returns:
        An `Evaluation`.

    Raises:
        ValueError: for an empty split, classes that are not the model's, scores that are not finite, or a head with
            another activation than softmax.
    """
    check_positive_int("batch_size", batch_size)
    _check_output(model)
    dataset, names = _prepared(model, data, split, batch_size, seed)
    names = _agreed_names(model, names, class_names)
    began = time.perf_counter()
    scores, labels = _scores(model, dataset, len(names))
    result = measure(scores, labels, names, ends_in_logits(model))
    return dataclasses.replace(result, seconds=time.perf_counter() - began)


def measure(scores, labels, class_names, from_logits=True) -> Evaluation:
    """The same from scores that are at hand.

    Args:
        scores: `(n, K)` logits, or probabilities.
        labels: int `(n,)` in [0, K).
        class_names: K names.
        from_logits: whether `scores` are logits.

    Raises:
        ValueError: for no examples, labels out of range, or scores that are not finite.
    """
    scores, labels = np.asarray(scores, "float64"), np.asarray(labels, "int64")
    _check_scores(scores, labels, class_names)
    classes = len(class_names)
    log_probabilities = _log_softmax(scores) if from_logits else np.log(np.maximum(scores, np.finfo("float32").tiny))
    predictions = scores.argmax(axis=1)
    confidences = np.exp(log_probabilities[np.arange(len(labels)), predictions])
    correct = predictions == labels
    return Evaluation(
        accuracy=float(correct.mean()),
        top5_accuracy=float(_in_top(scores, labels).mean()) if classes > _TOP else None,
        loss=float(-log_probabilities[np.arange(len(labels)), labels].mean()),
        calibration_error=_calibration_error(confidences, correct),
        count=len(labels),
        class_names=tuple(class_names),
        confusion=np.bincount(labels * classes + predictions, minlength=classes**2).reshape(classes, classes),
        labels=labels,
        predictions=predictions,
        confidences=confidences,
    )


def _check_output(model):
    activation = output_activation(model)
    if activation not in ("linear", "softmax"):
        ending = "has no head" if activation is None else f"ends in {activation}"
        raise ValueError(
            "the model must end in logits or in softmax, so that its scores say how sure it is of each class.\n"
            f"Received: {model.name!r}, which {ending}. Build it with `classes=` and no other activation."
        )


def _prepared(model, data, split, batch_size, seed):
    """Batches of images and labels, and the names of the classes, if known."""
    if hasattr(data, "element_spec"):
        if math.isinf(_cardinality(data)):
            raise ValueError("the dataset must end, to be measured on.\nReceived: a dataset that repeats for ever.")
        return data, getattr(data, "class_names", None)
    from keras_vit.data import load_dataset, open_source
    from keras_vit.data.source import check_split

    check_split(split)
    source = open_source(data, seed=seed)
    dataset = load_dataset(
        source, split, batch_size=batch_size, preprocessing=model.preprocessing, seed=seed, shard=(0, 1)
    )  # all of it, also in one of several processes
    return dataset, source.class_names


def _cardinality(dataset):
    return math.inf if int(dataset.cardinality()) == -1 else 0  # tf.data.INFINITE_CARDINALITY


def _agreed_names(model, names, expected):
    classes = model.output_shape[-1]
    expected = names if expected is None else tuple(expected)
    names = expected if names is None else tuple(names)
    names = tuple(map(str, range(classes))) if names is None else names
    if len(names) != classes:
        raise ValueError(
            "the data must have the classes that the model knows.\n"
            f"Received: data with {len(names)} classes, {model.name!r} with {classes}."
        )
    if expected is not None and tuple(expected) != names:
        ours, theirs = next(pair for pair in zip(expected, names, strict=True) if pair[0] != pair[1])
        raise ValueError(
            "the data must have the classes that the model was trained with, in the same order.\n"
            f"Received: {theirs!r} where the model has {ours!r}."
        )
    return names


def _scores(model, dataset, classes):
    """`(n, K)` scores and `(n,)` labels of every example."""
    scores, labels, size = [], [], 0
    for images, targets in dataset:
        images, targets = np.asarray(images), np.asarray(targets)  # every backend takes these
        count, size = len(images), max(size, len(images))
        # One batch size means one compilation: what is missing of the last one is made up, and dropped again.
        images = np.pad(images, ((0, size - count),) + ((0, 0),) * (images.ndim - 1))
        scores.append(np.asarray(model.predict_on_batch(images), "float32")[:count])
        labels.append(targets if targets.ndim == 1 else targets.argmax(axis=1))
    if not scores:
        raise ValueError("the set is empty, so nothing can be measured on it.\nReceived: a dataset without batches.")
    return np.concatenate(scores), np.concatenate(labels)


def _check_scores(scores, labels, class_names):
    if len(labels) == 0:
        raise ValueError("the set is empty, so nothing can be measured on it.\nReceived: 0 examples.")
    if scores.shape != (len(labels), len(class_names)):
        raise ValueError(
            "there must be one row of scores for each label, with one for each class.\n"
            f"Received: scores of shape {scores.shape}, {len(labels)} labels, {len(class_names)} classes."
        )
    if labels.min() < 0 or labels.max() >= len(class_names):
        raise ValueError(
            f"labels must be in [0, {len(class_names)}).\nReceived: labels from {labels.min()} to {labels.max()}."
        )
    if not np.isfinite(scores).all():
        rows = np.flatnonzero(~np.isfinite(scores).all(axis=1))
        raise ValueError(
            "scores must be finite; NaN comes of damaged weights or images.\n"
            f"Received: {len(rows)} of {len(scores)} rows that are not, the first is example {rows[0]}."
        )


def _log_softmax(scores):
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _in_top(scores, labels):
    return (np.argsort(-scores, axis=1, kind="stable")[:, :_TOP] == labels[:, None]).any(axis=1)


def _calibration_error(confidences, correct):
    bins = np.clip(np.ceil(confidences * CALIBRATION_BINS).astype(int) - 1, 0, CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=correct - confidences, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(correct))
