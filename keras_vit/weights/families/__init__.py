"""Which layout a file has, and how each is translated to weight paths and back.

A layout is a row: the names by which a file is recognised, a table of renames for both ways, and what no tensor says.
Files may hold more than weights, as the state of an optimizer or a text tower. What is not below the prefix of the
weights is set aside by name.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.weights.families import (
    aimv2,
    beit,
    clip,
    dinov2,
    dinov3,
    eva,
    google,
    internvit,
    radio,
    timm,
    transformers,
)
from keras_vit.weights.families.queries import eomt, yolos
from keras_vit.weights.families.single_task import owl, sam, vitpose
from keras_vit.weights.read import CheckpointError

_ROWS = (
    *(google.OFFICIAL, google.LINEN, google.BIG_VISION, timm.TIMM, timm.TIMM_QWEN3, timm.TIMM_DEEPSEEK),
    *(dinov3.TIMM_SAPIENS2, beit.TIMM_BEIT, timm.TIMM_BEIT3, eva.TIMM_EVA, eva.EVA02, clip.TIMM_PE_CORE),
    *(clip.TIMM_PE, clip.PE_CORE, clip.PE, transformers.HUGGINGFACE, dinov2.DINOV2, dinov2.DINOV2_REGISTERS),
    *(dinov2.HF_DINOV2, dinov2.HF_DINOV2_REGISTERS, dinov3.DINOV3, dinov3.HF_DINOV3, dinov3.HF_SAPIENS2),
    *(dinov3.TIMM_DINOV3, eva.TIMM_ROPE, eva.TIMM_ROPE_REGISTERS, clip.HF_CLIP, clip.HF_CLIP_CLASSIFIER),
    *(clip.HF_MLCD, clip.HF_SIGLIP, clip.HF_SIGLIP2, clip.OPEN_CLIP, clip.OPEN_CLIP_GAP, aimv2.AIMV2),
    *(aimv2.TIMM_AIMV2, aimv2.HF_AIMV2, beit.HF_BEIT, internvit.HF_INTERNVIT, internvit.INTERNVIT, dinov2.HF_TIPSV2),
    *(dinov2.TIPS, transformers.PIXIO, radio.HF_RADIO, timm.MMSEG, google.BIT, google.BIT_PAPER, eomt.HF_EOMT),
    *(eomt.HF_EOMT_DINOV3, yolos.HF_YOLOS, vitpose.HF_VITPOSE, sam.HF_SAM, sam.SAM, sam.TIMM_SAM, owl.HF_OWL),
)
LAYOUTS = {row.name: row for row in _ROWS}
FOLDERS = {name: row.folder for name, row in LAYOUTS.items() if row.folder is not None}
_HEAD_ROWS = (
    *(dinov2.DINOV2_SEGMENTATION, dinov2.DINOV2_DEPTH, dinov2.DINOV2_DPT, dinov2.DEPTH_ANYTHING),
    *(dinov3.DINOV3_SEGMENTATION, dinov3.DINOV3_DEPTH, dinov3.DINOV3_DPT, transformers.HF_DPT),
    *(transformers.HF_DPT_CLASSES, transformers.HF_DEPTH_ANYTHING, timm.MMSEG_DPT, beit.HF_BEIT_UPERNET),
    *(transformers.HF_UPERNET, timm.MMSEG_UPERNET, timm.MMSEG_UPERNET_PYRAMID, timm.SEGMENTER, timm.MMSEG_SEGMENTER),
    *(timm.MMSEG_SETR, eomt.EOMT_MASKS, eomt.HF_EOMT_MASKS, yolos.HF_YOLOS_BOXES, vitpose.HF_VITPOSE_SIMPLE),
    *(vitpose.HF_VITPOSE_CLASSIC, owl.HF_OWLVIT_BOXES, owl.HF_OWLV2_BOXES),
)
HEAD_LAYOUTS = {row.name: row for row in _HEAD_ROWS}  # of heads that make maps
_TYPED = (transformers, dinov2, dinov3, clip, aimv2, beit, internvit, radio, yolos, eomt, vitpose, sam, owl)
MODEL_TYPES = {word: kind for family in _TYPED for word, kind in family.TYPES.items()}  # of a config.json
MASK_TOKEN = "mask_token/token"  # of training with masks, where a layout has a place for it
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


def other_prefixes(layout: str, prefix: str, names: Iterable[str]) -> tuple[str, ...]:
    """The prefixes of further models in a file than that below the prefix."""
    return tuple(sorted(other for other in LAYOUTS[layout].prefixes_among(set(names)) if other != prefix))


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


def to_file(layout: str, tensors: Mapping[str, np.ndarray], num_heads: int | None) -> Iterator[tuple[str, np.ndarray]]:
    """`{path: array}` to pairs of name in the file and array, made one at a time.

    Args:
        layout: name of the row.
        tensors: of the model.
        num_heads: A, or `None` where it is not known.

    Raises:
        CheckpointError: if the layout has no place for a weight, or needs the number of heads.
    """
    row = LAYOUTS[layout]
    if lost := row.unmapped(tensors):
        fitting = [repr(other.name) for other in LAYOUTS.values() if not other.unmapped(tensors)]
        raise CheckpointError(
            f"the {row.name} layout has no place for these weights, and a file without them holds another model.\n"
            f"Received: {len(lost)} of {len(tensors)} weights\n{cut(with_shapes(lost, tensors), most=20)}\n"
            f"Layouts with a place for all: {', '.join(fitting) or 'none'}. LoRA has one after `merge_lora`, and "
            "layers of your own in a .keras file alone."
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
