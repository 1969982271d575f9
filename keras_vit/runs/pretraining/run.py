"""One call from images without labels to an encoder: `keras_vit.pretrain` and `keras_vit.distil`.

Everything that can be refused is refused before the first step. The folder, checkpoints, progress and resuming are
those of `finetune`; what differs is that nothing is labelled, so a guard measures in place of a validation.
"""

import dataclasses
import time
import timeit
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.builders import config_of_weights
from keras_vit.config.variants import variant
from keras_vit.data import load_dataset
from keras_vit.data.source import Data, Source
from keras_vit.model.image_model import has_accelerator
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.pages.formatting import clock_time, duration, format_facts, plural
from keras_vit.renamed import accepts_old_arguments
from keras_vit.runs.callbacks import EpochCalls, EpochRecord, Rows
from keras_vit.runs.messages import data_lines
from keras_vit.runs.options import DistilOptions, PretrainOptions, changed, with_options
from keras_vit.runs.plan import begin, check_requirements, num_parameters, saving_failures, write_failure
from keras_vit.runs.preparation import run_facts
from keras_vit.runs.pretraining.guarding import PretrainPlan, RunGuard, choose_guarded, make_guard, open_images
from keras_vit.runs.pretraining.outcome import PretrainResult, finish
from keras_vit.runs.pretraining.recipes import advice, find_method, find_recipe
from keras_vit.runs.pretraining.trainings import (
    Plan,
    Training,
    build_encoder,
    find_crops,
    find_teacher,
    image_size,
    make_distillation,
    make_plan,
    make_pretraining,
)
from keras_vit.runs.progress import Progress, heartbeat
from keras_vit.runs.resume_check import check_unchanged, find_unfinished
from keras_vit.runs.run_directory import RunDirectory
from keras_vit.runs.run_files import BEST, METRICS
from keras_vit.training.callbacks import NonFiniteGuard, StepFacts, StopAfterSteps
from keras_vit.training.devices import Devices, strategy
from keras_vit.training.resuming.coordination import processes
from keras_vit.weights.registry import variant_of

_MEASURES = ("spread", "rank_me", "cosine_to_start")
_ENTROPIES = ("mean_target_entropy", "target_entropy")
_TIMED = 4  # images
_RIDGE_IMAGES, _RIDGE_BATCH = 512, 32


@accepts_old_arguments
@with_options(PretrainOptions)
def pretrain(
    data: Data,
    out: FilePath,
    options: PretrainOptions | None = None,
    *,
    print_fn: Callable[[str], Any] = print,
    on_epoch_end: Callable[[EpochRecord], Any] | None = None,
    **changes: Any,
) -> PretrainResult:
    """Trains an encoder on your images without labels, from nothing or from published weights.

    With `weights` the encoder of the start is a candidate too, so what is kept is never worse on held-out images. The
    random state of Keras is set by the option `seed`.

    Example:
        >>> quiet = lambda line: None
        >>> config = keras_vit.ViTConfig(8, 24, num_layers=1, num_heads=3, mlp_dim=48)
        >>> result = keras_vit.pretrain(
        ...     photos, "run", model=config, image_size=32, steps=2, print_fn=quiet
        ... )
        >>> sorted(path.name for path in (result.out / "encoder").iterdir())[1:]
        ['README.md', 'config.json', 'model.safetensors']

    Args:
        data: what `keras_vit.open_source` takes, or a folder of photos alone. Labels are used by the guard only.
        out: folder of the run, which must be new or empty, or hold an unfinished run of the same options and data: it
            goes on then, to the numbers that it would have come to. It gets `encoder/`, which `build`, and timm or
            transformers open, `encoder.keras` and `heads.npz`; `config.json`, `metrics.csv` with a row for each
            measurement, `tensorboard/`, `curves.png`, `result.json`, `report.html` and `README.md`.
        options: how to train, as a record.
        print_fn: called with each line of what happens; `print` also shows a bar on a terminal.
        on_epoch_end: called with a `keras_vit.EpochRecord` after each measurement. If it raises
            `keras_vit.StopTraining`, the run ends there.
        **changes: fields of that record, as `weights="dinov2"`; `help(keras_vit.PretrainOptions)` explains them.

    Returns:
        A `PretrainResult`.

    Raises:
        TypeError: for a keyword that is no option, or a value of the wrong type.
        ValueError: for arguments or data that are wrong, an `out` that is not empty, and an unfinished run that began
            otherwise.
        TrainingDivergedError: if the loss is no longer finite. `out` then has the best encoder up to there.
        KeyboardInterrupt, SystemExit: after Ctrl-C or SIGTERM, once the step is done and the state is saved.

    Source: DINOv2, arXiv:2304.07193; LeJEPA, arXiv:2511.08544; MAE, arXiv:2111.06377.
    """
    options = changed(options, dict(changes), PretrainOptions)
    return _run(data, out, options, print_fn, on_epoch_end)


