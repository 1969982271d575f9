"""The model that a command is about: the folder of a run, a file, a variant and weights, or published weights."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_vit.checks import ArgumentError, check_positive_int, did_you_mean
from keras_vit.cli.terminal import path
from keras_vit.config.heads import HEAD_KINDS
from keras_vit.config.variants import ENCODERS
from keras_vit.files import FileKindError, read_regular
from keras_vit.pages.formatting import printable
from keras_vit.runs.load import NAMES, RunFacts, check_run, load_any, load_model, read_facts, variant_and_weights
from keras_vit.runs.run_files import BEST, CONFIG
from keras_vit.text.templates import check_classes, find_templates
from keras_vit.weights.resolve import check_available
from keras_vit.weights.text import check_family

_MOST_BYTES = 1 << 26  # of names of classes; those of ImageNet-21k take 1 MB


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
    try:
        found = variant_and_weights(given, arguments.weights)
    except ValueError:
        if any(getattr(arguments, name, None) is not None for name in ("classes", "templates")):
            check_family(place)  # of which the error is, where neither tower can be read, as of CoCa
        raise
    if found is not None:
        return check_available(found[1], found[0])
    near = did_you_mean(given, NAMES) or " `keras-vit models` lists the variants."
    return check_run(place, f", or a variant as B/16.{near}")


def run_facts(given: str) -> RunFacts:
    """What a run's folder says, before Keras is imported; of any other model the facts of none."""
    return read_facts(path(given) / CONFIG) if is_run(given) else RunFacts()


def is_run(given: str) -> bool:
    """Whether a text is the folder of a run that says what it is of."""
    return os.path.lexists(path(given) / CONFIG) and (path(given) / BEST).exists()


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


def add_zero_shot_options(new: ArgumentParser, by_default: str = "its own classes") -> None:
    """Adds `--classes` and `--templates` to a command."""
    words = f"what to look for, as cat,dog, or a .txt file with a name on each line; by default {by_default}"
    new.add_argument("--classes", metavar="NAMES", help=words)
    prompts = (
        "a prompt with {} for the name of a class, or imagenet for 80 prompts, imagenet-7 for 7; "
        "by default 'a photo of a {}.'"
    )
    new.add_argument("--templates", metavar="PROMPTS", help=prompts)


def check_zero_shot_options(arguments: Namespace) -> None:
    """Raises for prompts without `{}`, an empty name, and a model without a text tower, before Keras is imported."""
    find_templates(arguments.templates)
    if arguments.classes is None:
        return
    check_classes(class_words(arguments))
    if is_run(arguments.model) and run_facts(arguments.model).task.head is not None:
        raise _no_text_tower(arguments.model)
    if arguments.model in NAMES:
        _check_encoder((variant_and_weights(arguments.model) or (None,))[0])


def check_templates_have_classes(arguments: Namespace) -> None:
    """Raises for prompts without the names that they are for."""
    if arguments.templates is not None and arguments.classes is None:
        raise ValueError("`--templates` goes with `--classes`.\nReceived: --templates and no --classes.")


def class_words(arguments: Namespace) -> list[str]:
    """The names of `--classes`, with commas, or each on a line of a `.txt` file."""
    given = arguments.classes
    return read_lines(path(given), "classes") if given.endswith(".txt") else [name.strip() for name in given.split(",")]


def read_lines(file: Path, name: str) -> list[str]:
    """The names on the lines of a file, for the option `name`."""
    from keras_vit.data.label_checks import warn_numbered_class_names

    try:
        lines = read_regular(file, _MOST_BYTES).decode("utf-8-sig").splitlines()
        names = [line.strip() for line in lines if line.strip()]
        warn_numbered_class_names(names, file)
        return names
    except FileKindError as error:
        fault = error.reason
    except UnicodeDecodeError:
        fault = "which is no text in UTF-8"
    except OSError as error:
        fault = str(error.strerror)
    raise ArgumentError(
        f"`{name}` must be a text file in UTF-8 with a name on each line.\nReceived: {str(file)!r}: {fault}."
    )


def load_zero_shot(
    arguments: Namespace, classes: Sequence[str], names: Sequence[str] | None = None, *, scored: bool = False
) -> tuple[Any, RunFacts]:
    """A classifier of what `classes` are called, by both towers of the model of a command.

    Args:
        arguments: of the command, with `model`, `weights` and `templates`.
        classes: what the classes are called in prompts.
        names: what they are called in answers; by default the same.
        scored: whether it ends in the probabilities of the model's own loss; else in logits.
    """
    from keras_vit.text_builders import build_text, zero_shot

    given, weights = arguments.model, arguments.weights
    found = variant_and_weights(given, weights)
    if found is None:
        model = load_any(given)[0]
        towers = getattr(model, "towers", None)  # of a run that has trained both
        if towers is None:
            raise _no_text_tower(given)
        options: dict[str, Any] = {}
        text, is_sigmoid = towers.text, bool(towers.scale_and_bias()[1])
    else:
        variant, named = found
        _check_encoder(variant)
        text, model, options = build_text(variant, weights=named), named, {}
        if variant is not None:
            model = load_any(given, weights, needs_head=False)[0]
        is_sigmoid = bool(text.logit_bias)
    options |= {"classes": classes, "class_names": names, "templates": arguments.templates, "text": text}
    if scored:
        options["classifier_activation"] = "sigmoid" if is_sigmoid else "softmax"
    return zero_shot(model, **options), RunFacts(tuple(classes if names is None else names))


def _no_text_tower(given: str) -> ValueError:
    return ValueError(
        "classes in words need both towers of CLIP, SigLIP or their like.\n"
        f"Received: {given}, a model of images alone. Pass a folder with both, or a name as clip/B16."
    )


def _check_encoder(variant: str | None) -> None:
    """Raises for a variant of the official code, as B/16, whose files are of images alone."""
    if variant is not None and variant not in ENCODERS:
        raise ValueError(
            "published weights must have a text tower, and those of the official code have none.\n"
            f"Received: {variant}. `keras-vit weights list clip/B16` has some that do."
        )


def load_text_tower(arguments: Namespace) -> Any:
    """The text tower of a name, a file or a folder with one; or that of a `.keras` file or a run."""
    from keras_vit.model.two_towers.text_tower import TextTransformer
    from keras_vit.text_builders import build_text

    place = path(arguments.model)
    if place.suffix != ".keras" and not (place / BEST).exists():
        found = variant_and_weights(arguments.model, arguments.weights) if arguments.model in NAMES else None
        variant, named = found or (None, arguments.model)
        _check_encoder(variant)
        return build_text(variant, weights=named)
    model = load_model(check_run(place))
    model = getattr(model, "text", model)  # of a run that has trained both
    if not isinstance(model, TextTransformer):
        raise ValueError(
            f"`--text` is for a text tower.\nReceived: {place}, with a {type(model).__name__}. Leave --text out."
        )
    return model
