"""`keras-vit launch`: several processes of one command on this machine, as a cluster's launcher starts them on many."""

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_vit.checks import check_positive_int, error_about
from keras_vit.training.hosts.processes import ADDRESS, COUNT, INDEX

_PATIENCE = 10  # seconds that processes have to end after SIGTERM
_POLL = 0.1  # seconds


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "start several processes of a command on this machine, which train together on JAX"
    example = "keras-vit launch --processes 2 finetune --data digits --layout fsdp --out run"
    new = command(top, "launch", launch, summary, example)
    new.add_argument("--processes", type=int, required=True, metavar="N", help="how many; with GPUs each gets one")
    new.add_argument("words", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="of keras-vit, with its options")


def launch(arguments: Namespace) -> Iterator[str]:
    """Ends as the first process that fails, and then ends the others."""
    check_positive_int("processes", arguments.processes)
    if not arguments.words:
        raise error_about("processes")(
            "`processes` needs a command behind it, as finetune --data digits --layout fsdp."
        )
    children = start(arguments.processes, [sys.executable, "-m", "keras_vit", *arguments.words])
    try:
        code = wait(children)
    finally:
        end(children)
    if code:
        raise ValueError(f"a process of `launch` has ended with {code}, so the others were ended too.")
    yield from ()


def start(count: int, command: Sequence[str]) -> list[subprocess.Popen]:
    """So many processes that will find each other; the first speaks for all."""
    with socket.socket() as probe:  # a port that is free now
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "KERAS_BACKEND": "jax", ADDRESS: f"127.0.0.1:{port}", COUNT: str(count)}
    return [
        subprocess.Popen(
            command,
            env=shared | {INDEX: str(index), "JAX_LOCAL_DEVICE_IDS": str(index)},
            stdout=subprocess.DEVNULL if index else None,
        )
        for index in range(count)
    ]


def wait(children: Sequence[subprocess.Popen]) -> int:
    """The exit code of the first process that fails, or 0 when all have ended well."""
    while True:
        codes = [child.poll() for child in children]
        failed = [code for code in codes if code]
        if failed or None not in codes:
            return failed[0] if failed else 0
        time.sleep(_POLL)


def end(children: Sequence[subprocess.Popen]) -> None:
    """Ends what still runs: by SIGTERM, and after a while by SIGKILL."""
    for child in children:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
    until = time.monotonic() + _PATIENCE
    for child in children:
        try:
            child.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
