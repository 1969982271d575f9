"""The papers and the licence of weights by the `config.json` of their folder, for model cards."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.config.encoders import FAMILIES
from keras_vit.files import json_object
from keras_vit.weights.registry import all_records
from keras_vit.weights.registry.record import WeightsRecord

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
