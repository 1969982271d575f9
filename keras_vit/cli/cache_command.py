"""`keras-vit cache`: what this package keeps in the cache folder, and emptying parts of it."""

import contextlib
import dataclasses
import datetime
import os
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from keras_vit.cli.jax_cache import cached_programs
from keras_vit.exporting.engines.artifact_cache import list_artifacts, remove
from keras_vit.exporting.staging import remove_stale_folders
from keras_vit.files import disk_size, read_head
from keras_vit.pages.formatting import columns, printable
from keras_vit.weights.download import cache_dir
from keras_vit.weights.download.cache import downloaded_files
from keras_vit.weights.download.environment import engines_dir, features_dir
from keras_vit.weights.download.remote import megabytes

_ALL = "all"
_ZIP = b"PK\x03\x04"  # the beginning of an archive


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
