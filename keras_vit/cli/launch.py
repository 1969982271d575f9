"""`keras-vit launch`: several processes of one command on this machine, as a cluster's launcher starts them on many.

A process that it has started ends when the launcher does, however that was killed.
"""

import argparse
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras_vit.checks import ArgumentError, check_positive_int
from keras_vit.training.hosts.processes import ADDRESS, COUNT, INDEX

_PATIENCE = 10  # seconds that processes have to end after SIGTERM
_TO_SAVE = 60  # seconds that the others have to end by themselves, once one has ended after a signal
_POLL = 0.1  # seconds
_MOST = 4096  # processes: more are a slip of the hand
_ASKED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # to end, where the system has them; a closed terminal is one


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "start a command as several processes on this machine, which train together on JAX"
    example = "keras-vit launch --processes 2 finetune --data digits --layout fsdp --out run"
    new = command(top, "launch", launch, summary, example)
    new.add_argument(
        "--processes",
        type=int,
        required=True,
        metavar="N",
        help="how many processes; where there are GPUs, each gets one",
    )
    new.add_argument(
        "words", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="a command of keras-vit, with its options"
    )


def launch(arguments: Namespace) -> Iterator[str]:
    """Ends as the first process that fails, and then ends the others; hands on a signal, and ends after them."""
    check_positive_int("processes", arguments.processes)
    if arguments.processes > _MOST:
        raise ArgumentError(
            f"`processes` must be at most {_MOST:,}.\nReceived: processes={arguments.processes}.",
            parameters=("processes",),
        )
    if not arguments.words:
        raise ArgumentError(
            "`processes` comes before a command, as finetune --data digits --layout fsdp.",
            parameters=("processes",),
        )
    with Started([sys.executable, "-m", "keras_vit", *arguments.words], arguments.processes) as started:
        code = started.wait()
    if started.received == signal.SIGINT:
        raise KeyboardInterrupt
    if started.received is not None:
        raise SystemExit(128 + started.received)
    if code:
        raise ValueError(f"a process of `launch` has ended with {code}, so the others were ended too.")
    yield from ()


class Started:
    """Processes that will find each other; the first speaks for all. None outlives the `with` block, or the launcher.

    Each has a session of its own: a signal of the terminal comes to the launcher alone, which hands it on once. They
    hold one end of a pipe. It is closed when the launcher ends, however it is killed, and they end then by themselves.

    Args:
        command: of each.
        count: of processes.

    Attributes:
        received: the first signal that asked them to end; `None` before.
        children: the processes.
    """

    def __init__(self, command: Sequence[str], count: int) -> None:
        self.received: int | None = None
        self.children: list[subprocess.Popen] = []
        self._command, self._count = command, count
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Started":
        for number in (getattr(signal, name) for name in _ASKED if hasattr(signal, name)):
            if signal.getsignal(number) != signal.SIG_IGN:  # as `nohup` wants it
                self._before[number] = signal.signal(number, self._hand_on)
        if hasattr(signal, "SIGTSTP"):
            self._before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._pause)
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end(self.children)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for descriptor in getattr(self, "_pipe", ()):
            os.close(descriptor)

    def wait(self) -> int:
        """The exit code of the first process that fails, or 0 when all have ended well.

        After a signal all are waited for, since they save; but not for ever, once one has ended.
        """
        until = None
        while True:
            codes = [child.poll() for child in self.children]
            failed = [code for code in codes if code]
            if None not in codes or (failed and self.received is None):
                return failed[0] if failed else 0
            if len(codes) > codes.count(None) and self.received is not None:
                until = until or time.monotonic() + _TO_SAVE
                if time.monotonic() > until:
                    return failed[0] if failed else 0
            time.sleep(_POLL)

    def _start(self) -> None:
        with socket.socket() as probe:  # a port that is free now
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shared = {**os.environ, "KERAS_BACKEND": "jax", ADDRESS: f"127.0.0.1:{port}", COUNT: str(self._count)}
        arguments: dict[str, Any] = {"stdin": subprocess.DEVNULL}
        if os.name == "posix":
            self._pipe = os.pipe()
            shared[LAUNCHER] = str(self._pipe[0])
            arguments |= {"start_new_session": True, "pass_fds": [self._pipe[0]]}
        for index in range(self._count):
            one = shared | {INDEX: str(index), "JAX_LOCAL_DEVICE_IDS": str(index)}
            output = subprocess.DEVNULL if index else None
            self.children.append(subprocess.Popen(self._command, env=one, stdout=output, **arguments))
            if self.received is not None:  # while this process was made, so that it has missed the signal
                _send(self.children[-1:], self.received)
                return

    def _hand_on(self, number: int, frame: Any) -> None:
        self.received = self.received or number
        _send(self.children, number)

    def _pause(self, number: int, frame: Any) -> None:
        """Ctrl-Z: all stop, and go on when this one does."""
        for each in (signal.SIGSTOP, signal.SIGCONT):
            for child in self.children:
                with contextlib.suppress(OSError):
                    child.send_signal(each)
            if each == signal.SIGSTOP:
                os.kill(os.getpid(), each)


def _send(children: Sequence[subprocess.Popen], number: int) -> None:
    """Hands a signal on; one that a process would not answer by saving comes as SIGTERM."""
    for child in children:
        with contextlib.suppress(OSError, ValueError):  # Windows knows SIGTERM alone
            child.send_signal(signal.SIGINT if number == signal.SIGINT else signal.SIGTERM)


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


LAUNCHER = "KERAS_VIT_LAUNCHER"  # variable with the number of a pipe, whose other end the launcher alone holds
_GRACE = 30  # seconds from SIGTERM, in which a run saves itself, to the end


def end_with_launcher() -> bool:
    """Watches the launcher in a thread, where there is one, and says whether there is."""
    pipe = os.environ.pop(LAUNCHER, "")
    with contextlib.suppress(OSError, ValueError):  # of a number that is not this launcher's
        if pipe and stat.S_ISFIFO(os.fstat(int(pipe)).st_mode):
            threading.Thread(target=_wait, args=(int(pipe),), daemon=True).start()
            return True
    return False


def _wait(pipe: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(pipe, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(128 + signal.SIGTERM)
