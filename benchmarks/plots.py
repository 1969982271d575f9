"""Draws what `keras-vit benchmark --results FOLDER` has measured: cost over resolution, batch and size of the model.

    python benchmarks/plots.py [RESULTS] [FOLDER]

One picture for each table and each of the three that has two points or more. The dashed line is what the work would
cost at the best speed in the picture, by `keras_vit.flops`: a runner on it does as well everywhere as the best does.
"""

import argparse
import re
from pathlib import Path

from keras_vit.benchmarking.results import read
from keras_vit.benchmarking.tables import newest
from keras_vit.config.flops import TRAINING_PASSES, flops

ROOT = Path(__file__).parents[1]
FIXED = ("task", "machine", "accelerator", "cores", "threads", "precision", "activation", "backend", "optimizer")
SIZES = ("model", "image_size", "batch")
LABELS = {"image_size": "side of the image in pixels", "batch": "images of a call", "model": "model"}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("folder", nargs="?", type=Path, default=Path("plots"))
    given = parser.parse_args(arguments)
    rows = [row for row in newest(read(given.results)) if row["task"] in ("inference", "train")]
    given.folder.mkdir(parents=True, exist_ok=True)
    for over in SIZES:
        for key, group in groups(rows, over).items():
            words = [row_word for row_word in key if row_word is not None]
            name = re.sub(r"\W+", "-", "-".join([over, *map(str, words)]))
            print(draw(group, over, given.folder / f"{name}.png"))


def groups(rows, over):
    """Rows that differ in one size and the runner only, where there are two values of it or more."""
    rest = [name for name in (*FIXED, *SIZES) if name != over]
    found = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in rest), []).append(row)
    return {key: group for key, group in found.items() if len({row[over] for row in group}) > 1}


def place(row, over):
    """Where a row stands on the axis: a model by its GFLOPs an image."""
    return flops(row["model"], row["image_size"]).total / 1e9 if over == "model" else row[over]


def work(row):
    """FLOPs of a call."""
    passes = TRAINING_PASSES if row["task"] == "train" else 1
    return flops(row["model"], row["image_size"]).total * row["batch"] * passes


def ideal(rows, over):
    """Points `(place, seconds)` of the work at the best speed of all rows."""
    speed = max(work(row) / row["median_s"] for row in rows)
    return sorted({(place(row, over), work(row) / speed) for row in rows})


def draw(rows, over, path):
    """One picture: seconds of a call by runner, and the line of FLOPs. Gives its path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for runner in dict.fromkeys(row["runner"] for row in rows):
        points = sorted((place(row, over), row["median_s"]) for row in rows if row["runner"] == runner)
        axes.plot(*zip(*points, strict=True), marker="o", label=runner)
    axes.plot(*zip(*ideal(rows, over), strict=True), "k--", linewidth=1, label="FLOPs at the best speed")
    axes.set(xscale="log", yscale="log", ylabel="seconds of a call", xlabel=LABELS[over])
    ticks = {place(row, over): row[over] for row in rows}
    axes.set_xticks(list(ticks), list(map(str, ticks.values())))
    axes.set_xticks([], minor=True)
    first = rows[0]
    sizes = ", ".join(f"{first[name]}{' pixels' * (name == 'image_size')}" for name in SIZES if name != over)
    axes.set_title(f"{first['task']}, {first['precision']}, {sizes}, {first['threads']} threads", fontsize=10)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


if __name__ == "__main__":
    main()
