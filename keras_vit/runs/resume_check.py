"""What is in the folder of a new run: nothing, a run that can resume, or files that must not be lost."""

import dataclasses
import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError
from keras_vit.config.recipes import Recipe
from keras_vit.config.variants import ResNetConfig
from keras_vit.config.vit import RECORDS
from keras_vit.data.augmentation import Augmentation
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.runs.finished_runs import ELSEWHERE, find_longer
from keras_vit.runs.options import FinetuneOptions
from keras_vit.runs.run_directory import check_free, json_ready
from keras_vit.runs.run_files import (
    BEST,
    CHECKPOINTS,
    CONFIG,
    LAST,
    REPORT,
    RESULT,
    archive_fault,
    check_replaceable,
    foreign_file_error,
    is_begun,
    is_finished,
    read_config,
    read_stamp,
)
from keras_vit.training.hosts.distribution import shared_run_dir
from keras_vit.training.resuming.async_writer import differences
from keras_vit.training.resuming.checkpoint_folder import Checkpoint, CheckpointFolder

_MACHINE = ("python", "platform")  # versions that do not decide numbers
# Facts of the data that change where they are moved as a whole, and those of files that nothing is trained on.
_NOT_TRAINED_ON = ("name", "bad_images", "ignored_files", "ignored_kinds", "ignored_examples")
_MODEL_RECORDS = (*RECORDS.values(), ResNetConfig)
_DEFAULTED = {"model": _MODEL_RECORDS, "preprocessing": (Preprocessing,), "recipe": (Recipe,)}
_DEFAULTED |= {"augmentation": (Augmentation,), "arguments": (FinetuneOptions,)}
_COMPARED = [
    *("seed", "precision", "data", "data_hash", "measured_on", "input_shape", "model", "preprocessing"),
    *("recipe", "plan", "image_sizes", "augmentation"),
]
_LENGTHS = {"arguments": ("steps", "epochs"), "plan": ("steps", "epochs", "steps_per_epoch")}


@dataclasses.dataclass(frozen=True)
class UnfinishedRun:
    """A run that goes on.

    Attributes:
        config: what its `config.json` holds; empty if that is gone.
        is_finished: whether it came to its end, and is trained for longer.
    """

    config: dict[str, Any]
    is_finished: bool = False

    def plan(self, options: FinetuneOptions) -> dict[str, int] | None:
        """Numbers of its plan; `None` where they are not known, and of one whose length was asked for otherwise."""
        if not self.config:
            return None
        plan, arguments = self.config["plan"], self.config["arguments"]
        names = ("steps", "epochs", "steps_per_epoch", "warmup_steps", "accumulation_steps")
        begun = {name: plan.get(name) for name in names}
        is_well = all(type(value) is int for value in begun.values()) and begun["steps_per_epoch"] > 0
        is_of_it = self.is_finished or all(arguments.get(name) == getattr(options, name) for name in names[:2])
        return begun if is_well and is_of_it else None


def find_earlier(out: FilePath, options: FinetuneOptions) -> UnfinishedRun | None:
    """The run in a folder that goes on, or is made longer; of several processes the first one decides.

    Raises:
        ValueError: as `find_longer` and `find_unfinished`.
    """
    if Path(out) != shared_run_dir(out):
        return find_unfinished(out, "auto")
    longer = find_longer(out, options)
    return UnfinishedRun(longer, True) if longer else find_unfinished(out, options.resume)


def find_unfinished(out: FilePath, resume: str) -> UnfinishedRun | None:
    """The unfinished run in a folder that may go on, or `None` for a folder that is free.

    Raises:
        ValueError: for a folder that is neither, as of a finished run; and where `resume` does not allow it.
    """
    path = Path(out)
    if not _is_unfinished(path):
        if resume == "must":
            _refuse_to_start(path)
        check_free(path)
        return None
    if resume == "never":
        raise ArgumentError(
            '`out` must be new or empty with `resume="never"`.\n'
            f"Received: {str(out)!r}, an unfinished run. Leave `resume` out to go on with it, or choose another one.",
        )
    config = read_unfinished_config(path)
    check_replaceable(path, config)
    return UnfinishedRun(config)


def _is_unfinished(path: Path) -> bool:
    """Whether a run of this package can go on here: it has a checkpoint, or was killed before its first."""
    if is_finished(path) or not (path / CHECKPOINTS).is_dir():
        return False
    has_checkpoint = bool(CheckpointFolder(path / CHECKPOINTS).names())
    has_ended = any(os.path.lexists(path / name) for name in (RESULT, REPORT))
    return has_checkpoint or (is_begun(path) and not has_ended)


def check_resumed(out: FilePath, found: Checkpoint | None, resume: str, earlier: UnfinishedRun | None) -> None:
    """Raises a `ValueError` if a run cannot go on from the checkpoint `found` in its folder, if there is one."""
    path = Path(out)
    if found is None and resume == "must":
        _refuse_to_start(path)
    if found is None and earlier is not None and not earlier.config:
        raise ArgumentError(
            "`out` of an unfinished run must have its configuration or a valid checkpoint.\n"
            f"Received: {str(path)!r}, which has neither. Choose another folder, or remove this one."
        )
    state: dict[str, Any] = found.facts["also"][0] if found else {}  # of the recorder
    are_signed = "mark" in state or found is None  # those of an earlier version are not
    for name in (LAST, BEST) if state.get("best_epoch") is None else (LAST,):
        if os.path.lexists(path / name) and are_signed and read_stamp(path / name) is None:
            raise foreign_file_error(path / name)
    if found is not None and (fault := _fault_of_best(path / BEST, state, found.facts["epoch"])):
        raise ArgumentError(
            "`out` of an unfinished run must have the best model that it has written, which it measures at its end.\n"
            f"Received: {str(path / BEST)!r}, {fault}. Put it back, choose another folder, or remove this one."
        )


