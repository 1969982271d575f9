"""`index.html` of an evaluation or a probe: one file that needs no server, no network and no other file.

`evaluation.html.jinja` has the layout; every value in it is escaped.
"""

import base64
import importlib.resources
import tempfile
from pathlib import Path

from keras_vit.analysis.plots import draw_confusion
from keras_vit.annotations import FilePath
from keras_vit.checks import check_installed
from keras_vit.escaping import printable
from keras_vit.evaluation.metrics import Evaluation
from keras_vit.evaluation.probes import Probe, shots_in_words
from keras_vit.files import replacing
from keras_vit.version import __version__

PAGE = "index.html"


def write_evaluation_page(result: Evaluation | Probe, out: FilePath, title: str = "Evaluation") -> Path:
    """Writes what was measured as a page: the figures, every class, and the confusion matrix.

    Args:
        result: as `keras_vit.evaluate` or `keras_vit.probe` gives it.
        out: a folder, which is made if it is not there. An `index.html` in it is replaced.
        title: the heading.

    Returns:
        The path of the page.

    Raises:
        TypeError: for another result.
        ImportError: without the extra `train`.
    """
    check_installed("matplotlib", "it draws the confusion matrix", "train")
    check_installed("jinja2", "it fills in the page", "train")
    if not isinstance(result, (Evaluation, Probe)):
        raise TypeError(
            f"`result` must be an `Evaluation` or a `Probe`.\nReceived: an object of type {type(result).__name__}."
        )
    import jinja2

    text = importlib.resources.files("keras_vit.evaluation").joinpath("evaluation.html.jinja").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(text).render(
        title=printable(title),
        version=__version__,
        figures=_figures(result),
        probe=_probe_facts(result) if isinstance(result, Probe) else None,
        classes=[_class_row(each) for each in result.classes],
        confusion=_picture(result),
    )
    path = Path(out) / PAGE
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        Path(part).write_text(page, encoding="utf-8", errors="backslashreplace")
    return path


def figures_of(result: Evaluation) -> list[tuple[str, str]]:
    """The single numbers of an evaluation as `(name, text)`, without those that there are not."""
    shares = {
        "accuracy": result.accuracy,
        "top-5 accuracy": result.top5_accuracy,
        "ReaL accuracy": result.real_accuracy,
    }
    found = [(name, f"{share:.4f}") for name, share in shares.items() if share is not None]
    return [*found, ("loss", f"{result.loss:.4f}"), ("calibration error", f"{result.calibration_error:.4f}")]


def probe_rows(result: Probe) -> list[tuple[str, ...]]:
    """A row for each number of shots: its words, the mean, the deviation over seeds, and what was chosen."""
    rows: list[tuple[str, ...]] = []
    for shots in result.accuracies:
        deviation = result.deviation(shots)
        trials = [trial for trial in result.trials if trial.shots == shots]
        chosen = ", ".join(f"{name} {value:g}" for name, value in trials[0].settings.items())
        spread = "none" if deviation is None else f"{deviation:.4f}"
        rows.append((shots_in_words(shots), f"{result.mean(shots):.4f}", spread, str(len(trials)), chosen or "none"))
    return rows


PROBE_COLUMNS = ("trained on", "accuracy", "deviation", "trials", "chosen")


def _figures(result):
    if isinstance(result, Evaluation):
        return [*figures_of(result), ("images", f"{result.count:,}"), ("classes", len(result.class_names))]
    counts = [("training images", f"{result.train_images:,}"), ("test images", f"{result.test_images:,}")]
    return [
        (f"accuracy, {_most_shots(result)}", f"{result.accuracy:.4f}"),
        *counts,
        ("classes", len(result.class_names)),
    ]


def _probe_facts(result):
    """What the page says of a probe alone."""
    skipped = ", ".join(map(str, result.skipped))
    most, trials = _most_shots(result), len(result.accuracies[result.trials[-1].shots])
    return {"header": PROBE_COLUMNS, "rows": probe_rows(result), "skipped": skipped, "most": most, "trials": trials}


def _most_shots(result):
    return shots_in_words(result.trials[-1].shots)


def _class_row(result):
    parts = ("none" if part is None else f"{part:.1%}" for part in (result.recall, result.precision))
    return printable(result.name), f"{result.count:,}", *parts


def _picture(result):
    """The confusion matrix as a `data:` address."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "confusion.png"
        draw_confusion(result.confusion, result.class_names, path)
        return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
