"""The model card of a saved folder: a `README.md` that describes it to people and to the Hugging Face Hub.

It needs no extra, so that every folder can have one. It starts with YAML metadata, in the fields of the Hub's model
cards. Sections in Markdown follow.
"""

import dataclasses
import hashlib
import json
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_vit.files import atomic_write, read_regular
from keras_vit.pages.formatting import markdown_text, printable, table

CARD = "README.md"
NOT_CHOSEN = "None was chosen yet for these weights. Write it here and above, as `license`."
CLASSIFICATION = "image-classification"  # the Hub's name of the task
USE, PREPROCESSING, FACTS = (
    "Use",
    "Preprocessing",
    "What no tensor tells",
)  # headings of sections that differ between a run and its weights on the Hub
_UNKNOWN = (
    "What the model was trained on, and how well it does, was not known to the program that wrote this card. Whether "
    "it does worse for some groups of people, places or things was not studied."
)
_MARK = "\n<!-- keras_vit: as written, {} -->\n"  # its hash shows whether the user has edited the card
_MOST_BYTES = 1 << 24  # of a card
_MOST_CLASSES = 100  # in a table


@dataclasses.dataclass(frozen=True)
class Card:
    """A model card.

    Args:
        title: heading; it is escaped.
        library: the Hub's name of the library that opens the folder.
        sections: Markdown by heading, in reading order; empty ones are left out.
        kind: kind of model, `"vision-transformer"` or `"resnet"`.
        classifies: whether the model has a head; otherwise it gives features.
        limits: limits of the model, and open questions.
        licence: licence of the weights, in words.
        metadata: further fields of the Hub's cards, as `base_model` and `model-index`.
    """

    title: str
    library: str
    sections: Mapping[str, str]
    kind: str = "vision-transformer"
    classifies: bool = True
    limits: str = _UNKNOWN
    licence: str = NOT_CHOSEN
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def text(self) -> str:
        """The text of the whole file."""
        fields = {
            "license": "unknown",
            "library_name": self.library,
            "pipeline_tag": CLASSIFICATION if self.classifies else "image-feature-extraction",
            "tags": ["keras_vit", self.kind],
            **self.metadata,
        }
        sections = {**self.sections, "Limits": self.limits, "Licence": self.licence}
        body = "".join(f"\n## {heading}\n\n{text.strip()}\n" for heading, text in sections.items() if text.strip())
        return f"---\n{yaml_text(fields)}---\n\n# {markdown_text(self.title)}\n{body}"


def yaml_text(facts: Mapping[str, Any], indent: str = "") -> str:
    """Facts as YAML: mappings and lists of mappings in blocks, numbers, texts and lists of these in JSON's notation.

    Args:
        facts: numbers, texts, and mappings and lists of these. Texts are made printable.
        indent: indent of every line.
    """
    lines = []
    for name, value in facts.items():
        if isinstance(value, Mapping):
            lines.append(f"{indent}{name}:\n{yaml_text(value, indent + '  ')}")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            items = (yaml_text(item, indent + "  ") for item in value)
            lines.append(f"{indent}{name}:\n" + "".join(f"{indent}- {item[len(indent) + 2 :]}" for item in items))
        else:
            lines.append(f"{indent}{name}: {_scalar(value)}\n")
    return "".join(lines)


def _scalar(value: Any) -> str:
    """A value as JSON, with the point that YAML 1.1 requires in a number such as `1.0e-05`."""
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    value = printable(value) if isinstance(value, str) else value
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return re.sub(r"^(-?\d+)e", r"\1.0e", text) if isinstance(value, float) else text


# The file


def write_card(folder: str | os.PathLike, card: Card) -> None:
    """Writes a folder's card, unless the user has written or edited the existing one.

    Args:
        folder: an existing folder.
        card: content of the card.

    Warns:
        UserWarning: if an edited `README.md` is kept.
    """
    path, text = Path(folder) / CARD, card.text()
    if os.path.lexists(path) and not _is_as_written(path):
        warnings.warn(
            f"{CARD} stays as it is, since it is not as keras_vit wrote it. What it says may not be about these "
            f"files any more.\nReceived: {printable(path)}. Remove it, or move it away, to get a new card.",
            stacklevel=2,
        )
        return
    with atomic_write(path) as part:
        Path(part).write_text(text + _edit_mark(text), "utf-8")


