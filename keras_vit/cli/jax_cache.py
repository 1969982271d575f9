"""Programs that JAX has compiled, kept between commands in the cache folder, so that the next one starts sooner.

A program is code that runs here. So the folder belongs to this package alone, one for each kind of processor. A file
counts only with a digest, which a command writes as it ends: JAX may leave part of a file, and its format has no
checksum.
"""

import atexit
import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from keras_vit.files import atomic_write, private_dir
from keras_vit.processor import cpu_fingerprint
from keras_vit.weights.download.cache import file_sha256
from keras_vit.weights.download.environment import compiled_dir

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
