"""Which layout a file has, and how each is translated to our weight paths and back.

A dialect is a pure function `{foreign name: array}` to `{our path: array}` with its inverse. Files may
hold more than weights (an optimizer's state, a text tower): what is not below the weights' prefix is set
aside by name.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np

from keras_vit.weights.dialects import big_vision, bit, huggingface, official, timm
from keras_vit.weights.reader import CheckpointError

# Where a trainer or a two-tower model puts the weights, most specific first.
_NPZ_PREFIXES = ("params/img/", "params/", "opt/target/img/", "opt/target/", "img/", "")


@dataclasses.dataclass(frozen=True)
class Dialect:
    """One layout, and what its own software computes from it where the file does not say."""

    suffix: str
    software: str
    activation: str = ""  # of a Vision Transformer's layouts, as the rest
    layer_norm_epsilon: float = 0.0
    resize_method: str = "align_corners"  # of a position table that it has loaded, at another resolution

    @property
    def is_resnet(self) -> bool:
        """Whether it is a layout of ResNet baselines; else it is one of Vision Transformers."""
        return not self.activation


DIALECTS = {
    "official": Dialect(".npz", "the official code", "gelu_tanh", 1e-6, "align_corners"),
    "linen": Dialect(".npz", "the official code", "gelu_tanh", 1e-6, "align_corners"),
    "big_vision": Dialect(".npz", "big_vision", "gelu_tanh", 1e-6, "align_corners"),
    "timm": Dialect(".safetensors", "timm", "gelu", 1e-6, "bicubic_antialias"),
    # transformers' own default is 1e-12, but DeiT and AugReg files were trained with 1e-6 and say so nowhere.
    "huggingface": Dialect(".safetensors", "transformers", "gelu", 1e-6, "bicubic"),
    "bit": Dialect(".npz", "BiT's code"),
    "bit_paper": Dialect(".npz", "big_vision"),
}
_SAME_EPSILON = 1e-6  # so that 1e-6 and 1e-12 are one: they move logits by some 1e-5


def is_same_epsilon(one: float, other: float) -> bool:
    """Whether two epsilons of LayerNorm are taken for one: if they differ by at most 1e-6."""
    return abs(one - other) <= _SAME_EPSILON


def recognise(kind: str, names) -> tuple[str, str] | None:
    """The dialect of a file with these names, and the prefix of its weights; `None` if it is of no known layout.

    Args:
        kind: `"npz"` or `"safetensors"`.
        names: of all arrays.
    """
    names = set(names)
    if kind == "safetensors":
        if timm.recognise(names):
            return "timm", ""
        return ("huggingface", "") if huggingface.recognise(names) else None
    if (found := _recognise_resnet(names)) is not None:
        return found
    prefix = next((prefix for prefix in _NPZ_PREFIXES if f"{prefix}embedding/kernel" in names), None)
    if prefix is None:
        return None
    names = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
    if big_vision.recognise(names):
        return "big_vision", prefix
    return ("linen" if any("/MlpBlock_0/" in name for name in names) else "official"), prefix


def _recognise_resnet(names):
    for prefix in (*(f"{prefix}{bit.PREFIX}" for prefix in _NPZ_PREFIXES), *_NPZ_PREFIXES):
        below = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        if dialect := bit.recognise(below):
            return dialect, prefix
    return None


def weights_among(dialect: str, prefix: str, names) -> list[str]:
    """The names that are weights of the model, as they stand in the file."""
    ignored = set(huggingface.unused(names)) if dialect == "huggingface" else set()
    return [name for name in names if name.startswith(prefix) and name not in ignored]


def to_ours(
    dialect: str, prefix: str, arrays: dict[str, np.ndarray], num_patches: int | None = None
) -> tuple[dict[str, np.ndarray], int | None]:
    """`{name in the file: array}` to `{our path: array}` and A, the number of heads, where the file tells it."""
    arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    if DIALECTS[dialect].is_resnet:
        return bit.from_bit(arrays, dialect), None
    if dialect == "big_vision":
        return big_vision.from_big_vision(arrays, num_patches)
    if dialect == "timm":
        return timm.from_timm(arrays, num_patches), None
    if dialect == "huggingface":
        return huggingface.from_huggingface(arrays), None
    return official.from_official(arrays, dialect), official.heads_of(arrays)


def to_theirs(
    dialect: str, tensors: Mapping[str, np.ndarray], num_heads: int | None
) -> Iterator[tuple[str, np.ndarray]]:
    """`{our path: array}` to pairs of foreign name and array, one at a time.

    Raises:
        CheckpointError: if the layout has no place for a weight, or needs the number of heads.
    """
    if DIALECTS[dialect].is_resnet:
        return bit.to_bit(tensors, dialect)
    if dialect == "timm":
        return timm.to_timm(tensors)
    if dialect == "huggingface":
        return huggingface.to_huggingface(tensors)
    if num_heads is None:
        raise CheckpointError(
            f"the {dialect} layout has an axis for the attention heads, so their number must be known.\n"
            "Received: num_heads=None. Pass `num_heads=`."
        )
    if dialect == "big_vision":
        return big_vision.to_big_vision(tensors, num_heads)
    return official.to_official(tensors, num_heads, dialect)
