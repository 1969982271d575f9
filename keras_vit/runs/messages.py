"""What a run prints before it trains, a fact a line, and at its end: what it came to, and what to do next.

Keras is not needed, since a finished run answers to the same command once more.
"""

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


def data_lines(source: "Source", outputs: str) -> Iterator[str]:
    """Its name and size, with the outputs in words, and how many files of each kind do not count."""
    sizes = ", ".join(f"{split} {size:,}" for split, size in source.sizes.items())
    yield from format_facts("data", f"{printable(source.name)}: {outputs}; {sizes} images")
    if source.bad_images:  # `open_source` has warned of them with examples
        yield from format_facts("", f"{len(source.bad_images):,} files left out: {count_reasons(source.bad_images)}")
    if ignored := ", ".join(f"{count:,} {kind}" for count, kind in ignored_files(source)):
        yield from format_facts("", f"ignored: {ignored}")


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
    steps = f"{plan.steps:,} steps of {plan.batch_size} images in {plural(plan.epochs, 'epoch')}"
    yield from format_facts("recipe", f"{plan.recipe.name}: {steps}, learning rate {plan.learning_rate:g}")
    passes = round(plan.steps * plan.batch_size / plan.num_images)
    if passes != plan.epochs:
        shown = (
            f"{passes:,} passes over {plan.num_images:,} images; one epoch is {plan.steps_per_epoch:,} whole batches"
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


def result_lines(folder: Path, facts: Mapping[str, Any], task: Task) -> Iterator[str]:
    """A table of results and the next command; `facts` are those of `result.json`, of which old runs lack some."""
    rows = [*task.result_rows(facts)]
    if "seconds" in facts:
        rows.append(("time", duration(facts["seconds"])))
    report = folder / REPORT if (folder / REPORT).is_file() else folder
    yield ""
    yield "Results"
    yield from (f"  {line}" for line in columns([*rows, ("report", printable(report))]))
    yield ""
    yield "Next"
    yield f"  keras-vit predict PHOTO --model {shlex.quote(printable(folder))}{task.predict_options}"
