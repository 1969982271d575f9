"""`report.html`: a run on one page that needs nothing else, neither a network nor the files beside it.

`report.html.jinja` has its layout; every value in it is escaped.
"""

import base64
import importlib.resources
import io
import json
from pathlib import Path

from keras_vit.escaping import printable
from keras_vit.files import replacing
from keras_vit.runs.progress import duration

_MOST_MISTAKES = 24
_THUMBNAIL = 160  # pixels, the longer side


def write_report(path, title, result, evaluation, curves, confusion, mistakes=(), bad_images=(), config=None):
    """Writes the page.

    Args:
        path: of the file.
        title: its heading.
        result: what `result.json` holds.
        evaluation: an `Evaluation`.
        curves: path of the PNG of the curves.
        confusion: path of that of the confusion matrix.
        mistakes: dicts as of `find_mistakes`.
        bad_images: `BadImage` records.
        config: what `config.json` holds.
    """
    page = _template().render(
        title=title,
        result=result,
        figures=_figures(result, evaluation),
        curves=_data_uri(curves.read_bytes()),
        confusion=_data_uri(confusion.read_bytes()),
        classes=_class_rows(evaluation),
        num_images=evaluation.count,
        num_mistakes=len(evaluation.mistakes()),
        mistakes=[mistake | _shown(mistake) for mistake in mistakes],
        bad_images=[(image.path, image.reason) for image in bad_images],
        configuration=json.dumps(config or {}, indent=2, ensure_ascii=False),
    )
    with replacing(path) as part:  # names of files may hold bytes that are no letters
        Path(part).write_text(page, encoding="utf-8", errors="backslashreplace")


def find_mistakes(source, split, evaluation, limit=_MOST_MISTAKES) -> list[dict]:
    """The surest wrong answers: `index`, `true`, `predicted`, `confidence`, `path` if known, and `pixels`."""
    found = []
    for index in evaluation.mistakes()[:limit].tolist():
        names, row = evaluation.class_names, source.split(split).row(index)
        found.append(
            {
                "index": index,
                "true": names[evaluation.labels[index]],
                "predicted": names[evaluation.predictions[index]],
                "confidence": float(evaluation.confidences[index]),
                "path": row.get("path"),
                "pixels": source.pixels(split, index),
            }
        )
    return found


def _template():
    import jinja2

    text = importlib.resources.files("keras_vit.runs").joinpath("report.html.jinja").read_text("utf-8")
    environment = jinja2.Environment(
        autoescape=True,
        finalize=_without_controls,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(text)


def _without_controls(value):
    """What the page shows of a value: of a text, lines without control characters, as names of files may have."""
    if type(value) is not str or value.isprintable():
        return value
    return "\n".join(printable(line) for line in value.split("\n"))


def _figures(result, evaluation):
    """The numbers at the top of the page, each with its name."""
    return [
        (f"{evaluation.accuracy:.2%}", f"accuracy on {evaluation.count:,} images of the {result['split']} set"),
        *([(f"{evaluation.top5_accuracy:.2%}", "in the top 5")] if evaluation.top5_accuracy is not None else []),
        (f"{evaluation.loss:.3f}", "loss (nats)"),
        (f"{evaluation.calibration_error:.3f}", "calibration error"),
        (len(evaluation.class_names), "classes"),
        (f"{result['parameters']:,}", "parameters"),
        (duration(result["seconds"]), "in all"),
    ]


def _class_rows(evaluation):
    return [
        (result.name, number, f"{result.count:,}", _percent(result.recall), _percent(result.precision))
        for number, result in enumerate(evaluation.classes)
    ]


def _percent(part):
    return "none" if part is None else f"{part:.1%}"


def _shown(mistake):
    """The picture of a mistake, and where the whole one is."""
    return {"picture": _thumbnail(mistake["pixels"]), "place": mistake["path"] or f"number {mistake['index']}"}


def _thumbnail(pixels):
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3])
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return _data_uri(buffer.getvalue())


def _data_uri(png):
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