@accepts_old_arguments
@with_options(DistilOptions)
def distil(
    data: Data,
    out: FilePath,
    options: DistilOptions | None = None,
    *,
    print_fn: Callable[[str], Any] = print,
    on_epoch_end: Callable[[EpochRecord], Any] | None = None,
    **changes: Any,
) -> PretrainResult:
    """Trains a small encoder on your images without labels to give the features of a larger one.

    A student with weights gets projectors that are fitted by ridge regression before the first step, since random
    ones would take what it knows.

    Example:
        >>> quiet = lambda line: None
        >>> config = keras_vit.ViTConfig(8, 24, num_layers=1, num_heads=3, mlp_dim=48)
        >>> teacher = keras_vit.build(config.replace(num_layers=2), include_top=False)
        >>> models = {"teacher": teacher, "student": config, "image_size": 224}
        >>> result = keras_vit.distil(photos, "run", steps=1, print_fn=quiet, **models)
        >>> result.encoder.output_shape
        (None, 24)

    Args:
        data: as of `keras_vit.pretrain`.
        out: as of `keras_vit.pretrain`.
        options: how to train, as a record.
        print_fn: called with each line of what happens.
        on_epoch_end: as of `keras_vit.pretrain`.
        **changes: fields of that record, as `student="Ti/16"`; `help(keras_vit.DistilOptions)` explains them.

    Returns:
        A `PretrainResult`.

    Raises:
        TypeError, ValueError, TrainingDivergedError, KeyboardInterrupt, SystemExit: as `keras_vit.pretrain`.

    Source: AM-RADIO, arXiv:2312.06709, section 3.
    """
    options = changed(options, dict(changes), DistilOptions)
    return _run(data, out, options, print_fn, on_epoch_end)


def _run(data: Data, out: FilePath, options: Any, print_fn: Callable[[str], Any], call: Any) -> PretrainResult:
    check_requirements(call)
    if processes()[1] > 1:
        raise ValueError("a training without labels is of one process.\nReceived: several. Start one alone.")
    with heartbeat(print_fn) as lines:
        began = time.monotonic()
        run_plan = resolve(data, out, options, lines)
        guarded, plan = run_plan.guarded, run_plan.plan
        names = [] if guarded is None else [guarded.name, *_MEASURES]
        names += _ENTROPIES if names and run_plan.training.targets else []
        losses = getattr(run_plan.training.model, "loss_means", {})
        columns = ("epoch", "step", "loss", *losses, *names, "learning_rate", "gradient_norm", "seconds")
        run = RunDirectory(out, columns, resumed=run_plan.earlier is not None)
        guard = None if guarded is None else make_guard(run, guarded, run_plan.training, run_plan.options, lines)
        guards = [] if guard is None else [guard]
        rows, progress = GuardedRows(run, guard), Progress(plan, lines, (), names[:2])
        checkpoints, configuration = begin(run_plan, run, [rows, *guards, progress], lines)
        calls = [] if call is None else [EpochCalls(rows, plan.epochs, call)]
        best = None if guard is None else f"{run.path / BEST}, the best encoder up to here"
        ends = [NonFiniteGuard(best), StopAfterSteps(plan.steps)]

        def save(error: BaseException) -> None:
            write_failure(run, error, (METRICS, BEST), lines)

        with saving_failures(run_plan, progress, checkpoints, save):
            run_plan.model.fit(
                run_plan.training.batches(checkpoints.step),
                epochs=plan.epochs,
                steps_per_epoch=plan.steps_per_epoch,
                callbacks=[*ends, StepFacts(), *guards, rows, progress, *calls, checkpoints],
                shuffle=False,
                verbose=0,
            )
        seconds = rows.seconds_before + time.monotonic() - began
        result = finish(run, run_plan, guard, rows.stopped, configuration, seconds, lines)
        checkpoints.discard()
    return result