def _fault_of_best(file: Path, state: dict[str, Any], epoch_now: int) -> str | None:
    """What is wrong with the best model, in a few words, or `None`."""
    wanted = state["best_epoch"]
    if wanted is None:
        return None
    if (fault := archive_fault(file)) or "mark" not in state:
        return fault
    mark, epoch = read_stamp(file) or ("", 0)
    if mark != state["mark"]:
        return "which is not of this run"
    # A process that was killed between a model and its checkpoint has left that of an epoch that comes again.
    if epoch != wanted and epoch <= epoch_now:
        return f"which is of epoch {epoch}, where epoch {wanted} was the best"
    return None


def resume_fingerprint(configuration: dict, earlier: UnfinishedRun | None = None) -> dict[str, Any]:
    """The part of `config.json` that decides the numbers, with which a run must go on.

    Of the run `earlier` that goes on it is no difference where its data lay, which files did not count, and a field
    that records have got since and that has its default.
    """
    stored = json_ready(configuration)
    if earlier and earlier.config:
        stored = _with_original_facts(stored, earlier.config)
    arguments = {name: value for name, value in stored["arguments"].items() if name not in ELSEWHERE}
    versions = {name: value for name, value in stored["versions"].items() if name not in _MACHINE}
    return {"options": arguments, "versions": versions} | {name: stored.get(name) for name in _COMPARED}


def _with_original_facts(stored: dict[str, Any], begun: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the facts that a run was begun with, where they decide no number."""
    data = {name: value for name, value in stored["data"].items() if name not in _NOT_TRAINED_ON}
    data |= {name: begun["data"][name] for name in _NOT_TRAINED_ON if name in begun["data"]}
    known = stored | {"data": data}
    for name, records in _DEFAULTED.items():
        if isinstance(begun.get(name), dict):
            defaults = _defaults(records)
            known[name] = {
                field: value
                for field, value in stored[name].items()
                if field in begun[name] or field not in defaults or value != defaults[field]
            }
    return known


def _defaults(records: Iterable[type]) -> dict[str, Any]:
    """Of the fields of records that have a default, that default, as JSON has it."""
    found: dict[str, Any] = {}
    for field in itertools.chain.from_iterable(map(dataclasses.fields, records)):
        if field.default is not dataclasses.MISSING:
            found[field.name] = json_ready(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = json_ready(field.default_factory())
    return found


def check_unchanged(out: FilePath, earlier: UnfinishedRun | None, configuration: dict) -> None:
    """Raises a `ValueError` with the differences unless the run in `out` began with this configuration."""
    if earlier is None or not earlier.config:
        return
    before = dict(earlier.config)
    if earlier.is_finished:  # it has other steps and epochs now
        for name, fields in _LENGTHS.items():
            before[name] = before[name] | {field: configuration[name][field] for field in fields}
    found = differences(resume_fingerprint(before), resume_fingerprint(configuration, earlier))
    found += _changed_types(before, json_ready(configuration))
    if found:
        counts = [_count_photos(config) for config in (earlier.config, configuration)]
        is_other = None not in counts and any(line.startswith(("data_hash:", "data.")) for line in found)
        data = "whose data have changed: {} photos when it began, {} now. It ".format(*counts) if is_other else "which "
        raise ValueError(
            "an unfinished run goes on only with the options, data and versions that it began with.\n"
            f"Received: {str(out)!r}, {data}differs in:\n  "
            + "\n  ".join(found)
            + "\nGive the options that it began with, choose another folder, or remove this one."
        )


def _count_photos(config: dict[str, Any]) -> str | None:
    """The photos of all splits of a configuration; `None` of one without sizes."""
    data = config.get("data")
    sizes = data.get("sizes") if isinstance(data, dict) else None
    counts = [*sizes.values()] if isinstance(sizes, dict) else []
    return f"{sum(counts):,}" if counts and all(type(count) is int for count in counts) else None


def _changed_types(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """A line for each fact that is of another kind than a run writes it, as a text for a record."""
    kinds = {name: (type(before[name]).__name__, type(value).__name__) for name, value in now.items() if name in before}
    return [f"{name}: {was} before, {is_now} now" for name, (was, is_now) in kinds.items() if was != is_now]


def read_unfinished_config(path: Path) -> dict[str, Any]:
    """What an unfinished run was asked for; nothing if its folder has no such file, and a `ValueError` if not valid."""
    file = path / CONFIG
    if not os.path.lexists(file):
        return {}
    try:
        return read_config(file)
    except ValueError as error:
        raise ArgumentError(
            "`out` of an unfinished run must have a configuration that can be read.\n"
            f"Received: {str(file)!r}: {error}. Choose another folder, or remove this one."
        ) from error


def _refuse_to_start(path: Path) -> NoReturn:
    stands = "where there is none. Leave `resume` out to start one."
    if (path / RESULT).exists():
        stands = "a run that has finished. Its figures are in result.json; choose another folder to start one."
    raise ArgumentError(
        f'`resume="must"` needs an unfinished run with a valid checkpoint.\nReceived: {str(path)!r}, {stands}',
    )
