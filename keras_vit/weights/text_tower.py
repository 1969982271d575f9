"""What a file has besides the weights: scale and bias of CLIP's logits, a text tower, pre-training's, another head."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from keras_vit.files import read_json_object
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
_SIGLIP_HEAD = re.compile(r"(.*\.)?text_model\.head\.weight")  # of transformers
_TOWERS = re.compile(r"clip|pe_core")  # in names of layouts, families and architectures


def read_logit_scale_and_bias(file: TensorFile | ShardedFile) -> tuple[float | None, float | None]:
    """Logarithm of the factor by which cosines of images and texts become logits, and what is added; `None` if absent.

    OpenAI, OpenCLIP and transformers name them `logit_scale` and `logit_bias`, big_vision `t` and `b`. TIPS has a
    `temperature`, by which it divides. Without a bias it is 0, but of SigLIP's towers, which always have one, `None`.
    """
    scale = _number(file, r"(.*\.)?logit_scale|(.*/)?params/t")
    if scale is None:
        temperature = _number(file, r"(.*\.)?temperature")
        return (None, None) if temperature is None or temperature <= 0 else (-math.log(temperature), 0.0)
    bias = _number(file, r"(.*\.)?logit_bias|(.*/)?params/b")
    return scale, 0.0 if bias is None and not _has_bias(file) else bias


def _has_bias(file: TensorFile | ShardedFile) -> bool:
    """Whether a file is of transformers' SigLIP, or its `open_clip_config.json` has a bias; not one with a note."""
    model = (read_json_object(file.path.with_name("open_clip_config.json")) or {}).get("model_cfg")
    is_stated = isinstance(model, dict) and model.get("init_logit_bias") is not None
    return not file.note and (is_stated or any(map(_SIGLIP_HEAD.fullmatch, file.entries)))


def _number(file: TensorFile | ShardedFile, pattern: str) -> float | None:
    """The one value of the one array of that name; `None` without it, as of Swin, which has one for each head."""
    found = [name for name in file.entries if re.fullmatch(pattern, name)]
    values = [value for value in file.read(found).values() if value.size == 1]
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
    lines, towers = [], sorted(name for name in unused if not name.endswith((_SCALE, _BIAS, "position_ids")))
    has_text = any(re.search(r"(^|\.)(text|token_embedding)", name) for name in towers)
    if has_text:
        lines.append(f"{SET_ASIDE}, {len(towers)} arrays as {towers[0]}")
    names = sorted(name for name in ignored if not _NO_NUMBERS.match(name))
    tokens = file.read([name for name in names if name.endswith("token")], allow_nonfinite=True)
    if names := [name for name in names if np.any(tokens.get(name, 1))]:
        what = f"{names[0]}, which" if len(names) == 1 else f"{len(names)} arrays, as {names[0]}, which"
        lines.append(f"set aside {what} {ADAPTER if all(map(_ADAPTERS.match, names)) else NO_PASS}")
    heads = sorted(name for name in unused if _HEAD.fullmatch(name) and not name.startswith(prefix))
    if heads and not classifies:
        lines.append(f"set aside head outside of the model, as {heads[0]}")
    known = (_NO_NUMBERS, _OF_TRAINING, _HEAD)
    others = sorted(name for name in outside if not any(pattern.match(name) for pattern in known))
    if others and not has_text:
        lines.append(f"set aside {len(others)} arrays outside of {prefix.rstrip('.')!r}, as {others[0]}, {OF_OTHERS}")
    return tuple(lines)


def is_projection(names: Iterable[str], head: Mapping[str, np.ndarray]) -> bool:
    """Whether a head is an image tower's projection, which gives an embedding and no classes: it has no bias.

    Args:
        names: of the file's layout and family.
        head: its tensors.
    """
    has_bias = any(np.any(head[n]) for n in head if "bias" in n)
    return is_of_projecting_family(names) and bool(head) and not has_bias


def is_of_projecting_family(names: Iterable[str]) -> bool:
    """Whether image towers of a layout or family end in a projection, as CLIP's."""
    return any(map(_TOWERS.search, names))
