"""What was seen of a file when it was verified: its sha256, size, time and inode, so that it is hashed once.

A note stands beside a file of our cache, as `<name>.json`. Of a file in huggingface_hub's cache, where nothing
of ours belongs, it stands in a folder of our cache, named by a digest of the place.
"""

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path

from keras_vit.files import read_json_object, replacing
from keras_vit.weights.fetch import environment

_ELSEWHERE = "huggingface_hub"  # folder of our cache


def beside(path: Path) -> Path:
    """The place of the note of a file in our cache."""
    return path.with_name(path.name + ".json")


def elsewhere(path: Path) -> Path:
    """The place of the note of a file in another cache; links to one file share it."""
    digest = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()
    return environment.cache_dir() / _ELSEWHERE / f"{digest[:32]}.json"


def read(place: Path) -> dict | None:
    """A note, or None if there is none that can be read; then the file is verified as a new one."""
    note = read_json_object(place)
    return note if note and re.fullmatch("[0-9a-f]{64}", str(note.get("sha256"))) else None


def write(place: Path, path: Path, sha256: str, url: str):
    """Notes what the verified file at `path` is; passed over where the cache cannot be written."""
    note = {"sha256": sha256, **_stamp(path), "url": environment.redacted(url)}
    if place != beside(path):
        note["path"] = str(path)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        with replacing(place) as part:
            Path(part).write_text(json.dumps(note))


def is_current(note: dict, path: Path) -> bool:
    """Whether the file has the size, time and inode that it had when it was noted."""
    return all(note.get(key) == value for key, value in _stamp(path).items())


def noted_elsewhere() -> list[Path]:
    """The files in other caches that have a note and are still there, in the order of their paths."""
    found = [read(place) for place in (environment.cache_dir() / _ELSEWHERE).glob("*.json")]
    paths = {Path(str(note.get("path", ""))) for note in found if note}
    return sorted(path for path in paths if path.is_file())


def _stamp(path):
    status = path.stat()
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "inode": status.st_ino}