def resolve(data: Data, out: FilePath, options: Any, print_fn: Callable[[str], Any]) -> PretrainPlan:
    """Opens the images, builds and compiles what is trained, and refuses what cannot be; nothing is written."""
    earlier = find_unfinished(out, options.resume)
    devices = strategy(options.strategy, precision=options.precision)
    found = dataclasses.replace(options, strategy=devices.kind, precision=devices.precision)
    source, has_labels = open_images(data, found)
    for line in data_lines(source, "labels are for the guard alone" if has_labels else "no labels", devices):
        print_fn(line)
    if not source.sizes.get("train"):
        raise ValueError(f"there must be training images.\nReceived: {source.name}, with {source.sizes}.")
    keras.utils.set_random_seed(found.seed)
    channels = min(source.pixels("train", 0).shape[-1], 3)
    with devices:
        build = _distillation if isinstance(found, DistilOptions) else _pretraining
        training, plan = build(found, source, channels, devices)
    guarded = choose_guarded(source, has_labels, found, training.views.global_size)
    run_plan = PretrainPlan(
        options=found,
        source=source,
        model=training.model,
        plan=plan,
        earlier=earlier,
        training=training,
        guarded=guarded,
    )
    for name, text in _facts(run_plan):
        for line in format_facts(name, text):
            print_fn(line)
    configuration = _configuration(run_plan, options.strategy, data, out)
    check_unchanged(out, earlier, configuration)
    return dataclasses.replace(run_plan, configuration=configuration)


def _pretraining(options: PretrainOptions, source: Source, channels: int, devices: Devices) -> tuple[Training, Plan]:
    images, has_weights = source.sizes["train"], options.weights is not None
    method = options.method or find_method(has_weights, images)
    plan = make_plan(options, find_recipe(method, has_weights, images), images, devices.num_replicas)
    stride = _stride(options.model, options.weights)
    size = image_size(options, stride)
    views = find_crops(options, method, size, stride)
    encoder = build_encoder("model", options.model, options.weights, size, channels)
    return make_pretraining(options, plan, source, encoder, views), plan


def _distillation(options: DistilOptions, source: Source, channels: int, devices: Devices) -> tuple[Training, Plan]:
    images = source.sizes["train"]
    teacher = find_teacher(options.teacher)
    has_weights = options.weights is not None or isinstance(options.student, VisionTransformer)
    plan = make_plan(options, find_recipe("distil", has_weights, images), images, devices.num_replicas)
    stride = _stride(options.student, options.weights)
    size = image_size(options, stride, teacher.config.stride)
    views = find_crops(options, "distil", size, stride)
    encoder = build_encoder("student", options.student, options.weights, size, teacher.input_shape[-1])
    training = make_distillation(options, plan, source, encoder, teacher, views)
    if has_weights:
        training = _with_fitted_projectors(training, source, views.global_size, options.seed)
    return training, plan


def _stride(model: Any, weights: FilePath | None) -> int:
    """The side of a patch, known before the encoder is built."""
    if isinstance(model, str):
        return variant(variant_of(model)).stride
    config = getattr(model, "config", model)
    return (config_of_weights(weights) if config is None else config).stride  # type: ignore[arg-type]


