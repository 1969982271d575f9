"""One call from a data set to a trained model with its report: `keras_vit.finetune`, and `keras-vit finetune`.

Everything that can be refused is refused before the first step, and nothing is written before that.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import keras

from keras_vit.annotations import FilePath, Pair
from keras_vit.checks import check_installed, with_parameters
from keras_vit.config.progressive_resizing import ResolutionStage
from keras_vit.data import load_dataset
from keras_vit.data.pipeline import report_missing_files
from keras_vit.data.source import Data, Source
from keras_vit.files import json_object
from keras_vit.model.image_model import ImageModel
from keras_vit.pages.formatting import printable
from keras_vit.renamed import accepts_old_arguments
from keras_vit.runs.callbacks import EpochCalls, EpochRecord, Recorder, stop_early
from keras_vit.runs.finished_runs import find_longer
from keras_vit.runs.load import check_reloads
from keras_vit.runs.options import FinetuneChanges, FinetuneOptions, changed, with_options
from keras_vit.runs.preparation import Preparation, prepare, run_configuration
from keras_vit.runs.progress import Progress, check_disk, print_estimates, with_heartbeat
from keras_vit.runs.results import EVALUATION_BATCH, Result, finish, save_partial_results
from keras_vit.runs.resume_check import (
    UnfinishedRun,
    check_resumed,
    check_unchanged,
    find_unfinished,
    original_options,
    original_plan,
    read_unfinished_config,
    remove_leftovers,
    resume_fingerprint,
    with_length_of,
)
from keras_vit.runs.run_directory import RunDirectory, check_writable, json_ready
from keras_vit.runs.run_files import (
    BAD_IMAGES,
    CHECKPOINTS,
    CONFIG,
    LAST,
    MOST_BYTES,
    REPORT,
    RESULT,
    metric_columns,
    read_stamp,
)
from keras_vit.training.callbacks import StepFacts
from keras_vit.training.checkpoints import Checkpoints
from keras_vit.training.hosts.distribution import check_same_everywhere, run_together, shared_run_dir
from keras_vit.training.optimizers import steps_of


@accepts_old_arguments
@with_options
@run_together
@with_heartbeat
def finetune(
    data: Data,
    out: FilePath,
    options: FinetuneOptions | None = None,
    *,
    print_fn: Callable[[str], Any] = print,
    on_epoch_end: Callable[[EpochRecord], Any] | None = None,
    **changes: Unpack[FinetuneChanges],
) -> Result:
    """Trains a model on your photos by a published recipe, measures it, and writes a folder with all results.

    The random state of Keras is set by the option `seed`. With a `layout`, several processes may call this together:
    each gets the `Result`, and the first alone writes `out`.

    Example:
        >>> quiet = lambda line: None
        >>> result = keras_vit.finetune(
        ...     photos, "run", image_size=32, epochs=1, print_fn=quiet
        ... )
        >>> result.split, result.test_images
        ('test', 3)
        >>> sorted(path.name for path in result.out.glob("*.keras"))
        ['best.keras', 'last.keras']

    Args:
        data: a folder, a `.csv`, shards, a name, arrays, or a `Source`, as `keras_vit.open_source` takes them.
        out: folder of the run, which must be new or empty, or hold an unfinished run of the same options and data: it
            goes on then, to the numbers that it would have come to. It gets `config.json`, `metrics.csv` and
            `tensorboard/`; `best.keras` (by the task's metric on the validation set) and `last.keras`; `result.json`,
            `report.html` and `README.md` (the model card); `curves.png` and the task's own files; `bad_images.txt` if
            there are any; and `checkpoints/` until it is finished.
        options: how to train, as a record; by default `FinetuneOptions()`.
        print_fn: called with each line of what happens; `print` also shows a bar on a terminal.
        on_epoch_end: called with a `keras_vit.EpochRecord` after each epoch, in every process of a `layout`. If it
            raises `keras_vit.StopTraining`, the run ends there: its best model is measured and reported.
        **changes: fields of that record to change, as `model="B/16"`, and options of the task, as
            `class_weights="balanced"`. `help(keras_vit.FinetuneOptions)` and that of the task's record explain them.

    Returns:
        A `Result`.

    Raises:
        TypeError: for a keyword that is no option, a value of the wrong type, or an `on_epoch_end` that is no function.
        ValueError: for arguments or data that are wrong, or an `out` that is not empty or cannot be written to. For an
            unfinished run that began otherwise, or whose best model is gone or changed. For a batch that does not fit
            into memory, a disk without room, and a model that Keras could not load again.
        TrainingDivergedError: if the loss is no longer finite. `out` then has all figures and the last finite model.
        OfflineError: if the weights are not at hand and cannot be brought.
        ImportError: without the extra `train`.
        KeyboardInterrupt, SystemExit: after Ctrl-C or SIGTERM, once the step is done and the state is saved.
    """
    options = changed(options, dict(changes))
    if not (on_epoch_end is None or callable(on_epoch_end)):
        raise with_parameters(
            TypeError(f"`on_epoch_end` must be callable, or None.\nReceived: {on_epoch_end!r}."), "on_epoch_end"
        )
    began = time.monotonic()
    first = Path(out) == shared_run_dir(out)  # of several processes the first decides what goes on
    longer = find_longer(out, options) if first else None
    earlier = UnfinishedRun(longer, True) if longer else find_unfinished(out, options.resume if first else "auto")
    check_installed("matplotlib", "it draws the pictures of a run", "train")
    check_installed("jinja2", "it fills in the report of a run", "train")
    print_fn(f"Fine-tuning into {printable(shared_run_dir(out))}")
    begun = original_plan(options, earlier)
    preparation = prepare(data, original_options(options, earlier), print_fn, begun)
    with_accumulation = dataclasses.replace(preparation.options, accumulation_steps=options.accumulation_steps)
    preparation = dataclasses.replace(preparation, options=with_accumulation)
    configuration = run_configuration(preparation, data, out)
    check_same_everywhere(resume_fingerprint(configuration))  # of processes that train together
    if longer:
        earlier = UnfinishedRun(with_length_of(longer, configuration))
    if earlier is not None:
        check_unchanged(out, earlier, configuration)
    if isinstance(options.model, ImageModel):
        check_reloads(preparation.model)
    check_disk(shared_run_dir(out), preparation.model, preparation.plan.recipe)
    print_estimates(preparation, shared_run_dir(out), print_fn)
    task = options.task_record
    run = RunDirectory(out, metric_columns(task), resumed=earlier is not None)
    recorder, progress = Recorder(run, task), Progress(preparation.plan, print_fn, preparation.stages, task.metrics)
    checkpoints = _checkpoints(run, options, configuration, earlier, [recorder, progress])
    try:
        if longer:
            _reopen(run, preparation, recorder, progress, checkpoints, configuration)
        _check_begin(run, checkpoints, options, earlier)
    except BaseException:
        checkpoints.close()
        raise
    configuration = _begin(run, checkpoints, configuration, preparation.source, print_fn)
    early = options.stop_early and stop_early(run, task, options.stop_early)
    calls = [EpochCalls(recorder, preparation.plan.epochs, call) for call in (on_epoch_end, early) if call]
    _fit(run, preparation, recorder, progress, calls, checkpoints, print_fn)
    if options.layout != "none":
        keras.distribution.set_distribution(None)  # each process measures by itself what was written
    result = finish(run, preparation, recorder, configuration, began, print_fn)
    checkpoints.discard()
    return result


def _checkpoints(
    run: RunDirectory,
    options: FinetuneOptions,
    configuration: dict[str, Any],
    earlier: UnfinishedRun | None,
    also: Sequence[keras.callbacks.Callback],
) -> Checkpoints:
    return Checkpoints(
        shared_run_dir(run.path) / CHECKPOINTS,
        every_minutes=options.checkpoint_minutes,
        every_steps=options.checkpoint_every,
        fingerprint=resume_fingerprint(configuration, earlier),
        also=also,
    )


def _reopen(
    run: RunDirectory,
    preparation: Preparation,
    recorder: Recorder,
    progress: Progress,
    checkpoints: Checkpoints,
    configuration: dict[str, Any],
) -> None:
    """Makes a finished run an unfinished one of more steps; after a kill it is still the one or already the other.

    The weights and the optimizer go on as they were. The random numbers of dropout begin anew.
    """
    model, rows, stamped = preparation.model, run.rows(), read_stamp(run.path / LAST)
    epoch, step, best = len(rows), int(rows[-1]["step"]), json_object(run.path / RESULT, MOST_BYTES)["best_epoch"]
    model.optimizer.build(model.trainable_variables)
    model.load_weights(run.path / LAST)
    recorder.set_state(
        {
            "mark": stamped[0] if stamped else run.mark,
            "best_epoch": best,
            "last_epoch": epoch,
            "best": recorder.task.score(rows[best - 1]) or (best - 1, 0),
            "seconds": rows[-1]["seconds"],
            "metrics": run.metrics_text(),
        }
    )
    progress.set_state({"done": step, "of_epoch": 0})
    checkpoints.begin_after(model, epoch, step, preparation.plan.steps_per_epoch)
    run.write_json(CONFIG, configuration)  # from here on it is unfinished: the plan has more steps than the result
    for name in (RESULT, REPORT):
        (run.path / name).unlink(missing_ok=True)


def _check_begin(
    run: RunDirectory, checkpoints: Checkpoints, options: FinetuneOptions, earlier: UnfinishedRun | None
) -> None:
    """Locks the folder, and refuses what could not come to its end; files that are there stay as they are."""
    checkpoints.lock()
    check_resumed(shared_run_dir(run.path), checkpoints.found, options.resume, earlier)
    for folder in (run.path, shared_run_dir(run.path) / CHECKPOINTS):
        check_writable(folder)


def _begin(
    run: RunDirectory,
    checkpoints: Checkpoints,
    configuration: dict[str, Any],
    source: Source,
    print_fn: Callable[[str], Any],
) -> dict[str, Any]:
    """Makes the folder what it was at the checkpoint, or that of a new run; gives what its `config.json` holds."""
    remove_leftovers(run)
    if checkpoints.found is None:
        run.set_metrics_text("")
    if checkpoints.found is None or not (run.path / CONFIG).exists():
        run.write_json(CONFIG, configuration)
        _write_bad_images(run, source, print_fn)
        return configuration
    print_fn(f"goes on from step {checkpoints.step:,}, {checkpoints.path}")
    return _with_places(run, configuration)


def _with_places(run: RunDirectory, configuration: dict[str, Any]) -> dict[str, Any]:
    """The configuration as the run began, but for where data and folder are now, in case they were moved."""
    facts = {name: json_ready(configuration[name]) for name in ("weights_report", "weights_from", "changes")}
    config = json_ready(configuration) | read_unfinished_config(run.path) | facts  # which follow from the options
    places = json_ready({name: configuration["arguments"][name] for name in ("data", "out")})
    if config["arguments"] != config["arguments"] | places:
        config["arguments"] |= places
        run.write_json(CONFIG, config)
    return config


def _write_bad_images(run: RunDirectory, source: Source, print_fn: Callable[[str], Any]) -> None:
    if source.bad_images:
        run.write_lines(BAD_IMAGES, [(image.path, image.reason) for image in source.bad_images])
        print_fn(f"files left out: {(run.path / BAD_IMAGES).absolute()}")


def _fit(
    run: RunDirectory,
    preparation: Preparation,
    recorder: Recorder,
    progress: Progress,
    calls: Sequence[EpochCalls],
    checkpoints: Checkpoints,
    print_fn: Callable[[str], Any],
) -> None:
    """Trains; whatever ends it early, the last finite model is kept, and the folder says what happened."""
    model = preparation.model
    arguments = preparation.plan.fit_arguments(last_good=lambda: _last_good(run, recorder))
    arguments["callbacks"] += [StepFacts(), recorder, progress, *calls, checkpoints]
    train = _train_set(preparation, checkpoints.step)
    resumed = checkpoints.found is not None
    sizes = taking_any_size(model) if len(preparation.stages) > 1 else contextlib.nullcontext()
    try:
        with sizes, report_missing_files(*preparation.source.splits.values()):
            model.fit(train, validation_data=_validation_set(preparation), verbose=0, **arguments)
    except BaseException as error:
        progress.close()
        checkpoints.close()
        if steps_of(model.optimizer) or not resumed:  # else it failed to go on, and nothing is new
            save_partial_results(run, preparation, recorder, error, print_fn)
        raise
    if recorder.last_epoch != len(run.rows()):
        raise ValueError("the last step left a weight that is not finite.\nReceived: see metrics.csv of the run.")


def _last_good(run: RunDirectory, recorder: Recorder) -> str:
    """Words on the last good model, for the error of a run that diverges: it is saved as the guard stops the run."""
    best = f"; the best one is {recorder.best_model}" if recorder.best_model else ""
    return f"{run.path / LAST}, which is written as the run stops{best}"


def _train_set(preparation: Preparation, start_step: int) -> Any:
    plan, stages, record = preparation.plan, preparation.stages, preparation.model.preprocessing

    def load(image_size: Pair, start_step: int) -> Any:
        batches = load_dataset(
            preparation.source,
            "train",
            batch_size=plan.batch_size,
            preprocessing=dataclasses.replace(record, image_size=image_size),
            training=True,
            augmentation=preparation.augmentation,
            labels=preparation.encoding,
            seed=preparation.options.seed,
            start_step=start_step,
        )
        return preparation.options.task_record.batches(batches, preparation.model)

    if len(stages) == 1:
        return load(stages[0].image_size, start_step)
    return load_growing(load, stages, plan.steps_per_epoch, start_step)


def load_growing(
    load: Callable[[tuple[int, int], int], Any],
    stages: Sequence[ResolutionStage],
    steps_per_epoch: int,
    start_step: int,
) -> Any:
    """Batches of training, each of the size of its stage.

    There is one model, that of the final size. Its position table keeps its grid, and is resized inside the graph for
    the patches of smaller images, as FlexiViT (arXiv:2212.08013) and timm's `dynamic_img_size` do. So no weight and no
    state of the optimizer changes its shape, and all of a checkpoint fits at every step.

    Args:
        load: gives the batches of one image size `(H, W)` from a step on, as `load_dataset` does for training.
        stages: of the training.
        steps_per_epoch: in each epoch.
        start_step: number of the first batch.

    Returns:
        A `tf.data.Dataset` with the attributes of `load_dataset`. Its batches know height and width as they come, as
        do those of a run that goes on in the last stage, so both compute by the same graph.
    """
    begins = [(stage.epoch - 1) * steps_per_epoch for stage in stages]
    parts = [load(stage.image_size, max(begin, start_step)) for stage, begin in zip(stages, begins, strict=True)]
    counts = [max(end - max(begin, start_step), 0) for begin, end in itertools.pairwise(begins)]

    def joined(parts: Sequence[Any]) -> Any:
        pieces = [*(part.take(count) for part, count in zip(parts, counts, strict=False)), parts[-1]]
        whole = functools.reduce(lambda before, after: before.concatenate(after), pieces)
        for name in ("class_names", "num_examples", "preprocessing"):
            setattr(whole, name, getattr(parts[-1], name))
        whole.start_step = start_step
        return whole

    whole = joined(parts)
    if all(hasattr(part, "as_uint8") for part in parts):
        whole.as_uint8 = lambda: joined([part.as_uint8() for part in parts])
    return whole


@contextlib.contextmanager
def taking_any_size(model: ImageModel) -> Iterator[None]:
    """A context in which a model of one image size takes images of other sizes, which its patches must tile."""
    before = model.input_spec
    model.input_spec = keras.InputSpec(shape=(None, None, None, model.input_shape[-1]))
    try:
        yield
    finally:
        model.input_spec = before


def _validation_set(preparation: Preparation) -> Any:
    if not preparation.source.sizes.get("validation"):
        return None
    batch_size = -(-EVALUATION_BATCH // preparation.devices) * preparation.devices
    batches = load_dataset(
        preparation.source,
        "validation",
        batch_size=batch_size,
        preprocessing=preparation.model.preprocessing,
        labels=preparation.encoding,
    )
    return preparation.options.task_record.batches(batches, preparation.model)
