"""Files on the disk: written whole or not at all, and small JSON read such that no stranger's file can hold us up."""

import contextlib
import json
import os
import re
import tempfile
import time
from pathlib import Path

_ABANDONED = 3600  # seconds without a byte, after which a part is nobody's
_MOST_BYTES = 1 << 16  # of a small JSON file; ours have some 300


@contextlib.contextmanager
def replacing(path, suffix=".part"):
    """Gives the path of a temporary file, which replaces `path` in one step once all of it is on the disk.

    A fault, a kill or a loss of power leaves what was there before. What killed writers of `path` left an hour ago
    or longer is removed.

    Args:
        path: of the file to be, in a folder that exists.
        suffix: what the temporary file's name ends in, for writers that look at it.
    """
    path = Path(path)
    _sweep(path, suffix)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=suffix)
    os.close(handle)
    try:
        yield temporary
        flush(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, temporary):
            error.filename = str(path)  # a full disk does not say whose
        raise
    flush_folder(path.parent)  # the rename itself is safe only then


def flush(path):
    """Waits until a file is on the disk."""
    handle = os.open(path, os.O_RDWR)  # Windows flushes only what is open for writing
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(path):
    """Waits until the names in a folder are on the disk, where a folder can be opened."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def json_object(path: Path, most_bytes: int = _MOST_BYTES) -> dict:
    """The JSON object in a file.

    Raises:
        ValueError: if it is no regular file, larger than `most_bytes`, not readable, or no JSON object.
    """
    try:
        if not path.is_file():  # a pipe would never end
            raise ValueError("the file must be a regular file")
        if path.stat().st_size > most_bytes:
            raise ValueError(f"the file must be small.\nReceived: {path.stat().st_size:,} bytes")
        found = json.loads(path.read_bytes())
    except (OSError, RecursionError) as error:
        raise ValueError(f"the file must be readable.\nReceived: {type(error).__name__}") from error
    if not isinstance(found, dict):
        raise ValueError(f"the file must hold an object.\nReceived: {type(found).__name__}")
    return found


def read_json_object(path: Path, most_bytes: int = _MOST_BYTES) -> dict | None:
    """As `json_object`, and None where that raises."""
    try:
        return json_object(path, most_bytes)
    except ValueError:
        return None


def _sweep(path, suffix):
    """Removes what killed writers of this path left; a younger part may be that of another process."""
    oldest = time.time() - _ABANDONED
    for entry in os.scandir(path.parent):
        mark = entry.name.removeprefix(path.name).removesuffix(suffix)
        if entry.name == f"{path.name}{mark}{suffix}" and re.fullmatch("[a-z0-9_]{8}", mark):  # as `mkstemp` names it
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
