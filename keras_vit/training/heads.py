"""Whether a model is as a recipe trains it, and the head that it begins with: zeros and the recipe's bias."""

import keras
import numpy as np

from keras_vit.variants import check_choice
from keras_vit.vit import VisionTransformer

HEADS = ("new", "reset", "keep")
_HEAD_LAYERS = ("head", "head_distillation")


def check_model(model, recipe):
    """Raises unless the recipe can train this model as it was meant."""
    if not isinstance(model, VisionTransformer) or model.config is None:
        raise TypeError(
            f"`model` must be a VisionTransformer that knows its config, as the builders give it.\nReceived: {model!r}."
        )
    heads = _heads(model)
    if not heads:
        raise ValueError(
            "a recipe trains a classifier, so the model must have a head.\n"
            f"Received: {model.name!r} without one. Build it with `include_top=True` and `classes=...`."
        )
    linear = all(head.activation is keras.activations.linear for head in heads)
    if not linear or any(layer.name == "activation" for layer in model.layers):
        raise ValueError(
            "the loss is one of logits, so the model must not have an activation behind its head.\n"
            f"Received: {model.name!r}. Build it without `classifier_activation`."
        )
    _check_fields(model, recipe)


def start_head(model, bias, head):
    """Sets the kernels of the model's heads to 0 and their biases to `bias`; see `Plan.prepare`."""
    check_choice("head", head, HEADS)
    if head == "keep":
        return
    heads = _heads(model)
    trained = [layer.name for layer in heads if np.any(keras.ops.convert_to_numpy(layer.kernel))]
    if head == "new" and trained:
        raise ValueError(
            "the recipe begins with a new head, whose kernel is 0; this one was trained, and would be lost.\n"
            f'Received: {model.name!r} with a trained {trained[0]!r}. Pass head="reset" to begin it anew, '
            'or head="keep" to go on with it.'
        )
    for layer in heads:
        layer.kernel.assign(np.zeros(layer.kernel.shape))
        layer.bias.assign(np.full(layer.bias.shape, bias))


def _heads(model):
    return [layer for layer in model.layers if layer.name in _HEAD_LAYERS]


def _check_fields(model, recipe):
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
