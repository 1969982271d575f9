"""Vectors of photos as rows to search in: from an array or a job's folder, their directions, and exact cosines."""

import os
from typing import NamedTuple

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError
from keras_vit.embedding.embedder import OK
from keras_vit.embedding.manifest import read_manifest
from keras_vit.embedding.part_files import read_vectors
from keras_vit.files import expand_path

_PAIR_BYTES = 1 << 24  # of the float64 rows of pairs that are compared at once


class Rows(NamedTuple):
    """Vectors, and the photos that they are of.

    Attributes:
        vectors: real `(N, D)`; a row of NaN is that of a broken photo.
        photos: N names, of a folder.
    """

    vectors: np.ndarray
    photos: np.ndarray | None = None


def rows_of(vectors: np.ndarray | FilePath) -> Rows:
    """The rows of an array, which is not copied, or of a finished job of `keras-vit embed`.

    Raises:
        ValueError: for an array of another shape or kind, and as `read_vectors`.
    """
    if isinstance(vectors, (str, os.PathLike)):
        return _of_folder(vectors)
    return Rows(check_rows("vectors", vectors))


def check_rows(name: str, given: np.ndarray) -> np.ndarray:
    """`given` as an array `(N, D)` of real numbers; raises for anything else."""
    found = np.asanyarray(given)
    if found.ndim != 2 or 0 in found.shape or found.dtype.kind not in "fiu":
        raise ArgumentError(
            f"`{name}` must be real numbers of shape (N, D), a row a photo.\n"
            f"Received: {found.dtype} of shape {found.shape}.",
            parameters=(name,),
        )
    return found


def _of_folder(folder: FilePath) -> Rows:
    manifest = read_manifest(expand_path(folder))
    vectors = np.empty((manifest.photos, manifest.width), "float32")
    photos = np.empty(manifest.photos, object)
    for number, part in enumerate(read_vectors(folder)):
        rows = slice(manifest.rows(number).start, manifest.rows(number).stop)
        photos[rows], vectors[rows] = part.photos, part.vectors
        vectors[rows][part.status != OK] = np.nan
    return Rows(vectors, photos)


def directions(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of length 1 in float32, and which rows have a direction; those of NaN, infinity or zeros become zeros."""
    units, valid = _units(rows)
    return units.astype("float32"), valid


def cosines(one: np.ndarray, other: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosines of pairs of rows, computed in float64 and rounded to float32, in [-1, 1].

    Equal vectors so have equal cosines, whichever block they were found in.

    Args:
        one, other: `(M, D)` and `(N, D)`.
        first, second: n numbers of rows of `one` and of `other`.
    """
    found = np.empty(len(first), "float32")
    step = max(_PAIR_BYTES // (8 * one.shape[1]), 1)
    for start in range(0, len(first), step):
        part = slice(start, start + step)
        pair = (_units(rows[which[part]])[0] for rows, which in ((one, first), (other, second)))
        found[part] = np.einsum("nd,nd->n", *pair)
    return np.clip(found, -1, 1)


def _units(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = np.asarray(rows, "float64")
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    valid = np.isfinite(lengths) & (lengths > 0)
    return np.where(valid[:, None], rows, 0) / np.where(valid, lengths, 1)[:, None], valid
