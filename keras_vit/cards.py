"""The model card of a saved folder: a `README.md` that tells people and the Hugging Face Hub what is in it.

Plain text, so that every folder can have one without an extra. Metadata are YAML by JSON's rules for scalars, and
names from outside are escaped. The fields are those of the Hub's model cards.
"""

import dataclasses
import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_vit.escaping import markdown_text, printable
from keras_vit.files import read_regular, replacing
from keras_vit.images.preprocessing import Preprocessing

CARD = "README.md"
NO_LICENSE = "unknown"  # the Hub's word
NOT_CHOSEN = "None was chosen yet for these weights. Write it here and above, as `license`."
USE, PREPROCESSING = "Use", "Preprocessing"  # headings of what differs between a run and its weights on the Hub
_MARK = "\n<!-- keras_vit: as written, {} -->\n"  # tells a card of ours from one that its user has edited
_MOST_BYTES = 1 << 24  # of a card
_MOST_CLASSES = 100  # in a table
_Z = 1.959964  # of the normal distribution, two-sided 95 %


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a model was found to do, and on what.

    Args:
        data: name of the data set, text from outside.
        kind: of the data set: `owner/name` on the Hub if it is there, else a word.
        split: `"test"` or `"validation"`.
        count: images.
        figures: `(metric of the Hub, its name for people, value)`.
    """

    data: str
    kind: str
    split: str
    count: int
    figures: tuple[tuple[str, str, float], ...]


@dataclasses.dataclass(frozen=True)
class Card:
    """A model card.

    Args:
        title: heading, text from outside.
        library: that opens the folder, as the Hub names it.
        sections: `(heading, Markdown)` in reading order.
        kind: of model, `"vision-transformer"` or `"resnet"`.
        classifies: whether there is a head; else the model gives features.
        license: of the weights, as the Hub names it.
        base_model: `owner/name` on the Hub of what the weights were trained from, if it is there.
        datasets: `owner/name` on the Hub of those that were trained on, if they are there.
        measured: the figures, if any are known.
    """

    title: str
    library: str
    sections: tuple[tuple[str, str], ...]
    kind: str = "vision-transformer"
    classifies: bool = True
    license: str = NO_LICENSE
    base_model: str | None = None
    datasets: tuple[str, ...] = ()
    measured: Measured | None = None

    def text(self) -> str:
        """The whole file."""
        body = "".join(f"\n## {heading}\n\n{text.strip()}\n" for heading, text in self.sections if text.strip())
        return f"---\n{_yaml(self._metadata())}---\n\n# {markdown_text(self.title)}\n{body}"

    def _metadata(self):
        task = "image-classification" if self.classifies else "image-feature-extraction"
        found: dict[str, Any] = {"license": self.license, "library_name": self.library, "pipeline_tag": task}
        found |= {"tags": ["keras_vit", self.kind]}
        found |= {"base_model": self.base_model} if self.base_model else {}
        found |= {"datasets": list(self.datasets)} if self.datasets else {}
        if self.measured is None:
            return found
        metrics = list(dict.fromkeys(metric for metric, _, _ in self.measured.figures))
        return found | {"metrics": metrics, "model-index": [_index(self.title, task, self.measured)]}


def _index(title, task, measured):
    """The figures as the Hub's `model-index` has them."""
    metrics = [{"type": metric, "value": value, "name": name} for metric, name, value in measured.figures]
    data = {"name": printable(measured.data), "type": measured.kind, "split": measured.split}
    data |= {"args": {"images": measured.count}}
    results = {"task": {"type": task, "name": task.replace("-", " ").capitalize()}, "dataset": data, "metrics": metrics}
    return {"name": printable(title), "results": [results]}


def write_card(folder: str | os.PathLike, text: str) -> None:
    """Writes a folder's card; one that its user has written or edited stays.

    Args:
        folder: that exists.
        text: of the card.

    Warns:
        UserWarning: if a `README.md` stays that is not as it was written here.
    """
    path = Path(folder) / CARD
    if os.path.lexists(path) and not _is_as_written(path):
        warnings.warn(
            f"{CARD} stays as it is, since it is not as keras_vit wrote it. What it says may not be about these "
            f"files any more.\nReceived: {printable(path)}. Remove it, or move it away, to get a new card.",
            stacklevel=2,
        )
        return
    with replacing(path) as part:
        Path(part).write_text(text + _mark_of(text), "utf-8")


