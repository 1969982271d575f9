"""`report.html`: a run on one page that needs nothing else, neither a network nor other files."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.images.validation import BadImage
from keras_vit.pages.formatting import duration, printable_json
from keras_vit.pages.html import Panel, Section, png_uri, write_page


def write_report(
    path: FilePath,
    title: str,
    result: dict[str, Any],
    panel: Panel,
    curves: Path,
    bad_images: Sequence[BadImage] = (),
    config: dict[str, Any] | None = None,
) -> None:
    """Writes the page.

    Args:
        path: of the file.
        title: its heading.
        result: what `result.json` holds.
        panel: what the task shows.
        curves: path of the PNG of the curves.
        bad_images: that were left out.
        config: what `config.json` holds.
    """
    measured = f"measured on the {result['split']} set"
    epochs = str(result["epochs"]) + (f", stopped {result['stopped']}" if "stopped" in result else "")
    parameters, time = ("parameters", f"{result['parameters']:,}"), ("time in all", duration(result["seconds"]))
    metric = next(iter(result)).removeprefix("test_").replace("_", " ")
    words = f"loss, {metric}, learning rate and gradient norm by epoch"
    write_page(
        path,
        "report",
        title=title,
        subtitle=f"recipe {result['recipe']}; best epoch {result['best_epoch']} of {epochs}; {measured}",
        panel=dataclasses.replace(panel, figures=[*panel.figures, parameters, time]),
        curves=Section("Training", picture=png_uri(curves.read_bytes()), alt=words),
        bad_images=[(image.path, image.reason) for image in bad_images],
        configuration=printable_json(config or {}).split("\n"),
    )
