"""What a run starts from: the data, the model, the weights that learn, and the plan, all of them checked.

`run_configuration` gives what `config.json` holds of it: all that decides the numbers of a run.
"""

import contextlib
import dataclasses
import math
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import Arguments, FilePath, Pair
from keras_vit.builders import build, build_resnet, config_of_weights, published_resnet, published_variant
from keras_vit.checks import ArgumentError, as_sides
from keras_vit.config.progressive_resizing import ResolutionStage, growing_stages
from keras_vit.config.recipes import Recipe, find_recipe
from keras_vit.config.variants import (
    DEFAULT_IMAGE_SIZE,
    RESNETS,
    ResNetConfig,
    check_image_size,
    check_tiled,
    resnet,
    variant,
)
from keras_vit.config.vit import ViTConfig
from keras_vit.data import open_source
from keras_vit.data.augmentation import Augmentation, find_augmentation
from keras_vit.data.opening import DIGITS
from keras_vit.data.shards.finding import find_shards
from keras_vit.data.source import Data, Source, fingerprint
from keras_vit.files import expand_path, file_sha256
from keras_vit.model.freezing import add_lora, freeze
from keras_vit.model.image_model import ImageModel
from keras_vit.model.replicated_model import num_replicas
from keras_vit.model.resnet import ResNet
from keras_vit.model.training_step import num_batch_shards
from keras_vit.pages.formatting import format_facts, printable
from keras_vit.runs.load import check_reloads
from keras_vit.runs.messages import data_lines, plan_lines
from keras_vit.runs.options import FinetuneOptions, is_short, parse_layout, parse_trainable
from keras_vit.runs.plan import RunPlan, num_parameters
from keras_vit.runs.progress import print_estimates
from keras_vit.runs.resume_check import UnfinishedRun, check_unchanged, find_earlier, resume_fingerprint
from keras_vit.tasks import DEFAULT, Task
from keras_vit.training.devices import Devices, strategy
from keras_vit.training.hosts.distribution import check_same_everywhere, set_distribution, shared_run_dir
from keras_vit.training.memory import available_memory, check_memory, largest_micro_batch
from keras_vit.training.plan import Plan, check_model, plan
from keras_vit.training.resuming.coordination import all_reduce_max, processes
from keras_vit.version import __version__
from keras_vit.weights.checkpoint_card import read_origin, record_origin
from keras_vit.weights.download.environment import without_secrets
from keras_vit.weights.registry import find_weights, variant_of
from keras_vit.weights.resolve import check_available, find_file, is_url, only_variant

PRETRAINED = "augreg-imagenet21k"  # weights of a variant unless others are asked for
RESNET_PRETRAINED = "bit-imagenet21k"  # and of a ResNet
FINETUNE_RECIPE = "augreg-finetune"
# Steps of that recipe where none are asked for, by images: those of the sets in arXiv:2010.11929, table 4.
_FINETUNE_STEPS = ((10_000, 500), (200_000, 10_000), (math.inf, 20_000))  # pets and flowers, CIFAR, ImageNet


@dataclasses.dataclass(frozen=True)
class SmallModel:
    """What `model="small"` is for images of one kind.

    Args:
        config: of the model.
        image_size: side in pixels.
        recipe: name of the recipe by default.
    """

    config: ViTConfig
    image_size: int
    recipe: str


_TINY = 40  # pixels, the longest side of what is no photo
# Averaged tokens and fixed positions, as arXiv:2205.01580 has for ImageNet, learn small sets in half the epochs; with
# width 96 and stochastic depth, 1 and 3 of the 179 test digits are mistaken (seeds 0 and 2), with width 64, 4 and 1.
_WIDTH: dict[str, Any] = {"hidden_size": 96, "num_heads": 4, "mlp_dim": 192}
_PLAIN: dict[str, Any] = {"pooling": "gap", "position_embedding": "sincos2d", "stochastic_depth_rate": 0.1}
SMALL_MODELS = {
    "tiny": SmallModel(ViTConfig(patch_size=4, num_layers=4, **_WIDTH, **_PLAIN), 24, "digits"),
    "photos": SmallModel(ViTConfig(patch_size=8, num_layers=6, **_WIDTH, **_PLAIN), 64, "small"),
}


