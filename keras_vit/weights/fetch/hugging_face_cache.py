"""Files in huggingface_hub's own cache: verified once, and removed there if they are not what the Hub has.

A file of a snapshot is a link to a blob, whose name is its digest: sha256 for a file in LFS, Git's sha1 else.
Where the library makes no links (Windows, `HF_HUB_DISABLE_SYMLINKS`), the digest is known only as a file comes.
That library itself compares no digest after a download over http. Opens no socket.
"""

import contextlib
import hashlib
import os
import re
from pathlib import Path

from keras_vit.weights.fetch import cache, notes
from keras_vit.weights.fetch.remote import DownloadError, RemoteFile, download_error

_DIGEST = "[0-9a-f]{64}|[0-9a-f]{40}"  # hexadecimal: sha256, or Git's sha1
_CHUNK = 1 << 20  # bytes


def require_valid(path: Path, file: RemoteFile, check: cache.Check, listed: str | None = None):
    """Verifies a snapshot's file, unless a note says that this was done and the file is as it was then.

    A file with another digest than the Hub's is removed, so that the next call downloads it again. One that is the
    Hub's own, and yet not the one asked for or not valid for us, stays: other programs may use it.

    Args:
        path: the file, in a snapshot.
        file: what is known of it.
        check: raises ValueError or OSError if the content is not valid.
        listed: the digest by the Hub, where the library was just asked for it.

    Raises:
        DownloadError: if it is not valid.
    """
    try:
        place = notes.elsewhere(path)
        note = notes.read(place)
        if note and notes.is_current(note, path) and file.sha256 in (None, note["sha256"]):
            return
        sha256 = require_authentic(path, file, listed or (note["sha256"] if note else None))
        cache.require_valid(path, file, check, sha256)
        notes.write(place, path, sha256, file.url)
    except cache.InvalidFileError as fault:
        raise download_error(file, f"{fault}. It stays in huggingface_hub's cache, at {path}") from fault
    except DownloadError:
        raise
    except OSError as error:  # such as removed by another process that found it damaged
        raise _unreadable(file, path, error) from error


def require_authentic(path: Path, file: RemoteFile, listed: str | None = None) -> str:
    """The sha256 of a snapshot's file with the digest that it must have, as far as that is known.

    Args:
        listed: the digest by the Hub or by a note, where the blob has none for its name.

    Raises:
        DownloadError: if it has another one, and is removed.
    """
    expected = _digest_of_blob(path) or (listed if listed and re.fullmatch(_DIGEST, listed) else None)
    try:
        sha256 = cache.sha256_of(path)
        found = sha256 if expected is None or len(expected) == len(sha256) else _git_sha1(path)
        if found == (expected or found):
            return sha256
        kind = "sha256" if found == sha256 else "Git digest"
        fault = f"its {kind} differs: expected {expected}, got {found}{cache.page_hint(path)}"
    except OSError as error:
        raise _unreadable(file, path, error) from error
    raise download_error(file, f"{fault}. {_remove(path)}")


def _digest_of_blob(path):
    """The name of the blob that a snapshot's file links to, if it is a digest; of the first link, not of the last."""
    name = os.path.basename(os.readlink(path)) if path.is_symlink() else ""
    return name if re.fullmatch(_DIGEST, name) else None


def _git_sha1(path):
    """Git's name of a file: sha1 of its size and bytes."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _remove(path):
    """Removes a snapshot's file and its blob, inside the library's cache alone, and says so or why not."""
    root = path.parents[3].resolve()  # of <root>/models--<owner>--<name>/snapshots/<commit>/<file>
    places = [path, path.resolve()]
    if path.is_symlink():
        places.insert(1, path.parent / os.readlink(path))
    try:
        for place in places:
            if place.parent.resolve().is_relative_to(root):
                place.unlink(missing_ok=True)
    except OSError as error:
        return f"It could not be removed ({error.strerror}), so remove it: {path}"
    with contextlib.suppress(OSError):
        notes.elsewhere(places[-1]).unlink(missing_ok=True)
    return "It is removed from huggingface_hub's cache, and the next call downloads it again"


def _unreadable(file, path, error):
    return download_error(file, f"it cannot be read in huggingface_hub's cache ({error.strerror or error}): {path}")
