"""Runs of two processes of which one is killed, and runs that go on with another number of processes (T6, T12)."""

import json
import random
import re
import time

import numpy as np
import pytest
from conftest import QUICK_XLA
from run_files import assert_same_run, figures, finished, newest, outputs_of, start_processes

pytest.importorskip("jax")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
KILLS, STEPS = 20, 280


def started(out, processes, steps, layout="replicated"):
    words = f"finetune --data digits --batch-size 128 --steps {steps} --checkpoint-every 4 --ema 0.9 --layout {layout}"
    return start_processes(["-m", "keras_vit", *words.split(), "--out", out], processes, XLA_FLAGS=QUICK_XLA)


def wait_for_checkpoint(out, step, processes):
    """Waits until there is a newer checkpoint than that."""
    while newest(out) <= step and processes[0].poll() is None:
        time.sleep(0.05)


def test_20_kills_of_one_of_two_processes_leave_a_run_that_both_go_on_with(tmp_path):
    """Killed at random, the first or the second; JAX ends the other one."""
    rng, out, resumed = random.Random(12), tmp_path / "run", 0
    finished(started(tmp_path / "undisturbed", 2, STEPS))
    for _ in range(KILLS):
        before, processes = newest(out), started(out, 2, STEPS)
        wait_for_checkpoint(out, before, processes)
        time.sleep(rng.uniform(0, 1))
        rng.choice(processes).kill()
        outputs = outputs_of(processes, 120)
        assert all(process.returncode for process in processes), outputs
        resumed += "goes on from step " in outputs[0]
    assert resumed == KILLS - 1
    assert "goes on from step " in finished(started(out, 2, STEPS))
    assert_same_run(out, tmp_path / "undisturbed")


@pytest.mark.parametrize("layout", ["replicated", "tensor:2"])
@pytest.mark.parametrize("processes", [1, 4])
def test_run_of_two_processes_goes_on_with_one_and_with_four(tmp_path, processes, layout):
    """The same losses, whatever wrote the checkpoint and whatever reads it: each image was seen as often."""
    whole, out = tmp_path / "whole", tmp_path / "run"
    finished(started(whole, 2, 44, layout))
    first = started(out, 2, 44, layout)
    wait_for_checkpoint(out, "step-0000000015-epoch-999999", first)
    for process in first:
        process.kill()
    outputs_of(first)
    said = finished(started(out, processes, 44))
    assert int(re.search(r"goes on from step (\d+)", said)[1]) >= 16
    ours, theirs = (
        np.array([[float(x) for x in row.split(",")] for row in figures(path)[1:]]) for path in (out, whole)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    ours, theirs = (json.loads((path / "result.json").read_text()) for path in (out, whole))
    assert ours["test_images"] == theirs["test_images"]
