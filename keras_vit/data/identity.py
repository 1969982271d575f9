"""Whether two processes see the same data: one hash of the list of examples."""

import hashlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_vit.data.source import Source


def identity_of(source: Source) -> str:
    """SHA-256 of the splits: of files their paths below the folder that holds all, their labels and how they are
    turned, but not what is in them; of arrays all values; of a set of tensorflow-datasets its name and version,
    and which examples count.

    So a set may be moved, and a run goes on with it.
    """
    found = hashlib.sha256()
    top = _top(source)
    for name, split in source.splits.items():
        found.update(f"{name} {split.size}\n".encode())
        for part in _parts(split, top):
            found.update(part)
    return found.hexdigest()


def _parts(split: Any, top: str) -> Iterator[Any]:
    """Bytes that tell a split from others."""
    if hasattr(split, "paths"):
        yield from (f"{os.path.relpath(path, top)}\n".encode(errors="surrogateescape") for path in split.paths)
        yield from (np.ascontiguousarray(split.labels), np.ascontiguousarray(split.orientations))
    elif hasattr(split, "images"):
        yield str((split.images.shape, split.images.dtype.name)).encode()
        yield from (np.ascontiguousarray(split.images), np.ascontiguousarray(split.labels))
    else:
        yield f"{split.builder.info.full_name} {split.name}".encode()
        yield b"" if split.numbers is None else np.ascontiguousarray(split.numbers)


def _top(source: Source) -> str:
    """The folder that holds all files of a source."""
    paths = [path for split in source.splits.values() for path in getattr(split, "paths", ())]
    return os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