def read_card(folder: str | os.PathLike) -> str:
    """A folder's card with Unix line ends, without the mark by which `write_card` knows it.

    Raises:
        ValueError: if there is none, or it is no text in UTF-8.
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
    """A card with another text below a heading; one without that heading is given back as it is."""
    pattern = re.compile(rf"^## {re.escape(heading)}\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
    return pattern.sub(lambda _: f"## {heading}\n\n{section.strip()}\n\n", text, count=1).rstrip("\n") + "\n"


def with_field(text: str, name: str, value: str) -> str:
    """A card with another value of a field of its metadata that is one line; one without it is given back as it is."""
    head, end, body = text.partition("\n---\n")
    if not (text.startswith("---\n") and end):
        return text
    line = f"{name}: {json.dumps(value)}"
    return re.sub(rf"^{re.escape(name)}: .*$", lambda _: line, head, count=1, flags=re.MULTILINE) + end + body


def preprocessing_section(record: Preprocessing, who: str = "`model.preprocessing`") -> str:
    """How images are prepared, as a table.

    Args:
        record: of the model.
        who: does it.
    """
    size = "any" if record.image_size is None else f"{record.image_size[0]} x {record.image_size[1]} pixels"
    ways = {
        "squash": "to that size, whatever the aspect",
        "crop": f"the aspect kept, the centre cut out: {record.crop_fraction:g} of each side",
        "none": "never",
    }
    rows = [("height x width", size), ("resized", ways[record.resize])]
    if record.resize != "none":
        rows += [("interpolation", f"{record.interpolation}, {'with' if record.antialias else 'without'} antialias")]
    rows += [("mean, white is 1", _numbers(record.mean)), ("deviation", _numbers(record.std))]
    return f"{who} does this to upright photos.\n\n" + table(("what", "how"), rows)


def classes_section(names: Sequence[str], columns: Mapping[str, Sequence[str]] | None = None) -> str:
    """The classes in the order of the outputs, each with its cells of further columns.

    Args:
        names: of the classes, text from outside.
        columns: a cell for each class by heading.
    """
    columns = dict(columns or {})
    shown = list(zip(map(str, range(_MOST_CLASSES)), map(markdown_text, names), *columns.values(), strict=False))
    more = f"\n\nAnd {len(names) - len(shown):,} more." if len(names) > len(shown) else ""
    return f"In the order of the outputs.\n\n{table(('number', 'class', *columns), shown)}{more}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, of cells that are escaped already."""
    lines = (header, ["---"] * len(header), *rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def wilson_interval(share: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share that was found on `count` examples (Wilson, JASA 22, 1927).

    Args:
        share: in [0, 1].
        count: above 0.
    """
    centre, square = share + _Z**2 / (2 * count), _Z**2 / count
    half = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count))
    return max((centre - half) / (1 + square), 0.0), min((centre + half) / (1 + square), 1.0)


def _numbers(values):
    """One number if all are the same."""
    return ", ".join(f"{value:g}" for value in (values[:1] if len(set(values)) == 1 else values))


def _mark_of(text):
    return _MARK.format(hashlib.sha256(text.encode()).hexdigest())


def _is_as_written(path):
    try:
        text = read_regular(path, _MOST_BYTES).decode("utf-8")
    except (OSError, ValueError):
        return False
    length = len(_mark_of(""))
    return text[-length:] == _mark_of(text[:-length])


def _yaml(found, indent=""):
    """Block mappings and lists of mappings; scalars and lists of them are JSON, which YAML is made to hold."""
    lines = []
    for name, value in found.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{name}:\n{_yaml(value, indent + '  ')}")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            items = (_yaml(item, indent + "  ") for item in value)
            lines.append(f"{indent}{name}:\n" + "".join(f"{indent}- {item[len(indent) + 2 :]}" for item in items))
        else:
            lines.append(f"{indent}{name}: {_scalar(value)}\n")
    return "".join(lines)


def _scalar(value):
    """JSON, with the point that YAML 1.1 wants in a number such as `1e-05`."""
    if isinstance(value, list):
        return f"[{', '.join(map(_scalar, value))}]"
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return re.sub(r"^(-?\d+)e", r"\1.0e", text) if isinstance(value, float) else text
