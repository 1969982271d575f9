"""The folder of a run's checkpoints: each is written under a temporary name, renamed when whole, and checked when read.

A checkpoint is a folder with a file of arrays from each process and a manifest, which comes last and has checksums of
all. Kills leave folders of another name, which the next run removes.
"""

import contextlib
import dataclasses
import json
import os
import re
import time
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.files import expand_path, flush_folder, lock_dir, read_head, read_regular, unlock
from keras_vit.training.resuming.tensor_file import Shard, find_damage, read_shard, write_shards

_FORMAT = "keras-vit-checkpoint/1"
MANIFEST = "manifest.json"
_PART, _OLD = ".part-", ".old-"  # what is being written, what is being removed
_NAME = re.compile(r"step-(\d{10})-epoch-(\d{6})")
_LEFT = re.compile(rf"({re.escape(_PART)}|{re.escape(_OLD)}){_NAME.pattern}(-\w+)?")  # by kills
_FILE = re.compile(r"process-\d{5}\.(safetensors|json|part)|manifest\.(json|part)")  # of a checkpoint
_ARRAYS = re.compile(r"process-\d{5}\.safetensors")
_MOST_BYTES = 1 << 28  # of a manifest; that of g/14 has some 1 MB
_HOLDERS: dict[str, "CheckpointFolder"] = {}  # what is locked by this process
_WAIT = 600  # seconds for the files of other processes


@dataclasses.dataclass(frozen=True, eq=False)
class Checkpoint:
    """A checkpoint whose every byte is as it was written.

    Attributes:
        path: its folder.
        facts: what was saved besides the variables, as JSON has it.
        variables: of each variable by name its shards, with the file of each.
    """

    path: Path
    facts: dict[str, Any]
    variables: dict[str, list[dict[str, Any]]]

    def read(self, name: str, index: tuple[slice, ...] | None = None) -> np.ndarray:
        """The values of a variable, or of the part at `index`; several processes may have written it."""
        shards = self.variables[name]
        if len(shards) == 1 and index is None:
            return self._values(shards[0])
        shape = np.max([np.add(shard["start"], shard["shape"]) for shard in shards], axis=0)
        wanted = [
            part.indices(size)[:2] for part, size in zip(index or (slice(None),) * len(shape), shape, strict=True)
        ]
        found: Any = None
        for shard in shards:
            ends = zip(shard["start"], np.add(shard["start"], shard["shape"]), wanted, strict=True)
            both = [(max(start, low), min(stop, high)) for start, stop, (low, high) in ends]
            if all(low < high for low, high in both):
                values = self._values(shard)
                found = np.empty([high - low for low, high in wanted], values.dtype) if found is None else found
                into = tuple(slice(a - low, b - low) for (a, b), (low, _) in zip(both, wanted, strict=True))
                out_of = tuple(slice(a - at, b - at) for (a, b), at in zip(both, shard["start"], strict=True))
                found[into] = values[out_of]
        return found

    def _values(self, shard: dict[str, Any]) -> np.ndarray:
        return read_shard(self.path / shard["file"], shard)


