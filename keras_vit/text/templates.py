"""Prompts for a class's name: OpenAI's 80 and 7 for ImageNet, its names of the classes, and SigLIP's form of both."""

import functools
import importlib.resources
import json
from collections.abc import Sequence
from typing import Any

from keras_vit.checks import ArgumentError, did_you_mean, with_parameters
from keras_vit.text.cleaning import PUNCTUATION, canonicalized, joined
from keras_vit.text.tokenizer import check_texts

DEFAULT_TEMPLATES = ("a photo of a {}.",)
NAMED = {"imagenet": "templates", "imagenet-7": "best_templates"}
_PLACE = "{}"


@functools.cache
def _imagenet() -> dict[str, Any]:
    return json.loads((importlib.resources.files("keras_vit.text") / "vocabulary" / "imagenet.json").read_text("utf8"))


def imagenet_classes() -> tuple[str, ...]:
    """OpenAI's names of ImageNet's 1,000 classes, of which two stand twice."""
    return tuple(_imagenet()["classes"])


def find_templates(templates: str | Sequence[str] | None) -> tuple[str, ...]:
    """The prompts, each with `{}` for a class's name.

    Args:
        templates: `"imagenet"` for 80, `"imagenet-7"` for 7, own ones, or `None` for "a photo of a {}.".

    Raises:
        TypeError: for what is no text.
        ValueError: for another word, no prompt, or one without `{}`.
    """
    if templates is None:
        return DEFAULT_TEMPLATES
    if isinstance(templates, str) and _PLACE not in templates:
        if templates not in NAMED:
            near = did_you_mean(templates, [*NAMED])
            raise ArgumentError(
                "`templates` must be 'imagenet', 'imagenet-7', or prompts with one {} each, where the class's name "
                f"stands.\nReceived: {templates!r}, which has no {{}}.{near}"
            )
        return tuple(_imagenet()[NAMED[templates]])
    found = tuple(check_texts("templates", templates))
    wrong = next((template for template in found if template.count(_PLACE) != 1 or "{{}" in template), None)
    if not found or wrong is not None:
        raise ArgumentError(
            "`templates` must be prompts with one {} each, where the class's name stands.\n"
            f"Received: {'none' if wrong is None else repr(wrong)}."
        )
    return found


def prompts(classes: Sequence[str], templates: Sequence[str], canonical: bool = False) -> list[str]:
    """K x n texts, class by class.

    Args:
        classes: K names.
        templates: n prompts.
        canonical: whether names and prompts get the form of SigLIP's own evaluation: small letters, no punctuation, a
            name to its first comma.
    """
    if canonical:
        classes = [canonicalized(name.partition(",")[0]) for name in classes]
        bare = (
            _PLACE.join(part.replace("_", " ").translate(PUNCTUATION) for part in t.split(_PLACE)) for t in templates
        )
        templates = [joined(template.lower()) for template in bare]
    return [template.replace(_PLACE, name) for name in classes for template in templates]


def check_classes(classes: Any) -> tuple[str, ...]:
    """Names of classes, of which several may be equal; raises unless each is a text that is not empty."""
    if isinstance(classes, str):
        raise with_parameters(TypeError(f"`classes` must be a list of names.\nReceived: {classes!r:.60}."), "classes")
    names = tuple(check_texts("classes", classes, "a list of texts"))
    if not names or not all(name.strip() for name in names):
        raise ArgumentError(
            "`classes` must be at least one name, and none may be empty.\n"
            f"Received: {len(names)} names, as {names[:3]!r}."
        )
    return names
