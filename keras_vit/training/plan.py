"""From a recipe to the arguments of `compile()` and `fit()`, for a model, a batch size and a number of images.

A recipe was published for one batch size and one data set. What it does not say is decided in `plan` alone, and
`Plan.changes` lists it.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import keras

from keras_vit.annotations import Arguments, LastGood
from keras_vit.checks import (
    ArgumentError,
    check_choice,
    check_positive,
    check_positive_int,
    check_share,
    check_steps,
    with_hints,
)
from keras_vit.config.recipes import Recipe, find_recipe
from keras_vit.model.image_model import ImageModel
from keras_vit.model.outputs import check_no_activation, initialize_head
from keras_vit.pages.formatting import format_titled, plural
from keras_vit.training.callbacks import NonFiniteGuard, StopAfterSteps
from keras_vit.training.losses import LABELS, SigmoidCrossentropy
from keras_vit.training.optimizers import SGD, AdamW
from keras_vit.training.schedules import WarmupCosine, WarmupLinear, WarmupReciprocalSqrt

SCALE_RATES = ("linear", "none")
_MOST_EPOCHS_SHOWN = 100  # of a recipe that counts steps: fit() evaluates after each
_NEARLY_ALL = 0.9  # of a recipe's steps; with so many its warm-up stays as it is
_SHORT_RUN_WARMUP = 0.1  # official README's short runs: 50 of 500 steps, 100 of 1,000


@dataclasses.dataclass(frozen=True)
class Plan:
    """A recipe for one data set and batch size; made by `plan`.

    Example:
        >>> plan = keras_vit.plan("augreg-finetune", num_images=2000, batch_size=64)
        >>> model.compile(**plan.compile_arguments())
        >>> model.optimizer.name, sorted(plan.fit_arguments())
        ('sgd', ['callbacks', 'epochs', 'shuffle', 'steps_per_epoch'])

    Attributes:
        recipe: the `Recipe`.
        num_images: in the training set.
        batch_size: images in one optimizer step.
        steps: optimizer steps in all; `fit` with `fit_arguments` makes exactly these.
        warmup_steps: of them.
        learning_rate: the highest one.
        final_learning_rate: of the linear schedule, at its end.
        epochs: the parts of `fit`, after each of which it evaluates.
        steps_per_epoch: in each but the last, which has what is left of `steps`.
        accumulation_steps: micro-batches of one batch.
        layer_decay: the rate of each layer is that of the layer above times this; `None` for one rate.
    """

    recipe: Recipe
    num_images: int
    batch_size: int
    steps: int
    warmup_steps: int
    learning_rate: float
    final_learning_rate: float
    epochs: int
    steps_per_epoch: int
    accumulation_steps: int
    layer_decay: float | None = None

    def __str__(self) -> str:
        """What is trained and how, in 80 columns; `repr` has every field."""
        return "\n".join(
            format_titled(f"{self.recipe.name} for {plural(self.num_images, 'image')}", list(self._facts()))
        )

    def _facts(self) -> Iterator[tuple[str, str]]:
        recipe = self.recipe
        yield "steps", f"{self.steps:,} of {plural(self.batch_size, 'image')}, in {plural(self.epochs, 'epoch')}"
        if self.accumulation_steps > 1:
            each = plural(self.batch_size // self.accumulation_steps, "image")
            yield "micro-batches", f"{self.accumulation_steps:,} of {each} in each step"
        fall = {"cosine": "by a cosine to 0", "linear": f"in a line to {self.final_learning_rate:g}"}
        shape = fall.get(recipe.schedule, "with the square root of the step")
        yield "learning rate", f"{self.learning_rate:g} after {plural(self.warmup_steps, 'step')}, falls {shape}"
        if self.layer_decay is not None:
            yield "layer decay", f"{self.layer_decay:g}"
        yield "optimizer", ", ".join(_words_of_optimizer(recipe))
        smoothing = f", label smoothing {recipe.label_smoothing:g}" if recipe.label_smoothing else ""
        yield "loss", f"{recipe.loss}{smoothing}"
        yield "augmentation", recipe.augmentation
        for number, change in enumerate(self.changes() or ["nothing of the recipe"]):
            yield "" if number else "changed", change.replace("_", " ")

    def prepare(self, model: ImageModel, head: str = "new") -> None:
        """Gives the model the head that the recipe begins with: a kernel of zeros and the recipe's bias.

        Args:
            model: a `VisionTransformer` or `ResNet` that ends in logits; it is changed in place.
            head: `"new"` refuses a kernel that is not zero, for it was trained; `"reset"` sets it to zero, as the
                official code always does; `"keep"` leaves kernel and bias as they are.

        Raises:
            ValueError: if the model is not as the recipe trains it; the error says how to build it.
            TypeError: if it is neither.
        """
        check_model(model, self.recipe)
        initialize_head(model, self.recipe.head_bias, head)

    def schedule(self) -> keras.optimizers.schedules.LearningRateSchedule:
        """The learning rate by step."""
        numbers = (self.learning_rate, self.steps, self.warmup_steps)
        if self.recipe.schedule == "cosine":
            return WarmupCosine(*numbers)
        if self.recipe.schedule == "linear":
            return WarmupLinear(*numbers, self.final_learning_rate)
        cooldown = _shortened(self.recipe.cooldown_steps, self.recipe, self.steps)
        timescale: Any = self.recipe.timescale  # a number in a recipe with this schedule
        return WarmupReciprocalSqrt(*numbers, timescale, cooldown)

    def optimizer(self) -> keras.optimizers.Optimizer:
        """A new optimizer with the schedule, the decay, the clipping and the average of the recipe."""
        recipe = self.recipe
        arguments: Arguments = {
            "learning_rate": self.schedule(),
            "accumulator_dtype": recipe.accumulator_dtype,
            "weight_decay": recipe.weight_decay or None,
            "global_clipnorm": recipe.clip_norm,
            "layer_decay": self.layer_decay,
        }
        if recipe.ema_momentum is not None:
            arguments |= {"use_ema": True, "ema_momentum": recipe.ema_momentum}
        if recipe.optimizer == "sgd":
            return SGD(**arguments | {"momentum": recipe.momentum})
        return AdamW(**arguments | {"beta_1": recipe.beta_1, "beta_2": recipe.beta_2})

    def loss(self, labels: str = "int") -> keras.losses.Loss:
        """The loss of logits.

        Args:
            labels: `"int"`, class numbers `(B,)`, or `"one_hot"`, `(B, K)`, which MixUp and CutMix need.
        """
        check_choice("labels", labels, LABELS)
        smoothing = self.recipe.label_smoothing
        if self.recipe.loss == "sigmoid":
            return SigmoidCrossentropy(smoothing, labels)
        if labels == "one_hot":
            return keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
        if smoothing:
            raise ValueError(
                "softmax cross-entropy with label smoothing needs a row of numbers for each image.\n"
                f"Received: labels='int', label_smoothing={smoothing}. Pass labels=\"one_hot\", to the data as well."
            )
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def compile_arguments(self, labels: str = "int", metrics: list[Any] | None = None) -> Arguments:
        """Arguments for `model.compile(**plan.compile_arguments())`.

        Args:
            labels: as in `loss`.
            metrics: a list of metrics instead of the accuracy.
        """
        loss = self.loss(labels)
        if metrics is None:
            sparse = labels == "int"
            kind = keras.metrics.SparseCategoricalAccuracy if sparse else keras.metrics.CategoricalAccuracy
            metrics = [kind(name="accuracy")]
        arguments = {"optimizer": self.optimizer(), "loss": loss, "metrics": metrics}
        if self.accumulation_steps > 1:
            arguments["accumulation_steps"] = self.accumulation_steps
        return arguments

    def fit_arguments(self, last_good: LastGood = None) -> Arguments:
        """Arguments for `model.fit(dataset, **plan.fit_arguments())` with a dataset that does not end.

        `callbacks` holds the guard against figures that are not finite and the one that stops after `steps` steps,
        within the last epoch. Add others after them. `shuffle` is off, since the dataset has its order.

        Args:
            last_good: as `NonFiniteGuard` takes it.
        """
        return {
            "epochs": self.epochs,
            "steps_per_epoch": self.steps_per_epoch,
            "callbacks": [NonFiniteGuard(last_good), StopAfterSteps(self.steps)],
            "shuffle": False,
        }

    def changes(self) -> tuple[str, ...]:
        """One line for each number that is not the recipe's."""
        recipe = self.recipe
        pairs = [
            ("batch_size", recipe.batch_size, self.batch_size),
            ("learning_rate", recipe.learning_rate, self.learning_rate),
            ("final_learning_rate", recipe.final_learning_rate, self.final_learning_rate),
            ("steps", recipe.published_steps, self.steps),
            ("warmup_steps", recipe.warmup_steps, self.warmup_steps),
            ("layer_decay", None, self.layer_decay),
        ]
        return tuple(
            f"{field}: {_digits(planned)}" + ("" if published is None else f" instead of {_digits(published)}")
            for field, published, planned in pairs
            if planned is not None and planned != published
        )


