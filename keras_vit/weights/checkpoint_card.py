"""The model card of a folder that timm or transformers opens: what the weights are, and how each software loads them.

Nothing here knows what they were trained on; the folder of a run says that. Papers and licence are those of a published
record, or of the `config.json` in a folder of other software.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_vit.config.variants import FAMILIES, VARIANTS
from keras_vit.files import json_object, read_json_object
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.pages.cards import (
    FACTS,
    PREPROCESSING,
    USE,
    Card,
    classes_section,
    facts_section,
    licence_words,
    preprocessing_section,
)
from keras_vit.version import __version__
from keras_vit.weights.checkpoint import TOWERS_NAME, Checkpoint
from keras_vit.weights.families import FOLDERS, LAYOUTS
from keras_vit.weights.metadata.photo_differences import DIFFERENCES_FILE, differences
from keras_vit.weights.read import CheckpointError
from keras_vit.weights.registry import all_records
from keras_vit.weights.registry.record import WeightsRecord

_CUSTOM = "Ti/16"  # any variant, since all its sizes are given


def checkpoint_card(checkpoint: Checkpoint, layout: str, place: str, labels: Sequence[str] | None = None) -> Card:
    """The card of a folder.

    Args:
        checkpoint: what is written.
        layout: `"timm"` or `"huggingface"`.
        place: the name of the folder.
        labels: names of the classes, if they are known.
    """
    sections = {
        "Model": _architecture(checkpoint, layout),
        USE: use_section(checkpoint, layout, place),
        PREPROCESSING: photos_section(checkpoint, layout),
        FACTS: facts_section(checkpoint.provenance),
        "Classes": classes_section(labels) if labels else "",
    }
    classifies, licence = bool(checkpoint.classes), licence_words(checkpoint.provenance)
    return Card(place, LAYOUTS[layout].software, sections, classifies=classifies, licence=licence)


def use_section(checkpoint: Checkpoint, layout: str, place: str) -> str:
    """How the weights are loaded here and by the software of the layout.

    Args:
        checkpoint: what is there.
        layout: `"timm"` or `"huggingface"`.
        place: a folder, or `hf:owner/name`.
    """
    opening = FOLDERS[layout].load_snippet(place, bool(checkpoint.classes))
    return (
        f"```python\nimport keras_vit\n\nmodel = {_build_call(checkpoint, place)}\n"
        f'photo = keras_vit.read_image("photo.jpg", {checkpoint.channels})\n'
        "print(model.predict(model.preprocessing(photo)[None]))\n```\n\n"
        f"With {LAYOUTS[layout].software}:\n\n```python\n{opening}\n```"
    )


_OPENING = {  # of a repository with both towers, by software
    "transformers": "from transformers import AutoModel, AutoProcessor\n\nmodel = AutoModel.from_pretrained({0})\n"
    "processor = AutoProcessor.from_pretrained({0})",
    "open_clip": "import open_clip\n\nmodel, preprocess = open_clip.create_model_from_pretrained({0})",
}


def opened_by(file: Path) -> str | None:
    """Other software that opens the folder of a file of both towers, `""` for none; `None` of a file of one tower."""
    if file.name == TOWERS_NAME:
        return "open_clip" if (file.parent / "open_clip_config.json").is_file() else ""
    config = read_json_object(file.parent / "config.json") or {}
    return "transformers" if "text_config" in config else None


def towers_use_section(software: str, name: str) -> str:
    """How both towers of a repository are opened here and by other software.

    Args:
        software: as of `opened_by`.
        name: `hf:owner/name`.
    """
    section = (
        f'```python\nimport keras_vit\n\nmodel = keras_vit.zero_shot({json.dumps(name)}, classes=["cat", "dog"])\n'
        'photo = keras_vit.read_image("photo.jpg")\nprint(model.predict(model.preprocessing(photo)[None]))\n```'
    )
    if not software:
        return f"{section}\n\nkeras_vit alone opens these files."
    place = name.removeprefix("hf:") if software == "transformers" else name.replace("hf:", "hf-hub:")
    return f"{section}\n\nWith {software}:\n\n```python\n{_OPENING[software].format(json.dumps(place))}\n```"


def photos_section(checkpoint: Checkpoint, layout: str) -> str:
    """How photos are prepared, and whether the software of the layout does it otherwise.

    Args:
        checkpoint: what is there.
        layout: `"timm"` or `"huggingface"`.
    """
    record = checkpoint.preprocessing or Preprocessing()
    section = preprocessing_section(dataclasses.asdict(record))
    if not differences(layout, record, checkpoint.image_size):
        return section
    return f"{LAYOUTS[layout].software} prepares photos otherwise, as `{DIFFERENCES_FILE}` says.\n\n{section}"


def folder_layout(checkpoint: Checkpoint) -> str:
    """The layout of a folder's file.

    Raises:
        CheckpointError: if a folder is not written in it.
    """
    if checkpoint.layout not in FOLDERS:
        raise CheckpointError(
            "a folder for the Hub holds weights in the layout of timm or transformers.\n"
            f"Received: {checkpoint.path}, in that of {checkpoint.layout}."
        )
    return checkpoint.layout


def _architecture(checkpoint: Checkpoint, layout: str) -> str:
    classes = checkpoint.classes
    head = f"a head of {classes:,} classes" if classes else "no head, so it gives features"
    height, width = checkpoint.image_size or ("any", "any")
    return (
        f"{_kind(checkpoint)} (arXiv:2010.11929), for images of {height} x {width} pixels, with {head}. Its weights "
        f"were written by keras_vit {__version__} for {LAYOUTS[layout].software}."
    )


def _kind(checkpoint: Checkpoint) -> str:
    if name := checkpoint.variant():
        return f"The Vision Transformer {name}"
    patch, width, blocks, mlp_dim, stages = checkpoint.measured()
    root = "" if stages is None else " after a ResNet"
    return f"A Vision Transformer{root} of {blocks} blocks, width {width}, MLP {mlp_dim}, patches of {patch} pixels"


def _build_call(checkpoint: Checkpoint, place: str) -> str:
    """Python that builds the model; the file decides all that is left open."""
    variant = checkpoint.variant()
    known = variant in VARIANTS and checkpoint.num_heads in (None, VARIANTS[variant].num_heads)
    sizes = {}
    if not known:
        names = ("patch_size", "hidden_size", "num_layers", "mlp_dim", "resnet_stages")
        sizes = dict(zip(names, checkpoint.measured(), strict=True)) | {"num_heads": checkpoint.num_heads}
    given = "".join(f", {name}={value!r}" for name, value in sizes.items() if value is not None)
    top = "" if checkpoint.classes else ", include_top=False"
    return f'keras_vit.build("{variant if known else _CUSTOM}", weights={json.dumps(place)}{given}{top})'


_MOST_BYTES = 1 << 20
_LONGEST = 100  # characters of a stranger's licence
_TYPES = {"metaclip": "clip", "intern": "internvit"}  # how a `model_type` begins that is not named as its family


def record_origin(record: WeightsRecord) -> dict[str, Any]:
    """Title and papers of a record's family, if that is one of encoders."""
    return _family(record.family)


