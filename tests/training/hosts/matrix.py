"""Starts the processes of `training_cases.py`, and compares what several devices came to with one."""

import itertools
from pathlib import Path

import numpy as np
from conftest import QUICK_XLA
from run_files import finished, start_processes

HERE = Path(__file__).parent
DEVICES = 4
TOLERANCES = {"float32": 1e-5, "mixed_bfloat16": 5e-3, "mixed_float16": 5e-2}  # issue "Scale", acceptance 2


def run_cases(cases, processes, folder, timeout=550):
    """`{case: {name: array}}`, trained on 4 forced devices of one process, or on 4 that processes share."""
    folder.mkdir(parents=True, exist_ok=True)
    run_script(["training_cases.py", folder, *cases], processes, timeout)
    return {case: dict(np.load(folder / f"{number}.npz")) for number, case in enumerate(cases)}


def run_script(arguments, processes=1, timeout=550, devices=DEVICES):
    """Runs a script of this folder in so many processes that share forced devices; gives what the first printed."""
    flags = f"{QUICK_XLA} --xla_force_host_platform_device_count={devices // processes}"
    words = [HERE / arguments[0], *arguments[1:]]
    return finished(start_processes(words, processes, JAX_PLATFORMS="cpu", XLA_FLAGS=flags), timeout)


def furthest(found, expected):
    """The largest difference of losses, and that of any weight, moment or average by the largest of its kind."""
    losses = float(np.abs(found["losses"] - expected["losses"]).max())
    names = [name for name in expected if name != "losses"]
    assert set(names) == set(found) - {"losses"}
    assert all(np.isfinite(found[name]).all() for name in names)
    weights = [name for name in names if name.startswith("weight")]
    largest = max(float(np.abs(expected[name]).max()) for name in weights)
    return losses, max(float(np.abs(found[name] - expected[name]).max()) for name in weights) / largest


FACTORS = {
    "kind": ("data", "fsdp", "tensor"),
    "optimizer": ("sgd", "adamw"),
    "clip": ("clip", "unclipped"),
    "accumulation": ("1", "4"),
    "precision": tuple(TOLERANCES),
    "extra": ("ema", "layers", "executions"),
}


def every_case(kind):
    """All 72 cases of a kind; `"one"` is one device."""
    return [" ".join((kind, *values)) for values in itertools.product(*list(FACTORS.values())[1:])]


def covering_cases():
    """Few cases in which any two values of different factors meet, found greedily."""
    waiting = {pair for case in itertools.product(*FACTORS.values()) for pair in pairs_of(case)}
    found = []
    while waiting:
        best = max(itertools.product(*FACTORS.values()), key=lambda case: len(waiting & pairs_of(case)))
        waiting -= pairs_of(best)
        found.append(" ".join(best))
    return found


def pairs_of(case):
    return set(itertools.combinations(enumerate(case), 2))


def on_one(case):
    """The same case on one device."""
    return " ".join(("one", *case.split()[1:]))


def precision_of(case):
    return next(name for name in TOLERANCES if name in case)
