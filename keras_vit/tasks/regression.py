"""Regression: one or several numbers for each image, in the unit of the data.

Targets are standardised by the training images inside the model, after its head. The loss is that of standardised
numbers, so that the recipes' learning rates fit whatever the unit is. The best epoch is that of the highest R2.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np

from keras_vit.checks import ArgumentError, one_of
from keras_vit.pages.formatting import columns, markdown_text, plural, printable, spreadsheet_cell
from keras_vit.pages.html import PICTURE, Panel, Section, figure_uri, png_uri
from keras_vit.tasks.task import MOST_PHOTOS, CardParts, RowTask, option, photos_section

if TYPE_CHECKING:
    from keras_vit.data.source import Source
    from keras_vit.data.targets import Targets
    from keras_vit.evaluation.batched_predict import OutputRows
    from keras_vit.training.plan import Plan

LOSSES = ("mse", "mae", "huber")
PREDICTED = "predicted.png"
_HEADER = ("number", "R2", "mean absolute error", "root mean squared error", "mean", "deviation")
_MEANINGS = (
    "R2: the share of the variance that the model explains. 1 is best; 0 is as good as the mean of these images.",
    "Mean absolute error: how far answers are off in the mean, in the unit of the data.",
    "Root mean squared error: the same, with large errors counting more.",
    "Mean and deviation: of the true numbers, to compare the errors with.",
    "Loss: mean squared error, in standard deviations of the true numbers.",
)
_ALT = "predicted numbers over true ones; on the line they are equal"


@dataclasses.dataclass(frozen=True)
class NumberResult:
    """One number of an evaluation, in the unit of the data; `r2` is `None` where all true ones are equal."""

    name: str
    r2: float | None
    mean_absolute_error: float
    root_mean_squared_error: float
    mean: float
    deviation: float

    def row(self) -> tuple[str, ...]:
        """Its cells, by `_HEADER`."""
        numbers = (self.mean_absolute_error, self.root_mean_squared_error, self.mean, self.deviation)
        share = "none" if self.r2 is None else f"{self.r2:.4f}"
        return (printable(self.name), share, *(f"{number:.5g}" for number in numbers))


@dataclasses.dataclass(frozen=True, eq=False)
class NumberEvaluation:
    """What was measured of numbers.

    Attributes:
        loss: mean squared error in standard deviations of the true numbers.
        class_names: names of the K numbers.
        labels: float32 `(n, K)`, the true numbers.
        predictions: float32 `(n, K)`.
        seconds: duration.
    """

    loss: float
    class_names: tuple[str, ...]
    labels: np.ndarray
    predictions: np.ndarray
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """Number of images."""
        return len(self.labels)

    @property
    def r2(self) -> float | None:
        """The mean over the numbers that differ between images."""
        found = [each.r2 for each in self.classes if each.r2 is not None]
        return float(np.mean(found)) if found else None

    @property
    def classes(self) -> tuple[NumberResult, ...]:
        """Each number, in order."""
        from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

        results = []
        labels, predictions = (values.astype("float64").T for values in (self.labels, self.predictions))
        for name, true, found in zip(self.class_names, labels, predictions, strict=True):
            share = float(r2_score(true, found)) if len(true) > 1 and true.std() > 0 else None
            errors = float(mean_absolute_error(true, found)), float(root_mean_squared_error(true, found))
            results.append(NumberResult(name, share, *errors, float(true.mean()), float(true.std())))
        return tuple(results)

    def summary(self) -> dict[str, Any]:
        """The single numbers and each target, ready for JSON."""
        facts = {field: getattr(self, field) for field in ("r2", "loss", "count", "seconds")}
        return facts | {"numbers": [dataclasses.asdict(result) for result in self.classes]}

    def panel(self, picture: str | None = None, sections: Sequence[Section] = ()) -> Panel:
        """What a page shows; `picture` is the address of that of predicted over true numbers, if it was drawn."""
        from keras_vit.analysis.plots import draw_predicted

        errors = [f"{printable(each.name)} is off by {each.mean_absolute_error:.4g}" for each in self.classes[:3]]
        others = "" if len(self.classes) < 4 else f" {len(self.classes) - 3} more numbers are in the table."
        figures = [(f"mean absolute error, {each.name}", f"{each.mean_absolute_error:.4g}") for each in self.classes]
        r2 = "none" if self.r2 is None else f"{self.r2:.4f}"
        counts = [("R2", r2), ("loss", f"{self.loss:.4f}"), ("images", f"{self.count:,}")]
        drawn = picture or figure_uri(draw_predicted(self.labels, self.predictions, self.class_names))
        note = "Each point is an image. On the line the answer is right."
        return Panel(
            f"In the mean over {plural(self.count, 'image')}, {', '.join(errors)}.{others}",
            [*figures[:3], *counts],
            _MEANINGS,
            [
                Section("Predicted and true", note, picture=drawn, alt=_ALT),
                Section("Numbers", header=_HEADER, rows=[each.row() for each in self.classes]),
                *sections,
            ],
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression(RowTask):
    """Numbers for each image: `keras_vit.finetune(table, out, task="regression")`.

    Args:
        columns: of the table that are learned; by default all except `path` and `split`.
        loss: of standardised numbers: `"mse"`, mean squared error; `"mae"`, mean absolute error, which a few far-off
            targets disturb less; or `"huber"`, squared below one standard deviation and absolute above.
    """

    name: ClassVar[str] = "regression"
    head: ClassVar[str] = "numbers"
    metrics: ClassVar[tuple[str, ...]] = ("r2",)
    augmentation: ClassVar[str] = "flip"  # a crop changes the sizes that numbers may be of
    curves: ClassVar[Mapping[str, str]] = {"loss": "loss", "r2": "R2"}
    files: ClassVar[Mapping[str, bytes]] = {PREDICTED: PICTURE}

    loss: Annotated[str, one_of(LOSSES)] = option(
        "mse",
        "of regression: mse (default), mae or huber, of standardized numbers; of contrastive: softmax or sigmoid, by "
        "default that of the weights; of depth: sig (default) or silog",
        metavar="LOSS",
    )

    def targets(self, names: Sequence[str] | None = None) -> "Targets":
        from keras_vit.data.row_targets import NumberTargets

        return NumberTargets(self.columns if names is None else names)

    def size_in_words(self, count: int) -> str:
        return f"{count} number{'s' * (count != 1)}"

    def prepare(self, model: Any, plan: "Plan", source: "Source", head: str) -> Any:
        from keras_vit.data.row_targets import mean_and_deviation
        from keras_vit.model.layer_access import UNITS, layer_named
        from keras_vit.model.outputs import initialize_head, with_units

        means, deviations = mean_and_deviation(source)
        initialize_head(model, 0.0, head)  # the answer is the mean then
        return model if layer_named(model, UNITS) else with_units(model, deviations, means)

    def encoding(self, plan: "Plan", augmentation: Any) -> str:
        if augmentation.mixes:
            raise ArgumentError(
                "MixUp and CutMix mix two images, and there is no number for the mixture.\n"
                f"Received: an augmentation with one of them, for {self.name}. Pass another `augmentation`, as "
                "'inception'."
            )
        return "int"

    def compile_arguments(self, plan: "Plan", encoding: str, source: "Source") -> dict[str, Any]:
        from keras_vit.data.row_targets import mean_and_deviation
        from keras_vit.training.losses import StandardizedLoss, StandardizedR2Score

        means, deviations = mean_and_deviation(source)
        r2 = StandardizedR2Score(means, deviations, name=self.metrics[0])
        return plan.compile_arguments("one_hot", [r2]) | {"loss": StandardizedLoss(self.loss, deviations)}

    def measure(self, found: "OutputRows") -> NumberEvaluation:
        return measure_numbers(found.outputs, found.targets, found.names, found.seconds)

    def result(self, evaluation: NumberEvaluation, run: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "test_r2": evaluation.r2,
            "classes": len(evaluation.class_names),
            **run,
            "test_loss": evaluation.loss,
            "per_number": [dataclasses.asdict(result) for result in evaluation.classes],
        }

    def write_files(self, evaluation: NumberEvaluation, folder: Path) -> None:
        from keras_vit.analysis.plots import draw_predicted

        draw_predicted(evaluation.labels, evaluation.predictions, evaluation.class_names, folder / PREDICTED)

    def panel(
        self,
        evaluation: NumberEvaluation,
        folder: Path | None = None,
        source: "Source | None" = None,
        split: str = "test",
    ) -> Panel:
        picture = None if folder is None else png_uri((folder / PREDICTED).read_bytes())
        return evaluation.panel(picture, [] if source is None else [_largest_errors(evaluation, source, split)])

    def result_rows(self, facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        r2 = "none" if facts["test_r2"] is None else f"{facts['test_r2']:.4f}"
        yield f"{printable(facts['split'])} R2", f"{r2} on {facts['test_images']:,} images, epoch {facts['best_epoch']}"
        for each in facts["per_number"]:
            yield f"error of {printable(each['name'])}", f"{each['mean_absolute_error']:.4g} in the mean"

    def card(self, data: Mapping[str, Any], result: Mapping[str, Any]) -> CardParts:
        numbers = [NumberResult(**each) for each in result["per_number"]]
        figures = [("r_squared", "R2, mean over the numbers", result["test_r2"])]
        for each in numbers:
            name = markdown_text(each.name)
            figures.append(("mae", f"Mean absolute error of {name}", each.mean_absolute_error))
            figures.append(("rmse", f"Root mean squared error of {name}", each.root_mean_squared_error))
        names = ", ".join(markdown_text(each.name) for each in numbers)
        return CardParts(
            hub_task=("image-regression", "Image regression"),
            figures=[figure for figure in figures if figure[2] is not None],
            subject=f"A model of {self.size_in_words(len(numbers))} for each image ({names})",
            use="The answers are in the unit of the training data. `keras-vit predict photo.jpg --model FOLDER` names "
            "them.",
            note="The errors are in the unit of the data.",
            sections={},
            answers=f"It answers every image with {self.size_in_words(len(numbers))}, also one of something else.",
            limits=["It says nothing of how sure it is of a number."],
        )

    def answer(self, model: Any, outputs: Any, names: Sequence[str], top: int | None) -> list[dict[str, Any]]:
        if not np.isfinite(outputs).all():
            raise ValueError("the model's numbers are not finite, so its weights are damaged.")
        return [{"name": name, "value": float(value)} for name, value in zip(names, outputs, strict=True)]

    def answer_lines(self, answer: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        yield from columns([(f"  {printable(item['name'])}", _exact(item["value"])) for item in answer])

    def answer_columns(self, names: Sequence[str], top: int | None) -> list[str]:
        return [f"{name}_predicted" if name in ("path", "status") else spreadsheet_cell(name) for name in names]

    def answer_cells(self, answer: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
        return [_exact(item["value"]) for item in answer]

    def evaluation_lines(self, evaluation: NumberEvaluation, split: str, name: str) -> Iterator[str]:
        r2 = "none" if evaluation.r2 is None else f"{evaluation.r2:.4f}"
        yield f"{split} R2 {r2} on {plural(evaluation.count, 'image')} of {name}"
        yield ""
        yield from columns([_HEADER, *(result.row() for result in evaluation.classes)])


def _exact(value: float) -> str:
    """A float32 in the fewest digits that tell it from all others."""
    number = np.float32(value)
    plain = 1e-4 <= abs(number) < 1e16 or number == 0
    return np.format_float_positional(number, trim="-") if plain else str(number)


def measure_numbers(
    predictions: np.ndarray, labels: np.ndarray, class_names: Sequence[str], seconds: float = 0.0
) -> NumberEvaluation:
    """What `NumberEvaluation` says, from numbers `(n, K)`."""
    errors = predictions.astype("float64") - labels
    deviations = labels.std(axis=0, dtype="float64")
    loss = float(np.mean((errors / np.where(deviations > 0, deviations, 1)) ** 2))
    return NumberEvaluation(loss, tuple(class_names), labels, predictions, seconds)


def _largest_errors(evaluation: NumberEvaluation, source: "Source", split: str) -> Section:
    """The photos of the largest errors, in standard deviations."""
    errors = evaluation.predictions - evaluation.labels
    sizes = np.abs(errors / np.maximum(evaluation.labels.std(axis=0), 1e-30))
    photos = []
    for index in (-sizes.max(axis=1)).argsort(kind="stable")[:MOST_PHOTOS].tolist():
        place = int(sizes[index].argmax())
        name = printable(evaluation.class_names[place])
        true, found = evaluation.labels[index, place], evaluation.predictions[index, place]
        photos.append((index, [(f"{name} {true:.4g}", True), (", predicted ", False), (f"{found:.4g}", True)]))
    note = "Look at the data too: a large error may be a wrong target."
    return photos_section("Largest errors", note, photos, source, split)