def read_origin(weights: Path) -> dict[str, Any]:
    """`family`, `papers` and `license` of a file or folder, each where the `config.json` there has it."""
    try:
        config = json_object((weights if weights.is_dir() else weights.parent) / "config.json", _MOST_BYTES)
    except (OSError, ValueError):
        return {}
    trained = config.get("pretrained_cfg")
    trained = trained if isinstance(trained, Mapping) else {}
    licence = trained.get("license", config.get("license"))
    licence_field = {"license": licence[:_LONGEST]} if isinstance(licence, str) and licence else {}
    name = str(config.get("architecture", ""))
    copies = [r for r in all_records() if name and (r.hf_repo or "").startswith(f"timm/{name}.")]
    if copies:
        exact = [record for record in copies if record.hf_repo == f"timm/{name}.{trained.get('tag')}"]
        return _family(copies[0].family) | ({"license": exact[0].license} if exact else {}) | licence_field
    return _family(_find_family(str(config.get("model_type", "")))) | licence_field


def _find_family(kind: str) -> str:
    """The key of `FAMILIES` for a `model_type` of transformers, as `"dinov2"` for `"dinov2_with_registers"`."""
    kind = kind.removeprefix("vit_")
    found = _TYPES | {name: name for name in FAMILIES}
    starts = [start for start in found if kind.startswith(start)]
    return found[max(starts, key=len)] if starts else ""


def _family(name: str) -> dict[str, Any]:
    family = FAMILIES.get(name)
    return {"family": family.title, "papers": list(family.papers)} if family and family.papers else {}
