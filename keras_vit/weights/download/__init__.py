"""Brings a file from a server once, for all processes, and never shows it before it is verified.

`filelock` keeps the lock and releases it when a process dies. `platformdirs` knows the cache folder, `requests` speaks
http, and `rich` draws the bar. What none of them does is here: resuming, verifying before the final name, a bounded
number of tries, and error messages. Imports neither Keras nor TensorFlow.
"""

import contextlib
import errno
import functools
import logging
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from keras_vit.cache import cache_dir
from keras_vit.files import flush, flush_folder
from keras_vit.weights.download import cache, environment, transfer
from keras_vit.weights.download.cache import CachedFile, Check, find_local, place_at_hand, verify_cache, verify_file
from keras_vit.weights.download.partial_file import PartialFile, TransferError, disk_faults
from keras_vit.weights.download.remote import DownloadError, OfflineError, RemoteFile, download_error

__all__ = [
    "CachedFile",
    "DownloadError",
    "OfflineError",
    "RemoteFile",
    "cache_dir",
    "fetch",
    "find_local",
    "check_network",
    "get_local",
    "place_at_hand",
    "verify_cache",
    "verify_file",
]

_LOGGER = logging.getLogger("keras_vit")
_SILENT = 5.0  # seconds of waiting without a message
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # as some network file systems answer flock


def fetch(
    file: RemoteFile,
    *,
    check: Check | None = None,
    progress: bool | None = None,
    timeout: float | None = None,
) -> Path:
    """The path of the verified file: from the mirror, the cache, or now from its server.

    Args:
        check: called with the path of the file before it gets its final name; raises ValueError or OSError
            if the content is not valid.
        progress: whether to draw a bar; by default if the error stream is a terminal.
        timeout: longest silence of the server in seconds; by default `KERAS_VIT_TIMEOUT`, or 30.

    Raises:
        OfflineError: if it is not at hand, and there is no network or `KERAS_VIT_OFFLINE=1`.
        DownloadError: if it cannot be brought, is not valid, cannot be written into the cache, or is not in the
            directory that `KERAS_VIT_MIRROR` names.
        ValueError: if an environment variable or `timeout` has a bad value.
    """
    timeout = environment.timeout_seconds(timeout)
    if path := get_local(file, check):
        return path
    check_network(file)
    url = environment.mirror_url(file.path) or file.url
    with _cache_faults(file), _lock(file) as locked:
        if path := get_local(file, check):  # another process may have brought it
            return path
        part = PartialFile(file.place.with_name(f"{file.name}.part"))
        shares = locked and part.is_own
        if not shares:
            part = PartialFile(file.place.with_name(f"{file.name}.{secrets.token_hex(4)}.part"))
        try:
            with disk_faults(part):
                with _progress_bar(file, progress) as report:
                    attempt = functools.partial(transfer.download, file, url, part, timeout=timeout, report=report)
                    sha256 = _download(file, url, part, check, attempt)
                _publish(file, url, part, sha256)
        except TransferError as fault:
            raise download_error(file, str(fault), url) from None
        finally:
            if not shares:  # no later call would find a partial file of this name
                part.remove()
    return file.place


def get_local(file: RemoteFile, check: Check | None = None) -> Path | None:
    """The file if it is in the mirror directory or the cache, else None. A file put there by hand is verified.

    Raises:
        DownloadError: if it is at hand and not valid.
    """
    return find_local(file) or cache.register_local(file, check)


def check_network(file: RemoteFile) -> None:
    """Raises a `DownloadError` if a file is not at hand and no server may be used.

    It is an `OfflineError` with `KERAS_VIT_OFFLINE=1`; the other reason is a directory in `KERAS_VIT_MIRROR`.
    """
    cache.check_no_mirror(file)
    if environment.is_offline():
        raise download_error(file, "it is not at hand, and KERAS_VIT_OFFLINE forbids the network", kind=OfflineError)


