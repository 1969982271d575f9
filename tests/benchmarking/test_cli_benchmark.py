"""`keras-vit benchmark`: what it takes, what it prints and writes, and one line for whatever goes wrong."""

import csv
import itertools
import json
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT

from keras_vit import cli
from keras_vit.benchmarking import workers
from keras_vit.benchmarking.request import PEERS, TASKS, Benchmark, Case, Peer
from keras_vit.benchmarking.results import FIELDS, read

STAND_IN = Path(__file__).with_name("stand_in_peer.py")
SMALL = ("--model", "Ti/16", "--image-size", "32", "--batch", "2", "--rounds", "2", "--runners", "model")


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Runs the command with stand-ins for every process, and gives exit code, output lines and error lines."""
    for name in ("right-2", "wrong-1", "absent-1"):
        monkeypatch.setitem(PEERS, name, Peer(STAND_IN, "peers_python", TASKS, "nothing"))
    monkeypatch.setattr(workers, "OWN_FILE", STAND_IN)
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "calls"))

    def run(*arguments):
        code = cli.main(["benchmark", *SMALL, *(str(argument) for argument in arguments)])
        return code, *(text.splitlines() for text in capsys.readouterr())

    return run


def test_rows_are_printed_and_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr("keras_vit.benchmarking.benchmark.now", map(str, itertools.count()).__next__)
    json_file, folder = tmp_path / "out.json", tmp_path / "results"
    code, out, err = run("--against", "right-2,wrong-1", "--json", json_file, "--results", folder)
    assert (code, err) == (0, [])
    assert [line.split()[0] for line in out] == ["runner", "ours-model", "right-2", "wrong-1", "added"]
    assert out[3].startswith("wrong-1 left out of Ti/16 32 2 float32 inference: computes something else (")
    rows = json.loads(json_file.read_text())
    assert [row["runner"] for row in rows] == ["ours-model", "right-2", "wrong-1"]
    assert {row["date"] for row in rows} == {"0"}  # by which they are known as of one run
    with (folder / "inference.csv").open() as file:
        kept = list(csv.DictReader(file))
    assert [row["runner"] for row in kept] == ["ours-model", "right-2"]
    assert float(kept[0]["median_s"]) == pytest.approx(rows[0]["median_s"], rel=1e-5)


def test_a_stopped_benchmark_keeps_the_rows_before(run, tmp_path, monkeypatch):
    def stopped(asked):
        yield dict.fromkeys(FIELDS) | {"runner": "timm", "left_out": "it is not there"}
        about = {"runner": "ours-model", "task": "inference", "median_s": 0.5, "spread": 0.1, "left_out": None}
        yield dict.fromkeys(FIELDS) | about
        raise KeyboardInterrupt

    monkeypatch.setattr("keras_vit.benchmarking.benchmark.benchmark", stopped)
    json_file, folder = tmp_path / "out.json", tmp_path / "results"
    json_file.write_text("rows of yesterday")
    code, _, err = run("--json", json_file, "--results", folder)
    assert (code, err) == (130, ["keras-vit: error: interrupted"])
    assert [row["runner"] for row in json.loads(json_file.read_text())] == ["timm", "ours-model"]
    assert [row["runner"] for row in read(folder)] == ["ours-model"]


def test_nothing_compared_is_a_failure_that_says_so(run):
    code, out, err = run("--against", "absent-1,wrong-1")
    assert code == 1
    assert len(out) == 4
    assert "Run `pip install nothing` for the interpreter of --peers-python." in out[2]
    assert err == [
        "keras-vit: error: nothing was compared: of absent-1, wrong-1 and ours no two were timed for the same work; "
        "the lines above say why"
    ]


def test_nothing_timed_is_a_failure_too(run, monkeypatch):
    row = dict.fromkeys(FIELDS) | {"runner": "ours-model", "left_out": "Keras on tensorflow finds no GPU"}
    monkeypatch.setattr("keras_vit.benchmarking.benchmark.benchmark", lambda asked: iter([row]))
    code, out, err = run("--device", "gpu")
    assert (code, err) == (1, ["keras-vit: error: nothing was timed; the lines above say why"])
    assert out[1].endswith("finds no GPU")


def test_without_peers_nothing_is_compared_and_that_is_no_failure(run):
    assert run()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--against", "tim"), "`--against` must be one of"),
        (("--against", "openvin"), "Did you mean 'openvino'"),
        (("--task", "inferense"), "Did you mean 'inference'?"),
        (("--precision", "bfloat"), "Did you mean 'bfloat16'"),
        (("--precision", "int8", "--task", "train"), "a training is in float32 or bfloat16"),
        (("--runners", "modell"), "Did you mean 'model'"),
        (("--model", "B/61"), "Did you mean 'B/16'"),
        (("--model", "R50+B/16"), "a variant without a ResNet"),
        (("--image-size", "33"), "multiple of `patch_size`"),
        (("--batch", "0"), "`--batch` must be at least 1"),
        (("--rounds", "0"), "`--rounds` must be at least 1"),
        (("--warmup", "-1"), "Received: --warmup -1"),
        (("--threads", "4097"), "`--threads` must not be more than the cores"),
        (("--runners", "auto", "--backend", "jax"), "engines open a model of Keras on TensorFlow"),
        (("--runners", "auto", "--task", "train"), "Add model"),
        (("--task", ","), "`--task` must name something to measure"),
        (("--peers-python", "no-such-program", "--against", "right-2"), "`--peers-python` must be an interpreter"),
        (("--json", "no/such/folder/out.json"), "a folder that is there"),
        (("--json", "."), "`--json` must be a file"),
        (("--device", "gpu", "--runners", "openvino"), "compute on the processor"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_before_anything_is_measured(run, arguments, said):
    code, out, err = run(*arguments)
    assert (code, out, len(err)) == (1, [], 1)
    assert said in err[0]


def test_results_of_another_header_are_refused_before_anything_is_measured(run, tmp_path):
    (tmp_path / "inference.csv").write_text("other\n")
    code, out, err = run("--results", tmp_path)
    assert (code, out) == (1, [])
    assert "unknown: other" in err[0]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_results_have_a_place_before_anything_is_measured(run, tmp_path, place):
    (tmp_path / "file").touch()
    code, out, err = run("--results", tmp_path / place)
    assert (code, out, len(err)) == (1, [], 1)
    assert "results go to a folder that is there or can be made" in err[0]


def test_defaults_depend_on_task_and_backend():
    asked = Benchmark()
    assert (asked.own_runners("inference"), asked.own_runners("train")) == (["model", "auto"], ["model"])
    assert Benchmark(backend="jax").own_runners("inference") == ["model"]
    assert Benchmark(device="gpu").own_runners("inference") == ["model"]


def test_cases_are_every_combination_and_building_one():
    asked = Benchmark(models=("B/16", "S/16"), batches=(1, 8), precisions=("float32", "bfloat16"), tasks=TASKS)
    cases = list(asked.cases())
    assert len(cases) == 2 * (2 * 2 * 2 + 2)
    assert cases[0] == Case("B/16", 224, 1, "float32", "inference")
    assert [case.model for case in cases] == ["B/16"] * 10 + ["S/16"] * 10
    assert Case("B/16", 224, 1, "float32", "load") in cases


def test_processes_are_told_their_threads_backend_and_device(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = workers.environment(Benchmark(backend="jax"), "float32", ours=True)
    assert {found[name] for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "MKL_NUM_THREADS")} == {"1"}
    assert (found["KERAS_BACKEND"], found["JAX_PLATFORMS"]) == ("jax", "cpu")
    assert found["PYTHONPATH"] == f"{ROOT}:/elsewhere"
    gpu = workers.environment(Benchmark(device="gpu"), "float32", ours=False)
    assert (gpu["NVIDIA_TF32_OVERRIDE"], gpu["PYTHONPATH"]) == ("0", "/elsewhere")
    assert "JAX_PLATFORMS" not in gpu
    assert "NVIDIA_TF32_OVERRIDE" not in workers.environment(Benchmark(device="gpu"), "bfloat16", ours=False)


def test_script_for_a_gpu_is_one_that_a_shell_reads():
    script = ROOT / "benchmarks" / "gpu.sh"
    subprocess.run(["bash", "-n", script], check=True)
    line = " ".join(word for line in script.read_text().splitlines() if "common" in line for word in line.split())
    options = {word for word in line.replace("(", " ").split() if word.startswith("--")}
    known = {option for action in _options() for option in action.option_strings}
    assert options
    assert options <= known


def _options():
    parser = cli._parser()
    (subparsers,) = (action for action in parser._actions if hasattr(action, "choices") and action.choices)
    return subparsers.choices["benchmark"]._actions
