"""`keras-vit finetune|pretrain|distil|recipes`; Keras is imported when one of the first three runs."""

import contextlib
import datetime
import functools
import itertools
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_vit.checks import ArgumentError
from keras_vit.cli.terminal import check_data, loading, path, quiet_start, terminal_width
from keras_vit.config.recipes import RECIPES, find_recipe
from keras_vit.runs.finished_runs import finished_lines
from keras_vit.runs.options import (
    FLAGS,
    TASK_OPTIONS,
    DistilOptions,
    FinetuneOptions,
    PretrainOptions,
    RunOptions,
    changed,
    options_of,
)
from keras_vit.runs.run_files import CHECKPOINTS, check_empty, is_begun
from keras_vit.training.hosts.processes import launched_by
from keras_vit.weights.registry import variant_of
from keras_vit.weights.resolve import check_available

_USUAL_DATA = "digits"


def add_commands(top: Any, command: Callable[..., ArgumentParser]) -> None:
    """Adds these commands to the parser; `command` makes one."""
    summary = "train on a folder of photos, measure, and write a report"
    new = command(top, "finetune", finetune, summary, "keras-vit finetune --data photos --model B/16 --out run")
    source = f"a folder of class folders, a .csv, shards as 'shards/*.tar', or a name; by default {_USUAL_DATA}"
    _add_options(new, FinetuneOptions, source, "new folder of the run; by default one below runs/")
    new.set_defaults(check_usage=functools.partial(_check_usage, new))
    source = "a folder of photos, a .csv, shards as 'shards/*.tar', or a name; labels are used to measure only"
    example = "keras-vit pretrain --data photos --model dinov2/S14 --weights dinov2 --out run"
    summary = "train an encoder on photos without labels, from nothing or from published weights"
    new = command(top, "pretrain", pretrain, summary, example)
    _add_options(new, PretrainOptions, source, "new folder of the run", required=True)
    example = "keras-vit distil --data photos --teacher dinov2/S14 --student Ti/16 --out run"
    summary = "train a small encoder to give the features of a larger one, without labels"
    new = command(top, "distil", distil, summary, example)
    _add_options(new, DistilOptions, source, "new folder of the run", required=True)
    summary = "list the published sets of hyper-parameters, or show one with its sources"
    new = command(top, "recipes", recipes, summary, "keras-vit recipes augreg-finetune")
    new.add_argument(
        "name", metavar="NAME", nargs="?", help="name of a set; by default all are listed, one on each line"
    )


def finetune(arguments: Namespace) -> Iterator[str]:
    given = dict(vars(arguments))
    for name in ("command", "check_usage", "debug"):
        given.pop(name, None)
    out, data = given.pop("out"), given.pop("data") or _USUAL_DATA
    given["weights"] = None if str(given["weights"]).lower() == "none" else given["weights"]
    given = {name: value for name, value in given.items() if value is not None or name not in TASK_OPTIONS}
    options: FinetuneOptions = changed(None, given)  # wrong ones are refused before Keras is imported
    if out is not None and (lines := finished_lines(out, data, options)):
        yield from lines
        return
    check_data(data)
    if options.weights not in ("default", None) and isinstance(options.model, str) and options.model != "small":
        check_available(options.weights, variant_of(options.model))
    if out is not None and options.layout == "none" and not (is_begun(out) or (out / CHECKPOINTS).is_dir()):
        check_empty(out)
    if out is None and options.layout != "none" and (sign := launched_by()):
        raise ArgumentError(f"`out` must say where several processes write together.\nReceived: {sign}.")
    if options.layout == "none" or not launched_by():  # of several processes the first alone speaks, once it is known
        yield loading("TensorFlow")
    with quiet_start():
        from keras_vit.runs.finetune import finetune
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # each epoch is seen as it ends, in a file too
    with contextlib.nullcontext(out) if out is not None else _new_run(data, options.start or options.weights) as folder:
        finetune(data, folder, options)


def pretrain(arguments: Namespace) -> Iterator[str]:
    yield from _unlabeled(arguments, PretrainOptions)


def distil(arguments: Namespace) -> Iterator[str]:
    yield from _unlabeled(arguments, DistilOptions)


def _unlabeled(arguments: Namespace, record: type[RunOptions]) -> Iterator[str]:
    """Trains without labels, by the function of a record."""
    given = {option.name: getattr(arguments, option.name) for option in options_of(record)}
    options: Any = changed(None, given, record)  # wrong ones are refused before Keras is imported
    if lines := finished_lines(arguments.out, arguments.data, options):
        yield from lines
        return
    check_data(arguments.data)
    if not (is_begun(arguments.out) or (arguments.out / CHECKPOINTS).is_dir()):
        check_empty(arguments.out)
    yield loading("TensorFlow")
    with quiet_start():
        from keras_vit.runs.pretraining import run
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)  # each measurement is seen as it ends, in a file too
    (run.pretrain if record is PretrainOptions else run.distil)(arguments.data, arguments.out, options)


def recipes(arguments: Namespace) -> Iterator[str]:
    if arguments.name:
        yield str(find_recipe(arguments.name))
        return
    lines, width = repr(RECIPES).splitlines(), terminal_width()
    if width is None or max(map(len, lines)) < width:
        yield from lines
        return
    for name, facts in (line.split(maxsplit=1) for line in lines):
        yield from (name, f"  {facts}")


@contextlib.contextmanager
def _new_run(data: Any, model: Any) -> Iterator[Path]:
    """A new folder below `runs/`, which no other process has; it goes if nothing is written there."""
    plain = "-".join(re.sub(r"\W+", "_", Path(str(name)).name or "data") for name in (data, model))
    stem = f"{plain}-{datetime.datetime.now():%Y%m%d-%H%M%S}"
    parent = Path("runs")
    is_new = not parent.exists()
    for name in itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2))):
        with contextlib.suppress(FileExistsError):
            (parent / name).mkdir(parents=True)  # another process may have taken its empty `runs` away
            break
    try:
        yield parent / name
    finally:
        with contextlib.suppress(OSError):  # not empty
            (parent / name).rmdir()
            if is_new:
                parent.rmdir()


def _check_usage(parser: ArgumentParser, arguments: Namespace) -> None:
    """Ends with the usage where no option is given: a training of a set that nobody named would surprise."""
    if all(value == parser.get_default(name) for name, value in vars(arguments).items() if name != "debug"):
        parser.error(f"it needs to know what to train on: --data FOLDER, or --data {_USUAL_DATA} to try it")


def _add_options(new: ArgumentParser, record: type[RunOptions], source: str, out: str, required: bool = False) -> None:
    new.add_argument("--data", metavar="DATA", required=required, help=source)
    new.add_argument("--out", metavar="FOLDER", type=path, required=required, help=out)
    for option in options_of(record):
        default = getattr(record, option.name, None)  # that of a task's option is the task's
        facts = {"default": default, "help": option.metadata["help"], **option.metadata["parser"]}
        new.add_argument(FLAGS[option.name], dest=option.name, **facts)
