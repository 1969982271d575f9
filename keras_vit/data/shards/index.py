"""One file in the folder of the shards with the place and label of every photo, made once.

A shard counts as unchanged if its size, its time of change and a digest of its first and last bytes are the same. Only
changed and new shards are scanned again. Where the folder cannot be written, the file lies in the cache. A digest over
its arrays shows edits of them; it is no signature.
"""

import contextlib
import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.cache import cache_dir
from keras_vit.data.shards import parquet, records, tars
from keras_vit.data.shards.finding import common_folder
from keras_vit.data.shards.rows import Row, Rows, ShardError, with_unique_keys
from keras_vit.files import FileKindError, atomic_write, open_regular
from keras_vit.images.photo_files import hidden_note, shard_kind
from keras_vit.pages.formatting import printable

NAME = ".keras_vit_index.npz"
_FORMAT = 8  # version of the file; another one makes it anew, as one that lacks names of members that are not read
_ENDS = 4096  # bytes at the begin and the end of a shard, in its stamp
CHECK_BYTES = 17  # bytes that are kept of the check of a photo
_OWN = ("schema", "class_names", "copied", "hidden", "unread", "names_beside")  # facts about a shard
_COLUMNS = ("offset", "size", "label")
_ARRAYS = ("facts", "keys", "looks", *_COLUMNS)


@dataclasses.dataclass(frozen=True)
class IndexedShard:
    """A shard and its photos."""

    path: Path
    photos: Path  # the file in which offsets count: the shard, or a copy of its photos in the cache
    stamp: str  # by which the index knows the shard
    rows: Rows

    @functools.cached_property
    def state(self) -> tuple[int, int] | None:
        """Size and `st_mtime_ns` for `ByteRange`; `None` for a copy, which has a name of its own for each stamp."""
        size, changed, _ = self.stamp.split()
        return None if self.rows.copied else (int(size), int(changed))


def read_index(files: Sequence[Path]) -> list[IndexedShard]:
    """The photos of every shard, from the index or by scanning shards that are new or have changed.

    Raises:
        ShardError: for a shard that cannot be read.
        OSError: for one that is not there.

    Warns:
        UserWarning: if the index is damaged, or shards have changed or are gone since it was made. Of hidden photos in
            tars. For shards that are scanned, of images that are no photos of their own.
    """
    folder = common_folder(files)
    names = _names(files, folder)
    stamps = [_stamp(file) for file in files]
    known = _known(folder, names, stamps)
    found, are_new = [], bool(gone := [name for name in known if not os.path.exists(folder / name)])
    if gone:
        _warn(
            f"{len(gone)} shard(s) are gone since their index was made, as {printable(gone[0])}. Bring them back, or "
            "go on without their photos."
        )
    for file, name, stamp in zip(files, names, stamps, strict=True):
        rows = known.get(name, ("", None))[1] if known.get(name, ("",))[0] == stamp else None
        copy = functools.partial(_copy, folder, name, stamp)  # without a home folder there is no place for one
        if rows is None or (rows.copied and not copy().is_file()):
            if name in known and known[name][1].copied:  # its copy is of no more use
                with contextlib.suppress(OSError, ValueError):
                    _copy(folder, name, known[name][0]).unlink(missing_ok=True)
            rows, are_new = _scan(file, copy), True
            known[name] = (stamp, rows)
        found.append(IndexedShard(file, copy() if rows.copied else file, stamp, rows))
    if are_new:
        _write(folder, known)  # without shards that are gone
    if further := [f"{shard.path}:{name}" for shard in found for name in shard.rows.further]:
        _warn(
            f"{len(further):,} image(s) of tars are further fields of examples and not read, as "
            f"{printable(further[0])}. If they are photos of their own, replace the first dots in their names."
        )
    if hidden := [f"{shard.path}:{part}" for shard in found for part in shard.rows.hidden]:
        _warn(f"{hidden_note(hidden)}.")
    if unread := [f"{shard.path}:{name}" for shard in found for name in shard.rows.unread]:
        _warn(
            f"{len(unread):,} member(s) or field(s) of shards not read, which are photos or may hold some, as "
            f"{printable(unread[0])}. Rename members that are photos; of a record one photo is read."
        )
    if empty := [shard.path for shard in found if not shard.rows.rows]:
        _warn(f"{len(empty):,} shard(s) hold no photo, as {printable(empty[0])}. Bring them again, or remove them.")
    return found


