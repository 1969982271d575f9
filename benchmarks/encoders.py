"""`python -m benchmarks.encoders`: processor time of encoders on one core, here and in timm with the same weights.

Each runner has its own process, and is called in turn with the others. The least processor time of all calls counts:
other work on the machine changes it little.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import LOGITS_BOUNDS, BenchmarkError, in_turn, logits_difference
from benchmarks.request import PEERS, Benchmark
from benchmarks.results import FOLDER, append_to, commit, machine, now
from benchmarks.workers import Worker, WorkerError, environment
from keras_vit.checks import cores

MODELS = {  # timm's name, the layout of its file, and sides of images in pixels
    "dinov2/B14": ("vit_base_patch14_dinov2", "timm", (224, 518)),
    "dinov3/B16": ("vit_base_patch16_dinov3_qkvb", "timm_dinov3", (224, 512)),
}
RUNNERS = ("ours-tokens", "ours-pooled", "ours-onnxruntime", "ours-openvino")
FIELDS = (
    *("date", "commit", "machine", "avx512_bf16", "amx", "runner", "model", "image_size", "batch", "rounds"),
    *("processor_s", "timm_processor_s", "ratio", "difference", "versions"),
)
_FILE = Path(__file__).parent / "peers" / "encoders.py"


def main(arguments: list[str] | None = None) -> None:
    """Prints a line for each runner of each case, and adds it to `encoders.csv` in a folder."""
    parser = argparse.ArgumentParser("python -m benchmarks.encoders", description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(MODELS), nargs="+", default=list(MODELS))
    parser.add_argument("--image-size", type=int, nargs="+", help="pixels; two sizes of each model by default")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--runners", choices=RUNNERS, nargs="+", default=list(RUNNERS))
    parser.add_argument("--results", type=Path, default=FOLDER, metavar="FOLDER")
    asked = parser.parse_args(arguments)
    asked.results.mkdir(parents=True, exist_ok=True)
    for model in asked.model:
        for side in asked.image_size or MODELS[model][-1]:
            for batch in asked.batch:
                for row in measured(model, side, batch, asked.runners, asked.rounds):
                    print(*(row[name] for name in ("model", "image_size", "batch", "runner")), end=" ")
                    print(f"{row['processor_s'] * 1e3:.0f} ms, {row['ratio']:.3f} of timm's", flush=True)
                    append_to(asked.results / "encoders.csv", FIELDS, row)


def measured(model: str, side: int, batch: int, runners: list[str], rounds: int) -> Iterator[dict[str, Any]]:
    """A row with `FIELDS` for each runner, once it has computed what timm does.

    Raises:
        BenchmarkError: if a runner fails, or computes something else.
    """
    names = {"weights": "weights.safetensors", "images": "images.npy", "labels": "labels.npy", "tokens": "tokens.npy"}
    workers: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory(prefix="keras_vit-") as folder:
        files = {name: str(Path(folder, file)) for name, file in names.items()}
        peer, layout, _ = MODELS[model]
        job = {"model": model, "peer_model": peer, "layout": layout, "image_size": side, "batch": batch}
        job |= {"precision": "float32", "task": "inference", "threads": 1, "device": "cpu", "files": files}
        try:
            _checked(_worker("prepare", job), files["tokens"]).stop()
            for name in (*runners, "timm"):
                workers[name] = _checked(_worker(name, job), str(Path(folder, f"{name}.npy")))
            wanted = np.load(Path(folder, "timm.npy"))
            found = {name: np.load(Path(folder, f"{name}.npy")) for name in runners}
            taken: dict[str, list[float]] = {name: [] for name in workers}
            for name in in_turn(list(workers), rounds):
                taken[name].append(workers[name].ask("step")["processor_s"])
        except WorkerError as error:
            raise BenchmarkError(f"a runner must last until it was timed.\nReceived: {error}.") from error
        finally:
            for worker in workers.values():
                worker.stop()
    about = {**machine(), "commit": commit(), "date": now(), "model": model, "image_size": side, "batch": batch}
    for name in runners:
        difference = logits_difference(found[name], wanted if found[name].ndim == 3 else wanted[:, 0])
        if difference > LOGITS_BOUNDS["float32"]:
            raise BenchmarkError(f"{name} must compute what timm does.\nReceived: a difference of {difference:.2g}.")
        versions = workers[name].facts["versions"] | workers["timm"].facts["versions"]
        row = {"runner": name, "rounds": rounds, "difference": difference, "processor_s": min(taken[name])}
        row |= {"timm_processor_s": min(taken["timm"]), "ratio": min(taken[name]) / min(taken["timm"])}
        yield about | row | {"versions": "; ".join(f"{key} {number}" for key, number in versions.items())}


def _worker(name: str, job: dict) -> Worker:
    python = PEERS["timm"].python if name == "timm" else sys.executable
    job = {**job, "runner": name, "cores": cores()[:1]}
    return Worker(name, python, _FILE, job, environment(Benchmark(), "float32", own=name != "timm"))


def _checked(worker: Worker, answer: str) -> Worker:
    """The process once its first call is done, and what that gave is in the file `answer`."""
    for line in ("start", f"check {answer}"):
        if "left_out" in worker.try_to(line):
            worker.stop()
            raise BenchmarkError(f"every runner must run.\nReceived: {worker.name} {worker.left_out}.")
    return worker


if __name__ == "__main__":
    main()
