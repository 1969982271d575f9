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

from keras_vit.exporting.engines.artifact_cache import list_artifacts, remove
from keras_vit.exporting.staging import remove_stale_folders
from keras_vit.files import atomic_write, disk_size, private_dir, read_head
from keras_vit.pages.formatting import columns, printable
from keras_vit.processor import cpu_fingerprint
from keras_vit.weights.download import cache_dir
from keras_vit.weights.download.cache import downloaded_files, file_sha256
from keras_vit.weights.download.environment import compiled_dir, engines_dir, features_dir
from keras_vit.weights.download.remote import megabytes

_ALL = "all"
_ZIP = b"PK\x03\x04"  # the beginning of an archive
_MOST_BYTES = 1 << 29  # of all programs; a training of B/16 on a GPU has some ten megabytes
_SHORTEST = 0.05  # seconds of compiling; a command has hundreds that are faster, and reading one takes 0.5 ms
_CHOSEN = ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE")  # by which a user has a say
_PROGRAM, _DIGEST, _TIME = "-cache", "-sha256", "-atime"  # ends of names, the first and the last of which are JAX's


def enable_jax_cache() -> None:
    """Has JAX keep what it compiles in this process, unless the user has named a folder or none can be made."""
    import jax

    if any(name in os.environ for name in _CHOSEN) or jax.config.jax_compilation_cache_dir is not None:
        return
    try:
        folder = private_dir(private_dir(compiled_dir()) / cpu_fingerprint())
        _sweep(folder)
    except (OSError, ValueError):  # as a disk that is full or cannot be written to: then all is compiled as ever
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", _SHORTEST)
    atexit.register(_sign, folder)


def _sweep(folder: Path) -> None:
    """Removes programs that are not as they were when a command signed them, and the oldest of too many."""
    room = _MOST_BYTES
    for program in sorted(_programs(folder), key=lambda path: path.stat().st_mtime, reverse=True):
        room -= program.stat().st_size
        if room < 0 or not _is_signed(program):
            program.unlink(missing_ok=True)
            _file_digest(program).unlink(missing_ok=True)


def _sign(folder: Path) -> None:
    """Writes a digest of each program that has none, as the command ends."""
    with contextlib.suppress(OSError):
        for program in _programs(folder):
            if not _file_digest(program).exists():
                with atomic_write(_file_digest(program)) as part:
                    Path(part).write_text(file_sha256(program))


def _is_signed(program: Path) -> bool:
    try:
        return _file_digest(program).read_text() == file_sha256(program)
    except (OSError, ValueError):
        return False


def cached_programs() -> Iterator[tuple[Path, ...]]:
    """Each program that a command has kept, with its digest, and what JAX notes of it; no file that is a link."""
    for folder in [] if compiled_dir().is_symlink() else sorted(compiled_dir().glob("*")):
        if re.fullmatch("[0-9a-f]{16}", folder.name) and folder.is_dir() and not folder.is_symlink():
            for program in sorted(_programs(folder)):
                stem = program.name.removesuffix(_PROGRAM)
                yield (program, _file_digest(program), program.with_name(stem + _TIME))


def _programs(folder: Path) -> Iterable[Path]:
    return [path for path in folder.iterdir() if path.name.endswith(_PROGRAM)]


def _file_digest(program: Path) -> Path:
    return program.with_name(program.name.removesuffix(_PROGRAM) + _DIGEST)


def add_commands(top: object, command: Callable[..., ArgumentParser]) -> None:
    """Adds this command to the parser; `command` makes it."""
    summary = "show what is kept in the cache folder, and empty parts of it"
    new = command(top, "cache", cache, summary, "keras-vit cache --empty engines")
    which = "empty this part; only files that this package wrote are removed; by default nothing is"
    new.add_argument("--empty", choices=(*_PARTS, _ALL), help=which)


def cache(arguments: Namespace) -> Iterator[str]:
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
        if part.name == "engines" and engines_dir().is_dir() and not engines_dir().is_symlink():
            remove_stale_folders(engines_dir())
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


def _archives(folder: Path) -> Iterator[tuple[Path, ...]]:
    """Archives of arrays whose names are digests, and copies of photos with them; no links."""
    for path in [] if folder.is_symlink() else sorted(folder.glob("*")):
        archive = re.fullmatch(r"[0-9a-f]{32,64}\.npz", path.name) and read_head(path, len(_ZIP)) == _ZIP
        if archive or (re.fullmatch(r"[0-9a-f]{32}\.photos", path.name) and read_head(path) is not None):
            yield (path,)


_PARTS = {
    part.name: part
    for part in (
        _Part("downloads", "weights and configs, verified", downloaded_files),
        _Part("features", "of images, for probes", lambda: _archives(features_dir())),
        _Part("shards", "places of photos in shards", lambda: _archives(cache_dir() / "shards")),
        _Part("compiled", "programs of JAX", cached_programs),
        _Part("engines", "converted networks and reports", lambda: ((path,) for path in list_artifacts(engines_dir()))),
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
