"""What a model puts out, by its `OutputSpec`, and what follows: names, training from a new head, losses that fit.

A loss of probabilities that gets logits never falls, or falls towards wrong weights. A threshold of 0.5 divides logits
at another probability than 0.5. Keras does not warn of either.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import Arguments
from keras_vit.checks import check_choice, check_order
from keras_vit.config.heads import (
    DEPTH,
    HEAD_KINDS,
    HEATMAPS,
    KEYPOINTS,
    MAP_HEADS,
    UNITS,
    WITH_NAMED_OUTPUTS,
    WITHOUT_HEAD,
    OutputSpec,
)
from keras_vit.images.preprocessing import (
    LABEL_FILES,
    check_same_order,
    class_labels,
    default_names,
    is_wordnet_id,
    only_count,
)
from keras_vit.model.layer_access import head_layers, layer_named

STARTS = ("new", "reset", "keep")  # what becomes of a head when training begins
_PROBABILITIES = ("softmax", "sigmoid")  # activations whose values are probabilities
# These losses and metrics read probabilities, and cannot read logits.
_ALWAYS = ("kl_divergence", "KLDivergence", "Poisson", "poisson", "dice", "Dice", "tversky", "Tversky")
_CROSSENTROPY = ("crossentropy", "ce")  # names that only a list of metrics knows, as "accuracy"
_ACCURACY = ("accuracy", "acc")


def output_spec(model: Any) -> OutputSpec:
    """What a model puts out.

    Args:
        model: a `VisionTransformer`, a `ResNet` or an `Engine`, which declare it; or any Keras model that has layers of
            one, as a functional model around it, by which it is found.
    """
    declared = getattr(model, "output_spec", None)
    return declared if declared is not None else spec_of_layers(model, "classes")


def spec_of_layers(model: keras.Model, head_kind: str) -> OutputSpec:
    """The `OutputSpec` of a model by its layers; `head_kind` is what its head answers, if it has one."""
    heads = head_layers(model)
    if not heads:
        names = {layer.name for layer in model.layers}
        found = next(name for name in WITHOUT_HEAD if not HEAD_KINDS[name].layers or names & {*HEAD_KINDS[name].layers})
        return OutputSpec(HEAD_KINDS[found], model.output_shape)
    activation = (layer_named(model, "activation") or heads[0]).activation
    return OutputSpec(HEAD_KINDS[head_kind], model.output_shape, getattr(activation, "__name__", str(activation)))


def names_of_outputs(model: Any) -> tuple[str, ...]:
    """Names of the model's K outputs: those that it knows, else ImageNet's if K fits, else numbers.

    Warns:
        UserWarning: for ImageNet's names of a model whose weights were not loaded from a file that is known.
    """
    count, known = output_spec(model).size, getattr(model, "class_names", None)
    if known is not None and _fits(model, known, count):
        return known
    if count in LABEL_FILES and getattr(model, "provenance", True) == {}:
        warnings.warn(
            f"{model.name!r} has {count:,} outputs without names, so ImageNet's are taken. If these are other classes, "
            "set `model.class_names` and save the model again.",
            stacklevel=2,
        )
    return default_names(count)


def match_names(model: Any, found: Sequence[str] | None, expected: Sequence[str] | None = None) -> tuple[str, ...]:
    """The names of the model's K outputs on data whose labels it is measured by; raises for other classes.

    Names that only count, as `LABEL_0`, are taken for none. Ids of WordNet, as ImageNet's folders have them, are
    compared with those of ImageNet's classes in the order of its checkpoints.

    Args:
        model: whose outputs these are.
        found: names of the classes of the data; `None` if they are not known.
        expected: names of the outputs; by default `model.class_names`.

    Raises:
        ValueError: for another number of classes, other names, or the same in another order.
    """
    size, by_caller = output_spec(model).size, expected is not None
    expected = getattr(model, "class_names", None) if expected is None else expected
    check_order("class_names", expected)
    expected = None if expected is None else tuple(expected)
    expected = expected if by_caller or expected is None or _fits(model, expected, size) else None
    if by_caller and expected is not None:
        check_same_order(getattr(model, "class_names", None), expected, "class_names")
    found = tuple(found or expected or map(str, range(size)))
    known = found if expected is None else tuple(expected)
    if len(found) != size:
        raise ValueError(
            "the data must have the classes that the model knows.\n"
            f"Received: data with {len(found)} classes, {model.name!r} with {size}."
        )
    if not _same_classes(known, found):
        wanted, other = next(pair for pair in zip_longest(known, found) if pair[0] != pair[1])
        advice = " If these are the same classes, pass the data's names as `class_names`."
        if by_caller or sorted(known) == sorted(found):
            advice = ' Classes of arrays may be in any order if "class_names" has their names.'
        raise ValueError(
            "the data must have the classes that the model was trained with, in the same order.\n"
            f"Received: {other!r} where the model has {wanted!r}.{advice}"
        )
    return known if only_count(found) else found


def _fits(model: Any, names: Sequence[str], count: int) -> bool:
    """Whether the names that a model knows are as many as its outputs; warns of others, which are not used."""
    if len(names) != count:
        words = f"`class_names` of {model.name!r} are {len(names):,} names for {count:,} outputs, and are not used"
        warnings.warn(f"{words}. Set as many, in the order of the outputs.", UserWarning, stacklevel=3)
    return len(names) == count


def _same_classes(known: tuple[str, ...], found: tuple[str, ...]) -> bool:
    """Whether names can be those of the same classes in the same order."""
    if known == found or sorted(known) == sorted(found):
        return known == found
    if only_count(known) or only_count(found):
        return True
    if all(map(is_wordnet_id, found)):
        in_order = tuple(name.partition(" ")[0] for name in known)
        if not any(map(is_wordnet_id, in_order)) and len(known) in LABEL_FILES:
            in_order = tuple(number for number, _ in class_labels(len(known)))
        return found == in_order
    return False


def check_no_activation(model: keras.Model, role: str = "model") -> None:
    """Raises a `ValueError` if an activation follows the head; `role` is what the message calls the model."""
    if output_spec(model).activation not in ("linear", None):
        raise ValueError(
            f"the loss is one of logits, so the {role} must not have an activation after its head.\n"
            f"Received: {model.name!r}. Build it without `classifier_activation`."
        )


def initialize_head(model: keras.Model, bias: float, head: str) -> None:
    """Sets the kernels of the model's heads to 0 and their biases to `bias`; see `Plan.prepare`.

    Lines of `load_report` name the heads that were trained.
    """
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
    if trained:
        lost = tuple(f"set aside {layer.name} {tuple(layer.kernel.shape)}" for layer in heads if layer.name in trained)
        model.load_report = (*getattr(model, "load_report", ()), "new head", *lost)
    for layer in heads:
        layer.kernel.assign(np.zeros(layer.kernel.shape))
        layer.bias.assign(np.full(layer.bias.shape, bias))


def with_units(model: Any, scale: Sequence[float], offset: Sequence[float]) -> Any:
    """The layers of a model with a head of numbers, whose answers are brought to the unit of the data.

    Args:
        model: a `VisionTransformer` or `ResNet` whose head has K outputs and no activation.
        scale: K factors of the head's numbers.
        offset: K numbers that are added then.

    Returns:
        A model of the same layers and one more, which computes in float32.
    """
    units = keras.layers.Rescaling(list(scale), list(offset), dtype="float32", name=UNITS)
    return type(model)(
        model.input,
        units(model.output),
        name=model.name,
        config=model.config,
        preprocessing=model.preprocessing,
        weights_report=model.load_report,
        weights_facts=model.provenance,
        class_names=model.class_names,
        head_kind="numbers",
    )


def inference_model(model: keras.Model) -> keras.Model:
    """The layers of `model` as a network from prepared images to a dict of its outputs.

    Args:
        model: a `VisionTransformer`.

    Returns:
        A `keras.Model` with outputs `features` `(B, D)` and, if there is a head, what it puts out, `(B, K)`, under the
        name of its kind: `logits`, or `scores` where an activation follows the head. A model of pixels has one output,
        `logits` `(B, H, W, K)` or `depths` `(B, H, W)`. A model of queries has those of its own dict, one of points
        `heatmaps` `(B, h, w, K)`.
    """
    kind = output_spec(model).head.name
    if kind in WITH_NAMED_OUTPUTS:
        return keras.Model(model.input, {HEATMAPS: model.output} if kind == KEYPOINTS else model.output)
    if kind in MAP_HEADS:
        return keras.Model(model.input, {"depths" if kind == DEPTH else "logits": model.output})
    heads = head_layers(model)
    if not heads:
        return keras.Model(model.input, {"features": model.output})
    return keras.Model(model.input, {"features": heads[0].input, output_spec(model).kind: model.output})


class LogitsError(ValueError):
    """A loss or metric reads probabilities where there are logits, or logits where there are probabilities."""


def check_reads_outputs(model: keras.Model, loss: Any, metrics: Iterable[Any]) -> None:
    """Raises unless losses and metrics read what the model answers.

    Not checked: a model without a head or with another activation, and functions that are not Keras'.

    Args:
        model: a `VisionTransformer`.
        loss: of `compile`: a name, a function or an object, or a structure of them.
        metrics: of `compile`, `weighted_metrics` among them.

    Raises:
        LogitsError: for one that reads the other kind of number.
    """
    spec = output_spec(model)
    if not spec.classifies or (spec.kind == "scores" and spec.activation not in _PROBABILITIES):
        return
    logits, binary = spec.kind == "logits", spec.size == 1
    found = [("loss", each, _reads_logits_loss(each)) for each in keras.tree.flatten(loss)]
    found += [("metric", each, _reads_logits_metric(each, binary)) for each in keras.tree.flatten(list(metrics))]
    for kind, each, reads_logits in found:
        if reads_logits is not None and reads_logits != logits:
            raise LogitsError(_message(model.name, kind, each, spec.activation))


def _message(model: str, kind: str, each: Any, activation: str | None) -> str:
    name = repr(each) if isinstance(each, str) else getattr(each, "__name__", type(each).__name__)
    if activation == "linear":
        way = _way_to_logits(kind, each)
        module = "losses" if kind == "loss" else "metrics"
        give = f"Give it {way}, as an object of `keras.{module}`, or build" if way else "Build"
        return (
            f"the model answers logits, which a {kind} of probabilities misreads.\n"
            f"Received: {kind} {name} for {model!r}. {give} the model with "
            'classifier_activation="softmax" (with one class "sigmoid").'
        )
    return (
        f"the model answers probabilities, which a {kind} of logits misreads.\n"
        f"Received: {kind} {name} with from_logits=True for {model!r}, which ends in {activation}. "
        "Leave `from_logits` out, or build the model without `classifier_activation`."
    )


def _way_to_logits(kind: str, each: Any) -> str | None:
    """What makes a loss or metric of probabilities take logits; `None` if nothing does."""
    if isinstance(each, str) and kind == "metric" and each not in _ACCURACY + _CROSSENTROPY:
        each = keras.metrics.get(each)
    if each in _ALWAYS or getattr(each, "__name__", type(each).__name__) in _ALWAYS:
        return None
    threshold = {"threshold", "thresholds", "num_thresholds"} & set(_config(each)) or each in _ACCURACY
    return "a threshold of 0.0" if threshold and "from_logits" not in _config(each) else "`from_logits=True`"


def _reads_logits_loss(loss: Any) -> bool | None:
    """True or False, or `None` where it cannot be known."""
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
    """True or False, or `None` where it cannot be known. `binary` for a model of one class."""
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
