"""The options of a job, which never change: each of its parts has the fingerprint of these."""

import dataclasses
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

from keras_vit.checks import ArgumentError, check_text, one_of, validate
from keras_vit.embedding.loaders import ENGINE_FILE, OUTPUTS
from keras_vit.files import atomic_write, json_object, open_regular
from keras_vit.images.photo_files import near_names
from keras_vit.pages.formatting import plural, printable
from keras_vit.version import __version__

MANIFEST = "manifest.json"
_KIND = "an embedding of photos, 1"
_MOST_BYTES = 1 << 26  # of a job with some 500,000 shards
_MOST = 10**11  # photos whose list a job reads: 16 GiB of lines
FORMS = ("parquet", "npz")


def _must_be(rule: str, fits: Callable[[Any], Any]) -> Callable[[str, Any], Any]:
    """A check of a field."""

    def check(name: str, value: Any) -> Any:
        if not fits(value):
            raise ValueError(f"`{name}` must be {rule}.\nReceived: {value!r:.80}")
        return value

    return check


def _are_states(value: Any) -> bool:
    states = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(state, (list, tuple)) and [*map(type, state)] == [int, int] for state in states)


_Text: TypeAlias = Annotated[str, check_text]
_Count: TypeAlias = Annotated[
    int, _must_be(f"an integer of 1 to {_MOST:,}", lambda value: type(value) is int and 1 <= value <= _MOST)
]
_Digest: TypeAlias = Annotated[
    str, _must_be("64 hexadecimal digits", lambda text: isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text))
]
_Path: TypeAlias = Annotated[str, _must_be("a path", lambda text: isinstance(text, str) and "\0" not in text)]
_Fields: TypeAlias = Annotated[dict[str, Any], _must_be("an object", lambda value: isinstance(value, dict))]
_States: TypeAlias = Annotated[
    Mapping[str, Sequence[int]], _must_be("an object of two integers for each shard", _are_states)
]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """A job, ready for JSON; the last three fields are `None` of earlier versions."""

    photos: _Count
    photos_sha256: _Digest  # of their list
    part: _Count  # photos of a part, but for the last
    form: Annotated[str, one_of(FORMS)]
    outputs: Annotated[str, one_of(OUTPUTS)]  # the name of the columns' vectors
    width: _Count  # numbers of a vector
    model: _Text  # as given
    model_sha256: _Digest  # of its files
    engine: _Text
    precision: _Text | None
    threads: _Count
    batch_size: _Count  # photos that the engine gets at once, always as many
    preprocessing: _Fields  # of the record
    preprocessing_sha256: _Digest
    file: Annotated[str, one_of((ENGINE_FILE,))] | None  # that the engine opens; `None` for the model itself
    file_sha256: _Digest | None
    software: _Text  # of the engine, with its version
    keras_vit: _Text = __version__  # that started it
    weights: _Text | None = None
    top: _Path | None = None  # the folder from which the photos' paths count, where the job began
    # Whether vectors are features before the projection of an image tower, which no text is compared with.
    before_projection: bool | None = None
    shards: _States | None = None  # size and `st_mtime_ns` of each shard when the job began, by its path

    def __post_init__(self) -> None:
        validate(self)
        if (self.file is None) != (self.file_sha256 is None):
            raise ValueError("`file` must have its `file_sha256`.\nReceived: one without the other")

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
        """A line about shards whose states now are not those when the job began, if there are any."""
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
        """Raises a `ValueError` unless the fields are those that the job started with; `None` is any value."""
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
    """The manifest of a job; raises a `ValueError` if it is missing, damaged, or of something else."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        what = f"without a {MANIFEST}, so of no job" if os.path.lexists(folder) else "where nothing is"
        raise ArgumentError(
            "the folder must be that of a job, which `keras-vit embed` wrote.\n"
            f"Received: {printable(folder)}, {what}. Pass the `--out` of a job.{near_names(folder)}",
            parameters=("out",),
        )
    try:
        facts = json_object(path, _MOST_BYTES)
        if facts.pop("keras_vit_embedding", None) != _KIND:
            raise ValueError("the file must be one of `keras-vit embed`.\nReceived: something else")
        return Manifest(**facts)
    except (ValueError, TypeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ArgumentError(
            "the folder must be that of a job, with its manifest as it was written.\n"
            f"Received: {printable(path)}: {reason}. Move it away, or choose another folder.",
            parameters=("out",),
        ) from None


def files_sha256(paths: list[Path]) -> str:
    """One digest of the bytes of files, in their order."""
    found = hashlib.sha256()
    for path in paths:
        with open_regular(path) as file:
            found.update(hashlib.file_digest(cast(io.BufferedReader, file), "sha256").digest())
    return found.hexdigest()
