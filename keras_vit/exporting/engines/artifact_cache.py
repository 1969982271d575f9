"""A cache of converted networks in a folder: entries are written whole or not at all, and checked when read.

A name is a fingerprint of all that decides an entry. `NAME` is a folder with its files, and their digests in
`kept.json`. `NAME.note` is a file of bytes after their digest. The folder is private and has a limit of bytes; the
least recently used entries are removed first. Failures only warn.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias, TypeVar

from keras_vit.exporting.staging import remove_stale_folders, staging
from keras_vit.files import atomic_write, disk_size, flush, json_object, private_dir, read_head, read_regular
from keras_vit.pages.formatting import printable
from keras_vit.weights.download.remote import megabytes

# Calls the given function with a folder to write into; returns the folder, or `None` if it could not be written.
Store: TypeAlias = Callable[[Callable[[Path], None]], Path | None]
Content = TypeVar("Content")
LIMIT = "KERAS_VIT_ENGINES_GB"
_DEFAULT_GB = 4.0  # ten B/16 in float32
_NAME = re.compile(r"[0-9a-f]{64}(\.note)?")
_RECORD, _NOTE = "kept.json", ".note"
_MAX_NOTE = 1 << 26  # bytes; a photo of 1,024 pixels has 3 MB
_DIGITS = 64  # of a digest


def max_bytes_kept() -> int:
    """The limit of the cache in bytes, by `KERAS_VIT_ENGINES_GB`; 0 keeps nothing.

    Raises:
        ValueError: if it is no number of gigabytes.
    """
    given = os.environ.get(LIMIT) or _DEFAULT_GB
    try:
        most = float(given) * 1e9
    except ValueError:
        most = math.nan
    if not 0 <= most < math.inf:
        raise ValueError(f"{LIMIT} must be a number of gigabytes, 0 to keep nothing.\nReceived: {LIMIT}={given}")
    return int(most)


class ArtifactCache:
    """The networks and notes in a private folder.

    Attributes:
        fault: why something could not be kept, as by a full disk.
    """

    def __init__(self, folder: Path, most: int) -> None:
        """Makes the folder, and removes what killed processes left in it.

        Args:
            folder: which need not be there.
            most: bytes of all files.

        Raises:
            OSError: if it cannot be made, or others may write into it.
        """
        self._folder, self._most = private_dir(folder), most
        self.fault: OSError | None = None
        remove_stale_folders(folder)
        for path in filter(_is_partly_removed, filter(is_artifact_name, folder.iterdir())):
            remove(path)

    def get_note(self, name: str, parse: Callable[[bytes], Content]) -> Content | None:
        """What `parse` makes of the bytes that `put_note` wrote; `None` if they are missing, damaged or something else.

        Any error that `parse` raises means a note of something else.
        """
        path = self._folder / f"{name}{_NOTE}"
        with _remove_if_damaged(path):
            _check_own(path, stat.S_ISREG)
            found = read_regular(path, _MAX_NOTE)
            if found[:_DIGITS] != hashlib.sha256(found[_DIGITS:]).hexdigest().encode():
                raise ValueError("its digest differs")
            try:
                content = parse(found[_DIGITS:])
            except Exception as error:  # of JSON, NumPy or a record
                raise ValueError(f"it holds something else: {error}") from error
            os.utime(path)
            return content
        return None

    def put_note(self, name: str, content: bytes) -> None:
        """Keeps bytes under a name."""
        with self._recording_faults(), atomic_write(self._folder / f"{name}{_NOTE}") as part:
            Path(part).write_bytes(hashlib.sha256(content).hexdigest().encode() + content)

    def get(self, name: str) -> Path | None:
        """The folder of a network; `None` if it is missing or damaged."""
        path = self._folder / name
        with _remove_if_damaged(path):
            _check_own(path, stat.S_ISDIR)
            digests = json_object(path / _RECORD)
            if {*digests, _RECORD} != {*os.listdir(path)}:
                raise ValueError("its files are others")
            for file, digest in digests.items():
                _check_own(path / file, stat.S_ISREG)
                if _digest(path / file) != digest:
                    raise ValueError(f"the digest of {file} differs")
            os.utime(path)
            return path
        return None

    @contextlib.contextmanager
    def staging(self, name: str) -> Iterator[Store]:
        """Yields a `Store`; what it wrote enters the cache at the end, if nothing was raised."""
        written: list[Path] = []
        with contextlib.ExitStack() as stack:

            def store(write: Callable[[Path], None]) -> Path | None:
                with self._recording_faults():
                    folder = stack.enter_context(staging(self._folder)) / "network"
                    folder.mkdir(mode=0o700)
                    write(folder)
                    written.append(folder)
                return written[-1] if written else None

            yield store
            for folder in written:
                with self._recording_faults():
                    self._publish(folder, self._folder / name)

    def remove(self, name: str) -> None:
        """Removes the network and the note of a name."""
        for path in (self._folder / name, self._folder / f"{name}{_NOTE}"):
            remove(path)

    @contextlib.contextmanager
    def _recording_faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.fault = error

    def _publish(self, folder: Path, path: Path) -> None:
        if (size := disk_size(folder)) > self._most:
            self._evict()  # the limit may be lower than in earlier calls
            shown = megabytes(size) if size < 1e9 else f"{size / 1e9:.2f} GB"
            raise OSError(f"it has {shown}, above {LIMIT}={self._most / 1e9:g}")
        files = sorted(folder.iterdir())
        (folder / _RECORD).write_text(json.dumps({file.name: _digest(file) for file in files}))
        for file in folder.iterdir():
            flush(file)
        if _is_partly_removed(path):
            remove(path)
        try:
            os.rename(folder, path)
        except OSError as error:  # another process was faster, and its network may be removed by now
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not path.is_dir():
                raise
        self._evict()

    def _evict(self) -> None:
        """Removes the least recently used entries, until the rest is within the limit."""
        room = self._most
        for path in sorted(filter(is_artifact_name, self._folder.iterdir()), key=_last_used, reverse=True):
            room -= disk_size(path)
            if room < 0:
                remove(path)


def is_artifact_name(path: Path) -> bool:
    """Whether a file has the name of a network or a note."""
    return _NAME.fullmatch(path.name) is not None


def list_artifacts(folder: Path) -> list[Path]:
    """Networks and notes in a folder, by their names and contents; none if the folder is a link."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if is_artifact_name(path) and _is_marked(path)]


