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

from keras_vit.analysis.plots import draw_confusion, draw_curves
from keras_vit.annotations import FilePath, Pair
from keras_vit.checks import check_installed
from keras_vit.config.recipes.growth import Stage
from keras_vit.data import load_dataset
from keras_vit.data.source import Data, Source
from keras_vit.evaluation import Evaluation, evaluate
from keras_vit.model.image_model import ImageModel
from keras_vit.pages.cards import CARD, write_card
from keras_vit.runs.configuration import configuration_of
from keras_vit.runs.options import FinetuneChanges, FinetuneOptions, changed, with_options
from keras_vit.runs.preparation import Preparation, num_parameters, prepare
from keras_vit.runs.progress import Progress, duration
from keras_vit.runs.recorder import Recorder
from keras_vit.runs.resume_check import (
    as_begun,
    check_resumed,
    check_same,
    config_of,
    find_earlier,
    fingerprint_of,
    sweep_leftovers,
)
from keras_vit.runs.run_card import run_card
from keras_vit.runs.run_directory import (
    BAD_IMAGES,
    BEST,
    CHECKPOINTS,
    CONFIG,
    CONFUSION,
    CURVES,
    FAILURE,
    LAST,
    METRICS,
    REPORT,
    RESULT,
    RunDirectory,
    plain,
)
from keras_vit.runs.run_page import find_mistakes, write_report
from keras_vit.training.callbacks import StepFacts
from keras_vit.training.checkpoints import Checkpoints
from keras_vit.training.hosts.distribution import of_all, run_together

_EVALUATION_BATCH = 64  # images at once; the numbers do not depend on it


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """What a run came to.

    Attributes:
        test_accuracy: of `best.keras` on the test set, or on the validation set where there is no other.
        classes: how many.
        seconds: from the call to the end, imports left out.
        out: the folder.
        model: the best model, as it is in `best.keras`.
        evaluation: all that was measured on `split`.
        split: `"test"` or `"validation"`.
        facts: what `result.json` holds.
    """

    test_accuracy: float
    classes: int
    seconds: float
    out: Path
    model: keras.Model
    evaluation: Evaluation
    split: str
    facts: dict

    def __repr__(self) -> str:
        facts = f"split={self.split!r}, classes={self.classes}, seconds={self.seconds:.1f}, out={str(self.out)!r}"
        return f"Result(test_accuracy={self.test_accuracy:.4f}, {facts})"


@with_options
@run_together
def finetune(
    data: Data,
    out: FilePath,
    options: FinetuneOptions | None = None,
    *,
    say: Callable[[str], Any] = print,
    **changes: Unpack[FinetuneChanges],
) -> Result:
    """Trains a classifier on labelled images by a published recipe, measures it, and writes everything down.

    The random state of Keras is set by the option `seed`. With a `layout`, several processes may call this together:
    each gets the `Result`, and the first alone writes `out`.

    Args:
        data: a folder, a `.csv`, a name, arrays, or a `Source`, as `keras_vit.open_source` takes them.
        out: folder of the run, which must be new or empty, or hold an unfinished run of the same options and data: it
            goes on then, to the numbers that it would have come to. It gets `config.json`, `metrics.csv` and
            `tensorboard/`; `best.keras` (by validation accuracy) and `last.keras`; `result.json`, `report.html` and
            `README.md` (the model card); `curves.png`, `confusion_matrix.png` and `.csv`; `bad_images.txt` if there
            are any; and `checkpoints/` until it is finished.
        options: how to train, as a record; by default `FinetuneOptions()`.
        say: called with each line of what happens; `print` also shows a bar on a terminal.
        **changes: fields of that record to change, as `model="B/16"`; `help(keras_vit.FinetuneOptions)` says what each
            means.

    Returns:
        A `Result`.

    Raises:
        TypeError: for a keyword that is no option, or a value of the wrong type.
        ValueError: for arguments or data that are wrong, or an `out` that is not empty or cannot be written to. Also
            for an unfinished run that began otherwise, or a batch that cannot fit.
        TrainingDivergedError: if the loss is no longer finite. `out` then has all figures and the last finite model.
        OfflineError: if the weights are not at hand and cannot be brought.
        ImportError: without the extra `train`.
        KeyboardInterrupt, SystemExit: after Ctrl-C or SIGTERM, once the step is done and the state is saved.
    """
    options = changed(options, dict(changes))
    began = time.monotonic()
    first = Path(out) == of_all(out)  # of several processes the first decides what goes on
    earlier = find_earlier(out, options.resume if first else "auto")
    check_installed("matplotlib", "it draws the pictures of a run", "train")
    check_installed("jinja2", "it fills in the report of a run", "train")
    preparation = prepare(data, as_begun(options, earlier), say)
    asked = dataclasses.replace(preparation.options, accumulation_steps=options.accumulation_steps)
    preparation = dataclasses.replace(preparation, options=asked)
    configuration = configuration_of(preparation, data, out)
    if earlier is not None:
        check_same(out, earlier, configuration)
    run = RunDirectory(out, goes_on=earlier is not None)
    recorder, progress = Recorder(run), Progress(preparation.plan, say, preparation.stages)
    checkpoints = _checkpoints(run, options, configuration, [recorder, progress])
    configuration = _begin(run, checkpoints, options, configuration, preparation.source, say)
    _fit(run, preparation, recorder, progress, checkpoints, say)
    if options.layout != "none":
        keras.distribution.set_distribution(None)  # each process measures by itself what was written
    result = _finish(run, preparation, recorder, configuration, began, say)
    checkpoints.discard()
    return result