def small_model(source: Source) -> SmallModel:
    """The small model for the images of a source, by the size of the first image."""
    height, width = source.pixels("train", 0).shape[:2]
    return SMALL_MODELS["tiny" if max(height, width) <= _TINY else "photos"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FinetunePlan(RunPlan):
    """All that is decided of a run of `finetune`.

    Attributes:
        split: that the result is measured on.
        stages: of the training, by the size of the images; one where that stays.
        augmentation: of the training images.
        encoding: of the targets, as the task has it.
        devices: that share a batch.
    """

    split: str
    stages: tuple[ResolutionStage, ...]
    augmentation: Augmentation
    encoding: str
    devices: int


def resolve(data: Data, out: FilePath, options: FinetuneOptions, print_fn: Callable[[str], Any]) -> FinetunePlan:
    """Reads data, model and what `out` holds, decides all of the run, and refuses what could not come to its end.

    Nothing is written; what a finished run has left is swept.
    """
    earlier, place = find_earlier(out, options), shared_run_dir(out)
    print_fn(f"Fine-tuning into {printable(place)}")
    run_plan = prepare(data, options, print_fn, earlier)
    configuration = run_configuration(run_plan, data, out)
    check_same_everywhere(resume_fingerprint(configuration))  # of processes that train together
    check_unchanged(out, earlier, configuration)
    if isinstance(options.model, ImageModel):
        check_reloads(run_plan.model)
    print_estimates(run_plan, place, print_fn)
    return dataclasses.replace(run_plan, configuration=configuration)


def prepare(
    data: Data, options: FinetuneOptions, print_fn: Callable[[str], Any], earlier: UnfinishedRun | None = None
) -> FinetunePlan:
    """Opens the data, builds and compiles the model, and refuses what cannot be trained."""
    options = dataclasses.replace(options, model=options.start)
    inferred = _check_request(options)
    devices = _find_devices(options)
    options = dataclasses.replace(options, strategy=devices.kind, precision=devices.precision)
    task = options.task_record
    source = open_source(data, seed=options.seed, on_bad_image=options.on_bad_image, targets=task.targets())
    if options.train_images is not None:
        source = task.subset(source, options.train_images, options.seed)
    _check_same_inputs(options, source)
    for line in data_lines(source, task.size_in_words(len(source.class_names)), devices):
        print_fn(line)
    task.check_source(source)
    split = _measured_split(source)
    if options.stop_early is not None and not source.sizes.get("validation"):
        raise ArgumentError(
            "`stop_early` needs a validation set, on which a gain is measured.\n"
            f"Received: stop_early={options.stop_early} for {source.name}, with {source.sizes}."
        )
    keras.utils.set_random_seed(options.seed)
    small = small_model(source)
    recipe = _find_recipe(options, small)
    with devices:
        model, head = _find_model(options, source, small, recipe, inferred)
        sharing = max(devices.num_replicas, num_batch_shards())
        _choose_weights(model, options)
        whole = task.complete(model, options.lora_rank)
        begun = None if earlier is None else earlier.plan(options)
        training_plan = _make_plan(options, source, whole, recipe, sharing, print_fn, begun)
        stages = _find_stages(options, recipe, model, training_plan.epochs)
        by_default = task.augmentation or recipe.augmentation
        augmentation = find_augmentation(by_default if options.augmentation is None else options.augmentation)
        encoding = task.encoding(training_plan, augmentation)
        known = len(getattr(whole, "load_report", ()))
        model = task.prepare(whole, training_plan, source, head)
        model.compile(**task.compile_arguments(training_plan, encoding, source))
    model.class_names = tuple(source.class_names)
    for line in getattr(model, "load_report", ())[known:]:
        print_fn(line)  # of a trained head that is lost, though it has as many outputs
    for line in plan_lines(model, num_parameters(model.trainable_weights), training_plan, stages):
        print_fn(line)
    if words := task.loss_in_words(source):
        for line in format_facts("loss", words):
            print_fn(line)
    return FinetunePlan(
        options=options,
        source=source,
        model=model,
        plan=training_plan,
        earlier=earlier,
        split=split,
        stages=stages,
        augmentation=augmentation,
        encoding=encoding,
        devices=sharing,
    )


def _check_same_inputs(options: FinetuneOptions, source: Source) -> None:
    """Raises unless processes that train together have the same data, weights and versions.

    With the options, which were compared before, these decide the shapes of all weights. JAX exchanges weights as they
    are made, and aborts where sizes differ.
    """
    if processes()[1] == 1:
        return
    configuration = {"arguments": {}, "versions": versions(), "data": source.describe()}
    facts = resume_fingerprint(configuration | {"data_hash": fingerprint(source)})
    facts["first_image"] = source.pixels("train", 0).shape
    if (weights := chosen_weights(options)) is not None:
        variant = only_variant(weights) if options.start is None else published_name(options.start)
        facts["weights_sha256"] = file_sha256(find_file(weights, variant).path)
    check_same_everywhere(facts)


def _check_request(options: FinetuneOptions) -> ViTConfig | ResNetConfig:
    """Refuses what does not depend on the data, before these are read; gives the config that is known by then."""
    if isinstance(options.model, ImageModel):
        config = options.model.config
        _check_is_built(options)
        if options.task_record.head is not None:
            check_model(options.model, _find_recipe(options, None))
    else:
        weights = chosen_weights(options)
        config = config_of_weights(weights) if options.model is None and weights else _unbuilt_config(options.model)
        if weights is not None and options.model is not None:
            check_available(weights, published_name(options.model))
        if options.image_size is not None:
            check_image_size(options.image_size, config)
        if options.patch_dropout_rate is not None and isinstance(config, ViTConfig):
            config.replace(patch_dropout_rate=options.patch_dropout_rate)
    if options.start_image_size is not None:
        _check_start(options.start_image_size, config)
    _check_depth_and_width(options, config)
    return config


def published_name(model: str | ViTConfig | ResNetConfig) -> str | None:
    """The name of the published model that is asked for, or that has this config; `None` if there is none."""
    if isinstance(model, str):
        return None if model == "small" else variant_of(model)
    return published_resnet(model) if isinstance(model, ResNetConfig) else published_variant(model)


def _check_start(start: int | Pair, config: ViTConfig | ResNetConfig) -> None:
    """Refuses images of the first epochs that the patches do not tile, or for whose tokens there is no place."""
    check_tiled("start_image_size", start, as_sides(start), config)
    if isinstance(config, ViTConfig) and config.merged_tokens:
        raise ArgumentError(
            "blocks that merge tokens are for one image size, so images cannot grow.\n"
            f"Received: start_image_size={start}, merged_tokens={config.merged_tokens}. Merge tokens after training."
        )


def _unbuilt_config(model: Any) -> ViTConfig | ResNetConfig:
    """The config of what is not built yet; of "small" that for tiny images, whose patches divide those for photos."""
    if isinstance(model, (ViTConfig, ResNetConfig)):
        return model
    if model in RESNETS:
        return resnet(model)
    return SMALL_MODELS["tiny"].config if model == "small" else variant(variant_of(model))


def _check_depth_and_width(options: FinetuneOptions, config: ViTConfig | ResNetConfig) -> None:
    if isinstance(config, ResNetConfig):
        return _check_resnet(options)
    _, blocks = parse_trainable(options.learning)
    if blocks is not None and blocks > config.num_layers:
        raise ArgumentError(
            "`trainable` must leave the model's blocks or fewer to learn.\n"
            f"Received: trainable={options.learning!r}, a model with {config.num_layers} blocks."
        )
    most = min(config.hidden_size, config.mlp_dim)
    if options.lora_rank is not None and options.lora_rank > most:
        raise ArgumentError(
            "`lora_rank` must be at most the smaller side of each kernel.\n"
            f"Received: lora_rank={options.lora_rank}, smallest side {most}."
        )


def _check_resnet(options: FinetuneOptions) -> None:
    """Refuses what is about blocks and attention."""
    blocks = parse_trainable(options.learning)[1] is not None
    requested = {"lora_rank": options.lora_rank is not None, "layer_decay": options.layer_decay not in (None, 1)}
    requested |= {"trainable": blocks, "layout": options.layout != "none"}
    requested |= {"patch_dropout_rate": bool(options.patch_dropout_rate)}
    if wrong := [f"{name}={getattr(options, name)!r}" for name, is_set in requested.items() if is_set]:
        raise ArgumentError(
            "a ResNet has no blocks, which LoRA, layouts, `layer_decay`, `last_blocks` and patch dropout need.\n"
            f'Received: {", ".join(wrong)} for a ResNet. Leave it out, or train the head alone: trainable="head".'
        )


def _measured_split(source: Source) -> str:
    for split in ("test", "validation"):
        if source.sizes.get(split):
            return split
    raise ValueError(
        "a run is measured on images that it has not trained on, so there must be a test or a validation set.\n"
        f"Received: {source.name}, with {source.sizes}. Add a test set{_DIVIDED.get(source.kind, '')}."
    )


_DIVIDED = {  # how a seed divides the images
    "folder": "; or pass the folder of train itself, which a seed divides",
    "shards": "; or rename the shards without the split, as data-00000.tar, so that a seed divides their images",
    "table": "; or leave the column split out, so that a seed divides the rows",
    "arrays": "; or pass the arrays of train alone, which a seed divides",
}


def _find_recipe(options: FinetuneOptions, small: SmallModel | None) -> Recipe:
    recipe = options.recipe
    if recipe is None:
        recipe = FINETUNE_RECIPE if small is None or _is_trained(options) else small.recipe
        recipe = options.task_record.recipe or recipe
    recipe = find_recipe(recipe)
    if options.ema_momentum is not None:
        recipe = dataclasses.replace(recipe, ema_momentum=options.ema_momentum)
    if options.patch_dropout_rate is not None:
        fields = dict(recipe.model_fields) | {"patch_dropout_rate": options.patch_dropout_rate}
        recipe = dataclasses.replace(recipe, model_fields=tuple(fields.items()))
    return recipe


def _is_trained(options: FinetuneOptions) -> bool:
    return isinstance(options.model, ImageModel) or chosen_weights(options) is not None


def chosen_weights(options: FinetuneOptions) -> FilePath | None:
    """What the weights of an unbuilt model are taken from; `None` for random initialisation."""
    if options.weights != "default":
        return options.weights
    if isinstance(options.model, str) and options.model in RESNETS:
        return RESNET_PRETRAINED
    return PRETRAINED if isinstance(options.model, str) and options.model != "small" else None


def _find_model(
    options: FinetuneOptions, source: Source, small: SmallModel, recipe: Recipe, inferred: ViTConfig | ResNetConfig
) -> tuple[Any, str]:
    """The model, and what becomes of its head; `inferred` is the config where only weights are named."""
    if isinstance(options.model, ImageModel):
        if options.task_record.head is not None:
            _check_fits(options.model, source, options.task_record)
        return options.model, "keep"
    config, size = options.model, options.image_size
    size = recipe.image_size if size is None and config is not None else size
    if config == "small":
        config, size = small.config, small.image_size if size is None else size
    weights = chosen_weights(options)
    config = variant_of(config) if isinstance(config, str) else config
    known = inferred if config is None else _unbuilt_config(config)
    shape = _input_shape(size, weights, source, known)
    name = "vit_small" if options.model == "small" else None
    arguments: Arguments = recipe.model_arguments(known)
    arguments |= {"weights": weights, "input_shape": shape, **options.task_record.model_arguments(source)}
    layout, parts = parse_layout(options.layout)
    if layout != "none":
        set_distribution(layout, parts, known if config is None else config, **arguments)
    builder = build_resnet if isinstance(known, ResNetConfig) else build
    return options.task_record.build(builder, config, name=name, **arguments), "reset"


def _input_shape(
    size: int | Pair | None, weights: FilePath | None, source: Source, config: ViTConfig | ResNetConfig
) -> tuple | None:
    """`(H, W, C)`, or `None` for the one that the weights were trained at."""
    if size is None and weights is not None:
        return None
    size = DEFAULT_IMAGE_SIZE if size is None else size
    sides = check_image_size(size, config)
    channels = min(source.pixels("train", 0).shape[-1], 3) if weights is None else 3
    return (*sides, channels)


def _check_is_built(options: FinetuneOptions) -> None:
    """Refuses what a model that is built has decided."""
    if options.layout != "none":
        raise ArgumentError(
            "`layout` must be known before the weights are made.\n"
            f"Received: layout={options.layout!r} for {options.model.name!r}. Pass a name or a config as the model."
        )
    if options.image_size is not None or options.weights != "default":
        raise ArgumentError(
            "a model that is built has a size and weights, so `image_size` and `weights` must be left out.\n"
            f"Received: image_size={options.image_size}, weights={options.weights!r} for {options.model.name!r}."
        )


def _check_fits(model: Any, source: Source, task: Task) -> None:
    """Raises for data of other targets than a trained head has, or of the same in another order."""
    names, known = source.class_names, model.class_names or ()
    if model.output_spec.size != len(names) or None in model.input_shape[1:]:
        raise ValueError(
            "the model must have one output for each target of the data, and images of one size.\n"
            f"Received: {model.name!r} from {model.input_shape} to {model.output_spec.shape}, "
            f"{task.size_in_words(len(names))}."
        )
    if known != tuple(names) and sorted(known) == sorted(names):
        raise ValueError(
            "the data must have the names of the model in the same order, since its head is kept.\n"
            f"Received: {', '.join(names)[:200]}, where the model has {', '.join(known)[:200]}."
        )


def _choose_weights(model: Any, options: FinetuneOptions) -> None:
    if options.lora_rank is not None:
        if options.task_record.trains_image_model:
            add_lora(model, options.lora_rank)
    elif options.learning != "all":
        freeze(model, *parse_trainable(options.learning))


def _make_plan(
    options: FinetuneOptions,
    source: Source,
    model: Any,
    recipe: Recipe,
    devices: int,
    print_fn: Callable[[str], Any],
    begun: Mapping[str, int] | None = None,
) -> Plan:
    """The plan, with a batch that fits; `begun` are the numbers of a run that goes on."""
    images, task = source.sizes["train"], options.task_record
    batch_size = options.batch_size
    batch_size = _usual_batch(recipe.batch_size, images, devices) if batch_size is None else batch_size
    if not task.splits_batches and options.batch_size is None:
        batch_size //= _fewest_micro_batches(options, model, recipe, batch_size // devices)
    if batch_size % devices:
        raise ArgumentError(
            "`batch_size` must be a multiple of the devices, so that each gets as much.\n"
            f"Received: batch_size={batch_size}, {devices} devices."
        )
    on_one_device = batch_size // devices
    # Of several processes the first alone knows what a run that goes on began with; and free memory may differ.
    of_before = begun["accumulation_steps"] if begun and options.batch_size is None else 0
    micro_batches = all_reduce_max(options.accumulation_steps or of_before)
    if task.splits_batches:
        micro_batches = micro_batches or all_reduce_max(_fewest_micro_batches(options, model, recipe, on_one_device))
    training_plan = plan(
        recipe,
        model if task.head is not None else None,
        num_images=images,
        batch_size=batch_size,
        steps=_usual_steps(options, images),
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        accumulation_steps=micro_batches or 1,
        layer_decay=options.layer_decay,
    )
    _print_memory(model, on_one_device, micro_batches or 1, recipe, print_fn)
    return training_plan if begun is None else _continued(training_plan, begun)


def _continued(planned: Plan, begun: Mapping[str, int]) -> Plan:
    """The plan of a run that goes on: its warm-up stays, and further steps are divided into further epochs.

    A warm-up that is a share of all steps would be another one, though it is over.
    """
    steps = planned.steps - begun["steps"]
    if steps < 0:
        raise ArgumentError(
            "a run goes on for as many `steps` or `epochs` as it began with, or more.\n"
            f"Received: {planned.steps:,} steps in all, for a run of {begun['steps']:,}. Pass more, or its data."
        )
    per_epoch = begun["steps_per_epoch"]
    epochs = max(planned.epochs - begun["epochs"], 1) if steps else 0
    return dataclasses.replace(
        planned,
        warmup_steps=begun["warmup_steps"],
        steps_per_epoch=math.ceil(steps / epochs) if epochs else per_epoch,
        epochs=begun["epochs"] + epochs,
    )


def _find_stages(options: FinetuneOptions, recipe: Recipe, model: Any, epochs: int) -> tuple[ResolutionStage, ...]:
    """The one stage of a training, or the stages of images that grow up to the model's size."""
    final = model.input_shape[1:3]
    start = recipe.start_image_size if options.start_image_size is None else options.start_image_size
    if start is None:
        return (ResolutionStage(1, final),)
    _check_start(start, model.config)
    return growing_stages(as_sides(start), final, epochs, model.config.side_unit)


def _print_memory(
    model: Any, batch_size: int, micro_batches: int, recipe: Recipe, print_fn: Callable[[str], Any]
) -> None:
    """Prints the memory of a step, and refuses a batch that does not fit; of a ResNet the memory is not estimated."""
    available = available_memory()
    free = "" if available is None else f"; {available / 1e9:.2f} GB are free"
    needed = "a ResNet's is not estimated"
    if not isinstance(getattr(model, "image", model), ResNet):
        estimate = check_memory(model, batch_size, accumulation_steps=micro_batches, **_memory_options(recipe))
        needed = f"about {estimate.total / 1e9:.2f} GB"
    for line in format_facts("memory", f"{needed}{free}"):
        print_fn(line)


def _usual_steps(options: FinetuneOptions, images: int) -> int | None:
    requested = (options.steps, options.epochs, options.recipe) != (None, None, None)
    if requested or not _is_trained(options):
        return options.steps
    return next(steps for most, steps in _FINETUNE_STEPS if images <= most)


def _usual_batch(batch_size: int, images: int, devices: int) -> int:
    """The recipe's batch size, or for a small training set the largest power of two that is not above its size."""
    batch_size = min(batch_size, 2 ** int(math.log2(images)))
    return max(batch_size // devices, 1) * devices


def _fewest_micro_batches(options: FinetuneOptions, model: Any, recipe: Recipe, batch_size: int) -> int:
    """Micro-batches for a batch that nobody chose, so that it fits; the numbers are the same for any count.

    The recipe's own count is for its machines' memory. A batch that was asked for is one part, or is refused.
    """
    available = available_memory()
    if options.batch_size is not None or available is None or isinstance(getattr(model, "image", model), ResNet):
        return 1
    micro_batch = largest_micro_batch(model, batch_size, available, **_memory_options(recipe))
    return batch_size // micro_batch if micro_batch else batch_size


def _memory_options(recipe: Recipe) -> Arguments:
    return {"optimizer": recipe.optimizer, "ema": recipe.ema_momentum is not None}


def _find_devices(options: FinetuneOptions) -> Devices:
    """The devices that were asked for; a model that is built keeps its own by default."""
    built = isinstance(options.model, ImageModel)
    devices = strategy("one" if built and options.strategy == "auto" else options.strategy, precision=options.precision)
    if built and devices.kind == "one":
        devices = dataclasses.replace(devices, num_replicas=num_replicas(options.model))
    return devices


def run_configuration(run_plan: FinetunePlan, data: Any, out: FilePath) -> dict[str, Any]:
    """The facts of a run on `data` that writes to the folder `out`."""
    model, plan = run_plan.model, run_plan.plan
    return run_facts(run_plan, model, data, out) | {
        **task_facts(run_plan.options.task_record),
        "measured_on": run_plan.split,
        "input_shape": model.input_shape[1:],
        "changes": plan.changes(),
        "image_sizes": {str(stage.epoch): stage.image_size for stage in run_plan.stages},  # from which epoch on
        "augmentation": dataclasses.asdict(run_plan.augmentation),
        "devices": run_plan.devices,
    }


def run_facts(run_plan: RunPlan, model: Any, data: Any, out: FilePath) -> dict[str, Any]:
    """The facts that every run has, with those of the model that it trains or keeps."""
    options, plan = run_plan.options, run_plan.plan
    return {
        "versions": versions(),
        "command": sys.argv,
        "arguments": {"data": data_location(data), "out": str(out)} | options.facts(),
        "seed": options.seed,
        "precision": options.precision,
        "data": run_plan.source.describe(),
        "data_hash": fingerprint(run_plan.source),
        "model": {"name": model.name, **model.config.as_dict()},
        "weights_report": model.load_report,
        "weights_from": weights_origin(options),
        "preprocessing": dataclasses.asdict(model.preprocessing),
        "recipe": dataclasses.asdict(plan.recipe),
        "plan": {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name != "recipe"},
    }


def task_facts(task: Task) -> dict[str, Any]:
    """What a run's files say of its task; nothing of the one of earlier versions, which had no other."""
    return {} if str(task) == DEFAULT else {"task": task.facts()}


def versions() -> dict[str, str]:
    """Versions of all that the numbers depend on."""
    backend = keras.backend.backend()
    found = {"keras_vit": __version__, "keras": keras.__version__, "numpy": np.__version__}
    found |= {"python": platform.python_version(), "platform": platform.platform(), "backend": backend}
    for name in dict.fromkeys((backend, "tensorflow")):
        found[name] = __import__(name).__version__
    return found


def data_location(data: Any) -> Any:
    """What a report shows of the data, such that it is found again from another folder."""
    if isinstance(data, str) and data != DIGITS and (expand_path(data).exists() or find_shards(data)):
        return os.path.abspath(expand_path(data))
    return data if is_short(data) else type(data).__name__


def weights_origin(options: Any) -> dict[str, Any]:
    """Where the weights came from that training with these options began with.

    Returns:
        `kind`, which is `"random"`, `"model"`, `"published"` or `"file"`; of the last two `name`, and of the third
        what its record says: `license`, `url`, and `repository` if it is on the Hub. Of encoders also `family` and
        `papers`, where the record or the file's `config.json` has them, and that file's `license`.
    """
    if isinstance(options.start, ImageModel):
        return {"kind": "model"}
    if (weights := chosen_weights(options)) is None:
        return {"kind": "random"}
    name = os.fspath(weights)
    with contextlib.suppress(ValueError):  # of a name or a variant that the table does not have
        variant = only_variant(weights) if options.start is None else published_name(options.start)
        record = find_weights(name, variant or "")
        published = {"license": record.license, "url": record.url, "repository": record.hf_repo}
        return {"kind": "published", "name": name} | published | record_origin(record)
    if name.startswith("hf:"):
        return {"kind": "file", "name": name, "repository": name[len("hf:") :].partition("@")[0]}
    if is_url(name):
        return {"kind": "file", "name": without_secrets(name)}
    return {"kind": "file", "name": Path(name).name} | read_origin(expand_path(name))
