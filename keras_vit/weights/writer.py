"""Writing `.npz` checkpoints: one array at a time, and under the final name only when whole."""

import os
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from keras_vit.weights.reader import note_bytes


def write_npz(path, arrays: Iterable[tuple[str, np.ndarray]], note: dict):
    """Writes an `.npz` as `np.savez` would, without holding all arrays at once.

    The file is written beside its destination, flushed to disk and then renamed, so a fault
    leaves what was there before.

    Args:
        path: destination; must end in `.npz`.
        arrays: pairs of name and array.
        note: small dict for `read_npz` to give back; kept in the zip's comment.

    Raises:
        ValueError: for another ending.
        FileNotFoundError: if the folder does not exist.
    """
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"`path` must end in .npz.\nReceived: {path}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of `path` must exist.\nReceived: {path}")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for name, array in arrays:
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, array, allow_pickle=False)
                archive.comment = note_bytes(note)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask
