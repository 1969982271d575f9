"""Free memory: what the machine has, what a container's limit leaves of it, and where neither is told."""

import types

import psutil
import pytest

from keras_vit.training import memory
from keras_vit.training.memory import available_memory, container_memory

MEMORY = psutil.virtual_memory()


@pytest.fixture(autouse=True)
def cpu(monkeypatch):
    monkeypatch.setattr(memory, "_accelerator_memory", lambda: None)


def set_memory(monkeypatch, system, container):
    """Has the system and the container tell these numbers; a system of `None` does not tell."""

    def tell():
        if system is None:
            raise FileNotFoundError("/proc/meminfo")
        return MEMORY._replace(available=system)

    monkeypatch.setattr(psutil, "virtual_memory", tell)
    monkeypatch.setattr(memory, "container_memory", lambda: container)


def test_available_memory_is_some_of_the_machine():
    assert 1e8 < available_memory() < MEMORY.total


@pytest.mark.parametrize(
    ("system", "container", "expected"),
    [(700, None, 700), (700, 500, 500), (500, 700, 500), (None, 700, 700), (None, None, None)],
)
def test_the_smaller_of_system_and_container_counts(monkeypatch, system, container, expected):
    set_memory(monkeypatch, system, container)
    assert available_memory() == expected


def test_memory_of_an_accelerator_counts_alone(monkeypatch):
    set_memory(monkeypatch, 700, 500)
    monkeypatch.setattr(memory, "_accelerator_memory", lambda: 900)
    assert available_memory() == 900


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 5\ninactive_file 200"}, 500),
        ({"memory.max": "1000", "memory.current": "1700", "memory.stat": ""}, 0),
        ({"memory.max": "max", "memory.current": "700"}, None),
        (
            {
                "memory/memory.limit_in_bytes": "900",
                "memory/memory.usage_in_bytes": "300",
                "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 100",
            },
            700,
        ),
        ({}, None),
    ],
)
def test_a_container_has_what_its_limit_leaves(tmp_path, files, expected):
    (tmp_path / "memory").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert container_memory(tmp_path) == expected


def test_tensorflow_tells_what_a_gpu_may_take(monkeypatch):
    """By a session, whose list of devices has a GPU that is played."""
    tf = pytest.importorskip("tensorflow")
    with tf.compat.v1.Session() as session:
        (cpu, *_) = session.list_devices()
    assert (cpu.device_type, cpu.memory_limit_bytes > 0) == ("CPU", True)
    kinds = (("CPU", 5), ("GPU", 900), ("GPU", 700))
    devices = [types.SimpleNamespace(device_type=kind, memory_limit_bytes=limit) for kind, limit in kinds]
    monkeypatch.setattr(tf.compat.v1.Session, "list_devices", lambda session: devices)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0", "GPU:1"])
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", lambda device: {"current": 200, "peak": 300})
    assert memory._tensorflow_memory() == 700
