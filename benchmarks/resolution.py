"""`python -m benchmarks.resolution`: processor time and memory of `model` beside timm's as images grow, on one core.

Both processes are called in turn. The least processor time of all calls counts: other work on the machine changes it
little. Memory is the most that a process ever had beyond its imports.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import LOGITS_BOUNDS, BenchmarkError, in_turn, logits_difference, prepared
from benchmarks.request import Benchmark, Case
from benchmarks.results import FOLDER, append_to, commit, machine, now
from benchmarks.workers import worker_of

FIELDS = (
    *("date", "commit", "machine", "avx512_bf16", "amx", "task", "model", "image_size", "batch", "precision", "rounds"),
    *("processor_s", "timm_processor_s", "ratio", "memory", "timm_memory", "difference", "versions"),
)
_RUNNERS = ("ours-model", "timm")


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each case, and adds it to `resolution.csv` in a folder."""
    parser = argparse.ArgumentParser("python -m benchmarks.resolution", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="B/16")
    parser.add_argument("--image-size", type=int, nargs="+", default=[224, 384, 512, 1024], help="pixels")
    parser.add_argument("--precision", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--task", choices=("inference", "train"), default="inference")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER")
    asked = parser.parse_args(arguments)
    asked.results.mkdir(parents=True, exist_ok=True)
    for side in asked.image_size:
        for precision in asked.precision:
            row = measured(Case(asked.model, side, asked.batch, precision, asked.task), asked.rounds)
            memory = f"{row['memory'] / 2**30:.2f} GiB for {row['timm_memory'] / 2**30:.2f}"
            print(asked.task, side, precision, f"{row['ratio']:.3f} of timm's time, {memory}", flush=True)
            append_to(asked.results / "resolution.csv", FIELDS, row)


def measured(case: Case, rounds: int) -> dict[str, Any]:
    """A row with `FIELDS`.

    Raises:
        BenchmarkError: if `model` computes something else than timm.
    """
    asked, workers = Benchmark(against=("timm",), batch=(case.batch,)), {}
    with tempfile.TemporaryDirectory(prefix="keras_vit-") as folder:
        files = prepared(asked, case, Path(folder))
        try:
            for name in _RUNNERS:
                workers[name] = worker_of(name, asked, case, files)
                workers[name].ask("start")
                workers[name].facts |= {"first": workers[name].ask(f"check {folder}/{name}.npy").get("loss")}
            found = [worker.facts["first"] for worker in workers.values()]
            if case.task == "inference":
                found = [np.load(f"{folder}/{name}.npy") for name in _RUNNERS]
            taken: dict[str, list[float]] = {name: [] for name in _RUNNERS}
            for name in in_turn(list(_RUNNERS), rounds):
                taken[name].append(workers[name].ask("step")["processor_s"])
            for worker in workers.values():
                worker.ask("memory")
        finally:
            for worker in workers.values():
                worker.stop()
    difference = logits_difference(*found) if case.task == "inference" else abs(found[0] / found[1] - 1)
    if difference > LOGITS_BOUNDS[case.precision]:
        raise BenchmarkError(f"`model` must compute what timm does.\nReceived: a difference of {difference:.2g}.")
    ours, timm = (min(taken[name]) for name in _RUNNERS)
    memory = [worker.facts["peak_memory"] - worker.facts["import_memory"] for worker in workers.values()]
    versions = workers["ours-model"].facts["versions"] | workers["timm"].facts["versions"]
    about = {**machine(), "commit": commit(), "date": now(), "task": case.task, "model": case.model}
    about |= {"image_size": case.image_size, "batch": case.batch, "precision": case.precision, "rounds": rounds}
    about |= {"processor_s": ours, "timm_processor_s": timm, "ratio": ours / timm, "memory": memory[0]}
    about |= {"timm_memory": memory[1], "difference": difference}
    return about | {"versions": "; ".join(f"{key} {number}" for key, number in versions.items())}


if __name__ == "__main__":
    main()
