"""The processes of a job: a pool that computes parts, and what each of its processes does.

A process that the system kills ends the pool, since its part may be what is too large for the memory. Parts are renamed
into place once they are whole, so the same command computes those that are missing.
"""

import concurrent.futures
import contextlib
import errno
import functools
import importlib.abc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_vit.embedding.embedder import Embedder, read_photo_bytes
from keras_vit.embedding.manifest import Manifest
from keras_vit.embedding.part_files import Part, write_part
from keras_vit.embedding.photo_lists import Entry, PhotoList, photo_key, photo_location
from keras_vit.images.pillow_formats import PillowError
from keras_vit.images.validation import reason_by_suffix

_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
_GRACE = 10  # seconds in which a process may finish the file that it writes, once the pool has ended
_READERS = 8  # threads that read ahead, since a file on a network disk takes a round trip
_REPORT_AFTER = 2.0  # seconds between reports on a part
_writing = threading.Lock()  # held while a part is written
_setup: tuple[Any, ...] = ()  # of this process, if it is one of a pool


class WorkerError(RuntimeError):
    """A process of a job has ended before its work was done."""


class JobSetup(NamedTuple):
    """What each process must know of a job."""

    folder: Path  # absolute
    manifest: Manifest
    photos: PhotoList  # their absolute top and the states of shards; entries come with each task
    embedder: Embedder  # that is opened by each process


class Pool(concurrent.futures.ProcessPoolExecutor):
    """Processes that end with the `with` statement, or with this process, however that is killed.

    Ctrl-C and SIGTERM reach this process alone. Of a job, `rows` has the numbers of computed rows by the description of
    a part; `receive` updates them.

    Raises:
        WorkerError: at the end of the `with` statement, in place of `BrokenProcessPool`.
    """

    def __init__(self, processes: int, threads: int, setup: JobSetup | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        end, self._open_end = context.Pipe(duplex=False)
        with _environment(threads):  # that of Python's tracker of semaphores, which would warn after a kill
            self._reports = context.SimpleQueue()
        self.rows: dict[str, int] = {}
        self._parts: dict[int, str] = {}  # by the number of the process
        self._threads, self._workers = threads, set[Any]()
        self._others = {*multiprocessing.active_children()}
        super().__init__(processes, context, _start, (end, self._reports, setup))

    def submit(self, function: Callable, /, *arguments: Any, **named: Any) -> concurrent.futures.Future:
        """As that of every executor. Here processes start, with an environment of their own."""
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # which they inherit
        try:
            with _environment(self._threads):
                return super().submit(function, *arguments, **named)
        finally:
            self._workers |= {*multiprocessing.active_children()} - self._others
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def receive(self) -> None:
        """Takes the reports of the processes."""
        while not self._reports.empty():
            process, part, rows = self._reports.get()
            self._parts[process], self.rows[part] = part, rows

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        self._open_end.close()
        self.shutdown(cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            self.receive()
            how, work = "ended", "opened the model"
            for worker in self._workers:
                if code := worker.exitcode:
                    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
                    work = f"computed {self._parts[worker.pid]}" if worker.pid in self._parts else work
            memory = " If memory ran out, pass fewer --processes." if how.endswith("SIGKILL") else ""
            raise WorkerError(
                "each process of a job must last until its work is done.\n"
                f"Received: one that {how} while it {work}. Run the same command, which goes on.{memory}"
            ) from error


@contextlib.contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Inside, new processes have the environment of one that computes."""
    wanted = {**dict.fromkeys(_LIMITS, str(threads)), "TF_NUM_INTEROP_THREADS": "1", "KERAS_BACKEND": "tensorflow"}
    wanted |= {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore", "KERAS_VIT_WORKER": "1"}
    wanted["PYTHONHASHSEED"] = "0"  # tf2onnx names what it makes in the order of sets
    wanted["TF_FORCE_GPU_ALLOW_GROWTH"] = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # several share one
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _start(end: Any, reports: Any, setup: JobSetup | None) -> None:
    """Begins a process of a pool, which then does tasks."""
    global _setup
    _setup = (setup, reports)
    sys.meta_path.insert(0, _WithoutPandas())
    os.setsid()  # Linux shares a busy machine among sessions, and signals of a terminal come to the job alone
    for descriptor in (1, 2):  # what runtimes print
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    threading.Thread(target=_end_with_pool, args=(end,), daemon=True).start()


class _WithoutPandas(importlib.abc.MetaPathFinder):
    """pyarrow imports pandas where it finds it, for half a second of each process, and goes on without."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("no pandas in a worker", name=fullname)


def _end_with_pool(end: Any) -> None:
    with contextlib.suppress(EOFError):  # once nobody can write any more
        end.recv_bytes()
    _writing.acquire(timeout=_GRACE)
    os._exit(0)


@functools.cache
def _readers() -> concurrent.futures.Executor:
    return concurrent.futures.ThreadPoolExecutor(_READERS)


def compute_part(number: int, entries: Sequence[Entry]) -> tuple[str, str | None]:
    """Computes and writes a part of the pool's job: the software, and the fault if it could not be computed.

    Raises:
        OSError: if it cannot be written.
        ValueError, ImportError, ExportError: as `Embedder.opened`.
    """
    (folder, manifest, photos, embedder), reports = _setup
    software, reported_at = embedder.opened.software, 0.0
    statuses: list[Any] = []
    vectors: list[Any] = []
    try:
        for batch in _batches(photos, entries, manifest.batch_size):
            if time.monotonic() - reported_at > _REPORT_AFTER:
                reported_at = time.monotonic()
                reports.put((os.getpid(), manifest.describe(number), sum(map(len, statuses))))
            missing = manifest.batch_size - len(batch)  # always as many: sums may be in their order
            found = embedder([*batch, *[PillowError("no photo")] * missing])
            statuses.append(found["status"][: len(batch)])
            vectors.append(found[manifest.outputs][: len(batch)])
    except Exception as error:  # of runtimes, as for want of memory
        return software, f"{type(error).__name__}: {error}"
    names = [photo_key(entry) for entry in entries]
    status = np.array([*map(reason_by_suffix, names, np.concatenate(statuses).tolist())], str)
    try:
        with _writing:
            write_part(folder, manifest, number, Part(np.array(names, object), status, np.concatenate(vectors)))
    except OSError as error:
        hint = " Make room." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        path = folder / manifest.name(number)
        raise OSError(f"{path} cannot be written: {error.strerror or error}.{hint}") from None
    reports.put((os.getpid(), manifest.describe(number), len(entries)))
    return software, None


def _batches(photos: PhotoList, entries: Sequence[Entry], size: int) -> Iterator[list[bytes | PillowError]]:
    """The bytes of photos in batches; those of the next batch are read meanwhile."""
    ahead: list[concurrent.futures.Future] = []
    for start in range(0, len(entries) + size, size):
        ready = ahead
        ahead = [_readers().submit(_read, photos, entry) for entry in entries[start : start + size]]
        if ready:
            yield [future.result() for future in ready]


def _read(photos: PhotoList, entry: Entry) -> bytes | PillowError:
    try:
        return read_photo_bytes(photo_location(photos.top, entry, photos.states))
    except PillowError as reason:
        return reason
