"""The classifiers at the end of a model, and what it answers: logits, scores or features."""

from typing import Any

import keras
import numpy as np

from keras_vit.checks import check_choice
from keras_vit.images.preprocessing import default_names
from keras_vit.model.layer_lookup import head_layers, layer_named

STARTS = ("new", "reset", "keep")  # what becomes of a head when training begins


def has_head(model: keras.Model) -> bool:
    """Whether the model tells classes."""
    return bool(head_layers(model))


def names_of_outputs(model: Any) -> tuple[str, ...]:
    """Names of the model's K outputs: those that it knows, else ImageNet's if K is theirs, else numbers."""
    classes, known = model.output_shape[-1], getattr(model, "class_names", None)
    return known if known is not None and len(known) == classes else default_names(classes)


def output_activation(model: Any) -> str | None:
    """Name of what the head's numbers go through, as `"softmax"`; `"linear"` for logits, `None` without a head.

    Args:
        model: a `VisionTransformer` or `ResNet`, or what has none of its layers and knows its `output_activation`.
    """
    if hasattr(model, "output_activation"):
        return model.output_activation
    heads = head_layers(model)
    last = layer_named(model, "activation") or (heads[0] if heads else None)
    return None if last is None else getattr(last.activation, "__name__", str(last.activation))


def ends_in_logits(model: Any) -> bool:
    """Whether there is a head, and no activation follows it."""
    return output_activation(model) == "linear"


def check_logits(model: keras.Model, role: str = "model") -> None:
    """Raises a `ValueError` if an activation follows the head; `role` is what the message calls the model."""
    if has_head(model) and not ends_in_logits(model):
        raise ValueError(
            f"the loss is one of logits, so the {role} must not have an activation behind its head.\n"
            f"Received: {model.name!r}. Build it without `classifier_activation`."
        )


def initialise_head(model: keras.Model, bias: float, head: str) -> None:
    """Sets the kernels of the model's heads to 0 and their biases to `bias`; see `Plan.prepare`."""
    check_choice("head", head, STARTS)
    if head == "keep":
        return
    heads = head_layers(model)
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


def answering_network(model: keras.Model) -> keras.Model:
    """The layers of `model` as a network from prepared images to a dict of its answers.

    Args:
        model: a `VisionTransformer`.

    Returns:
        A `keras.Model` with outputs `features` `(B, D)` and, if there is a head, `logits` `(B, K)`, or `scores` where
        an activation follows the head.
    """
    heads = head_layers(model)
    if not heads:
        return keras.Model(model.input, {"features": model.output})
    outputs = "logits" if ends_in_logits(model) else "scores"
    return keras.Model(model.input, {"features": heads[0].input, outputs: model.output})
