"""One hash of everything that decides features, by which features on the disk are recognised.

It covers the layers, all values of their weights, the preprocessing, the bytes of every file, and the labels. Names of
files and of the model do not count, so that both may be moved.
"""

import concurrent.futures
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_vit.files import open_regular
from keras_vit.images.byte_ranges import ByteRange, PhotoLocation, photo_bytes
from keras_vit.model.image_model import ImageModel
from keras_vit.model.model_digest import digest_of_model

_BLOCK = 1 << 20  # bytes per read
_FORMAT = 1  # version of the file; a new one makes every file anew


def fingerprint_of(model: ImageModel, split: Any) -> str:
    """SHA-256 of everything that decides the features of a split.

    Args:
        model: the `VisionTransformer` or `ResNet`.
        split: a split of a `Source`.

    Raises:
        OSError: for a file that cannot be read.
    """
    found = digest_of_model(model)
    found.update(str(_FORMAT).encode())
    for part in _examples(split):
        found.update(part)
    return found.hexdigest()


def _examples(split: Any) -> Iterator[bytes]:
    """Bytes that differ if the examples of a split or their order differ."""
    if hasattr(split, "paths"):
        with concurrent.futures.ThreadPoolExecutor() as pool:
            yield from pool.map(_digest, split.paths)
        yield from (split.labels.tobytes(), split.orientations.tobytes())
    elif hasattr(split, "images"):
        yield str((split.images.shape, split.images.dtype.name)).encode()
        yield from (np.ascontiguousarray(split.images).tobytes(), split.labels.tobytes())
    else:
        splits = {name: (info.num_examples, info.num_bytes) for name, info in split.builder.info.splits.items()}
        yield f"{split.builder.info.full_name} {split.name} {split.record} {splits}".encode()


def _digest(place: PhotoLocation) -> bytes:
    if isinstance(place, ByteRange):
        return hashlib.sha256(photo_bytes(place)).digest()
    found = hashlib.sha256()
    with open_regular(place) as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.digest()
