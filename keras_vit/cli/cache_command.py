"""`keras-vit cache`: what this package keeps in the cache folder, and emptying parts of it; and what JAX compiled.

Programs that JAX has compiled are kept between commands, so that the next one starts sooner. A program is code that
runs here. So its folder belongs to this package alone, one for each kind of processor. A file counts only with a
digest, which a command writes as it ends: JAX may leave part of a file, and its format has no checksum.
"""

import atexit
import contextlib
import dataclasses
import datetime
import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from keras_vit.cache import cache_dir, evict, list_entries, remove
from keras_vit.checks import cpu_fingerprint
from keras_vit.files import atomic_write, disk_size, file_sha256, private_dir, remove_stale_folders
from keras_vit.pages.formatting import columns, printable
from keras_vit.weights.download.cache import downloaded_files
from keras_vit.weights.download.remote import megabytes

_ALL = "all"
_MOST_BYTES = 1 << 29  # of all programs; a training of B/16 on a GPU has some ten megabytes
_SHORTEST = 0.05  # seconds of compiling; a command has hundreds that are faster, and reading one takes 0.5 ms
_CHOSEN = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")  # by which a user has a say
_COMPILED = "compiled"  # part of the cache
_PROGRAM, _DIGEST, _TIME = "-cache", "-sha256", "-atime"  # ends of names, the first and the last of which are JAX's


def enable_jax_cache() -> None:
    """Has JAX keep what it compiles in this process, unless the user has named a folder or none can be made."""
    import jax

    if any(name in os.environ for name in _CHOSEN) or jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        folder = private_dir(private_dir(cache_dir(_COMPILED)) / cpu_fingerprint())
        _sweep(folder)
    except (OSError, ValueError):  # as a disk that is full or cannot be written to: then all is compiled as ever
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST)
    atexit.register(_sign, folder)


def _sweep(folder: Path) -> None:
    """Removes programs that are not as they were when a command signed them, and the oldest of too many."""
    programs = _programs(folder)
    for paths in programs:
        if not _is_signed(*paths[:2]):
            for path in paths:
                remove(path)
    evict(programs, _MOST_BYTES)


def _sign(folder: Path) -> None:
    """Writes a digest of each program that has none, as the command ends."""
    with contextlib.suppress(OSError):
        for program, digest, _ in _programs(folder):
            if not digest.exists():
                with atomic_write(digest) as part:
                    Path(part).write_text(file_sha256(program))


def _is_signed(program: Path, digest: Path) -> bool:
    try:
        return digest.read_text() == file_sha256(program)
    except (OSError, ValueError):
        return False


def _programs(folder: Path) -> list[tuple[Path, Path, Path]]:
    """Each program in a folder, its digest, and what JAX notes of it."""
    programs = sorted(folder.glob(f"*{_PROGRAM}"))
    stems = [path.name.removesuffix(_PROGRAM) for path in programs]
    return [(path, folder / (s + _DIGEST), folder / (s + _TIME)) for path, s in zip(programs, stems, strict=True)]


def cached_programs() -> Iterator[tuple[Path, ...]]:
    """What a command has kept of each program; no file that is a link."""
    top = cache_dir(_COMPILED)
    for folder in [] if top.is_symlink() else sorted(top.glob("*")):
        if re.fullmatch("[0-9a-f]{16}", folder.name) and folder.is_dir() and not folder.is_symlink():
            yield from _programs(folder)


def add_commands(top: object, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "show what is kept in the cache folder, and empty parts of it"
    new = command(top, "cache", cache, summary, "keras-vit cache --empty engines")
    which = "empty this part; only files that this package wrote are removed; by default nothing is"
    new.add_argument("--empty", choices=(*_PARTS, _ALL), help=which)


def cache(arguments: Namespace) -> Iterator[str]:
    if cache_dir().exists() and not cache_dir().is_dir():
        raise NotADirectoryError(f"the cache must be a folder.\nReceived: {cache_dir()}. Set KERAS_VIT_CACHE to one.")
    if arguments.empty is None:
        yield from columns([("part", "count", "size", "oldest", "what it is"), *map(_row, _PARTS.values())])
        yield f"in {printable(cache_dir())}"
        return
    left: list[Path] = []
    for part in _PARTS.values() if arguments.empty == _ALL else [_PARTS[arguments.empty]]:
        entries = list(part.entries())
        size = _bytes(entries)
        for entry in entries:
            left += _removed(entry)
        folder = cache_dir(part.name)
        if folder.is_dir() and not folder.is_symlink():
            remove_stale_folders(folder)
        yield f"{part.name}: removed {len(entries)}, {megabytes(size)}"
    if left:
        raise PermissionError(f"what is left could not be removed: {', '.join(map(printable, left))}")


@dataclasses.dataclass(frozen=True)
class _Part:
    """A part of the cache folder.

    Attributes:
        name: on the command line.
        what: it holds, in words.
        entries: gives the files of each thing that is there, the one first whose time is its age.
    """

    name: str
    what: str
    entries: Callable[[], Iterable[tuple[Path, ...]]]


_PARTS = {
    part.name: part
    for part in (
        _Part("downloads", "weights and configs, verified", downloaded_files),
        _Part("features", "of images, for probes", lambda: list_entries(cache_dir("features"))),
        _Part("shards", "places of photos in shards", lambda: list_entries(cache_dir("shards"))),
        _Part(_COMPILED, "programs of JAX", cached_programs),
        _Part("engines", "converted networks and reports", lambda: list_entries(cache_dir("engines"))),
    )
}


def _row(part: _Part) -> tuple[str, ...]:
    entries = list(part.entries())
    times = []
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):  # removed by another process
            times.append(entry[0].lstat().st_mtime)
    oldest = datetime.date.fromtimestamp(min(times)).isoformat() if times else "-"
    return part.name, str(len(entries)), megabytes(_bytes(entries)), oldest, part.what


def _bytes(entries: Iterable[tuple[Path, ...]]) -> int:
    return sum(disk_size(path) for entry in entries for path in entry)


def _removed(entry: tuple[Path, ...]) -> list[Path]:
    """Removes the files of one thing, and gives those that stay."""
    for path in entry:
        remove(path)
    return [path for path in entry if os.path.lexists(path)]