def _download(file: RemoteFile, url: str, part: PartialFile, check: Check | None, attempt: Callable[[], str]) -> str:
    """Completes the partial file in at most four tries, and returns its sha256."""
    for number, pause in enumerate((*transfer.PAUSES, None)):
        continued = part.path.exists()
        try:
            sha256 = attempt()
            return cache.check_valid(part.path, file, check, sha256)
        except cache.InvalidFileError as fault:
            part.remove()
            last = not continued or pause is None  # a part from before may be to blame, so that is tried afresh
            error, wait = download_error(file, str(fault), url), 0.0
        except transfer.TransientError as fault:
            unreachable = isinstance(fault, transfer.UnreachableError)
            last = pause is None or (unreachable and number == 0)
            kind = OfflineError if unreachable else DownloadError
            tries = f", after {number + 1} tries" if number else ""
            error, wait = download_error(file, f"{fault}{tries}", url, kind), max(pause or 0.0, fault.wait)
        if last:
            break
        _LOGGER.info("%s", error)
        if wait > _SILENT:
            _LOGGER.warning("Waiting %.0f s for %s, by the Retry-After of its server.", wait, file.label)
        time.sleep(wait)
    raise error


def _publish(file: RemoteFile, url: str, part: PartialFile, sha256: str) -> None:
    """Renames the verified partial file. A loss of power leaves the whole file or none."""
    flush(part.path)
    os.replace(part.path, file.place)
    part.remove()
    cache.write_note(cache.note_path(file.place), file.place, sha256, url)
    with contextlib.suppress(OSError):  # some file systems flush no folders
        flush_folder(file.place.parent)


@contextlib.contextmanager
def _cache_faults(file: RemoteFile) -> Iterator[None]:
    """Turns errors of the file system into one that names the cache. No other folder is ever used instead."""
    try:
        cache_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
        file.place.parent.mkdir(parents=True, exist_ok=True)
        yield
    except DownloadError:
        raise
    except OSError as error:
        raise DownloadError(_cannot_write(file, error)) from error


def _cannot_write(file: RemoteFile, error: OSError) -> str:
    folder, reason = file.place.parent, error.strerror or error
    at_fault = f"Received: {error.filename or file.place}"
    if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
        return (
            f"{file.label} could not be written into the cache: {reason}.\n{at_fault}\n"
            "Remove what stands there, or set KERAS_VIT_CACHE to another folder."
        )
    return (
        f"the cache must be a folder that can be written, since {file.label} is not in it yet: {reason}.\n"
        f"{at_fault}\nSet KERAS_VIT_CACHE to a folder of yours."
    )


@contextlib.contextmanager
def _lock(file: RemoteFile) -> Iterator[bool]:
    """Waits for other processes that bring the same file; False where the file system has no locks."""
    lock = filelock.FileLock(f"{file.place}.lock", fallback_to_soft=False)
    locked = _acquire(lock, file)
    try:
        yield locked
    finally:
        if locked:
            lock.release()


def _acquire(lock: filelock.BaseFileLock, file: RemoteFile) -> bool:
    try:
        lock.acquire(timeout=1)
    except filelock.Timeout:
        _LOGGER.warning("Waiting for another process that downloads %s (lock: %s).", file.label, lock.lock_file)
        lock.acquire(poll_interval=0.1)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return False
    return True


@contextlib.contextmanager
def _progress_bar(file: RemoteFile, shown: bool | None) -> Iterator[transfer.Report]:
    """A function that reports bytes so far and in all: draws a bar on the error stream, or does nothing."""
    if not (sys.stderr and sys.stderr.isatty() if shown is None else shown):
        yield lambda done, total: None
        return
    from rich import console, progress

    columns = (
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console.Console(stderr=True)) as bar:
        task = bar.add_task(file.label, total=file.size)
        yield lambda done, total: bar.update(task, completed=done, total=total or file.size)
