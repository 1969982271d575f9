"""Draws and tabulates how time and memory of one model grow with its size, its images and its batch.

    python benchmarks/growth.py [RESULTS] [PAGE] [PICTURE]

Reads what these have measured, and writes the table between the marks of docs/speed.md and the picture above it:

    keras-vit benchmark --model Ti/16,S/16,B/16,L/16,H/14 --batch 1 --runners model --precision float32,bfloat16 \\
        --results benchmarks/results/growth
    keras-vit benchmark --model B/16 --image-size 384,512,768,1024 --batch 1 ...
    keras-vit benchmark --model B/16 --batch 2,4,8,16,32,64 ...
"""

import argparse
from pathlib import Path

from keras_vit.benchmarking.results import read
from keras_vit.benchmarking.tables import newest
from keras_vit.config.flops import flops

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- growth: begin -->", "<!-- growth: end -->"
SERIES = {
    "model": "GFLOP of an image, by model",
    "image_size": "side of the image, pixels",
    "batch": "images of a call",
}
PRECISIONS = ("float32", "bfloat16")
USUAL = {"model": "B/16", "image_size": 224, "batch": 1}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="?", type=Path, default=ROOT / "benchmarks" / "results" / "growth")
    parser.add_argument("page", nargs="?", type=Path, default=ROOT / "docs" / "speed.md")
    parser.add_argument("picture", nargs="?", type=Path, default=ROOT / "docs" / "pictures" / "growth.png")
    given = parser.parse_args(arguments)
    rows = newest(read(given.results))
    given.page.write_text(with_table(given.page.read_text(), rows))
    draw(rows, given.picture)
    print(f"{given.page.name} and {given.picture.name}: {len(rows)} rows")


def series(rows, over, precision):
    """Rows of one precision that differ from the usual in one size alone, from least to most work."""
    others = [name for name in USUAL if name != over]
    found = [row for row in rows if row["precision"] == precision and all(row[n] == USUAL[n] for n in others)]
    return sorted(found, key=work)


def work(row):
    """FLOPs of a call, by the formula."""
    return flops(row["model"], row["image_size"]).total * row["batch"]


def with_table(page, rows):
    """The page with a line for each case: GFLOP a second of both precisions, and memory beyond the imports'."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page must have {BEGIN} and {END}, once each.")
    lines = ["| model | pixels | images | GFLOP | float32, s | GFLOP/s | GiB | bfloat16, s | GFLOP/s | GiB |"]
    lines.append("|" + "---|" * 10)
    cases = [row for over in SERIES for row in series(rows, over, "float32")]
    for case in dict.fromkeys(tuple(row[name] for name in USUAL) for row in cases):
        both = [next(r for r in rows if of(r) == case and r["precision"] == name) for name in PRECISIONS]
        cells = [*case, f"{work(both[0]) / 1e9:.1f}"]
        for row in both:
            memory = (row["peak_memory"] - row["import_memory"]) / 2**30
            cells += [f"{row['median_s']:.3g}", f"{work(row) / 1e9 / row['median_s']:.0f}", f"{memory:.2f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return page[: page.index(BEGIN) + len(BEGIN)] + "\n\n" + "\n".join(lines) + "\n\n" + page[page.index(END) :]


def of(row):
    return tuple(row[name] for name in USUAL)


def draw(rows, path):
    """Three panels: seconds of a call over each size, and the dashed line of the work at the usual case's speed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(11, 3.8), layout="constrained", sharey=True)
    for axes, (over, label) in zip(panels, SERIES.items(), strict=True):
        for colour, precision in zip(("tab:blue", "tab:orange"), PRECISIONS, strict=True):
            found = series(rows, over, precision)
            places = [work(row) / 1e9 if over == "model" else row[over] for row in found]
            start = next(row for row in found if of(row) == tuple(USUAL.values()))
            line = [work(row) / work(start) * start["median_s"] for row in found]
            axes.plot(places, [row["median_s"] for row in found], marker="o", color=colour, label=precision)
            axes.plot(places, line, "--", linewidth=1, color=colour, label="its line of FLOPs")
        axes.set(xscale="log", yscale="log", xlabel=label)
        axes.set_xticks(places, [str(row[over]) for row in found])
        axes.set_xticks([], minor=True)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("seconds of a call")
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
