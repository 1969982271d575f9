"""Warnings of labels that are most likely mistakes, found by comparing all examples."""

import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from keras_vit.images.validation import ValidImage
from keras_vit.pages.formatting import printable

_MISSING = {"nan", "null", "none", "na", "n/a", "<na>", "nat", "#n/a", "#na", "-nan", "#n/a n/a"}  # of pandas, SQL
_MISSING |= {"1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan", "n.a.", "nil", "undefined", "(blank)", "-", "?"}
_MISSING |= {"#value!", "#ref!", "#div/0!", "#name?", "#null!", "#num!"}  # of Excel
_SEVERAL = re.compile(r"\S[,;|]\S")  # "tench, Tinca tinca" is one name
_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d*)?(e[+-]?\d{1,2})?", re.IGNORECASE)  # digits of any script, as `float`'s
_NUMBERED = re.compile(r"(\d{1,9})(\s*[:;.,)=|]\s*|\s+)\S", re.ASCII)
HIDDEN = "-1"  # the label that stands for an unknown one in many sets


def folded_name(name: str) -> str:
    """A name without case, Unicode form, extra spaces and signs that do not show."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    shown = "".join(sign for sign in folded if unicodedata.category(sign) != "Cf")  # as a space without width
    return " ".join(shown.split())


def similar_names(names: Iterable[str]) -> list[list[str]]:
    """Names that differ only in case, spaces or Unicode form, as macOS and Linux write one word."""
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        groups.setdefault(folded_name(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def quote_names(group: Sequence[str]) -> str:
    """Similar names in ASCII, so that their difference shows."""
    return " and ".join(map(ascii, group[:3]))


def warn_similar_class_names(names: Iterable[str], noun: str = "classes") -> None:
    """Warns of classes or targets whose names differ only in case, spaces or Unicode form: they are most likely one."""
    if groups := similar_names(names):
        warnings.warn(
            f"{len(groups)} group(s) of {noun} differ only in case, spaces or Unicode form, as "
            f"{quote_names(groups[0])}. Give them one name if they are one.",
            stacklevel=2,
        )


_COLUMN_EACH = "give each a column of its own and train with --task multi-label."


def warn_doubtful_class_names(names: Iterable[str], of_several: str = _COLUMN_EACH) -> None:
    """Warns of labels that are written as a missing one is, as "nan", or as several are, as "a,b"."""
    known = set(names)
    missing = sorted(name for name in known if name.strip().lower() in _MISSING)
    parts = {name: re.split(r"\s*[,;|]\s*", name) for name in known}
    several = sorted(name for name in known if _SEVERAL.search(name) or (parts[name][1:] and {*parts[name]} <= known))
    by_value: dict[float, list[str]] = {}
    for name in sorted(known):
        if _NUMBER.fullmatch(name.strip()):
            by_value.setdefault(float(name), []).append(name)
    if one := next((group for group in by_value.values() if len(group) > 1), None):
        warnings.warn(
            f"{quote_names(one)} are one number, and count as classes of their own. Write it in one way.", stacklevel=2
        )
    if missing:
        warnings.warn(
            f"{_count_as(missing, 'a class')}. If it stands for a missing label, leave these rows out.", stacklevel=2
        )
    if several:
        warnings.warn(
            f"{_count_as(several, 'one class')}. If it stands for several labels of a photo, {of_several}", stacklevel=2
        )


def warn_numbered_class_names(names: Sequence[str], place: object) -> None:
    """Warns of a list whose names all begin with running numbers, as "0 cat", which are read as part of the names."""
    numbers = [int(found[1]) for name in names if (found := _NUMBERED.match(name))]
    if len(names) > 1 and sorted(numbers) in ([*range(len(names))], [*range(1, len(names) + 1)]):
        warnings.warn(
            f"the class names of {printable(place)} begin with numbers, which are read as part of them, as "
            f"{names[0]!a}. Remove the numbers if they only count; the order of the lines is that of the classes.",
            stacklevel=2,
        )


def warn_numbers_for_names(numbers: Mapping[str, int], names: Sequence[str]) -> None:
    """Warns of labels that are read as numbers of classes though they may be names, which are others."""
    if not set(numbers) <= set(names):
        return
    other = next((label for label, number in numbers.items() if label in names and names[number] != label), None)
    if other is not None:
        warnings.warn(
            f"label {other} in the shards is read as a place in the list of names, counted from 0: "
            f"{names[numbers[other]]!a}. If it stands for the class named {other!a}, remove the list.",
            stacklevel=2,
        )


def _count_as(names: Sequence[str], what: str) -> str:
    counts = "counts" if len(names) == 1 else "each count"
    return f"{quote_names(names)} {counts} as the name of {what}"


def warn_conflicting_labels(images: Sequence[ValidImage], labels: np.ndarray, classes: Sequence[str]) -> None:
    """Warns of equal files in several classes: at most one of the labels is right."""
    first: dict[bytes, int] = {}
    again = {}
    for number, image in enumerate(images):
        other = first.setdefault(image.digest, number)
        if labels[other] != labels[number]:
            again[image.digest] = (other, number)
    if again:
        one, other = next(iter(again.values()))
        warnings.warn(
            f"{len(again)} photo(s) stand under more than one class, byte for byte, so that a label is wrong, as "
            f"{printable(images[one].path)} of class {classes[labels[one]]!r} and {printable(images[other].path)} of "
            f"class {classes[labels[other]]!r}.",
            stacklevel=2,
        )


def check_trained_classes(found: Mapping[str, set[int]], classes: Sequence[str]) -> None:
    """Warns of classes that `train` lacks and other splits have, and refuses a class `-1` that only those have."""
    if "train" not in found:  # a set to measure on
        return
    missing = sorted(set().union(*found.values()) - found["train"])
    names = [classes[label] for label in missing]
    if HIDDEN in names:
        label = classes.index(HIDDEN)
        where = ", ".join(split for split, labels in found.items() if label in labels)
        raise ValueError(
            "a split must have its labels, by which a model is measured; -1 stands for a hidden label.\n"
            f"Received: the label -1 in {where}, and not in train. Leave these rows out."
        )
    if missing:
        warnings.warn(
            f"`train` has no example of {len(missing)} class(es) that other splits have, as "
            f"{[printable(name) for name in names[:5]]}.",
            stacklevel=2,
        )
