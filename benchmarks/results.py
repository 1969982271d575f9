"""Rows in CSV files, one file a task, and what a row says of where it was measured."""

import ast
import csv
import datetime
import platform
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.request import TASKS
from keras_vit.checks import cores, processor_facts, processor_flags

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "benchmarks" / "results"
FIELDS = (
    *("date", "commit", "machine", "cores", "avx512_bf16", "amx", "accelerator", "runner", "side", "engine"),
    *("model", "image_size", "batch", "precision", "task", "threads", "optimizer", "activation", "backend"),
    *("device", "rounds", "median_s", "images_per_s", "spread", "fastest_peer", "ratio_to_fastest_peer"),
    *("ratio_to_same_runtime", "flops", "peak_memory", "import_memory", "device_memory"),
    *("import_s", "build_s", "load_s", "first_s", "logits_difference", "loss_difference", "versions"),
)
_NUMBERS = (  # and booleans; all other fields are texts
    *("cores", "avx512_bf16", "amx", "image_size", "batch", "threads", "rounds", "median_s", "images_per_s", "spread"),
    *("ratio_to_fastest_peer", "ratio_to_same_runtime", "flops", "peak_memory", "import_memory", "device_memory"),
    *("import_s", "build_s", "load_s", "first_s", "logits_difference", "loss_difference"),
)
_FLAGS = {"avx512_bf16": "avx512_bf16", "amx": "amx_bf16"}  # field, and the flag of Linux


def append(folder: Path, row: dict) -> Path:
    """Adds a row to `TASK.csv` in a folder, and gives the file.

    Raises:
        ValueError: if the file has another header.
    """
    file = folder / f"{row['task']}.csv"
    if file.exists():
        check_header(file)
    append_to(file, FIELDS, row)
    return file


def append_to(file: Path, fields: Sequence[str], row: dict) -> None:
    """Adds the `fields` of a row to a file, which is made with them for its header where it is not there."""
    is_new = not file.exists()
    with file.open("a", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        if is_new:
            writer.writerow(fields)
        writer.writerow([f"{row[name]:.6g}" if isinstance(row[name], float) else row[name] for name in fields])


def make_ready(folder: Path) -> None:
    """Makes a folder for results if need be, so that what was measured has a place.

    Raises:
        OSError: if it cannot be made, or is a file.
        ValueError: if a file there has another header.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in _files(folder):
        check_header(file)


def read(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """The rows of a folder's files of tasks, oldest first in each, with numbers as numbers and `None` for nothing."""
    found = []
    for file in _files(folder):
        check_header(file)
        with file.open(newline="") as opened:
            found += [{name: _value(name, text) for name, text in row.items()} for row in csv.DictReader(opened)]
    return found


def _files(folder: Path) -> list[Path]:
    """The tables that exist; a folder may hold other tables too."""
    return [file for file in (folder / f"{task}.csv" for task in TASKS) if file.exists()]


def check_header(file: Path) -> None:
    """Raises `ValueError` unless a file has the fields of today and its last line is whole."""
    text = file.read_text()
    there = next(csv.reader(text.splitlines()), [])
    if not text.endswith("\n") or tuple(there) != FIELDS:
        raise ValueError(
            "results are added to files of the same fields, in the same order, whose last line is whole.\n"
            f"Received: {file.name}, missing: {_names(FIELDS, there)}; unknown: {_names(there, FIELDS)}. "
            "Pass another folder, or rename this file."
        )


def _names(names: Iterable[str], others: Iterable[str]) -> str:
    return ", ".join(name for name in names if name not in others) or "none"


def _value(name: str, text: str) -> Any:
    if text == "":
        return None
    return ast.literal_eval(text) if name in _NUMBERS else text


def machine(text: str | None = None) -> dict:
    """The processor's name, how many cores this process has, and whether it has AVX-512's bfloat16 and AMX.

    Args:
        text: as in /proc/cpuinfo; by default that of this machine.
    """
    found, flags = processor_facts(text), processor_flags(text)
    name = found.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in found:  # a virtual machine may tell no more than "AMD EPYC"
        name += f", family {found['cpu family']} model {found.get('model')}"
    return {"machine": name, "cores": len(cores()), **{field: flag in flags for field, flag in _FLAGS.items()}}


def now() -> str:
    """The time, in UTC."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def commit() -> str:
    """The commit of the checkout, with a + for changes to its code; empty where it is none."""
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        return ""
    git = ["git", "-C", str(ROOT)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "*.py"]).returncode
    return name + "+" * bool(changed)
