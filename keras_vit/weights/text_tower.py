"""What a file has besides the weights: scale and bias of CLIP's logits, a text tower, pre-training's, another head."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from keras_vit.weights.read import TensorFile
from keras_vit.weights.read.sharded import ShardedFile

_SCALE, _BIAS = "logit_scale", "logit_bias"
SET_ASIDE = "set aside the text tower"  # how the line on it begins
# How lines on what takes no part in a forward pass end.
NO_PASS, ADAPTER = "no forward pass reads", "only the language model's adapter reads"
OF_OTHERS = "which another model uses"
IN_FOLDER = "in the same folder"
_ADAPTERS = re.compile(r"(.*\.)?(merger|aligner)\.")
_NO_NUMBERS = re.compile(r".*(position_ids|relative_position_index|logit_(scale|bias))$|.*\brope\.|(.*\.)?text_")
_OF_TRAINING = re.compile(r"(optim|sched|scaler|amp\b)")  # how names of a training's state begin
_HEAD = re.compile(r"(.*\.)?(\w*classifier|heads?|fc)\.(.*\.)?weight")
_TOWERS = re.compile(r"clip|pe_core")  # in names of layouts, families and architectures


def read_logit_scale_and_bias(file: TensorFile | ShardedFile) -> tuple[float | None, float | None]:
    """Logarithm of the factor by which cosines of images and texts become logits, and what is added; `None` if absent.

    OpenAI, OpenCLIP and transformers name them `logit_scale` and `logit_bias`, big_vision `t` and `b`. TIPS has a
    `temperature`, by which it divides.
    """
    scale = _number(file, r"(.*\.)?logit_scale|(.*/)?params/t")
    if scale is None:
        temperature = _number(file, r"(.*\.)?temperature")
        return (None, None) if temperature is None or temperature <= 0 else (-math.log(temperature), 0.0)
    return scale, _number(file, r"(.*\.)?logit_bias|(.*/)?params/b") or 0.0


def _number(file: TensorFile | ShardedFile, pattern: str) -> float | None:
    """The one value of the one array of that name; `None` without it, as of Swin, which has one for each head."""
    found = [name for name in file.entries if re.fullmatch(pattern, name)]
    values = [value for name in found if (value := file.read([name])[name]).size == 1]
    return float(values[0].item()) if len(values) == len(found) == 1 else None


def describe_unused(
    file: TensorFile | ShardedFile,
    prefix: str,
    outside: Sequence[str],
    unused: Sequence[str],
    ignored: Sequence[str],
    classifies: bool,
) -> tuple[str, ...]:
    """Lines on what a file has besides the weights.

    Args:
        file: with these arrays.
        prefix: of the weights.
        outside: names of arrays of another model, of which this one is a part.
        unused: names of all that are not read.
        ignored: those of them that the layout knows.
        classifies: whether a head is among the weights.
    """
    text = _describe_text(unused)
    on_head = () if classifies else _describe_head(unused, prefix)
    others = () if text else _describe_others(prefix, outside)
    return (*text, *_describe_ignored(file, ignored), *on_head, *others)


def _describe_others(prefix: str, names: Iterable[str]) -> tuple[str, ...]:
    """A line on arrays next to a model that is a part of another, as those of a decoder."""
    known = (_NO_NUMBERS, _OF_TRAINING, _HEAD)
    names = sorted(name for name in names if not any(pattern.match(name) for pattern in known))
    if not names:
        return ()
    return (f"set aside {len(names)} arrays outside of {prefix.rstrip('.')!r}, as {names[0]}, {OF_OTHERS}",)


def _describe_text(unused: Iterable[str]) -> tuple[str, ...]:
    """A line on the text tower among the names of arrays that are not read, if there is one."""
    others = sorted(name for name in unused if not name.endswith((_SCALE, _BIAS, "position_ids")))
    known = any(re.search(r"(^|\.)(text|token_embedding)", name) for name in others)
    return (f"{SET_ASIDE}, {len(others)} arrays as {others[0]}",) if known else ()


def _describe_ignored(file: TensorFile | ShardedFile, ignored: Iterable[str]) -> tuple[str, ...]:
    """A line on arrays below the prefix that the layout ignores, as a token of pre-training, but for zeros."""
    names = sorted(name for name in ignored if not _NO_NUMBERS.match(name))
    tokens = file.read([name for name in names if name.endswith("token")], allow_nonfinite=True)
    names = [name for name in names if np.any(tokens.get(name, 1))]
    what = f"{names[0]}, which" if len(names) == 1 else f"{len(names)} arrays, as {names[0]}, which" if names else ""
    if names and all(map(_ADAPTERS.match, names)):
        return (f"set aside {what} {ADAPTER}",)
    return (f"set aside {what} {NO_PASS}",) if names else ()


def _describe_head(unused: Iterable[str], prefix: str) -> tuple[str, ...]:
    """A line on a classifier among the names that are not read, outside of the prefix of a model without one."""
    names = sorted(name for name in unused if _HEAD.fullmatch(name) and not name.startswith(prefix))
    return (f"set aside head outside of the model, as {names[0]}",) if names else ()


def is_projection(names: Iterable[str], head: Mapping[str, np.ndarray]) -> bool:
    """Whether a head is an image tower's projection, which gives an embedding and no classes: it has no bias.

    Args:
        names: of the file's layout and family.
        head: its tensors.
    """
    return any(map(_TOWERS.search, names)) and bool(head) and not any(np.any(head[n]) for n in head if "bias" in n)
