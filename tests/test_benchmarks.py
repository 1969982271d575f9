"""The benchmark of training runs, and says how it went in numbers. Peers are measured with `-m peers` only."""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

SMALL = ["--variant", "Ti/16", "--image-size", "32", "--batch-size", "2", "--rounds", "2"]


def run(*options):
    command = [sys.executable, str(ROOT / "benchmarks" / "train.py"), *SMALL, *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_training_benchmark_measures_ours():
    heading, row = run("--only", "ours", "--dtypes", "bfloat16")
    assert heading[0] == "bfloat16"
    name, seconds, _, ratio, memory = row
    assert (name, ratio) == ("ours", "1.000")
    assert 0 < float(seconds) < 60
    assert 0.1 < float(memory) < 8  # GiB


@pytest.mark.peers
def test_training_benchmark_measures_every_peer():
    rows = run("--dtypes", "float32")
    assert [row[0] for row in rows] == ["float32", "ours", "timm", "timm-compiled", "keras-hub"]
    assert all(float(row[1]) > 0 for row in rows[1:])
