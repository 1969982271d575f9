"""One hash of the list of examples, which tells whether two processes see the same data."""

import hashlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_vit.data.source import Source


def identity_of(source: Source) -> str:
    """SHA-256 of the examples of every split.

    Files count by their labels, orientations and paths below their common folder, not by their bytes; photos in shards
    by the names of the shards and their own in these. So a data set
    may be moved, and a run goes on with it. Arrays count by all values. A set of tensorflow-datasets counts by its
    name, its version and the numbers of its examples.
    """
    found = hashlib.sha256()
    top = top_of(source)
    for name, split in source.splits.items():
        found.update(f"{name} {split.size}\n".encode())
        for part in _parts(split, top):
            found.update(part)
    return found.hexdigest()


def _parts(split: Any, top: str) -> Iterator[Any]:
    """Bytes that differ if the examples differ."""
    if hasattr(split, "paths"):
        yield from (f"{os.path.relpath(str(path), top)}\n".encode(errors="surrogateescape") for path in split.paths)
        yield from (np.ascontiguousarray(split.labels), np.ascontiguousarray(split.orientations))
    elif hasattr(split, "images"):
        yield str((split.images.shape, split.images.dtype.name)).encode()
        yield from (np.ascontiguousarray(split.images), np.ascontiguousarray(split.labels))
    else:
        yield f"{split.builder.info.full_name} {split.name}".encode()
        yield b"" if split.numbers is None else np.ascontiguousarray(split.numbers)


def top_of(source: Source) -> str:
    """The common folder of all files of a source; empty without files."""
    paths = [str(path) for split in source.splits.values() for path in getattr(split, "paths", ())]
    return os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
