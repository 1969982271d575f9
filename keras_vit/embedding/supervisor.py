"""Processes that compute parts, and the supervisor that starts, watches and replaces them.

`multiprocessing.Pool` waits for ever when one of its processes is killed. Here a process that ends is replaced, its
part is tried three times, and none outlives the supervisor.
"""

import collections
import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from keras_vit.checks import with_parameters

END = "end"  # the task after the last one
TRIES = 3  # of a part
_PATIENCE = 10  # seconds that processes have to end after SIGTERM
_LAST_WORDS = 600  # letters of what a process printed before it ended
_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


class Worker:
    """One process.

    Args:
        first: its first task, ready for JSON.
        threads: that it computes with.

    Attributes:
        part: that it computes now; `None` of one that waits.
        is_ready: whether it has opened its model.
    """

    def __init__(self, first: dict[str, Any], threads: int) -> None:
        self.part: int | None = None
        self.is_ready = False
        self._incomplete = b""  # an answer of which a part has come
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `stop`
        environment = {**os.environ, **dict.fromkeys(_LIMITS, str(threads)), "TF_NUM_INTEROP_THREADS": "1"}
        environment |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment["PYTHONHASHSEED"] = "0"  # tf2onnx names what it makes in the order of sets
        environment.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # several share an accelerator
        package = str(Path(__file__).parents[2])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "keras_vit.embedding.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=environment,
            start_new_session=True,  # so that Ctrl-C comes to the supervisor alone
        )
        self.send(first)

    @property
    def output(self) -> Any:
        """The stream of its answers."""
        return self._process.stdout

    @property
    def number(self) -> int:
        """Of its process."""
        return self._process.pid

    def send(self, task: Any) -> None:
        """Sends it a task; one that has ended shows by the end of its answers."""
        line = f"{task if isinstance(task, str) else json.dumps(task)}\n".encode()
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(line)  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]

    def answers(self) -> list[dict[str, Any]] | None:
        """Its next answers, for which this waits; `None` once it has ended."""
        data = os.read(self.output.fileno(), 1 << 16)
        *lines, self._incomplete = (self._incomplete + data).split(b"\n")
        return [json.loads(line) for line in lines] if data else None

    def ended(self) -> str:
        """How it has ended, in words."""
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        if code == -signal.SIGKILL:
            how += ", as systems do when memory runs out: pass fewer --processes"
        self._printed.seek(0)
        printed = " ".join(self._printed.read().decode(errors="replace").split())
        return how + (f", and had printed: {printed[-_LAST_WORDS:]}" if printed and code >= 0 else "")

    def stop(self, until: float) -> None:
        """Ends it by SIGTERM, or by SIGKILL once `time.monotonic()` is beyond `until`."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):  # of a pipe that is full
            self._process.stdin.close()  # type: ignore[union-attr]
        self.output.close()
        self._printed.close()


def run_once(task: dict[str, Any], threads: int, say: Callable[[str], Any]) -> dict[str, Any]:
    """The answer of a process that does one task; prints its lines before that, and raises its error."""
    worker = Worker(task, threads)
    try:
        while (answers := worker.answers()) is not None:
            for answer in answers:
                if "message" not in answer:
                    raise_fatal(answer)
                    return answer
                say(answer["message"])
        raise RuntimeError(f"a process that opened the model {worker.ended()}.")
    finally:
        worker.stop(time.monotonic() + _PATIENCE)


def raise_fatal(answer: dict[str, Any]) -> None:
    """Raises an answer of a process that ends the whole job."""
    if "fatal" in answer:
        kind = {"ImportError": ImportError, "FileNotFoundError": FileNotFoundError, "TypeError": TypeError}
        raise with_parameters(
            kind.get(answer.get("kind", ""), ValueError)(answer["fatal"]), *answer.get("parameters", ())
        )


class Supervisor:
    """Processes that compute parts until all are done, or have failed three times.

    Args:
        first: the first task of each process.
        tasks: gives the task of a part.
        parts: their numbers, in order.
        processes: how many at once.
        threads: of each.

    Attributes:
        failed: by the number of a part that was given up, how its last try ended.
        workers: the processes that there are now.
    """

    def __init__(
        self,
        first: dict[str, Any],
        tasks: Callable[[int], dict[str, Any]],
        parts: list[int],
        processes: int,
        threads: int,
    ) -> None:
        self.failed: dict[int, str] = {}
        self.workers: list[Worker] = []
        self._first, self._tasks, self._threads = first, tasks, threads
        self._processes = processes
        self._waiting = collections.deque(parts)
        self._tries: collections.Counter[int] = collections.Counter()
        self._unready = 0  # processes in a row that ended before they were ready
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:  # all at once, and then each is waited for
            with contextlib.suppress(OSError):
                os.kill(worker.number, signal.SIGTERM)
        until = time.monotonic() + _PATIENCE
        for worker in self.workers:
            worker.stop(until)
        self._selector.close()

    def answers(self, patience: float) -> Iterator[dict[str, Any]]:
        """The answers of the processes until all parts are done; an empty one after `patience` seconds of silence.

        A part that is tried again is an answer too: its number as `again`, the number of its `try`, and `how` the last
        one ended.

        Raises:
            ValueError, ImportError: an answer that ends the job, as a full disk.
            RuntimeError: if no process gets as far as its model.
        """
        while self._waiting or any(worker.part is not None for worker in self.workers):
            for worker in self.workers:
                self._assign(worker)
            while len(self.workers) < min(self._processes, len(self._waiting) + self._busy()):
                self._start()
            ready = self._selector.select(patience)
            for worker in (key.data for key, _ in ready):
                answers = worker.answers()
                if answers is None:
                    yield self._replace(worker)
                for answer in answers or ():
                    yield from self._handle(worker, answer)
            if not ready:
                yield {}
        for worker in self.workers:
            worker.send(END)

    def _busy(self) -> int:
        return sum(worker.part is not None for worker in self.workers)

    def _start(self) -> None:
        worker = Worker(self._first, self._threads)
        self.workers.append(worker)
        self._selector.register(worker.output, selectors.EVENT_READ, worker)

    def _handle(self, worker: Worker, answer: dict[str, Any]) -> Iterator[dict[str, Any]]:
        raise_fatal(answer)
        if "ready" in answer:
            worker.is_ready, self._unready = True, 0
        if "rows" in answer:
            worker.part = None
        yield answer
        if "fault" in answer:
            yield self._retry_or_give_up(worker, answer["fault"])

    def _assign(self, worker: Worker) -> None:
        if self._waiting and worker.is_ready and worker.part is None:
            worker.part = self._waiting.popleft()
            worker.send(self._tasks(worker.part))

    def _replace(self, worker: Worker) -> dict[str, Any]:
        """Takes a process out that has ended; another one starts if there is work."""
        self._selector.unregister(worker.output)
        self.workers.remove(worker)
        how = worker.ended()
        worker.stop(0)
        if worker.is_ready:
            return self._retry_or_give_up(worker, f"its process {how}")
        self._unready += 1
        if self._unready >= TRIES:
            raise RuntimeError(f"{TRIES} processes ended before they had opened the model; the last {how}.")
        return {}

    def _retry_or_give_up(self, worker: Worker, how: str) -> dict[str, Any]:
        """Notes that a part was not done; answers that it is tried again, or nothing if it is given up."""
        number, worker.part = worker.part, None
        if number is None:
            return {}
        self._tries[number] += 1
        if self._tries[number] >= TRIES:
            self.failed[number] = how
            return {}
        self._waiting.append(number)
        return {"again": number, "try": self._tries[number] + 1, "how": how}
