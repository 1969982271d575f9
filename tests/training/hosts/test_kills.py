"""Runs of two processes of which one is killed, and runs that go on with another number of processes (T6, T12)."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import QUICK_XLA, ROOT
from run_files import assert_same_run, figures

pytest.importorskip("jax")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
KILLS, STEPS = 20, 280


def started(out, processes, steps, *options):
    """`keras-vit launch ... finetune`, whose lines are read from its output."""
    words = f"launch --processes {processes} finetune --data digits --batch-size 128 --steps {steps}".split()
    words += [*["--checkpoint-every", "4", "--ema", "0.9"], *options, "--out", str(out)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "XLA_FLAGS": QUICK_XLA}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "keras_vit", *words], cwd=ROOT, env=environment, **streams)


def finished(process):
    """All that it said, once it has ended well."""
    output, error = process.communicate(timeout=1800)
    assert process.returncode == 0, error[-3000:]
    return output


def children_of(process):
    return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def newest(out):
    """The name of the newest checkpoint."""
    return max((path.name for path in (out / "checkpoints").glob("*") if path.is_dir()), default="")


def test_20_kills_of_one_of_two_processes_leave_a_run_that_both_go_on_with(tmp_path):
    """Killed at random, the first or the second; the launcher ends the other one."""
    rng, out, resumed = random.Random(12), tmp_path / "run", 0
    finished(started(tmp_path / "undisturbed", 2, STEPS, "--layout", "replicated"))
    for _ in range(KILLS):
        before, process = newest(out), started(out, 2, STEPS, "--layout", "replicated")
        while newest(out) == before and process.poll() is None:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 1))
        os.kill(rng.choice(children_of(process)), signal.SIGKILL)
        output, error = process.communicate(timeout=120)
        assert process.returncode == 1, error[-3000:]
        resumed += "goes on from step " in output
    assert resumed == KILLS - 1
    assert "goes on from step " in finished(started(out, 2, STEPS, "--layout", "replicated"))
    assert_same_run(out, tmp_path / "undisturbed")


@pytest.mark.parametrize("layout", ["replicated", "tensor:2"])
@pytest.mark.parametrize("processes", [1, 4])
def test_run_of_two_processes_goes_on_with_one_and_with_four(tmp_path, processes, layout):
    """The same losses, whatever wrote the checkpoint and whatever reads it: each image was seen as often."""
    whole, out = tmp_path / "whole", tmp_path / "run"
    finished(started(whole, 2, 44, "--layout", layout))
    process = started(out, 2, 44, "--layout", layout)
    while newest(out) < "step-0000000016" and process.poll() is None:
        time.sleep(0.05)
    for child in children_of(process):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    process.communicate(timeout=120)
    said = finished(started(out, processes, 44, "--layout", "replicated"))
    assert int(re.search(r"goes on from step (\d+)", said)[1]) >= 16
    ours, theirs = (
        np.array([[float(x) for x in row.split(",")] for row in figures(path)[1:]]) for path in (out, whole)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    ours, theirs = (json.loads((path / "result.json").read_text()) for path in (out, whole))
    assert ours["test_images"] == theirs["test_images"]
