"""One call from a data set to a trained model with its report: `keras_vit.finetune`, and `keras-vit finetune`.

Everything that can be refused is refused before the first step, and nothing is written before that.
"""

import contextlib
import dataclasses
import sys
import time
from pathlib import Path

import keras

from keras_vit.data import load_dataset
from keras_vit.evaluation import Evaluation, evaluate
from keras_vit.training.callbacks import StepFacts
from keras_vit.training.pictures import check_matplotlib, draw_confusion, draw_curves
from keras_vit.training.progress import Progress, duration
from keras_vit.training.report import find_mistakes, write_report
from keras_vit.training.run_directory import (
    BEST,
    CONFIG,
    CURVES,
    FAILURE,
    LAST,
    METRICS,
    RESULT,
    Recorder,
    RunDirectory,
    check_free,
    plain,
    versions,
)
from keras_vit.training.start import Request, Start, count, make_start

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


def finetune(
    data,
    out,
    *,
    model="small",
    weights="default",
    recipe=None,
    image_size=None,
    batch_size=None,
    steps=None,
    epochs=None,
    learning_rate=None,
    augmentation=None,
    accumulation_steps=None,
    layer_decay=None,
    ema_momentum=None,
    lora_rank=None,
    trainable="all",
    policy="float32",
    strategy="none",
    seed=0,
    on_bad_image="skip",
    say=print,
) -> Result:
    """Trains a classifier on labelled images by a published recipe, measures it, and writes everything down.

    The random state of Keras is set by `seed`.

    Args:
        data: a folder, a `.csv`, a name, arrays, or a `Source`, as `keras_vit.open_source` takes them.
        out: folder of the run, which must be new or empty. It gets `config.json`, `metrics.csv`, `tensorboard/`,
            `best.keras` (by validation accuracy) and `last.keras`, `result.json`, `report.html`, `curves.png`,
            `confusion_matrix.png` and `.csv`, and `bad_images.txt` if there are any.
        model: `"small"`, a ViT of below a million parameters for training from random weights; a variant or builder
            as `"B/16"` or `"ViTB16"`; a `ViTConfig`; or a `VisionTransformer` that ends in logits, which is trained
            in place, with its head.
        weights: as `keras_vit.build` takes them; by default `"augreg-imagenet21k"` for a variant, and none else.
        recipe: a name in `keras_vit.RECIPES` or a `Recipe`; by default `"augreg-finetune"` for pre-trained weights,
            and `"digits"` or `"small"` for random ones, by the size of the pictures.
        image_size: side in pixels or `(H, W)`; by default the recipe's, or the model's.
        batch_size: images of one optimizer step; by default the recipe's, or fewer for a small training set.
        steps: optimizer steps in all; by default the recipe's. Where no recipe is named, pre-trained weights get 500
            for up to 10,000 images, 10,000 for up to 200,000, and else 20,000 (arXiv:2010.11929, table 4).
        epochs: the same as passes over the images.
        learning_rate: the highest one.
        augmentation: `Augmentation` or its name instead of the recipe's.
        accumulation_steps: micro-batches of a batch. Where neither this nor `batch_size` is given, as many as the
            memory asks for.
        layer_decay: in (0, 1], of the rate from each layer to the one below.
        ema_momentum: of Polyak averaging, in (0, 1), instead of the recipe's.
        lora_rank: trains low-rank factors of this rank and the head only.
        trainable: `"all"`, `"head"`, or `"last_blocks:k"`.
        policy: `"float32"`, `"mixed_bfloat16"` or `"mixed_float16"`.
        strategy: `"mirrored"` for all GPUs of this machine by TensorFlow, or `"none"`.
        seed: of the split, the order, the augmentation, and the weights that begin at random.
        on_bad_image: `"skip"` names files that cannot be decoded and goes on; `"raise"` refuses them.
        say: called with each line of what happens; `print` also shows a bar on a terminal.

    Returns:
        A `Result`.

    Raises:
        ValueError: for arguments or data that are wrong, an `out` that is not empty or cannot be written
            to, or a batch that cannot fit.
        TrainingDivergedError: if the loss is no longer finite. `out` then has all figures and the last finite model.
        OfflineError: if the weights are not at hand and cannot be brought.
        ImportError: without the extra `train`.
    """
    request = Request(**locals())  # first of all: the arguments as they came
    began = time.monotonic()
    check_free(out)
    check_matplotlib()
    start = make_start(request)
    run = RunDirectory(out)
    run.write_json(CONFIG, _configuration(start))
    _write_bad_images(run, start.source)
    recorder = Recorder(run)
    _fit(run, start, recorder)
    return _finish(run, start, recorder, began)


def _configuration(start: Start) -> dict:
    """All that decides the numbers."""
    model, plan = start.model, start.plan
    return {
        "versions": versions(),
        "command": sys.argv,
        "arguments": start.request.facts(),
        "seed": start.request.seed,
        "policy": start.request.policy,
        "data": start.source.describe(),
        "measured_on": start.split,
        "input_shape": model.input_shape[1:],
        "model": {"name": model.name, **dataclasses.asdict(model.config)},
        "weights_report": model.weights_report,
        "preprocessing": dataclasses.asdict(model.preprocessing),
        "recipe": dataclasses.asdict(plan.recipe),
        "plan": {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name != "recipe"},
        "changes": plan.changes(),
        "augmentation": dataclasses.asdict(start.augmentation),
        "devices": start.devices,
    }


