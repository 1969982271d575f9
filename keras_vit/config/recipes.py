"""Published hyper-parameters as frozen records, each number with its source: `RECIPES`, the rows of `recipes.csv`.

Names begin with who published them: `paper-` (arXiv:2010.11929), `official-` (its code), `augreg-` (arXiv:2106.10270),
`big_vision-`; `digits` and `small` are our own. `citations.csv` says for each field where its values are from: what a
paper leaves open is from its authors' code or answers. An empty cell is the field's default. Rates, decays and steps
are those of the source's own batch size; `keras_vit.plan` fits them to another.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any

from keras_vit.checks import (
    ArgumentError,
    Count,
    Fraction,
    NonNegative,
    Number,
    Positive,
    PositiveInt,
    check_choice,
    check_positive,
    check_text,
    did_you_mean,
    one_of,
    validate,
    with_parameters,
)
from keras_vit.config.progressive_resizing import check_start_size
from keras_vit.config.rows import read_rows, value_of, values_of
from keras_vit.config.variants import ResNetConfig
from keras_vit.config.vit import RECORD_OF, ViTConfig
from keras_vit.synonyms import lookup, run_option_hint

STAGES = ("pretrain", "finetune")
OPTIMIZERS = ("sgd", "adamw")
SCHEDULES = ("cosine", "linear", "rsqrt")
LOSSES = ("softmax", "sigmoid")
ACCUMULATOR_DTYPES = ("float32", "bfloat16")

_TEXTS = ("name", "source", "augmentation")  # whose words are no numbers
_SHOWN = 4  # names from all over the table, where none is near
_NEEDS_NO_CITATION = ("name", "source", "stage", "models", "citations")


def _as_tuple(_: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Of a list, as JSON has it."""
    return tuple(values)


