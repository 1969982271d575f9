"""The benchmark of the data's way runs, and says how it went in numbers."""

import csv
import os
import subprocess
import sys

import pytest
from conftest import ROOT

from keras_vit.config.datasets import SHARD_FORMATS


def measured(name, folder):
    """The rows that a benchmark writes of a few photos."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--csv", str(folder / "rows.csv")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    small = ["--photos", "40", "--rounds", "2", "--batches", "2", "--batch-size", "4"]
    done = subprocess.run([*command, *small], capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    with open(folder / "rows.csv", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_kind_of_shard_is_measured(tmp_path):
    rows = measured("shards", tmp_path)
    assert [row["shards"] for row in rows] == ["folder", *SHARD_FORMATS, "parquet, snappy"]
    assert all(0 < float(row["ms_an_image"]) < 1000 for row in rows)


@pytest.mark.slow
def test_every_loader_is_measured(tmp_path):
    rows = measured("data", tmp_path)
    assert {row["loader"] for row in rows if row["change"] == "crop, flip"} >= {"keras_vit", "tf.data", "Pillow"}
    assert all(0 < float(row["ms_an_image"]) < 1000 for row in rows)
    assert all(row["ratio"] == "1.0" for row in rows if row["loader"] == "tf.data")
