"""A command that is given again after its run has finished, as job queues do: what the run came to.

Keras is not needed, so the answer comes at once; but for data that lie elsewhere now, which are opened.
"""

import dataclasses
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_vit.annotations import FilePath
from keras_vit.checks import ArgumentError
from keras_vit.files import expand_path, json_object
from keras_vit.pages.formatting import printable
from keras_vit.runs.last_lines import result_lines
from keras_vit.runs.options import FLAGS, FinetuneOptions
from keras_vit.runs.own_files import CONFIG, MOST_BYTES, RESULT, is_finished, read_config
from keras_vit.tasks import find_task

# Options that decide when and where, but no number of the result.
ELSEWHERE = ("data", "out", "strategy", "layout", "resume", "checkpoint_minutes", "checkpoint_every")
_FOUND = "auto"  # of an option that the machine decides; the run has written down how


def finished_lines(out: FilePath, data: Any, options: FinetuneOptions) -> list[str] | None:
    """Lines on a finished run that was asked for just so; `None` where there is no such run.

    Args:
        out: the folder.
        data: as `finetune` takes it; its files may have been moved as a whole.
        options: that are asked for.

    Raises:
        ValueError: if the run was asked for otherwise, with what differs; and if its data cannot be opened.
    """
    folder = Path(out)
    if options.resume == "never" or not is_finished(folder):
        return None
    try:
        result = json_object(folder / RESULT, MOST_BYTES)
        config = read_config(folder / CONFIG)
        before = config["arguments"]
        lines = [*result_lines(folder, result, find_task(result.get("task", config.get("task"))))]
    except (ValueError, TypeError, KeyError):  # not as a run writes it
        return None
    found = [*_other_options(before, options)] or [*_other_data(folder, before.get("data"), data)]
    if found:
        raise ArgumentError(
            "`out` of a finished run says its result only to the command that it had.\n"
            f"Received: {str(out)!r}, a finished run, which differs in:\n  " + "\n  ".join(found) + "\n"
            "Choose another folder, or ask for what it began with.",
            parameters=("out",),
        )
    return [f"{printable(folder)} has finished before, and nothing was changed", *lines]


def _other_options(before: Mapping[str, Any], options: FinetuneOptions) -> Iterator[str]:
    """A line for each option that is not as it was; one that has come since was at its default."""
    defaults = {option.name: option.default for option in dataclasses.fields(options)}
    asked = json.loads(json.dumps(options.facts(), default=str))
    for name, default in defaults.items():
        was, now = before.get(name, default), asked.get(name, default)
        if name not in ELSEWHERE and now not in (_FOUND, was):
            yield f"{FLAGS[name]}: {_shown(was)} before, {_shown(now)} now"


def _other_data(folder: Path, was: Any, data: Any) -> Iterator[str]:
    """A line if the data are not those of the run, or have other files and targets where they lie now."""
    if was in (str(data), os.path.abspath(expand_path(str(data)))):
        return
    if not (isinstance(was, str) and os.path.isabs(was) and expand_path(str(data)).exists()):  # one is no path
        yield f"--data: {_shown(was)} before, {_shown(data)} now"
        return
    from keras_vit.data.opening import open_source
    from keras_vit.runs.saved_runs import read_facts
    from keras_vit.runs.training_data import has_changed

    run = read_facts(folder / CONFIG)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of bad files, of which the training has told
        source = open_source(data, seed=run.seed, targets=run.task.targets())
    if has_changed(run, source):
        yield f"--data: {_shown(was)} before, {_shown(os.path.abspath(expand_path(str(data))))} now, with other files"


def _shown(value: Any) -> str:
    return "its default" if value is None else printable(f"{value!s:.80}")
