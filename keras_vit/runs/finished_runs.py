"""A finished run: its result for a command that is given again, and its data as it was trained on.

Job queues give a command again. Keras is not needed, so the answer comes at once; but for data that lie elsewhere now,
which are opened.
"""

import contextlib
import dataclasses
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError
from keras_vit.files import expand_path, json_object, remove_partial_files
from keras_vit.pages.formatting import plural, printable
from keras_vit.runs.load import RunFacts, read_facts
from keras_vit.runs.messages import encoder_lines, result_lines
from keras_vit.runs.options import FLAGS, FinetuneOptions, RunOptions
from keras_vit.runs.run_files import CHECKPOINTS, CONFIG, LAST, MOST_BYTES, RESULT, is_finished, read_config, read_stamp
from keras_vit.tasks import find_task

if TYPE_CHECKING:
    from keras_vit.data.source import Source
    from keras_vit.exporting.sample_photos import Photos

# Options that decide when and where, but no number of the result.
ELSEWHERE = ("data", "out", "strategy", "layout", "resume", "checkpoint_minutes", "checkpoint_every")
_FOUND = "auto"  # of an option that the machine decides; the run has written down how


def finished_lines(out: FilePath, data: Any, options: RunOptions) -> list[str] | None:
    """Lines on a finished run, or a self-supervised training, that was asked for just so; `None` without one.

    Raises:
        ValueError: if the run was asked for otherwise, with what differs; and if its data cannot be opened.
    """
    folder = Path(out)
    if options.resume == "never" or not is_finished(folder):
        return None
    supervised = isinstance(options, FinetuneOptions)
    if isinstance(options, FinetuneOptions) and find_longer(folder, options):
        return None
    try:
        result, config = _read_finished(folder)
        before = config["arguments"]
        if supervised:
            lines = result_lines(folder, result, find_task(result.get("task", config.get("task"))))
        else:
            lines = encoder_lines(folder, result)
    except (ValueError, TypeError, KeyError):  # not as a run writes it
        return None
    found = [line for _, line in _other_options(before, options)] or [
        *_other_data(folder, before.get("data"), data, supervised)
    ]
    if found:
        raise _other_error(out, found)
    return [f"{printable(folder)} has finished before, and nothing was changed", *lines]


def find_longer(out: FilePath, options: FinetuneOptions) -> dict[str, Any] | None:
    """The configuration of a finished run that is to be trained for more epochs or steps, and for nothing else.

    What the run has left is swept.

    Raises:
        ValueError: for one that cannot be, and for one of other options, with what differs.
    """
    folder = Path(out)
    if options.resume == "never" or not is_finished(folder):
        return None
    sweep_finished(folder)
    try:
        result, config = _read_finished(folder)
        plan, recipe = config["plan"], config["recipe"]
        longer = (options.epochs or 0) > plan["epochs"] or (options.steps or 0) > plan["steps"]
        others = dict(_other_options(config["arguments"], options))
        keeps_rate = recipe["schedule"] == "linear" and plan["final_learning_rate"] == plan["learning_rate"]
        keeps_rate |= recipe["schedule"] == "rsqrt" and not recipe["cooldown_steps"]
        keeps_size = len(config.get("image_sizes", ())) < 2
    except (ValueError, TypeError, KeyError):  # not as a run writes it
        return None
    if not others:
        return None
    if not longer or not others.keys() <= {"epochs", "steps"}:
        raise _other_error(out, others.values(), longer)
    faults = {
        f"whose learning rate falls up to its last step ({recipe['schedule']})": keeps_rate,
        "whose images grew up to its last epochs": keeps_size,
        "which was stopped early": "stopped" not in result,
        "whose devices shared the model": options.layout == "none",
        f"which has no {LAST} of it": read_stamp(folder / LAST) is not None,
    }
    if fault := next((fault for fault, is_well in faults.items() if not is_well), None):
        raise ArgumentError(
            f"a run {fault} cannot be made longer. Choose another `out`, to train from the beginning.\n"
            f"Received: {str(out)!r}, a finished run of {plural(result['epochs'], 'epoch')}; "
            f"{'; '.join(others.values())}."
        )
    return config


def _other_error(out: FilePath, found: Iterable[str], longer: bool = False) -> ArgumentError:
    """The error for a finished run of other options or data, with a line for each; `longer` where more are wanted."""
    return ArgumentError(
        "`out` is the folder of a finished run, and its command had other options.\n"
        f"Received: {str(out)!r}, a finished run, which differs in:\n  " + "\n  ".join(found) + "\n"
        "Choose another folder for a new run, or give the same options as before to see its result."
        + (" To make the run longer, change nothing but the number of epochs or steps." if longer else ""),
    )


