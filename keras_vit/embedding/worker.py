"""A worker of `keras-vit embed`, started by `python -m keras_vit.embedding.worker`: tasks come as lines of JSON.

It ends with its supervisor, however that was killed: the pipe of tasks is closed then, and a thread notices.
Answers are lines of JSON too, on what was the standard output; what others print goes to the standard error.
"""

import concurrent.futures
import errno
import importlib.abc
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.embedding.embedder import OK, Embedder, read_photo_bytes
from keras_vit.embedding.manifest import Manifest, read_manifest
from keras_vit.embedding.part_files import Part, write_part
from keras_vit.embedding.photo_lists import Entry, photo_key, photo_location
from keras_vit.embedding.supervisor import END
from keras_vit.images.pillow_formats import PillowError
from keras_vit.images.validation import reason_by_suffix

_GRACE = 10  # seconds from the supervisor's death to the end, in which what computes comes back to Python
_READERS = 8  # threads that read ahead, since a file on a network disk takes a round trip
_REPORT_AFTER = 2.0  # seconds between reports on a part
Answer = Callable[..., None]


def main() -> int:
    """Does tasks until there are none; gives the exit code."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.meta_path.insert(0, _WithoutPandas())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(tasks,), daemon=True).start()

    def answer(**facts: Any) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    first = json.loads(tasks.get())
    try:
        if "prepare" in first:
            from keras_vit.embedding.loaders import prepare

            answer(prepared=prepare(**first["prepare"], say=lambda line: answer(message=line)))
        else:
            _run_tasks(Path(first["folder"]), Path(first["top"]), first["model"], tasks, answer)
    except BrokenPipeError:  # the supervisor is gone
        return 1
    except Exception as error:
        import traceback

        traceback.print_exc()
        answer(fatal=f"{error}", kind=type(error).__name__, parameters=getattr(error, "parameters", ()))
        return 1
    return 0


class _WithoutPandas(importlib.abc.MetaPathFinder):
    """pyarrow imports pandas where it finds it, for half a second of each process, and goes on without."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("no pandas in a worker", name=fullname)


def _listen(tasks: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        tasks.put(line)
        if line.strip() == END:
            return
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE)
    os._exit(128 + signal.SIGTERM)


def _run_tasks(folder: Path, top: Path, model: str, tasks: "queue.SimpleQueue[str]", answer: Answer) -> None:
    manifest = read_manifest(folder)
    given: dict[str, Any] = {"outputs": manifest.outputs, "batch_size": manifest.batch_size}
    if manifest.file is not None:
        embedder = Embedder(folder / manifest.file, threads=manifest.threads, **given)
    else:
        # TensorFlow takes its threads from the environment, which the supervisor has set.
        threads = None if manifest.engine in ("tensorflow", "xla") else manifest.threads
        given |= {"engine": manifest.engine, "precision": manifest.precision, "weights": manifest.weights}
        embedder = Embedder(model, threads=threads, **given)
    answer(ready=embedder.opened.software)
    with concurrent.futures.ThreadPoolExecutor(_READERS) as readers:
        while (line := tasks.get().strip()) != END:
            task = json.loads(line)
            _compute_part(folder, top, manifest, embedder, readers, task["part"], task["photos"], answer)


def _compute_part(
    folder: Path,
    top: Path,
    manifest: Manifest,
    embedder: Embedder,
    readers: concurrent.futures.Executor,
    number: int,
    entries: Sequence[Entry],
    answer: Answer,
) -> None:
    """Computes and writes a part; a failure is an answer, and the supervisor tries again."""
    reported_at, statuses, vectors = time.monotonic(), [], []
    try:
        for batch in _batches(top, entries, manifest.batch_size, readers):
            missing = manifest.batch_size - len(batch)
            found = embedder(
                [*batch, *[PillowError("no photo")] * missing]
            )  # always as many: sums may be in their order
            statuses.append(found["status"][: len(batch)])
            vectors.append(found[manifest.outputs][: len(batch)])
            if time.monotonic() - reported_at > _REPORT_AFTER:
                reported_at = time.monotonic()
                answer(part=number, so_far=sum(map(len, statuses)))
    except Exception as error:  # of runtimes, as for want of memory
        return answer(part=number, fault=f"{type(error).__name__}: {error}")
    names = [photo_key(entry) for entry in entries]
    status = np.array([*map(reason_by_suffix, names, np.concatenate(statuses).tolist())], str)
    part = Part(np.array(names, object), status, np.concatenate(vectors))
    try:
        write_part(folder, manifest, number, part)
    except OSError as error:
        path = folder / manifest.name(number)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return answer(fatal=f"{path} cannot be written: {error.strerror or error}.{' Make room.' if full else ''}")
    answer(part=number, rows=len(status), broken=int((status != OK).sum()))


def _batches(
    top: Path, entries: Sequence[Entry], size: int, readers: concurrent.futures.Executor
) -> Iterator[list[bytes | PillowError]]:
    """The bytes of photos in batches; those of the next batch are read meanwhile."""
    ahead: list[concurrent.futures.Future] = []
    for start in range(0, len(entries) + size, size):
        ready = ahead
        ahead = [readers.submit(_read, top, entry) for entry in entries[start : start + size]]
        if ready:
            yield [future.result() for future in ready]


def _read(top: Path, entry: Entry) -> bytes | PillowError:
    try:
        return read_photo_bytes(photo_location(top, entry))
    except PillowError as reason:
        return reason


if __name__ == "__main__":
    sys.exit(main())
