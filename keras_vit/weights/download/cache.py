"""Files at hand: in a mirror directory, or in the cache with a note of the sha256 they had when verified.

The published checkpoints have no public list of hashes. So the sha256 of a file that came is noted in `<name>.json`
in the same folder, and compared at every later use: 0.2 to 0.9 s for 350 MB. Notes of files in huggingface_hub's cache
stand in a folder of this cache. Opens no socket; imports neither Keras nor TensorFlow.
"""

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from keras_vit.cache import cache_dir
from keras_vit.files import ABANDONED, PREFIX, atomic_write, file_sha256, read_json_object
from keras_vit.pages.formatting import printable
from keras_vit.weights.download import environment
from keras_vit.weights.download.remote import DownloadError, OfflineError, RemoteFile, download_error

_LOGGER = logging.getLogger("keras_vit")
EXTERNAL_NOTES = "huggingface_hub"  # folder here with the notes of files in that library's cache
NO_DOWNLOADS = ("features", "compiled", "engines", "shards")  # folders here with what is computed from other files
_NOT_CONTENT = (".part", ".part.json", ".lock")

Check = Callable[[Path], object]


class InvalidFileError(Exception):
    """The bytes are not those of the file that is meant; the text says what differs."""


@dataclasses.dataclass(frozen=True)
class CachedFile:
    """What verifying one file of the cache found."""

    path: Path
    ok: bool
    reason: str


def find_local(file: RemoteFile, check: Check | None = None) -> Path | None:
    """The file in the mirror directory, else the verified one in the cache, else None.

    A file that was put into the cache by hand is verified, and its sha256 noted.

    Raises:
        DownloadError: if it is at hand and not valid, or has another sha256 than noted or asked for.
        ValueError: if an environment variable has a bad value.
    """
    path = place_at_hand(file)
    if path is None:
        return None
    if path != file.place:
        if not file.fits(size := path.stat().st_size):
            _LOGGER.warning("%s has %d bytes, and %s are listed.", path, size, file.listed)
        if file.sha256 is not None:
            _check_sha256(path, file.sha256, "Replace it in the directory of KERAS_VIT_MIRROR.")
        return path
    if note := read_note(note_path(path)):
        found = _check_sha256(path, note["sha256"], f"{_delete_hint(path)}, and it is downloaded again.")
        if file.sha256 not in (None, found):
            _check_sha256(path, file.sha256, f"{_delete_hint(path)}, or correct the `sha256` asked for.")
        return path
    try:
        sha256 = check_valid(path, file, check)
    except InvalidFileError as fault:
        raise DownloadError(
            f"the file at the place of {file.label} is not valid: {fault}.\n"
            f"Received: {path}\n{_delete_hint(path)}, and it is downloaded again."
        ) from fault
    write_note(note_path(path), path, sha256, file.url)
    _LOGGER.warning("No SHA-256 was kept for %s. It is kept now, and later uses are compared with it: %s", path, sha256)
    return path


def place_at_hand(file: RemoteFile) -> Path | None:
    """Where the file is in the mirror directory, else in the cache, not verified; None if it is in neither."""
    directory = environment.mirror_directory()
    places = [file.place] if directory is None else [directory / file.path, file.place]
    return next(filter(os.path.isfile, places), None)  # where `Path` raises an error for a name that is too long


def check_network(file: RemoteFile) -> None:
    """Raises an `OfflineError` if no server may be asked for a file that is not at hand.

    The reason is `KERAS_VIT_OFFLINE=1`, or a directory in `KERAS_VIT_MIRROR`, which replaces the network.
    """
    directory = environment.mirror_directory()
    if directory is not None:
        raise OfflineError(
            f"{file.label} must be in the directory of KERAS_VIT_MIRROR, which stands in for the network, and it is "
            f"neither there nor in the cache.\nReceived: KERAS_VIT_MIRROR={directory}, and there is no file "
            f"{directory / file.path}\nPut it there ({file.listed}), or unset KERAS_VIT_MIRROR to download it."
        )
    if environment.is_offline():
        raise download_error(file, "it is not at hand, and KERAS_VIT_OFFLINE forbids the network", kind=OfflineError)


def check_valid(path: Path, file: RemoteFile, check: Check | None, sha256: str | None = None) -> str:
    """The sha256 of a file whose size, pinned hash and content are right; InvalidFileError if one is not.

    Args:
        check: raises ValueError or OSError if the content is not valid.
        sha256: of the file if it has been computed before.
    """
    try:
        size, sha256 = path.stat().st_size, sha256 or file_sha256(path)
        if not file.fits(size):
            raise ValueError(f"its size differs: expected {file.listed}, got {size} bytes")
        if file.sha256 not in (None, sha256):
            raise ValueError(
                f"its sha256 differs, by a proxy on the way or a changed file: expected {file.sha256}, got {sha256}"
            )
        if check is not None:
            check(path)
    except (ValueError, OSError) as error:
        words = printable(str(error).partition("\n")[0].rstrip("."))  # of names in the file, too
        raise InvalidFileError(f"{words}{page_hint(path)}") from error
    return sha256


