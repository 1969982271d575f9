"""Which photos a job embeds, in which order, and where each lies: a folder, a table or shards as one sorted list.

A list is kept as a file of lines in JSON, so that a job goes on with the same rows whatever has become of the photos.
"""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from keras_vit.checks import ArgumentError, with_parameters
from keras_vit.files import access_error, atomic_write, expand_path, open_regular
from keras_vit.images.byte_ranges import ByteRange, PhotoLocation
from keras_vit.images.photo_files import (
    HEIC,
    JOB_LIST,
    READ_AT_FIRST,
    PassedOver,
    is_photo,
    is_shard,
    near_names,
    photos_below,
)
from keras_vit.images.photo_tables import is_table, open_table, path_cell
from keras_vit.images.pillow_formats import PillowError, missing_package
from keras_vit.pages.formatting import plural, printable

LIST = JOB_LIST
_HEAD = '{"keras_vit": "the photos of an embedding, a row each"}\n'
_MOST_BYTES = 1 << 34  # of a list or a table
_SAMPLED = 1000  # photos of a list, evenly chosen, which takes a second on a network disk
_MOST_NAMED = 10
Entry: TypeAlias = str | list[Any]  # a path below the top; or key, file, offset, size of a slice, and -1


class PhotoList(NamedTuple):
    """Photos in the order of their rows."""

    top: Path  # the folder from which their paths count
    entries: list[Entry]  # ready for JSON
    notes: Sequence[str] = ()  # lines about what the walk did not enter
    states: Mapping[str, Sequence[int]] = {}  # size and `st_mtime_ns` of each shard, by its path below the top

    def fingerprint(self) -> str:
        """SHA-256 of the list, wherever its folder lies."""
        found = hashlib.sha256()
        for line in self.lines():
            found.update(line.encode())
        return found.hexdigest()

    def lines(self) -> Iterator[str]:
        """The lines of its file after the first."""
        return (json.dumps(entry) + "\n" for entry in self.entries)

    def write(self, folder: Path) -> None:
        """Writes `folder/photos.jsonl`, in place of another list alone."""
        path = folder / LIST
        if os.path.lexists(path) and list_sha256(folder) is None:
            raise ArgumentError(
                f"a job replaces only files of a job.\nReceived: {str(path)!r}. Move it away.", parameters=("out",)
            )
        with atomic_write(path) as part, open(part, "w", encoding="utf-8") as file:
            file.write(_HEAD)
            file.writelines(self.lines())


def list_error(folder: Path, found: object, parameter: str) -> ArgumentError:
    """The error for a list of a job that is not as it was written."""
    return ArgumentError(
        f"the list of photos must be as the job wrote it.\nReceived: {printable(folder / LIST)}, {found}. "
        "`keras-vit embed` writes it again, if the photos are as they were; else choose another folder.",
        parameters=(parameter,),
    )


def photo_key(entry: Entry) -> str:
    """The name of a photo in its row."""
    return entry if isinstance(entry, str) else str(entry[0])


def photo_location(top: Path, entry: Entry, states: Mapping[str, Sequence[int]] | None = None) -> PhotoLocation:
    """Where the bytes of a photo are; in a shard that must have its state, if that is given."""
    if isinstance(entry, str):
        return os.path.join(top, entry)
    key, file, offset, size, record = entry
    if record >= 0:  # of a job by version 0.6.0
        raise PillowError("it lies in an ArrayRecord file, which is not read any more")
    state = (states or {}).get(file)
    return ByteRange(os.path.join(top, file), offset, size, key, (state[0], state[1]) if state else None)


def list_photos(what: str | os.PathLike) -> PhotoList:
    """The photos in a folder, a table or shards, sorted by their names.

    Args:
        what: a folder, with all that is below it; a `.csv`, `.tsv` or `.parquet` file with the column `path`; or
            shards, as `open_source` takes them.

    Raises:
        ValueError: if no photo is there, a table has none, or a folder cannot be listed.
    """
    path = expand_path(what)
    # The seam: whatever else holds photos makes entries of them here, and `photo_location` says where their bytes are.
    denied = access_error(path)
    if is_table(path) and (os.path.lexists(path) or denied):
        found = PhotoList(path.parent, _table_paths(path))
    elif os.path.isdir(path):
        found = _folder_photos(path)
    else:
        found = (_shard_photos(path) if is_shard(path.name) else None) or PhotoList(path, [])
    if not found.entries:
        found_words = "without a photo" if os.path.exists(path) else "where nothing is"
        found_words = f"which cannot be reached: {denied}" if denied else found_words
        raise ArgumentError(
            "`photos` must be a folder with photos in it or below it, a table with the column path, or shards.\n"
            f"Received: {str(path)!r}, {found_words}.{near_names(path)}"
        )
    return found


def read_list(folder: Path, top: Path) -> PhotoList:
    """The list that a job wrote into its folder; raises a `ValueError` if it is none."""
    try:
        with open_regular(folder / LIST, _MOST_BYTES) as file:
            if file.readline() != _HEAD.encode():
                raise ValueError("which is no list of photos")
            return PhotoList(top, [json.loads(line) for line in file])
    except (OSError, ValueError, RecursionError) as error:
        raise list_error(folder, error, "out") from None


def list_sha256(folder: Path) -> str | None:
    """The fingerprint of the list that a job wrote into its folder; `None` where none can be read."""
    with contextlib.suppress(OSError, ValueError), open_regular(folder / LIST, _MOST_BYTES) as file:
        if file.readline(len(_HEAD)) == _HEAD.encode():
            found = hashlib.sha256()
            for line in file:
                found.update(line)
            return found.hexdigest()
    return None


