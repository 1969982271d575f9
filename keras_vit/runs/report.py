"""`report.html`: a run on one page that needs nothing else, neither a network nor the files beside it."""

import base64
import html
import io
import json

from keras_vit.runs.progress import duration

_MOST_MISTAKES = 24
_THUMBNAIL = 160  # pixels, the longer side
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c2430; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; border-bottom: 1px solid #d5dae1; }
.sub, figcaption { color: #5b6675; } img { max-width: 100%; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.5rem 0; }
.figure { border: 1px solid #d5dae1; border-radius: 8px; padding: .6rem 1.2rem; }
.figure b { display: block; font-size: 1.6rem; font-variant-numeric: tabular-nums; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .9rem .2rem 0; text-align: right; border-bottom: 1px solid #eceff3; }
th:first-child, td:first-child { text-align: left; overflow-wrap: anywhere; }
.mistakes { display: grid; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); gap: 1rem; }
.mistakes figure { margin: 0; } .mistakes img { height: 9rem; image-rendering: pixelated; background: #f2f4f7; }
figcaption { font-size: .85rem; overflow-wrap: anywhere; } pre { background: #f6f8fa; padding: 1rem; overflow-x: auto; }
""".strip()


def write_report(path, title, result, evaluation, pictures, mistakes=(), bad_images=(), config=None):
    """Writes the page.

    Args:
        path: of the file.
        title: its heading.
        result: what `result.json` holds.
        evaluation: an `Evaluation`.
        pictures: paths of the PNGs of the curves and of the confusion matrix.
        mistakes: dicts as of `find_mistakes`.
        bad_images: `BadImage` records.
        config: what `config.json` holds.
    """
    curves, confusion = (f'<img alt="{name}" src="{_png_file(picture)}">' for name, picture in pictures.items())
    sections = [
        _headline(title, result, evaluation),
        _section("Curves", curves),
        _section("Confusion matrix", confusion),
        _section("Classes", _class_table(evaluation)),
        _section(*_mistakes(mistakes, evaluation)),
    ]
    if bad_images:
        rows = [(image.path, image.reason) for image in bad_images]
        sections.append(_section("Images that were left out", _table(("file", "reason"), rows)))
    text = html.escape(json.dumps(config or {}, indent=2, ensure_ascii=False))
    shown = f"<details><summary>everything that decides the run</summary><pre>{text}</pre></details>"
    sections.append(_section("Configuration", shown))
    page = (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n'
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )
    path.write_text(page, encoding="utf-8", errors="backslashreplace")


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


def _headline(title, result, evaluation):
    figures = [
        (f"{evaluation.accuracy:.2%}", f"accuracy on {evaluation.count:,} images of the {result['split']} set"),
        *([(f"{evaluation.top5_accuracy:.2%}", "in the top 5")] if evaluation.top5_accuracy is not None else []),
        (f"{evaluation.loss:.3f}", "loss (nats)"),
        (f"{evaluation.calibration_error:.3f}", "calibration error"),
        (str(len(evaluation.class_names)), "classes"),
        (f"{result['parameters']:,}", "parameters"),
        (duration(result["seconds"]), "in all"),
    ]
    boxes = "".join(f'<div class="figure"><b>{value}</b>{html.escape(name)}</div>' for value, name in figures)
    told = f"recipe {result['recipe']}; best epoch {result['best_epoch']} of {result['epochs']}"
    return f'<h1>{html.escape(title)}</h1>\n<p class="sub">{html.escape(told)}</p>\n<div class="figures">{boxes}</div>'


def _class_table(evaluation):
    rows = [
        (result.name, number, f"{result.count:,}", _part(result.recall), _part(result.precision))
        for number, result in enumerate(evaluation.classes)
    ]
    return _table(("class", "number", "images", "recall", "precision"), rows)


def _mistakes(mistakes, evaluation):
    count = len(evaluation.mistakes())
    if not count:
        return "Mistakes", "<p>None.</p>"
    figures = "\n".join(_mistake(mistake) for mistake in mistakes)
    title = f"Mistakes: {count:,} of {evaluation.count:,}"
    return title + (", the surest first" if count > 1 else ""), f'<div class="mistakes">\n{figures}\n</div>'


def _mistake(mistake):
    where = mistake["path"] or f"number {mistake['index']}"
    true, predicted, where = (html.escape(str(text)) for text in (mistake["true"], mistake["predicted"], where))
    return (
        f'<figure><img alt="{true}, taken for {predicted}" src="{_thumbnail(mistake["pixels"])}"><figcaption>'
        f"<b>{predicted}</b> ({mistake['confidence']:.0%}), is <b>{true}</b><br>{where}</figcaption></figure>"
    )


def _section(title, content):
    return f"<section>\n<h2>{html.escape(title)}</h2>\n{content}\n</section>"


def _table(header, rows):
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _part(value):
    return "none" if value is None else f"{value:.1%}"


def _png_file(path):
    return _data_uri(path.read_bytes())


def _thumbnail(pixels):
    from PIL import Image

    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3])
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return _data_uri(buffer.getvalue())


def _data_uri(png):
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")
