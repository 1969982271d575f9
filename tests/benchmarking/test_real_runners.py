"""`python -m benchmarks` with real runners at a small size. Peers are measured with `-m peers` only.

They are found by KERAS_VIT_PEERS_PYTHON and KERAS_VIT_HUB_PYTHON, else in this interpreter.
"""

import os
import subprocess
import sys

import pytest
from conftest import ROOT

from benchmarks.results import read

SMALL = ["--model", "Ti/16", "--image-size", "32", "--batch", "2", "--rounds", "2", "--activation", "gelu"]
pytestmark = pytest.mark.timeout(900)  # each runner is a process that imports its framework


def run(folder, *options):
    """Rows of the command by runner, precision and task, and the lines that it printed."""
    command = [sys.executable, "-m", "benchmarks", *SMALL, "--results", str(folder), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=880)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return {(row["runner"], row["precision"], row["task"]): row for row in read(folder)}, done.stdout


def check(row, precision):
    assert 0 < row["median_s"] < 60
    assert 1e8 < row["peak_memory"] < 8e9
    if row["runner"] == "ours-model":
        assert row["import_memory"] < row["peak_memory"]
        assert min(row[name] for name in ("import_s", "build_s", "load_s", "first_s")) > 0
        assert "keras 3." in row["versions"]
    field, bounds = ("loss_difference", (1e-4, 2e-2)) if row["task"] == "train" else ("logits_difference", (5e-5, 0.25))
    assert 0 <= row[field] <= bounds[precision == "bfloat16"]


@pytest.mark.slow
def test_training_of_ours_is_measured_in_both_precisions(tmp_path):
    rows, _ = run(tmp_path, "--task", "train", "--precision", "float32,bfloat16", "--optimizer", "sgd")
    assert set(rows) == {("ours-model", precision, "train") for precision in ("float32", "bfloat16")}
    for (_, precision, _), row in rows.items():
        check(row, precision)


@pytest.mark.slow
def test_every_engine_is_measured(tmp_path):
    names = ("model", "xla", "tensorflow", "openvino", "onnxruntime", "auto")
    rows, _ = run(tmp_path, "--runners", ",".join(names))
    assert [runner for runner, _, _ in rows] == [f"ours-{name}" for name in names]
    for row in rows.values():
        check(row, "float32")
    engines = {row["runner"]: row["engine"] for row in rows.values()}
    assert engines.pop("ours-auto") in ("tensorflow", "xla", "openvino", "onnxruntime")
    assert engines["ours-openvino"] == "openvino"


@pytest.mark.slow
def test_jax_is_measured(tmp_path):
    rows, _ = run(tmp_path, "--backend", "jax", "--task", "inference,train")
    assert set(rows) == {("ours-model", "float32", "inference"), ("ours-model", "float32", "train")}
    for row in rows.values():
        check(row, "float32")
        assert row["backend"] == "jax"


@pytest.mark.slow
def test_building_and_loading_of_ours_are_measured_against_numpy(tmp_path):
    rows, said = run(tmp_path, "--task", "build,load", "--against", "np.load")
    assert rows["ours-model", "float32", "load"]["ratio_to_fastest_peer"] > 0
    assert "np.load left out of Ti/16 32 1 float32 build: np.load has no build\n" in said
    assert rows["ours-model", "float32", "build"]["median_s"] > 0


@pytest.mark.peers
@pytest.mark.parametrize("peer", ["timm", "timm-compiled", "transformers", "keras-hub", "flax"])
def test_peer_computes_and_trains_what_ours_does(tmp_path, peer):
    options = ("--against", peer, "--runners", "model", "--precision", "float32,bfloat16")
    rows, _ = run(tmp_path, *options, "--task", "inference,train")
    for (runner, precision, task), row in rows.items():
        check(row, precision)
        assert row["ratio_to_fastest_peer"] > 0, (runner, task)
    assert len(rows) == 2 * 2 * 2


@pytest.mark.peers
@pytest.mark.parametrize("peer", ["onnxruntime", "openvino"])
def test_runtime_of_exports_is_compared_with_ours_in_the_same(tmp_path, peer):
    rows, _ = run(tmp_path, "--against", peer, "--runners", f"model,{peer}")
    for row in rows.values():
        check(row, "float32")
    assert rows[f"ours-{peer}", "float32", "inference"]["ratio_to_same_runtime"] > 0
    assert rows["ours-model", "float32", "inference"]["ratio_to_same_runtime"] is None


@pytest.mark.peers
def test_peers_build_and_load(tmp_path):
    peers = ("timm", "transformers", "keras-hub", "flax")
    rows, _ = run(tmp_path, "--task", "build,load", "--against", ",".join(peers))
    assert len(rows) == 2 * (1 + len(peers))
    for row in rows.values():
        assert row["ratio_to_fastest_peer"] > 0


@pytest.mark.peers
def test_peer_with_another_gelu_is_named_and_not_timed(tmp_path):
    rows, said = run(tmp_path, "--activation", "gelu_tanh", "--against", "timm,keras-hub", "--runners", "model")
    assert "keras-hub left out of Ti/16 32 2 float32 inference: computes something else" in said
    assert rows["timm", "float32", "inference"]["ratio_to_fastest_peer"] == 1