def _checkpoints(
    run: RunDirectory, options: FinetuneOptions, configuration: dict[str, Any], also: Sequence[keras.callbacks.Callback]
) -> Checkpoints:
    return Checkpoints(
        of_all(run.path) / CHECKPOINTS,
        every_minutes=options.checkpoint_minutes,
        every_steps=options.checkpoint_every,
        fingerprint=fingerprint_of(configuration),
        also=also,
    )


def _begin(
    run: RunDirectory,
    checkpoints: Checkpoints,
    options: FinetuneOptions,
    configuration: dict[str, Any],
    source: Source,
    say: Callable[[str], Any],
) -> dict[str, Any]:
    """Makes the folder what it was at the checkpoint, or that of a new run; gives what its `config.json` holds."""
    checkpoints.lock()
    check_resumed(of_all(run.path), checkpoints.found, options.resume)
    sweep_leftovers(run)
    if checkpoints.found is None:
        run.set_metrics_text("")
    if checkpoints.found is None or not (run.path / CONFIG).exists():
        run.write_json(CONFIG, configuration)
        _write_bad_images(run, source)
        return configuration
    say(f"goes on from step {checkpoints.step:,}, {checkpoints.path}")
    return config_of(run.path)  # as the run began


def _write_bad_images(run: RunDirectory, source: Source) -> None:
    if source.bad_images:
        run.write_lines(BAD_IMAGES, [(image.path, image.reason) for image in source.bad_images])


def _fit(
    run: RunDirectory,
    preparation: Preparation,
    recorder: Recorder,
    progress: Progress,
    checkpoints: Checkpoints,
    say: Callable[[str], Any],
) -> None:
    """Trains; whatever ends it early, the last finite model is kept, and the folder says what happened."""
    model = preparation.model
    arguments = preparation.plan.fit_arguments(last_good=lambda: _last_good(run, recorder))
    arguments["callbacks"] += [StepFacts(), recorder, progress, checkpoints]
    train = _train_set(preparation, checkpoints.step)
    sizes = taking_any_size(model) if len(preparation.stages) > 1 else contextlib.nullcontext()
    try:
        with sizes:
            model.fit(train, validation_data=_validation_set(preparation), verbose=0, **arguments)
    except BaseException as error:
        progress.close()
        checkpoints.close()
        _keep_what_there_is(run, preparation, recorder, error, say)
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
        return load_dataset(
            preparation.source,
            "train",
            batch_size=plan.batch_size,
            preprocessing=dataclasses.replace(record, image_size=image_size),
            training=True,
            augmentation=preparation.augmentation,
            labels=preparation.labels,
            seed=preparation.options.seed,
            start_step=start_step,
        )

    if len(stages) == 1:
        return load(stages[0].image_size, start_step)
    return load_growing(load, stages, plan.steps_per_epoch, start_step)


