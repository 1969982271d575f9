"""Checkpoints in several files: an index in JSON says which tensor is in which shard, all in one folder.

Index and shards must agree in every name, so that no shard of another checkpoint is taken, and none is left out.

Source: transformers, "Sharded checkpoints".
"""

import collections
import dataclasses
import os
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from keras_vit.files import parse_json, read_regular
from keras_vit.pages.formatting import printable
from keras_vit.weights.read import CheckpointError, TensorFile, scan
from keras_vit.weights.read.headers import LARGEST_DIRECTORY, Entry

INDEX = ".index.json"  # how the name of an index ends
_SHARD = re.compile(r"(\w[\w.-]*)\.(safetensors|bin)", re.ASCII)  # in the folder of the index, and nowhere else
_PART = re.compile(r".*-\d{5}-of-(\d{5})\.\w+")
_MOST_SHARDS = 1000  # each is kept open
_WHOLE = "Bring all files of the checkpoint again"


@dataclasses.dataclass(frozen=True, eq=False)
class ShardedFile:
    """The arrays of all shards, as a `TensorFile` has those of one file.

    Attributes:
        path: of the index.
        kind: of the shards, `"safetensors"` or `"torch"`.
        entries: `{name: Entry}` of all arrays.
        note: empty, since this package writes no index.
    """

    path: Path
    kind: str
    entries: dict[str, Entry]
    _shards: dict[str, TensorFile] = dataclasses.field(repr=False)  # by the name of an array
    note: dict = dataclasses.field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        return sum(path.stat().st_size for path in {shard.path for shard in self._shards.values()})

    def read(
        self,
        names: Iterable[str] | None = None,
        *,
        void_is_bfloat16: bool = False,
        allow_nonfinite: bool = False,
        integers: bool = False,
    ) -> dict[str, np.ndarray]:
        """Arrays by name; arguments and errors are those of `TensorFile.read`."""
        names = list(self.entries if names is None else names)
        if lacking := [name for name in names if name not in self._shards]:
            raise CheckpointError(f"the shards hold no array {lacking[0]!r}.\nReceived: {self.path}.")
        by_shard: dict[Path, list[str]] = collections.defaultdict(list)
        for name in names:
            by_shard[self._shards[name].path].append(name)
        flags = {"void_is_bfloat16": void_is_bfloat16, "allow_nonfinite": allow_nonfinite, "integers": integers}
        found = {k: v for part in by_shard.values() for k, v in self._shards[part[0]].read(part, **flags).items()}
        return {name: found[name] for name in names}

    def without_checksums(self) -> "ShardedFile":
        """As `TensorFile.without_checksums`."""
        found = {shard.path: shard.without_checksums() for shard in self._shards.values()}
        return dataclasses.replace(self, _shards={name: found[shard.path] for name, shard in self._shards.items()})

    def check(self) -> None:
        """Compares the checksums of every shard that has some; raises as `TensorFile.check`."""
        for shard in {shard.path: shard for shard in self._shards.values()}.values():
            shard.check()


def scan_any(path: str | os.PathLike) -> TensorFile | ShardedFile:
    """Checks a file, or the index of a checkpoint in several files and all of them.

    Raises:
        FileNotFoundError: if there is no such file.
        CheckpointError: as `scan`; also if index and shards differ in a name, or a shard is missing or elsewhere.
    """
    path = Path(path)
    if not path.name.endswith(INDEX) or not path.is_file():
        return scan(path)
    shards = {}
    for name, expected in read_index(path).items():
        shards[name] = _shard(path, name, expected)
    if len(kinds := {shard.kind for shard in shards.values()}) > 1:
        raise _error(path, f"shards must be of one kind, and these are {' and '.join(sorted(kinds))}")
    places = {name: shard for shard in shards.values() for name in shard.entries}
    entries = {name: shard.entries[name] for name, shard in places.items()}
    return ShardedFile(path, kinds.pop(), entries, places)


def check_whole(path: Path) -> None:
    """Raises for one shard of several, by its name.

    Raises:
        CheckpointError: for a name as `model-00001-of-00003.safetensors`.
    """
    part = _PART.fullmatch(path.name)
    if part is not None and int(part[1]) > 1 and path.is_file():
        raise CheckpointError(
            f"a checkpoint must be whole, and this file is one shard of {int(part[1])}.\n"
            f"Received: {path}. Pass its folder, in which an index (`model.safetensors{INDEX}`) names all of them."
        )


def read_index(index: Path) -> dict[str, set[str]]:
    """The names of the arrays in each shard, by the index."""
    try:
        content = parse_json(read_regular(index, 4 * LARGEST_DIRECTORY))
    except (ValueError, RecursionError, OSError) as error:
        raise _error(index, f"the index of shards must be readable JSON: {printable(error)[:200]}") from error
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict) or not places:
        raise _error(index, "the index of shards must have a `weight_map` from names of arrays to files")
    listed: dict[str, set[str]] = collections.defaultdict(set)
    for name, file in places.items():
        if not isinstance(file, str) or not _SHARD.fullmatch(file):
            raise _error(
                index, f"a shard must be a .safetensors or .bin file in the folder of its index: {file!r:.100}"
            )
        listed[file].add(name)
    if len(listed) > _MOST_SHARDS:
        raise _error(index, f"an index may list {_MOST_SHARDS} shards, and has {len(listed)}")
    return listed


def _shard(index: Path, file: str, expected: set[str]) -> TensorFile:
    """A shard, if it holds what the index says."""
    path = index.with_name(file)
    if not path.exists():
        raise _error(index, f"the shard {file!r} of the index is missing")
    shard = scan(path)
    if extra := sorted(shard.entries.keys() - expected):
        raise _error(index, f"{extra[0]!r} is in the shard {file!r}, where the index does not have it")
    if lacking := sorted(expected - shard.entries.keys()):
        raise _error(index, f"{lacking[0][:200]!r} is not in the shard {file!r}, where the index has it")
    return shard


def _error(index: Path, rule: str) -> CheckpointError:
    return CheckpointError(f"{rule}.\nReceived: {index}. {_WHOLE}.")
