"""What can be asked of a run: a record for each kind, from which functions and commands take their options.

Without Keras, so that a command line can be parsed before it is imported.
"""

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

from keras_vit.annotations import FilePath
from keras_vit.checks import (
    STRATEGIES,
    TRAINING_PRECISIONS,
    ArgumentError,
    Count,
    Fraction,
    NonNegative,
    Positive,
    PositiveInt,
    Share,
    Sides,
    as_sides,
    check_int,
    check_seed,
    check_strategy_name,
    did_you_mean,
    parse_sides,
    with_hints,
    with_parameters,
)
from keras_vit.config.progressive_resizing import check_start_size
from keras_vit.config.recipes import Recipe, find_recipe, option_hint
from keras_vit.config.variants import BUILDERS, ENCODERS, RESNETS, VARIANTS, ResNetConfig
from keras_vit.config.vit import ViTConfig
from keras_vit.runs.pretraining.recipes import METHODS
from keras_vit.tasks import DEFAULT, TASKS, Task, all_options, find_task
from keras_vit.tasks.task import check_options, option
from keras_vit.weights.registry import near
from keras_vit.weights.resolve import check_weights

LAYOUTS = ("none", "replicated", "fsdp", "tensor")
ON_BAD_IMAGE = ("skip", "raise")
RESUME = ("auto", "never", "must")
GUARDS = ("auto", "knn", "twins", "none")
STOPS = ("when_worse", "never")
TARGETS = ("both", "class", "patches")
LOSSES = ("cosine", "mse", "smooth_l1", "normalized_mse", "cosine_smooth_l1", "relation")
_NAMES = ("small", *VARIANTS, *BUILDERS, *RESNETS, *ENCODERS, *ENCODERS.values())  # of models
_Function = TypeVar("_Function", bound=Callable)
_Options = TypeVar("_Options", bound="RunOptions")


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RunOptions:
    """What all runs have in common; the record of each kind says what it means there."""

    batch_size: PositiveInt | None = option(
        None, "images in one optimizer step; by default the recipe's, or fewer for a small set", type=int, metavar="B"
    )
    steps: PositiveInt | None = option(None, "optimizer steps in all; by default the recipe's", type=int, metavar="N")
    epochs: PositiveInt | None = option(None, "passes over the images; by default the recipe's", type=int, metavar="N")
    learning_rate: Positive | None = option(
        None, "the highest learning rate; by default the recipe's, for the batch size", type=float, metavar="RATE"
    )
    seed: Annotated[int, check_seed] = option(
        0, "seed of the split, the order, the augmentation and the random initialisation", type=int, metavar="N"
    )
    precision: str = option(
        "auto",
        "precision of the computation; auto: half precision where it is faster; weights stay in float32",
        choices=TRAINING_PRECISIONS,
    )
    strategy: str = option("auto", "one device, all GPUs together, or a TPU; auto: what is there", choices=STRATEGIES)
    on_bad_image: str = option("skip", "leave out files that cannot be decoded, or refuse them", choices=ON_BAD_IMAGE)
    resume: str = option(
        "auto",
        "auto goes on with an unfinished run in the folder; never refuses it; must refuses to begin a new one",
        choices=RESUME,
    )
    checkpoint_minutes: Positive = option(
        10.0, "minutes between two saves of the state within an epoch", type=float, metavar="MINUTES"
    )
    checkpoint_every: PositiveInt | None = option(None, "the same in steps; by default none", type=int, metavar="STEPS")

    def __post_init__(self) -> None:
        check_strategy_name(self.strategy)
        check_options(self)
        if self.steps is not None and self.epochs is not None:
            raise ArgumentError(
                "`steps` and `epochs` say the same thing, so pass one.\n"
                f"Received: steps={self.steps}, epochs={self.epochs}."
            )

    def facts(self) -> dict[str, Any]:
        """The options that have a short text, as a report shows them; of others the type."""
        return {name: value if is_short(value) else type(value).__name__ for name, value in vars(self).items()}


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FinetuneOptions(RunOptions):
    """The options of `keras_vit.finetune`, which are its keywords and those of the command `keras-vit finetune` too.

    Example:
        >>> keras_vit.FinetuneOptions(model="S/16", trainable="head").precision
        'auto'

    Args:
        model: a variant or builder as `"B/16"` or `"ViTB16"`; a ResNet as `"R50x1"`; a `ViTConfig` or `ResNetConfig`;
            or a `VisionTransformer` or `ResNet` that ends in logits, which is trained in place, with its head. By
            default the ViT that `weights` tell; without these `"small"`, of below a million random parameters.
        weights: as `keras_vit.build` takes them, a folder of timm or transformers among them; by default
            `"augreg-imagenet21k"` for a variant, `"bit-imagenet21k"` for a ResNet, and none else.
        recipe: a name in `keras_vit.RECIPES` or a `Recipe`; by default `"augreg-finetune"` for pre-trained weights,
            and `"digits"` or `"small"` for random ones, by the size of the pictures.
        image_size: side in pixels or `(H, W)`; by default the recipe's, or that of the model or its weights.
        start_image_size: side or `(H, W)` of the images of the first epochs. They grow in up to four stages to
            `image_size`, which the last epochs have. Less work and another training (arXiv:2104.00298); by default
            the recipe's, or none.
        patch_dropout_rate: share of the patches that training leaves out, in [0, 1), instead of the model's. Less work
            and another training (arXiv:2208.07220).
        train_images: how many of the training images count, as evenly as `keras_vit.Source.subset` has it. By default
            all.
        batch_size: images of one optimizer step; by default the recipe's, or fewer for a small training set.
        steps: optimizer steps in all; by default the recipe's. Where no recipe is named, pre-trained weights get 500
            for up to 10,000 images, 10,000 for up to 200,000, and else 20,000 (arXiv:2010.11929, table 4).
        epochs: the same as passes over the images.
        stop_early: ends the run after so many epochs in which the task's first metric did not rise above its highest
            value on the validation set; by default it is not ended early.
        learning_rate: the highest one.
        augmentation: `Augmentation` or its name instead of the recipe's.
        accumulation_steps: micro-batches of a batch. Where neither this nor `batch_size` is given, as many as the
            memory needs.
        layer_decay: in (0, 1], of the rate from each layer to the one below.
        ema_momentum: of Polyak averaging, in [0, 1), instead of the recipe's.
        lora_rank: trains low-rank factors of this rank and the head only.
        trainable: `"all"`, `"head"`, or `"last_blocks:k"`; by default what the task trains.
        precision: `"float32"`, `"tensorfloat32"`, `"mixed_bfloat16"`, `"mixed_float16"`, or `"auto"`, half precision
            where it pays: see `keras_vit.strategy`. On a CPU that is float32.
        layout: on the JAX backend, how all devices of all processes share the model: `"replicated"`, `"fsdp"`,
            `"tensor"`, or `"tensor:k"` with k devices to a copy; `"none"` is one device.
        strategy: on TensorFlow `"one"` device, `"mirrored"` for all GPUs of this machine, `"tpu"`, or `"auto"`: see
            `keras_vit.strategy`. A model that is built stays on the devices that it was built for.
        task: what the model is trained for, a name in `keras_vit.tasks.TASKS`, or a `Task` with options of its own.
        seed: of the split, the order, the augmentation, and the random initialisation.
        on_bad_image: `"skip"` names files that cannot be decoded and goes on; `"raise"` refuses them.
        resume: `"auto"` goes on with an unfinished run of the same options and data, and starts where there is none;
            `"never"` refuses a folder with anything in it; `"must"` refuses to start anew.
        checkpoint_minutes: how often the state is saved within an epoch; at the end of each it is saved anyway.
        checkpoint_every: the same in steps.

    Raises:
        ValueError: for a value that is none of its choices or out of range, or values that contradict each other.
        TypeError: for a value of the wrong type.
    """

    model: Any = option(
        None, "the model to train, as B/16, R50x1 or small; by default that of the weights, else small", metavar="MODEL"
    )
    weights: FilePath | None = option(
        "default",
        "weights to begin with: a published name, a file, a folder, or none; by default augreg-imagenet21k for a ViT, "
        "bit-imagenet21k for a ResNet, and none for small",
        metavar="NAME",
    )
    recipe: Recipe | str | None = option(
        None, "hyper-parameters, as `keras-vit recipes` lists them; by default those for the weights", metavar="NAME"
    )
    train_images: PositiveInt | None = option(
        None, "use only N of the training images; by default all", type=int, metavar="N"
    )
    stop_early: PositiveInt | None = option(
        None, "end after N epochs without gain on the validation set; by default never", type=int, metavar="N"
    )
    image_size: Sides | None = option(
        None,
        "pixels, as 224 or 224x320 (height, width); by default that of the recipe, the model or the weights",
        type=parse_sides,
        metavar="SIZE",
    )
    start_image_size: Sides | None = option(
        None,
        "image size of the first epochs, from which it grows to --image-size; by default it does not grow",
        type=parse_sides,
        metavar="SIZE",
    )
    patch_dropout_rate: Fraction | None = option(
        None,
        "share of the patches that training leaves out; by default none",
        flag="--patch-dropout",
        type=float,
        metavar="SHARE",
    )
    augmentation: Any = option(
        None,
        "random changes of the training images, as inception or augreg-medium1; by default the recipe's",
        metavar="NAME",
    )
    accumulation_steps: PositiveInt | None = option(
        None,
        "split each batch into K micro-batches, for less memory; by default as few as fit",
        flag="--accumulate",
        type=int,
        metavar="K",
    )
    layer_decay: Share | None = option(
        None, "factor of the learning rate from each layer to the one below; by default 1", type=float, metavar="FACTOR"
    )
    ema_momentum: Fraction | None = option(
        None,
        "keep an average of the weights, with this momentum; by default the recipe's",
        flag="--ema",
        type=float,
        metavar="MOMENTUM",
    )
    lora_rank: PositiveInt | None = option(
        None,
        "train low-rank factors of this rank and the head only; by default none",
        flag="--lora",
        type=int,
        metavar="RANK",
    )
    trainable: str | None = option(
        None,
        "the weights that learn: all, head, or last_blocks:K; by default what the task trains",
        metavar="WEIGHTS",
    )
    task: Task | str = option(DEFAULT, f"what the model learns: {', '.join(TASKS)}", metavar="TASK")
    layout: str = option(
        "none", "on JAX, how all devices share the model: replicated, fsdp or tensor:K", metavar="LAYOUT"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_model(self.model)
        if self.weights is not None:
            check_weights(self.weights)
        if self.recipe is not None:
            find_recipe(self.recipe)
        if self.augmentation is not None:
            from keras_vit.data.augmentation import find_augmentation

            find_augmentation(self.augmentation)
        self._check_together()
        self.task_record.check(self)

    def _check_together(self) -> None:
        self._check_layout()
        if self.start_image_size is not None and self.image_size is not None:
            check_start_size(as_sides(self.start_image_size), as_sides(self.image_size))
        trainable, _ = parse_trainable(self.learning)
        if self.lora_rank is not None and self.learning != "all":
            raise ArgumentError(
                "`lora_rank` sets which weights learn, so `trainable` must be left out.\n"
                f"Received: lora_rank={self.lora_rank}, trainable={self.learning!r}."
            )
        if trainable == "head" and self.layer_decay not in (None, 1):
            raise ArgumentError(
                "`layer_decay` needs blocks that learn, and with `trainable` at 'head' none does.\n"
                f"Received: trainable={self.learning!r}, layer_decay={self.layer_decay}. Leave one of them out."
            )
        batch_size, parts = self.batch_size, self.accumulation_steps
        if batch_size is not None and parts is not None and batch_size % parts:
            raise ArgumentError(
                "`accumulation_steps` must divide `batch_size`, so that micro-batches are equal.\n"
                f"Received: accumulation_steps={parts}, batch_size={batch_size}."
            )

    def _check_layout(self) -> None:
        layout, _ = parse_layout(self.layout)
        if layout != "none" and self.strategy not in ("one", "auto"):
            raise ArgumentError(
                "`layout` is for JAX and `strategy` for TensorFlow, so pass one.\n"
                f"Received: layout={self.layout!r}, strategy={self.strategy!r}."
            )
        if layout in ("fsdp", "tensor") and self.lora_rank is not None:
            raise ArgumentError(
                "with LoRA, every device has a copy of the model.\n"
                f"Received: lora_rank={self.lora_rank}, layout={self.layout!r}. Pass layout='replicated'."
            )

    def facts(self) -> dict[str, Any]:
        """As of every run, with the model, the task and the weights that learn by name."""
        model = self.start if is_short(self.start) else type(self.start).__name__
        facts = super().facts() | {"model": model, "task": str(self.task_record), "trainable": self.learning}
        if facts["task"] == DEFAULT:  # which folders of earlier versions do not store
            del facts["task"]
        return facts

    @property
    def task_record(self) -> Task:
        """The record of `task`."""
        return find_task(self.task)

    @property
    def learning(self) -> str:
        """`trainable`, or that of the task where it is not given."""
        return self.task_record.trainable if self.trainable is None else self.trainable

    @property
    def start(self) -> Any:
        """`model`, or `"small"` where neither it nor weights are named; `None` is the ViT that the weights tell."""
        return "small" if self.model is None and self.weights in ("default", None) else self.model


def _check_prototypes(name: str, value: Any) -> int:
    return check_int(name, value, 2)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class UnlabeledOptions(RunOptions):
    """What `keras_vit.pretrain` and `keras_vit.distil` have in common; their records say what it means."""

    weights: FilePath | None = option(
        None, "weights to begin with: a published name, a file or a folder; by default random ones", metavar="NAME"
    )
    image_size: PositiveInt | None = option(
        None, "side of global crops in pixels, as the encoder will be used; by default 224", type=int, metavar="SIZE"
    )
    augmentation: Any = option(
        None, "views of the images, as dinov2 or dinov2-as-written; by default the method's", metavar="NAME"
    )
    guard: str = option(
        "auto", "what is measured on held-out images; auto: knn with labels, else twins", choices=GUARDS
    )
    guard_images: PositiveInt | None = option(
        None, "how many images the guard measures; by default 256, more of small ones", type=int, metavar="N"
    )
    guard_every: PositiveInt | None = option(
        None, "steps between two measurements; by default a twentieth of all, 10 to 50", type=int, metavar="STEPS"
    )
    stop: str = option("when_worse", "end a training that makes the encoder worse, or collapses", choices=STOPS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size == 1:
            raise ArgumentError(
                "a batch must have two images or more, since images are compared with each other.\n"
                "Received: batch_size=1."
            )
        if isinstance(self.augmentation, str):
            from keras_vit.data.views import find_views

            find_views(self.augmentation)

    def facts(self) -> dict[str, Any]:
        """As of every run, but records in full."""
        records = {name: str(value) for name, value in vars(self).items() if dataclasses.is_dataclass(value)}
        return super().facts() | records


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PretrainOptions(UnlabeledOptions):
    """The options of `keras_vit.pretrain`, which are its keywords and those of `keras-vit pretrain` too.

    Example:
        >>> keras_vit.PretrainOptions(model="S/16", method="lejepa").guard
        'auto'

    Args:
        weights: as `keras_vit.build` takes them; by default random ones. With weights the careful way is chosen: small
            rates, heads first, an anchor to the encoder of the start.
        image_size: side of global crops; a multiple of the patch.
        batch_size: images of a step, 2 or more; at most the training images.
        augmentation: `keras_vit.Views` or a name in `keras_vit.VIEWS`.
        guard: `"knn"`, `"twins"`, `"none"`, or `"auto"`: kNN if the images have labels, else twins.
        guard_images: of them; held-out ones first.
        guard_every: steps between two measurements.
        stop: as of `keras_vit.CollapseGuard`.
        model: a variant as `"S/16"` or `"dinov2/S14"`, a `ViTConfig`, or an encoder, of which a copy is trained; by
            default what `weights` tell.
        method: `"dinov2"`, `"lejepa"`, `"mae"` or `"simmim"`; by default by the number of images: DINOv2 with weights
            and from 100,000 images on, else LeJEPA.
        local_size: side of local crops, a multiple of the patch; by default 3/7 of `image_size`.
        local_crops: how many there are.
        trainable: `"all"`, `"last_blocks:k"` or `"lora:r"`. With weights, patch embedding and positions do not learn.
        prototypes: K of DINOv2's heads, 2 or more.
        gram_weight: of Gram anchoring to the encoder of the start.
        anchor_weight: of the cosines of features to its features.

    Further ones are those of `keras_vit.FinetuneOptions`, where an epoch ends with a measurement.

    Raises:
        ValueError: for a value that is none of its choices or out of range, or values that contradict each other.
        TypeError: for a value of the wrong type.
    """

    model: Any = option(None, "the encoder, as S/16 or dinov2/S14; by default that of the weights", metavar="MODEL")
    method: str | None = option(
        None, "how it is trained; by default by the number of images, and whether there are weights", choices=METHODS
    )
    local_size: PositiveInt | None = option(
        None, "side of local crops in pixels; by default 3/7 of the image size", type=int, metavar="SIZE"
    )
    local_crops: Count | None = option(
        None, "how many local crops an image gives; by default 8, with LeJEPA 6", type=int, metavar="N"
    )
    trainable: str | None = option(
        None, "the weights that learn: all, last_blocks:K or lora:RANK; by default the recipe's", metavar="WEIGHTS"
    )
    prototypes: Annotated[int, _check_prototypes] | None = option(
        None, "prototypes of DINOv2's heads, 2 or more; by default the recipe's", type=int, metavar="K"
    )
    gram_weight: NonNegative | None = option(
        None, "of Gram anchoring to the encoder of the start; by default the recipe's", type=float, metavar="WEIGHT"
    )
    anchor_weight: NonNegative | None = option(
        None, "of the cosines to its features; by default the recipe's", type=float, metavar="WEIGHT"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is None and self.weights is None:
            raise ArgumentError(
                "an encoder must be named.\nReceived: neither `model` nor `weights`. Pass model='S/16', or "
                "weights='dinov2' and model='dinov2/S14'."
            )
        if self.trainable is not None:
            parse_encoder_trainable(self.trainable)

    @property
    def start(self) -> Any:
        """The encoder that is trained."""
        return self.model


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DistilOptions(UnlabeledOptions):
    """The options of `keras_vit.distil`, which are its keywords and those of `keras-vit distil` too.

    Example:
        >>> keras_vit.DistilOptions(teacher="dinov2/S14", student="Ti/16").targets
        'both'

    Args:
        teacher: a name as `"dinov2/S14"`, a file, a folder, or an encoder.
        student: a variant as `"Ti/16"`, a `ViTConfig`, or an encoder, of which a copy is trained.
        targets: features that the student learns: `"both"`, `"class"` or `"patches"`.
        loss: of patches, as `patch_loss` of `keras_vit.FeatureDistillation`.
        weights: the student's, as `keras_vit.build` takes them; by default random ones.

    Further ones are those of `keras_vit.PretrainOptions`.

    Raises:
        ValueError: for a value that is none of its choices or out of range, or values that contradict each other.
        TypeError: for a value of the wrong type.
    """

    teacher: Any = option(
        None, "the larger encoder: a name, a file or a folder; there is none by default", metavar="TEACHER"
    )
    student: Any = option(None, "the encoder that learns, as Ti/16; by default that of the weights", metavar="MODEL")
    targets: str = option("both", "features that it learns", choices=TARGETS)
    loss: str = option("cosine_smooth_l1", "of patches", choices=LOSSES)

    def __post_init__(self) -> None:
        super().__post_init__()
        missing = [name for name in ("teacher", "student") if getattr(self, name) is None]
        if "teacher" in missing or ("student" in missing and self.weights is None):
            raise ArgumentError(
                "teacher and student must be named.\n"
                f"Received: no {' and no '.join(f'`{name}`' for name in missing)}. Pass 'dinov2/S14' and 'Ti/16'."
            )
        if isinstance(self.teacher, (list, tuple)):
            raise ArgumentError(f"`teacher` must be one encoder.\nReceived: {len(self.teacher)} of them.")

    @property
    def start(self) -> Any:
        """The encoder that is trained."""
        return self.student


TASK_OPTIONS = all_options()


def options_of(record: type[RunOptions]) -> tuple[dataclasses.Field, ...]:
    """The fields of a record, its own before those of all runs; of `FinetuneOptions` also the options of tasks."""
    shared = {each.name for each in dataclasses.fields(RunOptions)}
    own = sorted(dataclasses.fields(record), key=lambda each: each.name in shared)
    return (*own, *(TASK_OPTIONS.values() if record is FinetuneOptions else ()))


FLAGS = {
    each.name: each.metadata["flag"] or f"--{each.name.replace('_', '-')}"
    for record in (FinetuneOptions, PretrainOptions, DistilOptions)
    for each in options_of(record)
}


def _hint(record: type[RunOptions], name: str) -> str:
    names = [each.name for each in options_of(record)]
    if record is not FinetuneOptions:
        return did_you_mean(name, names)
    if name in TASK_OPTIONS:
        return f' The task has it: pass task={{"name": ..., "{name}": ...}}, or {name}=... to `finetune`.'
    return option_hint(name, (*names, "data", "out"))


FinetuneOptions.__init__ = with_hints(  # type: ignore
    FinetuneOptions.__init__, functools.partial(_hint, FinetuneOptions)
)


class FinetuneChanges(TypedDict, total=False):
    """The same fields and the options of tasks as keywords, for type checkers, which cannot read them off records."""

    model: Any
    weights: FilePath | None
    recipe: Recipe | str | None
    train_images: int | None
    batch_size: int | None
    steps: int | None
    epochs: int | None
    stop_early: int | None
    learning_rate: float | None
    image_size: int | tuple[int, int] | None
    start_image_size: int | tuple[int, int] | None
    patch_dropout_rate: float | None
    augmentation: Any
    accumulation_steps: int | None
    layer_decay: float | None
    ema_momentum: float | None
    lora_rank: int | None
    trainable: str | None
    task: Task | str
    seed: int
    precision: str
    on_bad_image: str
    layout: str
    resume: str
    checkpoint_minutes: float
    checkpoint_every: int | None
    strategy: str
    class_weights: str | Mapping[str, float] | None
    columns: tuple[str, ...] | None
    positive_weight: float | tuple[float, ...] | str | None
    threshold: float | tuple[float, ...] | None
    loss: str
    lock_image: bool
    caption_column: str | None
    text: str | None
    map_head: str
    depths: str | None
    depth_scale: float | None
    depth_range: tuple[float, float] | None
    depth_crop: str | None
    masks: str | None
    mask_rule: str | None
    class_names: tuple[str, ...] | str | None
    colors: tuple[str, ...] | None
    ignore_class: int
    average: str


def changed(
    options: _Options | None,
    changes: dict[str, Any],
    record: type[_Options] = FinetuneOptions,  # type: ignore[assignment]
) -> _Options:
    """`options`, or the default ones of a record, with these fields and options of the task changed.

    Raises:
        ValueError: for an option that the task does not have.
        TypeError: for a name that is no field; it names the nearest ones. For options that are no record.
    """
    if not isinstance(options, (record, type(None))):
        raise TypeError(
            f"`options` must be a `{record.__name__}`; single options are keywords.\n"
            f"Received: options={options!r}. Of a dict pass **{{...}}."
        )
    own = {name: changes[name] for name in TASK_OPTIONS if name in changes and record is FinetuneOptions}
    fields = {name: value for name, value in changes.items() if name not in own}
    options = record(**fields) if options is None else dataclasses.replace(options, **fields)
    if own and isinstance(options, FinetuneOptions):
        options = dataclasses.replace(options, task=find_task(options.task_record.facts() | own))
    return options


def with_options(record: type[RunOptions]) -> Callable[[_Function], _Function]:
    """Decorates a function whose `**changes` are fields of a record, or options of a task: its signature shows them.

    Its error for another name hints at the nearest.
    """

    def decorated(function: _Function) -> _Function:
        signature, options = inspect.signature(function), options_of(record)
        own = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
        hints = get_type_hints(SimpleNamespace(__annotations__={each.name: each.type for each in options}))
        fields = [
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hint)
            for each, hint in zip(options, hints.values(), strict=True)  # without the checks
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*own, *fields])
        return with_hints(function, functools.partial(_hint, record))

    return decorated


def _check_model(model: Any) -> None:
    rule = (
        "`model` must be 'small', a variant as 'B/16', a builder as 'ViTB16', a ResNet as 'R50x1', a `ViTConfig` or "
        "`ResNetConfig`, or a `VisionTransformer` or `ResNet`."
    )
    if isinstance(model, (str, os.PathLike)):
        if model in _NAMES:
            return
        if os.path.exists(model) or str(model).endswith(".keras"):
            raise ArgumentError(
                f"{rule}\nReceived: {os.fspath(model)!r}. Weights go to `weights`; of a saved model pass what "
                "keras.saving.load_model gives. `keras-vit evaluate`, `predict` and `export` take it as it is.",
                parameters=("model",),
            )
        raise ArgumentError(
            f"{rule}\nReceived: {os.fspath(model)!r}.{near(os.fspath(model), _NAMES)}", parameters=("model",)
        )
    if not isinstance(model, (ViTConfig, ResNetConfig, type(None))):
        from keras_vit.model.image_model import ImageModel

        if not isinstance(model, ImageModel) or not model.takes_images:
            raise with_parameters(TypeError(f"{rule}\nReceived: an object of type {type(model).__name__}."), "model")


def parse_trainable(text: str) -> tuple[str, int | None]:
    """`"all"`, `"head"` or `"last_blocks:k"` as `freeze` takes them."""
    return _parse("trainable", text, ("all", "head"), {"last_blocks": "k"})


def parse_encoder_trainable(text: str) -> tuple[str, int | None]:
    """`"all"`, `"last_blocks:k"` or `"lora:r"`, with the number."""
    return _parse("trainable", text, ("all",), {"last_blocks": "k", "lora": "r"})


def parse_layout(text: str) -> tuple[str, int | None]:
    """`"none"`, `"replicated"`, `"fsdp"` or `"tensor"`, and of `"tensor:k"` the devices of one copy."""
    return _parse("layout", text, LAYOUTS, {"tensor": "k"})


def _parse(option: str, text: str, words: tuple[str, ...], counted: Mapping[str, str]) -> tuple[str, int | None]:
    """One of `words`, or one of `counted` with its number, as `"last_blocks:2"`."""
    name, colon, count = str(text).partition(":")
    if name in counted and count.isdecimal() and int(count) > 0:
        return name, int(count)
    if name in words and not colon:
        return name, None
    hint = did_you_mean(name, (*words, *counted)) if name not in words else ""
    choices = [*map(repr, words), *(f"'{each}:{number}'" for each, number in counted.items())]
    raise ArgumentError(
        f"`{option}` must be {', '.join(choices[:-1])} or {choices[-1]}, with a number from 1.\n"
        f"Received: {text!r}.{hint}"
    )


def is_short(value: Any) -> bool:
    """Whether a report can show a value as it is."""
    if isinstance(value, tuple):
        return all(map(is_short, value))
    return value is None or isinstance(value, (bool, int, float, str)) or hasattr(value, "__fspath__")
