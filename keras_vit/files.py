"""Writes files whole or not at all, and reads them such that no pipe, device or huge file blocks the process."""

import contextlib
import hashlib
import io
import json
import math
import os
import re
import shutil
import stat
import tempfile
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

PREFIX = ".keras_vit-"  # of every temporary name, so that nobody else's file is taken for one
STAGING = f"{PREFIX}export-"  # of folders
_PART = re.compile(re.escape(PREFIX) + r"[a-z0-9_]{8}\.part(\.\w+)?")  # as `mkstemp` names them
ABANDONED = 3600  # seconds without a byte, after which a part is nobody's
_MOST_BYTES = 1 << 16  # of a small JSON file; such files have some 300
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
_KINDS |= {stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


def expand_path(path: str | os.PathLike) -> Path:
    """A path that a user wrote, where `~` is the home folder: shells leave it in `--out=~/run`, and Python does so."""
    return Path(os.path.expanduser(path))


def expand_dir(name: str, value: str) -> Path:
    """The absolute path in an environment variable; raises a `ValueError` for the home of an unknown user."""
    try:
        return Path(value).expanduser().absolute()
    except RuntimeError as error:
        raise ValueError(f"{name} must name a directory.\nReceived: {name}={value} ({error})") from error


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike, suffix: str = ".part") -> Iterator[str]:
    """Gives the path of a temporary file, which replaces `path` in one step once all of it is on the disk.

    A fault, a kill or a loss of power leaves what was there before. Temporary files that killed writers left in the
    folder an hour ago or longer are removed.

    Args:
        path: of the file to be, in a folder that exists.
        suffix: end of the temporary file's name, for writers that look at it.
    """
    path = Path(path)
    remove_partial_files(path.parent, ABANDONED)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=PREFIX, suffix=suffix)
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


def remove_partial_files(folder: str | os.PathLike, age: float = 0.0) -> None:
    """Removes the temporary files that killed writers left in a folder; a younger one may be another process'.

    Args:
        folder: which is there.
        age: seconds that a file has been without a byte, at least.
    """
    for path in filter(is_partial_file, Path(folder).iterdir()):
        with contextlib.suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_mtime <= time.time() - age:
                path.unlink()


def is_partial_file(path: Path) -> bool:
    """Whether a name is that of a temporary file of `atomic_write`."""
    return _PART.fullmatch(path.name) is not None


def flush(path: str | os.PathLike) -> None:
    """Waits until a file is on the disk."""
    handle = os.open(path, os.O_RDWR)  # Windows flushes only what is open for writing
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_folder(path: str | os.PathLike) -> None:
    """Waits until the names in a folder are on the disk, where a folder can be opened."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def access_error(path: str | os.PathLike) -> str | None:
    """Why nobody can see whether something is at a path, as "Permission denied"; `None` where that can be seen."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        return error.strerror or str(error)
    return None


MISSING = "no such file"


def missing_reason(path: str) -> str:
    """Why no file is at a path: a link may lead to nothing, and a table of another system write its name otherwise."""
    if os.path.islink(path):
        return "a link to nothing"
    if any(place.is_symlink() and not place.exists() for place in Path(path).parents):
        return "in a folder that is a link to nothing"
    if os.path.exists(path.replace("\\", "/")):
        return f"{MISSING}, but one with / for \\"
    is_there = any(os.path.exists(unicodedata.normalize(form, path)) for form in ("NFC", "NFD"))
    return f"{MISSING}, but one whose name has another Unicode form" if is_there else MISSING


def check_new_dir(path: Path) -> None:
    """Raises a `ValueError` unless an absolute path is that of an empty folder, or of one that can be made."""
    if os.path.lexists(path) and (not os.path.isdir(path) or not os.access(path, os.R_OK) or os.listdir(path)):
        raise ValueError(f"shards go into a new or empty folder.\nReceived: {str(path)!r}, where something is.")
    above = next(place for place in path.parents if os.path.lexists(place))
    if not os.path.isdir(above) or not os.access(above, os.W_OK | os.X_OK):
        raise ValueError(
            "shards go into a folder that can be made.\n"
            f"Received: {str(path)!r}, and nothing can be written into {str(above)!r}. Choose another place."
        )


class FileKindError(ValueError):
    """The path is not of a regular file, or of one that is too large.

    Attributes:
        reason: which, in a few words, as "a pipe, not a regular file".
    """

    def __init__(self, rule: str, received: str, reason: str) -> None:
        super().__init__(f"{rule}.\nReceived: {received}")
        self.reason = reason


@contextlib.contextmanager
def open_regular(path: str | os.PathLike, most_bytes: float = math.inf) -> Iterator[BinaryIO]:
    """Opens a regular file for reading. A pipe or a device is refused, since reading it may never end.

    Args:
        path: of the file, or of a link to it.
        most_bytes: that it may have; any number where it is not read whole.

    Raises:
        FileKindError: for anything but a regular file, and for a larger one.
        OSError: if it is not there or cannot be read.
    """
    _check_kind(os.stat(path), most_bytes)  # first, since opening alone moves some devices
    # Nor does opening wait for who writes into a pipe that took the file's place just now.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb") as file:
        _check_kind(os.fstat(handle), most_bytes)
        yield file


