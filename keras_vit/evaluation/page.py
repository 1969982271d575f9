"""The page of an evaluation or a probe, `index.html`, which needs no server and no other file."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_vit.analysis.plots import draw_confusion
from keras_vit.annotations import FilePath
from keras_vit.checks import check_installed
from keras_vit.evaluation.metrics import ClassResult, Evaluation, wilson_interval
from keras_vit.evaluation.probes import Probe, shots_in_words
from keras_vit.files import expand_path
from keras_vit.pages.formatting import WIDTH, columns, plural, printable
from keras_vit.pages.html import PAGE, Panel, Section, check_page, figure_uri, write_page
from keras_vit.version import __version__

PROBE_COLUMNS = ("trained on", "accuracy", "deviation", "trials", "chosen")
_CONFUSION_ALT = "confusion matrix: rows are true classes, columns predicted ones"
_MOST_CLASSES, _FEW_CLASSES = 100, 20  # that a terminal is given
_MEANINGS = (
    "Accuracy: the share of images whose class the model names.",
    "Top-5 accuracy: the share of images whose class is among the model's five best.",
    "Calibration error: how far the model's confidence is from how often it is right. 0 % is best.",
    "Loss: how little the model believes in the true class, as cross-entropy. 0 is best.",
    "Recall of a class: the share of its images that the model finds.",
    "Precision of a class: the share of the answers with this class that are right.",
)


def write_evaluation_page(result: Any, out: FilePath, title: str = "Evaluation") -> Path:
    """Writes the results as a page: the figures, and of classes every one and the confusion matrix.

    Example:
        >>> result = keras_vit.evaluate(model, photos, "test")
        >>> keras_vit.write_evaluation_page(result, "page", title="Shapes").name
        'index.html'

    Args:
        result: result of `keras_vit.evaluate` or `keras_vit.probe`, or of another task, which has a method `panel`.
        out: folder, which is created if needed. The `index.html` of an earlier call in it is replaced.
        title: the heading.

    Returns:
        The path of the page.

    Raises:
        TypeError: for another type of result.
        FileExistsError: if something else than a page of this package is at `index.html`.
        ImportError: without the extra `train`.
    """
    check_installed("matplotlib", "it draws the confusion matrix", "train")
    check_installed("jinja2", "it fills in the page", "train")
    if not (isinstance(result, (Evaluation, Probe)) or hasattr(result, "panel")):
        raise TypeError(
            f"`result` must be an `Evaluation` or a `Probe`.\nReceived: an object of type {type(result).__name__}."
        )
    path = expand_path(out) / PAGE
    check_page(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_page(
        path,
        "report",
        title=title,
        subtitle=f"measured by keras_vit {__version__}",
        panel=result.panel() if hasattr(result, "panel") else class_panel(result),
    )
    return path


def class_panel(
    result: Evaluation | Probe,
    sections: Sequence[Section] = (),
    confusion: str | None = None,
) -> Panel:
    """The panel of classes.

    Args:
        result: what was measured.
        sections: before that of the classes; of a probe its trials come first.
        confusion: address of the picture of the confusion matrix, if it was drawn before.
    """
    drawn = confusion or figure_uri(draw_confusion(result.labels, result.predictions, result.class_names))
    note = "A row is a true class, a column what the model says. Mistakes are off the diagonal."
    header = ("class", "number", "images", "recall", "precision")
    return Panel(
        _answer(result),
        _figures(result),
        _MEANINGS,
        [
            *([_probe_section(result)] if isinstance(result, Probe) else []),
            *sections,
            Section("Classes", header=header, rows=class_rows(result.classes)),
            Section("Confusion matrix", note, picture=drawn, alt=_CONFUSION_ALT),
        ],
    )


def answer_of(result: Evaluation) -> str:
    """What an evaluation came to, in a sentence or two."""
    right = round(result.accuracy * result.count)
    low, high = map(_percent, wilson_interval(result.accuracy, result.count))
    answer = f"The model names the class of {right:,} of {plural(result.count, 'image')}: {_percent(result.accuracy)}"
    answer += f", with a 95 % interval of {low} to {high} (Wilson)."
    found = [(each.recall, each.name) for each in result.classes if each.recall is not None]
    recall, name = min(found, key=lambda pair: pair[0], default=(1.0, ""))
    return f"{answer} The weakest class is {name}: it finds {_percent(recall)} of its images." if recall < 1 else answer


def figures_of(result: Evaluation) -> list[tuple[str, str]]:
    """The single numbers of an evaluation that exist, as `(name, text)`."""
    shares = {
        "accuracy": result.accuracy,
        "top-5 accuracy": result.top5_accuracy,
        "ReaL accuracy": result.real_accuracy,
        "calibration error": result.calibration_error,
    }
    counts = ("images", f"{result.count:,}"), ("classes", f"{len(result.class_names):,}")
    found = [(name, _percent(share)) for name, share in shares.items() if share is not None]
    return [*found, ("loss (nats)", f"{result.loss:.4f}"), *counts]


def class_rows(classes: Sequence[ClassResult]) -> list[tuple[str, ...]]:
    """A row for each class: name, number, images, recall and precision. A picture may show the number for the name."""
    return [
        (result.name, str(number), f"{result.count:,}", _percent(result.recall), _percent(result.precision))
        for number, result in enumerate(classes)
    ]


def class_lines(result: Evaluation | Probe) -> Iterator[str]:
    """Every class, or the weakest of more than a person reads."""
    classes: Sequence[Any] = result.classes
    yield ""
    if len(classes) > _MOST_CLASSES:
        found = [each for each in classes if each.recall is not None]
        classes = sorted(found, key=lambda each: each.recall)[:_FEW_CLASSES]
        yield f"the {len(classes)} weakest of {len(result.classes):,} classes; --json and --page have them all"
    yield from columns([("class", "images", "recall", "precision"), *map(_class_row, classes)], WIDTH)


def _class_row(result: Any) -> tuple[str, ...]:
    parts = ("none" if part is None else f"{part:.4f}" for part in (result.recall, result.precision))
    return printable(result.name), f"{result.count:,}", *parts


def probe_rows(result: Probe, share: Callable[[float], str]) -> list[tuple[str, ...]]:
    """A row for each number of shots: shots, mean, deviation over seeds, trials, and the chosen settings.

    Args:
        result: of the probe.
        share: writes the mean and the deviation.
    """
    rows: list[tuple[str, ...]] = []
    for shots in result.accuracies:
        deviation = result.deviation(shots)
        trials = [trial for trial in result.trials if trial.shots == shots]
        chosen = ", ".join(f"{name} {value:g}" for name, value in trials[0].settings.items())
        spread = "none" if deviation is None else share(deviation)
        rows.append((shots_in_words(shots), share(result.mean(shots)), spread, str(len(trials)), chosen or "none"))
    return rows


def _figures(result: Evaluation | Probe) -> list[tuple[str, str]]:
    if isinstance(result, Evaluation):
        return figures_of(result)
    return [
        (f"accuracy, {_most_shots(result)}", _percent(result.accuracy)),
        ("training images", f"{result.train_images:,}"),
        ("test images", f"{result.test_images:,}"),
        ("classes", f"{len(result.class_names):,}"),
    ]


def _answer(result: Evaluation | Probe) -> str:
    if isinstance(result, Evaluation):
        return answer_of(result)
    share, images = _percent(result.accuracy), plural(result.test_images, "test image")
    return f"A classifier on the model's features names the class of {share} of {images}, with {_most_shots(result)}."


def _probe_section(result: Probe) -> Section:
    """The trials, which only the page of a probe has."""
    skipped, texts = ", ".join(map(str, result.skipped)), []
    if skipped:
        texts.append(f"Left out, as a class has fewer training images: {skipped} shots.")
    if (trials := len(result.accuracies[result.trials[-1].shots])) > 1:
        texts.append(
            f"With {_most_shots(result)}. Recall, precision and the confusion matrix are of {trials} choices together."
        )
    note = "A simple classifier was trained on the model's features."
    return Section("Probes", note, PROBE_COLUMNS, probe_rows(result, _percent), texts=texts)


def _most_shots(result: Probe) -> str:
    return shots_in_words(result.trials[-1].shots)


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.2f} %"
