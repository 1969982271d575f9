"""From what is asked to rows: files are written once, each runner is checked, then all are timed in turn."""

import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.request import FRESH, PEERS, Benchmark, Case
from benchmarks.results import commit, machine, now
from benchmarks.workers import Worker, WorkerError, worker_of
from keras_vit.config.flops import TRAINING_PASSES, flops

# The largest difference of logits over their standard deviation. Seen for Ti/16 at 32 pixels: up to 4.3e-6 in float32,
# and 0.04 to 0.06 in bfloat16, which keeps 8 bits of each value. Exact GELU in place of tanh differs by 7e-4.
LOGITS_BOUNDS = {"float32": 5e-5, "bfloat16": 0.25, "int8": 0.5}
LOSS_BOUNDS = {"float32": 1e-4, "bfloat16": 2e-2}  # shares of the loss; seen are 7.5e-8 and 1.3e-3
WARMUP = 2  # calls that are not timed; the first is the one that is compared
_OURS = "ours-"
_FOUND = (  # by a process
    *("engine", "peak_memory", "import_memory", "device_memory", "accelerator"),
    *("import_s", "build_s", "load_s", "first_s", "logits_difference", "loss_difference"),
)
_LAYOUTS = {"timm": "timm.safetensors", "huggingface": "huggingface"}  # a file, and a folder
Seconds = Mapping[str, Sequence[float]]  # of each round, by runner


class BenchmarkError(RuntimeError):
    """A benchmark that cannot give rows."""


def benchmark(asked: Benchmark) -> Iterator[dict]:
    """Measures what is asked, and gives a row for each runner as soon as its case is done.

    Every row has all of `results.FIELDS` and `left_out`, the reason why a runner was not timed, or `None`.

    Raises:
        BenchmarkError: if this package's own model cannot be made, or a process ends while it is timed.
    """
    about = {**machine(), "commit": commit()}
    waiting = list(asked.cases())
    while waiting:
        model, side = waiting[0].model, waiting[0].image_size
        with tempfile.TemporaryDirectory(prefix="keras_vit-") as folder:
            files = prepared(asked, waiting[0], Path(folder))
            while waiting and (waiting[0].model, waiting[0].image_size) == (model, side):
                case = waiting.pop(0)
                try:
                    yield from _rows(asked, case, files, about)
                except WorkerError as error:
                    raise BenchmarkError(f"a runner must last until it was timed.\nReceived: {error}.") from error


def prepared(asked: Benchmark, case: Case, folder: Path) -> dict[str, str]:
    """Paths of the files that runners read, by what they hold."""
    layouts = sorted({layout for name in asked.against if (layout := PEERS[name].layout)})
    names = {"official": "official.npz", "images": "images.npy", "labels": "labels.npy", "logits": "logits.npy"}
    names |= {layout: _LAYOUTS[layout] for layout in layouts}
    files = {name: str(folder / file) for name, file in names.items()}
    once = Case(case.model, case.image_size, max(asked.batch), "float32", "inference")
    on_cpu = replace(asked, device="cpu")  # where float32 is float32
    worker = worker_of("prepare", on_cpu, once, files, layouts=layouts)
    try:
        for line in ("start", f"check {files['logits']}"):
            if "left_out" in worker.try_to(line):
                raise BenchmarkError(
                    f"our own model must run, whose weights all runners get.\nReceived: {worker.left_out}."
                )
    finally:
        worker.stop()
    return files


def _rows(asked: Benchmark, case: Case, files: dict[str, str], about: dict) -> Iterator[dict]:
    names = [f"{_OURS}{name}" for name in asked.own_runners(case.task)] + list(dict.fromkeys(asked.against))
    measure = _fresh if case.task in FRESH else _together
    facts, seconds = measure(asked, case, files, names)
    return _filled(asked, case, facts, seconds, about)


def _together(
    asked: Benchmark, case: Case, files: dict[str, str], names: list[str]
) -> tuple[dict[str, dict], dict[str, list[float]]]:
    """Facts by runner and seconds by runner, of processes that live side by side and are called in turn."""
    workers: dict[str, Worker] = {}
    facts = {name: _not_had(name, case) for name in names}
    try:
        for name in (name for name in names if not facts[name]):
            worker = workers[name] = worker_of(name, asked, case, files)
            facts[name] = _checked(worker, case, files)
            if worker.left_out:
                worker.stop()  # its memory is for the others
        timed = {name: worker for name, worker in workers.items() if not worker.left_out}
        for _ in range(WARMUP - 1):
            for worker in timed.values():
                worker.step()
        seconds = measured(timed, asked.rounds)
        for worker in timed.values():
            worker.ask("memory")
    finally:
        for worker in workers.values():
            worker.stop()
    return facts, seconds


def _fresh(
    asked: Benchmark, case: Case, files: dict[str, str], names: list[str]
) -> tuple[dict[str, dict], dict[str, list[float]]]:
    """The same of tasks that a process does once: a process for each round, after one that is not timed."""
    facts = {name: _not_had(name, case) for name in names}
    seconds: dict[str, list[float]] = {}
    running = [name for name in names if not facts[name]]
    for number, name in enumerate(in_turn(running, asked.rounds + 1)):
        if "left_out" in facts[name]:
            continue
        worker = worker_of(name, asked, case, files)
        try:
            worker.try_to("start")
            if not worker.left_out:
                worker.ask("memory")
        finally:
            worker.stop()
        facts[name] = worker.facts | _hint(name, worker.facts)
        if not worker.left_out and number >= len(running):
            seconds.setdefault(name, []).append(worker.facts[f"{case.task}_s"])
    return facts, {name: taken for name, taken in seconds.items() if "left_out" not in facts[name]}