def read_card(folder: str | os.PathLike) -> str:
    """A folder's card with Unix line ends, without the mark by which `write_card` knows it.

    Raises:
        ValueError: if there is none, or it is not text in UTF-8.
    """
    path = Path(folder) / CARD
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__
        raise ValueError(
            f"a folder must have its card, {CARD}, in UTF-8.\nReceived: {printable(path)}: {reason}. A new "
            "`save_checkpoint` or `finetune` writes one."
        ) from error
    return re.sub(_MARK.format("[0-9a-f]{64}") + r"\Z", "", text.replace("\r\n", "\n"))


def with_section(text: str, heading: str, section: str) -> str:
    """A card with another text below a heading; a card without the heading is returned unchanged."""
    pattern = re.compile(rf"^## {re.escape(heading)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    return pattern.sub(lambda _: f"## {heading}\n\n{section.strip()}\n\n", text, count=1).rstrip("\n") + "\n"


def with_field(text: str, name: str, value: str) -> str:
    """A card with another value of a metadata field of one line; a card without it is returned unchanged."""
    head, end, body = text.partition("\n---\n")
    if not (text.startswith("---\n") and end):
        return text
    line = f"{name}: {_scalar(value)}"
    return re.sub(rf"^{re.escape(name)}: .*$", lambda _: line, head, count=1, flags=re.MULTILINE) + end + body


def _edit_mark(text: str) -> str:
    return _MARK.format(hashlib.sha256(text.encode()).hexdigest())


def _is_as_written(path: Path) -> bool:
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8")
    except (OSError, ValueError):
        return False
    length = len(_edit_mark(""))
    return text[-length:] == _edit_mark(text[:-length])


# Sections in Markdown


def preprocessing_section(record: Mapping[str, Any], who: str = "`model.preprocessing`") -> str:
    """A table of the preprocessing.

    Args:
        record: the fields of a `Preprocessing`.
        who: subject of the sentence, which applies it.
    """
    size = "{} x {} pixels".format(*record["image_size"]) if record["image_size"] else "any"
    ways = {
        "squash": "to that size, whatever the aspect",
        "crop": f"the aspect kept, the centre cut out: {record['crop_fraction']:g} of each side",
        "squash_crop": f"whatever the aspect, the centre cut out: {record['crop_fraction']:g} of each side",
        "none": "never",
    }
    rows = [("height x width", size), ("resized", ways[record["resize"]])]
    if record["resize"] != "none":
        antialias = "with" if record["antialias"] else "without"
        rows += [("interpolation", f"{record['interpolation']}, {antialias} antialias")]
    rows += [("mean, white is 1", _numbers(record["mean"])), ("deviation", _numbers(record["std"]))]
    return f"{who} does this to upright photos.\n\n" + table(("what", "how"), rows)


def facts_section(facts: Mapping[str, tuple[str, str]]) -> str:
    """A table of facts that no tensor has, with their source, for the weights that training started from; or empty."""
    rows = [(f"`{name}`", markdown_text(value), markdown_text(who)) for name, (value, who) in facts.items()]
    return "Of the weights that the model began with.\n\n" + table(("what", "value", "said by"), rows) if rows else ""


def licence_words(facts: Mapping[str, tuple[str, str]]) -> str:
    """The licence of a card: not chosen yet, and that of the weights that training started from."""
    began = f" Those it began with are under {facts['licence'][0]}." if "licence" in facts else ""
    return NOT_CHOSEN + began


def classes_section(names: Sequence[str], columns: Mapping[str, Sequence[str]] | None = None) -> str:
    """A table of the classes in the order of the outputs, with further columns.

    Args:
        names: class names; they are escaped.
        columns: a cell for each class by heading.
    """
    columns = dict(columns or {})
    shown = list(zip(map(str, range(_MOST_CLASSES)), map(markdown_text, names), *columns.values(), strict=False))
    more = f"\n\nAnd {len(names) - len(shown):,} more." if len(names) > len(shown) else ""
    return f"In the order of the outputs.\n\n{table(('number', 'class', *columns), shown)}{more}"


def _numbers(values: Sequence[float]) -> str:
    """Numbers with commas; a single one if all are equal."""
    return ", ".join(f"{value:g}" for value in (values[:1] if len(set(values)) == 1 else values))
