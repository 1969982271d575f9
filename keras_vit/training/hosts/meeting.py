"""Processes that train together meet before JAX connects them, whose own connection aborts where one waits in vain.

The first listens at the address that all know. The others say who they are and what they were asked for. So whatever
is amiss is said in words by all of them, and within `WAIT` seconds.
"""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

WAIT = 300  # seconds that processes have to come, as JAX gives them
_SAY_AFTER = 5  # seconds of waiting
_TRY_AGAIN = 0.2  # seconds
_MOST_BYTES = 1 << 20  # of what a process says
_FORMAT = "keras-vit-meeting/1"
_MOST_SHOWN = 8
_RULE = "the processes that train together must find each other"


def check_address(name: str, address: str) -> tuple[str, int]:
    """Host and port of the first of the addresses in a variable; raises a `ValueError` for what is none."""
    first = address.partition(",")[0].strip()
    host, _, port = first.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError(
            f"{_RULE}: {name} must be as host:port, with a port from 1 to 65535.\nReceived: {name}={address!r}."
        )
    return host.strip("[]"), int(port)


def check_place(names: tuple[str, str], count: str, index: str) -> tuple[int, int]:
    """The numbers in two variables: how many processes there are, and which of them this is.

    Raises:
        ValueError: for what are no such numbers.
    """
    numbers = [int(text) if text.isascii() and text.isdecimal() else -1 for text in (count, index)]
    if not 0 <= numbers[1] < numbers[0]:
        raise ValueError(
            f"{_RULE}: {names[0]} is how many they are, and {names[1]} a number from 0 on, below that.\n"
            f"Received: {names[0]}={count!r}, {names[1]}={index!r}."
        )
    return numbers[0], numbers[1]


def meet(
    host: str,
    port: int,
    count: int,
    index: int,
    facts: Mapping[str, Any],
    unlike: Callable[[Mapping, Mapping, int], str | None],
    say: Callable[[str], Any] = print,
) -> None:
    """Returns in every process once all have come, and were asked for the same.

    Args:
        host: of the first process.
        port: there, which is free again afterwards.
        count: of processes.
        index: of this one.
        facts: what it was asked for, ready for JSON.
        unlike: tells in words what facts of the first and of another process, by its number, differ in.
        say: called with a line if it takes long.

    Raises:
        ValueError: for a port that is taken, processes that do not come within `WAIT` seconds, or that are others.
    """
    until = time.monotonic() + WAIT
    said = {"format": _FORMAT, "count": count, "index": index, "facts": dict(facts)}
    if index:
        _come(host, port, said, until)
    else:
        with _listening(host, port) as server:
            _receive(server, f"{host}:{port}", said, unlike, until, say)


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    try:
        if socket.has_dualstack_ipv6():
            server = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            server = socket.create_server(("", port))
    except OSError as error:
        raise ValueError(
            f"{_RULE}, so the first listens at the address that all were given.\n"
            f"Received: {host}:{port}, where this process cannot: {error.strerror or error}. Give all of them another "
            "port of this host, that is free."
        ) from error
    with server:
        yield server


def _receive(
    server: socket.socket, address: str, ours: dict[str, Any], unlike: Callable, until: float, say: Callable
) -> None:
    come: dict[int, socket.socket] = {}
    said_after = time.monotonic() + _SAY_AFTER
    fault = None
    try:
        while not _is_complete(come, ours["count"]) and fault is None:
            missing = ", ".join([str(number) for number in range(1, ours["count"]) if number not in come][:_MOST_SHOWN])
            if time.monotonic() > until:
                fault = f"{address}, where process {missing} of {ours['count']} has not come within {WAIT} s"
                break
            if time.monotonic() > said_after:
                say(f"waits at {address} for process {missing} of {ours['count']}, at most {WAIT} s")
                said_after = until
            server.settimeout(_TRY_AGAIN)
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                fault = _take(connection, ours, come, unlike)
        for connection in come.values():
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"format": _FORMAT, "fault": fault}).encode() + b"\n")
    finally:
        for connection in come.values():
            with contextlib.suppress(OSError):
                connection.settimeout(1)
                connection.recv(1)  # the other closes first, so that the port is free at once
            connection.close()
    if fault is not None:
        raise _error(fault)


def _take(connection: socket.socket, ours: dict[str, Any], come: dict, unlike: Callable) -> str | None:
    """Takes a process in; gives words if it is none that can train with this one."""
    said = _read(connection, time.monotonic() + 1)
    if said is None or not _is_whole(said):  # somebody else's
        connection.close()
        return None
    index = said["index"]
    if (before := come.get(index)) is not None and _has_gone(before):
        come.pop(index).close()  # which was started again since
    is_second = index in come
    come[-len(come) - 1 if is_second else index] = connection  # a second one is answered too
    if said["count"] != ours["count"]:
        return f"one that was told of {said['count']} processes, where the first was told of {ours['count']}"
    if is_second or not 0 < index < ours["count"]:
        return f"two processes with the number {index}"
    return unlike(ours["facts"], said["facts"], index)


def _is_complete(come: dict[int, socket.socket], count: int) -> bool:
    """Whether all have come and still wait; one that has ended since is taken out, as it may be started again."""
    if len(come) < count - 1:
        return False
    for number in [number for number, connection in come.items() if _has_gone(connection)]:
        come.pop(number).close()
    return len(come) == count - 1


def _is_whole(said: dict[str, Any]) -> bool:
    kinds = {"count": int, "index": int, "facts": dict}
    return all(isinstance(said.get(name), kind) for name, kind in kinds.items())


def _has_gone(connection: socket.socket) -> bool:
    """Whether the process at the other end, which says nothing more by itself, has ended."""
    connection.settimeout(0.01)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def _come(host: str, port: int, said: dict[str, Any], until: float) -> None:
    fault: Any = "nobody listens"
    answer = None
    while answer is None and time.monotonic() < until:
        try:
            with socket.create_connection((host, port), timeout=max(until - time.monotonic(), 1)) as connection:
                connection.sendall(json.dumps(said).encode() + b"\n")
                answer = _read(connection, until)
                # A port where nobody listens can be this end too: then it reads its own words.
                answer = answer if answer is not None and "fault" in answer else None
                fault = "somebody else answers, or the first process has ended"
        except OSError as error:
            fault = error.strerror or error
        if answer is None:
            time.sleep(_TRY_AGAIN)
    if answer is None:
        raise _error(f"{host}:{port}, where the first process has not answered within {WAIT} s: {fault}")
    if answer.get("fault"):
        raise _error(answer["fault"])


def _error(fault: str) -> ValueError:
    return ValueError(
        f"{_RULE}, and be started by the same command.\nReceived: {fault}. Start all of them again, with the same "
        "options and address, and a number for each."
    )


def _read(connection: socket.socket, until: float) -> dict[str, Any] | None:
    """The line of a process of ours, or `None`."""
    content = b""
    try:
        while b"\n" not in content and len(content) < _MOST_BYTES:
            connection.settimeout(max(until - time.monotonic(), 0.01))
            part = connection.recv(1 << 16)
            if not part:
                return None
            content += part
        said = json.loads(content.partition(b"\n")[0])
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) and said.get("format") == _FORMAT else None
