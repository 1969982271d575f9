"""`report.html`: a run on one page that needs nothing else, neither a network nor the files beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.data.source import Source
from keras_vit.evaluation.metrics import Evaluation
from keras_vit.evaluation.page import answer_of, class_rows, figures_of
from keras_vit.images.validation import BadImage
from keras_vit.pages.formatting import duration, printable_json
from keras_vit.pages.html import picture_uri, png_uri, write_page

_MOST_MISTAKES = 24
_THUMBNAIL = 160  # pixels, the longer side


def write_report(
    path: FilePath,
    title: str,
    result: dict[str, Any],
    evaluation: Evaluation,
    curves: Path,
    confusion: Path,
    mistakes: Sequence[dict[str, Any]] = (),
    bad_images: Sequence[BadImage] = (),
    config: dict[str, Any] | None = None,
) -> None:
    """Writes the page.

    Args:
        path: of the file.
        title: its heading.
        result: what `result.json` holds.
        evaluation: of the model.
        curves: path of the PNG of the curves.
        confusion: path of that of the confusion matrix.
        mistakes: as `find_mistakes` gives them.
        bad_images: that were left out.
        config: what `config.json` holds.
    """
    measured = f"measured on the {result['split']} set"
    epochs = str(result["epochs"]) + (f", stopped {result['stopped']}" if "stopped" in result else "")
    parameters, time = ("parameters", f"{result['parameters']:,}"), ("time in all", duration(result["seconds"]))
    write_page(
        path,
        "report",
        title=title,
        subtitle=f"recipe {result['recipe']}; best epoch {result['best_epoch']} of {epochs}; {measured}",
        answer=answer_of(evaluation),
        figures=[*figures_of(evaluation), parameters, time],
        curves=png_uri(curves.read_bytes()),
        classes=class_rows(evaluation.classes),
        confusion=png_uri(confusion.read_bytes()),
        num_images=evaluation.count,
        num_mistakes=len(evaluation.mistakes()),
        mistakes=[mistake | {"picture": picture_uri(mistake["pixels"], _THUMBNAIL)} for mistake in mistakes],
        bad_images=[(image.path, image.reason) for image in bad_images],
        configuration=printable_json(config or {}).split("\n"),
    )


def find_mistakes(
    source: Source, split: str, evaluation: Evaluation, limit: int = _MOST_MISTAKES
) -> list[dict[str, Any]]:
    """The surest wrong answers: `true`, `predicted`, `confidence`, `place` and `pixels`."""
    found = []
    for index in evaluation.mistakes()[:limit].tolist():
        names = evaluation.class_names
        found.append(
            {
                "true": names[evaluation.labels[index]],
                "predicted": names[evaluation.predictions[index]],
                "confidence": float(evaluation.confidences[index]),
                "place": source.split(split).row(index).get("path") or f"image {index}",
                "pixels": source.pixels(split, index),
            }
        )
    return found