def verify_cache(check: Check | None = None) -> list[CachedFile]:
    """Hashes every file of the cache, and the noted ones of huggingface_hub's, again and compares with its note.

    Args:
        check: called with each path; raises ValueError or OSError if the content is not valid.

    Returns:
        One `CachedFile` for each file, in the order of their paths, those of huggingface_hub's cache last; empty
        without a cache.
    """
    paths = sorted(path for path in cache_dir().rglob("*") if path.is_file() and _is_content(path))
    notes = map(read_note, (cache_dir() / EXTERNAL_NOTES).glob("*.json"))
    external = {Path(str(note.get("path", ""))) for note in notes if note}
    return [verify_file(path, check) for path in (*paths, *sorted(path for path in external if path.is_file()))]


def verify_file(path: Path, check: Check | None = None) -> CachedFile:
    """Compares the sha256 of a file with its note, if there is one; then runs the check on it."""
    try:
        note = _find_note(path)
        if note and (found := file_sha256(path)) != note["sha256"]:
            remedy = f"{_delete_hint(path)}, and it" if note_path(path).exists() else "It"
            reason = (
                f"sha256 differs: expected {note['sha256']}, got {found}. {remedy} is downloaded again at its next use"
            )
            return CachedFile(path, False, reason)
        if check is not None:
            check(path)
    except (ValueError, OSError) as error:
        return CachedFile(path, False, str(error))
    return CachedFile(path, True, "sha256 as noted" if note else "valid, with no sha256 noted yet")


def is_noted(path: Path) -> bool:
    """Whether a file was verified, and has the size that it had then."""
    return _is_current(_find_note(path), path)


def downloaded_files() -> Iterator[tuple[Path, ...]]:
    """Each verified file with its note, and what interrupted downloads have left.

    Of a file of huggingface_hub's it is the note alone. Links, and files without a note, were put there by others.
    """
    folder = cache_dir()
    for path in sorted(folder.rglob("*")):
        top, note = path.relative_to(folder).parts[0], note_path(path)
        if top in NO_DOWNLOADS or path.is_symlink() or not path.is_file():
            continue
        if top == EXTERNAL_NOTES and read_note(path):
            yield (path,)
        elif path.name.startswith(PREFIX) and path.suffix == ".part":
            if path.stat().st_mtime < time.time() - ABANDONED:  # a younger one may be another process'
                yield (path, note)
        elif _is_current(read_note(note), path):
            yield (path, note)


def page_hint(path: Path) -> str:
    """A hint for an error about a wrong file, if the file begins like a web page; else no words."""
    with open(path, "rb") as file:
        start = file.read(64).lstrip()
    return "; it begins like a web page, such as that of a login or a proxy" if start.startswith(b"<") else ""


def note_path(path: Path) -> Path:
    """The place of the note of a file in this cache."""
    return path.with_name(f"{path.name}.json")


def external_note_path(path: Path) -> Path:
    """The place of the note of a file in another cache; links to one file share it."""
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    return cache_dir() / EXTERNAL_NOTES / f"{digest[:32]}.json"


def read_note(place: Path) -> dict | None:
    """A note, or None if there is none that can be read; then the file is verified as a new one."""
    note = read_json_object(place)
    return note if note and re.fullmatch("[0-9a-f]{64}", str(note.get("sha256"))) else None


def write_note(place: Path, path: Path, sha256: str, url: str) -> None:
    """Writes the note of the verified file at `path`, unless the cache cannot be written, or has another file there."""
    if "sha256" not in (read_json_object(place) or {"sha256": ""}):
        return
    note = {"sha256": sha256, "size": path.stat().st_size, "url": environment.redacted(url), "path": str(path)}
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(place) as part:
            Path(part).write_text(json.dumps(note))


def _find_note(path: Path) -> dict | None:
    """The note of a file of this cache or of huggingface_hub's, or None."""
    return (read_note(note_path(path)) or read_note(external_note_path(path))) if path.is_file() else None


def _is_current(note: dict | None, path: Path) -> bool:
    return note is not None and note.get("size") == path.stat().st_size


def _check_sha256(path: Path, expected: str, remedy: str) -> str:
    found = file_sha256(path)
    if found != expected:
        raise DownloadError(
            "a file must have the SHA-256 of its download, or the one that you ask for.\n"
            f"Received: {path}, which must have {expected} and has {found}\n{remedy}"
        )
    return found


def _delete_hint(path: Path) -> str:
    return f"Delete it (`rm -f {shlex.quote(str(path))} {shlex.quote(str(note_path(path)))}`)"


def _is_content(path: Path) -> bool:
    if path.relative_to(cache_dir()).parts[0] in NO_DOWNLOADS:
        return False
    is_note = path.suffix == ".json" and not note_path(path).exists()
    return not is_note and not path.name.endswith(_NOT_CONTENT)
