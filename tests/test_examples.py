"""The examples run as a user runs them; their last line is one JSON object."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT


def run_example(name, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, ROOT / "examples" / name, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, json.loads(done.stdout.splitlines()[-1])


def test_transfer_digits_runs_and_reloads_what_it_saved():
    arguments = ("--pretrain-epochs", 3, "--finetune-epochs", 3, "--copies", 1)
    printed, result = run_example("transfer_digits.py", *arguments)
    assert "position embedding resized from (4, 4) to (8, 8)" in printed
    assert "29/29" in printed  # Keras' progress bar: 901 digits in batches of 32
    assert set(result) == {"transfer_accuracy", "scratch_accuracy", "reload_difference", "seconds"}
    assert result["reload_difference"] == 0
    assert result["transfer_accuracy"] > 0.5  # five classes, three short epochs


@pytest.mark.slow
def test_transfer_digits_profits_from_the_pretraining():
    _, result = run_example("transfer_digits.py")
    assert result["transfer_accuracy"] >= 0.97
    assert result["transfer_accuracy"] > result["scratch_accuracy"]
