"""What is decided of a run before its first step, and how that is carried out: for runs of every kind.

Each kind resolves its options into a `RunPlan`. Then `begin` makes the folder, `saving_failures` is around `fit`.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras

from keras_vit.annotations import Variable
from keras_vit.checks import check_installed, with_parameters
from keras_vit.data.pipeline import report_missing_files
from keras_vit.data.source import Source
from keras_vit.files import remove_partial_files, remove_stale_folders
from keras_vit.pages.formatting import printable
from keras_vit.runs.resume_check import UnfinishedRun, check_resumed, read_unfinished_config, resume_fingerprint
from keras_vit.runs.run_directory import RunDirectory, check_writable, json_ready
from keras_vit.runs.run_files import BAD_IMAGES, CHECKPOINTS, CONFIG, FAILURE
from keras_vit.training.checkpoints import Checkpoints
from keras_vit.training.hosts.distribution import shared_run_dir
from keras_vit.training.optimizers import steps_of

_FACTS = ("weights_report", "weights_from", "changes")  # of a configuration, which follow from the options


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RunPlan:
    """All that is decided of a run; everything that could be refused is refused before there is one.

    Attributes:
        options: what was asked for, with the strategy and precision that were found.
        source: the data.
        model: that `fit` trains, compiled.
        plan: steps, epochs, batch and rate of the training.
        configuration: what `config.json` holds of it.
        earlier: the run that goes on; `None` of a new one.
    """

    options: Any
    source: Source
    model: Any
    plan: Any
    configuration: dict[str, Any] = dataclasses.field(default_factory=dict)
    earlier: UnfinishedRun | None = None


def num_parameters(weights: Iterable[Variable]) -> int:
    """How many numbers these weights have together."""
    return sum(math.prod(weight.shape) for weight in weights)


def check_requirements(on_epoch_end: Any) -> None:
    """Raises for what cannot be called after an epoch, and where a run could not draw and write its report."""
    if not (on_epoch_end is None or callable(on_epoch_end)):
        raise with_parameters(
            TypeError(f"`on_epoch_end` must be callable, or None.\nReceived: {on_epoch_end!r}."), "on_epoch_end"
        )
    check_installed("matplotlib", "it draws the pictures of a run", "train")
    check_installed("jinja2", "it fills in the report of a run", "train")


def begin(
    run_plan: RunPlan,
    run: RunDirectory,
    also: Sequence[keras.callbacks.Callback],
    print_fn: Callable[[str], Any],
    reopen: Callable[[Checkpoints], Any] | None = None,
) -> tuple[Checkpoints, dict[str, Any]]:
    """Locks the folder, and makes it what it was at its checkpoint, or that of a new run.

    What could not come to its end is refused first, and files that are there stay as they are. Checkpoints keep the
    memory of the callbacks `also`; `reopen` makes a finished run an unfinished one.

    Returns:
        The checkpoints, and what `config.json` holds.
    """
    options, earlier, place = run_plan.options, run_plan.earlier, shared_run_dir(run.path)
    checkpoints = Checkpoints(
        place / CHECKPOINTS,
        every_minutes=options.checkpoint_minutes,
        every_steps=options.checkpoint_every,
        fingerprint=resume_fingerprint(run_plan.configuration, earlier),
        also=also,
    )
    try:
        if reopen is not None:
            reopen(checkpoints)
        checkpoints.lock()
        check_resumed(place, checkpoints.found, options.resume, earlier)
        for folder in (run.path, place / CHECKPOINTS):
            check_writable(folder)
    except BaseException:
        checkpoints.close()
        raise
    remove_partial_files(run.path)  # what killed processes left
    remove_stale_folders(run.path)
    (run.path / FAILURE).unlink(missing_ok=True)
    if checkpoints.found is None:
        run.set_metrics_text("")
    if checkpoints.found is not None and (run.path / CONFIG).exists():
        print_fn(f"goes on from step {checkpoints.step:,}, {checkpoints.path}")
        return checkpoints, _with_places(run, run_plan.configuration)
    run.write_json(CONFIG, run_plan.configuration)
    if run_plan.source.bad_images:
        run.write_lines(BAD_IMAGES, [(image.path, image.reason) for image in run_plan.source.bad_images])
        print_fn(f"files left out: {(run.path / BAD_IMAGES).absolute()}")
    return checkpoints, run_plan.configuration


def _with_places(run: RunDirectory, configuration: dict[str, Any]) -> dict[str, Any]:
    """The configuration as the run began, but for where data and folder are now, in case they were moved."""
    facts = {name: json_ready(configuration[name]) for name in _FACTS if name in configuration}
    config = json_ready(configuration) | read_unfinished_config(run.path) | facts
    places = json_ready({name: configuration["arguments"][name] for name in ("data", "out")})
    if config["arguments"] != config["arguments"] | places:
        config["arguments"] |= places
        run.write_json(CONFIG, config)
    return config


@contextlib.contextmanager
def saving_failures(
    run_plan: RunPlan, progress: Any, checkpoints: Checkpoints, save: Callable[[BaseException], Any]
) -> Iterator[None]:
    """A context for `fit`; whatever ends it early, `save` is called with the error, and the folder is free again."""
    is_resumed = checkpoints.found is not None
    try:
        with report_missing_files(*run_plan.source.splits.values()):
            yield
    except BaseException as error:
        progress.close()
        checkpoints.close()
        if steps_of(run_plan.model.optimizer) or not is_resumed:  # else it failed to go on, and nothing is new
            save(error)
        raise


def write_failure(
    run: RunDirectory, error: BaseException, names: Iterable[str], print_fn: Callable[[str], Any], **facts: Any
) -> None:
    """Writes down that a run ended early, and says which of the files `names` there are to go on from."""
    stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
    facts = {"status": "stopped" if stopped else "failed", "error": f"{type(error).__name__}: {error}"} | facts
    with contextlib.suppress(OSError):  # as on a full disk; the error that ended the run matters more
        run.write_json(FAILURE, facts)
    *kept, last = [name for name in (*names, FAILURE) if (run.path / name).exists()] or ["no file of it"]
    with contextlib.suppress(Exception):
        listed = f"{', '.join(kept)} and {last}" if kept else last
        print_fn(f"{facts['status']}; {printable(run.path)} has {listed}")
        if stopped:
            print_fn(resume_hint(run))


def resume_hint(run: RunDirectory) -> str:
    """What to do after a stop."""
    return f"the same command goes on from there, with {printable(run.path)} as its folder"