def read_regular(path: str | os.PathLike, most_bytes: int) -> bytes:
    """The bytes of a file; raises as `open_regular`, also if more come than the file's size says."""
    with open_regular(path, most_bytes) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise _too_large("more", most_bytes)
    return data


def _check_kind(status: os.stat_result, most_bytes: float) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _not_regular(_KINDS.get(stat.S_IFMT(status.st_mode), "something else"))
    if status.st_size > most_bytes:
        raise _too_large(f"{status.st_size:,} bytes", most_bytes)


def _not_regular(what: str) -> FileKindError:
    return FileKindError("the file must be a regular file", what, f"{what}, not a regular file")


def _too_large(size: str, most_bytes: float) -> FileKindError:
    most = f"{most_bytes:,} bytes"
    return FileKindError(f"the file must have at most {most}", size, f"more than {most}")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; a `ValueError` also for an object with a name twice, of which Python keeps the last."""
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the name {name!r:.100} twice")
        found[name] = value
    return found


def json_object(path: Path, most_bytes: int = _MOST_BYTES) -> dict:
    """The JSON object in a file.

    Raises:
        ValueError: if it is no regular file, larger than `most_bytes`, not readable, or no JSON object.
    """
    try:
        found = parse_json(read_regular(path, most_bytes))
    except FileNotFoundError:
        raise _not_regular("nothing is there") from None
    except OSError as error:
        raise ValueError(f"the file must be readable.\nReceived: {error.strerror or type(error).__name__}") from error
    except RecursionError as error:
        raise ValueError("the file must be readable.\nReceived: brackets nested too deep") from error
    except FileKindError:
        raise
    except ValueError as error:  # also of other text, and of a number of more digits than Python reads
        reason = str(error).partition(";")[0]  # then comes how to let Python read more digits, of no use here
        raise ValueError(f"the file must be JSON.\nReceived: {reason}") from error
    if not isinstance(found, dict):
        raise ValueError(f"the file must hold an object.\nReceived: {type(found).__name__}")
    return found


def file_sha256(path: str | os.PathLike) -> str:
    """Hexadecimal sha256 of a regular file."""
    with open_regular(path) as file:
        return hashlib.file_digest(cast(io.BufferedReader, file), "sha256").hexdigest()


def read_head(path: str | os.PathLike, size: int = 1024) -> bytes | None:
    """The first bytes of a regular file; `None` of anything else, and of what cannot be read."""
    try:
        with open_regular(path) as file:
            return file.read(size)
    except (OSError, FileKindError):
        return None


def read_json_object(path: Path, most_bytes: int = _MOST_BYTES) -> dict | None:
    """As `json_object`, and None where that raises."""
    try:
        return json_object(path, most_bytes)
    except ValueError:
        return None


def private_dir(path: Path) -> Path:
    """The folder, which is made if need be.

    Raises:
        PermissionError: if it is a link, or another user could write there; the words say which.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{path} is a link")
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise PermissionError(f"{path} is another user's")
    if hasattr(os, "getuid") and status.st_mode & 0o022:
        raise PermissionError(f"others may write into {path}")
    return path


def lock_dir(folder: str | os.PathLike, wait: bool = False) -> int | None:
    """A descriptor that locks a folder until it is closed or its process ends; `None` where locks do not exist.

    Raises:
        BlockingIOError: if it is locked.
    """
    try:
        import fcntl
    except ImportError:  # Windows, where nothing is swept
        return None
    lock = None
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        unlock(lock)
        raise
    except OSError:  # gone, of another user, or on a file system without locks
        unlock(lock)
        return None
    return lock


def unlock(lock: int | None) -> None:
    """Lets go of what `lock_dir` gave."""
    if lock is not None:
        os.close(lock)


@contextlib.contextmanager
def staging(parent: Path) -> Iterator[Path]:
    """A new folder below `parent`, removed at the end with its content; folders of killed exports are removed first.

    Args:
        parent: folder on the file system of the result. It is made if needed, and removed again if it stays empty.
    """
    made = [folder for folder in (parent, *parent.parents) if not folder.exists()]
    try:
        parent.mkdir(parents=True, exist_ok=True)
        remove_stale_folders(parent)
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
        place = Path(tempfile.mkdtemp(prefix=STAGING, dir=parent))
        with contextlib.suppress(BlockingIOError):  # another export removes it, since it was not locked yet
            lock = lock_dir(place)
            if place.exists():
                break
            unlock(lock)
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)
        unlock(lock)


def remove_stale_folders(parent: Path) -> None:
    """Removes staging folders without a lock, which killed exports left."""
    for entry in os.scandir(parent):
        named = re.fullmatch(re.escape(STAGING) + "[a-z0-9_]{8}", entry.name)  # as `mkdtemp` names it
        if not named or not entry.is_dir(follow_symlinks=False):
            continue
        with contextlib.suppress(BlockingIOError):
            lock = lock_dir(entry.path)
            if lock is not None:
                shutil.rmtree(entry.path, ignore_errors=True)
                unlock(lock)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def disk_size(path: Path) -> int:
    """Bytes of a file or a folder; 0 if another process has just removed it."""
    try:
        return sum(map(disk_size, path.iterdir())) if path.is_dir() and not path.is_symlink() else path.lstat().st_size
    except FileNotFoundError:
        return 0
