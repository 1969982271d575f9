"""Rows in files: JSON of one benchmark, and CSV to which benchmarks are added, one file a task."""

import csv
import io
import json
from collections.abc import Iterable
from pathlib import Path

from keras_vit.benchmarking.request import TASKS
from keras_vit.files import locked, read_regular, replacing, unlock

FIELDS = (
    *("date", "commit", "machine", "cores", "avx512_bf16", "amx", "accelerator", "runner", "side", "engine"),
    *("model", "image_size", "batch", "precision", "task", "threads", "optimizer", "activation", "backend"),
    *("device", "rounds", "median_s", "images_per_s", "spread", "fastest_peer", "ratio_to_fastest_peer"),
    *("ratio_to_same_runtime", "flops", "share_of_peak", "peak_memory", "import_memory", "device_memory"),
    *("import_s", "build_s", "load_s", "first_s", "logits_difference", "loss_difference", "versions"),
)
_MOST_BYTES = 1 << 26
_WHOLE = ("cores", "image_size", "batch", "threads", "rounds", "flops", "peak_memory", "import_memory", "device_memory")
_REAL = (
    *("median_s", "images_per_s", "spread", "ratio_to_fastest_peer", "ratio_to_same_runtime", "share_of_peak"),
    *("import_s", "build_s", "load_s", "first_s", "logits_difference", "loss_difference"),
)
_YES_OR_NO = ("avx512_bf16", "amx")


def write_json(path: Path, rows: Iterable[dict]) -> None:
    """Writes rows as a list of objects, whole or not at all."""
    text = json.dumps(list(rows), indent=1)
    with replacing(path) as temporary:
        Path(temporary).write_text(text + "\n")


def append(folder: Path, rows: Iterable[dict]) -> list[Path]:
    """Adds the rows that were timed to `TASK.csv` in a folder, which is made if need be.

    Raises:
        ValueError: if a file there has another header; then none is changed.
        BlockingIOError: never; another benchmark that writes is waited for.
    """
    by_task: dict[str, list[dict]] = {}
    for row in rows:
        if row["median_s"] is not None:
            by_task.setdefault(row["task"], []).append(row)
    folder.mkdir(parents=True, exist_ok=True)
    lock = locked(folder, wait=True)
    try:
        check_headers(folder)
        return [_append(folder / f"{task}.csv", added) for task, added in by_task.items()]
    finally:
        unlock(lock)


def _append(file, rows):
    before = file.read_bytes().decode() if file.exists() else _line(FIELDS)
    lines = [_line([_text(row[field]) for field in FIELDS]) for row in rows]
    with replacing(file) as temporary:
        Path(temporary).write_bytes((before + "".join(lines)).encode())
    return file


def make_ready(folder: Path) -> None:
    """Makes a folder for results if need be, so that what was measured has a place.

    Raises:
        OSError: if it cannot be made, or is a file.
        ValueError: if a file there has another header.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise type(error)(
            f"results go to a folder that is there or can be made.\nReceived: {folder}, {error.strerror}."
        ) from error
    check_headers(folder)


def check_headers(folder: Path) -> None:
    """Raises `ValueError` unless a folder's files of tasks, if there are any, have the fields of today."""
    for file in _files(folder):
        _header(file, read_regular(file, _MOST_BYTES).decode())


def read(folder: Path) -> list[dict]:
    """The rows of a folder's files, oldest first in each, with numbers as numbers and `None` for nothing.

    Args:
        folder: with a CSV file for each task that was measured; other files are none of these.

    Raises:
        ValueError: if a file has another header, or a value is no number where one must be.
    """
    found = []
    for file in _files(folder):
        text = read_regular(file, _MOST_BYTES).decode()
        _header(file, text)
        found += [{name: _value(name, row[name]) for name in FIELDS} for row in csv.DictReader(io.StringIO(text))]
    return found


def _files(folder):
    """Those that are there; a folder may hold tables of other kinds beside them."""
    return [file for file in (folder / f"{task}.csv" for task in TASKS) if file.exists()]


def _header(file, text):
    there = next(csv.reader(io.StringIO(text)), [])
    if not text.endswith("\n") or tuple(there) != FIELDS:
        missing = [name for name in FIELDS if name not in there]
        others = [name for name in there if name not in FIELDS]
        said = f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(others) or 'none'}"
        raise ValueError(
            "results are added to files of the same fields, in the same order, whose last line is whole.\n"
            f"Received: {file.name}, {said}. Pass another folder, or rename this file."
        )


def _line(values):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


def _text(value):
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _value(name, text):
    if text == "":
        return None
    if name in _WHOLE:
        return int(text)
    if name in _REAL:
        return float(text)
    return text == "True" if name in _YES_OR_NO else text
