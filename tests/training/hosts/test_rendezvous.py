"""Processes meet before JAX connects them; here they are threads of this one."""

import json
import socket
import threading

import numpy as np
import pytest

from keras_vit.training.hosts import distribution, processes
from keras_vit.training.hosts.distribution import _differing_options, _facts

FIRST_OF_THREE = b'{"format": "keras-vit-meeting/1", "count": 3, "index": 1, "facts": {}}\n'


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def met(*places, port=None):
    """What every process of `(count, index, facts)` came to, `None` or its error; and what the first has said."""
    port, found, said = port or free_port(), {}, []

    def one(key, count, index, facts):
        found[key] = None
        try:
            processes.rendezvous("127.0.0.1", port, count, index, facts, _differing_options, say=said.append)
        except ValueError as error:
            found[key] = str(error)

    threads = [threading.Thread(target=one, args=(key, *place)) for key, place in enumerate(places)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[key] for key in range(len(places))], said


def test_processes_that_all_come_go_on_and_leave_the_port():
    port = free_port()
    for _ in range(2):  # the second finds it free at once
        assert met((3, 0, {"seed": "0"}), (3, 2, {"seed": "0"}), (3, 1, {"seed": "0"}), port=port) == ([None] * 3, [])
    assert met((1, 0, {}))[0] == [None]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ((2, 1, {"seed": "1", "steps": "9"}), "0 for process 0, 1 for process 1; steps: nothing for process 0, 9 for"),
        ((3, 1, {"seed": "0"}), "a count of 3, where the first has 2"),
        ((2, 2, {"seed": "0"}), "number 2"),
    ],
)
def test_processes_that_are_not_alike_are_all_told_so(other, said):
    found, _ = met((2, 0, {"seed": "0"}), other)
    assert [said in words for words in found] == [True, True], found


def test_process_that_never_comes_is_named_in_time(monkeypatch):
    monkeypatch.setattr(processes, "WAIT", 0.6)
    monkeypatch.setattr(processes, "_REPORT_AFTER", 0.1)
    (words,), (line,) = met((3, 0, {}))
    assert "process 1, 2 of 3 has not joined within 0.6 s" in words
    assert "waits" in line
    (words,), _ = met((2, 1, {}))
    assert "not answered within 0.6 s" in words


def test_port_that_is_taken_is_named_by_both(monkeypatch):
    monkeypatch.setattr(processes, "WAIT", 0.6)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found, _ = met((2, 0, {}), (2, 1, {}), port=port)
    assert f"127.0.0.1:{port}, where this process cannot" in found[0]
    assert "not answered" in found[1]


def connected(port):
    """A connection, once somebody listens."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except ConnectionRefusedError:
            pass


def test_second_process_of_a_number_is_told_what_is_wrong_with_it(monkeypatch):
    monkeypatch.setattr(processes, "WAIT", 5)
    port, found = free_port(), []

    def meet():
        try:
            processes.rendezvous("127.0.0.1", port, 3, 0, {}, _differing_options)
        except ValueError as error:
            found.append(str(error))

    first = threading.Thread(target=meet)
    first.start()
    with connected(port) as other:
        other.sendall(FIRST_OF_THREE)
        found += met((4, 1, {}), port=port)[0]
    first.join()
    assert ["a count of 4" in words for words in found] == [True, True], found


def test_process_that_was_started_again_takes_its_own_place(monkeypatch):
    """And what somebody else says to the port is passed over."""
    monkeypatch.setattr(processes, "WAIT", 20)
    port, found = free_port(), []
    first = threading.Thread(
        target=lambda: found.append(processes.rendezvous("127.0.0.1", port, 3, 0, {}, _differing_options))
    )
    first.start()
    for words in (FIRST_OF_THREE, b"GET /\n"):
        with connected(port) as other:
            other.sendall(words)
    assert met((3, 1, {}), (3, 2, {}), port=port)[0] == [None, None]
    first.join()
    assert found == [None]


def test_facts_of_options_are_text_that_every_process_writes_alike():
    found = _facts(None, {"model": object(), "steps": 5, "resume": "must"})
    assert found == {"model": "object", "steps": "5"}


def test_facts_that_differ_once_processes_are_connected_are_named(monkeypatch):
    """Launchers may tell JAX alone where processes are. This one is the first, and `theirs` come from another."""
    utils = pytest.importorskip("jax.experimental.multihost_utils")

    def gather(array):
        text = np.frombuffer(json.dumps(theirs).encode(), "uint8")
        other = np.array(len(text), array.dtype) if array.ndim == 0 else np.zeros_like(array)
        if array.ndim:
            other[: len(text)] = text
        return np.stack([array, other])

    monkeypatch.setattr(distribution, "processes", lambda: (0, 2))
    monkeypatch.setattr(utils, "process_allgather", gather)
    theirs = {"options": {"seed": 1}, "data_hash": "b"}
    distribution.check_same_everywhere(theirs)
    with pytest.raises(ValueError, match=r"data_hash: a for process 0, b for process 1; options\.seed: 10 for"):
        distribution.check_same_everywhere({"options": {"seed": 10}, "data_hash": "a"})