@with_hints
def plan(
    recipe: Recipe | str,
    model: ImageModel | None = None,
    *,
    num_images: int,
    batch_size: int | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    warmup_steps: int | None = None,
    learning_rate: float | None = None,
    accumulation_steps: int | None = None,
    layer_decay: float | None = None,
    scale_rate: str = "linear",
) -> Plan:
    """Fits a recipe to a number of images and a batch size: steps, warm-up, learning rate, micro-batches.

    What no recipe says is decided so:

    - Rate: in proportion to the batch size (Goyal et al., arXiv:1706.02677; not in the papers of the recipes), with
      `scale_rate="none"` as published. A `learning_rate` that is given is taken as it is.
    - Steps: the recipe's, or its epochs times `num_images` over the batch size. A smaller batch does not lengthen a
      recipe that counts steps.
    - Warm-up: the recipe's, unless fewer than nine tenths of its steps are made; then at most its share of all steps,
      or a tenth of them if that is more, as in the official README's short runs.
    - Micro-batches: no larger than the recipe's, in as few as divide the batch.

    Example:
        >>> plan = keras_vit.plan("augreg-finetune", num_images=2000, batch_size=64)
        >>> plan.steps, plan.warmup_steps, plan.learning_rate
        (500, 100, 0.00375)
        >>> plan.changes()
        ('batch_size: 64 instead of 512', 'learning_rate: 0.00375 instead of 0.03')

    Args:
        recipe: a name in `keras_vit.RECIPES` or a `Recipe`.
        model: a `VisionTransformer` or `ResNet` to check against the recipe; `Plan.prepare` changes it, this does not.
        num_images: in the training set.
        batch_size: images in one optimizer step, on all devices together.
        steps: optimizer steps in all.
        epochs: the same as passes over the images; not both.
        warmup_steps: fewer than the steps; 0 for none.
        learning_rate: the highest one.
        accumulation_steps: micro-batches, a divisor of `batch_size`.
        layer_decay: in (0, 1]: the rate of each layer is that of the layer above times this.
        scale_rate: `"linear"` or `"none"`.

    Returns:
        A `Plan`.

    Raises:
        ValueError: for a value out of range, an empty training set, or a model that is not as the recipe trains it.
        TypeError: for a value of the wrong type.
    """
    recipe = find_recipe(recipe)
    if num_images == 0:
        raise ValueError("the training set is empty, so there is nothing to learn from.\nReceived: num_images=0.")
    check_positive_int("num_images", num_images)
    check_choice("scale_rate", scale_rate, SCALE_RATES)
    if layer_decay is not None:
        check_share("layer_decay", layer_decay)
    if model is not None:
        check_model(model, recipe)
    batch_size = recipe.batch_size if batch_size is None else batch_size
    check_positive_int("batch_size", batch_size)
    steps, epochs = _length(recipe, num_images, batch_size, steps, epochs)
    steps_per_epoch = math.ceil(steps / epochs)
    rate, final_rate = _rates(recipe, learning_rate, batch_size if scale_rate == "linear" else recipe.batch_size)
    return Plan(
        recipe=recipe,
        num_images=num_images,
        batch_size=batch_size,
        steps=steps,
        warmup_steps=_warmup(recipe, steps, warmup_steps),
        learning_rate=rate,
        final_learning_rate=final_rate,
        epochs=math.ceil(steps / steps_per_epoch),
        steps_per_epoch=steps_per_epoch,
        accumulation_steps=_micro_batches(recipe, batch_size, accumulation_steps),
        layer_decay=layer_decay,
    )


