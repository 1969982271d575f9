"""A file of a head that makes maps: its tensors by their paths in the head, and what says how they are computed."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.files import json_object
from keras_vit.weights import metadata
from keras_vit.weights.checkpoint import file_in
from keras_vit.weights.families import HEAD_LAYOUTS, LAYOUTS, sort_names
from keras_vit.weights.families.dense_heads import HeadLayout
from keras_vit.weights.metadata.record import Reading, parse_names
from keras_vit.weights.read import CheckpointError, TensorFile
from keras_vit.weights.read.sharded import ShardedFile, check_whole, scan_any

ENCODER = "encoder"  # the folder of a head's encoder, below that of the head
_MOST_UNREAD = 10_000  # numbers of an array that is kept for its file alone
HEAD_NOTE = "head"  # in the note of a file that this package wrote: what no tensor says of a head
_HEAD_WIDTH = 64  # of attention in DINOv2's encoders
_MOST_BYTES = 4_000_000  # of a config.json


@dataclasses.dataclass(frozen=True)
class HeadCheckpoint:
    """A head as its file has it.

    Attributes:
        path: of the file.
        layout: its row.
        tensors: arrays by paths in the head's layer, as `batch_norm/gamma`.
        unread: arrays that no forward pass reads, by their whole names, as counts of batches.
        facts: what a note or a `config.json` says: `blocks`, `normed`, `unit`, `max_depth`, `depth_range`, `bins`,
            `normalise`, `resize_method`, `class_names`, `short_side`.
        has_encoder: whether the encoder is in the same file.
        num_heads: of that encoder where only its family's rule has it, else `None`.
        folder_config: the `config.json` of the folder.
        remarks: a line on class names that were not understood.
    """

    path: Path
    layout: HeadLayout
    tensors: Mapping[str, np.ndarray]
    unread: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]
    has_encoder: bool = False
    num_heads: int | None = None
    folder_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def last_axis(self, path: str) -> int:
        """Outputs of a layer; 0 without it."""
        return self.tensors[path].shape[-1] if path in self.tensors else 0


def unread_arrays(weights: Path, layout: str) -> dict[str, np.ndarray]:
    """Small arrays of an encoder's file that no forward pass reads, as the token of masked patches, by whole name.

    Args:
        weights: file or folder.
        layout: that the encoder was read in.
    """
    file = scan_any(file_in(weights))
    prefixes = LAYOUTS[layout].prefixes_among(file.entries)
    _, _, ignored = sort_names(layout, min(prefixes, key=len, default=""), file.entries)
    return file.read([name for name in ignored if np.prod(file.entries[name].shape) <= _MOST_UNREAD], integers=True)


def read_head(path: Path) -> HeadCheckpoint:
    """Reads the head of a file, and not its encoder.

    Raises:
        CheckpointError: if it cannot be read, or has the names of no head that is known here.
    """
    check_whole(path)
    file = scan_any(path)
    pairs = ((row, row.parts_of(file.entries)) for row in HEAD_LAYOUTS.values())
    found = [(row, parts) for row, parts in pairs if parts is not None]
    if not found:
        some = ", ".join(sorted(file.entries)[:5])
        known = dict.fromkeys(f"{row.software} ({row.task})" for row in HEAD_LAYOUTS.values())
        raise CheckpointError(
            f"the file must hold a head of {', '.join(known)}.\n"
            f"Received: {path} with {len(file.entries)} arrays: {some}, ... A classifier is loaded by "
            "`keras_vit.build(weights=...)`."
        )
    row, (before, below) = max(found, key=lambda pair: len(pair[0].prefix))
    ignored = [name for name, short in below.items() if row.is_ignored(short)]
    arrays = file.read([name for name in below if name not in ignored])
    tensors, _ = row.from_file({below[name]: array for name, array in arrays.items()})
    counts = {name.removeprefix(before): array for name, array in file.read(ignored, integers=True).items()}
    config = {} if HEAD_NOTE in file.note else _folder_config(path)
    noted = file.note.get(HEAD_NOTE)
    facts = dict(noted) if isinstance(noted, dict) else _facts_of_config(config, path)
    what, place = ("class_names", "the file's note") if isinstance(noted, dict) else ("id2label", "config.json")
    reading, names = Reading(place), facts.get("class_names")
    facts["class_names"] = names and reading.part(what, lambda: parse_names(names))
    has_encoder = len(below) < len(file.entries)
    return HeadCheckpoint(
        path,
        row,
        tensors,
        counts,
        facts,
        has_encoder,
        _usual_heads(file, row, before) if has_encoder else None,
        config or file.note.get("folder_config") or {},
        tuple(reading.remarks),
    )


def _folder_config(path: Path) -> dict[str, Any]:
    place = path.parent / "config.json"
    return json_object(place, _MOST_BYTES) if place.is_file() else {}


def _usual_heads(file: TensorFile | ShardedFile, row: HeadLayout, before: str) -> int | None:
    """Heads of 64 channels, of an encoder of DINOv2's own names of which nothing says another number."""
    table = file.entries.get(f"{before}{row.encoder[0]}pos_embed")
    if table is None or metadata.read(file).num_heads is not None:
        return None
    return max(table.shape[-1] // _HEAD_WIDTH, 1)


def _facts_of_config(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What the `config.json` of transformers, or of mmsegmentation's facts, says of a head.

    Raises:
        CheckpointError: for a part that is not computed here.
    """
    kind, inside = config.get("model_type"), config.get("backbone_config")
    inside = inside if isinstance(inside, dict) else {}
    facts: dict[str, Any] = {}
    if kind in ("dpt", "depth_anything") and inside:
        blocks = inside.get("out_indices") or [str(stage).removeprefix("stage") for stage in inside["out_features"]]
        facts = {"blocks": [int(each) for each in blocks], "normed": bool(inside.get("apply_layernorm", True))}
        facts |= {"unit": "metres", "resize_method": None} if kind == "dpt" else {}
    elif kind == "dpt":
        facts = {"blocks": [int(each) + 1 for each in config.get("backbone_out_indices", (2, 5, 8, 11))]}
    elif kind == "mmseg" and config.get("blocks"):
        facts = {"blocks": list(config["blocks"])}
    if config.get("depth_estimation_type") == "metric":
        facts |= {"max_depth": float(config["max_depth"]), "unit": "metres"}
    if kind == "dpt" and config.get("readout_type", "project") not in ("project", "ignore"):
        raise CheckpointError(
            "the read-out of DPT must be 'project' or 'ignore', which are computed here.\n"
            f"Received: readout_type={config['readout_type']!r} in the folder of {path}."
        )
    names = config.get("id2label") if kind == "dpt" else None
    return facts | ({"class_names": names} if names else {})