def _write_bad_images(run, source):
    if source.bad_images:
        run.write_text("bad_images.txt", "".join(f"{image.path}\t{image.reason}\n" for image in source.bad_images))


def _fit(run, start, recorder):
    """Trains; whatever ends it early, the last finite model is kept, and the folder says what happened."""
    request, model = start.request, start.model
    progress = Progress(start.plan, request.say)
    arguments = start.plan.fit_arguments(last_good=lambda: _last_good(run, recorder))
    arguments["callbacks"] += [StepFacts(), recorder, progress]
    try:
        model.fit(_train_set(start), validation_data=_validation_set(start), verbose=0, **arguments)
    except BaseException as error:
        progress.close()
        _keep_what_there_is(run, start, recorder, error)
        raise
    if not run.save_model(model, LAST):
        raise ValueError("the last step left a weight that is not finite.\nReceived: see metrics.csv of the run.")


def _last_good(run, recorder):
    """For the message of a run that diverges: the guard stops it while the model is finite, and then it is saved."""
    best = f"; the best one is {recorder.best_model}" if recorder.best_model else ""
    return f"{run.path / LAST}, which is written as the run stops{best}"


def _train_set(start):
    request, plan = start.request, start.plan
    return load_dataset(
        start.source,
        "train",
        batch_size=plan.batch_size,
        preprocessing=start.model.preprocessing,
        training=True,
        augmentation=start.augmentation,
        labels=start.labels,
        seed=request.seed,
    )


def _validation_set(start):
    if not start.source.sizes.get("validation"):
        return None
    batch_size = -(-_EVALUATION_BATCH // start.devices) * start.devices
    return load_dataset(
        start.source,
        "validation",
        batch_size=batch_size,
        preprocessing=start.model.preprocessing,
        labels=start.labels,
    )


def _keep_what_there_is(run, start, recorder, error):
    """After a failure or Ctrl-C: the model as it is, unless it is not finite or cannot be read any more."""
    saved = False
    with contextlib.suppress(Exception):
        if hasattr(start.model, "jax_state_sync"):
            start.model.jax_state_sync()
        saved = run.save_model(start.model, LAST)
    stopped = isinstance(error, (KeyboardInterrupt, SystemExit))
    facts = {
        "status": "stopped" if stopped else "failed",
        "error": f"{type(error).__name__}: {error}",
        "epochs": len(run.rows()),
        "last_model": LAST if saved else None,
        "best_model": BEST if recorder.best_epoch else None,
    }
    with contextlib.suppress(OSError):  # as on a full disk; the error that ended the run is the one to tell
        run.write_json(FAILURE, facts)
    with contextlib.suppress(Exception):
        if run.rows():
            draw_curves(run.rows(), run.path / CURVES)
    kept = [name for name in (METRICS, CURVES, BEST, LAST, FAILURE) if (run.path / name).exists()]
    with contextlib.suppress(Exception):
        start.request.say(f"{facts['status']}; {run.path} has {_listed(kept)}")


def _listed(names):
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "no file of it"


def _finish(run, start, recorder, began):
    """Measures the model that was written, and writes what it came to."""
    source, say = start.source, start.request.say
    model = keras.models.load_model(run.path / BEST, compile=False)
    evaluation = evaluate(model, source, start.split, batch_size=_EVALUATION_BATCH)
    facts = _result(run, start, recorder, evaluation, time.monotonic() - began)
    pictures = {"curves": run.path / CURVES, "confusion matrix": run.path / "confusion_matrix.png"}
    report = run.path / "report.html"
    run.write_confusion(evaluation)
    written = {path.name for path in (*run.path.iterdir(), *pictures.values(), report)}
    run.write_json(RESULT, facts | {"files": sorted({*written, RESULT})})  # first, since it cannot fail
    draw_curves(run.rows(), pictures["curves"])
    draw_confusion(evaluation.confusion, evaluation.class_names, pictures["confusion matrix"])
    mistakes = find_mistakes(source, start.split, evaluation)
    title, config = f"{source.name}, {model.name}", plain(_configuration(start))
    write_report(report, title, facts, evaluation, pictures, mistakes, source.bad_images, config)
    say(f"{start.split} accuracy {evaluation.accuracy:.4f} on {evaluation.count:,} images, epoch {facts['best_epoch']}")
    say(f"{duration(facts['seconds'])} in all; {report}")
    accuracy, classes = evaluation.accuracy, len(evaluation.class_names)
    return Result(accuracy, classes, facts["seconds"], run.path, model, evaluation, start.split, facts)


def _result(run, start, recorder, evaluation, seconds):
    model, plan, rows = start.model, start.plan, run.rows()
    training_seconds = rows[-1]["seconds"]
    return {
        "test_accuracy": evaluation.accuracy,
        "classes": len(evaluation.class_names),
        "seconds": seconds,
        "split": start.split,
        "test_images": evaluation.count,
        "test_loss": evaluation.loss,
        "top5_accuracy": evaluation.top5_accuracy,
        "calibration_error": evaluation.calibration_error,
        "best_epoch": recorder.best_epoch,
        "best_validation_accuracy": rows[recorder.best_epoch - 1]["val_accuracy"],
        "epochs": len(rows),
        "steps": int(rows[-1]["step"]),
        "recipe": plan.recipe.name,
        "parameters": model.count_params(),
        "trainable_parameters": count(model.trainable_weights),
        "training_seconds": training_seconds,
        "images_per_second": rows[-1]["step"] * plan.batch_size / training_seconds,
        "per_class": [dataclasses.asdict(result) for result in evaluation.classes],
    }
