"""From what is asked to rows: files are written once, each runner is checked, then all are timed in turn."""

import dataclasses
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from keras_vit.benchmarking.agreement import (
    LOGITS_BOUNDS,
    LOSS_BOUNDS,
    cross_entropy,
    logits_difference,
    loss_difference,
    reason_to_leave_out,
)
from keras_vit.benchmarking.machine import commit, machine, now
from keras_vit.benchmarking.measuring import fastest, in_turn, measured, ratio, spread
from keras_vit.benchmarking.request import FRESH, PEERS, Benchmark, Case
from keras_vit.benchmarking.workers import Worker, WorkerError, worker_of
from keras_vit.config.flops import TRAINING_PASSES, flops

_ENGINE_PREFIX = "ours-"
_FOUND = (  # by a process
    *("engine", "peak_memory", "import_memory", "device_memory", "accelerator"),
    *("import_s", "build_s", "load_s", "first_s", "logits_difference", "loss_difference"),
)
_LAYOUTS = {"timm": "timm.safetensors", "huggingface": "huggingface"}  # a file, and a folder


class BenchmarkError(RuntimeError):
    """A benchmark that cannot give rows, or compared nothing."""


def benchmark(asked: Benchmark) -> Iterator[dict]:
    """Measures what is asked, and gives a row for each runner as soon as its case is done.

    Every row has all of `results.FIELDS` and `left_out`, the reason why a runner was not timed, or `None`.

    Raises:
        BenchmarkError: if this package's own model cannot be made, or a process ends while it is timed.
    """
    about = {**machine(), "commit": commit()}
    floats = [name for name in asked.precisions if name != "int8"]
    peaks = {name: _matrix_peak(asked, name) for name in floats} if asked.matrix_peak else {}
    waiting = list(asked.cases())
    while waiting:
        model, side = waiting[0].model, waiting[0].image_size
        with tempfile.TemporaryDirectory(prefix="keras_vit-") as folder:
            files = _prepared(asked, waiting[0], Path(folder))
            while waiting and (waiting[0].model, waiting[0].image_size) == (model, side):
                case = waiting.pop(0)
                try:
                    yield from _rows(asked, case, files, about, peaks.get(case.precision))
                except WorkerError as error:
                    raise BenchmarkError(f"a runner must last until it was timed.\nReceived: {error}.") from error


def _prepared(asked, case, folder):
    """Paths of the files that runners read, by what they hold."""
    layouts = sorted({layout for name in asked.peers if (layout := PEERS[name].layout)})
    names = {"official": "official.npz", "images": "images.npy", "labels": "labels.npy", "logits": "logits.npy"}
    names |= {layout: _LAYOUTS[layout] for layout in layouts}
    files = {name: str(folder / file) for name, file in names.items()}
    once = Case(case.model, case.image_size, max(asked.batches), "float32", "inference")
    on_cpu = dataclasses.replace(asked, device="cpu")  # where float32 is float32
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


def _rows(asked, case, files, about, peak):
    names = [f"{_ENGINE_PREFIX}{name}" for name in asked.own_runners(case.task)]
    names += [name for name in dict.fromkeys(asked.peers) if name not in names]
    measure = _fresh if case.task in FRESH else _together
    facts, seconds = measure(asked, case, files, names)
    return _filled(asked, case, facts, seconds, about, peak)


def _together(asked, case, files, names):
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
        for _ in range(asked.warmup - 1):  # the check was the first
            for worker in timed.values():
                worker.step()
        seconds = measured(timed, asked.rounds)
        for worker in timed.values():
            worker.ask("memory")
    finally:
        for worker in workers.values():
            worker.stop()
    return facts, seconds


def _fresh(asked, case, files, names):
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


def _not_had(name, case):
    """Why a peer is left out before it runs."""
    if name in PEERS and case.task not in PEERS[name].tasks:
        return {"left_out": f"{name} has no {case.task}"}
    if name in PEERS and case.precision not in PEERS[name].precisions:
        return {"left_out": f"{name} has no {case.precision} here"}
    return {}


def _checked(worker, case, files):
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
        if reason := reason_to_leave_out(what, difference, bound):
            worker.facts["left_out"] = reason
    worker.facts |= _hint(worker.name, worker.facts)
    return worker.facts


def _hint(name, facts):
    """What to install for a peer that is not there."""
    if not facts.get("missing") or name not in PEERS:
        return {}
    options = {"peers_python": "--peers-python", "hub_python": "--hub-python", None: "this one"}
    where = options[PEERS[name].python]
    return {"left_out": f"{facts['left_out']}. Run `pip install {PEERS[name].needs}` for the interpreter of {where}."}


def _filled(asked, case, facts, seconds, about, peak):
    """Rows with every field."""
    peers = [name for name in facts if name in PEERS]
    date = now()  # one for all rows, by which they are known as of one run
    first = fastest(seconds, peers)
    work = _flops(case)
    for name, found in facts.items():
        taken = seconds.get(name)
        middle = None if taken is None else statistics.median(taken)
        counted = taken is not None and work is not None
        runtime = found.get("engine", name.removeprefix(_ENGINE_PREFIX))
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
            "images_per_s": case.batch / middle if counted else None,
            "spread": None if taken is None else spread(taken),
            "fastest_peer": first,
            "ratio_to_fastest_peer": ratio(taken, seconds[first]) if taken and first else None,
            "ratio_to_same_runtime": ratio(taken, seconds[same]) if taken and same else None,
            "flops": work,
            "share_of_peak": work / middle / peak if counted and peak else None,
            **{field: found.get(field) for field in _FOUND},
            "versions": "; ".join(f"{name} {number}" for name, number in (found.get("versions") or {}).items()),
            "left_out": found.get("left_out"),
        }


def _flops(case):
    """Of one call, as ours computes the model; `None` where nothing is called."""
    if case.task in FRESH:
        return None
    passes = TRAINING_PASSES if case.task == "train" else 1
    return flops(case.model, case.image_size).total * case.batch * passes


def _matrix_peak(asked, precision):
    """FLOPs a second of a product of two large square matrices, on the backend of ours."""
    case = Case(asked.models[0], asked.image_sizes[0], asked.matrix_peak, precision, "inference")
    with tempfile.TemporaryDirectory(prefix="keras_vit-") as folder:
        worker = worker_of("matrix", asked, case, {})
        try:
            for line in ("start", f"check {folder}/work.npy"):
                if "left_out" in worker.try_to(line):
                    raise BenchmarkError(f"the matrix product must run.\nReceived: {worker.left_out}.")
            work = float(np.load(f"{folder}/work.npy")[0, 0])
            (seconds,) = measured({"matrix": worker}, asked.rounds).values()
        finally:
            worker.stop()
    return work / statistics.median(seconds)
