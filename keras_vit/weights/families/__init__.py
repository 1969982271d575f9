"""Which layout a file has, and how each is translated to weight paths and back.

A layout is a row: the names by which a file is recognised, a table of renames for both ways, and what no tensor says.
Files may hold more than weights, as the state of an optimizer or a text tower. What is not below the prefix of the
weights is set aside by name.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.weights.families.aimv2 import AIMV2, HF_AIMV2, TIMM_AIMV2
from keras_vit.weights.families.beit import HF_BEIT, TIMM_BEIT
from keras_vit.weights.families.clip import (
    HF_CLIP,
    HF_CLIP_CLASSIFIER,
    HF_MLCD,
    HF_SIGLIP,
    HF_SIGLIP2,
    OPEN_CLIP,
    OPEN_CLIP_GAP,
    PE,
    PE_CORE,
    TIMM_PE,
    TIMM_PE_CORE,
)
from keras_vit.weights.families.dinov2 import (
    DEPTH_ANYTHING,
    DINOV2,
    DINOV2_DEPTH,
    DINOV2_DPT,
    DINOV2_REGISTERS,
    DINOV2_SEGMENTATION,
    HF_DINOV2,
    HF_DINOV2_REGISTERS,
    HF_TIPSV2,
    TIPS,
)
from keras_vit.weights.families.dinov3 import (
    DINOV3,
    DINOV3_DEPTH,
    DINOV3_DPT,
    DINOV3_SEGMENTATION,
    HF_DINOV3,
    HF_SAPIENS2,
    TIMM_DINOV3,
    TIMM_SAPIENS2,
)
from keras_vit.weights.families.eva import EVA02, TIMM_EVA, TIMM_ROPE, TIMM_ROPE_REGISTERS
from keras_vit.weights.families.google import BIG_VISION, BIT, BIT_PAPER, LINEN, OFFICIAL
from keras_vit.weights.families.internvit import HF_INTERNVIT, INTERNVIT
from keras_vit.weights.families.layout import Layout
from keras_vit.weights.families.radio import HF_RADIO
from keras_vit.weights.families.timm import MMSEG, MMSEG_DPT, TIMM, TIMM_BEIT3, TIMM_DEEPSEEK, TIMM_QWEN3
from keras_vit.weights.families.transformers import (
    HF_DEPTH_ANYTHING,
    HF_DPT,
    HF_DPT_CLASSES,
    HUGGINGFACE,
    PIXIO,
)
from keras_vit.weights.read import CheckpointError

_ROWS = (
    *(OFFICIAL, LINEN, BIG_VISION),
    *(TIMM, TIMM_QWEN3, TIMM_DEEPSEEK, TIMM_SAPIENS2, TIMM_BEIT, TIMM_BEIT3, TIMM_EVA, EVA02),
    *(TIMM_PE_CORE, TIMM_PE, PE_CORE, PE, HUGGINGFACE),
    *(DINOV2, DINOV2_REGISTERS, HF_DINOV2, HF_DINOV2_REGISTERS),
    *(DINOV3, HF_DINOV3, HF_SAPIENS2, TIMM_DINOV3, TIMM_ROPE, TIMM_ROPE_REGISTERS),
    *(HF_CLIP, HF_CLIP_CLASSIFIER, HF_MLCD, HF_SIGLIP, HF_SIGLIP2, OPEN_CLIP, OPEN_CLIP_GAP),
    *(AIMV2, TIMM_AIMV2, HF_AIMV2),
    *(HF_BEIT, HF_INTERNVIT, INTERNVIT, HF_TIPSV2, TIPS, PIXIO, HF_RADIO, MMSEG, BIT, BIT_PAPER),
)
LAYOUTS = {row.name: row for row in _ROWS}
FOLDERS = {name: row.folder for name, row in LAYOUTS.items() if row.folder is not None}
_HEAD_ROWS = (
    *(DINOV2_SEGMENTATION, DINOV2_DEPTH, DINOV2_DPT, DEPTH_ANYTHING, DINOV3_SEGMENTATION, DINOV3_DEPTH, DINOV3_DPT),
    *(HF_DPT, HF_DPT_CLASSES, HF_DEPTH_ANYTHING, MMSEG_DPT),
)
HEAD_LAYOUTS = {row.name: row for row in _HEAD_ROWS}  # of heads that make maps
_SAME_EPSILON = 1e-6  # so that 1e-6 and 1e-12 are one: they move logits by some 1e-5


def is_same_epsilon(one: float, other: float) -> bool:
    """Whether two epsilons of LayerNorm are taken for one: if they differ by at most 1e-6."""
    return abs(one - other) <= _SAME_EPSILON


def recognize(
    kind: str, arrays: Iterable[str], hint: str = "", layouts: Collection[str] = ()
) -> tuple[str, str] | None:
    """The layout of a file with these names, and the prefix of its weights; `None` if it is of no known layout.

    Takes the named layout; otherwise the most specific one whose shapes fit. If that is none of `layouts`, the one of
    these that has a place for all names, if there is one.

    Args:
        kind: `"npz"`, `"safetensors"` or `"torch"`.
        arrays: names of all arrays; a mapping of these to what has their shapes.
        hint: the `model_type` in the `config.json`, or the layout in the note of a file of this package.
        layouts: those of the family that the `config.json` names.

    Raises:
        CheckpointError: if the file has several models, and nothing says which is meant.
    """
    names = set(arrays)
    suffix = ".safetensors" if kind == "torch" else f".{kind}"  # torch names arrays alike in both
    rows = [row for row in LAYOUTS.values() if row.suffix == suffix]
    found = [(row, prefixes) for row in rows if (prefixes := row.prefixes_among(names))]
    if not found:
        return None
    named = [pair for pair in found if hint in (pair[0].name, *pair[0].model_types)]
    fitting_shapes = [pair for pair in found if pair[0].fits(arrays)]
    by_most = sorted(
        named or fitting_shapes or found, key=lambda pair: len(pair[0].requires) + len(pair[0].forbids), reverse=True
    )
    row, prefixes = by_most[0]
    if layouts and row.name not in layouts:
        fitting = (pair for pair in by_most if pair[0].name in layouts and pair[0].has_all(names, pair[1][0]))
        row, prefixes = next(fitting, (row, prefixes))
    return row.name, pick_prefix(prefixes) if row.allows_any_prefix else prefixes[0]


def describe_missing(kind: str, names: Collection[str], rows: Iterable[Layout], least: int = 0) -> str:
    """Which arrays a file lacks by which the layout that is nearest to it is known; `""` if none is near.

    Args:
        kind: of the file, as for `recognize`.
        names: of all arrays.
        rows: layouts that it may be of.
        least: of how many names it must have more.
    """
    suffix = ".safetensors" if kind == "torch" else f".{kind}"
    found = [
        (row.count_places(names, prefix), -len(missing), row.name, missing)
        for row in rows
        if row.suffix == suffix
        for prefix, missing in row.incomplete_prefixes(names)
    ]
    count, _, name, missing = max(found, default=(0, 0, "", ()))
    if count <= max(least, len(names) // 3):  # of two towers some third is the smaller one
        return ""
    return f"a file of the layout {name} without {' and '.join(missing)}, which may be cut short"


def other_prefixes(layout: str, prefix: str, names: Iterable[str]) -> tuple[str, ...]:
    """The prefixes of further models in a file than that below the prefix."""
    row = LAYOUTS[layout]
    found = row.prefixes_among(set(names)) if row.allows_any_prefix else ()
    return tuple(sorted(other for other in found if other != prefix))


def check_one_family(layout: str, arrays: Mapping[str, Any], path: FilePath) -> None:
    """Raises a `CheckpointError` if the arrays fit the layout of another family too, and nothing says which it is."""
    row = LAYOUTS[layout]
    others = [other for other in LAYOUTS.values() if layout in other.like and other.fits(arrays)]
    if like := [other for other in others if other.prefixes_among(set(arrays))]:
        rows = " and ".join(f"{each.name} ({each.software})" for each in (row, *like))
        types = " or ".join(f'"{(*each.model_types, each.name)[0]}"' for each in (row, *like))
        raise CheckpointError(
            "a file must be of one family, as positions and photos follow other rules in another.\n"
            f"Received: {path} with the names of {rows}, and nothing that says which. Put a config.json into its "
            f'folder with "model_type": {types}.'
        )


def assumed_fields(layout: str, tensors: Mapping[str, np.ndarray], recorded: Mapping[str, Any]) -> tuple[str, ...]:
    """A line on rotary positions, norms and heads of pooling that neither `recorded` nor a tensor says."""
    row = LAYOUTS[layout]
    known = ("rotary",) if "rotary" in recorded else ()
    has_table = "position_embedding/table" in tensors
    fields = {name: value for name, value in row.defaults(tensors).items() if not name.startswith((*known, *recorded))}
    if row.suffix == ".safetensors" and row.position_embedding not in ("", "none") and not has_table:
        fields |= {"position_embedding": row.position_embedding} if "position_embedding" not in recorded else {}
    shown = ("rotary", "norm_position", "map_heads", "position_embedding")
    assumed = ", ".join(f"{name} {fields[name]}" for name in fields if name.startswith(shown))
    return (f"{assumed}: as {row.software} computes, since the file does not say",) if assumed else ()


def sort_names(layout: str, prefix: str, names: Collection[str]) -> tuple[list[str], list[str], list[str]]:
    """Names of weights, of arrays that hold fields of a config, and of arrays that no forward pass reads."""
    patterns = (LAYOUTS[layout].metadata_arrays, LAYOUTS[layout].ignores)
    matchers = [re.compile(f"{re.escape(prefix)}(?:{'|'.join(each) or '(?!)'})").fullmatch for each in patterns]
    metadata, ignored = (list(filter(matcher, names)) for matcher in matchers)
    return [name for name in names if name.startswith(prefix) and name not in {*metadata, *ignored}], metadata, ignored


def from_file(
    layout: str, prefix: str, arrays: Mapping[str, np.ndarray], num_patches: int | None = None
) -> tuple[dict[str, np.ndarray], int | None]:
    """`{name in the file: array}` to `{path: array}` and A, the number of heads, where a shape has it.

    Raises:
        CheckpointError: for two names of one weight, arrays that disagree on the number of heads, and models that
            compute something else from such weights.
    """
    return LAYOUTS[layout].from_file({name.removeprefix(prefix): array for name, array in arrays.items()}, num_patches)


def to_file(
    layout: str,
    tensors: Mapping[str, np.ndarray],
    num_heads: int | None,
    fits: Callable[[str], bool] = lambda name: True,
) -> Iterator[tuple[str, np.ndarray]]:
    """`{path: array}` to pairs of name in the file and array, made one at a time.

    Args:
        layout: name of the row.
        tensors: of the model.
        num_heads: A, or `None` where it is not known.
        fits: whether the software of another row, by its name, computes such a model; for the advice of the error.

    Raises:
        CheckpointError: if the layout has no place for a weight, or needs the number of heads.
    """
    row = LAYOUTS[layout]
    if lost := row.unmapped(tensors):
        raise CheckpointError(
            f"the {row.name} layout has no place for these weights, and a file without them holds another model.\n"
            f"Received: {len(lost)} of {len(tensors)} weights\n{cut(with_shapes(lost, tensors), most=20)}\n"
            + _advice(row, tensors, lost, lambda name: _writes(name, tensors, num_heads) and fits(name))
        )
    return row.to_file(tensors, num_heads)


def is_known(path: str) -> bool:
    """Whether any layout has a name for a weight."""
    return any(row.has_name(path) for row in LAYOUTS.values())


def with_shapes(paths: Iterable[str], tensors: Mapping[str, Any], sign: str = "") -> list[str]:
    """A line for each of these tensors, with its shape."""
    return [f"    {sign}{path} {tuple(tensors[path].shape)}" for path in paths]


def cut(lines: list[str], most: int) -> str:
    """At most so many lines, and how many more there were."""
    more = [f"    ... and {len(lines) - most} more"] if len(lines) > most else []
    return "\n".join([*lines[:most], *more])


def _writes(layout: str, tensors: Mapping[str, np.ndarray], num_heads: int | None) -> bool:
    """Whether a row has a place for every weight, and the file would be known for one of its own."""
    try:
        return not LAYOUTS[layout].unmapped(tensors) and bool(LAYOUTS[layout].to_file(tensors, num_heads))
    except (CheckpointError, KeyError):  # as of a part of what such files have in one array
        return False


def _advice(row: Layout, tensors: Mapping[str, Any], lost: list[str], writes: Callable[[str], bool]) -> str:
    others = [other.name for other in LAYOUTS.values() if other.is_resnet == row.is_resnet]
    if fitting := list(filter(writes, others)):
        return f"Layouts with a place for all: {', '.join(map(repr, fitting))}."
    if any("/lora_" in path for path in lost):
        return "`merge_lora` adds LoRA to the weights of a VisionTransformer."
    return (
        "Save the model as .keras instead. If these layers are your own, the model that they were put on shares its "
        "weights, and can be saved here."
    )


# Of two models the one that its own software evaluates comes first: timm takes the average, DINO the teacher, and
# I-JEPA the target encoder.
_PREFERRED = ("state_dict_ema", "model_ema", "module_ema", "ema", "teacher", "target_encoder")
_OTHER_WRAPPERS = ("state_dict", "model_state", "model_state_dict", "model", "net", "network", "module", "student")


def pick_prefix(prefixes: Iterable[str]) -> str:
    """The prefix whose weights are taken.

    Args:
        prefixes: each with the dot at its end, or empty for names without any.

    Raises:
        CheckpointError: if there are several, and their words do not decide which is the model.
    """
    ranked = sorted(prefixes, key=lambda prefix: (_rank(prefix), prefix))
    if len(ranked) > 1 and _rank(ranked[0]) == _rank(ranked[1]):
        raise CheckpointError(
            "the file holds several models, and none of their names says which one is meant.\n"
            f"Received: weights below {' and '.join(map(repr, ranked[:5]))}. Save one of them as a file of its own."
        )
    return ranked[0]


def _rank(prefix: str) -> int:
    """0 for no prefix, then the words in their order, then unknown ones."""
    words = prefix.split(".")
    known = [place for place, word in enumerate((*_PREFERRED, *_OTHER_WRAPPERS), 1) if word in words]
    return 0 if not prefix else min(known, default=len(_PREFERRED) + len(_OTHER_WRAPPERS) + 1)
