"""What a run prints before it trains, a fact a line, and at its end: what it came to, and what to do next.

Keras is not needed, since a finished run answers to the same command once more.
"""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_vit.config.progressive_resizing import ResolutionStage
from keras_vit.images.validation import count_reasons
from keras_vit.pages.formatting import columns, duration, format_facts, plural, printable
from keras_vit.runs.run_files import REPORT
from keras_vit.tasks import Task

if TYPE_CHECKING:
    import keras

    from keras_vit.data.source import Source
    from keras_vit.training.plan import Plan

ENCODER = "encoder"  # folder of a self-supervised training
MEASURES = {
    "knn": "kNN accuracy",
    "twins": "twins found",
    "spread": "spread",
    "rank_me": "RankMe",
    "cosine_to_start": "cosine to the start",
    "mean_target_entropy": "entropy of the mean target (nats)",
    "target_entropy": "mean entropy of targets (nats)",
    "loss": "loss",
    "learning_rate": "learning rate",
}


def data_lines(source: "Source", outputs: str, devices: Any = None) -> Iterator[str]:
    """Its name and size, with the outputs in words, how many files of each kind do not count, and what computes."""
    sizes = ", ".join(f"{split} {size:,}" for split, size in source.sizes.items())
    yield from format_facts("data", f"{printable(source.name)}: {outputs}; {sizes} images")
    if source.bad_images:  # `open_source` has warned of them with examples
        yield from format_facts(
            "", f"{plural(len(source.bad_images), 'file')} left out: {count_reasons(source.bad_images)}"
        )
    if ignored := ", ".join(f"{count:,} {kind}" for count, kind in ignored_files(source)):
        yield from format_facts("", f"ignored: {ignored}")
    if devices is not None and (devices.kind, devices.precision) != ("one", "float32"):
        yield from format_facts("devices", devices.reason)


def ignored_files(source: "Source") -> Iterator[tuple[int, str]]:
    """How many files do not count as photos, and their kind, with the path of one."""
    counts, examples = (source.facts.get(name) for name in ("ignored_kinds", "ignored_examples"))
    for kind, count in counts.items() if isinstance(counts, dict) else ():
        example = f", as {examples[kind]}" if isinstance(examples, dict) and kind in examples else ""
        yield count, printable(f"{kind}{example}")


def plan_lines(model: "keras.Model", learning: int, plan: "Plan", stages: Sequence[ResolutionStage]) -> Iterator[str]:
    """The model, of whose parameters so many learn, and the recipe with what differs from it as it was published."""
    size, parameters = "x".join(map(str, model.input_shape[1:])), model.count_params()
    share = "all learn" if learning == parameters else f"{learning:,} learn"
    yield from format_facts("model", f"{model.name}: {parameters:,} parameters, {share}; images of {size}")
    steps = f"{plural(plan.steps, 'step')} of {plural(plan.batch_size, 'image')} in {plural(plan.epochs, 'epoch')}"
    yield from format_facts("recipe", f"{plan.recipe.name}: {steps}, learning rate {plan.learning_rate:g}")
    passes = round(plan.steps * plan.batch_size / plan.num_images)
    if passes != plan.epochs:
        shown = (
            f"{passes:,} pass{'es' * (passes != 1)} over {plural(plan.num_images, 'image')}; one epoch is "
            f"{plan.steps_per_epoch:,} whole batch{'es' * (plan.steps_per_epoch != 1)}"
        )
        yield from format_facts("", shown)
    changes = [change.replace("_", " ") for change in plan.changes() if change != f"steps: {plan.steps:g}"]
    if changes:
        yield from format_facts("", "; ".join(changes))
    if hasattr(model, "loss_in_words"):  # both towers
        yield from format_facts("loss", model.loss_in_words())
    if plan.accumulation_steps > 1:
        yield from format_facts("", f"each batch in {plan.accumulation_steps} micro-batches")
    if len(stages) > 1:
        sizes = ", ".join(f"{'x'.join(map(str, stage.image_size))} from epoch {stage.epoch}" for stage in stages)
        yield from format_facts("", f"images grow: {sizes}")


def result_lines(folder: Path, facts: Mapping[str, Any], task: Task) -> list[str]:
    """A table of results and the next command; `facts` are those of `result.json`, of which old runs lack some."""
    rows = [*task.result_rows(facts)]
    if "seconds" in facts:
        rows.append(("time", duration(facts["seconds"])))
    report = folder / REPORT if (folder / REPORT).is_file() else folder
    command = f"{task.command} PHOTO --model {shlex.quote(printable(folder))}{task.predict_options}"
    return closing_lines([*columns([*rows, ("report", printable(report))])], command)


def closing_lines(results: Sequence[str], command: str) -> list[str]:
    """The last lines of a run: its results, and the next command."""
    return ["", "Results", *(f"  {line}" for line in results), "", "Next", f"  keras-vit {command}"]


def measure_rows(facts: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Each measure at the start and of the encoder that is kept."""
    for name, value in facts.get("start", {}).items():
        kind = ".1%" if name in ("knn", "twins") else ".3g"
        yield MEASURES[name], f"{value:{kind}}", f"{facts['best'][name]:{kind}}"


def kept_words(facts: Mapping[str, Any]) -> str:
    """Which encoder a self-supervised training has kept, as a sentence."""
    if "measure" not in facts:
        return "The encoder of the last step was kept; nothing was measured."
    if not facts["best_epoch"]:
        return "The encoder of the start was kept, since none was better."
    return f"The encoder of measurement {facts['best_epoch']} of {facts['epochs']} was kept, the best."


def encoder_lines(folder: Path, facts: Mapping[str, Any]) -> list[str]:
    """The last lines of a self-supervised training, by what `result.json` holds."""
    rows = [(name, f"{start} at the start, {best} kept") for name, start, best in measure_rows(facts)]
    rows += [("time", duration(facts["seconds"])), ("encoder", printable(folder / ENCODER))]
    next_command = f"finetune --data DATA --weights {printable(os.fspath(folder / ENCODER))}"
    return closing_lines([*columns(rows), kept_words(facts)], next_command)
