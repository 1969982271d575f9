"""The model that a command is about: the folder of a run, a file, a variant and weights, or published weights."""

import os
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from keras_vit.checks import check_positive_int, did_you_mean
from keras_vit.cli.terminal import path
from keras_vit.config.heads import HEAD_KINDS
from keras_vit.pages.formatting import printable
from keras_vit.runs.load import NAMES, RunFacts, check_run, load_any, read_facts, variant_and_weights
from keras_vit.runs.run_files import BEST, CONFIG
from keras_vit.weights.resolve import check_available

TOP = 5  # classes that an answer names, by default


def load_model_and_run(arguments: Namespace, needs_head: bool = True) -> tuple[Any, RunFacts]:
    """The model, and what its run knows of its outputs, data and seed; of no run the facts of none.

    Args:
        arguments: of the command.
        needs_head: whether the command can do nothing with a model without a head.
    """
    return load_any(arguments.model, arguments.weights, needs_head)


def check_model(arguments: Namespace) -> Any:
    """Raises for a model that cannot be, before the seconds in which Keras is imported."""
    given, place = arguments.model, path(arguments.model)
    if arguments.weights is not None and given not in NAMES:
        raise ValueError(f"`--weights` is for a variant, as B/16 or R50x1; a file has its own.\nReceived: {given!r}.")
    found = variant_and_weights(given, arguments.weights)
    if found is not None:
        return check_available(found[1], found[0])
    near = did_you_mean(given, NAMES) or " `keras-vit models` lists the variants."
    return check_run(place, f", or a variant as B/16.{near}")


def run_facts(given: str) -> RunFacts:
    """What a run's folder says, before Keras is imported; of any other model the facts of none."""
    config = path(given) / CONFIG
    return read_facts(config) if os.path.lexists(config) and (path(given) / BEST).exists() else RunFacts()


def check_top_of_run(top: int | None, given: str) -> None:
    """Raises for a `--top` that is no count, or for a run whose outputs are no classes."""
    if top is None:
        return
    check_positive_int("top", top)
    head = run_facts(given).task.head
    if head is None or HEAD_KINDS[head].output != "logits":
        raise _no_classes(top, given)


def check_top(top: int | None, model: Any) -> None:
    """The same for a model that is loaded."""
    if top is not None and not model.output_spec.classifies:
        raise _no_classes(top, model.name)


def _no_classes(top: int, name: str) -> ValueError:
    return ValueError(
        f"`--top` is for a model with classes.\nReceived: --top {top} for {printable(name)}, which has none. Leave it "
        "out."
    )


def output_names(model: Any, names: Sequence[str] | None) -> Sequence[str]:
    from keras_vit.model.outputs import names_of_outputs, output_spec

    if names is not None and len(names) == output_spec(model).size:
        return names
    return names_of_outputs(model)


def load_zero_shot(
    given: str, weights: str | None, classes: Sequence[str], templates: str | None
) -> tuple[Any, RunFacts]:
    """A classifier of what `classes` are called, by both towers of a source.

    Args:
        given: a name, a file or a folder.
        weights: of a variant, in place of the usual ones.
        classes: names of the classes.
        templates: as for `keras_vit.zero_shot`.
    """
    from keras_vit.text_builders import build_text, zero_shot

    found = variant_and_weights(given, weights)
    if found is None:
        model = load_any(given)[0]
        towers = getattr(model, "towers", None)  # of a run that has trained both
        if towers is None:
            raise ValueError(
                "classes in words need both towers of CLIP, SigLIP or their like.\n"
                f"Received: {given}, a model of images alone. Pass a folder with both, or a name as clip/B16."
            )
        (scale, bias), kind = towers.scale_and_bias(), "softmax" if towers.logit_bias is None else "sigmoid"
        options: dict[str, Any] = {"logit_scale": scale, "logit_bias": bias, "classifier_activation": kind}
        model = zero_shot(model, classes=classes, templates=templates, text=towers.text, **options)
        return model, RunFacts(tuple(classes))
    variant, named = found
    text, model = build_text(variant, weights=named), named
    if variant is not None:
        model = load_any(given, weights, needs_head=False)[0]
    kind = "sigmoid" if text.logit_bias else "softmax"
    model = zero_shot(model, classes=classes, templates=templates, text=text, classifier_activation=kind)
    return model, RunFacts(tuple(classes))
