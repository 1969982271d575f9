"""Measures of a segmentation model on a split: one confusion matrix at the masks' own sizes."""

import dataclasses
import heapq
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_vit.data import load_dataset
from keras_vit.data.mask_targets import check_pixels
from keras_vit.data.pipeline import report_missing_files
from keras_vit.data.targets import Targets
from keras_vit.dense.masks import SegmentationScores, confusion_scores
from keras_vit.dense_models.photos import PhotoSegmenter
from keras_vit.evaluation.batched_predict import check_finite, check_outputs, open_to_measure, predict_batches
from keras_vit.model.copies import unwrapped
from keras_vit.pages.formatting import plural, printable
from keras_vit.pages.html import Panel, Section

WORST = 24  # photos whose answers are kept
_KEPT = 200  # pixels, the longer side of a kept answer
_MOST_LOGITS = 1 << 26  # at once
_ROWS = 1 << 22  # numbers of one block of rows that are resized to a mask

HEADER = ("class", "share", "IoU", "recall")
_MEANINGS = (
    "Mean IoU: the pixels of a class in both mask and answer, over the pixels of it in at least one of them; the mean "
    "of the classes that are in a mask or an answer. All photos count together, at the masks' own sizes.",
    "Pixel accuracy: the share of the pixels that count whose class is right.",
    "Share: of a class in the pixels of the masks that count. Recall: the share of its pixels that is found.",
    "Loss: cross-entropy of the pixels that count, at the model's size; with windows at the photos' own.",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """One photo of a split, with what a report shows.

    Attributes:
        index: in the split.
        iou: mean over the classes that are in mask or answer; NaN where no pixel counts.
        mask: uint16 `(h, w)`, made smaller.
        answer: uint16 `(h, w)`.
    """

    index: int
    iou: float
    mask: np.ndarray
    answer: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentationEvaluation:
    """What was measured of classes of pixels.

    Attributes:
        scores: of one confusion matrix over the split, at the masks' own sizes.
        loss: mean cross-entropy of the pixels that count, in nats, at the model's size; with windows at the photos'
            own.
        class_names: names of the K classes.
        count: of photos.
        worst: photos with the lowest IoU of their own, the lowest first.
        seconds: duration.
    """

    scores: SegmentationScores
    loss: float
    class_names: tuple[str, ...]
    count: int
    worst: tuple[Answer, ...]
    seconds: float = 0.0

    @property
    def mean_iou(self) -> float | None:
        """Over the classes that are in a mask or an answer; `None` where no pixel counts."""
        return _known(self.scores.mean_iou)

    @property
    def classes(self) -> list[dict[str, Any]]:
        """Each class with its share of the pixels that count, in order; `None` for an absent class."""
        pixels = self.scores.confusion.sum(axis=1)
        rows = zip(self.class_names, pixels, self.scores.iou, self.scores.class_accuracy, strict=True)
        return [
            {"name": name, "share": float(count / max(pixels.sum(), 1)), "iou": _known(iou), "recall": _known(right)}
            for name, count, iou, right in rows
        ]

    def summary(self) -> dict[str, Any]:
        """The single numbers and each class, ready for JSON."""
        scores = self.scores
        numbers = {
            "mean_iou": self.mean_iou,
            "pixel_accuracy": _known(scores.accuracy),
            "mean_recall": _known(scores.mean_class_accuracy),
            "mean_dice": _known(scores.mean_dice),
        }
        return numbers | {"loss": self.loss, "count": self.count, "seconds": self.seconds, "classes": self.classes}

    def panel(self, sections: Sequence[Section] = ()) -> Panel:
        """What a page shows."""
        found = self.summary()
        known = [each for each in found["classes"] if each["iou"] is not None]
        worst = min(known, key=lambda each: each["iou"])
        answer = (
            f"Over {plural(self.count, 'photo')} the mean IoU is {found['mean_iou']:.4f}. It is lowest for "
            f"{printable(worst['name'])}, {worst['iou']:.4f}."
        )
        figures = [("mean IoU", f"{found['mean_iou']:.4f}"), ("pixel accuracy", f"{found['pixel_accuracy']:.4f}")]
        figures += [("loss (nats)", f"{found['loss']:.4f}"), ("photos", f"{self.count:,}")]
        table = Section("Classes", header=HEADER, rows=class_rows(found["classes"]))
        return Panel(answer, figures, _MEANINGS, [table, *sections])


def evaluate_segmentation(
    model: Any,
    data: Any,
    split: str | None,
    targets: Targets,
    batch_size: int,
    seed: int | None,
    windows: bool = False,
) -> SegmentationEvaluation:
    """Measures a model on the photos of a split, each resized whole to the model's size, or by windows as of `segment`.

    Logits are resized to the size of each mask, bilinear with half-pixel centres, and masks are never resized.

    Args:
        model: of logits `(B, H, W, K)`.
        data: a `Source`, or what `open_source` takes.
        split: or several, as for `Source.split`; `None` as `open_to_measure` takes it.
        targets: `MaskTargets`.
        batch_size: images at once, at most.
        seed: divides data without splits.
        windows: whether windows slide over each photo, as `keras_vit.segment` has them by default.

    Raises:
        ValueError: for data of other classes than the model's, a split without a pixel that counts, and logits that
            are not finite.
    """
    model = unwrapped(model)
    source, split = open_to_measure(data, split, seed, targets)
    examples, classes = source.split(split), model.output_spec.size
    check_outputs(model, source)
    check_pixels(source, split)
    if windows:
        answers = _slid(model, examples)
    else:
        size = max(1, min(batch_size, _MOST_LOGITS // int(np.prod(model.output_spec.shape[1:]))))
        rule = model.preprocessing
        dataset = load_dataset(source, split, batch_size=size, preprocessing=rule, seed=seed or 0, shard=(0, 1))
        answers = _whole(model, dataset, examples)
    began = time.perf_counter()
    confusion, losses, index = np.zeros((classes, classes), "int64"), [], 0
    worst: list[Any] = []
    with report_missing_files(examples):
        for mask, answer, loss in answers:
            own = _confusion(mask, answer, classes, examples.ignore_class)
            losses.append(loss)
            iou = confusion_scores(own).mean_iou
            if not np.isnan(iou):
                step = max(1, -(-max(mask.shape) // _KEPT))
                small = (mask[::step, ::step].astype("uint16"), answer[::step, ::step].astype("uint16"))
                push = heapq.heappush if len(worst) < WORST else heapq.heappushpop
                push(worst, (-iou, -index, Answer(index, iou, *small)))
            confusion += own
            index += 1
    total, count = np.sum(losses, axis=0)
    kept = tuple(answer for _, _, answer in sorted(worst, key=lambda item: item[:2], reverse=True))
    seconds = time.perf_counter() - began
    scores = confusion_scores(confusion)
    return SegmentationEvaluation(scores, float(total / max(count, 1)), source.class_names, index, kept, seconds)


_Answers = Iterator[tuple[np.ndarray, np.ndarray, tuple[float, int]]]  # mask, answer, and the loss with its pixels


def _whole(model: Any, dataset: Any, examples: Any) -> _Answers:
    """Answers for photos that pass whole, at the masks' sizes."""
    index = 0
    for outputs, labels in predict_batches(model, dataset, rows=True):
        check_finite(outputs, index)
        for logits, label in zip(outputs, labels, strict=True):
            mask = examples.target(index)
            yield mask, classes_at(logits, mask.shape), _loss(logits, label, examples.ignore_class)
            index += 1


def _slid(model: Any, examples: Any) -> _Answers:
    """Answers by windows that slide over photos; the loss is that of the mean logits at the photo's size."""
    find = PhotoSegmenter(model)
    for index in range(examples.size):
        mask, losses = examples.target(index), []
        answer = np.empty(mask.shape, "int32")
        for place, logits in find.blocks(find.maps.pixels(examples.pixels(index))):
            answer[place] = logits.argmax(axis=-1)
            losses.append(_loss(logits, mask[place], examples.ignore_class))
        yield mask, answer, (sum(total for total, _ in losses), sum(count for _, count in losses))


def classes_at(logits: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """int32 `size`: the class of the highest logit, once logits are resized bilinearly with half-pixel centres.

    It goes over blocks of rows, since the logits of a large photo take gigabytes.

    Args:
        logits: float32 `(h, w, K)`.
        size: `(H, W)`.
    """
    classes = logits.shape[-1]
    found = np.empty(size, "int32")
    (top, bottom, below), (left, right, beyond) = (
        _neighbours(*sides) for sides in zip(logits.shape, size, strict=False)
    )
    block = max(1, _ROWS // (size[1] * classes))
    for start in range(0, size[0], block):
        rows = slice(start, start + block)
        share = below[rows, None, None]
        lines = logits[top[rows]] * (1 - share) + logits[bottom[rows]] * share
        share = beyond[:, None]
        found[rows] = (lines[:, left] * (1 - share) + lines[:, right] * share).argmax(axis=-1)
    return found


def _neighbours(length: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two places of a line that each place of the resized one lies between, and the share of the second."""
    places = np.clip((np.arange(size) + 0.5) * length / size - 0.5, 0, length - 1)
    first = places.astype(int)
    return first, np.minimum(first + 1, length - 1), (places - first).astype("float32")


def _confusion(mask: np.ndarray, answer: np.ndarray, classes: int, ignore_class: int) -> np.ndarray:
    valid = mask != ignore_class
    pairs = classes * mask[valid].astype("int64") + answer[valid]
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


def _loss(logits: np.ndarray, labels: np.ndarray, ignore_class: int) -> tuple[float, int]:
    """Sum of the cross-entropy of the pixels that count, and their number."""
    valid = labels != ignore_class
    rows = logits[valid].astype("float64")
    rows -= rows.max(axis=-1, keepdims=True)
    right = rows[np.arange(len(rows)), labels[valid]]
    return float((np.log(np.exp(rows).sum(axis=-1)) - right).sum()), len(rows)


def class_rows(classes: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of a table of `SegmentationEvaluation.classes`, by `HEADER`."""
    found = []
    for each in classes:
        cells = ("none" if each[name] is None else f"{each[name]:.4f}" for name in ("share", "iou", "recall"))
        found.append((printable(each["name"]), *cells))
    return found


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