def _read_finished(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return json_object(folder / RESULT, MOST_BYTES), read_config(folder / CONFIG)


def sweep_finished(folder: Path) -> None:
    """Removes what a process left that was killed after it had finished a run, as its checkpoints; other files stay."""
    remove_partial_files(folder)
    if not (folder / CHECKPOINTS).is_dir():
        return
    from keras_vit.training.resuming.checkpoint_folder import MANIFEST, CheckpointFolder

    checkpoints = CheckpointFolder(folder / CHECKPOINTS)
    if not all((checkpoints.path / name / MANIFEST).is_file() for name in checkpoints.names()):
        return  # somebody else's, since those of a finished run are whole
    with contextlib.suppress(ValueError, OSError):  # as of a process that has just finished it and sweeps itself
        checkpoints.acquire()
        checkpoints.discard()


def _other_options(before: Mapping[str, Any], options: RunOptions) -> Iterator[tuple[str, str]]:
    """Name and a line for each option that is not as it was; one that has come since was at its default."""
    defaults = {option.name: option.default for option in dataclasses.fields(options)}
    now_given = json.loads(json.dumps(options.facts(), default=str))
    for name, default in defaults.items():
        was, now = before.get(name, default), now_given.get(name, default)
        if name not in ELSEWHERE and now not in (_FOUND, was):
            yield name, f"{FLAGS[name]}: {_shown(was)} before, {_shown(now)} now"


def _other_data(folder: Path, was: Any, data: Any, supervised: bool) -> Iterator[str]:
    """A line if the data are not those of the run; if supervised, that other files and targets lie elsewhere now."""
    if was in (str(data), os.path.abspath(expand_path(str(data)))):
        return
    if not (
        supervised and isinstance(was, str) and os.path.isabs(was) and expand_path(str(data)).exists()
    ):  # one is no path
        yield f"--data: {_shown(was)} before, {_shown(data)} now"
        return
    run = read_facts(folder / CONFIG)
    if has_changed(run, _open_again(run, data)):
        yield f"--data: {_shown(was)} before, {_shown(os.path.abspath(expand_path(str(data))))} now, with other files"


def _open_again(run: RunFacts, data: Any) -> "Source":
    from keras_vit.data.opening import open_source

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of bad files, which the training has reported
        return open_source(data, seed=run.seed, targets=run.task.targets())


def _shown(value: Any) -> str:
    return "its default" if value is None else printable(f"{value!s:.80}")


def has_changed(run: RunFacts, source: "Source") -> bool:
    """Whether a source is known to have other data than the run had, or other splits.

    If so, test images may include images that the run was trained on.
    """
    from keras_vit.data.source import fingerprint

    if run.data_hash is None:
        return False
    try:
        return fingerprint(_as_trained(run, source)) != run.data_hash
    except (TypeError, ValueError):  # too few images for the subset, or none that could be one
        return True


def is_data_of(run: RunFacts, data: str, source: "Source") -> bool:
    """Whether data are those of a run: they lie where its data lay, or have the same files and targets."""
    place = None if run.data is None else os.path.realpath(expand_path(run.data))
    if place == os.path.realpath(expand_path(data)) or run.data == data:
        return True
    return run.data_hash is not None and not has_changed(run, source)


def calibration_photos(run: RunFacts) -> tuple["Photos", str]:
    """Training photos of a run, as `images` of `export` and `accelerate`, and words that say which they are.

    They are spread evenly over its training set; of a set of tensorflow-datasets they are the first. The photos are
    `None` where the data are missing, have changed or are too few. Two photos of scikit-learn stand in then, and the
    words have the reason.
    """
    from keras_vit.exporting.export import MAX_PHOTOS, MIN_PHOTOS
    from keras_vit.exporting.sample_photos import SAMPLE_PHOTOS

    if run.data is None:
        return None, SAMPLE_PHOTOS
    try:
        source = _open_again(run, run.data)
        if has_changed(run, source):
            return None, f"{SAMPLE_PHOTOS}, as the run's data, {run.data}, have changed since"
        photos = _as_trained(run, source).split("train").sample(MAX_PHOTOS)
    except (ValueError, TypeError, OSError, ImportError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        return None, f"{SAMPLE_PHOTOS}, as the run's data, {run.data}, cannot be read: {reason}"
    if len(photos) < MIN_PHOTOS:
        return None, f"{SAMPLE_PHOTOS}, as {source.name} has {len(photos)} to train on and it takes {MIN_PHOTOS}"
    return photos, f"{len(photos)} training images of {source.name}"


def _as_trained(run: Any, source: "Source") -> "Source":
    """The source with those training images alone that the run was trained on."""
    return source if run.subset is None else source.subset(**run.subset)
