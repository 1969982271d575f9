"""Whether a loss or a metric reads what a model answers: logits or probabilities.

A loss of probabilities that gets logits never falls, or falls towards wrong weights. A threshold of 0.5 divides logits
at another probability than 0.5. Keras does not warn of either.
"""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import keras

from keras_vit.annotations import Arguments
from keras_vit.model.classifiers import output_activation

_PROBABILITIES = ("softmax", "sigmoid")  # activations whose values are probabilities
# These losses and metrics read probabilities, and cannot read logits.
_ALWAYS = ("kl_divergence", "KLDivergence", "Poisson", "poisson", "dice", "Dice", "tversky", "Tversky")
_CROSSENTROPY = ("crossentropy", "ce")  # names that only a list of metrics knows, as "accuracy"
_ACCURACY = ("accuracy", "acc")


class LogitsError(ValueError):
    """A loss or metric reads probabilities where there are logits, or logits where there are probabilities."""


def check_reads_outputs(model: keras.Model, loss: Any, metrics: Iterable[Any]) -> None:
    """Raises unless losses and metrics read what the model answers.

    Nothing is said of a model without a head, of one with another activation, and of functions that are not Keras'.

    Args:
        model: a `VisionTransformer`.
        loss: of `compile`: a name, a function or an object, or a structure of them.
        metrics: of `compile`, `weighted_metrics` among them.

    Raises:
        LogitsError: for one that reads the other kind of number.
    """
    activation = output_activation(model)
    if activation != "linear" and activation not in _PROBABILITIES:
        return
    logits = activation == "linear"
    binary = model.output_shape[-1] == 1
    asked = [("loss", each, _reads_logits_loss(each)) for each in keras.tree.flatten(loss)]
    asked += [("metric", each, _reads_logits_metric(each, binary)) for each in keras.tree.flatten(list(metrics))]
    for kind, each, reads_logits in asked:
        if reads_logits is not None and reads_logits != logits:
            raise LogitsError(_message(model, kind, each, logits))


def _message(model: keras.Model, kind: str, each: Any, logits: bool) -> str:
    name = repr(each) if isinstance(each, str) else getattr(each, "__name__", type(each).__name__)
    if logits:
        way = _way_to_logits(kind, each)
        module = "losses" if kind == "loss" else "metrics"
        give = f"Give it {way}, as an object of `keras.{module}`, or build" if way else "Build"
        return (
            f"the model answers logits, which a {kind} of probabilities misreads.\n"
            f"Received: {kind} {name} for {model.name!r}. {give} the model with "
            'classifier_activation="softmax" (with one class "sigmoid").'
        )
    return (
        f"the model answers probabilities, which a {kind} of logits misreads.\n"
        f"Received: {kind} {name} with from_logits=True for {model.name!r}, which ends in {output_activation(model)}. "
        "Leave `from_logits` out, or build the model without `classifier_activation`."
    )


def _way_to_logits(kind: str, each: Any) -> str | None:
    """How a loss or metric of probabilities is told that it gets logits; `None` if it cannot be."""
    if isinstance(each, str) and kind == "metric" and each not in _ACCURACY + _CROSSENTROPY:
        each = keras.metrics.get(each)
    if each in _ALWAYS or getattr(each, "__name__", type(each).__name__) in _ALWAYS:
        return None
    threshold = {"threshold", "thresholds", "num_thresholds"} & set(_config(each)) or each in _ACCURACY
    return "a threshold of 0.0" if threshold and "from_logits" not in _config(each) else "`from_logits=True`"


def _reads_logits_loss(loss: Any) -> bool | None:
    """True or False, or `None` if nothing tells or both do."""
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:  # Keras raises it again at the first step
            return None
    if inspect.isfunction(loss):
        return _reads_logits_function(loss)
    if type(loss).__name__ in _ALWAYS:
        return False
    return _config(loss).get("from_logits")


def _reads_logits_function(function: Callable) -> bool | None:
    if not function.__module__.startswith("keras."):
        return None
    if function.__name__ in _ALWAYS:
        return False
    parameter = inspect.signature(function).parameters.get("from_logits")
    return None if parameter is None else parameter.default


def _reads_logits_metric(metric: Any, binary: bool) -> bool | None:
    """True or False, or `None` if nothing tells or both do. `binary` for a model of one class."""
    if isinstance(metric, str):
        if metric in _CROSSENTROPY or (metric in _ACCURACY and binary):
            return False
        try:
            metric = keras.metrics.get(metric)
        except ValueError:
            return None
    if inspect.isfunction(metric):
        return _reads_logits_function(metric)
    config = _config(metric)
    if "from_logits" in config:
        return config["from_logits"]
    if type(metric).__name__ in _ALWAYS or "num_thresholds" in config:
        return False
    thresholds = keras.tree.flatten([config.get("threshold"), getattr(metric, "thresholds", None)])
    inside = any(isinstance(threshold, (int, float)) and 0 < threshold < 1 for threshold in thresholds)
    return False if inside else None


def _config(each: Any) -> Arguments:
    """The config of an object of Keras; empty for any other, and for one without a config."""
    if not type(each).__module__.startswith("keras."):
        return {}
    try:
        return each.get_config()
    except (NotImplementedError, AttributeError):
        return {}
