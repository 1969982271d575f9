"""Writes the tables of `benchmarks/results` into the pages, each between its marks: `python -m benchmarks.tables`.

    <!-- table: KIND | WHICH -->
    <!-- table ends -->

KIND is a key of `TABLES`; WHICH is what its function takes, and may be left out. A test holds the pages to this.
"""

import argparse
import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER, ROOT, read
from keras_vit.config.flops import flops
from keras_vit.pages.formatting import table

PAGES = (ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").glob("*.md")))
GROWTH_PICTURE = ROOT / "docs" / "pictures" / "growth.png"
_MARKS = re.compile(r"(?P<begin><!-- table: (?P<what>.+?) -->\n).*?(?P<end><!-- table ends -->)", re.DOTALL)
_KEY = (  # rows that agree in these measure the same; the newest of them counts
    *("machine", "cores", "accelerator", "task", "model", "image_size", "batch", "precision", "threads", "optimizer"),
    *("activation", "backend", "device", "runner"),
)
_CASE = ("task", "model", "image_size", "batch", "precision", "threads")
_TASKS = {"inference": "inference", "train": "training step", "build": "building", "load": "loading"}
_IN_README = (  # of the parity
    *("logits, 8 golden cases", "tokens behind the last LayerNorm, same cases"),
    *("11 random small files of timm, transformers and big_vision", "parameters of all 16 variants"),
)
_HEADLINES = {  # cases of B/16 in the README, and by what
    (*("inference", "B/16", 224, 1, "float32", 1), "model"),
    (*("inference", "B/16", 224, 1, "bfloat16", 1), "engine"),
    (*("train", "B/16", 224, 8, "float32", 2), "model"),
    (*("train", "B/16", 224, 8, "bfloat16", 2), "model"),
}
_ONE_IMAGE = ("inference", "B/16", 224, 1)
_STEP = ("train", "B/16", 224, 8)
_SHOWN = (  # where, processor, and cases of one core with what computes them
    (
        "AVX-512 with bfloat16: EPYC of Zen 5",
        "AMD EPYC, family 26 model 2",
        (
            ((*_ONE_IMAGE, "bfloat16", 1), "engine"),
            ((*_ONE_IMAGE, "bfloat16", 1), "model"),
            ((*_ONE_IMAGE, "float32", 1), "engine"),
            ((*_ONE_IMAGE, "float32", 1), "model"),
            ((*_ONE_IMAGE, "int8", 1), "engine"),
            ((*_STEP, "bfloat16", 1), "model"),
        ),
    ),
    (
        "AVX2: EPYC of Zen 3",
        "AMD EPYC, family 25 model 1",
        (
            ((*_ONE_IMAGE, "float32", 1), "engine"),
            ((*_ONE_IMAGE, "float32", 1), "model"),
            ((*_STEP, "float32", 1), "model"),
        ),
    ),
)
_USUAL = {"model": "B/16", "image_size": 224, "batch": 1}  # the case from which the work grows
_ENCODER_RUNNERS = {
    "ours-tokens": "all tokens by `model`",
    "ours-pooled": "pooled by `model`",
    "ours-onnxruntime": "pooled by `accelerate`: onnxruntime",
    "ours-openvino": "pooled by `accelerate`: openvino",
}
_PHOTO_RUNNERS = {
    "predict": "timm's, large JPEGs decoded smaller",
    "predict --exact": "timm's, by `--exact`",
    "predict, official file": "the official ones",
}
_GROWTH = {
    "model": "GFLOP of an image, by model",
    "image_size": "side of the image, pixels",
    "batch": "images of a call",
}


def main(arguments: list[str] | None = None) -> None:
    """Writes the tables of all pages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--picture", action="store_true", help="draw the growth anew too, which needs matplotlib")
    if parser.parse_args(arguments).picture:
        draw_growth(GROWTH_PICTURE)
    for page in PAGES:
        page.write_text(with_tables(page.read_text()))


def with_tables(page: str) -> str:
    """A page with the tables of today between its marks."""

    def anew(found: re.Match) -> str:
        kind, *which = found["what"].split(" | ")
        return f"{found['begin']}\n{TABLES[kind](*which)}\n\n{found['end']}"

    return _MARKS.sub(anew, page)


def newest(rows: Iterable[dict]) -> list[dict]:
    """The last row by date of each measurement, in the order in which they first come."""
    found: dict[tuple, dict] = {}
    for row in rows:
        key = tuple(row[name] for name in _KEY)
        if key not in found or row["date"] >= found[key]["date"]:
            found[key] = row
    return list(found.values())


def speed() -> str:
    """The fastest runner here and the fastest peer, on a GPU and on one core of each kind of processor."""
    lines = [
        (row["processor"], row["what"], row["by"], row["peer"], _faster(float(row["share"])), row["date"])
        for row in _rows("elsewhere")
    ]
    for title, machine, cases in _SHOWN:
        rows = list(_ours([row for row in read() if row["machine"] == machine]))
        for case, kind in cases:
            row = next(row for row in rows if _case(row) == case and _kind(row) == kind)
            by = {"model": "`model`", "engine": f"`accelerate`: {row['engine']}"}[kind]
            by = "`fit`" if row["task"] == "train" else by
            share = row["ratio_to_fastest_peer"]
            lines.append((title, _in_words(row), by, row["fastest_peer"], _faster(share), row["date"][:10]))
    return table(("where", "what", "by", "fastest peer", "ours is", "measured"), lines)


def _faster(share: float) -> str:
    """What a share of a peer's time is in words."""
    if share < 1 / 2:
        return f"{1 / share:.1f} times as fast"
    if share > 2:
        return f"{share:.1f} times as slow"
    return f"{abs(1 - share):.0%} {'faster' if share < 1 else 'slower'}".replace("%", " %")


def _in_words(row: dict) -> str:
    """Task, model, images and precision of a row."""
    training = "training " if row["task"] == "train" else ""
    pixels = "" if row["image_size"] == _USUAL["image_size"] else f"{row['image_size']:,} pixels, "
    images = "1 image" if row["batch"] == 1 else f"{row['batch']} images"
    return f"{training}{row['model']}, {pixels}{images}, {row['precision']}"


def headline(machine: str) -> str:
    """Four of these times, for the README."""
    rows = _ours([row for row in read() if row["machine"] == machine])
    chosen = [
        (
            _TASKS[row["task"]],
            *(str(row[name]) for name in ("batch", "precision", "threads")),
            "`model`" if _kind(row) == "model" else f"`accelerate`: {row['engine']}",
            row["fastest_peer"],
            f"{row['ratio_to_fastest_peer']:.2f}",
        )
        for row in rows
        if (*_case(row), _kind(row)) in _HEADLINES
    ]
    return table(("of B/16", "images", "precision", "cores", "by", "fastest peer", "share of its time"), chosen)


def _case(row: dict) -> tuple:
    return tuple(row[name] for name in _CASE)


def _kind(row: dict) -> str:
    return "model" if row["runner"] == "ours-model" else "engine"


def _ours(rows: list[dict]) -> Iterator[dict]:
    """Of each case that has a peer: the newest row of `model`, and that of the fastest engine in its newest run."""
    cases: dict[tuple, dict[str, dict]] = {}
    for row in newest(rows):
        if row["side"] == "ours" and row["ratio_to_fastest_peer"] is not None:
            found, kind = cases.setdefault(_case(row), {}), _kind(row)
            found[kind] = max(row, found.get(kind, row), key=lambda each: (each["date"], -each["median_s"]))
    tasks = list(_TASKS)
    for _, found in sorted(cases.items(), key=lambda each: (tasks.index(each[0][0]), *each[0][1:])):
        yield from (found[kind] for kind in ("model", "engine") if kind in found)


def growth() -> str:
    """Time and memory of `model` as the model, the images or their number grow."""
    rows = newest(read(FOLDER / "growth"))
    cases = dict.fromkeys(_usual(row) for over in _GROWTH for row in _series(rows, over, "float32"))
    lines = []
    for case in cases:
        cells = []
        for precision in ("float32", "bfloat16"):
            row = next(row for row in rows if _usual(row) == case and row["precision"] == precision)
            beyond = (row["peak_memory"] - row["import_memory"]) / 2**30
            cells += [f"{row['median_s']:.3g}", f"{_work(row) / 1e9 / row['median_s']:.0f}", f"{beyond:.2f}"]
        lines.append((*map(str, case), f"{_work(row) / 1e9:.1f}", *cells))
    columns = ("model", "pixels", "images", "GFLOP", "float32, s", "GFLOP/s", "GiB", "bfloat16, s", "GFLOP/s", "GiB")
    return table(columns, lines)


def _series(rows: list[dict], over: str, precision: str) -> list[dict]:
    """Rows of one precision that differ from the usual case in one size alone, from least to most work."""
    others = [name for name in _USUAL if name != over]
    found = [row for row in rows if row["precision"] == precision and all(row[n] == _USUAL[n] for n in others)]
    return sorted(found, key=_work)


def _usual(row: dict) -> tuple:
    return tuple(row[name] for name in _USUAL)


def _work(row: dict) -> float:
    """FLOPs of a call, by the formula."""
    return flops(row["model"], row["image_size"]).total * row["batch"]


def draw_growth(path: Path) -> None:
    """Three panels: seconds of a call over each size, and the dashed line of the work at the usual case's speed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = newest(read(FOLDER / "growth"))
    figure, panels = pyplot.subplots(1, 3, figsize=(11, 3.8), layout="constrained", sharey=True)
    for axes, (over, label) in zip(panels, _GROWTH.items(), strict=True):
        for colour, precision in (("tab:blue", "float32"), ("tab:orange", "bfloat16")):
            found = _series(rows, over, precision)
            places = [_work(row) / 1e9 if over == "model" else row[over] for row in found]
            start = next(row for row in found if _usual(row) == tuple(_USUAL.values()))
            line = [_work(row) / _work(start) * start["median_s"] for row in found]
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


def parity(which: str = "all") -> str:
    """What was compared with what; for the README some rows without the links to their tests."""
    rows = _rows("parity")
    if which == "README":
        chosen = [row for row in rows if row["what"] in _IN_README]
        lines = [(row["what"], row["compared_with"], row["largest_difference"]) for row in chosen]
        return table(("what", "compared with", "largest difference"), lines)
    links = [", ".join(f"[{Path(test).name}](../{test})" for test in row["measured_by"].split()) for row in rows]
    columns = ("what", "compared_with", "largest_difference")
    lines = [(*(row[name] for name in columns), link) for row, link in zip(rows, links, strict=True)]
    return table(("what", "compared with", "largest difference", "measured by"), lines)


def studies(name: str) -> str:
    """One of the paper's studies in miniature."""
    rows = [row for row in _rows("studies") if row["study"] == name]
    settings = [dict(part.split("=", 1) for part in row["settings"].split("; ")) for row in rows]
    lines = []
    for row, values in zip(rows, settings, strict=True):
        below = f"{row['below_best']} ± {row['below_best_half']}"
        verdict = {"best": "best", "shown": below, "not shown": f"{below}, not shown"}[row["verdict"]]
        lines.append((*values.values(), f"{row['accuracy']} ± {row['accuracy_half']}", verdict))
    return table((*settings[0], "accuracy", "below the best"), lines)


def encoders(processor: str) -> str:
    """Processor time of encoders, here and in timm, the newest row of each case."""
    mine = [row for row in _rows("encoders") if row["machine"] == processor]
    key = ("model", "image_size", "batch", "runner")
    rows = {tuple(row[name] for name in key): row for row in sorted(mine, key=lambda row: row["date"])}
    lines = []
    for model, size, batch, runner in sorted(rows, key=lambda each: (each[0], int(each[1]), int(each[2]), each[3])):
        what, _, by = _ENCODER_RUNNERS[runner].partition(" by ")
        ratio = float(rows[model, size, batch, runner]["ratio"])
        lines.append((model, size, batch, what, by, _faster(ratio)))
    return table(("model", "pixels", "images", "what", "by", "ours is"), lines)


def resolution(processor: str) -> str:
    """Processor time and memory for growing images, here and in timm, the newest row of each case."""
    mine = [row for row in _rows("resolution") if row["machine"] == processor]
    key = ("task", "image_size", "batch", "precision", "runner")
    rows = {tuple(row[name] for name in key): row for row in sorted(mine, key=lambda row: row["date"])}
    lines = []
    for case in sorted(rows, key=lambda each: (each[0], int(each[1]), int(each[2]), *each[3:])):
        row, runner = rows[case], case[-1].removeprefix("ours-")
        by = "`model`" if runner == "model" else f"`accelerate`: {runner}"
        memory = [f"{int(row[name]) / 2**30:.2f}" for name in ("memory", "timm_memory")]
        lines.append((_TASKS[case[0]], f"{int(case[1]):,}", *case[2:4], by, _faster(float(row["ratio"])), *memory))
    return table(("task", "pixels", "images", "precision", "by", "ours is", "GiB", "timm, GiB"), lines)


def photos(processor: str) -> str:
    """Processor time of a command and of a script with timm, from start to end, the newest row of each case."""
    mine = [row for row in _rows("photos") if row["machine"] == processor]
    rows = {(int(row["photos"]), row["runner"]): row for row in sorted(mine, key=lambda row: row["date"])}
    lines = []
    for (count, runner), row in sorted(
        rows.items(), key=lambda each: (each[0][0], list(_PHOTO_RUNNERS).index(each[0][1]))
    ):
        seconds = [f"{float(row[name]):.1f}" for name in ("processor_s", "timm_processor_s")]
        lines.append((str(count), _PHOTO_RUNNERS[runner], _faster(float(row["processor_ratio"])), *seconds))
    return table(("photos", "weights", "ours is", "s", "timm, s"), lines)


def embedding(processor: str) -> str:
    """Images per second of processor time and memory of embedding, by runner and by kind of file, the newest rows."""
    mine = sorted((row for row in _rows("embedding") if row["machine"] == processor), key=lambda row: row["date"])
    lines = {}
    for row in mine:
        speed, memory = int(row["photos"]) / float(row["processor_s"]), f"{int(row['memory']) / 2**30:.2f}"
        case = (row["engine"], row["format"], row["workers"])
        lines[case] = (*case, f"{speed:.0f}", f"{float(row['processor_s']):.0f}", memory)
    heads = ("runner", "photos in", "workers", "images per processor second", "processor seconds", "memory, GiB")
    return table(heads, list(lines.values()))


def text(processor: str) -> str:
    """Processor time of text towers and tokenizers beside OpenCLIP's, and the memory of prompts, the newest rows."""
    mine = sorted((row for row in _rows("text") if row["machine"] == processor), key=lambda row: row["date"])
    lines = {}
    for row in mine:
        each = [f"{1e3 * float(row[n]) / int(row['texts']):.3g}" for n in ("processor_s", "peer_processor_s") if row[n]]
        memory = f"{int(row['memory']) / 2**30:.2f} GiB" if row["memory"] else ""
        ratio = f"{float(row['ratio']):.2f}" if row["ratio"] else ""
        lines[row["task"]] = (row["task"], f"{int(row['texts']):,}", *(each or ["", ""]), ratio, memory)
    return table(("task", "texts", "ms a text", "OpenCLIP, ms", "ratio", "memory"), list(lines.values()))


def relevance(processor: str) -> str:
    """By how much the answer's probability falls when patches are removed."""
    rows = [row for row in _rows("relevance") if row["processor"] == processor]
    accuracy = {row["data"]: row["accuracy"] for row in rows}
    cells = {(row["removed"], row["data"]): f"{row['fall']} ± {row['fall_half']}" for row in rows}
    removed = dict.fromkeys(row["removed"] for row in rows)
    lines = [(name, *(cells[name, data] for data in accuracy)) for name in removed]
    return table(("removed", *(f"{data}, accuracy {share}" for data, share in accuracy.items())), lines)


def scale() -> str:
    """GB of memory and GB sent in a step of each of 128 devices, for four variants."""
    layouts = {"data": "replicated", "fsdp": "fsdp", "tensor": "tensor"}  # as the option of a run has them
    rows = {(row["variant"], row["layout"]): row for row in _rows("scale") if row["devices"] == "128"}
    cells = {"memory": "memory_bytes", "sent": "sent_bytes"}
    heads = [f"{what}, `{option}`" for what in cells for option in layouts.values()]
    lines = [
        (name, *(f"{int(rows[name, layout][column]) / 1e9:.1f}" for column in cells.values() for layout in layouts))
        for name in ("B/16", "L/16", "H/14", "G/14")
    ]
    return table(("variant", *heads), lines)


def _rows(name: str) -> list[dict[str, Any]]:
    with (FOLDER / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


TABLES = {
    each.__name__: each
    for each in (
        speed,
        headline,
        growth,
        parity,
        studies,
        encoders,
        resolution,
        photos,
        embedding,
        text,
        relevance,
        scale,
    )
}

if __name__ == "__main__":
    main()