def check_count(folder: Path, count: int) -> None:
    """Raises a `ValueError` if the list that a job wrote into its folder is there, and of another number of photos."""
    if list_sha256(folder) is None:
        return
    with open_regular(folder / LIST, _MOST_BYTES) as file:
        found = sum(1 for _ in file) - 1
    if found != count:
        words = f"which differs from the manifest: it has {plural(found, 'photo')}, and the manifest {count:,}"
        raise list_error(folder, words, "vectors")


def of_read_kind(entry: Entry) -> bool:
    """Whether a photo is of a kind that is read, by its name; earlier versions listed those alone."""
    kinds = READ_AT_FIRST if missing_package("HEIC") else (*READ_AT_FIRST, *HEIC)
    return not isinstance(entry, str) or is_photo(os.path.basename(entry), (*kinds, ""))


def check_files_exist(photos: PhotoList, rows: Sequence[int]) -> None:
    """Raises unless what a job is about to read is there, but for single photos; some thousand are checked.

    Raises:
        FileNotFoundError: if a shard of these rows is gone; or more than half of the list, and some of these rows.
    """
    files = {entry[1] for entry in map(photos.entries.__getitem__, rows) if not isinstance(entry, str)}
    if gone := sorted(file for file in files if not os.path.exists(photos.top / file)):
        named = ", ".join(printable(file) for file in gone[:_MOST_NAMED])
        more = f" and {len(gone) - _MOST_NAMED:,} more" if len(gone) > _MOST_NAMED else ""
        raise with_parameters(
            FileNotFoundError(
                "a job resumes with the shards that it started with.\n"
                f"Received: {printable(photos.top)} without {named}{more}. Restore what is gone."
            ),
            "photos",
        )
    sampled, to_read = (
        [entry for entry in entries[:: max(len(entries) // _SAMPLED, 1)] if isinstance(entry, str)]
        for entries in (photos.entries, [photos.entries[row] for row in rows])
    )
    lost = [entry for entry in sampled if not os.path.lexists(photos.top / entry)]
    if 2 * len(lost) > len(sampled) and not all(os.path.lexists(photos.top / entry) for entry in to_read):
        raise with_parameters(
            FileNotFoundError(
                "at least half of the photos of a list must exist.\n"
                f"Received: {printable(photos.top)}, where {len(lost):,} of {len(sampled):,} that were checked are "
                f"gone, as {printable(lost[0])}. Mount their disk, or pass a list of those that are there."
            ),
            "photos",
        )


def shard_states(top: Path, files: Iterable[str]) -> Mapping[str, Sequence[int]]:
    """Size and `st_mtime_ns` of those of these shards that are there, by their paths below the top."""
    found = {}
    for file in files:
        with contextlib.suppress(OSError):
            status = os.stat(top / file)
            found[file] = (status.st_size, status.st_mtime_ns)
    return found


def _folder_photos(folder: Path) -> PhotoList:
    """All that count as photos, so that each has a row, also one of a kind that is not read; or those of shards."""
    passed, top = PassedOver(), str(folder).rstrip(os.sep) + os.sep
    photos = [*photos_below(folder, passed=passed)]
    passed.check()
    if passed.shards and (found := _shard_photos(folder)):
        return found
    if passed.shards and not photos:
        first = Path(min(passed.shards))
        raise ArgumentError(
            "`photos` must be a folder with shards in it or in its folders of splits.\n"
            f"Received: {str(folder)!r} with {plural(len(passed.shards), 'shard')} in other folders, as "
            f"{str(first)!r}. Pass their folder, or a pattern for all of them, as '{folder}/**/*{first.suffix}'."
        )
    names = (str(path).removeprefix(top).replace(os.sep, "/") for path in photos)
    return PhotoList(folder, sorted(names), passed.notes())


def _table_paths(path: Path) -> list[Entry]:
    try:
        with open_table(path) as table:
            if table.columns.count("path") != 1:
                raise ValueError(
                    "the first line of a table of photos must have the column path, once.\n"
                    f"Received: {str(path)!r} with the columns {table.columns}."
                )
            found = sorted(path_cell(path, number, row) for number, row in table.rows())
    except ValueError as error:
        raise with_parameters(error, "photos") from None
    # One photo in several spellings, as `./a.jpg` and its absolute path, is one as well.
    places = sorted((os.path.normpath(os.path.abspath(path.parent / name)), name) for name in found if name)
    twice = next(((one, other) for (place, one), (at, other) in itertools.pairwise(places) if place == at), None)
    if twice or "" in found:
        one, other = twice or ("", "")
        wrong = f"{one!r} twice" if one == other else f"{one!r} and {other!r}, which are one photo"
        wrong = wrong if twice else "a row without a path"
        raise ArgumentError(
            f"each row of a table must name a photo of its own.\nReceived: {str(path)!r} with {wrong}.",
            parameters=("photos",),
        )
    return list(found)


def _shard_photos(path: Path) -> PhotoList | None:
    """The photos of shards; `None` where there are none."""
    from keras_vit.data.shards.finding import common_folder, find_shards  # whose room imports Keras
    from keras_vit.data.shards.opening import shard_ranges

    if not (files := find_shards(path, by_split=False)):
        return None
    top = common_folder(files)
    found = [(key, os.path.relpath(os.path.abspath(s.file), top), s) for key, s in shard_ranges(files)]
    states = {file: s.state for _, file, s in found if s.state}
    return PhotoList(top, sorted([key, file, s.offset, s.size, -1] for key, file, s in found), states=states)