def save_checks(shards: Sequence[IndexedShard], checks: Sequence[np.ndarray]) -> None:
    """Writes into the index what a check has found of all shards, so that no later process reads all photos for it."""
    if all(
        shard.rows.checks is not None and (shard.rows.checks == own).all()
        for shard, own in zip(shards, checks, strict=True)
    ):
        return
    files = [shard.path for shard in shards]
    folder = common_folder(files)
    names = _names(files, folder)
    known = _known(folder, names, [shard.stamp for shard in shards])
    for name, shard, own in zip(names, shards, checks, strict=True):
        known[name] = (shard.stamp, dataclasses.replace(shard.rows, checks=own))
    _write(folder, known)


def _names(files: Sequence[Path], folder: Path) -> list[str]:
    return [os.path.relpath(os.path.abspath(file), folder) for file in files]


def _scan(file: Path, copy: Callable[[], Path]) -> Rows:
    path = str(file)
    try:
        if shard_kind(file) == "parquet":
            return with_unique_keys(parquet.read_rows(path, copy))
        of_kind = {"tar": tars.read_rows, "tfrecord": records.tfrecord_rows}
        return with_unique_keys(of_kind[str(shard_kind(file))](path))
    except FileKindError as error:
        raise ShardError("a shard must be a regular file", path, error.reason) from None


def _stamp(file: Path) -> str:
    """What changes with a shard: its size, its time of change, and a digest of its ends."""
    try:
        with open_regular(file) as opened:
            status = os.fstat(opened.fileno())
            ends = opened.read(_ENDS)
            opened.seek(max(status.st_size - _ENDS, 0))
            ends += opened.read(_ENDS)
    except FileKindError as error:
        raise ShardError("a shard must be a regular file", file, error.reason) from None
    except OSError as error:
        is_lost = isinstance(error, FileNotFoundError) and os.path.islink(file)
        what = "a link to nothing" if is_lost else f"{error.strerror or error}"
        raise ShardError("every shard must be there and readable", file, what) from None
    if not ends:
        raise ShardError("a shard must hold photos", file, "which has 0 bytes", "Bring it again, or remove it.")
    return f"{status.st_size} {status.st_mtime_ns} {hashlib.blake2b(ends, digest_size=16).hexdigest()}"


def _copy(folder: Path, name: str, stamp: str) -> Path:
    digest = hashlib.sha256(f"{folder / name}\n{stamp}".encode(errors="surrogateescape")).hexdigest()
    return cache_dir("shards") / f"{digest[:32]}.photos"


def _index_paths(folder: Path) -> Iterator[Path]:
    """The places of the index: the folder, and the cache for one that cannot be written."""
    yield folder / NAME
    with contextlib.suppress(ValueError):  # without a home folder
        yield cache_dir("shards") / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:32]}.npz"


def _known(folder: Path, names: Sequence[str], stamps: Sequence[str]) -> dict[str, tuple[str, Rows]]:
    """Stamp and rows by shard, of the index in the folder or of that in the cache, whichever knows more of them."""
    best: dict[str, tuple[str, Rows]] = {}
    fitting = -1
    for path in filter(os.path.lexists, _index_paths(folder)):
        try:
            found = _read(path)
        except Exception as error:  # of a stranger's file zipfile and NumPy raise many
            how = "cannot be read" if isinstance(error, OSError) else "is damaged"
            _warn(f"the index {printable(path)} {how}, so it is made anew.")
            continue
        fits = sum(found.get(name, ("",))[0] == stamp for name, stamp in zip(names, stamps, strict=True))
        if fits > fitting:
            best, fitting = found, fits
    changed = [name for name, stamp in zip(names, stamps, strict=True) if name in best and best[name][0] != stamp]
    if changed:
        _warn(
            f"{len(changed)} shard(s) have changed since their index was made, as {printable(changed[0])}, so it is "
            "made anew for them."
        )
    return best


def _warn(words: str) -> None:
    warnings.warn(words, stacklevel=2)


def _write(folder: Path, known: dict[str, tuple[str, Rows]]) -> None:
    """Writes the index into the folder or the cache; where neither works, training goes on without it."""
    known = {name: entry for name, entry in known.items() if os.path.exists(folder / name)}
    data = io.BytesIO()
    np.savez(data, **_arrays(known))  # type: ignore[arg-type]  # of arrays by name
    for path in _index_paths(folder):
        try:
            if path.parent != folder:
                path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as temporary:
                Path(temporary).write_bytes(data.getbuffer())
            return
        except OSError:
            continue


