"""`python -m benchmarks`: how fast models run here and in other software with the same weights."""

import argparse
import dataclasses
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.measure import BenchmarkError, benchmark
from benchmarks.request import BACKENDS, DEVICES, OPTIMIZERS, PEERS, PRECISIONS, RUNNERS, TASKS, Benchmark
from benchmarks.results import append, make_ready
from keras_vit.config.records import ACTIVATIONS

_WIDTHS = (16, 8, 5, 6, 10, 10, 11, 10, 8, 9, 9)
_HEAD = ("runner", "model", "size", "batch", "precision", "task", "ms", "images/s", "spread", "peer", "GiB")


def main(arguments: list[str] | None = None) -> None:
    """Measures, prints a line for each runner as it is done, and adds the rows that were timed to files."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    folder = given.pop("results")
    try:
        asked = Benchmark(**given)
        if folder is not None:
            make_ready(folder)
    except (OSError, TypeError, ValueError) as error:
        parser.error(str(error))
    rows = []
    print(_line(_HEAD))
    try:
        for row in benchmark(asked):
            rows.append(row)
            print(_line(_cells(row)) if row["left_out"] is None else _left_out(row), flush=True)
            if folder is not None and row["left_out"] is None:  # now, so that what stops the next case loses none
                append(folder, row)
    except BenchmarkError as error:
        sys.exit(f"benchmarks: error: {error}")
    if all(row["left_out"] is not None for row in rows):
        sys.exit("benchmarks: error: nothing was timed; the lines above say why")
    if asked.against and all(row["ratio_to_fastest_peer"] is None for row in rows if row["side"] == "ours"):
        sys.exit("benchmarks: error: ours was compared with no peer; the lines above say why")


def _parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        "python -m benchmarks",
        description="Times inference, training, building and loading, here and elsewhere, with the same weights.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog="example: python -m benchmarks --model B/16 --against timm,openvino --results out",
    )
    lists: dict[str, tuple[Callable, str]] = {
        "model": (_words, "variants, as B/16,L/16"),
        "image_size": (_numbers, "sides of square images in pixels"),
        "batch": (_numbers, "images of a call"),
        "precision": (_words, f"of {', '.join(PRECISIONS)}"),
        "task": (_words, f"of {', '.join(TASKS)}"),
        "against": (_words, f"peers, of {', '.join(PEERS)}"),
        "runners": (_words, f"ours, of {', '.join(RUNNERS)}; None is model, and auto for inference"),
        "threads": (int, "cores and threads of each process"),
        "rounds": (int, "times that each is timed, in turn"),
    }
    choices = {"optimizer": OPTIMIZERS, "activation": ACTIVATIONS, "backend": BACKENDS, "device": DEVICES}
    texts = ("of training", "of ours and of the peers", "of Keras, here and in keras-hub", "where all is computed")
    defaults = {field.name: field.default for field in dataclasses.fields(Benchmark)}
    defaults |= {name: ",".join(map(str, value)) for name, value in defaults.items() if isinstance(value, tuple)}
    for name, (kind, text) in lists.items():
        new.add_argument(f"--{name.replace('_', '-')}", type=kind, default=defaults[name], help=text)
    for (name, words), text in zip(choices.items(), texts, strict=True):
        new.add_argument(f"--{name}", choices=words, default=defaults[name], help=text)
    new.add_argument("--results", type=Path, metavar="FOLDER", help="add the rows to TASK.csv in this folder")
    return new


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[,\s]+", text) if word)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, _words(text)))


def _cells(row: dict) -> tuple[str, ...]:
    return (
        *(str(row[name]) for name in ("runner", "model", "image_size", "batch", "precision", "task")),
        f"{row['median_s'] * 1e3:.4g}",
        "" if row["images_per_s"] is None else f"{row['images_per_s']:.4g}",
        f"{row['spread']:.1%}",
        "" if row["ratio_to_fastest_peer"] is None else f"{row['ratio_to_fastest_peer']:.3f}",
        "" if row["peak_memory"] is None else f"{row['peak_memory'] / 2**30:.2f}",
    )


def _line(cells: Iterable[str]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _left_out(row: dict) -> str:
    case = " ".join(str(row[name]) for name in ("model", "image_size", "batch", "precision", "task"))
    return f"{row['runner']} left out of {case}: {row['left_out']}"


if __name__ == "__main__":
    main()
