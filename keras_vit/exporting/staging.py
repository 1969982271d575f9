"""Files are written beside their place and moved there when they have been proven, so that nobody sees half of one."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from keras_vit.files import flush


@contextlib.contextmanager
def staging(parent):
    """A new folder below `parent`, gone at the end with all that is still in it.

    Args:
        parent: folder on the file system that the result will be on; made with those above it, and gone again with
            them if it stays empty.
    """
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix=".export-", dir=parent))
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):  # not empty
            for folder in made:
                folder.rmdir()


def publish_files(place, path, overwrite) -> None:
    """Moves all files of the staging folder beside `path`, that one last, so that what it refers to is there.

    Args:
        place: the staging folder, with a file of the name of `path` in it.
        path: where that file goes.
        overwrite: whether files that are there are replaced.

    Raises:
        FileExistsError: if one is there and shall not be; nothing is moved then.
    """
    files = sorted(place.iterdir(), key=lambda file: file.name == path.name)
    for file in files:
        check_absent(path.with_name(file.name), overwrite)
    for file in files:
        flush(file)
        os.replace(file, path.with_name(file.name))


def check_absent(path, overwrite) -> None:
    """Raises if something is at `path` that shall stay.

    Args:
        path: of a file to be.
        overwrite: whether a file may be replaced.
    """
    if path.is_dir():
        raise FileExistsError(f"a folder is at {path}, where a file is to go. Pass another path.")
    if path.exists() and not overwrite:
        raise FileExistsError(f"something is at {path}. Pass overwrite=True to replace a file, or another path.")


def publish_version(place, folder) -> Path:
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


def publish_absent(place, folder) -> None:
    """Moves files to a folder, but for those that are there: they may have been edited.

    Args:
        place: the staging folder.
        folder: where the files go.
    """
    for file in sorted(place.iterdir()):
        target = folder / file.name
        if not target.exists():
            os.replace(file, target)
