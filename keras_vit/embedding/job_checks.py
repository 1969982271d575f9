"""Whether the parts of a job are whole, and the list of its broken photos."""

import csv
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError
from keras_vit.embedding.embedder import OK
from keras_vit.embedding.manifest import Manifest, read_manifest
from keras_vit.embedding.part_files import PartError, check_form, read_part, read_statuses
from keras_vit.embedding.photo_lists import LIST, read_list
from keras_vit.files import atomic_write, expand_path, read_head
from keras_vit.pages.formatting import printable, spreadsheet_cell

BROKEN = "broken_photos.csv"
_COLUMNS = ("row", "photo", "reason")
_MOST_NAMED = 10  # parts that an error names


def check_job(out: FilePath) -> tuple[Manifest, int]:
    """Reads all parts of a job, and counts the photos that are broken.

    Raises:
        ValueError: for another folder, and for parts that are missing or damaged; the message names ten of them.
    """
    folder = expand_path(out)
    manifest = read_manifest(folder)
    check_form(manifest.form)
    listed = read_list(folder, folder)
    if listed.digest() != manifest.photos_sha256:
        raise ArgumentError(
            f"the list of photos must be as the job wrote it.\nReceived: {printable(folder / LIST)}, which differs.",
            parameters=("out",),
        )
    check_parts(folder, manifest, range(manifest.parts))
    return manifest, write_broken(folder, manifest)


def check_parts(folder: Path, manifest: Manifest, parts: Sequence[int]) -> None:
    """Reads parts; raises a `ValueError` that names those that are missing or damaged."""
    faults, rows = [], 0
    for number in parts:
        try:
            rows += len(read_part(folder, manifest, number).photos)
        except PartError as error:
            faults.append(error)
    if faults:
        asked = sum(len(manifest.rows(number)) for number in parts)
        raise faults_of_parts(folder, faults, len(parts), f"{rows:,} of {asked:,} rows are there; ")


def faults_of_parts(folder: Path, faults: Sequence[PartError], parts: int, rows: str = "") -> ValueError:
    """The error that names some parts that are no good.

    Args:
        folder: of the job.
        faults: of the parts, at least one.
        parts: how many were looked at.
        rows: what is said before.
    """
    more = f"; and {len(faults) - _MOST_NAMED:,} more" if len(faults) > _MOST_NAMED else ""
    named = "; ".join(fault.said for fault in faults[:_MOST_NAMED])
    is_missing, is_one = all(fault.is_missing for fault in faults), len(faults) == 1
    what = f"{'is' if is_one else 'are'} missing{'' if is_missing else ' or damaged'}"
    after = "The" if is_missing else f"Move {'it' if is_one else 'the damaged ones'} away; the"
    return ValueError(
        "every part must be as the job wrote it.\n"
        f"Received: {printable(folder)}: {rows}{len(faults):,} of {parts:,} parts {what}: {named}{more}. "
        f"{after} same command computes {'it' if is_one else 'them'}."
    )


def said_of_broken(folder: Path, broken: int) -> str:
    """How many photos could not be read, and where the reasons are."""
    return (
        f"{broken:,} of them of broken photos, with reasons in {printable(folder / BROKEN)}"
        if broken
        else "no photo is broken"
    )


def write_broken(folder: Path, manifest: Manifest) -> int:
    """Writes the list of broken photos of a finished job, if there are any, and gives their number."""
    path = folder / BROKEN
    if os.path.lexists(path) and not (read_head(path) or b"").startswith(",".join(_COLUMNS).encode()):
        raise ArgumentError(
            f"a job replaces only files of a job.\nReceived: {str(path)!r}. Move it away.", parameters=("out",)
        )
    rows = [row for number in range(manifest.parts) for row in _broken(folder, manifest, number)]
    if rows or path.exists():
        with atomic_write(path) as part, open(part, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([_COLUMNS, *rows])
    return len(rows)


def _broken(folder: Path, manifest: Manifest, number: int) -> Iterator[tuple[int, str, str]]:
    photos, status = read_statuses(folder, manifest, number)
    for place in np.flatnonzero(status != OK):
        yield manifest.rows(number)[place], spreadsheet_cell(photos[place]), spreadsheet_cell(status[place])
