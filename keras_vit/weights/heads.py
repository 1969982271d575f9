"""A file of a head that makes maps: its tensors by their paths in the head, and what says how they are computed."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.config.heads import DETECTION, MASKS
from keras_vit.config.position_tables import square_grid
from keras_vit.files import json_object
from keras_vit.weights.checkpoint import file_in
from keras_vit.weights.families import HEAD_LAYOUTS, LAYOUTS, sort_names
from keras_vit.weights.families.dense_heads import HeadLayout
from keras_vit.weights.metadata.map_heads import check_config, facts_of_config, facts_of_masks, norm_of_taps
from keras_vit.weights.metadata.reader import read_metadata
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
            `normalise`, `resize_method`, `class_names`, `short_side`, `pool_scales`, `num_heads` of the head; of masks
            also `num_blocks`, how many of the last blocks have their queries, and `mean` and `std` of pixels.
        encoder: beginnings of the encoder's names in the same file, empty if it is not there.
        num_heads: of that encoder where only its family's rule has it, else `None`.
        folder_config: the `config.json` of the folder.
        remarks: a line on class names that were not understood.
    """

    path: Path
    layout: HeadLayout
    tensors: Mapping[str, np.ndarray]
    unread: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]
    encoder: tuple[str, ...] = ()
    num_heads: int | None = None
    folder_config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    @property
    def has_encoder(self) -> bool:
        """Whether the encoder is in the same file."""
        return bool(self.encoder)

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
    tensors = row.from_file({below[name]: array for name, array in arrays.items()})
    counts = {name.removeprefix(before): array for name, array in file.read(ignored, integers=True).items()}
    config = {} if HEAD_NOTE in file.note else _folder_json(path, "config.json")
    noted = file.note.get(HEAD_NOTE)
    facts = dict(noted) if isinstance(noted, dict) else facts_of_config(config, row.name, path)
    check_config(config, row.name, {n.removeprefix(before): tuple(e.shape) for n, e in file.entries.items()}, path)
    encoder = tuple(before + prefix for prefix in (*row.encoder, *row.encoder_parts))
    if row.software == "mmsegmentation" and not isinstance(noted, dict):
        facts["normed"] = norm_of_taps(file.entries, encoder, row.normed)
    if row.task == DETECTION and not isinstance(noted, dict):
        facts |= _evaluated_side(path)
    what, place = ("class_names", "the file's note") if isinstance(noted, dict) else ("id2label", "config.json")
    reading, names = Reading(place), facts.get("class_names")
    facts["class_names"] = names and reading.part(what, lambda: parse_names(names))
    has_encoder = len(below) < len(file.entries)
    if row.kind == MASKS:
        facts = facts_of_masks(path, tensors, counts, config, facts)
        facts.setdefault("short_side", _own_side(file, f"{before}{''.join(row.encoder)}"))
    return HeadCheckpoint(
        path,
        row,
        tensors,
        counts,
        facts,
        encoder if has_encoder else (),
        _usual_heads(file, row, before) if has_encoder else None,
        config or file.note.get("folder_config") or {},
        tuple(reading.remarks),
    )


def _evaluated_side(path: Path) -> dict[str, int]:
    """`short_side`, of photos by a preprocessor_config.json next to the file, if it says it."""
    size = _folder_json(path, "preprocessor_config.json").get("size")
    side = size.get("shortest_edge") if isinstance(size, dict) else size
    return {"short_side": side} if isinstance(side, int) and side > 0 else {}


def _folder_json(path: Path, name: str) -> dict[str, Any]:
    place = path.parent / name
    return json_object(place, _MOST_BYTES) if place.is_file() else {}


def _usual_heads(file: TensorFile | ShardedFile, row: HeadLayout, before: str) -> int | None:
    """Heads of 64 channels, of an encoder of DINOv2's own names of which nothing says another number."""
    table = file.entries.get(f"{before}{''.join(row.encoder[:1])}pos_embed")
    if table is None or read_metadata(file).num_heads is not None:
        return None
    return max(table.shape[-1] // _HEAD_WIDTH, 1)


def _own_side(file: TensorFile | ShardedFile, prefix: str) -> int | None:
    """Pixels of the side of images that timm's position table is for, where it is square."""
    table, kernel = (file.entries.get(f"{prefix}{name}") for name in ("pos_embed", "patch_embed.proj.weight"))
    grid = None if table is None or kernel is None else square_grid(table.shape[1])
    return None if grid is None or kernel is None else grid[0] * kernel.shape[-1]
