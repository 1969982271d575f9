"""What can be asked of a run: one record, from which `finetune` and the command line take their options.

Without Keras, so that a command line can be parsed before it is imported.
"""

# ruff: noqa: RUF009  `option` gives a field, as `dataclasses.field` does

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar

from keras_vit.annotations import FilePath
from keras_vit.checks import (
    STRATEGIES,
    TRAINING_PRECISIONS,
    ArgumentError,
    as_sides,
    check_choice,
    check_fraction,
    check_positive,
    check_positive_int,
    check_seed,
    check_sides,
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
from keras_vit.tasks import DEFAULT, TASKS, Task, all_options, find_task
from keras_vit.tasks.task import option
from keras_vit.weights.registry import near
from keras_vit.weights.resolve import check_weights

LAYOUTS = ("none", "replicated", "fsdp", "tensor")
ON_BAD_IMAGE = ("skip", "raise")
RESUME = ("auto", "never", "must")
_COUNTS = (
    *("train_images", "batch_size", "steps", "epochs", "stop_early", "accumulation_steps", "lora_rank"),
    "checkpoint_every",
)
_NAMES = ("small", *VARIANTS, *BUILDERS, *RESNETS, *ENCODERS, *ENCODERS.values())  # of models
_TRAINABLE = ("all", "head")  # and last_blocks:k
_Function = TypeVar("_Function", bound=Callable)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class FinetuneOptions:
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
    train_images: int | None = option(
        None, "use only so many of the training images; by default all", type=int, metavar="N"
    )
    batch_size: int | None = option(
        None, "images in one optimizer step; by default the recipe's, or fewer for a small set", type=int, metavar="B"
    )
    steps: int | None = option(None, "optimizer steps in all; by default the recipe's", type=int, metavar="N")
    epochs: int | None = option(None, "passes over the images; by default the recipe's", type=int, metavar="N")
    stop_early: int | None = option(
        None, "end after so many epochs without gain on the validation set; by default never", type=int, metavar="N"
    )
    learning_rate: float | None = option(
        None,
        "the highest learning rate; by default the recipe's, in proportion to the batch size",
        type=float,
        metavar="RATE",
    )
    image_size: int | tuple[int, int] | None = option(
        None,
        "pixels, as 224 or 224x320 (height, width); by default that of the recipe, the model or the weights",
        type=parse_sides,
        metavar="SIZE",
    )
    start_image_size: int | tuple[int, int] | None = option(
        None,
        "image size of the first epochs, from which it grows to --image-size; by default it does not grow",
        type=parse_sides,
        metavar="SIZE",
    )
    patch_dropout_rate: float | None = option(
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
    accumulation_steps: int | None = option(
        None,
        "split each batch into so many micro-batches, for less memory; by default as few as fit",
        flag="--accumulate",
        type=int,
        metavar="K",
    )
    layer_decay: float | None = option(
        None, "factor of the learning rate from each layer to the one below; by default 1", type=float, metavar="FACTOR"
    )
    ema_momentum: float | None = option(
        None,
        "keep an average of the weights, with this momentum; by default the recipe's",
        flag="--ema",
        type=float,
        metavar="MOMENTUM",
    )
    lora_rank: int | None = option(
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
    seed: int = option(
        0, "seed of the split, the order, the augmentation and the random initialisation", type=int, metavar="N"
    )
    precision: str = option(
        "auto",
        "precision of the computation; auto: half precision where it is faster; weights stay in float32",
        choices=TRAINING_PRECISIONS,
    )
    on_bad_image: str = option("skip", "leave out files that cannot be decoded, or refuse them", choices=ON_BAD_IMAGE)
    layout: str = option(
        "none", "on JAX, how all devices share the model: replicated, fsdp or tensor:K", metavar="LAYOUT"
    )
    resume: str = option(
        "auto",
        "auto goes on with an unfinished run in the folder; never refuses it; must refuses to begin a new one",
        choices=RESUME,
    )
    checkpoint_minutes: float = option(
        10.0, "minutes between two saves of the state within an epoch", type=float, metavar="MINUTES"
    )
    checkpoint_every: int | None = option(None, "the same in steps; by default none", type=int, metavar="STEPS")
    strategy: str = option("auto", "one device, all GPUs together, or a TPU; auto: what is there", choices=STRATEGIES)

    def __post_init__(self) -> None:
        check_strategy_name(self.strategy)
        for each in dataclasses.fields(self):
            if choices := each.metadata["parser"].get("choices"):
                check_choice(each.name, getattr(self, each.name), choices)
        self._check_numbers()
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

    def _check_numbers(self) -> None:
        """Out-of-range ones are refused; integers of NumPy become ints."""
        for name in _COUNTS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_positive_int(name, getattr(self, name)))
        object.__setattr__(self, "seed", check_seed(self.seed))
        for name in ("image_size", "start_image_size"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_sides(name, getattr(self, name)))
        if self.patch_dropout_rate is not None:
            check_fraction("patch_dropout_rate", self.patch_dropout_rate)
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate)
        check_positive("checkpoint_minutes", self.checkpoint_minutes)
        if self.ema_momentum is not None:
            check_fraction("ema_momentum", self.ema_momentum)
        if self.layer_decay is not None:
            from keras_vit.training.layer_decay import check_layer_decay

            check_layer_decay(self.layer_decay)

    def _check_together(self) -> None:
        self._check_layout()
        if self.start_image_size is not None and self.image_size is not None:
            check_start_size(as_sides(self.start_image_size), as_sides(self.image_size))
        trainable, _ = parse_trainable(self.learning)
        if self.lora_rank is not None and self.learning != "all":
            raise ArgumentError(
                "`lora_rank` sets which weights learn, so `trainable` must be left out.\n"
                f"Received: lora_rank={self.lora_rank}, trainable={self.learning!r}.",
                parameters=("trainable", "lora_rank"),
            )
        if trainable == "head" and self.layer_decay not in (None, 1):
            raise ArgumentError(
                "`layer_decay` needs blocks that learn, and with `trainable` at 'head' none does.\n"
                f"Received: trainable={self.learning!r}, layer_decay={self.layer_decay}. Leave one of them out.",
                parameters=("layer_decay", "trainable"),
            )
        if self.steps is not None and self.epochs is not None:
            raise ArgumentError(
                "`steps` and `epochs` say the same thing, so pass one.\n"
                f"Received: steps={self.steps}, epochs={self.epochs}.",
                parameters=("steps", "epochs"),
            )
        batch_size, parts = self.batch_size, self.accumulation_steps
        if batch_size is not None and parts is not None and batch_size % parts:
            raise ArgumentError(
                "`accumulation_steps` must divide `batch_size`, so that micro-batches are equal.\n"
                f"Received: accumulation_steps={parts}, batch_size={batch_size}.",
                parameters=("accumulation_steps", "batch_size"),
            )

    def _check_layout(self) -> None:
        layout, _ = parse_layout(self.layout)
        if layout != "none" and self.strategy not in ("one", "auto"):
            raise ArgumentError(
                "`layout` is for JAX and `strategy` for TensorFlow, so pass one.\n"
                f"Received: layout={self.layout!r}, strategy={self.strategy!r}.",
                parameters=("layout", "strategy"),
            )
        if layout in ("fsdp", "tensor") and self.lora_rank is not None:
            raise ArgumentError(
                "with LoRA, every device has a copy of the model.\n"
                f"Received: lora_rank={self.lora_rank}, layout={self.layout!r}. Pass layout='replicated'.",
                parameters=("lora_rank", "layout"),
            )

    def facts(self) -> dict[str, Any]:
        """The options that have a short text, as a report shows them; of others the type."""
        named = vars(self) | {"model": self.start, "task": str(self.task_record), "trainable": self.learning}
        if named["task"] == DEFAULT:  # which folders of earlier versions do not store
            del named["task"]
        return {name: value if is_short(value) else type(value).__name__ for name, value in named.items()}

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


TASK_OPTIONS = all_options()
FLAGS = {
    each.name: each.metadata["flag"] or f"--{each.name.replace('_', '-')}"
    for each in (*dataclasses.fields(FinetuneOptions), *TASK_OPTIONS.values())
}


def _hint(name: str) -> str:
    if name in TASK_OPTIONS:
        return f' The task has it: pass task={{"name": ..., "{name}": ...}}, or {name}=... to `finetune`.'
    return option_hint(name, (*FLAGS, "data", "out"))


FinetuneOptions.__init__ = with_hints(FinetuneOptions.__init__, _hint)  # type: ignore


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
    masks: str | None
    mask_rule: str | None
    class_names: tuple[str, ...] | str | None
    colors: tuple[str, ...] | None
    ignore_class: int
    average: str


def changed(options: FinetuneOptions | None, changes: dict[str, Any]) -> FinetuneOptions:
    """`options`, or the default ones, with these fields and options of the task changed.

    Raises:
        ValueError: for an option that the task does not have.
        TypeError: for a name that is no field; it names the nearest ones. For options that are no record.
    """
    if not isinstance(options, (FinetuneOptions, type(None))):
        raise TypeError(
            "`options` must be a `FinetuneOptions`; single options are keywords.\n"
            f"Received: options={options!r}. Of a dict pass **{{...}}."
        )
    own = {name: changes[name] for name in TASK_OPTIONS if name in changes}
    fields = {name: value for name, value in changes.items() if name not in own}
    options = dataclasses.replace(options or FinetuneOptions(), **fields)
    return dataclasses.replace(options, task=find_task(options.task_record.facts() | own)) if own else options


def with_options(function: _Function) -> _Function:
    """Decorates a function whose `**changes` are fields of the record, or options of a task.

    Its signature shows them, and its error for another name hints at the nearest.
    """
    signature = inspect.signature(function)
    own = [parameter for parameter in signature.parameters.values() if parameter.kind != parameter.VAR_KEYWORD]
    fields = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type)
        for each in (*dataclasses.fields(FinetuneOptions), *TASK_OPTIONS.values())
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*own, *fields])
    return with_hints(function, _hint)


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
    name, colon, count = str(text).partition(":")
    if name == "last_blocks" and count.isdecimal() and int(count) > 0:
        return name, int(count)
    if name in _TRAINABLE and not colon:
        return name, None
    hint = did_you_mean(name, (*_TRAINABLE, "last_blocks")) if name not in _TRAINABLE else ""
    raise ArgumentError(
        f"`trainable` must be 'all', 'head', or 'last_blocks:k' with k from 1.\nReceived: {text!r}.{hint}",
        parameters=("trainable",),
    )


def parse_layout(text: str) -> tuple[str, int | None]:
    """`"none"`, `"replicated"`, `"fsdp"` or `"tensor"`, and of `"tensor:k"` the devices of one copy."""
    name, colon, count = str(text).partition(":")
    if name == "tensor" and count.isdecimal() and int(count) > 0:
        return name, int(count)
    if name in LAYOUTS and not colon:
        return name, None
    raise ArgumentError(
        f"`layout` must be one of {', '.join(LAYOUTS)}, or 'tensor:k' with k from 1.\nReceived: {text!r}.",
        parameters=("layout",),
    )


def is_short(value: Any) -> bool:
    """Whether a report can show a value as it is."""
    if isinstance(value, tuple):
        return all(map(is_short, value))
    return value is None or isinstance(value, (bool, int, float, str)) or hasattr(value, "__fspath__")