def _arrays(known: dict[str, tuple[str, Rows]]) -> dict[str, np.ndarray]:
    """The columns of all shards one after the other, and facts about each shard as JSON."""
    labels: dict[str, int] = {}
    facts, keys, columns, checks = [], [], [], [np.zeros((0, CHECK_BYTES), "uint8")]
    for name, (stamp, rows) in known.items():
        own = {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows) if field.name in _OWN}
        facts.append({"name": name, "stamp": stamp, "count": len(rows.rows), **own})
        checks.append(np.zeros((len(rows.rows), CHECK_BYTES), "uint8") if rows.checks is None else rows.checks)
        for row in rows.rows:
            keys.append(row.key.replace("\0", "\ufffd"))
            label = -1 if row.label is None else labels.setdefault(row.label, len(labels))
            columns.append((row.offset, row.size, label))
    table = np.array(columns, "int64").reshape(-1, len(_COLUMNS))
    text = json.dumps({"format": _FORMAT, "shards": facts, "labels": list(labels)}).encode()
    joined = "\0".join(keys).encode("utf-8", "surrogateescape")
    texts = {"facts": np.frombuffer(text, "uint8"), "keys": np.frombuffer(joined, "uint8")}
    texts["looks"] = np.concatenate(checks)
    arrays = texts | {name: table[:, number].copy() for number, name in enumerate(_COLUMNS)}
    return arrays | {"digest": _digest(arrays)}


def _digest(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """uint8 `(16,)` over all arrays but the digest itself, so that rows of other shards do not pass for these."""
    found = hashlib.blake2b(digest_size=16)
    for name in _ARRAYS:
        found.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode() + arrays[name].tobytes())
    return np.frombuffer(found.digest(), "uint8")


def _read(path: Path) -> dict[str, tuple[str, Rows]]:
    """The content of an index; raises errors of many kinds for a damaged one."""
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                raise ValueError("compressed")
        file.seek(0)
        with np.load(file, allow_pickle=False) as given:
            facts = json.loads(given["facts"].tobytes())
            if facts["format"] != _FORMAT:
                return {}
            arrays = {name: given[name] for name in (*_ARRAYS, "digest")}
    if not np.array_equal(arrays["digest"], _digest(arrays)):
        raise ValueError("arrays of another digest")
    if any((arrays[name].dtype, arrays[name].ndim) != (np.int64, 1) for name in _COLUMNS):
        raise ValueError("places that are no numbers")
    _check_texts(facts["labels"])
    keys: list[Any] = arrays["keys"].tobytes().decode("utf-8", "surrogateescape").split("\0")
    columns = [arrays[name].tolist() for name in _COLUMNS]
    offsets, sizes, labels = columns
    if len({len(column) for column in columns}) > 1 or len(keys) != max(len(offsets), 1):
        raise ValueError("columns of several lengths")
    if arrays["looks"].shape != (len(offsets), CHECK_BYTES) or arrays["looks"].dtype != np.uint8:
        raise ValueError("checks of another shape")
    if offsets and min(*offsets, *sizes, 1 + min(labels)) < 0:
        raise ValueError("negative places")
    texts: list[str | None] = [*facts["labels"], None]  # the last for -1
    rows = [Row(*each) for each in zip(keys, (texts[label] for label in labels), offsets, sizes, strict=False)]
    found, start = {}, 0
    for shard in facts["shards"]:
        name, stamp, count = shard.pop("name"), shard.pop("stamp"), shard.pop("count")
        names = shard.pop("class_names")
        beside = itertools.chain(*shard["names_beside"].values())
        _check_texts([name, stamp, shard["schema"], *(names or ()), *shard["hidden"], *shard["unread"], *beside])
        own_rows = rows[start : start + count]
        size = int(stamp.split()[0])
        if count < 0 or any(row.offset + row.size > size for row in own_rows if not shard["copied"]):
            raise ValueError("places outside of the shard")
        checks = arrays["looks"][start : start + count]
        own = Rows(own_rows, class_names=names and tuple(names), checks=checks, **shard)
        found[name], start = (stamp, own), start + count
    if start != len(rows):
        raise ValueError("rows of no shard")
    return found


def _check_texts(found: Any) -> None:
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError("no list of texts")
