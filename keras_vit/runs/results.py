"""How a run ends: measured and written down with its report, or stopped with what there is to resume from."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_vit.analysis.plots import draw_curves
from keras_vit.annotations import FilePath
from keras_vit.pages.cards import write_card
from keras_vit.pages.formatting import duration, plural, printable, printable_json
from keras_vit.pages.html import Panel, Section, png_uri, write_page
from keras_vit.runs.callbacks import Recorder
from keras_vit.runs.messages import ignored_files, result_lines
from keras_vit.runs.plan import num_parameters, resume_hint, write_failure
from keras_vit.runs.preparation import FinetunePlan, task_facts
from keras_vit.runs.run_card import run_card
from keras_vit.runs.run_directory import RunDirectory, json_ready
from keras_vit.runs.run_files import BEST, CHECKPOINTS, CURVES, FINISHED, LAST, METRICS, REPORT, RESULT
from keras_vit.tasks import Task

EVALUATION_BATCH = 64  # images at once; the numbers do not depend on it


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """What a run came to. Each figure of `result.json` is an attribute too, by its name there.

    Attributes:
        out: the folder.
        model: the best model, as it is in `best.keras`.
        evaluation: all that was measured on `split`.
        split: `"test"` or `"validation"`.
        facts: what `result.json` holds.
        task: that it was trained for, with what was chosen on the validation set.
    """

    out: Path
    model: keras.Model
    evaluation: Any
    split: str
    facts: dict[str, Any]
    task: Task

    def __getattr__(self, name: str) -> Any:
        facts = vars(self).get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}.")

    def __repr__(self) -> str:
        (metric, value), (outputs, count), *_ = self.facts.items()
        figure = "None" if value is None else f"{value:.4f}"
        place = f"seconds={self.facts['seconds']:.1f}, out={str(self.out)!r}"
        return f"Result({metric}={figure}, split={self.split!r}, {outputs}={count}, {place})"


def save_partial_results(
    run: RunDirectory, run_plan: FinetunePlan, recorder: Recorder, error: BaseException, print_fn: Callable[[str], Any]
) -> None:
    """After a failure or Ctrl-C: the model as it is, unless it is not finite or cannot be read any more."""
    model, rows, saved = run_plan.model, [], False
    with contextlib.suppress(Exception):
        if hasattr(model, "jax_state_sync"):
            model.jax_state_sync()
        saved = run.save_model(model, LAST)
    with contextlib.suppress(ValueError, OSError):  # as of a line that a full disk cut short
        rows = run.rows()
    with contextlib.suppress(Exception):
        if rows:
            draw_curves(rows, run.path / CURVES, run_plan.options.task_record.curves)
    models = {"last_model": LAST if saved else None, "best_model": BEST if recorder.best_epoch else None}
    write_failure(run, error, (METRICS, CURVES, BEST, LAST), print_fn, epochs=len(rows), **models)


@contextlib.contextmanager
def _with_resume_hint(run: RunDirectory, print_fn: Callable[[str], Any]) -> Iterator[None]:
    """Prints how to resume if the end of a run is stopped."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        print_fn(f"stopped; {resume_hint(run)}")
        raise


