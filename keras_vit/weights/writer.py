"""Writing checkpoints and the JSON beside them: under the final name only when whole and on the disk."""

import contextlib
import json
import os
import re
import tempfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from keras_vit.weights.reader.npz import note_bytes
from keras_vit.weights.reader.tensorfile import metadata

_ABANDONED = 3600  # seconds without a byte, after which a part is nobody's


def write_npz(path, arrays: Iterable[tuple[str, np.ndarray]], note: dict):
    """Writes an `.npz` as `np.savez` would, without holding all arrays at once.

    The file is written beside its destination, flushed to disk and then renamed, so a fault
    leaves what was there before.

    Args:
        path: destination; must end in `.npz`.
        arrays: pairs of name and array, each name once.
        note: small dict for `scan` to give back; kept in the zip's comment.

    Raises:
        ValueError: for another ending, or a name that comes twice.
        FileNotFoundError: if the folder does not exist.
    """
    with _replacing(path, ".npz") as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, array in _once(path, arrays):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
        archive.comment = note_bytes(note)


def write_safetensors(path, arrays: Iterable[tuple[str, np.ndarray]], note: dict):
    """Writes a safetensors file; its header comes first, so all arrays are held at once.

    Otherwise as `write_npz`: a fault leaves what was there before.

    Args:
        path: destination; must end in `.safetensors`.
        arrays: pairs of name and array, each name once.
        note: small dict for `scan` to give back; kept in `__metadata__`.

    Raises:
        ValueError: for another ending, or a name that comes twice.
        FileNotFoundError: if the folder does not exist.
    """
    with _replacing(path, ".safetensors") as temporary:
        # The serializer writes memory as it lies, and refuses transposed views, which are common here.
        held = {name: np.asarray(array, order="C") for name, array in _once(path, arrays)}
        try:
            save_file(held, temporary, metadata(note))
        except SafetensorError as error:
            raise OSError(f"the file could not be written: {error}.\nReceived: {path}") from error


def write_json(path, content: dict):
    """Writes a small JSON file with the promises of `write_npz`; `path` must end in `.json`."""
    with _replacing(path, ".json") as temporary:
        Path(temporary).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def _once(path, arrays):
    """Pairs of name and array as they come; refuses a name that comes again, which readers would drop."""
    seen = set()
    for name, array in arrays:
        if name in seen:
            raise ValueError(f"each array must have a name of its own.\nReceived: {name!r} twice, for {path}")
        seen.add(name)
        yield name, array


@contextlib.contextmanager
def _replacing(path, ending):
    """Gives the path of a temporary file, which replaces `path` in one step once all of it is on the disk."""
    path = Path(path)
    if path.suffix != ending:
        raise ValueError(f"`path` must end in {ending}.\nReceived: {path}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of `path` must exist.\nReceived: {path}")
    _sweep(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    os.close(handle)
    try:
        yield temporary
        _flush(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename in (None, temporary):
            error.filename = str(path)  # a full disk does not say whose
        raise
    if hasattr(os, "O_DIRECTORY"):  # elsewhere a folder cannot be opened
        _flush(path.parent)  # the rename itself is safe only then


def _sweep(path):
    """Removes what killed writers of this path left; a younger part may be that of another process."""
    oldest = time.time() - _ABANDONED
    for entry in os.scandir(path.parent):
        mark = entry.name.removeprefix(path.name).removesuffix(".part")
        if entry.name == f"{path.name}{mark}.part" and re.fullmatch("[a-z0-9_]{8}", mark):  # as `mkstemp` names it
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime < oldest:
                    os.unlink(entry.path)


def _flush(path):
    # Windows flushes only what is open for writing, and a folder opens only for reading.
    handle = os.open(path, os.O_RDONLY if Path(path).is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