def _is_marked(path: Path) -> bool:
    if path.suffix == _NOTE:
        return re.fullmatch(rb"[0-9a-f]+", read_head(path, _DIGITS) or b"") is not None
    return path.is_dir() and (path / _RECORD).is_file()


def remove(path: Path) -> None:
    """Removes a network or a note. The record goes first, so that a network that is removed in part is not used."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            if (path / _RECORD).is_dir():  # damaged, and `unlink` would not remove it
                shutil.rmtree(path / _RECORD, ignore_errors=True)
            else:
                (path / _RECORD).unlink(missing_ok=True)
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _is_partly_removed(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not os.path.lexists(path / _RECORD)


@contextlib.contextmanager
def _remove_if_damaged(path: Path) -> Iterator[None]:
    """Removes a damaged entry with a warning.

    An entry that another process removes meanwhile counts as missing. A file written there since by another process is
    kept.
    """
    before = _state(path)
    try:
        yield
    except (OSError, ValueError) as error:
        if before is not None and _state(path) == before and not _is_partly_removed(path):
            remove(path)
            reason = printable(str(error).partition("\n")[0].rstrip("."))
            warnings.warn(f"the engine is made anew, as {printable(path)} is of no use: {reason}", stacklevel=4)


def _state(path: Path) -> tuple[int, int] | None:
    """Changes when the entry is replaced or a file in it is removed; `None` without an entry."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def _check_own(path: Path, is_kind: Callable[[int], bool]) -> None:
    status = os.lstat(path)
    if not is_kind(status.st_mode):
        raise ValueError(f"{path.name} is a link or something else")
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        raise ValueError(f"{path.name} is another user's")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _last_used(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
