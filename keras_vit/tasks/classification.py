"""Classification: one of K classes for each image, by its highest score."""

import csv
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from keras_vit.files import atomic_write
from keras_vit.pages.cards import CLASSIFICATION, classes_section
from keras_vit.pages.formatting import columns, markdown_text, plural, printable, spreadsheet_cell
from keras_vit.pages.html import PICTURE, Panel, Section, png_uri
from keras_vit.tasks.class_weights import BALANCED, ordered_weights, read_class_weights, weights_in_words
from keras_vit.tasks.task import MOST_PHOTOS, TOP, CardParts, Task, option, photos_section

if TYPE_CHECKING:
    from keras_vit.data.source import Source
    from keras_vit.data.targets import Targets
    from keras_vit.evaluation import Evaluation
    from keras_vit.training.plan import Plan

CONFUSION, CONFUSION_TABLE = "confusion_matrix.png", "confusion_matrix.csv"
_CORNER = "true \\ predicted"  # first cell of the confusion matrix
_CELLS = ("true", "predicted", "images")  # columns where it is a list of cells
_MOST_COLUMNS = 1000  # of that table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(Task):
    """The task of `keras_vit.finetune` where no other is named.

    Args:
        class_weights: how much an image of each class counts in the loss: `"balanced"`, images / (classes * images of
            the class); numbers above 0 by the name of the class; or the path of a `.csv` file with the columns `class`
            and `weight`. The loss of a batch is the sum over its images divided by their number, as that of Keras'
            `class_weight`, whatever the weights are.

    Raises:
        ValueError: for weights that cannot be.
    """

    name: ClassVar[str] = "classification"
    head: ClassVar[str] = "classes"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    curves: ClassVar[Mapping[str, str]] = {"loss": "loss (nats)", "accuracy": "accuracy"}
    files: ClassVar[Mapping[str, bytes]] = {
        CONFUSION: PICTURE,
        CONFUSION_TABLE: re.escape(_CORNER.encode()) + b",|" + re.escape(",".join(_CELLS).encode()),
    }
    ranks: ClassVar[bool] = True

    class_weights: str | Mapping[str, float] | None = option(
        None,
        "",  # the help of segmentation's option has both
        metavar="WEIGHTS",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "class_weights", read_class_weights(self.class_weights))

    def targets(self, names: Sequence[str] | None = None) -> "Targets":
        from keras_vit.data.targets import CLASS_LABELS

        return CLASS_LABELS  # `evaluate` compares the names

    def check_source(self, source: "Source") -> None:
        source.check_labels()
        self._weights(source)

    def subset(self, source: "Source", count: int, seed: int) -> "Source":
        return source.subset(count, seed=seed)

    def size_in_words(self, count: int) -> str:
        return f"{count} class{'es' * (count != 1)}"

    def encoding(self, plan: "Plan", augmentation: Any) -> str:
        smooth = plan.recipe.loss == "softmax" and plan.recipe.label_smoothing
        return "one_hot" if augmentation.mixes or smooth or self.class_weights else "int"

    def loss(self, plan: "Plan", encoding: str) -> Any:
        """The loss without the weights of classes; `None` for the recipe's."""
        return None

    def compile_arguments(self, plan: "Plan", encoding: str, source: "Source") -> dict[str, Any]:
        arguments = plan.compile_arguments(encoding)
        arguments["loss"] = self.loss(plan, encoding) or arguments["loss"]
        if weights := self._weights(source):
            from keras_vit.training.losses import ClassWeightedLoss

            arguments["loss"] = ClassWeightedLoss(arguments["loss"], weights)
        return arguments

    def loss_in_words(self, source: "Source") -> str:
        return weights_in_words(self._weights(source), source.class_names)

    def _weights(self, source: "Source") -> list[float] | None:
        """The weight of each class."""
        if self.class_weights == BALANCED:
            return _balanced_weights(source)
        return ordered_weights(self.class_weights, source.class_names)

    def evaluate(
        self, model: Any, data: Any, split: str | None = None, *, names: Sequence[str] | None = None, **options: Any
    ) -> "Evaluation":
        from keras_vit.evaluation import evaluate

        return evaluate(model, data, split, class_names=names, **options)

    def result(self, evaluation: "Evaluation", run: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "test_accuracy": evaluation.accuracy,
            "classes": len(evaluation.class_names),
            **{name: run[name] for name in ("seconds", "split", "test_images")},
            "test_loss": evaluation.loss,
            "top5_accuracy": evaluation.top5_accuracy,
            "calibration_error": evaluation.calibration_error,
            **run,
            "per_class": [dataclasses.asdict(result) for result in evaluation.classes],
        }

    def write_files(self, evaluation: "Evaluation", folder: Path) -> None:
        from keras_vit.analysis.plots import draw_confusion

        write_confusion(evaluation, folder / CONFUSION_TABLE)
        draw_confusion(evaluation.labels, evaluation.predictions, evaluation.class_names, folder / CONFUSION)

    def panel(
        self,
        evaluation: "Evaluation",
        folder: Path | None = None,
        source: "Source | None" = None,
        split: str = "test",
    ) -> Panel:
        from keras_vit.evaluation.page import class_panel

        confusion = None if folder is None else png_uri((folder / CONFUSION).read_bytes())
        return class_panel(evaluation, [] if source is None else [_mistakes(evaluation, source, split)], confusion)

    def result_rows(self, facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        split = printable(facts["split"])
        measured = f"{facts['test_accuracy']:.4f} on {facts['test_images']:,} images, epoch {facts['best_epoch']}"
        yield f"{split} accuracy", measured
        numbers = {
            "top-5 accuracy": "top5_accuracy",
            f"{split} loss": "test_loss",
            "calibration error": "calibration_error",
        }
        for name, field in numbers.items():
            if facts.get(field) is not None:
                yield name, f"{facts[field]:.4f}"
        results = facts.get("per_class") or ()
        found = [(each["recall"], each["name"]) for each in results if each.get("recall") is not None]
        recall, name = min(found, default=(1.0, ""))
        if recall < 1:
            yield "weakest class", f"{printable(name)}, recall {recall:.4f}"

    def card(self, data: Mapping[str, Any], result: Mapping[str, Any]) -> CardParts:
        from keras_vit.evaluation.metrics import wilson_interval

        figures = [
            ("accuracy", "Accuracy", result["test_accuracy"]),
            ("top_5_accuracy", "Top-5 accuracy", result["top5_accuracy"]),
            ("loss", "Cross-entropy in nats", result["test_loss"]),
            ("expected_calibration_error", "Calibration error, 15 bins", result["calibration_error"]),
        ]
        low, high = wilson_interval(result["test_accuracy"], result["test_images"])
        return CardParts(
            hub_task=(CLASSIFICATION, "Image classification"),
            figures=[figure for figure in figures if figure[2] is not None],
            subject=f"A classifier of {result['classes']:,} classes",
            use="The answers are logits. `keras-vit predict photo.jpg --model FOLDER` names the classes.",
            note=f"Of that many images, Wilson's 95 % interval of the accuracy is {low:.4f} to {high:.4f}.",
            sections={"Classes": _classes(data, result)},
            answers=f"It answers every image with one of its {result['classes']:,} classes, also one that shows none "
            "of them.",
            limits=list(_limits(result)),
        )

    def answer(self, model: Any, outputs: Any, names: Sequence[str], top: int | None) -> list[dict[str, Any]]:
        import numpy as np

        from keras_vit.model.outputs import output_spec

        if not np.isfinite(outputs).all():
            raise ValueError("the model's scores are not finite, so its weights are damaged.")
        if output_spec(model).kind == "logits":
            powers = np.exp(outputs - outputs.max())
            outputs = powers / powers.sum()
        order = (-outputs).argsort(kind="stable")[: top or TOP]
        return [{"class": names[number], "probability": float(outputs[number])} for number in order]

    def answer_lines(self, answer: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        yield from columns([(f"  {item['probability']:7.2%}", printable(item["class"])) for item in answer])

    def answer_columns(self, names: Sequence[str], top: int | None) -> list[str]:
        places = ["", *(f"_{place}" for place in range(2, min(top or TOP, len(names)) + 1))]
        return [f"{name}{place}" for place in places for name in ("label", "probability")]

    def answer_cells(self, answer: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
        return [cell for item in answer for cell in (spreadsheet_cell(item["class"]), f"{item['probability']:.6g}")]

    def evaluation_lines(self, evaluation: "Evaluation", split: str, name: str) -> Iterator[str]:
        from keras_vit.evaluation.page import class_lines

        yield f"{split} accuracy {evaluation.accuracy:.4f} on {plural(evaluation.count, 'image')} of {name}"
        top5, real = evaluation.top5_accuracy, evaluation.real_accuracy
        rows = [] if top5 is None else [("top-5 accuracy", f"{top5:.4f}")]
        if real is not None:
            rows.append(("ReaL accuracy", f"{real:.4f} on {evaluation.real_count:,} images with such labels"))
        rows += [("loss", f"{evaluation.loss:.4f}"), ("calibration error", f"{evaluation.calibration_error:.4f}")]
        yield from (f"  {line}" for line in columns(rows))
        yield from class_lines(evaluation)


def _balanced_weights(source: "Source") -> list[float]:
    """Images / (classes * images of the class), so that their mean over the training images is 1."""
    import numpy as np

    counts = np.bincount(source.split("train").labels, minlength=len(source.class_names))
    return (counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))).tolist()


def write_confusion(evaluation: "Evaluation", path: Path) -> None:
    """Writes the confusion matrix with the names of the classes; rows are true ones, columns predicted ones.

    Above 1,000 classes it is a list of the cells that are not 0, since spreadsheets take no more columns. A name that a
    spreadsheet would take for a formula has `'` before it.
    """
    import numpy as np

    names = [spreadsheet_cell(name) for name in evaluation.class_names]
    rows: list[list[Any]]
    if len(names) > _MOST_COLUMNS:
        pairs, counts = np.unique([evaluation.labels, evaluation.predictions], axis=1, return_counts=True)
        cells = zip(*pairs.tolist(), counts.tolist(), strict=True)
        rows = [[*_CELLS], *([names[i], names[j], count] for i, j, count in cells)]
    else:
        rows = [[_CORNER, *names]]
        rows += [[name, *counts] for name, counts in zip(names, evaluation.confusion.tolist(), strict=True)]
    with atomic_write(path) as part, open(part, "w", -1, "utf-8", "backslashreplace", "") as file:
        csv.writer(file).writerows(rows)


def _mistakes(evaluation: "Evaluation", source: "Source", split: str) -> Section:
    """The surest wrong answers, as photos."""
    count = len(evaluation.mistakes())
    if not count:
        return Section("Mistakes", texts=["None."])
    order = ", the surest first" if count > 1 else ""
    note = "Look at the labels too: a sure mistake may be a wrong label."
    names, photos = evaluation.class_names, []
    for index in evaluation.mistakes()[:MOST_PHOTOS].tolist():
        true, predicted = names[evaluation.labels[index]], names[evaluation.predictions[index]]
        sure = f" ({100 * float(evaluation.confidences[index]):.0f} % sure)"
        photos.append((index, [(true, True), (", taken for ", False), (predicted, True), (sure, False)]))
    return photos_section(f"Mistakes: {count:,} of {evaluation.count:,}{order}", note, photos, source, split)


def _classes(data: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """The names, with what was measured of each."""
    results = result["per_class"]
    cells = {f"{result['split']} images": [f"{each['count']:,}" for each in results]}
    for name in ("recall", "precision"):
        cells[name] = ["none" if each[name] is None else f"{each[name]:.1%}" for each in results]
    return classes_section(data["class_names"], cells)


def _limits(result: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"Its confidence is off by {result['calibration_error']:.4f} in the mean (calibration error, arXiv:1706.04599)"
        ", measured on the same images. It was not calibrated."
    )
    measured = [each for each in result["per_class"] if each["count"]]
    worst = min(measured, key=lambda each: each["recall"])
    if worst["recall"] < 1:
        share, count = f"{worst['recall']:.1%}", worst["count"]
        yield f"It recognises {markdown_text(worst['name'])} least: {share} of {plural(count, 'image')}."
    if missing := len(result["per_class"]) - len(measured):
        yield f"Classes without an image in the {result['split']} set: {missing:,}. Nothing was measured of these."