def load_growing(
    load: Callable[[tuple[int, int], int], Any], stages: Sequence[Stage], steps_per_epoch: int, start_step: int
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
        A `tf.data.Dataset` with the attributes of `load_dataset`. Its batches know height and width as they come, and
        so do those of a run that goes on in the last stage: both compute by the same graph.
    """
    begins = [(stage.epoch - 1) * steps_per_epoch for stage in stages]
    parts = [load(stage.image_size, max(begin, start_step)) for stage, begin in zip(stages, begins, strict=True)]
    counts = [max(end - max(begin, start_step), 0) for begin, end in itertools.pairwise(begins)]
    pieces = [*(part.take(count) for part, count in zip(parts, counts, strict=False)), parts[-1]]
    whole = functools.reduce(lambda before, after: before.concatenate(after), pieces)
    for name in ("class_names", "num_examples", "preprocessing"):
        setattr(whole, name, getattr(parts[-1], name))
    whole.start_step = start_step
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
    batch_size = -(-_EVALUATION_BATCH // preparation.devices) * preparation.devices
    return load_dataset(
        preparation.source,
        "validation",
        batch_size=batch_size,
        preprocessing=preparation.model.preprocessing,
        labels=preparation.labels,
    )


def _keep_what_there_is(
    run: RunDirectory, preparation: Preparation, recorder: Recorder, error: BaseException, say: Callable[[str], Any]
) -> None:
    """After a failure or Ctrl-C: the model as it is, unless it is not finite or cannot be read any more."""
    saved = False
    with contextlib.suppress(Exception):
        if hasattr(preparation.model, "jax_state_sync"):
            preparation.model.jax_state_sync()
        saved = run.save_model(preparation.model, LAST)
    rows = []
    with contextlib.suppress(ValueError, OSError):  # as of a line that a full disk cut short
        rows = run.rows()
    stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
    facts = {
        "status": "stopped" if stopped else "failed",
        "error": f"{type(error).__name__}: {error}",
        "epochs": len(rows),
        "last_model": LAST if saved else None,
        "best_model": BEST if recorder.best_epoch else None,
    }
    with contextlib.suppress(OSError):  # as on a full disk; the error that ended the run is the one to tell
        run.write_json(FAILURE, facts)
    with contextlib.suppress(Exception):
        if rows:
            draw_curves(rows, run.path / CURVES)
    kept = [name for name in (METRICS, CURVES, BEST, LAST, FAILURE) if (run.path / name).exists()]
    with contextlib.suppress(Exception):
        say(f"{facts['status']}; {run.path} has {_listed(kept)}")


def _listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "no file of it"


def _finish(
    run: RunDirectory,
    preparation: Preparation,
    recorder: Recorder,
    configuration: dict[str, Any],
    began: float,
    say: Callable[[str], Any],
) -> Result:
    """Measures the model that was written, and writes what it came to."""
    source = preparation.source
    model = keras.models.load_model(run.path / BEST, compile=False)
    evaluation = evaluate(model, source, preparation.split, batch_size=_EVALUATION_BATCH)
    facts = _result(run, preparation, recorder, evaluation, time.monotonic() - began)
    curves, confusion, report = (run.path / name for name in (CURVES, CONFUSION, REPORT))
    run.write_confusion(evaluation)
    files = {path.name for path in run.path.iterdir()} - {CHECKPOINTS} | {CURVES, CONFUSION, REPORT, RESULT, CARD}
    run.write_json(RESULT, facts | {"files": sorted(files)})  # first, since it cannot fail
    draw_curves(run.rows(), curves)
    draw_confusion(evaluation.labels, evaluation.predictions, evaluation.class_names, confusion)
    mistakes = find_mistakes(source, preparation.split, evaluation)
    title, config = f"{source.name}, {model.name}", plain(configuration)
    write_report(report, title, facts, evaluation, curves, confusion, mistakes, source.bad_images, config)
    write_card(run.path, run_card(config, facts))
    measured, epoch = f"{evaluation.accuracy:.4f} on {evaluation.count:,} images", facts["best_epoch"]
    say(f"{preparation.split} accuracy {measured}, epoch {epoch}")
    if facts["averaged"]:
        say(f"{BEST} holds the average of the weights; {LAST} the weights themselves, to go on from")
    say(f"{duration(facts['seconds'])} in all; {report}")
    accuracy, classes = evaluation.accuracy, len(evaluation.class_names)
    return Result(accuracy, classes, facts["seconds"], run.path, model, evaluation, preparation.split, facts)


def _result(
    run: RunDirectory, preparation: Preparation, recorder: Recorder, evaluation: Evaluation, seconds: float
) -> dict[str, Any]:
    model, plan, rows, best = preparation.model, preparation.plan, run.rows(), recorder.best_epoch or 0
    training_seconds = rows[-1]["seconds"]
    return {
        "test_accuracy": evaluation.accuracy,
        "classes": len(evaluation.class_names),
        "seconds": seconds,
        "split": preparation.split,
        "test_images": evaluation.count,
        "test_loss": evaluation.loss,
        "top5_accuracy": evaluation.top5_accuracy,
        "calibration_error": evaluation.calibration_error,
        "averaged": [BEST] if plan.recipe.ema_momentum is not None else [],
        "best_epoch": best,
        "best_validation_accuracy": rows[best - 1]["val_accuracy"],
        "epochs": len(rows),
        "steps": int(rows[-1]["step"]),
        "recipe": plan.recipe.name,
        "parameters": model.count_params(),
        "trainable_parameters": num_parameters(model.trainable_weights),
        "training_seconds": training_seconds,
        "images_per_second": rows[-1]["step"] * plan.batch_size / training_seconds,
        "per_class": [dataclasses.asdict(result) for result in evaluation.classes],
    }