def _as_pairs(_: str, pairs: Iterable[Any]) -> tuple[tuple[Any, Any], ...]:
    """Of a field's name and a value."""
    return tuple((name, value) for name, value in pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The hyper-parameters by which a published model was trained.

    Example:
        >>> recipe = keras_vit.find_recipe("augreg-finetune")
        >>> recipe.optimizer, recipe.batch_size, recipe.learning_rate
        ('sgd', 512, 0.03)

    Args:
        name: what users write in `recipe=`.
        source: the publication or code that it is from.
        stage: `"pretrain"` (from random initialisation) or `"finetune"` (from pre-trained ones, with a new head).
        optimizer: `"sgd"` with momentum, or `"adamw"`.
        batch_size: images in one optimizer step, on all devices together.
        learning_rate: the highest one, at the end of the warm-up.
        schedule: `"cosine"` to 0, `"linear"` to `final_learning_rate`, or `"rsqrt"` (reciprocal square root).
        augmentation: a name in `keras_vit.data.augmentation.AUGMENTATIONS`.
        citations: pairs of a field's name and where its value is from.
        models: names of the models that it was published for; `()` for any.
        warmup_steps: optimizer steps in which the rate grows from 0.
        warmup_fraction: the same as a share of all steps; exactly one of both.
        steps: optimizer steps in all.
        epochs: the same as passes over the data; exactly one of both.
        final_learning_rate: of the linear schedule, at its end.
        timescale: of the reciprocal square root, in steps; there alone.
        cooldown_steps: in which the reciprocal square root falls to 0 at the end.
        weight_decay: decoupled: a step takes `rate * weight_decay * kernel` off every kernel and off nothing else.
        momentum: of SGD, in [0, 1).
        beta_1: of AdamW, in [0, 1).
        beta_2: of AdamW, in [0, 1).
        accumulator_dtype: of momentum or first moment; `None` for that of the weights.
        clip_norm: longest global norm of the gradient; `None` for no clipping.
        loss: `"softmax"` or `"sigmoid"` cross-entropy (the latter summed over the classes).
        label_smoothing: LS in [0, 1). With `"sigmoid"` targets are 1 - LS and LS, with `"softmax"` 1 - LS + LS/K and
            LS/K.
        head_bias: first value of the head's bias; its kernel starts at 0.
        dropout_rate: of the model, in [0, 1); `None` for the model's own.
        stochastic_depth_rate: of the model's last block, in [0, 1); `None` for the model's own.
        representation_layer: whether the head has a tanh layer of width D before it; `None` for either.
        model_fields: pairs of another `ViTConfig` field and the value that was trained with.
        accumulation_steps: micro-batches that a batch is cut into, for memory; the numbers are the same.
        ema_momentum: of Polyak averaging, in [0, 1); `None` for none.
        image_size: side of the square images in pixels; `None` for the model's own.
        start_image_size: side at which a run of `keras_vit.finetune` begins, to grow from there; `None` for one size.
        learning_rate_grid: rates that the source tried, the best on held-out data taken.
        train_images: in the data set that it was published for, where `epochs` count it.

    Raises:
        ValueError: for a value out of range, or values that contradict each other.
        TypeError: for a value of the wrong type.
    """

    name: Annotated[str, check_text]
    source: Annotated[str, check_text]
    stage: Annotated[str, one_of(STAGES)]
    optimizer: Annotated[str, one_of(OPTIMIZERS)]
    batch_size: PositiveInt
    learning_rate: Positive
    schedule: Annotated[str, one_of(SCHEDULES)]
    augmentation: Annotated[str, check_text]
    citations: Annotated[tuple[tuple[str, str], ...], _as_pairs]
    models: Annotated[tuple[str, ...], _as_tuple] = ()
    warmup_steps: Count | None = None
    warmup_fraction: Fraction | None = None
    steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    final_learning_rate: NonNegative = 0.0
    timescale: PositiveInt | None = None
    cooldown_steps: Count = 0
    weight_decay: NonNegative = 0.0
    momentum: Fraction | None = None
    beta_1: Fraction | None = None
    beta_2: Fraction | None = None
    accumulator_dtype: Annotated[str, one_of(ACCUMULATOR_DTYPES)] | None = None
    clip_norm: Positive | None = None
    loss: Annotated[str, one_of(LOSSES)] = "softmax"
    label_smoothing: Fraction = 0.0
    head_bias: Number = 0.0
    dropout_rate: Fraction | None = None
    stochastic_depth_rate: Fraction | None = None
    representation_layer: bool | None = None
    model_fields: Annotated[tuple[tuple[str, object], ...], _as_pairs] = ()
    accumulation_steps: PositiveInt = 1
    ema_momentum: Fraction | None = None
    image_size: PositiveInt | None = None
    start_image_size: PositiveInt | None = None
    learning_rate_grid: Annotated[tuple[float, ...], _as_tuple] = ()
    train_images: PositiveInt | None = None

    def __post_init__(self) -> None:
        validate(self)
        for rate in self.learning_rate_grid:
            check_positive("learning_rate_grid", rate)
        self._check_together()
        for name, _ in self.citations:
            check_choice("citations", name, [field.name for field in dataclasses.fields(self)])
        for name, _ in self.model_fields:
            check_choice("model_fields", name, list(RECORD_OF))

    def _check_together(self) -> None:
        for first, second in (("steps", "epochs"), ("warmup_steps", "warmup_fraction")):
            given = {field: getattr(self, field) for field in (first, second)}
            if (given[first] is None) == (given[second] is None):
                raise ValueError(
                    f"a recipe has either `{first}` or `{second}`.\n"
                    f"Received: {first}={given[first]}, {second}={given[second]}."
                )
        if self.published_steps is not None and (self.warmup_steps or 0) >= self.published_steps:
            raise ValueError(
                "the rate falls after its warm-up, so `warmup_steps` must be fewer than all steps.\n"
                f"Received: warmup_steps={self.warmup_steps}, {self.published_steps} steps in all."
            )
        if self.start_image_size is not None and self.image_size is not None:
            check_start_size((self.start_image_size,) * 2, (self.image_size,) * 2)
        self._check_schedule()

    def _check_schedule(self) -> None:
        needed = {"sgd": ("momentum",), "adamw": ("beta_1", "beta_2")}[self.optimizer]
        needed += ("timescale",) if self.schedule == "rsqrt" else ()
        for field in needed:
            if getattr(self, field) is None:
                raise ValueError(
                    f"`{field}` belongs to {self.optimizer} and the {self.schedule} schedule.\nReceived: {field}=None."
                )
        if self.schedule == "linear" and self.final_learning_rate > self.learning_rate:
            raise ValueError(
                "the linear schedule falls, so `final_learning_rate` must not be above `learning_rate`.\n"
                f"Received: final_learning_rate={self.final_learning_rate}, learning_rate={self.learning_rate}."
            )

    @property
    def published_steps(self) -> int | None:
        """Optimizer steps on the data set that it was published for, or `None` if it is for any data."""
        if self.epochs is None or self.train_images is None:
            return self.steps
        return self.epochs * self.train_images // self.batch_size

    def model_arguments(self, config: ViTConfig | ResNetConfig) -> dict[str, object]:
        """What to pass to a builder, so that a model of this config is as the recipe trains it.

        Returns:
            Fields of `ViTConfig`: those that the recipe leaves to the model are not among them. None of a ResNet.

        Raises:
            ValueError: if the recipe trains what a ResNet has no place for.
        """
        rates = {field: getattr(self, field) for field in ("dropout_rate", "stochastic_depth_rate")}
        if isinstance(config, ResNetConfig):
            wanted = rates | {"representation_layer": self.representation_layer} | dict(self.model_fields)
            if fields := [f"{field}={value!r}" for field, value in wanted.items() if value]:
                raise ValueError(
                    "the recipe trains a Vision Transformer with what a ResNet has no place for.\n"
                    f"Received: {self.name!r} with {', '.join(fields)}. Take another recipe, or change this one with "
                    "`dataclasses.replace`."
                )
            return {}
        arguments = {field: rate for field, rate in rates.items() if rate is not None}
        if self.representation_layer is not None:
            arguments["representation_size"] = config.hidden_size if self.representation_layer else None
        return {**arguments, **dict(self.model_fields)}

    def facts(self) -> list[tuple[str, object, str]]:
        """Every field that is set, its value, and where that is from (`""` if it has no source)."""
        sources = dict(self.citations)
        fields = [field.name for field in dataclasses.fields(self) if field.name not in _NEEDS_NO_CITATION]
        return [
            (field, getattr(self, field), sources.get(field, ""))
            for field in fields
            if getattr(self, field) not in (None, ()) or field in sources
        ]

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.stage}), {self.source}"]
        for field, value, source in self.facts():
            lines.append(f"  {field:<22} {value!s:<28} {source}".rstrip())
        return "\n".join(lines)


class RecipeTable(Mapping):
    """Recipes by name, in the order of their publications; printed, one line each."""

    def __init__(self, recipes: Iterable[Recipe]) -> None:
        self._recipes = {recipe.name: recipe for recipe in recipes}

    def __getitem__(self, name: str) -> Recipe:
        return self._recipes[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._recipes)

    def __len__(self) -> int:
        return len(self._recipes)

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        return "\n".join(
            f"{name:<{width}}  {r.optimizer:<5} {r.learning_rate:g} {r.schedule}, batch {r.batch_size}, "
            + (f"{r.steps:,} steps" if r.steps else f"{r.epochs} epochs")
            + f", decay {r.weight_decay:g}, {r.augmentation}"
            for name, r in self.items()
        )


def _read_recipes() -> Iterator[Recipe]:
    rows = read_rows(__file__, "citations.csv")
    cited = [(set(row["citations"].split()), (row["field"], row["source"])) for row in rows]
    for row in read_rows(__file__, "recipes.csv"):
        sets = row.pop("citations").split()
        values: dict[str, Any] = {
            field: word if field in _TEXTS else value_of(word) for field, word in row.items() if word
        }
        values["citations"] = (pair for of, pair in cited if not of.isdisjoint(sets))
        values |= {"models": row["models"].split(), "model_fields": values_of(row["model_fields"]).items()}
        values["learning_rate_grid"] = map(float, row["learning_rate_grid"].split())
        yield Recipe(**values)


RECIPES = RecipeTable(_read_recipes())


def find_recipe(name_or_record: Recipe | str) -> Recipe:
    """Finds a published recipe by its name.

    Example:
        >>> keras_vit.find_recipe("augreg-finetune").schedule
        'cosine'
        >>> [name for name in keras_vit.RECIPES if "finetune" in name][:3]
        ['paper-finetune-imagenet2012', 'paper-finetune-cifar100', 'paper-finetune-cifar10']

    Args:
        name_or_record: a name in `RECIPES`, or a `Recipe`, which is returned as it is.

    Raises:
        ValueError: for an unknown name; the error lists the nearest ones.
        TypeError: for anything else.
    """
    if isinstance(name_or_record, Recipe):
        return name_or_record
    if not isinstance(name_or_record, str):
        rule = "`recipe` must be a name or a `Recipe`."
        raise with_parameters(TypeError(f"{rule}\nReceived: {name_or_record!r}."), "recipe")
    if name_or_record not in RECIPES:
        names = list(RECIPES)
        some = f" Some of them: {', '.join(map(repr, names[:: len(names) // _SHOWN]))}."
        raise ArgumentError(
            "`recipe` must be a name in `keras_vit.RECIPES` (`keras-vit recipes` prints them) or a `Recipe`.\n"
            f"Received: {name_or_record!r}.{did_you_mean(name_or_record, RECIPES) or some}"
        )
    return RECIPES[name_or_record]


def option_hint(name: str, options: Collection[str]) -> str:
    """What to say of a name that is none of a run's `options`: an option, or where a recipe or a config has it."""
    if lookup(name, options):
        return did_you_mean(name, options)
    return (
        run_option_hint(name)
        or field_hint(name)
        or did_you_mean(name, options)
        or f" Its fields are {', '.join(options)}."
    )


def field_hint(name: str) -> str:
    """Where a recipe or a config has what a user took for an option of a run, or `''`."""
    recipe = [field.name for field in dataclasses.fields(Recipe)]
    words = (name.lower().replace("-", "_"), *lookup(name, (*recipe, *RECORD_OF)))
    if word := next((word for word in words if word in recipe), None):
        change = f'dataclasses.replace(keras_vit.find_recipe("augreg-finetune"), {word}=...)'
        return f" The recipe says it: in Python pass recipe={change}."
    if word := next((word for word in words if word in RECORD_OF), None):
        return f' The config of the model says it: in Python pass keras_vit.VARIANTS["B/16"].replace({word}=...).'
    return ""
