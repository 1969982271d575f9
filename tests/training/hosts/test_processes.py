"""Whether this is one of several processes, by the variables of each launcher; and the launcher of our own."""

import os
import signal
import sys
import time

import pytest

from keras_vit import cli
from keras_vit.cli import launch
from keras_vit.training.hosts import processes
from keras_vit.training.hosts.processes import check_alone, launched_by

STEP = {"SLURM_STEP_NODELIST": "node[1-2]"}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Without any launcher's variables, and without libtpu."""
    words = ("KERAS_DISTRIBUTION", "JAX_", "SLURM_", "OMPI_", "MEGASCALE", "TPU_", "KUBERNETES", "JOB_COMPLETION")
    for name in [name for name in os.environ if name.startswith(words)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: None)
    return lambda values: [monkeypatch.setenv(*pair) for pair in values.items()]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, None),
        ({"KERAS_DISTRIBUTION_NUM_PROCESSES": "2"}, "KERAS_DISTRIBUTION_NUM_PROCESSES=2"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "JAX_COORDINATOR_ADDRESS=a:1"),
        ({"SLURM_NTASKS": "4"} | STEP, "SLURM_NTASKS=4"),
        ({"SLURM_NTASKS": "4"}, None),  # a script of sbatch
        ({"SLURM_NTASKS": "1"} | STEP, None),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, "OMPI_COMM_WORLD_SIZE=3"),
        ({"KUBERNETES_SERVICE_HOST": "h"}, None),
        ({"KUBERNETES_SERVICE_HOST": "h", "JOB_COMPLETION_INDEX": "1"}, "JOB_COMPLETION_INDEX=1"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, "several hosts in TPU_WORKER_HOSTNAMES"),
        ({"TPU_WORKER_HOSTNAMES": "a"}, None),
    ],
)
def test_launchers_are_known_by_their_variables(environment, values, said):
    environment(values)
    assert launched_by() == said


def test_a_process_by_itself_is_told_that_it_is_one_of_several(environment):
    check_alone()
    environment({"SLURM_NTASKS": "4"} | STEP)
    with pytest.warns(UserWarning, match="SLURM_NTASKS=4"):
        check_alone()
    environment({"KERAS_DISTRIBUTION_NUM_PROCESSES": "2"})
    with pytest.raises(ValueError, match="layout='none'"):
        check_alone()


def test_processes_that_cannot_find_each_other_say_what_to_set(environment, monkeypatch):
    jax = pytest.importorskip("jax")
    environment({"OMPI_COMM_WORLD_SIZE": "3"})
    asked = []

    def initialize():
        asked.append(1)
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setattr("keras.distribution.initialize", initialize)
    with pytest.raises(ValueError, match=r"(?s)OMPI_COMM_WORLD_SIZE=3.*KERAS_DISTRIBUTION_JOB_ADDRESSES"):
        processes.connect()
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    processes.connect()
    assert asked == [1]


def children(monkeypatch, code, count=2):
    monkeypatch.setattr(sys, "executable", sys.executable)
    return launch.start(count, [sys.executable, "-c", code])


def test_launched_processes_know_each_other(monkeypatch, tmp_path):
    names = ("KERAS_BACKEND", processes.COUNT, processes.INDEX, processes.ADDRESS, "JAX_LOCAL_DEVICE_IDS")
    code = f"import os, pathlib; i = os.environ['{processes.INDEX}']; "
    code += f"pathlib.Path({str(tmp_path)!r}, i).write_text(' '.join(os.environ[name] for name in {names}))"
    assert launch.wait(children(monkeypatch, code)) == 0
    first, second = ((tmp_path / index).read_text().split() for index in "01")
    assert first[:3] == ["jax", "2", "0"]
    assert second[2] == "1"
    assert first[3] == second[3] != ""
    assert (first[4], second[4]) == ("0", "1")


def test_a_process_that_fails_ends_the_others(monkeypatch):
    code = f"import os, time; os.environ['{processes.INDEX}'] == '1' and exit(3); time.sleep(60)"
    started, began = children(monkeypatch, code), time.monotonic()
    assert launch.wait(started) == 3
    launch.end(started)
    assert [child.returncode for child in started] == [-signal.SIGTERM, 3]
    assert time.monotonic() - began < 20


def test_launch_without_a_command_is_refused(capfd):
    assert cli.main(["launch", "--processes", "2"]) == 1
    assert "`--processes`" in capfd.readouterr().err
