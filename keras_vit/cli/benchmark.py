"""`keras-vit benchmark`: how fast models run beside other software with the same weights."""

import argparse
import re
from pathlib import Path

from keras_vit.benchmarking.request import (
    BACKENDS,
    DEVICES,
    HUB_PYTHON,
    OPTIMIZERS,
    PEERS,
    PEERS_PYTHON,
    PRECISIONS,
    RUNNERS,
    TASKS,
    Benchmark,
)
from keras_vit.cli.printing import path, printable
from keras_vit.config.vit import ACTIVATIONS

# What the request calls a field, the command line an option.
OPTIONS = {
    "models": "--model",
    "image_sizes": "--image-size",
    "batches": "--batch",
    "precisions": "--precision",
    "tasks": "--task",
    "peers": "--against",
    "peers_python": "--peers-python",
    "hub_python": "--hub-python",
    "matrix_peak": "--matrix-peak",
    **{name: f"--{name}" for name in ("runners", "rounds", "warmup", "optimizer", "backend", "device", "results")},
}
_WIDTHS = (16, 8, 5, 6, 10, 10, 11, 10, 8, 9, 9)
_HEAD = ("runner", "model", "size", "batch", "precision", "task", "ms", "images/s", "spread", "peer", "GiB")


def add_commands(top, command):
    """Adds this command to the parser; `command` makes it."""
    summary = "time inference, training, building and loading, beside other software with the same weights"
    example = "keras-vit benchmark --model B/16 --against timm,openvino --json out.json"
    new = command(top, "benchmark", benchmark, summary, example)
    lists = (
        ("models", _words, "MODEL", "B/16", "variants, as B/16,L/16"),
        ("image_sizes", _numbers, "SIZE", "224", "sides of square images in pixels"),
        ("batches", _numbers, "SIZE", "1,8", "images of a call"),
        ("precisions", _words, "NAMES", "float32", f"of {', '.join(PRECISIONS)}"),
        ("tasks", _words, "NAMES", "inference", f"of {', '.join(TASKS)}"),
    )
    for field, kind, metavar, default, text in lists:
        new.add_argument(OPTIONS[field], dest=field, type=kind, default=default, metavar=metavar, help=text)
    peers = f"peers, of {', '.join(PEERS)}; by default none"
    new.add_argument("--against", dest="peers", type=_words, default=(), metavar="NAMES", help=peers)
    own = f"ours, of {', '.join(RUNNERS)}; by default model, and auto for inference"
    new.add_argument("--runners", type=_words, metavar="NAMES", help=own)
    new.add_argument("--threads", type=int, default=1, metavar="N", help="cores and threads of each process")
    new.add_argument("--rounds", type=int, default=20, metavar="N", help="times that each is timed, in turn")
    new.add_argument("--warmup", type=int, default=2, metavar="N", help="calls before that are not timed")
    new.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw", help="of training")
    new.add_argument("--activation", choices=ACTIVATIONS, default="gelu_tanh", help="of ours and of the peers")
    new.add_argument("--backend", choices=BACKENDS, default="tensorflow", help="of Keras, here and in keras-hub")
    new.add_argument("--device", choices=DEVICES, default="cpu", help="where everything is computed")
    peak = "side of square matrices whose product is timed too, for the share of its speed; by default none"
    new.add_argument("--matrix-peak", type=int, metavar="N", help=peak)
    python = "interpreter that has {}; by default that of {}, else this one"
    peers_python, hub_python = python.format("the peers", PEERS_PYTHON), python.format("keras-hub", HUB_PYTHON)
    new.add_argument("--peers-python", metavar="PROGRAM", help=peers_python)
    new.add_argument("--hub-python", metavar="PROGRAM", help=hub_python)
    json_file = "file of all rows, in place of one that is there; by default none"
    new.add_argument("--json", dest="json_file", type=path, metavar="FILE", help=json_file)
    new.add_argument(
        "--results", type=path, metavar="FOLDER", help="add the rows to TASK.csv in this folder; by default not"
    )


def benchmark(arguments):
    from keras_vit.benchmarking.benchmark import BenchmarkError
    from keras_vit.benchmarking.benchmark import benchmark as rows_of
    from keras_vit.benchmarking.results import append, make_ready, write_json

    asked = _asked(arguments)
    if arguments.json_file is not None and arguments.json_file.is_dir():
        raise IsADirectoryError(f"`--json` must be a file.\nReceived: the folder {arguments.json_file}.")
    if arguments.json_file is not None and not arguments.json_file.parent.is_dir():
        raise FileNotFoundError(f"the rows must go to a folder that is there.\nReceived: {arguments.json_file}.")
    if arguments.results is not None:
        make_ready(arguments.results)
    rows: list[dict] = []
    files: dict[Path, None] = {}  # in the order of their first rows
    yield _line(_HEAD)
    for row in rows_of(asked):
        rows.append(row)
        if arguments.json_file is not None:  # now, so that what stops the next case loses none before it
            write_json(arguments.json_file, rows)
        if arguments.results is not None:
            files |= dict.fromkeys(append(arguments.results, [row]))
        yield _line(_cells(row)) if row["left_out"] is None else _left_out(row)
    for file in files:
        yield f"added to {printable(file)}"
    if all(row["left_out"] is not None for row in rows):
        raise BenchmarkError("nothing was timed; the lines above say why")
    if asked.peers and all(row["ratio_to_fastest_peer"] is None for row in rows if row["side"] == "ours"):
        raise BenchmarkError(
            f"nothing was compared: of {', '.join(asked.peers)} and ours no two were timed for the same work; "
            "the lines above say why"
        )


def _asked(arguments):
    given = {name: getattr(arguments, name) for name in OPTIONS if name != "results"}
    given |= {"threads": arguments.threads, "activation": arguments.activation}
    given["matrix_peak"] = 0 if given["matrix_peak"] is None else given["matrix_peak"]
    return Benchmark(**given)


def _cells(row):
    return (
        row["runner"],
        row["model"],
        row["image_size"],
        row["batch"],
        row["precision"],
        row["task"],
        f"{row['median_s'] * 1e3:.4g}",
        "" if row["images_per_s"] is None else f"{row['images_per_s']:.4g}",
        f"{row['spread']:.1%}",
        "" if row["ratio_to_fastest_peer"] is None else f"{row['ratio_to_fastest_peer']:.3f}",
        "" if row["peak_memory"] is None else f"{row['peak_memory'] / 2**30:.2f}",
    )


def _line(cells):
    return " ".join(str(cell).ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _left_out(row):
    case = " ".join(str(row[name]) for name in ("model", "image_size", "batch", "precision", "task"))
    return f"{row['runner']} left out of {case}: {printable(row['left_out'])}"


def _words(text):
    return tuple(word for word in re.split(r"[,\s]+", text) if word)


def _numbers(text):
    try:
        return tuple(int(word) for word in _words(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"numbers are as 1,8, not {text!r}") from None
