"""Files are written beside their place and moved there when they have been proven, so that nobody sees half of one.

The process that writes into a staging folder locks it, so that the folders of killed processes can be told apart.
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from keras_vit.checks import with_parameters
from keras_vit.files import PREFIX, FileKindError, flush, flush_folder, locked, open_regular, unlock

_PREFIX = f"{PREFIX}export-"
_OLD = ".old"  # what was at the place of a file, until the end
_MARK = b"\nweights written by keras_vit\n"


@contextlib.contextmanager
def staging(parent: Path) -> Iterator[Path]:
    """A new folder below `parent`, removed at the end with all that is still in it; folders of killed exports are
    removed first.

    Args:
        parent: folder on the file system of the result. It is made with those above it, and removed with them if it
            stays empty.
    """
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        sweep(parent)
        with _new_folder(parent) as place:
            yield place
    finally:
        with contextlib.suppress(OSError):  # not empty
            for folder in made:
                folder.rmdir()


@contextlib.contextmanager
def _new_folder(parent: Path) -> Iterator[Path]:
    """A locked folder, until the end."""
    while True:
        place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        with contextlib.suppress(BlockingIOError):  # another export sweeps it, or has, as it was not locked yet
            lock = locked(place)
            if place.exists():
                break
            unlock(lock)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        unlock(lock)


def sweep(parent: Path) -> None:
    """Removes the staging folders that nobody has locked, which killed exports left."""
    for entry in os.scandir(parent):
        named = re.fullmatch(re.escape(_PREFIX) + "[a-z0-9_]{8}", entry.name)  # as `mkdtemp` names it
        if not named or not entry.is_dir(follow_symlinks=False):
            continue
        with contextlib.suppress(BlockingIOError):
            lock = locked(entry.path)
            if lock is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                unlock(lock)


def publish_files(place: Path, path: Path, is_own_file: Callable[[Path], bool] | None) -> None:
    """Moves all files of the staging folder beside `path`; the file at `path` comes last, after those that it refers
    to.

    If a file that it refers to is replaced, the old file at `path` is removed before. So at every moment there are the
    old files, the new ones, or nothing at `path`, and never some of each.

    Args:
        place: the staging folder, with a file of the name of `path` in it.
        path: where that file goes.
        is_own_file: whether a file that is there may be replaced; `None` if none may.

    Raises:
        FileExistsError: if one is there and shall not be; nothing is moved then.
    """
    files = sorted(place.iterdir(), key=lambda file: file.name == path.name)
    for file in files:
        flush(file)
    lock = locked(path.parent, wait=True)  # of two exports, the files of one come before those of the other
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
                os.replace(old, path)  # beside what it refers to, as before
            raise
        flush_folder(path.parent)


def check_absent(path: Path, is_own_file: Callable[[Path], bool] | None) -> None:
    """Raises if something is at `path` that shall stay.

    Args:
        path: of a file to be.
        is_own_file: whether a file was written by an export, and may be replaced; `None` if none may.
    """
    if path.is_dir():
        raise FileExistsError(f"a folder is at {path}, where a file is to go. Pass another path.")
    if not os.path.lexists(path):  # nor a link that leads nowhere
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
    """Raises for a folder of something else than a served model.

    Raises:
        FileExistsError: if it holds files, and no version of a SavedModel among them. Hidden ones do not count.
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
    """Moves files to a folder, but for those that are there: they may have been edited.

    Args:
        place: the staging folder.
        folder: where the files go.
    """
    for file in sorted(place.iterdir()):
        target = folder / file.name
        if not os.path.lexists(target):
            os.replace(file, target)


def sign(file: Path) -> None:
    """Puts the mark behind the weights in a file."""
    with open(file, "ab") as opened:
        opened.write(_MARK)


def is_signed(file: Path) -> bool:
    """Whether a file ends in the mark."""
    return read_tail(file, len(_MARK)) == _MARK


def read_tail(file: Path, size: int) -> bytes:
    """The last bytes of a regular file; none of anything else, and of what cannot be read."""
    try:
        with open_regular(file) as opened:
            opened.seek(max(opened.seek(0, os.SEEK_END) - size, 0))
            return opened.read(size)
    except (OSError, FileKindError):
        return b""
