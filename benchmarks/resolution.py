"""`python -m benchmarks.resolution`: processor time and memory for growing images, here and in timm, on one core.

All processes are called in turn. The least processor time of all calls counts: other work on the machine changes it
little. Memory is the most that a process ever had beyond its imports, so that of `accelerate` has what builds it.
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import LOGITS_BOUNDS, BenchmarkError, in_turn, logits_difference, prepared
from benchmarks.request import Benchmark, Case
from benchmarks.results import FOLDER, append_to, commit, machine, now
from benchmarks.workers import Worker, worker_of

FIELDS = (
    *("date", "commit", "machine", "avx512_bf16", "amx", "task", "runner", "model", "image_size", "batch"),
    *("precision", "rounds"),
    *("processor_s", "timm_processor_s", "ratio", "memory", "timm_memory", "difference", "versions"),
)
_RUNNERS = ("model", "tensorflow", "openvino", "onnxruntime")


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each case, and adds it to `resolution.csv` in a folder."""
    parser = argparse.ArgumentParser("python -m benchmarks.resolution", description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="B/16")
    parser.add_argument("--image-size", type=int, nargs="+", default=[224, 384, 512, 1024], help="pixels")
    parser.add_argument("--precision", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--task", choices=("inference", "train"), default="inference")
    parser.add_argument("--runner", nargs="+", choices=_RUNNERS, default=["model"], help="or engines of `accelerate`")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER")
    asked = parser.parse_args(arguments)
    asked.results.mkdir(parents=True, exist_ok=True)
    for side in asked.image_size:
        for precision in asked.precision:
            case = Case(asked.model, side, asked.batch, precision, asked.task)
            for row in measured(case, [f"ours-{name}" for name in asked.runner], asked.rounds):
                what = f"{asked.task} by {row['runner']} at {side} in {precision}"
                memory = f"{row['memory'] / 2**30:.2f} GiB for {row['timm_memory'] / 2**30:.2f}"
                print(f"{what}: {row['ratio']:.3f} of timm's time, {memory}", flush=True)
                append_to(asked.results / "resolution.csv", FIELDS, row)


def measured(case: Case, runners: Sequence[str], rounds: int) -> Iterator[dict[str, Any]]:
    """Rows with `FIELDS`, one for each runner of this package.

    Raises:
        BenchmarkError: if one of them cannot run here, or computes something else than timm.
    """
    workers, found = {}, {}
    asked, names = Benchmark(against=("timm",), batch=(case.batch,)), [*runners, "timm"]
    with tempfile.TemporaryDirectory(prefix="keras_vit-") as folder:
        files = prepared(asked, case, Path(folder))
        try:
            for name in names:
                workers[name] = worker_of(name, asked, case, files)
                found[name] = _first(workers[name], f"{folder}/{name}.npy")
            taken: dict[str, list[float]] = {name: [] for name in names}
            for name in in_turn(names, rounds):
                taken[name].append(workers[name].ask("step")["processor_s"])
            for worker in workers.values():
                worker.ask("memory")
        finally:
            for worker in workers.values():
                worker.stop()
    about = {**machine(), "commit": commit(), "date": now(), "task": case.task, "model": case.model}
    about |= {"image_size": case.image_size, "batch": case.batch, "precision": case.precision, "rounds": rounds}
    timm = workers["timm"].facts
    about |= {"timm_processor_s": min(taken["timm"]), "timm_memory": timm["peak_memory"] - timm["import_memory"]}
    for name in runners:
        facts = workers[name].facts
        versions = "; ".join(f"{key} {number}" for key, number in (facts["versions"] | timm["versions"]).items())
        row = {"runner": name, "processor_s": min(taken[name]), "ratio": min(taken[name]) / min(taken["timm"])}
        row |= {"memory": facts["peak_memory"] - facts["import_memory"], "versions": versions}
        yield about | row | {"difference": _difference(found[name], found["timm"], case)}


def _first(worker: Worker, file: str) -> Any:
    """What the first call of a process gives: its logits, or its loss."""
    for line in ("start", f"check {file}"):
        answer = worker.try_to(line)
        if worker.left_out:
            raise BenchmarkError(f"every runner must run.\nReceived: {worker.name} {worker.left_out}.")
    return answer["loss"] if "loss" in answer else np.load(file)


def _difference(found: Any, wanted: Any, case: Case) -> float:
    difference = logits_difference(found, wanted) if case.task == "inference" else abs(found / wanted - 1)
    if difference > LOGITS_BOUNDS[case.precision]:
        raise BenchmarkError(f"this package must compute what timm does.\nReceived: a difference of {difference:.2g}.")
    return difference


if __name__ == "__main__":
    main()
