"""Whether a model is as a recipe trains it."""

from typing import Any

from keras_vit.config.recipes import Recipe
from keras_vit.model.image_model import ImageModel
from keras_vit.model.outputs import check_no_activation


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
    """Raises where the model's config has another value than the recipe asks for."""
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