def _not_had(name: str, case: Case) -> dict[str, str]:
    """Why a peer is left out before it runs."""
    if name in PEERS and case.task not in PEERS[name].tasks:
        return {"left_out": f"{name} has no {case.task}"}
    if name in PEERS and case.precision not in PEERS[name].precisions:
        return {"left_out": f"{name} has no {case.precision} here"}
    return {}


def _checked(worker: Worker, case: Case, files: dict[str, str]) -> dict:
    """The facts of a process that has made its first call, and was compared; they say if it is left out."""
    found = Path(files["logits"]).with_name(f"{worker.name.replace('/', '_')}.npy")
    answer = worker.try_to("start")
    if not worker.left_out:
        answer = worker.try_to(f"check {found}")
    if not worker.left_out:
        wanted = np.load(files["logits"])[: case.batch]
        if case.task == "train":
            loss = cross_entropy(wanted, np.load(files["labels"])[: case.batch])
            difference, bound = loss_difference(answer["loss"], loss), LOSS_BOUNDS[case.precision]
            field, what = "loss_difference", "the first loss by a share of itself"
        else:
            difference, bound = logits_difference(np.load(found), wanted), LOGITS_BOUNDS[case.precision]
            field, what = "logits_difference", "logits by a share of their deviation"
        worker.facts[field] = difference
        if difference > bound:
            difference_text = f"({what}: {difference:.2g}, where {bound:.2g} is allowed)"
            worker.facts["left_out"] = f"computes something else {difference_text}"
    worker.facts |= _hint(worker.name, worker.facts)
    return worker.facts


def _hint(name: str, facts: dict) -> dict[str, str]:
    """What to install for a peer that is not there."""
    if not facts.get("missing") or name not in PEERS:
        return {}
    where = PEERS[name].variable or "this interpreter"
    return {"left_out": f"{facts['left_out']}. Run `pip install {PEERS[name].needs}` for {where}."}


def _filled(asked: Benchmark, case: Case, facts: dict[str, dict], seconds: Seconds, about: dict) -> Iterator[dict]:
    """Rows with every field."""
    date = now()  # one for all rows, by which they are known as of one run
    first = fastest(seconds, [name for name in facts if name in PEERS])
    work = _flops(case)
    for name, found in facts.items():
        taken = seconds.get(name)
        middle = None if taken is None else statistics.median(taken)
        runtime = found.get("engine", name.removeprefix(_OURS))
        same = runtime if name not in PEERS and runtime in PEERS and runtime in seconds else None
        yield {
            "date": date,
            **about,
            "runner": name,
            "side": "peer" if name in PEERS else "ours",
            **{field: getattr(case, field) for field in ("model", "image_size", "batch", "precision", "task")},
            **{field: getattr(asked, field) for field in ("threads", "optimizer", "activation", "backend", "device")},
            "rounds": asked.rounds,
            "median_s": middle,
            "images_per_s": case.batch / middle if middle and work else None,
            "spread": None if taken is None else spread(taken),
            "fastest_peer": first,
            "ratio_to_fastest_peer": ratio(taken, seconds[first]) if taken and first else None,
            "ratio_to_same_runtime": ratio(taken, seconds[same]) if taken and same else None,
            "flops": work,
            **{field: found.get(field) for field in _FOUND},
            "versions": "; ".join(f"{name} {number}" for name, number in (found.get("versions") or {}).items()),
            "left_out": found.get("left_out"),
        }


def _flops(case: Case) -> int | None:
    """Of one call, as this package computes the model; `None` where nothing is called."""
    if case.task in FRESH:
        return None
    passes = TRAINING_PASSES if case.task == "train" else 1
    return flops(case.model, case.image_size).total * case.batch * passes


def in_turn(names: Sequence[str], rounds: int) -> list[str]:
    """The order of calls: forth in one round and back in the next, so that none always follows the same."""
    return [name for number in range(rounds) for name in list(names)[:: -1 if number % 2 else 1]]


def measured(workers: Mapping[str, Worker], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call, by runner; raises `WorkerError` if a process ends."""
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for name in in_turn(list(workers), rounds):
        seconds[name].append(workers[name].step())
    return seconds


def spread(seconds: Sequence[float]) -> float:
    """The distance of the quartiles over the median; 0 for one call."""
    if len(seconds) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle


def ratio(own: Sequence[float], other: Sequence[float]) -> float:
    """Median over rounds of one's seconds over the other's in the same round."""
    return statistics.median(a / b for a, b in zip(own, other, strict=True))


def fastest(seconds: Seconds, names: Sequence[str]) -> str | None:
    """Of these the one with the least median; `None` of none."""
    timed = [name for name in names if name in seconds]
    return min(timed, key=lambda name: statistics.median(seconds[name]), default=None)


def logits_difference(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference over the deviation of `wanted`, both `(B, K)`; infinite for another shape or for NaN."""
    if found.shape != wanted.shape:
        return float("inf")
    difference = float(np.abs(found.astype("float64") - wanted).max() / wanted.std(dtype="float64"))
    return difference if np.isfinite(difference) else float("inf")


def loss_difference(found: float, wanted: float) -> float:
    """The difference over `wanted`; infinite for NaN."""
    difference = abs(found - wanted) / abs(wanted)
    return difference if np.isfinite(difference) else float("inf")


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    """Mean softmax cross-entropy of logits `(B, K)` for labels `(B,)`, in float64."""
    logits = logits.astype("float64") - logits.max(axis=1, keepdims=True)
    chosen = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    return float(np.mean(np.log(np.exp(logits).sum(axis=1)) - chosen))
