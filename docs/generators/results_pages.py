"""The pages of results, written from the CSV files of `benchmarks/results`, one page for each file.

`docs/conf.py` writes them into `docs/results` at every build. Files that are known here get words of their own; every
other one, as `inference.csv`, is shown as it is.
"""

import csv
import re
from pathlib import Path

from keras_vit.cards import table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
_LONG = re.compile(r"-?\d+\.\d{5,}(?:e[+-]?\d+)?|-?\d+(?:\.\d+)?e[+-]?\d+")  # numbers that are cut to four digits


def pages(folder: Path = RESULTS) -> dict[str, str]:
    """`{name: Markdown}` of every CSV file of a folder, and of the index.

    Args:
        folder: with the files; those that are not there have no page.
    """
    files = {path.stem: _rows(path) for path in sorted(folder.glob("*.csv"))}
    written = {}
    for name, rows in files.items():
        text = PAGES.get(name, measured)(rows)
        written[name] = f"# {_title(name)}\n\n{text}\n\n{_source(name)}\n"
    return {"index": _index(files)} | written


def _rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _source(name):
    return f"The same as data: [benchmarks/results/{name}.csv](../../benchmarks/results/{name}.csv)."


def _index(files):
    rows = [(f"[{_title(name)}]({name}.md)", str(len(found))) for name, found in files.items()]
    names = "\n".join(files)
    return f"""# Results

Every page is made from a CSV file of [benchmarks/results](../../benchmarks/results).

{table(("page", "rows"), rows)}

```{{toctree}}
:hidden:
{names}
```
"""


def parity(rows: list[dict[str, str]]) -> str:
    """What was compared with what: each row with links to its tests."""
    lines = []
    for row in rows:
        tests = ", ".join(f"[{_name(path)}](../../{path})" for path in row["measured_by"].split())
        lines.append((row["what"], row["compared_with"], row["largest_difference"], tests, f"`{row['recorded']}`"))
    words = (
        "How each figure is measured is in [how we know it is right](../how_we_know_it_is_right.md). "
        "The last column is the day by which the figure stood there."
    )
    header = ("what", "compared with", "largest difference", "measured by", "recorded")
    return "\n\n".join((words, table(header, lines)))


def _name(path):
    return path.removeprefix("tests/")


def studies(rows: list[dict[str, str]]) -> str:
    """The paper's studies in miniature, a table for each study."""
    parts = [
        "Test accuracy on scikit-learn's digits: mean over the seeds, and half of its 95 % interval. What the settings "
        "are, on which machine it was run and what it shows is in [the paper's studies](../studies.md).",
    ]
    for name, found in _grouped(rows, "study").items():
        settings = [[part.split("=", 1) for part in row["settings"].split("; ")] for row in found]
        header = (*(column for column, _ in settings[0]), "seeds", "accuracy", "below the best", "difference")
        lines = []
        for row, parts_of in zip(found, settings, strict=True):
            below = f"{row['below_best']} ± {row['below_best_half']}" if row["below_best"] else ""
            values = (value for _, value in parts_of)
            lines.append((*values, row["seeds"], f"{row['accuracy']} ± {row['accuracy_half']}", below, row["verdict"]))
        parts += [f"## {name.capitalize()}", table(header, lines)]
    return "\n\n".join(parts)


def relevance(rows: list[dict[str, str]]) -> str:
    """By how much the answer's probability falls when patches are removed, a table for each processor and data set."""
    parts = [
        "By how much the probability of the model's answer falls when a fifth of the patches is removed: mean over 360 "
        "test images, and half of its 95 % interval. See "
        "[looking inside](../looking_inside.md#does-relevance-find-what-counts).",
    ]
    for processor, found in _grouped(rows, "processor").items():
        for data, each in _grouped(found, "data").items():
            parts += [f"## {data.capitalize()}, on an {processor}", f"Test accuracy: {each[0]['accuracy']}."]
            lines = [(row["removed"], f"{row['fall']} ± {row['fall_half']}") for row in each]
            parts.append(table(("removed", "fall"), lines))
    return "\n\n".join(parts)


def scale(rows: list[dict[str, str]]) -> str:
    """Memory of a device and what it sends, a table for each variant; nothing of it was measured."""
    settings, _ = _same(rows)
    parts = [
        "Counted by [benchmarks/scale.py](../../benchmarks/scale.py), not measured: memory of a device and what it "
        "sends in a step, in GB, and the step's time on an ideal device, in ms. See "
        "[many devices and hosts](../hosts.md#on-paper).",
        table(("for all rows", "value"), list(settings.items())),
    ]
    sizes = ("weights", "slots", "gradients", "gathered", "activations", "memory", "sent")
    for variant, found in _grouped(rows, "variant").items():
        lines = []
        for row in found:
            numbers = [f"{int(row[f'{size}_bytes']) / 1e9:.3f}" for size in sizes]
            lines.append((row["layout"], row["devices"], *numbers, f"{float(row['step_s']) * 1e3:.1f}"))
        parts += [f"## {variant}", table(("layout", "devices", *sizes, "step"), lines)]
    return "\n\n".join(parts)


def measured(rows: list[dict[str, str]]) -> str:
    """Any other file: what all its rows share, then its rows; numbers are cut to four digits."""
    shared, columns = _same(rows)
    parts = []
    if shared:
        parts.append(table(("for all rows", "value"), [(key, _cell(value)) for key, value in shared.items()]))
    if rows and columns:
        parts.append("{.figures}\n" + table(columns, [[_cell(row[column]) for column in columns] for row in rows]))
    return "\n\n".join(parts)


def _same(rows):
    """`{column: value}` of what all rows of several share, and the other columns."""
    if len(rows) < 2:
        return {}, list(rows[0]) if rows else []
    shared = {column: value for column, value in rows[0].items() if all(row[column] == value for row in rows)}
    return shared, [column for column in rows[0] if column not in shared]


def _cell(value):
    text = f"{float(value):.4g}" if _LONG.fullmatch(value) else value
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _grouped(rows, column):
    groups: dict[str, list] = {}
    for row in rows:
        groups.setdefault(row[column], []).append(row)
    return groups


def _title(name):
    return TITLES.get(name, name.replace("_", " ").capitalize())


PAGES = {"parity": parity, "relevance": relevance, "scale": scale, "studies": studies}
TITLES = {"scale": "Scale, on paper", "studies": "The paper's studies in figures"}
