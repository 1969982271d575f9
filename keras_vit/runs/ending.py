"""How a run ends: measured and written down, or stopped with what there is to go on from."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit.analysis.plots import draw_confusion, draw_curves
from keras_vit.evaluation import Evaluation, evaluate
from keras_vit.pages.cards import write_card
from keras_vit.pages.formatting import printable
from keras_vit.runs.last_lines import result_lines
from keras_vit.runs.own_files import (
    BEST,
    CHECKPOINTS,
    CONFUSION,
    CURVES,
    FAILURE,
    FINISHED,
    LAST,
    METRICS,
    REPORT,
    RESULT,
)
from keras_vit.runs.preparation import Preparation, num_parameters
from keras_vit.runs.recorder import Recorder
from keras_vit.runs.run_card import run_card
from keras_vit.runs.run_directory import RunDirectory, plain
from keras_vit.runs.run_page import find_mistakes, write_report

EVALUATION_BATCH = 64  # images at once; the numbers do not depend on it


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


def keep_what_there_is(
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
        if stopped:
            say(_goes_on(run))


def _goes_on(run: RunDirectory) -> str:
    return f"the same command goes on from there, with {printable(run.path)} as its folder"


def _listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) or "no file of it"


@contextlib.contextmanager
def _saying_how_to_go_on(run: RunDirectory, say: Callable[[str], Any]) -> Iterator[None]:
    """Says so where the end of a run is stopped."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        say(f"stopped; {_goes_on(run)}")
        raise


def finish(
    run: RunDirectory,
    preparation: Preparation,
    recorder: Recorder,
    configuration: dict[str, Any],
    began: float,
    say: Callable[[str], Any],
) -> Result:
    """Measures the model that was written, and writes what it came to."""
    with _saying_how_to_go_on(run, say):
        source = preparation.source
        say(f"measuring {BEST} on {source.sizes[preparation.split]:,} images")
        model = keras.models.load_model(run.path / BEST, compile=False)
        evaluation = evaluate(model, source, preparation.split, batch_size=EVALUATION_BATCH)
        facts = _result(run, preparation, recorder, evaluation, time.monotonic() - began)
        curves, confusion, report = (run.path / name for name in (CURVES, CONFUSION, REPORT))
        run.write_confusion(evaluation)
        run.write_json(RESULT, facts)  # first, since it cannot fail
        draw_curves(run.rows(), curves)
        draw_confusion(evaluation.labels, evaluation.predictions, evaluation.class_names, confusion)
        mistakes = find_mistakes(source, preparation.split, evaluation)
        title, config = f"{source.name}, {model.name}", plain(configuration)
        write_report(report, title, facts, evaluation, curves, confusion, mistakes, source.bad_images, config)
        write_card(run.path, run_card(config, facts))
        facts |= {"files": sorted({path.name for path in run.path.iterdir()} - {CHECKPOINTS})} | FINISHED
        run.write_json(RESULT, facts)  # the last one
        if "stopped" in facts:
            say(printable(f"stopped {facts['stopped']}"))
        if facts["averaged"]:
            say(f"{BEST} holds averaged weights, {LAST} the weights themselves")
        for line in result_lines(run.path, facts):
            say(line)
        accuracy, classes = evaluation.accuracy, len(evaluation.class_names)
        return Result(accuracy, classes, facts["seconds"], run.path, model, evaluation, preparation.split, facts)


def _result(
    run: RunDirectory, preparation: Preparation, recorder: Recorder, evaluation: Evaluation, seconds: float
) -> dict[str, Any]:
    model, plan, rows, best = preparation.model, preparation.plan, run.rows(), recorder.best_epoch or 0
    training_seconds = rows[-1]["seconds"]
    reason = "" if not recorder.stopped else f": {recorder.stopped}"
    stopped = {} if recorder.stopped is None else {"stopped": f"after epoch {len(rows)} of {plan.epochs}{reason}"}
    return {
        "test_accuracy": evaluation.accuracy,
        "classes": len(evaluation.class_names),
        "seconds": seconds,
        "split": preparation.source.own_name(preparation.split),
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
    } | stopped
