"""Results in a folder by a fingerprint of what decides them: written whole or not at all, and checked when read.

An entry is a folder with its files, and their digests in `kept.json`. Of a cache with a limit the least recently used
entries are removed first. What cannot be kept is made again in the next call. Imports neither Keras nor TensorFlow.
"""

import contextlib
import errno
import json
import math
import os
import re
import secrets
import shutil
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import platformdirs

from keras_vit.annotations import FilePath
from keras_vit.files import (
    STAGING,
    disk_size,
    expand_dir,
    expand_path,
    file_sha256,
    flush,
    json_object,
    private_dir,
    read_head,
    remove_stale_folders,
    staging,
)
from keras_vit.pages.formatting import printable

DEFAULT_CACHE = "default"
# Calls the given function with a folder to write into; returns the folder, or `None` if it could not be written.
Store: TypeAlias = Callable[[Callable[[Path], Any]], Path | None]
_NAME = re.compile(r"[0-9a-f]{64}")
_RECORD = "kept.json"
_FILES = {  # other files of this package, by their endings: how they begin
    ".npz": rb"PK\x03\x04",
    ".photos": rb"",
    ".note": rb"[0-9a-f]{64}",  # reports of 0.6
}


def cache_dir(part: str = "") -> Path:
    """Absolute path of the folder of downloaded files, or of a part with what is made of others; it may be absent.

    Raises:
        ValueError: if `KERAS_VIT_CACHE` begins with the home of an unknown user, or is not set and there is no home.
    """
    value = os.environ.get("KERAS_VIT_CACHE")
    try:
        folder = expand_dir("KERAS_VIT_CACHE", value) if value else Path(platformdirs.user_cache_dir("keras_vit"))
    except RuntimeError as error:  # of a container's user without a home
        raise ValueError(
            f"the cache must have a folder.\nReceived: {error}. Set KERAS_VIT_CACHE to a folder of yours."
        ) from None
    return folder / part


def chosen_dir(cache: FilePath, part: str) -> Path | None:
    """The folder that a caller named as `cache`, by default a part of the cache folder.

    Returns:
        The folder; `None`, with a warning, for the default of a user without a home.

    Raises:
        ValueError: without a name, or if `KERAS_VIT_CACHE` begins with the home of an unknown user.
    """
    if not str(cache):
        raise ValueError("`cache` must be a folder, or `None` to keep nothing.\nReceived: cache=''.")
    try:
        return cache_dir(part) if cache == DEFAULT_CACHE else expand_path(cache)
    except ValueError as error:
        if cache != DEFAULT_CACHE or os.environ.get("KERAS_VIT_CACHE"):
            raise
        words = " ".join(str(error).split("\n")).replace("Received: ", "")
        warnings.warn(f"nothing is kept for the next call: {words}", UserWarning, stacklevel=2)
        return None


