"""The layout of the official `.npz` files, translated to our weight paths and back.

Published files use pre-Linen names, which number the parts of a block by their place; today's code
writes Linen names, which number them by class. Everything else is equal, and no array is transposed:
heads are an axis of their own there (D, A, D/A) and folded here (D, D). Old hybrids store GroupNorm
as (1, 1, 1, C).
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from keras_vit.weights.reader import CheckpointError

DIALECTS = ("official", "linen")

_BLOCK_PARTS = {  # ours: (pre-Linen, Linen)
    "norm_1": ("LayerNorm_0", "LayerNorm_0"),
    "attention": ("MultiHeadDotProductAttention_1", "MultiHeadDotProductAttention_0"),
    "norm_2": ("LayerNorm_2", "LayerNorm_1"),
    "mlp": ("MlpBlock_3", "MlpBlock_0"),
}
_BLOCK_LEAVES = (  # a closed list: what LoRA and quantisation add has no place in the layout
    r"norm_[12]/(?:gamma|beta)|attention/(?:query|key|value|out)/(?:kernel|bias)|mlp/dense_[12]/(?:kernel|bias)"
)
_PLAIN = {  # ours: theirs
    "class_token/token": "cls",
    "patch_embedding/projection/kernel": "embedding/kernel",
    "patch_embedding/projection/bias": "embedding/bias",
    "position_embedding/table": "Transformer/posembed_input/pos_embedding",
    "encoder_norm/gamma": "Transformer/encoder_norm/scale",
    "encoder_norm/beta": "Transformer/encoder_norm/bias",
    "pre_logits/kernel": "pre_logits/kernel",
    "pre_logits/bias": "pre_logits/bias",
    "head/kernel": "head/kernel",
    "head/bias": "head/bias",
    "resnet_root/conv/kernel": "conv_root/kernel",
    "resnet_root/norm/gamma": "gn_root/scale",
    "resnet_root/norm/beta": "gn_root/bias",
}
_FROM_PLAIN = {theirs: ours for ours, theirs in _PLAIN.items()}
_ATTENTION = re.compile(r"Attention_\d/(out|query|key|value)/(kernel|bias)$")
_HEAD_AXES: dict[tuple, int] = {("out", "kernel"): 0} | {
    (part, leaf): axis for part in ("query", "key", "value") for leaf, axis in (("kernel", 1), ("bias", 0))
}
_HEAD_RANKS = {key: 2 if key[1] == "bias" else 3 for key in _HEAD_AXES}
_GROUP_NORM = re.compile(r"(^|/)gn(\d|_root|_proj)/(scale|bias)$")
_NORM = {"gamma": "scale", "beta": "bias"}
_FROM_NORM = {theirs: ours for ours, theirs in _NORM.items()}


def from_official(arrays: dict[str, np.ndarray], dialect: str) -> dict[str, np.ndarray]:
    """`{official name: array}` to `{our path: array}`; names it does not know are kept as they are."""
    return {our_path(name, dialect) or name: fold_heads(name, array) for name, array in arrays.items()}


def to_official(tensors: Mapping[str, np.ndarray], num_heads: int, dialect: str) -> Iterator[tuple[str, np.ndarray]]:
    """`{our path: array}` to pairs of official name and array, one at a time.

    Raises:
        CheckpointError: for a path that the layout has no name for.
    """
    for path, array in tensors.items():
        name = official_name(path, dialect)
        if dialect == "official" and _GROUP_NORM.search(name):
            array = array.reshape(1, 1, 1, -1)
        yield name, unfold_heads(path, array, num_heads)


def heads_of(arrays: dict[str, np.ndarray]) -> int | None:
    """A, which every attention array has as an axis of its own, or `None` without such arrays.

    Raises:
        CheckpointError: if the arrays disagree, as when a kernel is transposed.
    """
    heads: dict[int, str] = {}
    for name, array in arrays.items():
        match = _ATTENTION.search(name)
        if match and array.ndim == _HEAD_RANKS.get(match.groups()):
            heads.setdefault(array.shape[_HEAD_AXES[match.groups()]], name)
    if len(heads) > 1:
        raise CheckpointError(
            "the attention arrays must agree on the number of heads.\n"
            f"Received: {', '.join(f'{count} in {name}' for count, name in heads.items())}."
        )
    return next(iter(heads), None)


def our_path(name: str, dialect: str) -> str | None:
    """Our path for an official name, or `None`."""
    if name in _FROM_PLAIN:
        return _FROM_PLAIN[name]
    if match := re.fullmatch(r"Transformer/encoderblock_(0|[1-9]\d*)/(\w+?)/(.+)", name):
        index, theirs, rest = match.groups()
        ours = {names[DIALECTS.index(dialect)]: part for part, names in _BLOCK_PARTS.items()}.get(theirs)
        if ours and (leaf := _block_leaf(ours, rest)):
            return f"block_{int(index):02}/{ours}/{leaf}"
    if match := re.fullmatch(r"block([1-9])/unit([1-9]\d*)/(conv|gn)([123]|_proj)/(kernel|scale|bias)", name):
        stage, unit, kind, which, leaf = match.groups()
        part = "conv" if kind == "conv" else "norm"
        return f"resnet_stage_{stage}_unit_{unit}/{part}_{which.lstrip('_')}/{_FROM_NORM.get(leaf, leaf)}"
    return None


def official_name(path: str, dialect: str) -> str:
    """The official name of one of our paths."""
    if path in _PLAIN:
        return _PLAIN[path]
    if match := re.fullmatch(rf"block_(\d+)/({_BLOCK_LEAVES})", path):
        index, (part, rest) = match[1], match[2].split("/", 1)
        theirs = _BLOCK_PARTS[part][DIALECTS.index(dialect)]
        rest = re.sub(r"^dense_(\d)", lambda dense: f"Dense_{int(dense[1]) - 1}", rest)
        return f"Transformer/encoderblock_{int(index)}/{theirs}/{_NORM.get(rest, rest)}"
    if match := re.fullmatch(r"resnet_stage_(\d+)_unit_(\d+)/(conv|norm)_(\d|proj)/(kernel|gamma|beta)", path):
        stage, unit, part, which, leaf = match.groups()
        which = which if which.isdigit() else f"_{which}"
        kind = "conv" if part == "conv" else "gn"
        return f"block{stage}/unit{unit}/{kind}{which}/{_NORM.get(leaf, leaf)}"
    raise CheckpointError(
        f"the {dialect} layout has no place for this weight.\nReceived: {path}. "
        "Save the model as .keras instead; reloading that merges LoRA, and the result can be saved here."
    )


def _block_leaf(part, rest):
    if part.startswith("norm"):
        return _FROM_NORM.get(rest)
    if part == "attention":
        return rest if re.fullmatch(r"(query|key|value|out)/(kernel|bias)", rest) else None
    match = re.fullmatch(r"Dense_([01])/(kernel|bias)", rest)
    return f"dense_{int(match[1]) + 1}/{match[2]}" if match else None


def fold_heads(name: str, array: np.ndarray) -> np.ndarray:
    """An array of the file as ours: the axis of heads folded away, GroupNorm as a vector."""
    key = match.groups() if (match := _ATTENTION.search(name)) else ()
    if array.ndim == _HEAD_RANKS.get(key):
        if key == ("out", "kernel"):
            return array.reshape(-1, array.shape[-1])  # (D, D)
        return array.reshape(*array.shape[:-2], -1)  # (D, D) or (D,)
    if _GROUP_NORM.search(name) and array.shape[:-1] == (1, 1, 1):
        return array.reshape(-1)
    return array


def unfold_heads(path: str, array: np.ndarray, num_heads: int) -> np.ndarray:
    """Our array as the file has it, heads an axis of their own."""
    if path.endswith("/attention/out/kernel"):
        return array.reshape(num_heads, -1, array.shape[-1])  # (A, D/A, D)
    if re.search(r"/attention/(query|key|value)/(kernel|bias)$", path):
        return array.reshape(*array.shape[:-1], num_heads, -1)  # (D, A, D/A) or (A, D/A)
    return array
