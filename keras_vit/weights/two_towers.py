"""What a file of CLIP or SigLIP has beside the image tower: the scale and bias of its logits, and the text tower."""

import re
from collections.abc import Iterable, Mapping

import numpy as np

from keras_vit.weights.reader import TensorFile
from keras_vit.weights.reader.sharded import ShardedFile

_SCALE, _BIAS = "logit_scale", "logit_bias"
_OF_TOWERS = re.compile(r"clip|pe_core")  # in names of layouts, families and architectures


def similarity_of(file: TensorFile | ShardedFile) -> tuple[float, float] | None:
    """`(logit_scale, logit_bias)`, by which cosines of images and texts become logits, or `None`."""
    named = {leaf: name for name in file.entries if (leaf := name.rpartition(".")[2]) in (_SCALE, _BIAS)}
    values = {leaf: file.read([name])[name] for leaf, name in named.items()}
    if _SCALE not in values or any(value.size != 1 for value in values.values()):
        return None  # Swin has one for each head
    scale, bias = (float(values[leaf].item()) if leaf in values else 0.0 for leaf in (_SCALE, _BIAS))
    return scale, bias


def remark_on_text(beside: Iterable[str]) -> tuple[str, ...]:
    """A line on the text tower among the names of arrays that are not read, if there is one."""
    others = sorted(name for name in beside if not name.endswith((_SCALE, _BIAS, "position_ids")))
    known = any(re.search(r"(^|\.)(text|token_embedding)", name) for name in others)
    return (f"set aside the text tower, {len(others)} arrays as {others[0]}",) if known else ()


def is_projection(names: Iterable[str], head: Mapping[str, np.ndarray]) -> bool:
    """Whether a head is an image tower's projection, which gives an embedding and no classes: it has no bias.

    Args:
        names: of the file's layout, and of what stands beside it.
        head: its tensors.
    """
    return any(map(_OF_TOWERS.search, names)) and bool(head) and not any(np.any(head[n]) for n in head if "bias" in n)
