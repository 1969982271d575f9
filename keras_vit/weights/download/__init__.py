"""Brings a file from a server once, for all processes, and never shows it before it is verified.

`filelock` keeps the lock and releases it when a process dies. `platformdirs` knows the cache folder, `requests` speaks
http, and `rich` draws the bar. Imports neither Keras nor TensorFlow.
"""

import contextlib
import errno
import logging
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import filelock

from keras_vit.cache import cache_dir
from keras_vit.files import PREFIX, flush, flush_folder
from keras_vit.weights.download import environment, transfer
from keras_vit.weights.download.cache import Check, check_network, find_local, note_path, write_note
from keras_vit.weights.download.remote import DownloadError, OfflineError, RemoteFile

__all__ = ["DownloadError", "OfflineError", "RemoteFile", "fetch"]

_LOGGER = logging.getLogger("keras_vit")
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
        OfflineError: if it is not at hand, and there is no network, or none may be used by `KERAS_VIT_OFFLINE=1` or a
            directory in `KERAS_VIT_MIRROR`.
        DownloadError: if it cannot be brought, is not valid, cannot be written into the cache, or is not in the
            directory that `KERAS_VIT_MIRROR` names.
        ValueError: if an environment variable or `timeout` has a bad value.
    """
    timeout = environment.timeout_seconds(timeout)
    if path := find_local(file, check):
        return path
    check_network(file)
    url = environment.mirror_url(file.path) or file.url
    with _cache_faults(file), _lock(file) as locked:
        if path := find_local(file, check):  # another process may have brought it
            return path
        other = "" if locked else f".{secrets.token_hex(4)}"  # than that of another process
        part = file.place.with_name(f"{PREFIX}{file.name}{other}.part")
        try:
            with _progress_bar(file, progress) as report:
                sha256 = transfer.download(file, url, part, check, timeout, report)
            flush(part)  # so that a loss of power leaves the whole file or none
            os.replace(part, file.place)
            write_note(note_path(file.place), file.place, sha256, url)
            with contextlib.suppress(OSError):  # some file systems flush no folders
                flush_folder(file.place.parent)
        finally:
            if not locked or file.place.exists():
                transfer.remove_part(part)
    return file.place


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
        raise DownloadError(
            f"{file.label} could not be written into the cache folder: {error.strerror or error}.\n"
            f"Received: {error.filename or file.place}\nRemove what stands there, or make room, or set KERAS_VIT_CACHE "
            "to a folder that you can write to."
        ) from error


@contextlib.contextmanager
def _lock(file: RemoteFile) -> Iterator[bool]:
    """Waits for other processes that bring the same file; False where the file system has no locks."""
    lock = filelock.FileLock(f"{file.place}.lock", fallback_to_soft=False)
    try:
        lock.acquire(timeout=1)
    except filelock.Timeout:
        _LOGGER.warning("Waiting for another process that downloads %s (lock: %s).", file.label, lock.lock_file)
        lock.acquire(poll_interval=0.1)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    try:
        yield lock.is_locked
    finally:
        lock.release()


@contextlib.contextmanager
def _progress_bar(file: RemoteFile, shown: bool | None) -> Iterator[transfer.Report]:
    """A function that reports bytes so far and in all, which are drawn as a bar on the error stream."""
    from rich import console, markup, progress

    if shown is None:
        shown = sys.stderr is not None and sys.stderr.isatty()
    columns = (*progress.Progress.get_default_columns(), progress.DownloadColumn(), progress.TransferSpeedColumn())
    with progress.Progress(*columns, console=console.Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task(markup.escape(file.label), total=file.size)
        yield lambda done, total: bar.update(task, completed=done, total=total or file.size)
