"""`python -m benchmarks`: what it takes, what it prints and writes, and what it says of whatever goes wrong."""

import itertools
import re
import shlex
from pathlib import Path

import pytest
from conftest import ROOT

from benchmarks import __main__ as command
from benchmarks import workers
from benchmarks.request import PEERS, TASKS, Benchmark, Case, Peer
from benchmarks.results import FIELDS, read
from keras_vit import cli

STAND_IN = Path(__file__).with_name("stand_in_peer.py")
SMALL = ("--model", "Ti/16", "--image-size", "32", "--batch", "2", "--rounds", "2", "--runners", "model")


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Runs the command with stand-ins for every process, and gives exit code, output lines and what was wrong."""
    for name in ("right-2", "wrong-1", "absent-1"):
        monkeypatch.setitem(PEERS, name, Peer(STAND_IN, "nothing"))
    monkeypatch.setattr(workers, "OWN_FILE", STAND_IN)
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "calls"))

    def run(*arguments):
        code = None
        try:
            command.main([*SMALL, *(str(argument) for argument in arguments)])
        except SystemExit as stopped:
            code = stopped.code
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err

    return run


def test_rows_are_printed_and_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.measure.now", map(str, itertools.count()).__next__)
    code, out, err = run("--against", "right-2,wrong-1", "--results", tmp_path / "new")
    assert (code, err) == (None, "")
    assert [line.split()[0] for line in out] == ["runner", "ours-model", "right-2", "wrong-1"]
    assert out[3].startswith("wrong-1 left out of Ti/16 32 2 float32 inference: computes something else (")
    rows = read(tmp_path / "new")
    assert [row["runner"] for row in rows] == ["ours-model", "right-2"]
    assert {row["date"] for row in rows} == {"0"}  # by which they are known as of one run


def test_a_stopped_benchmark_keeps_the_rows_before(run, tmp_path, monkeypatch):
    def stopped(asked):
        about = {"runner": "ours-model", "task": "inference", "median_s": 0.5, "spread": 0.1, "left_out": None}
        yield dict.fromkeys(FIELDS) | about
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "benchmark", stopped)
    with pytest.raises(KeyboardInterrupt):
        run("--results", tmp_path)
    assert [row["runner"] for row in read(tmp_path)] == ["ours-model"]


def test_nothing_compared_is_a_failure_that_says_so(run):
    code, out, _ = run("--against", "absent-1,wrong-1")
    assert "compared with no peer" in code
    assert len(out) == 4
    assert "Run `pip install nothing` for KERAS_VIT_PEERS_PYTHON." in out[2]


def test_nothing_timed_is_a_failure_too(run, monkeypatch):
    row = dict.fromkeys(FIELDS) | {"runner": "ours-model", "left_out": "Keras on tensorflow finds no GPU"}
    monkeypatch.setattr(command, "benchmark", lambda asked: iter([row]))
    code, out, _ = run("--device", "gpu")
    assert "nothing was timed" in code
    assert out[1].endswith("finds no GPU")


def test_without_peers_nothing_is_compared_and_that_is_no_failure(run):
    assert run()[0] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--against", "openvin"), "`against`.*Did you mean 'openvino'"),
        (("--task", "inferense"), "Did you mean 'inference'"),
        (("--precision", "int8", "--task", "train"), "float32 or bfloat16"),
        (("--runners", "modell"), "Did you mean 'model'"),
        (("--model", "R50+B/16"), "without a ResNet"),
        (("--image-size", "33"), "`patch_size`"),
        (("--batch", "0"), "batch=0"),
        (("--batch", "one"), "'one'"),
        (("--rounds", "0"), "rounds=0"),
        (("--threads", "4097"), "`threads`.* cores"),
        (("--runners", "auto", "--backend", "jax"), "TensorFlow"),
        (("--runners", "auto", "--task", "train"), "Add model"),
        (("--task", ","), "`task`"),
        (("--device", "gpu", "--runners", "openvino"), "processor"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_measured(run, arguments, said):
    code, out, err = run(*arguments)
    assert (code, out) == (2, [])
    assert re.search(said, err.replace("\n", " "))


def test_interpreter_that_is_none_is_refused(run, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_PEERS_PYTHON", "no-such-program")
    code, _, err = run("--against", "right-2")
    assert code == 2
    assert "`KERAS_VIT_PEERS_PYTHON` must be an interpreter" in err


@pytest.mark.parametrize("place", ["file", "other"])
def test_results_have_a_place_before_anything_is_measured(run, tmp_path, place):
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "inference.csv").write_text("other\n")
    code, out, err = run("--results", tmp_path / place)
    assert (code, out) == (2, [])
    assert {"file": "File exists", "other": "unknown: other"}[place] in err


def test_defaults_depend_on_task_and_backend():
    asked = Benchmark()
    assert (asked.own_runners("inference"), asked.own_runners("train")) == (["model", "auto"], ["model"])
    assert Benchmark(backend="jax").own_runners("inference") == ["model"]
    assert Benchmark(device="gpu").own_runners("inference") == ["model"]


def test_cases_are_every_combination_and_building_one():
    asked = Benchmark(model=("B/16", "S/16"), batch=(1, 8), precision=("float32", "bfloat16"), task=TASKS)
    cases = list(asked.cases())
    assert len(cases) == 2 * (2 * 2 * 2 + 2)
    assert cases[0] == Case("B/16", 224, 1, "float32", "inference")
    assert [case.model for case in cases] == ["B/16"] * 10 + ["S/16"] * 10
    assert Case("B/16", 224, 1, "float32", "load") in cases


def test_processes_are_told_their_threads_backend_and_device(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    found = workers.environment(Benchmark(backend="jax"), "float32", own=True)
    assert {found[name] for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "MKL_NUM_THREADS")} == {"1"}
    assert (found["KERAS_BACKEND"], found["JAX_PLATFORMS"]) == ("jax", "cpu")
    assert found["PYTHONPATH"] == f"{ROOT}:/elsewhere"
    gpu = workers.environment(Benchmark(device="gpu"), "float32", own=False)
    assert (gpu["NVIDIA_TF32_OVERRIDE"], gpu["PYTHONPATH"]) == ("0", "/elsewhere")
    assert "JAX_PLATFORMS" not in gpu
    assert "NVIDIA_TF32_OVERRIDE" not in workers.environment(Benchmark(device="gpu"), "bfloat16", own=False)


def test_commands_of_the_page_parse():
    page = (ROOT / "docs" / "speed.md").read_text().replace("\\\n", "")
    lines = re.findall(r"^python -m benchmarks (--.*)$", page, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        given = vars(command._parser().parse_args(shlex.split(line)))
        given.pop("results")
        assert list(Benchmark(**given).cases())


def test_the_package_says_where_its_command_went(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["benchmark", "--model", "B/16"])
    assert "python -m benchmarks" in capsys.readouterr().err.splitlines()[-1]
