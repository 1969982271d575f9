"""Whether this is one of several processes, by the variables of each launcher; and the launcher of our own."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import ROOT

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


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"KERAS_DISTRIBUTION_JOB_ADDRESSES": "127.0.0.1:abc"}, "127.0.0.1:abc"),
        ({"KERAS_DISTRIBUTION_JOB_ADDRESSES": "127.0.0.1:65536"}, "from 1 to 65535"),
        ({"JAX_COORDINATOR_ADDRESS": "node0"}, "JAX_COORDINATOR_ADDRESS='node0'"),
        ({"KERAS_DISTRIBUTION_NUM_PROCESSES": "two", "KERAS_DISTRIBUTION_PROCESS_ID": "0"}, "NUM_PROCESSES='two'"),
        ({"KERAS_DISTRIBUTION_NUM_PROCESSES": "2", "KERAS_DISTRIBUTION_PROCESS_ID": "2"}, "PROCESS_ID='2'"),
    ],
)
def test_variables_that_say_no_place_are_refused_before_jax_sees_them(environment, values, said):
    pytest.importorskip("jax")
    environment(values)
    with pytest.raises(ValueError, match=said):
        processes.connect()


def launched(code, count=2):
    return launch.Started([sys.executable, "-c", code], count)


def test_launched_processes_know_each_other(tmp_path):
    names = ("KERAS_BACKEND", processes.COUNT, processes.INDEX, processes.ADDRESS, "JAX_LOCAL_DEVICE_IDS")
    code = f"import os, pathlib; i = os.environ['{processes.INDEX}']; "
    code += f"pathlib.Path({str(tmp_path)!r}, i).write_text(' '.join(os.environ[name] for name in {names}))"
    with launched(code) as started:
        assert started.wait() == 0
    first, second = ((tmp_path / index).read_text().split() for index in "01")
    assert first[:3] == ["jax", "2", "0"]
    assert second[2] == "1"
    assert first[3] == second[3] != ""
    assert (first[4], second[4]) == ("0", "1")


def test_a_process_that_fails_ends_the_others():
    code = f"import os, time; os.environ['{processes.INDEX}'] == '1' and exit(3); time.sleep(60)"
    began = time.monotonic()
    with launched(code) as started:
        assert started.wait() == 3
    assert [child.returncode for child in started.children] == [-signal.SIGTERM, 3]
    assert time.monotonic() - began < 20


# Counts the signals that ask it to end, and saves for a while; without the command line, whose import takes seconds.
SAVING = """
import importlib.util, os, signal, sys, time
heard = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: heard.append(number))
spec = importlib.util.spec_from_file_location("launch", {module!r})
launch = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launch)
launch.end_with_launcher()
open(os.path.join({folder!r}, str(os.getpid())), "w").close()
while not heard:
    time.sleep(0.01)
time.sleep(0.3)
with open(os.path.join({folder!r}, str(os.getpid())), "w") as file:
    file.write(" ".join(str(int(number)) for number in heard))
sys.exit(128 + heard[0])
"""


def saving(folder):
    return SAVING.format(module=launch.__file__, folder=str(folder))


def listening(folder, count=2):
    """Waits until so many processes listen for signals."""
    until = time.monotonic() + 20
    while len(list(folder.iterdir())) < count:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_reaches_every_process_once_and_all_are_waited_for(tmp_path, name):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    with launched(saving(tmp_path)) as started:
        listening(tmp_path)
        os.kill(os.getpid(), number)
        started.wait()
    heard = signal.SIGINT if name == "SIGINT" else signal.SIGTERM
    assert [path.read_text() for path in tmp_path.iterdir()] == [str(int(heard))] * 2
    assert (started.received, signal.getsignal(number)) == (number, before)


def is_stopped(child):
    return Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="states of processes are Linux's")
def test_ctrl_z_stops_every_process_until_the_launcher_goes_on(monkeypatch):
    seen = []
    kill = os.kill  # the launcher, which is this process here, is looked at where it would stop

    def stop(pid, number):
        until = time.monotonic() + 10
        while not all(map(is_stopped, started.children)):
            assert time.monotonic() < until
        seen.append((pid, number))

    with launched("import time; time.sleep(60)") as started:
        monkeypatch.setattr(launch.os, "kill", lambda pid, number: (stop if pid == os.getpid() else kill)(pid, number))
        signal.raise_signal(signal.SIGTSTP)
        until = time.monotonic() + 10
        while any(map(is_stopped, started.children)):
            assert time.monotonic() < until
    assert seen == [(os.getpid(), signal.SIGSTOP)]


def test_no_process_stays_behind_a_launcher_that_is_killed(tmp_path):
    code = f"""
import sys, types
package = sys.modules["keras_vit"] = types.ModuleType("keras_vit")  # without its public names, which need Keras
package.__path__ = [{str(ROOT / "keras_vit")!r}]
from keras_vit.cli.launch import Started
with Started([sys.executable, "-c", {saving(tmp_path)!r}], 2) as started:
    started.wait()
"""
    launcher = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    listening(tmp_path)
    launcher.kill()
    launcher.wait()
    until = time.monotonic() + 20
    while [path.read_text() for path in tmp_path.iterdir()] != [str(int(signal.SIGTERM))] * 2:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_launch_without_a_command_is_refused(capfd):
    assert cli.main(["launch", "--processes", "2"]) == 1
    assert "`--processes`" in capfd.readouterr().err


@pytest.mark.parametrize(("waits", "exits"), [(0.0, []), (5.0, [3])])
def test_process_that_fails_alone_does_not_wait_for_the_others(monkeypatch, waits, exits):
    """Where all fail, all are let go; where the others wait for this one, it ends by itself."""
    ended, found = threading.Event(), []
    distributed = SimpleNamespace(is_initialized=lambda: True, shutdown=lambda: ended.wait(waits))
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(distributed=distributed))
    monkeypatch.setattr(processes, "_LEAVING", 0.2)
    monkeypatch.setattr(os, "_exit", found.append)
    processes.exit_without_waiting(3)
    ended.set()
    assert found == exits