class CheckpointFolder:
    """The checkpoints of one run.

    Args:
        path: of the folder, made where it is missing.
        keep: how many are kept, the newest.
        process: number of this process among `processes` that save together.
        processes: how many they are.
    """

    def __init__(self, path: Path, keep: int = 2, process: int = 0, processes: int = 1) -> None:
        self.path = expand_path(path)
        self.keep = keep
        self.process, self.processes = process, processes
        self._damaged: set[str] = set()
        self._lock: int | None = None
        self._held = False

    def acquire(self) -> None:
        """Locks the folder.

        Raises:
            ValueError: if another process trains into it.
        """
        if self._held or self.process:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ValueError(
                "checkpoints need a folder.\n"
                f"Received: {str(self.path)!r}, which is a file, or a link to nothing. Choose another folder."
            ) from None
        place = os.path.realpath(self.path)
        if place in _HOLDERS:
            _HOLDERS[place].release()  # of a training in this process that ended in an error
        try:
            self._lock = lock_dir(place)
        except BlockingIOError:
            raise ValueError(
                "checkpoints of one run must be written by one run at a time.\n"
                f"Received: {str(self.path)!r}, into which another process trains. Wait for it, or pass another folder."
            ) from None
        self._held = True
        _HOLDERS[place] = self

    def release(self) -> None:
        """Lets another process have the folder."""
        unlock(self._lock)
        self._lock, self._held = None, False
        for place in [place for place, holder in _HOLDERS.items() if holder is self]:
            del _HOLDERS[place]

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is as it was written; damaged ones are named in a warning and skipped."""
        for name in reversed(self.names()):
            found, fault = _opened(self.path / name)
            if found is not None:
                return found
            self._damaged.add(name)
            warnings.warn(f"the checkpoint {self.path / name} is damaged and skipped: {fault}.", stacklevel=2)
        return None

    def opened(self, step: int, epoch: int) -> Checkpoint:
        """The checkpoint that another process has found valid; of its arrays each is checked as it is read.

        Raises:
            ValueError: if its manifest cannot be read here.
        """
        path = self.path / _name_of(step, epoch)
        found, fault = _opened(path, all_of_it=False)
        if found is None:
            raise ValueError(
                "every process must see the checkpoints of the first, as on a shared disk.\n"
                f"Received: {str(path)!r}: {fault}."
            )
        return found

    def save(self, shards: Iterable[Shard], facts: dict[str, Any], mark: str = "0") -> Path:
        """Writes one checkpoint: all of it, or nothing.

        Args:
            shards: those of this process.
            facts: ready for JSON, with the ints `step` and `epoch`; the same in every process.
            mark: the same in every process that saves, and another in each run, so that nobody waits for a file that
                a killed run left.

        Returns:
            Its folder.

        Raises:
            OSError: as on a full disk; what was there before is as it was.
            TimeoutError: if the file of another process does not come.
        """
        name = _name_of(facts["step"], facts["epoch"])
        part = self.path / f"{_PART}{name}-{mark}"
        try:
            part.mkdir(parents=True, exist_ok=self.processes > 1)
            file = part / f"process-{self.process:05d}.safetensors"
            record = write_shards(file, shards)
            if self.processes > 1:
                _write_json(part / f"{file.stem}.json", record)
            if self.process == 0:
                _write_json(part / MANIFEST, {"format": _FORMAT, "facts": facts, "files": self._files(part, record)})
                flush_folder(part)
                self._publish(part, self.path / name)
        except BaseException:
            if self.process == 0:
                _remove_checkpoint_files(part)
            raise
        return self.path / name

    def discard(self) -> None:
        """Removes the checkpoints, the newest last, and the folder; a link and other files stay.

        The first process does it.
        """
        if self.process:
            return
        self.sweep()
        for name in self.names():
            self._remove(name)
        self.release()
        with contextlib.suppress(OSError):  # of a link, and where something else is in it
            self.path.rmdir()

    def sweep(self) -> None:
        """Removes what killed runs left in the folder, which must be locked; elsewhere it may be another process'."""
        if self._lock is None:
            return
        for entry in os.scandir(self.path):
            if _LEFT.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                _remove_checkpoint_files(Path(entry.path))

    def names(self) -> list[str]:
        """Names of the checkpoints, also of damaged ones, the oldest first; folders of others are none."""
        if not self.path.is_dir():
            return []
        found = [entry for entry in os.scandir(self.path) if _NAME.fullmatch(entry.name) and entry.is_dir()]
        return sorted(entry.name for entry in found if _has_checkpoint_files(Path(entry.path)))

    def _files(self, part: Path, own: dict[str, Any]) -> dict[str, Any]:
        """What the manifest says of every process' file, once all are there."""
        files = {f"process-{self.process:05d}.safetensors": own}
        deadline = time.monotonic() + _WAIT
        for number in range(1, self.processes):
            path = part / f"process-{number:05d}.json"
            while (record := _read_json(path)[0]) is None:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"process {number} has not written its part of {part} in {_WAIT} s")
                time.sleep(0.02)
            files[f"{path.stem}.safetensors"] = record
        return files

    def _publish(self, part: Path, place: Path) -> None:
        if place.exists():  # damaged, or of a run that went on from an earlier one
            self._remove(place.name)
        os.rename(part, place)
        flush_folder(self.path)
        self._damaged.discard(place.name)
        for name in self._damaged & set(self.names()):
            self._remove(name)
        self._damaged.clear()
        for name in self.names()[: -self.keep]:
            self._remove(name)

    def _remove(self, name: str) -> None:
        """Removes a checkpoint, under another name first, so that no half of one is taken for a checkpoint.

        Other files in its folder stay where they are.
        """
        place, old = self.path / name, self.path / f"{_OLD}{name}"
        if place.is_symlink():
            return
        _remove_checkpoint_files(old)
        os.rename(place, old)
        _remove_checkpoint_files(old)
        if old.exists():
            os.rename(old, place)


