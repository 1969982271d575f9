"""What a run says at its end, and again when its command is given once more: what it came to, and what to do next."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_vit.pages.formatting import columns, duration, printable
from keras_vit.runs.own_files import REPORT

_NUMBERS = {"top-5 accuracy": "top5_accuracy", "loss": "test_loss", "calibration error": "calibration_error"}


def result_lines(folder: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    """A table of results and the next command; `facts` are those of `result.json`, of which old runs lack some."""
    split = printable(facts["split"])
    measured = f"{facts['test_accuracy']:.4f} on {facts['test_images']:,} images, epoch {facts['best_epoch']}"
    rows = [(f"{split} accuracy", measured)]
    numbers = {
        "top-5 accuracy": "top5_accuracy",
        f"{split} loss": "test_loss",
        "calibration error": "calibration_error",
    }
    rows += [(name, f"{facts[field]:.4f}") for name, field in numbers.items() if facts.get(field) is not None]
    if weakest := _weakest(facts.get("per_class") or ()):
        rows.append(("weakest class", weakest))
    if "seconds" in facts:
        rows.append(("time", duration(facts["seconds"])))
    report = folder / REPORT if (folder / REPORT).is_file() else folder
    yield ""
    yield "Results"
    yield from (f"  {line}" for line in columns([*rows, ("report", printable(report))]))
    yield ""
    yield "Next"
    yield f"  keras-vit predict PHOTO --model {shlex.quote(printable(folder))}"


def _weakest(classes: Any) -> str | None:
    """The class of which fewest images were found; `None` where all were."""
    found = [(each["recall"], each["name"]) for each in classes if each.get("recall") is not None]
    recall, name = min(found, default=(1.0, ""))
    return f"{printable(name)}, recall {recall:.4f}" if recall < 1 else None