def finish(
    run: RunDirectory,
    run_plan: FinetunePlan,
    recorder: Recorder,
    configuration: dict[str, Any],
    began: float,
    print_fn: Callable[[str], Any],
) -> Result:
    """Measures the model that was written, and writes what it came to."""
    with _with_resume_hint(run, print_fn):
        source = run_plan.source
        print_fn(f"measuring {BEST} on {plural(source.sizes[run_plan.split], 'image')}")
        model = keras.models.load_model(run.path / BEST, compile=False)
        task = run_plan.options.task_record.settle(model, source, EVALUATION_BATCH)
        evaluation = task.evaluate(model, source, run_plan.split, batch_size=EVALUATION_BATCH)
        seconds = recorder.seconds_before + time.monotonic() - began
        facts = _result(run, run_plan, recorder, task, evaluation, seconds)
        run.write_json(RESULT, facts)  # first, since it cannot fail
        draw_curves(run.rows(), run.path / CURVES, task.curves)
        task.write_files(evaluation, run.path)
        title, config = f"{source.name}, {model.name}", json_ready(configuration)
        panel = task.panel(evaluation, run.path, source, run_plan.split)
        left_out = [(str(image.path), image.reason) for image in source.bad_images]
        left_out += [(plural(count, "file"), kind) for count, kind in ignored_files(source)]
        write_report(run.path / REPORT, title, facts, panel, run.path / CURVES, left_out, config)
        write_card(run.path, run_card(config, facts))
        facts |= {"files": sorted({path.name for path in run.path.iterdir()} - {CHECKPOINTS})} | FINISHED
        run.write_json(RESULT, facts)  # the last one
        if "stopped" in facts:
            print_fn(printable(f"stopped {facts['stopped']}"))
        if facts["averaged"]:
            print_fn(f"{BEST} holds averaged weights, {LAST} the weights themselves")
        for line in result_lines(run.path, facts, task):
            print_fn(line)
        return Result(run.path, model, evaluation, run_plan.split, facts, task)


def _result(
    run: RunDirectory, run_plan: FinetunePlan, recorder: Recorder, task: Task, evaluation: Any, seconds: float
) -> dict[str, Any]:
    model, plan, rows, best = run_plan.model, run_plan.plan, run.rows(), recorder.best_epoch or 0
    training_seconds, metric = rows[-1]["seconds"], task.metrics[0]
    reason = "" if not recorder.stopped else f": {recorder.stopped}"
    ending: dict[str, Any] = {}
    if recorder.stopped is not None:
        ending["stopped"] = f"after epoch {len(rows)} of {plan.epochs}{reason}"
    if run_plan.options.layout == "none":  # else it cannot be made longer
        ending["random_state"] = [keras.ops.convert_to_numpy(state).tolist() for state in random_states(model)]
    facts = {
        "seconds": seconds,
        "split": run_plan.source.own_name(run_plan.split),
        "test_images": evaluation.count,
        "averaged": [BEST] if plan.recipe.ema_momentum is not None else [],
        "best_epoch": best,
        f"best_validation_{metric}": rows[best - 1][f"val_{metric}"],
        "epochs": len(rows),
        "steps": int(rows[-1]["step"]),
        "recipe": plan.recipe.name,
        "parameters": model.count_params(),
        "trainable_parameters": num_parameters(model.trainable_weights),
        "training_seconds": training_seconds,
        "images_per_second": rows[-1]["step"] * plan.batch_size / training_seconds,
    }
    return task.result(evaluation, facts) | task_facts(task) | ending


def random_states(model: keras.Model) -> list[Any]:
    """The variables of a model that its random numbers come from, as those of dropout; no file of Keras has them."""
    weights = {id(weight) for weight in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def write_report(
    path: FilePath,
    title: str,
    result: dict[str, Any],
    panel: Panel,
    curves: Path,
    left_out: Sequence[tuple[str, str]] = (),
    config: dict[str, Any] | None = None,
) -> None:
    """Writes the page; `left_out` has `(file, reason)` of what was not read."""
    measured = f"measured on the {result['split']} set"
    epochs = str(result["epochs"]) + (f", stopped {result['stopped']}" if "stopped" in result else "")
    parameters, time = ("parameters", f"{result['parameters']:,}"), ("time in all", duration(result["seconds"]))
    metric = next(iter(result)).removeprefix("test_").replace("_", " ")
    words = f"loss, {metric}, learning rate and gradient norm by epoch"
    write_page(
        path,
        "report",
        title=title,
        subtitle=f"recipe {result['recipe']}; best epoch {result['best_epoch']} of {epochs}; {measured}",
        panel=dataclasses.replace(panel, figures=[*panel.figures, parameters, time]),
        curves=Section("Training", picture=png_uri(curves.read_bytes()), alt=words),
        left_out=left_out,
        configuration=printable_json(config or {}).split("\n"),
    )
