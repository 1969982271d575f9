"""What stands in the folder that a run is to write: nothing, a run that can go on, or what must not be lost."""

import dataclasses
import re
from pathlib import Path
from typing import Any, NoReturn

from keras_vit.annotations import FilePath
from keras_vit.checks import error_about
from keras_vit.exporting.staging import sweep
from keras_vit.files import json_object
from keras_vit.runs.options import FinetuneOptions
from keras_vit.runs.run_directory import CHECKPOINTS, CONFIG, FAILURE, RESULT, RunDirectory, check_free, plain
from keras_vit.training.resuming.writing import differences

_MOST_BYTES = 1 << 26  # of a configuration; the names of 21,843 classes take 1 MB
# Options that decide when and where, but no number of the result.
_ELSEWHERE = ("data", "out", "strategy", "layout", "resume", "checkpoint_minutes", "checkpoint_every")
_MACHINE = ("python", "platform")  # versions that do not either
_COMPARED = [
    *("seed", "precision", "data", "data_hash", "measured_on", "input_shape", "model", "preprocessing"),
    *("recipe", "plan", "image_sizes", "augmentation"),
]
_PART = re.compile(r"\w+\.(json|txt|csv|keras|html|png|md)[a-z0-9_]{8}\.part(\.\w+)?")  # as `replacing` names them


@dataclasses.dataclass(frozen=True)
class EarlierRun:
    """An unfinished run.

    Attributes:
        config: what its `config.json` holds; empty if it was killed before that was written.
    """

    config: dict[str, Any]


def find_earlier(out: FilePath, resume: str) -> EarlierRun | None:
    """The unfinished run in a folder that may go on, or `None` for a folder that is free.

    Args:
        out: the folder.
        resume: as in `FinetuneOptions`.

    Raises:
        ValueError: for a folder that is neither, as of a finished run; where `resume` allows it not.
    """
    path = Path(out)
    unfinished = (path / CHECKPOINTS).is_dir()
    if unfinished and resume != "never":
        return EarlierRun(config_of(path))
    if resume == "must":
        _refuse_to_start(path)
    if unfinished:
        raise error_about("out", "resume")(
            '`out` must be new or empty with `resume="never"`.\n'
            f"Received: {str(out)!r}, an unfinished run. Leave `resume` out to go on with it, or choose another folder."
        )
    check_free(path)
    return None


def check_resumed(out: FilePath, found: Any, resume: str) -> None:
    """Raises a `ValueError` if a run must go on and there is no checkpoint, `found`, to go on from."""
    if found is None and resume == "must":
        _refuse_to_start(Path(out))


def as_begun(options: FinetuneOptions, earlier: EarlierRun | None) -> FinetuneOptions:
    """The options, with the micro-batches that the run began with where the free memory has chosen them."""
    begun = earlier.config.get("plan", {}).get("accumulation_steps") if earlier else None
    if begun is None or options.accumulation_steps is not None or options.batch_size is not None:
        return options
    return dataclasses.replace(options, accumulation_steps=begun)


def fingerprint_of(configuration: dict) -> dict[str, Any]:
    """The part of `config.json` that decides the numbers, with which a run must go on."""
    said = plain(configuration)
    arguments = {name: value for name, value in said["arguments"].items() if name not in _ELSEWHERE}
    versions = {name: value for name, value in said["versions"].items() if name not in _MACHINE}
    return {"options": arguments, "versions": versions} | {name: said.get(name) for name in _COMPARED}


def check_same(out: FilePath, earlier: EarlierRun, configuration: dict) -> None:
    """Raises a `ValueError` with the differences unless the run in `out` began with this configuration."""
    if not earlier.config:
        return
    found = differences(fingerprint_of(earlier.config), fingerprint_of(configuration))
    if found:
        raise ValueError(
            "an unfinished run goes on only with the options, data and versions that it began with.\n"
            f"Received: {str(out)!r}, which differs in\n  "
            + "\n  ".join(found)
            + "\nChoose another folder, ask for what it began with, or remove it."
        )


def sweep_leftovers(run: RunDirectory) -> None:
    """Removes what killed processes left in a run's folder, which this process alone writes to."""
    for path in run.path.iterdir():
        if _PART.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)
    sweep(run.path)
    (run.path / FAILURE).unlink(missing_ok=True)


def config_of(path: Path) -> dict[str, Any]:
    """What an unfinished run was asked for, in its folder; nothing if it was killed before it wrote that.

    Raises:
        ValueError: if it cannot be read.
    """
    file = path / CONFIG
    if not file.exists():
        return {}
    try:
        return json_object(file, _MOST_BYTES)
    except ValueError as error:
        raise ValueError(
            "an unfinished run goes on if its configuration can be read.\n"
            f"Received: {str(file)!r}: {error}. Choose another folder, or remove this one."
        ) from error


def _refuse_to_start(path: Path) -> NoReturn:
    stands = "where there is none. Leave `resume` out to start one."
    if (path / RESULT).exists():
        stands = "a run that has finished. Its figures are in result.json; choose another folder to start one."
    raise error_about("resume")(
        f'`resume="must"` needs an unfinished run with a valid checkpoint.\nReceived: {str(path)!r}, {stands}'
    )
