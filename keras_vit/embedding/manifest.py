"""The options of a job, which never change: each of its parts has the fingerprint of these."""

import dataclasses
import hashlib
import io
import json
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from keras_vit.checks import ArgumentError
from keras_vit.embedding.loaders import ENGINE_FILE, OUTPUTS
from keras_vit.files import atomic_write, json_object, open_regular
from keras_vit.pages.formatting import plural, printable
from keras_vit.version import __version__

MANIFEST = "manifest.json"
_KIND = "an embedding of photos, 1"
_MOST_BYTES = 1 << 26  # of a job with some 500,000 shards
_MOST = 10**11  # photos whose list a job reads: 16 GiB of lines
_COUNT = (f"an integer of 1 to {_MOST:,}", lambda value: type(value) is int and 1 <= value <= _MOST)
_TEXT = ("a text", lambda value: isinstance(value, str))
_DIGEST = ("64 hexadecimal digits", lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value))
# What fields must be: by their types, and by their names.
_OF_TYPES = {int: _COUNT, str: _TEXT, bool: ("true or false", lambda value: isinstance(value, bool))}
_OF_TYPES[dict[str, Any]] = ("an object", lambda value: isinstance(value, dict))
_OF_NAMES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "form": ("parquet or npz", lambda value: value in ("parquet", "npz")),
    "outputs": (f"one of {', '.join(OUTPUTS)}", lambda value: value in OUTPUTS),
    "file": (ENGINE_FILE, lambda value: value == ENGINE_FILE),
    "top": ("a path", lambda value: isinstance(value, str) and "\0" not in value),
    "shards": ("an object of two integers for each shard", lambda value: _are_states(value)),
}


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A job, ready for JSON.

    Attributes:
        photos: how many there are.
        photos_sha256: of their list.
        part: photos of a part, but for the last.
        form: `"parquet"` or `"npz"`.
        outputs: the name of the columns' vectors.
        width: numbers of a vector.
        model: as given.
        model_sha256: of its files.
        engine: that computes, with `precision` and `threads`.
        batch_size: photos that the engine gets at once, always as many.
        preprocessing: fields of the record, with their digest in `preprocessing_sha256`.
        file: name of the file that the engine opens, in the job's folder; `None` for the model itself.
        file_sha256: of that file.
        software: of the engine, with its version.
        keras_vit: the version that started it.
        before_projection: whether vectors are features before the projection of an image tower, which no text is
            compared with; `None` of earlier versions.
        top: the folder from which the photos' paths count, where the job began; `None` of earlier versions.
        shards: size and `st_mtime_ns` of each shard when the job began, by its path; `None` of earlier versions.
    """

    photos: int
    photos_sha256: str
    part: int
    form: str
    outputs: str
    width: int
    model: str
    model_sha256: str
    engine: str
    precision: str | None
    threads: int
    batch_size: int
    preprocessing: dict[str, Any]
    preprocessing_sha256: str
    file: str | None
    file_sha256: str | None
    software: str
    keras_vit: str = __version__
    weights: str | None = None
    top: str | None = None
    before_projection: bool | None = None
    shards: Mapping[str, Sequence[int]] | None = None

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides the rows."""
        facts = dataclasses.asdict(self)
        of_no_row = ("model", "keras_vit", "file", "file_sha256", "top", "before_projection", "shards")
        for name in of_no_row:  # names, and what follows from the model
            del facts[name]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return -(-self.photos // self.part)

    def rows(self, number: int) -> range:
        """The rows of a part."""
        return range(number * self.part, min((number + 1) * self.part, self.photos))

    def name(self, number: int) -> str:
        """The file of a part."""
        return f"part-{number:05d}.{self.form}"

    def describe(self, number: int) -> str:
        """A part in words, as `part-00012.parquet (rows 12,000 to 12,999)`."""
        rows = self.rows(number)
        return f"{self.name(number)} (rows {rows[0]:,} to {rows[-1]:,})"

    def describe_changed(self, states: Mapping[str, Sequence[int]]) -> list[str]:
        """A line about shards that have changed since the job began, if there are any.

        Args:
            states: of shards now; those that are gone are left out.
        """
        known = self.shards or {}
        changed = sorted(file for file, state in states.items() if file in known and [*known[file]] != [*state])
        if not changed:
            return []
        return [
            f"{plural(len(changed), 'shard')} of another size or time than when the job began, as "
            f"{printable(changed[0])}: if its photos changed, embed them into another folder"
        ]

    def write(self, folder: Path) -> None:
        """Writes `folder/manifest.json`."""
        text = json.dumps({"keras_vit_embedding": _KIND} | dataclasses.asdict(self), indent=2)
        with atomic_write(folder / MANIFEST) as part:
            Path(part).write_text(f"{text}\n", encoding="utf-8")

    def check(self, requested: dict[str, Any]) -> None:
        """Raises a `ValueError` unless the options are those that the job started with; `None` is any value.

        Args:
            requested: values by the names of fields.
        """
        for name, value in requested.items():
            if value is None or (name == "engine" and value == "auto") or getattr(self, name) == value:
                continue
            option = "--format" if name == "form" else f"--{name.replace('_', '-')}"
            raise ArgumentError(
                "a job resumes with the options that it started with, so that all rows are alike.\n"
                f"Received: {option} {value}, and {getattr(self, name)} in the manifest. Leave {option} out, or choose "
                "another folder.",
                parameters=("out",),
            )


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a job.

    Raises:
        ValueError: if it is missing, damaged, or of something else.
    """
    path = folder / MANIFEST
    if not os.path.lexists(path):
        what = f"without a {MANIFEST}, so of no job" if os.path.lexists(folder) else "where nothing is"
        raise ArgumentError(
            "the folder must be that of a job, which `keras-vit embed` wrote.\n"
            f"Received: {printable(folder)}, {what}. Pass the `--out` of a job.",
            parameters=("out",),
        )
    try:
        facts = json_object(path, _MOST_BYTES)
        if facts.pop("keras_vit_embedding", None) != _KIND:
            raise ValueError("the file must be one of `keras-vit embed`.\nReceived: something else")
        return _from_facts(facts)
    except (ValueError, TypeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ArgumentError(
            "the folder must be that of a job, with its manifest as it was written.\n"
            f"Received: {printable(path)}: {reason}. Move it away, or choose another folder.",
            parameters=("out",),
        ) from None


def _from_facts(facts: dict[str, Any]) -> Manifest:
    """A manifest whose fields are there and of their types."""
    found = Manifest(**facts)
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        kinds: list[Any] = [field.type]
        if isinstance(field.type, types.UnionType):
            kinds = [*typing.get_args(field.type)]
        rule = _DIGEST if field.name.endswith("_sha256") else _OF_NAMES.get(field.name) or _OF_TYPES[kinds[0]]
        if not (rule[1](value) or (value is None and types.NoneType in kinds)):
            raise ValueError(f"`{field.name}` must be {rule[0]}.\nReceived: {value!r:.80}")
    if (found.file is None) != (found.file_sha256 is None):
        raise ValueError("`file` must have its `file_sha256`.\nReceived: one without the other")
    return found


def _are_states(value: Any) -> bool:
    states = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(state, list) and [*map(type, state)] == [int, int] for state in states)


def files_sha256(paths: list[Path]) -> str:
    """One digest of the bytes of files, in their order."""
    found = hashlib.sha256()
    for path in paths:
        with open_regular(path) as file:
            found.update(hashlib.file_digest(cast(io.BufferedReader, file), "sha256").digest())
    return found.hexdigest()