def _digits(number: float) -> str:
    return f"{number:g}" if number < 1 else f"{number:.12g}"  # all those of a number of steps


def _words_of_optimizer(recipe: Recipe) -> Iterator[str]:
    yield {"sgd": "SGD"}.get(recipe.optimizer, "AdamW")
    if recipe.optimizer == "sgd":
        yield f"momentum {recipe.momentum:g}"
    else:
        yield f"betas {recipe.beta_1:g} and {recipe.beta_2:g}"
    if recipe.weight_decay:
        yield f"weight decay {recipe.weight_decay:g}"
    if recipe.clip_norm is not None:
        yield f"gradients clipped to a norm of {recipe.clip_norm:g}"
    if recipe.ema_momentum is not None:
        yield f"weights averaged with momentum {recipe.ema_momentum:g}"


def _length(recipe: Recipe, num_images: int, batch_size: int, steps: int | None, epochs: int | None) -> tuple[int, int]:
    """Optimizer steps, and the epochs in which `fit` shows them."""
    if steps is not None and epochs is not None:
        raise ArgumentError(
            f"`steps` and `epochs` say the same thing, so pass one.\nReceived: steps={steps}, epochs={epochs}."
        )
    if steps is None and epochs is None:
        steps, epochs = recipe.steps, recipe.epochs
    if epochs is not None:
        epochs = check_positive_int("epochs", epochs)
        return max(epochs * num_images // batch_size, 1), epochs
    steps = check_positive_int("steps", steps)
    return steps, min(max(round(steps * batch_size / num_images), 1), _MOST_EPOCHS_SHOWN, steps)


def _rates(recipe: Recipe, learning_rate: float | None, batch_size: int) -> tuple[float, float]:
    factor = batch_size / recipe.batch_size
    final_rate = recipe.final_learning_rate * factor  # else a scaled rate could be below it
    if learning_rate is None:
        return recipe.learning_rate * factor, final_rate
    check_positive("learning_rate", learning_rate)
    if recipe.schedule == "linear" and learning_rate < final_rate:
        raise ArgumentError(
            "the recipe's rate falls to its final one, so `learning_rate` must not be below that.\n"
            f"Received: learning_rate={learning_rate}, final_learning_rate={final_rate} of {recipe.name!r}."
        )
    return learning_rate, final_rate


def _warmup(recipe: Recipe, steps: int, warmup_steps: int | None) -> int:
    if warmup_steps is not None:
        check_steps("warmup_steps", warmup_steps)
        if warmup_steps >= steps:
            raise ArgumentError(
                "the rate falls after its warm-up, so `warmup_steps` must be fewer than all steps.\n"
                f"Received: warmup_steps={warmup_steps}, steps={steps}."
            )
        return warmup_steps
    if recipe.warmup_fraction is not None:
        return int(recipe.warmup_fraction * steps)
    return _shortened(recipe.warmup_steps or 0, recipe, steps)


def _shortened(part: int, recipe: Recipe, steps: int) -> int:
    """`part` of a recipe's steps in a run of `steps`, which may be fewer."""
    published = recipe.published_steps
    if published is not None and steps >= _NEARLY_ALL * published and part < steps:
        return part
    share = max(part / published, _SHORT_RUN_WARMUP) if published else _SHORT_RUN_WARMUP
    return min(part, int(share * steps))


def _micro_batches(recipe: Recipe, batch_size: int, accumulation_steps: int | None) -> int:
    if accumulation_steps is None:
        at_least = math.ceil(batch_size * recipe.accumulation_steps / recipe.batch_size)
        return next(count for count in range(at_least, batch_size + 1) if batch_size % count == 0)
    check_positive_int("accumulation_steps", accumulation_steps)
    if batch_size % accumulation_steps:
        raise ArgumentError(
            "`accumulation_steps` must divide `batch_size`, so that micro-batches are equal and their mean is the "
            f"batch's.\nReceived: accumulation_steps={accumulation_steps}, batch_size={batch_size}."
        )
    return accumulation_steps


def check_model(model: Any, recipe: Recipe) -> None:
    """Raises unless the recipe can train this model as it was meant."""
    if not isinstance(model, ImageModel) or model.config is None:
        raise TypeError(
            "`model` must be a VisionTransformer or ResNet that knows its config, as the builders give it.\n"
            f"Received: {model!r}."
        )
    if model.output_spec.activation is None:
        raise ValueError(
            "a recipe trains a classifier, so the model must have a head.\n"
            f"Received: {model.name!r} without one. Build it with `include_top=True` and `classes=...`."
        )
    check_no_activation(model)
    _check_fields(model, recipe)


def _check_fields(model: Any, recipe: Recipe) -> None:
    """Raises where the model's config has another value than the recipe needs."""
    wanted = recipe.model_arguments(model.config)
    wrong = {field: value for field, value in wanted.items() if getattr(model.config, field) != value}
    if wrong:
        received = ", ".join(f"{field}={getattr(model.config, field)!r}" for field in wrong)
        keywords = ", ".join(f"{field}={value!r}" for field, value in wrong.items())
        raise ValueError(
            f"the recipe {recipe.name!r} trains a model with {keywords}.\n"
            f"Received: {model.name!r} with {received}. Pass {keywords} to its builder, as in "
            f"`keras_vit.ViTB16({keywords})`, or change the recipe with `dataclasses.replace`."
        )