def _with_fitted_projectors(training: Training, source: Source, size: int, seed: int) -> Training:
    """The training with projectors by ridge regression, on training images as they are."""
    model: Any = training.model
    train = source.split("train")
    kept = np.sort(np.random.default_rng(seed).permutation(train.size)[:_RIDGE_IMAGES])
    rule = dataclasses.replace(training.encoder.preprocessing, image_size=(size, size))
    chosen = dataclasses.replace(source, splits={"test": train.take(kept)})
    batches = load_dataset(chosen, "test", batch_size=min(len(kept), _RIDGE_BATCH), preprocessing=rule, shard=(0, 1))
    model.fit_projectors(np.asarray(batch[0]) for batch in batches)
    words = (f"projectors are fitted to {plural(len(kept), 'image')} by ridge regression before the first step",)
    return dataclasses.replace(training, words=(*training.words, *words))


def _facts(run_plan: PretrainPlan) -> Any:
    """What is said before the first step, as `(name, text)`."""
    plan, training, recipe = run_plan.plan, run_plan.training, run_plan.plan.recipe
    encoder, views = training.encoder, training.views
    learning = num_parameters(training.model.trainable_weights)
    local = f" and {views.local_crops} of {views.local_size}" if views.local_crops else ""
    counts = f"{encoder.count_params():,} parameters; {learning:,} learn, heads included"
    yield "encoder", f"{encoder.name}: {counts}; crops of {views.global_size}{local}"
    passes = plan.steps * plan.batch_size / plan.num_images
    began = "published weights" if recipe.weights else "nothing"
    length = f"{plural(plan.steps, 'step')} of {plan.batch_size}, {passes:.3g} passes"
    start = f"{recipe.method} from {began} for {plural(plan.num_images, 'image')}"
    yield "recipe", f"{start}: {length}, learning rate {plan.learning_rate:g}; {recipe.source}"
    for words in training.words:
        yield "", words
    if words := advice(recipe.method, recipe.weights, plan.num_images):
        yield "", words
    guarded = run_plan.guarded
    yield "guard", "none" if guarded is None else guarded.words(plan.steps_per_epoch)
    if not has_accelerator():
        images = np.zeros((_TIMED, views.global_size, views.global_size, encoder.input_shape[-1]), "float32")
        _, *times = timeit.repeat(lambda: encoder.predict_on_batch(images), number=1, repeat=4)  # the first compiles
        image = min(times) / _TIMED
        step = image * training.units * plan.batch_size
        measured = 0 if guarded is None else guarded.source.sizes["test"] * (1 if guarded.classes else 3)
        seconds = step * plan.steps + image * measured * (plan.epochs + 1)
        steps = f"{plural(plan.steps, 'step')} of {step:,.2g} s, as a forward pass took"
        whole = f"about {duration(seconds)}, until {clock_time(seconds)}"
        yield "time", f"{whole}: {steps}; compiling and saving are not counted"


def _configuration(run_plan: PretrainPlan, requested: str, data: Any, out: FilePath) -> dict[str, Any]:
    """The facts of a run, all that decides its numbers among them; `requested` is the strategy as it was asked for."""
    training, guarded = run_plan.training, run_plan.guarded
    return run_facts(run_plan, training.encoder, data, out) | {
        "measured_on": None if guarded is None else guarded.name,
        "input_shape": (*[training.views.global_size] * 2, training.encoder.input_shape[-1]),
        "augmentation": dataclasses.asdict(training.views),
        "devices": requested,
    }


class GuardedRows(Rows):
    """Rows that remember which measurement was the best; list them after the guard, if there is one."""

    def __init__(self, run: RunDirectory, guard: RunGuard | None) -> None:
        super().__init__(run)
        self.guard = guard

    def get_state(self) -> dict[str, Any]:
        """As of all rows, and the measurement whose encoder is kept."""
        return super().get_state() | {"best_epoch": None if self.guard is None else self.guard.best_epoch}
