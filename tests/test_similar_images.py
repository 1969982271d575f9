"""The search for similar images and the benchmark of what is served run as a user runs them."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from PIL import Image


def run(script, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, str(ROOT / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_similar_digits_are_found_more_often_than_by_lot(tmp_path):
    printed = run("examples/similar_images.py", "--epochs", 2, "--neighbours", 3, "--out", tmp_path / "sheet.png")
    result = json.loads(printed.splitlines()[-1])
    assert (result["queries"], result["gallery"]) == (179, 1439)
    assert result["precision"] > 4 * result["chance"]  # ten classes, two epochs
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.height > sheet.width > 300  # eight rows of four


@pytest.mark.slow
def test_benchmark_of_serving_measures_every_path():
    printed = run("benchmarks/serve.py", "--variant", "Ti/16", "--image-size", 32, "--rounds", 2, "--batch-sizes", 1)
    rows = [line.split("  ")[0] for line in printed.splitlines()]
    for path in ("SavedModel", "SavedModel, session", "tf.function", "tf.function, XLA", "predict_on_batch"):
        assert path in rows
    assert "over the fastest in-process path" in printed
