"""Whether this is one of several processes, by the variables of each launcher, and how they connect and end."""

import json
import os
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from keras_vit.runs import preparation
from keras_vit.runs.options import FinetuneOptions
from keras_vit.training.hosts import distribution, processes
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
    calls, lines, waited = [], [], threading.Event()

    def initialize():
        calls.append(1)
        assert waited.wait(10)
        raise ValueError("coordinator_address should be defined.")

    def say(line):
        lines.append(line)
        waited.set()

    monkeypatch.setattr(processes, "_REPORT_AFTER", 0.01)
    monkeypatch.setattr("keras.distribution.initialize", initialize)
    with pytest.raises(ValueError, match=r"(?s)OMPI_COMM_WORLD_SIZE=3.*KERAS_DISTRIBUTION_JOB_ADDRESSES"):
        processes.connect(say)
    assert ["OMPI_COMM_WORLD_SIZE=3" in line for line in lines] == [True]
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    processes.connect()
    assert calls == [1]


def test_number_of_processes_that_is_none_is_refused(environment):
    pytest.importorskip("jax")
    environment({"KERAS_DISTRIBUTION_NUM_PROCESSES": "two"})
    with pytest.raises(ValueError, match=r"(?s)NUM_PROCESSES=two.*host:port"):
        processes.connect()


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


def test_facts_of_options_are_text_that_every_process_writes_alike():
    found = distribution._facts(SimpleNamespace(model=object(), steps=5, resume="must"))
    assert found == {"model": "object", "steps": "5"}


@pytest.fixture
def second_process(monkeypatch):
    """Makes this the first of two processes; the facts of the other are these, with what `changes` holds of them."""
    utils, changes = pytest.importorskip("jax.experimental.multihost_utils"), {}

    def gather(array):
        if array.ndim == 0:
            return np.stack([array, array + 500])
        facts = json.loads(array.tobytes().rstrip(b"\0"))
        facts |= {name: facts[name] | value if isinstance(value, dict) else value for name, value in changes.items()}
        text = json.dumps(facts).encode().ljust(len(array))
        return np.stack([array, np.frombuffer(text, "uint8")])

    for module in (distribution, preparation):
        monkeypatch.setattr(module, "processes", lambda: (0, 2))
    monkeypatch.setattr(utils, "process_allgather", gather)
    return changes.update


def test_facts_that_differ_once_processes_are_connected_are_named(second_process):
    """Launchers may tell JAX alone where processes are."""
    facts = {"options": {"seed": 10}, "data_hash": "a"}
    distribution.check_same_everywhere(facts)
    second_process({"options": {"seed": 1}, "data_hash": "b"})
    with pytest.raises(ValueError, match=r"data_hash: a for process 0, b for process 1; options\.seed: 10 for"):
        distribution.check_same_everywhere(facts)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"data": {"classes": 4}}, r"Received: data\.classes: 2 for process 0, 4 for process 1\. "),
        ({"first_image": [8, 8, 1]}, r"first_image: \[8, 8, 3\] for process 0, \[8, 8, 1\] for process 1\. "),
        ({"versions": {"keras": "3"}}, r"versions\.keras: .* 3 for process 1\. "),
        ({"weights_sha256": "0"}, r"Received: weights_sha256: [0-9a-f]{64} for process 0, 0 for process 1\. "),
    ],
)
def test_what_decides_shapes_is_compared_before_weights_are_made(
    second_process, monkeypatch, tmp_path, changes, expected
):
    """JAX exchanges weights as they are made, and aborts all processes where the sizes differ."""
    monkeypatch.setattr(preparation, "_find_model", lambda *arguments: pytest.fail("makes a model"))
    (tmp_path / "w.npz").write_bytes(b"any")
    images = np.zeros((12, 8, 8, 3), "uint8")
    weights = tmp_path / "w.npz" if "weights_sha256" in changes else None
    second_process(changes)
    with pytest.raises(ValueError, match=expected):
        preparation.prepare((images, np.arange(12) % 2), FinetuneOptions(model="Ti/16", weights=weights), print)


def test_processes_that_count_differently_are_refused(second_process, environment, monkeypatch):
    """JAX joins them, and goes by what the first one has."""
    for name in ("check_backend", "connect"):
        monkeypatch.setattr(distribution, name, lambda *arguments: None)
    environment({processes.COUNT: "2"})
    second_process({processes.COUNT: "3"})
    with (
        pytest.raises(ValueError, match=r"KERAS_DISTRIBUTION_NUM_PROCESSES: 2 for process 0, 3 for process 1\. "),
        distribution.multi_process(FinetuneOptions(layout="fsdp"), "run", print),
    ):
        pytest.fail("begins")
