"""Exports are written into a staging folder and moved to their path when they are verified, so always whole.

Graphs have fields for a mark of this package; files of weights get a mark after the weights, which readers do not
reach. Only files with a mark are ever replaced.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from keras_vit.checks import with_parameters
from keras_vit.files import FileKindError, flush, flush_folder, lock_dir, open_regular, unlock

_OLD = ".old"  # the replaced file, until the end
_MARK = b"\nweights written by keras_vit\n"


def publish_files(place: Path, path: Path, is_own_file: Callable[[Path], bool] | None) -> None:
    """Moves all files of the staging folder into the folder of `path`; the file at `path` comes last.

    If a file that it refers to is replaced, the old file at `path` is removed first. So at every moment there are the
    old files, the new ones, or nothing at `path`, never a mixture.

    Args:
        place: the staging folder, with a file of the name of `path` in it.
        path: where that file goes.
        is_own_file: whether an existing file may be replaced; `None` if none may.

    Raises:
        FileExistsError: if a file may not be replaced; nothing is moved then.
    """
    files = sorted(place.iterdir(), key=lambda file: file.name == path.name)
    for file in files:
        flush(file)
    lock = lock_dir(path.parent, wait=True)  # two exports publish one after the other
    try:
        for file in files:
            check_absent(path.with_name(file.name), is_own_file)
        _move(files, path, place / _OLD)
    finally:
        unlock(lock)


def _move(files: Sequence[Path], path: Path, old: Path) -> None:
    if path.exists() and any(path.with_name(file.name).exists() for file in files[:-1]):
        os.replace(path, old)
        flush_folder(path.parent)  # in this order on the disk too
    for file in files:
        try:
            os.replace(file, path.with_name(file.name))
        except OSError:
            if file is files[0] and old.exists():
                os.replace(old, path)  # the old files are complete again
            raise
        flush_folder(path.parent)


def check_absent(path: Path, is_own_file: Callable[[Path], bool] | None) -> None:
    """Raises if something is at `path` that may not be replaced.

    Args:
        path: of a file to be.
        is_own_file: whether an export wrote the file, so that it may be replaced; `None` if none may.
    """
    if path.is_dir():
        raise FileExistsError(f"a folder is at {path}, where a file is to go. Pass another path.")
    if not os.path.lexists(path):  # a broken link exists too
        return
    if is_own_file is None:
        raise with_parameters(
            FileExistsError(
                f"something is at {path}. Pass overwrite=True to replace the file of an export, or another path."
            ),
            "overwrite",
        )
    if not is_own_file(path):
        raise FileExistsError(
            "an export replaces only a file that an export of keras_vit has written.\n"
            f"Received: {path}, which is something else. Move it away, or pass another path."
        )


def check_served(folder: Path) -> None:
    """Raises for a folder of other files than a served model.

    Raises:
        FileExistsError: if it holds files but no version of a SavedModel. Hidden files do not count.
    """
    names = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")] if folder.is_dir() else []
    if names and not any(name.isdecimal() and (folder / name / "saved_model.pb").is_file() for name in names):
        raise FileExistsError(
            "a SavedModel becomes a version in a folder of its own.\n"
            f"Received: {folder} with {min(names)!r} and no version. Pass a new folder, as {str(folder / 'served')!r}."
        )


def publish_version(place: Path, folder: Path) -> Path:
    """Moves a folder to the next free version number of a served model.

    Args:
        place: the folder in its staging place.
        folder: of the model, with its versions `1`, `2`, ...

    Returns:
        The new folder.
    """
    for file in place.rglob("*"):
        if file.is_file():
            flush(file)
    while True:
        versions = [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()]
        version = folder / str(max(versions, default=0) + 1)
        try:
            os.rename(place, version)
        except OSError:  # another process took the number in between
            if not version.exists():
                raise
            continue
        return version


def publish_absent(place: Path, folder: Path) -> None:
    """Moves files to a folder, except those that exist there: they may have been edited.

    Args:
        place: the staging folder.
        folder: where the files go.
    """
    for file in sorted(place.iterdir()):
        target = folder / file.name
        if not os.path.lexists(target):
            os.replace(file, target)


def write_mark(file: Path) -> None:
    """Appends the mark to a file of weights."""
    with open(file, "ab") as opened:
        opened.write(_MARK)


def has_mark(file: Path) -> bool:
    """Whether a file ends in the mark."""
    return read_tail(file, len(_MARK)) == _MARK


def read_tail(file: Path, size: int) -> bytes:
    """The last bytes of a regular file; empty for others, and if it cannot be read."""
    try:
        with open_regular(file) as opened:
            opened.seek(max(opened.seek(0, os.SEEK_END) - size, 0))
            return opened.read(size)
    except (OSError, FileKindError):
        return b""
