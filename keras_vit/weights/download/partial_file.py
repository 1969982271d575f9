"""A download under way: its bytes on disk, and what they are a part of."""

import contextlib
import errno
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from keras_vit.files import read_json_object
from keras_vit.weights.download.environment import redacted
from keras_vit.weights.download.remote import megabytes

_NOTE_KEYS = {"url", "etag", "last_modified", "size", "md5", "sha256"}


class TransferError(Exception):
    """A try failed, and another would fail too."""


class PartialFile:
    """An unfinished download: the bytes so far, and a note of their url and version.

    The note holds `url`, `etag`, `last_modified`, `size`, `md5` and `sha256`, each None if the server did not say.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._note_path = path.with_name(path.name + ".json")

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def read_note(self, url: str) -> dict | None:
        """The note if the bytes at hand can be continued from this url, else None."""
        note = read_json_object(self._note_path)
        if note is None or not self.size or not _is_whole(note):
            return None
        return note if note["url"] == redacted(url) else None

    @property
    def is_own(self) -> bool:
        """Whether this package wrote the bytes, or there are none; a browser's have no such note."""
        return not self.size or (read_json_object(self._note_path) or {}).keys() == _NOTE_KEYS

    def restart(self, note: dict) -> None:
        """Drops the bytes before the note changes, so that they are never taken for another version."""
        self.remove()  # and not cut to nothing, since it may be a pipe or a link
        self.path.write_bytes(b"")
        self._note_path.write_text(json.dumps(note))

    def remove(self) -> None:
        """Removes the bytes and the note."""
        self.path.unlink(missing_ok=True)
        self._note_path.unlink(missing_ok=True)


def validator(note: dict) -> str | None:
    """What distinguishes this version of a file from others in If-Range: the ETag, else the date.

    A weak ETag does not promise equal bytes.
    """
    return note["etag"] if re.fullmatch(r'"[^"]*"', note["etag"] or "") else note["last_modified"]


def _is_whole(note: dict) -> bool:
    """Whether a note has its keys, a validator and values of the right kinds, so that a download can go on."""
    if note.keys() != _NOTE_KEYS or not all(_is_header(note[name]) for name in ("etag", "last_modified")):
        return False
    size, digests = note["size"], ((note["md5"], 32), (note["sha256"], 64))
    if validator(note) is None or not (size is None or (type(size) is int and 0 <= size < 2**63)):
        return False
    return all(each is None or re.fullmatch(f"[0-9a-f]{{{n}}}", str(each)) for each, n in digests)


def _is_header(value: object) -> bool:
    return value is None or (isinstance(value, str) and value.isascii() and value.isprintable())


@contextlib.contextmanager
def disk_faults(part: PartialFile) -> Iterator[None]:
    """Turns a full disk into a `TransferError` with the figures, and removes the part to give the space back."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        size = part.size
        part.remove()
        free = shutil.disk_usage(part.path.parent).free
        raise TransferError(
            f"the disk of {part.path.parent} is full: {megabytes(size)} were written, and with the part removed "
            f"{megabytes(free)} are free"
        ) from error