def _has_checkpoint_files(folder: Path) -> bool:
    """Whether a folder by the name of a checkpoint has a file of one: arrays, or our manifest."""
    if _FORMAT.encode() in (read_head(folder / MANIFEST) or b""):
        return True
    return any(_ARRAYS.fullmatch(name) for name in os.listdir(folder))


def _remove_checkpoint_files(folder: Path) -> None:
    """Removes the files of a checkpoint, and their folder unless it has others."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            if _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                os.unlink(entry.path)
        os.rmdir(folder)


def _name_of(step: int, epoch: int) -> str:
    return f"step-{step:010d}-epoch-{epoch:06d}"


def _opened(path: Path, all_of_it: bool = True) -> tuple[Checkpoint | None, str | None]:
    """A `Checkpoint` and `None`, or `None` and what is wrong with it."""
    record, fault = _read_json(path / MANIFEST)
    if record is None or not _is_manifest(record, path.name):
        return None, fault or f"{MANIFEST} is of another format"
    variables: dict[str, list] = {}
    try:
        for name, facts in record["files"].items():
            if all_of_it and (fault := find_damage(path / name, facts)) is not None:
                return None, fault
            for shard in facts["pieces"]:
                variables.setdefault(shard["name"], []).append(shard | {"file": name})
    except (KeyError, TypeError, ValueError):  # of a manifest of another program
        return None, f"{MANIFEST} is of another format"
    return Checkpoint(path, record["facts"], variables), None


def _is_manifest(record: Any, name: str) -> bool:
    """Whether an object has what a manifest must have, and is that of the checkpoint of this name."""
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        return False
    facts, files = record.get("facts"), record.get("files")
    if not isinstance(facts, dict) or not isinstance(files, dict) or not all(map(_ARRAYS.fullmatch, files)):
        return False
    step, epoch = facts.get("step"), facts.get("epoch")
    return type(step) is int and type(epoch) is int and name == _name_of(step, epoch)


def _write_json(path: Path, record: Any) -> None:
    """An object with its checksum, under its name only when it is on the disk."""
    text = json.dumps(record, allow_nan=True)
    temporary = path.with_suffix(".part")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(f"{zlib.crc32(text.encode()):08x}\n{text}\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)


def _read_json(path: Path) -> tuple[Any, str | None]:
    """The object and `None`, or `None` and what is wrong."""
    try:
        checksum, _, text = read_regular(path, _MOST_BYTES).decode("utf-8").partition("\n")
    except FileNotFoundError:
        return None, f"{path.name} is not there"
    except (OSError, ValueError) as error:
        return None, f"{path.name} cannot be read ({getattr(error, 'reason', type(error).__name__)})"
    if not text.endswith("\n") or checksum != f"{zlib.crc32(text[:-1].encode()):08x}":
        return None, f"{path.name} is cut short or has changed"
    return json.loads(text), None