class Cache:
    """The entries in a folder, which several processes may use at once.

    Attributes:
        fault: why something could not be kept, as by a full disk.
        fault_reason: the same in words, with the path if it is known.
    """

    def __init__(self, folder: Path, most: float = math.inf, is_private: bool = False) -> None:
        """Makes the folder, and removes what killed processes left in it.

        Args:
            folder: which need not be there. One that cannot be made is a fault, and then nothing is kept or found.
            most: bytes of all entries.
            is_private: whether nobody else may write there, since entries are run.
        """
        self._folder, self._most, self._is_private = folder, most, is_private
        self.fault: OSError | None = None
        with self._recording_faults():
            private_dir(folder) if is_private else folder.mkdir(parents=True, exist_ok=True)
            remove_stale_folders(folder)
        self._is_usable = self.fault is None

    @property
    def fault_reason(self) -> str:
        if self.fault is None:
            return ""
        path, reason = self.fault.filename, self.fault.strerror or str(self.fault)
        return printable(reason if path is None else f"{path}: {reason}")

    def get(self, name: str, read: Callable[[Path], Any] = lambda folder: folder) -> Any:
        """What `read` makes of the folder of an entry; `None` if there is none, or it was damaged and is removed.

        Any error of `read` counts as damage. An entry that another process removes or replaces meanwhile is missing.
        """
        path = self._folder / name
        before = _state(path) if self._is_usable else None
        if before is None:
            return None
        try:
            self._check(path)
            found = read(path)
        except Exception as error:  # `read` raises those of JSON, NumPy or a record
            if _state(path) == before:
                remove(path)
                reason = printable(str(error).partition("\n")[0].rstrip("."))
                warnings.warn(f"{printable(path)} is of no use and is made anew: {reason}", stacklevel=3)
            return None
        with contextlib.suppress(OSError):  # of another user
            os.utime(path)
        return found

    @contextlib.contextmanager
    def staging(self, name: str) -> Iterator[Store]:
        """Yields a `Store`; what it wrote enters the cache at the end, if nothing was raised."""
        written: list[Path] = []
        with contextlib.ExitStack() as stack:

            def store(write: Callable[[Path], Any]) -> Path | None:
                with self._recording_faults():
                    folder = stack.enter_context(staging(self._folder)) / "entry"
                    folder.mkdir(mode=0o700 if self._is_private else 0o777)
                    write(folder)
                    written.append(folder)
                return written[-1] if written else None

            yield store if self._is_usable else lambda write: None
            for folder in written:
                with self._recording_faults():
                    self._publish(folder, self._folder / name)

    def put(self, name: str, write: Callable[[Path], Any]) -> None:
        """Keeps what a function writes into a folder."""
        with self.staging(name) as store:
            store(write)

    def remove(self, name: str) -> None:
        """Removes an entry."""
        remove(self._folder / name)

    @contextlib.contextmanager
    def _recording_faults(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.fault = error

    def _check(self, path: Path) -> None:
        """Raises unless the files of an entry are what they were when it was written."""
        self._check_kind(path, stat.S_ISDIR)
        try:
            digests = json_object(path / _RECORD)
        except ValueError as error:
            raise ValueError(f"{_RECORD}: {error}") from None
        if {*digests, _RECORD} != {*os.listdir(path)}:
            raise ValueError(f"{_RECORD} lists other files than those that are there")
        for file, digest in digests.items():
            self._check_kind(path / file, stat.S_ISREG)
            if file_sha256(path / file) != digest:
                raise ValueError(f"the digest of {file} differs")

    def _check_kind(self, path: Path, is_kind: Callable[[int], bool]) -> None:
        status = os.lstat(path)
        if not is_kind(status.st_mode):
            raise ValueError(f"{path.name} is a link or something else")
        if self._is_private and hasattr(os, "getuid") and status.st_uid != os.getuid():
            raise ValueError(f"{path.name} is another user's")

    def _publish(self, folder: Path, path: Path) -> None:
        if (size := disk_size(folder)) > self._most:
            evict(list_entries(self._folder), self._most)  # the limit may be lower than in earlier calls
            shown = f"{size / 1e6:.1f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"
            raise OSError(f"it has {shown}, and the limit is {self._most / 1e9:g} GB")
        files = sorted(folder.iterdir())
        (folder / _RECORD).write_text(json.dumps({file.name: file_sha256(file) for file in files}))
        for file in folder.iterdir():
            flush(file)
        try:
            os.rename(folder, path)
        except OSError as error:  # another process was faster, and its entry may be removed by now
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not path.is_dir():
                raise
        evict(list_entries(self._folder), self._most)


def list_entries(folder: Path) -> list[tuple[Path, ...]]:
    """What this package has written into a folder, by names and beginnings; nothing if the folder is a link."""
    return [] if folder.is_symlink() else [(path,) for path in sorted(folder.glob("*")) if _is_own(path)]


def _is_own(path: Path) -> bool:
    start = _FILES.get(path.suffix)
    if start is None:
        return _NAME.fullmatch(path.name) is not None and path.is_dir() and (path / _RECORD).is_file()
    head = read_head(path, 64) if re.fullmatch("[0-9a-f]{32,64}", path.stem) else None
    return head is not None and re.match(start, head) is not None


def evict(entries: Iterable[tuple[Path, ...]], most: float) -> None:
    """Removes the least recently used entries, until the rest is within a limit.

    Args:
        entries: the paths of each, of which the first counts.
        most: bytes.
    """
    for entry in sorted(entries, key=lambda paths: _last_used(paths[0]), reverse=True):
        most -= disk_size(entry[0])
        for path in entry if most < 0 else ():
            remove(path)


def remove(path: Path) -> None:
    """Removes an entry or a file. An entry loses its name first, so that nobody finds a part of it."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            nameless = path.with_name(f"{STAGING}{secrets.token_hex(4)}")  # swept by others if this process is killed
            os.rename(path, nameless)
            shutil.rmtree(nameless, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _state(path: Path) -> tuple[int, int] | None:
    """Changes when the entry is replaced or a file in it is removed; `None` without an entry."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def _last_used(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
