"""Several processes that train together: whether this is one of them, and their connection.

The engine is `jax.distributed`, by `keras.distribution.initialize`. It reads what SLURM, Open MPI 4, Kubernetes and TPU
pods set; elsewhere the three variables `KERAS_DISTRIBUTION_*`.
"""

import contextlib
import importlib.util
import json
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from keras_vit.checks import ArgumentError

KERAS = "KERAS_DISTRIBUTION_"
ADDRESS, COUNT, INDEX = (f"{KERAS}{name}" for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID"))
_JAX_ADDRESS = "JAX_COORDINATOR_ADDRESS"
_COUNTS = (COUNT, "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")  # variables that hold the number of processes
_LEAVING = 5.0  # seconds in which the others fail too, if all do
_STEP = "SLURM_STEP_NODELIST"  # srun's; a script of sbatch is one process, whatever SLURM_NTASKS says
_POD = ("KUBERNETES_SERVICE_HOST", "JOB_COMPLETION_INDEX")  # together, in a pod of an indexed Job or a JobSet


def launched_by() -> str | None:
    """What in the environment says that this is one of several processes, as `"SLURM_NTASKS=4"`, or `None`."""
    for name in _COUNTS:
        if _is_several(name) and (name != "SLURM_NTASKS" or _STEP in os.environ):
            return f"{name}={os.environ[name]}"
    for name in (ADDRESS, _JAX_ADDRESS, "MEGASCALE_COORDINATOR_ADDRESS"):
        if os.environ.get(name):
            return f"{name}={os.environ[name]}"
    if "," in os.environ.get("TPU_WORKER_HOSTNAMES", ""):
        return "several hosts in TPU_WORKER_HOSTNAMES"
    if all(name in os.environ for name in _POD):
        return f"{_POD[1]}={os.environ[_POD[1]]}"
    return "libtpu" if importlib.util.find_spec("libtpu") else None  # a pod's hosts are known to its metadata server


def _is_several(name: str) -> bool:
    """Whether a variable holds a number above 1, or a word that `connect` will refuse."""
    text = os.environ.get(name) or "1"
    return not text.isdecimal() or int(text) > 1


def connect(
    facts: Mapping[str, Any] | None = None,
    differs: Callable[[Mapping, Mapping, int], str | None] = lambda *_: None,
    say: Callable[[str], Any] = print,
) -> None:
    """Connects this process with the others, if there are others; once, and before JAX computes anything.

    Args:
        facts: options of this process, ready for JSON, compared with those of the first.
        differs: as `rendezvous` takes it.
        say: called with a line if it takes long.

    Raises:
        ValueError: where there are others and they cannot be found, or have other options.
    """
    import jax
    import keras

    sign = launched_by()
    if sign is None or jax.distributed.is_initialized():
        return
    _meet(facts or {}, differs, say)
    # Its handler of SIGTERM would replace that of `Checkpoints`: a process would go on until the launcher kills it.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        keras.distribution.initialize()
    except (ValueError, RuntimeError, TypeError, LookupError) as error:
        raise ValueError(
            "the processes that train together must find each other.\n"
            f"Received: {sign}, of which JAX says: {error} Set {ADDRESS}=host:port of the first process, {COUNT} and "
            f"{INDEX}, as for Open MPI 5, and connect before anything is computed."
        ) from error


def _meet(facts: Mapping[str, Any], differs: Callable, say: Callable) -> None:
    """Checks what the variables say; where they say all, waits for the others."""
    name = ADDRESS if os.environ.get(ADDRESS) else _JAX_ADDRESS
    address, count, index = (os.environ.get(each, "") for each in (name, COUNT, INDEX))
    place = check_address(name, address) if address else None
    numbers = check_place((COUNT, INDEX), count, index) if count and index else None
    if place and numbers:
        rendezvous(*place, *numbers, facts, differs, say)


def check_alone() -> None:
    """Says of a process that will train by itself that it is one of several.

    Raises:
        ValueError: if Keras' own variables say so, which have no other use.

    Warns:
        UserWarning: if a launcher's do.
    """
    sign = launched_by()
    if sign is None or sign == "libtpu":
        return
    rule = "processes that are started together train together with `layout` only."
    advice = 'Pass "replicated", "fsdp" or "tensor:k".'
    if sign.startswith(KERAS):
        raise ArgumentError(f"{rule}\nReceived: {sign}, layout='none'. {advice}", parameters=("layout",))
    warnings.warn(f"{rule} {sign} says that this is one of several. {advice}", stacklevel=3)


def exit_without_waiting(code: int) -> None:
    """Ends this process, which has failed, if it is one of several and the others go on.

    JAX lets none of them exit before all do, and these wait for this one: it would be 300 s until a launcher sees that
    it has failed. Where all fail together this returns.
    """
    jax = sys.modules.get("jax")
    if jax is None or not jax.distributed.is_initialized():
        return
    leaving = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    leaving.start()
    leaving.join(_LEAVING)
    if leaving.is_alive():
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, full or none
                stream.flush()
        os._exit(code)


def is_first() -> bool:
    """Whether this process writes what is written once; on JAX, after `connect`."""
    import jax

    return jax.process_index() == 0


WAIT = 300  # seconds that processes have to join, as JAX gives them
_REPORT_AFTER = 5  # seconds of waiting
_RETRY = 0.2  # seconds
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
        ValueError: for other values.
    """
    numbers = [int(text) if text.isascii() and text.isdecimal() else -1 for text in (count, index)]
    if not 0 <= numbers[1] < numbers[0]:
        raise ValueError(
            f"{_RULE}: {names[0]} is how many they are, and {names[1]} a number from 0 on, below that.\n"
            f"Received: {names[0]}={count!r}, {names[1]}={index!r}."
        )
    return numbers[0], numbers[1]


def rendezvous(
    host: str,
    port: int,
    count: int,
    index: int,
    facts: Mapping[str, Any],
    differs: Callable[[Mapping, Mapping, int], str | None],
    say: Callable[[str], Any] = print,
) -> None:
    """Returns in every process once all have connected with the same options, before JAX connects them.

    JAX's own connection aborts where one process waits in vain. Here the first process listens at the address, the
    others send their number and options, so every process reports the same error within `WAIT` seconds.

    Args:
        host: of the first process.
        port: there, which is free again afterwards.
        count: of processes.
        index: of this one.
        facts: its options, ready for JSON.
        differs: gives the difference between facts of the first and of another process, by its number, in words.
        say: called with a line if it takes long.

    Raises:
        ValueError: for a port that is taken, processes that do not join within `WAIT` seconds, or that are others.
    """
    until = time.monotonic() + WAIT
    message = {"format": _FORMAT, "count": count, "index": index, "facts": dict(facts)}
    if index:
        _join(host, port, message, until)
    else:
        with _listening(host, port) as server:
            _receive(server, f"{host}:{port}", message, differs, until, say)


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
    server: socket.socket, address: str, own: dict[str, Any], differs: Callable, until: float, say: Callable
) -> None:
    joined: dict[int, socket.socket] = {}
    report_after = time.monotonic() + _REPORT_AFTER
    fault = None
    try:
        while not _is_complete(joined, own["count"]) and fault is None:
            numbers = [str(number) for number in range(1, own["count"]) if number not in joined]
            missing = ", ".join(numbers[:_MOST_SHOWN])
            if time.monotonic() > until:
                fault = f"{address}, where process {missing} of {own['count']} has not joined within {WAIT} s"
                break
            if time.monotonic() > report_after:
                say(f"waits at {address} for process {missing} of {own['count']}, at most {WAIT} s")
                report_after = until
            server.settimeout(_RETRY)
            with contextlib.suppress(TimeoutError):
                connection, _ = server.accept()
                fault = _accept(connection, own, joined, differs)
        for connection in joined.values():
            with contextlib.suppress(OSError):
                connection.sendall(json.dumps({"format": _FORMAT, "fault": fault}).encode() + b"\n")
    finally:
        for connection in joined.values():
            with contextlib.suppress(OSError):
                connection.settimeout(1)
                connection.recv(1)  # the other closes first, so that the port is free at once
            connection.close()
    if fault is not None:
        raise _error(fault)


def _accept(connection: socket.socket, own: dict[str, Any], joined: dict, differs: Callable) -> str | None:
    """Takes in a process; gives the fault if it cannot train with this one."""
    message = _read(connection, time.monotonic() + 1)
    if message is None or not _is_whole(message):  # of another program
        connection.close()
        return None
    index = message["index"]
    if (before := joined.get(index)) is not None and _has_gone(before):
        joined.pop(index).close()  # which was started again since
    is_second = index in joined
    joined[-len(joined) - 1 if is_second else index] = connection  # a second one is answered too
    if message["count"] != own["count"]:
        return f"one with a count of {message['count']}, where the first has {own['count']}"
    if is_second or not 0 < index < own["count"]:
        return f"two processes with the number {index}"
    return differs(own["facts"], message["facts"], index)


def _is_complete(joined: dict[int, socket.socket], count: int) -> bool:
    """Whether all have joined and still wait; one that has ended since is taken out, as it may be started again."""
    if len(joined) < count - 1:
        return False
    for number in [number for number, connection in joined.items() if _has_gone(connection)]:
        joined.pop(number).close()
    return len(joined) == count - 1


def _is_whole(message: dict[str, Any]) -> bool:
    kinds = {"count": int, "index": int, "facts": dict}
    return all(isinstance(message.get(name), kind) for name, kind in kinds.items())


def _has_gone(connection: socket.socket) -> bool:
    """Whether the process at the other end, which says nothing more by itself, has ended."""
    connection.settimeout(0.01)
    try:
        return not connection.recv(1)
    except TimeoutError:
        return False
    except OSError:
        return True


def _join(host: str, port: int, message: dict[str, Any], until: float) -> None:
    fault: Any = "nobody listens"
    answer = None
    while answer is None and time.monotonic() < until:
        try:
            with socket.create_connection((host, port), timeout=max(until - time.monotonic(), 1)) as connection:
                connection.sendall(json.dumps(message).encode() + b"\n")
                answer = _read(connection, until)
                # A port where nobody listens can be this end too: then it reads its own words.
                answer = answer if answer is not None and "fault" in answer else None
                fault = "another program answers, or the first process has ended"
        except OSError as error:
            fault = error.strerror or error
        if answer is None:
            time.sleep(_RETRY)
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
    """The line of another process of this package, or `None`."""
    content = b""
    try:
        while b"\n" not in content and len(content) < _MOST_BYTES:
            connection.settimeout(max(until - time.monotonic(), 0.01))
            part = connection.recv(1 << 16)
            if not part:
                return None
            content += part
        message = json.loads(content.partition(b"\n")[0])
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) and message.get("format") == _FORMAT else None
