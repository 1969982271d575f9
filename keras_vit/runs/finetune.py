"""One call from a data set to a trained model with its report: `keras_vit.finetune`, and `keras-vit finetune`.

Everything that can be refused is refused before the first step, and nothing is written before that.
"""

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

import keras

from keras_vit.annotations import FilePath, Pair
from keras_vit.config.progressive_resizing import ResolutionStage
from keras_vit.data import load_dataset
from keras_vit.data.source import Data
from keras_vit.files import json_object
from keras_vit.model.image_model import ImageModel
from keras_vit.renamed import accepts_old_arguments
from keras_vit.runs.callbacks import EpochCalls, EpochRecord, Recorder, stop_early
from keras_vit.runs.options import FinetuneChanges, FinetuneOptions, changed, with_options
from keras_vit.runs.plan import begin, check_requirements, saving_failures
from keras_vit.runs.preparation import FinetunePlan, resolve
from keras_vit.runs.progress import Progress, heartbeat
from keras_vit.runs.results import EVALUATION_BATCH, Result, finish, random_states, save_partial_results
from keras_vit.runs.run_directory import RunDirectory
from keras_vit.runs.run_files import CONFIG, LAST, MOST_BYTES, REPORT, RESULT, metric_columns, read_stamp
from keras_vit.training.callbacks import StepFacts
from keras_vit.training.checkpoints import Checkpoints
from keras_vit.training.hosts.distribution import multi_process


@accepts_old_arguments
@with_options(FinetuneOptions)
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
    check_requirements(on_epoch_end)
    with multi_process(options, out, print_fn) as (folder, lines), heartbeat(lines) as lines:
        began = time.monotonic()
        run_plan = resolve(data, folder, options, lines)
        task, plan, earlier = options.task_record, run_plan.plan, run_plan.earlier
        run = RunDirectory(folder, metric_columns(task), resumed=earlier is not None)
        recorder, progress = Recorder(run, task), Progress(plan, lines, run_plan.stages, task.metrics)
        is_longer = earlier is not None and earlier.is_finished
        reopen = functools.partial(_reopen, run, run_plan, recorder, progress) if is_longer else None
        checkpoints, configuration = begin(run_plan, run, [recorder, progress], lines, reopen)
        early = options.stop_early and stop_early(run, task, options.stop_early)
        calls = [EpochCalls(recorder, plan.epochs, call) for call in (on_epoch_end, early) if call]
        _fit(run, run_plan, recorder, progress, calls, checkpoints, lines)
        if options.layout != "none":
            keras.distribution.set_distribution(None)  # each process measures by itself what was written
        result = finish(run, run_plan, recorder, configuration, began, lines)
        checkpoints.discard()
    return result


def _reopen(
    run: RunDirectory, run_plan: FinetunePlan, recorder: Recorder, progress: Progress, checkpoints: Checkpoints
) -> None:
    """Makes a finished run an unfinished one of more steps; after a kill it is still the one or already the other.

    The weights, the optimizer and the random numbers of dropout go on as they were. A result of 0.6.0 does not
    have the last, which begin anew.
    """
    model, rows, stamped = run_plan.model, run.rows(), read_stamp(run.path / LAST)
    result = json_object(run.path / RESULT, MOST_BYTES)
    epoch, step, best = len(rows), int(rows[-1]["step"]), result["best_epoch"]
    model.optimizer.build(model.trainable_variables)
    model.load_weights(run.path / LAST)
    for variable, state in zip(random_states(model), result.get("random_state", ()), strict=False):
        variable.assign(state)
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
    checkpoints.begin_after(model, epoch, step, run_plan.plan.steps_per_epoch)
    run.write_json(CONFIG, run_plan.configuration)  # from here on it is unfinished, with more steps than the result
    for name in (RESULT, REPORT):
        (run.path / name).unlink(missing_ok=True)


def _fit(
    run: RunDirectory,
    run_plan: FinetunePlan,
    recorder: Recorder,
    progress: Progress,
    calls: Sequence[EpochCalls],
    checkpoints: Checkpoints,
    print_fn: Callable[[str], Any],
) -> None:
    """Trains; whatever ends it early, the last finite model is kept, and the folder says what happened."""
    model = run_plan.model

    def last_good() -> str:  # for the error of a run that diverges: it is saved as the guard stops the run
        best = f"; the best one is {recorder.best_model}" if recorder.best_model else ""
        return f"{run.path / LAST}, which is written as the run stops{best}"

    arguments = run_plan.plan.fit_arguments(last_good)
    arguments["callbacks"] += [StepFacts(), recorder, progress, *calls, checkpoints]
    train = _train_set(run_plan, checkpoints.step)
    sizes = taking_any_size(model) if len(run_plan.stages) > 1 else contextlib.nullcontext()

    def save(error: BaseException) -> None:
        save_partial_results(run, run_plan, recorder, error, print_fn)

    with saving_failures(run_plan, progress, checkpoints, save), sizes:
        model.fit(train, validation_data=_validation_set(run_plan), verbose=0, **arguments)
    if recorder.last_epoch != len(run.rows()):
        raise ValueError("the last step left a weight that is not finite.\nReceived: see metrics.csv of the run.")


def _train_set(run_plan: FinetunePlan, start_step: int) -> Any:
    plan, stages, record = run_plan.plan, run_plan.stages, run_plan.model.preprocessing

    def load(image_size: Pair, start_step: int) -> Any:
        batches = load_dataset(
            run_plan.source,
            "train",
            batch_size=plan.batch_size,
            preprocessing=dataclasses.replace(record, image_size=image_size),
            training=True,
            augmentation=run_plan.augmentation,
            labels=run_plan.encoding,
            seed=run_plan.options.seed,
            start_step=start_step,
        )
        return run_plan.options.task_record.batches(batches, run_plan.model)

    if len(stages) == 1:
        return load(stages[0].image_size, start_step)
    return load_growing(load, stages, plan.steps_per_epoch, start_step)


def load_growing(
    load: Callable[[tuple[int, int], int], Any],
    stages: Sequence[ResolutionStage],
    steps_per_epoch: int,
    start_step: int,
) -> Any:
    """Batches of training, each of the size of its stage; `load` gives those of one size from a step on.

    There is one model, that of the final size. Its position table keeps its grid, and is resized inside the graph for
    the patches of smaller images, as FlexiViT (arXiv:2212.08013) and timm's `dynamic_img_size` do. So no weight and no
    state of the optimizer changes its shape, and all of a checkpoint fits at every step. Batches know height and width
    as they come, as do those of a run that goes on in the last stage, so both compute by the same graph.
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


def _validation_set(run_plan: FinetunePlan) -> Any:
    if not run_plan.source.sizes.get("validation"):
        return None
    batch_size = -(-EVALUATION_BATCH // run_plan.devices) * run_plan.devices
    batches = load_dataset(
        run_plan.source,
        "validation",
        batch_size=batch_size,
        preprocessing=run_plan.model.preprocessing,
        labels=run_plan.encoding,
    )
    return run_plan.options.task_record.batches(batches, run_plan.model)
