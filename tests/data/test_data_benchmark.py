"""The benchmark of the data's way runs, and says how it went in numbers."""

import csv
import os
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
def test_every_loader_is_measured(tmp_path):
    command = [sys.executable, "-m", "benchmarks.data", "--csv", str(tmp_path / "data.csv")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    small = ["--photos", "40", "--rounds", "2", "--batches", "2", "--batch-size", "4"]
    done = subprocess.run([*command, *small], capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    with open(tmp_path / "data.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["loader"] for row in rows if row["change"] == "crop, flip"} >= {"keras_vit", "tf.data", "Pillow"}
    assert all(0 < float(row["ms_an_image"]) < 1000 for row in rows)
    assert all(row["ratio"] == "1.0" for row in rows if row["loader"] == "tf.data")
