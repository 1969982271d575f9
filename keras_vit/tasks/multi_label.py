"""Multi-label classification: any number of K labels for each image, those whose score is above their threshold.

The loss is sigmoid cross-entropy, and the best epoch that of the highest mean average precision.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from keras_vit.checks import ArgumentError, check_fraction, check_positive
from keras_vit.pages.cards import CLASSIFICATION, classes_section
from keras_vit.pages.formatting import columns, markdown_text, plural, printable, spreadsheet_cell
from keras_vit.pages.html import Panel, Section
from keras_vit.tasks.task import MOST_PHOTOS, CardParts, RowTask, option, photos_section

if TYPE_CHECKING:
    from keras_vit.data.source import Source
    from keras_vit.data.targets import Targets
    from keras_vit.evaluation.batched_predict import OutputRows
    from keras_vit.training.plan import Plan

_DEFAULT_THRESHOLD = 0.5
_FEWEST_IMAGES = 10  # with a label in the validation set, for a threshold of its own
_HEADER = ("label", "images", "average precision", "F1", "recall", "precision", "threshold")
_MEANINGS = (
    "Average precision of a label: the area under its curve of precision over recall, for all thresholds. 1 is best.",
    "Mean average precision: the mean of these over the labels that have images.",
    "F1: the harmonic mean of recall and precision at the thresholds. Micro counts all answers together; macro is the "
    "mean over labels that have images.",
    "Recall of a label: the share of its images that the model finds. Precision: the share of its answers that are "
    "right.",
    "Threshold: the score from which the model answers with a label.",
    "Loss: sigmoid cross-entropy, summed over the labels. 0 is best.",
)


@dataclasses.dataclass(frozen=True)
class LabelResult:
    """One label of an evaluation; shares are `None` without images or answers that they could be measured on."""

    name: str
    count: int
    average_precision: float | None
    f1: float | None
    recall: float | None
    precision: float | None
    threshold: float

    def row(self) -> tuple[str, ...]:
        """Its cells, by `_HEADER`."""
        shares = (self.average_precision, self.f1, self.recall, self.precision)
        found = ["none" if share is None else f"{share:.4f}" for share in shares]
        return (printable(self.name), f"{self.count:,}", *found, f"{self.threshold:.4f}")


@dataclasses.dataclass(frozen=True, eq=False)
class LabelEvaluation:
    """What was measured of several labels an image.

    Attributes:
        average_precision: mean over the labels that have images.
        micro_f1: F1 of all answers together, at the thresholds.
        macro_f1: mean F1 over the labels that have images.
        loss: mean over the images of the sigmoid cross-entropy, summed over the labels.
        labels: bool `(n, K)`, which labels each image has.
        scores: `(n, K)` in [0, 1].
        thresholds: `(K,)`.
        seconds: duration.
    """

    average_precision: float
    micro_f1: float
    macro_f1: float
    loss: float
    class_names: tuple[str, ...]
    labels: np.ndarray
    scores: np.ndarray
    thresholds: np.ndarray
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.labels)

    @property
    def predictions(self) -> np.ndarray:
        """bool `(n, K)`."""
        return self.scores >= self.thresholds

    @property
    def classes(self) -> tuple[LabelResult, ...]:
        """Each label, in order."""
        from sklearn.metrics import average_precision_score

        found = zip(self.class_names, self.labels.T, self.scores.T, self.predictions.T, self.thresholds, strict=True)
        results = []
        for name, true, scores, predicted, threshold in found:
            hits, positives, answers = int((true & predicted).sum()), int(true.sum()), int(predicted.sum())
            area = float(average_precision_score(true, scores)) if positives else None
            f1 = 2 * hits / (positives + answers) if positives else None
            shares = hits / positives if positives else None, hits / answers if answers else None
            results.append(LabelResult(name, positives, area, f1, *shares, float(threshold)))
        return tuple(results)

    def summary(self) -> dict[str, Any]:
        """The single numbers and each label, ready for JSON."""
        fields = ("average_precision", "micro_f1", "macro_f1", "loss", "count", "seconds")
        facts = {field: getattr(self, field) for field in fields}
        return facts | {"labels": [dataclasses.asdict(result) for result in self.classes]}

    def panel(self, sections: Sequence[Section] = ()) -> Panel:
        """What a page shows."""
        found = [each for each in self.classes if each.average_precision is not None]
        answer = (
            f"The mean average precision of {plural(len(self.class_names), 'label')} is {self.average_precision:.4f}."
        )
        if found:
            worst = min(found, key=lambda each: each.average_precision or 0.0)
            answer += f" The weakest label is {printable(worst.name)}: {worst.average_precision:.4f}."
        figures = [
            ("mean average precision", f"{self.average_precision:.4f}"),
            ("F1, micro", f"{self.micro_f1:.4f}"),
            ("F1, macro", f"{self.macro_f1:.4f}"),
            ("loss (nats)", f"{self.loss:.4f}"),
            ("images", f"{self.count:,}"),
            ("labels", f"{len(self.class_names):,}"),
        ]
        rows = [result.row() for result in self.classes]
        return Panel(answer, figures, _MEANINGS, [Section("Labels", header=_HEADER, rows=rows), *sections])


def measure_labels(
    logits: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    thresholds: Any = _DEFAULT_THRESHOLD,
    seconds: float = 0.0,
) -> LabelEvaluation:
    """What `LabelEvaluation` says, from logits `(n, K)` and rows of 0 and 1 `(n, K)`."""
    logits, labels = np.asarray(logits, "float64"), np.asarray(labels) > 0
    scores = 0.5 + 0.5 * np.tanh(logits / 2)  # the sigmoid, without an overflow
    losses = np.logaddexp(0, np.where(labels, -logits, logits)).sum(axis=1)
    limits = np.broadcast_to(np.asarray(thresholds, "float64"), scores.shape[1:])
    names = tuple(class_names)
    result = LabelEvaluation(0.0, 0.0, 0.0, float(losses.mean()), names, labels, scores, limits, seconds)
    hits, answers = (labels & result.predictions).sum(), labels.sum() + result.predictions.sum()
    found = [each for each in result.classes if each.count]
    if not found:
        raise ValueError(f"an image must have a label, or nothing can be measured.\nReceived: {len(labels)} without.")
    return dataclasses.replace(
        result,
        average_precision=float(np.mean([each.average_precision for each in found])),
        micro_f1=float(2 * hits / answers),
        macro_f1=float(np.mean([each.f1 for each in found])),
    )


def best_thresholds(labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """For each label the threshold of the highest F1.

    A label with fewer than 10 images gets the threshold that is best for all labels together.

    Args:
        labels: bool `(n, K)`.
        scores: `(n, K)`.
    """
    shared = _best_threshold(labels.ravel(), scores.ravel())
    enough = labels.sum(axis=0) >= _FEWEST_IMAGES
    pairs = zip(labels.T, scores.T, enough, strict=True)
    return np.array([_best_threshold(true, found) if many else shared for true, found, many in pairs])


def _best_threshold(labels: np.ndarray, scores: np.ndarray) -> float:
    """In the middle between the last score that counts, for the highest F1, and the next lower one."""
    order = np.argsort(-scores, kind="stable")
    ordered, hits = scores[order], np.cumsum(labels[order])
    ends = np.flatnonzero(np.append(np.diff(ordered) != 0, True))  # equal scores count together
    f1 = 2 * hits[ends] / (ends + 1 + labels.sum())
    last = int(ends[f1.argmax()])
    return float((ordered[last] + (ordered[last + 1] if last + 1 < len(ordered) else 0.0)) / 2)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiLabel(RowTask):
    """Several labels for each image: `keras_vit.finetune(table, out, task="multi-label")`.

    Args:
        columns: of 0 and 1 that are learned; by default all except `path` and `split`, or the names in `labels`.
        positive_weight: how much more an image with a label counts than one without it: a number, one for each label,
            or `"balanced"`, images without the label for each with it.
        threshold: score in (0, 1) from which a label is answered, or one for each label. By default the one of the
            highest F1 on the validation set, for each label.
    """

    name: ClassVar[str] = "multi-label"
    head: ClassVar[str] = "labels"
    metrics: ClassVar[tuple[str, ...]] = ("average_precision",)
    ranks: ClassVar[bool] = True
    curves: ClassVar[Mapping[str, str]] = {"loss": "loss (nats)", "average_precision": "mean average precision"}

    positive_weight: float | tuple[float, ...] | str | None = option(
        None,
        "of multi-label: how much more an image with a label counts than one without; a number, one for each label, or "
        "balanced; by default 1",
        metavar="WEIGHT",
    )
    threshold: float | tuple[float, ...] | None = option(
        None,
        "of multi-label: score from which a label is answered; by default the best on validation",
        type=float,
        metavar="T",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positive_weight not in (None, "balanced"):
            weights = _numbers("positive_weight", self.positive_weight, ", or 'balanced'")
            object.__setattr__(self, "positive_weight", weights if len(weights) > 1 else weights[0])
            for weight in weights:
                check_positive("positive_weight", weight)
        if self.threshold is not None:
            for limit in _numbers("threshold", self.threshold):
                check_fraction("threshold", limit)

    def targets(self, names: Sequence[str] | None = None) -> "Targets":
        from keras_vit.data.row_targets import LabelTargets

        return LabelTargets(names, self.columns)

    def check_source(self, source: "Source") -> None:
        from keras_vit.data.row_targets import warn_of_constant_labels

        warn_of_constant_labels(source)

    def size_in_words(self, count: int) -> str:
        return f"{count} label{'s' * (count != 1)}"

    def compile_arguments(self, plan: "Plan", encoding: str, source: "Source") -> dict[str, Any]:
        import keras

        from keras_vit.training.losses import SigmoidCrossentropy

        classes = len(source.class_names)
        area = keras.metrics.AUC(
            name=self.metrics[0], curve="PR", multi_label=True, num_labels=classes, from_logits=True
        )
        loss = SigmoidCrossentropy(plan.recipe.label_smoothing, positive_weight=self._weights(source))
        return plan.compile_arguments(encoding, [area]) | {"loss": loss}

    def _weights(self, source: "Source") -> list[float] | None:
        """The weight of each label."""
        if self.positive_weight is None:
            return None
        if self.positive_weight == "balanced":
            shares = source.split("train").labels.mean(axis=0, dtype="float64")
            return np.where(shares > 0, (1 - shares) / np.maximum(shares, 1e-12), 1.0).tolist()
        weights = np.atleast_1d(np.asarray(self.positive_weight, "float64"))
        if len(weights) not in (1, len(source.class_names)):
            raise ArgumentError(
                "`positive_weight` must be one number, or one for each label.\n"
                f"Received: {len(weights)} numbers for the labels {', '.join(source.class_names)}."
            )
        return np.broadcast_to(weights, len(source.class_names)).tolist()

    def settle(self, model: Any, source: "Source", batch_size: int) -> "MultiLabel":
        if self.threshold is not None or not source.sizes.get("validation"):
            return self
        found = self.evaluate(model, source, "validation", batch_size=batch_size)
        return dataclasses.replace(self, threshold=tuple(best_thresholds(found.labels, found.scores).tolist()))

    def measure(self, found: "OutputRows") -> LabelEvaluation:
        return measure_labels(found.outputs, found.targets, found.names, self._threshold, found.seconds)

    @property
    def _threshold(self) -> Any:
        return _DEFAULT_THRESHOLD if self.threshold is None else self.threshold

    def result(self, evaluation: LabelEvaluation, run: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "test_average_precision": evaluation.average_precision,
            "classes": len(evaluation.class_names),
            **run,
            "test_loss": evaluation.loss,
            "micro_f1": evaluation.micro_f1,
            "macro_f1": evaluation.macro_f1,
            "per_label": [dataclasses.asdict(result) for result in evaluation.classes],
        }

    def panel(
        self,
        evaluation: LabelEvaluation,
        folder: Path | None = None,
        source: "Source | None" = None,
        split: str = "test",
    ) -> Panel:
        return evaluation.panel([] if source is None else [_mistakes(evaluation, source, split)])

    def result_rows(self, facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        measured = f"{facts['test_average_precision']:.4f} on {facts['test_images']:,} images"
        yield f"{printable(facts['split'])} mean average precision", f"{measured}, epoch {facts['best_epoch']}"
        yield "F1, micro and macro", f"{facts['micro_f1']:.4f} and {facts['macro_f1']:.4f}"
        yield "loss", f"{facts['test_loss']:.4f}"

    def card(self, data: Mapping[str, Any], result: Mapping[str, Any]) -> CardParts:
        labels = [LabelResult(**each) for each in result["per_label"]]
        cells = dict(zip(_HEADER, map(list, zip(*(each.row() for each in labels), strict=True)), strict=True))
        del cells["label"]
        found = [each for each in labels if each.average_precision is not None]
        worst = min(found, key=lambda each: each.average_precision or 0.0)
        limits = [
            f"It is weakest on {markdown_text(worst.name)}: average precision {worst.average_precision:.4f} on "
            f"{plural(worst.count, 'image')}."
        ]
        return CardParts(
            hub_task=(CLASSIFICATION, "Multi-label image classification"),
            figures=[
                ("mean_average_precision", "Mean average precision", result["test_average_precision"]),
                ("f1", "F1, micro", result["micro_f1"]),
                ("f1", "F1, macro", result["macro_f1"]),
                ("loss", "Sigmoid cross-entropy in nats", result["test_loss"]),
            ],
            subject=f"A classifier of {result['classes']:,} labels, of which an image may have several",
            use="The answers are logits, whose sigmoids are scores. `keras-vit predict photo.jpg --model FOLDER` names "
            "the labels whose score is above their threshold.",
            note="A label's threshold was chosen on the validation set, unless one was given.",
            sections={"Labels": classes_section(data["class_names"], cells)},
            answers=f"It knows {result['classes']:,} labels, and says nothing of what else an image shows.",
            limits=limits,
        )

    def answer(self, model: Any, outputs: Any, names: Sequence[str], top: int | None) -> list[dict[str, Any]]:
        if not np.isfinite(outputs).all():
            raise ValueError("the model's scores are not finite, so its weights are damaged.")
        scores = 0.5 + 0.5 * np.tanh(np.asarray(outputs, "float64") / 2)
        limits = np.broadcast_to(self._threshold, scores.shape)
        order, predicted = (-scores).argsort(kind="stable"), scores >= limits
        found = [
            {"label": names[place], "score": float(scores[place]), "predicted": bool(predicted[place])}
            for rank, place in enumerate(order)
            if predicted[place] or rank < (top or 0)
        ]
        return found if top else [{name: item[name] for name in ("label", "score")} for item in found]

    def answer_lines(self, answer: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        below = {False: "  (below its threshold)"}
        rows = ((item, below.get(item.get("predicted", True), "")) for item in answer)
        yield from columns([(f"  {item['score']:7.2%}", printable(item["label"]) + note) for item, note in rows])
        if not answer:
            yield "  no label above its threshold"

    def answer_columns(self, names: Sequence[str], top: int | None) -> list[str]:
        own = ("path", "status", "labels", "scores")
        return [*own[2:], *(f"{name}_score" if name in own else spreadsheet_cell(name) for name in names if top)]

    def answer_cells(self, answer: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
        cells = {item["label"]: f"{item['score']:.6g}" for item in answer}
        predicted = [item["label"] for item in answer if item.get("predicted", True)]
        labels = ";".join(predicted)  # as a table to train on has them
        of_each = [cells.get(name, "") for name in names] if any("predicted" in item for item in answer) else []
        return [spreadsheet_cell(labels), ";".join(cells[name] for name in predicted), *of_each]

    def evaluation_lines(self, evaluation: LabelEvaluation, split: str, name: str) -> Iterator[str]:
        measured = f"{evaluation.average_precision:.4f} on {plural(evaluation.count, 'image')} of {name}"
        yield f"{split} mean average precision {measured}"
        rows = [("F1, micro", f"{evaluation.micro_f1:.4f}"), ("F1, macro", f"{evaluation.macro_f1:.4f}")]
        yield from (f"  {line}" for line in columns([*rows, ("loss", f"{evaluation.loss:.4f}")]))
        yield ""
        yield from columns([_HEADER, *(result.row() for result in evaluation.classes)])


def _mistakes(evaluation: LabelEvaluation, source: "Source", split: str) -> Section:
    """The photos with the most labels that are wrong or missing, the surest first."""
    wrong = evaluation.predictions != evaluation.labels
    sure = np.where(wrong, np.abs(evaluation.scores - evaluation.thresholds), 0).max(axis=1)
    order = np.lexsort((-sure, -wrong.sum(axis=1)))
    count = int(wrong.any(axis=1).sum())
    if not count:
        return Section("Mistakes", texts=["None."])
    photos = []
    for index in order[: min(count, MOST_PHOTOS)].tolist():
        true, answers = evaluation.labels[index], evaluation.predictions[index]
        parts = {"right": true & answers, "missing": true & ~answers, "wrong": answers & ~true}
        named = {
            word: ", ".join(printable(evaluation.class_names[place]) for place in np.flatnonzero(places))
            for word, places in parts.items()
        }
        texts = [(f"{word}: {names}", word != "right") for word, names in named.items() if names]
        photos.append((index, [part for text in texts for part in (("; ", False), text)][1:]))
    note = "Look at the labels too: a sure mistake may be a wrong label."
    title = f"Photos with a wrong or missing label: {count:,} of {evaluation.count:,}"
    return photos_section(title, note, photos, source, split)


def _numbers(name: str, given: Any, others: str = "") -> tuple[float, ...]:
    """One number or several, of an option that may be text."""
    parts = given.split(",") if isinstance(given, str) else given if isinstance(given, (list, tuple)) else [given]
    try:
        return tuple(float(part) for part in parts)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"`{name}` must be a number, or one for each label{others}.\nReceived: {given!r}."
        ) from None
