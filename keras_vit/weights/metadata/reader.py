"""The metadata of a file: the note of this package, or the JSON files of transformers, timm and OpenCLIP.

They say what tensors cannot: the number of heads, the activation, how images must be prepared. A part that is not
understood counts as missing, and one line reports it. Unsupported settings raise an error.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.annotations import Pair
from keras_vit.config.position_tables import check_grid
from keras_vit.config.records import Positions
from keras_vit.files import json_object
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.pages.formatting import printable
from keras_vit.renamed import current_arguments
from keras_vit.weights.infer_fields import infer_fields
from keras_vit.weights.metadata.open_clip import NAME as OPEN_CLIP
from keras_vit.weights.metadata.open_clip import read_open_clip
from keras_vit.weights.metadata.processors import IMAGE_PROCESSOR, PROCESSOR
from keras_vit.weights.metadata.record import Metadata, Reading, check_object, parse_activation, parse_size
from keras_vit.weights.metadata.timm import read_label_names, read_timm
from keras_vit.weights.metadata.transformers import read_names, read_transformers
from keras_vit.weights.read import CheckpointError, TensorFile
from keras_vit.weights.read.sharded import ShardedFile

_MOST_BYTES = 4_000_000  # of a JSON file; ImageNet-21k's label lists take 1.5 MB
NOTED_FIELDS = (
    *(
        "activation",
        "layer_norm_epsilon",
        "norm_position",
        "patch_padding",
        "pooling",
        "position_embedding",
        "map_heads",
        "pool_prefix_tokens",
    ),
    *(field.name for field in dataclasses.fields(Positions) if field.name.startswith("rotary")),
)
_OF_BLOCKS = ("kv_heads", "global_blocks")  # tuples, which JSON does not have
_OURS = "model.safetensors"  # in a folder
_NUMBERS = ("hidden_size", "num_layers", "mlp_dim", "patch_size", "channels", "classes")  # that a JSON says itself


def read_metadata(file: TensorFile | ShardedFile) -> Metadata:
    """The metadata of a `TensorFile`: its note if this package wrote one, else the JSON files of its folder.

    Raises:
        CheckpointError: for an activation or pooling that is not computed here.
    """
    if "config" in file.note:
        noted = _with_folder_names(read_note(file.note, file.path), file.path)
        return _compared(noted, file.path) if file.path.name.removeprefix("open_clip_") == _OURS else noted
    return Metadata() if file.kind == "npz" else _of_folder(file.path)


def _of_folder(path: Path) -> Metadata:
    """What the JSON files next to a file say."""
    folder, is_open_clip = path.parent, path.name.startswith("open_clip_")
    config, remarks = ({}, []) if is_open_clip else _json(folder / "config.json")
    if {"pretrained_cfg", "model_args", "architecture"} & set(config):
        found = read_timm(config, folder)
    elif not config and os.path.lexists(folder / OPEN_CLIP):
        config, remarks = _json(folder / OPEN_CLIP)
        found = read_open_clip(config, folder)
    else:
        name, (processor, more) = IMAGE_PROCESSOR, _json(folder / IMAGE_PROCESSOR)
        whole, of_whole = _json(folder / PROCESSOR)
        if isinstance(inside := whole.get("image_processor"), dict):  # as transformers 5 has it, and reads it first
            name, processor, more = PROCESSOR, inside, []
        more = of_whole + more
        found, remarks = read_transformers(config, processor, folder, name), remarks + more
    return dataclasses.replace(found, remarks=(*remarks, *found.remarks))


def _with_folder_names(noted: Metadata, path: Path) -> Metadata:
    """The metadata of a note, with the class names of the folder that it is in, which holds them in its JSON."""
    config, remarks = _json(path.parent / "config.json") if path.name == _OURS else ({}, [])
    reading = Reading("config.json")
    names = read_names(config, reading) if {"id2label", "label2id"} & set(config) else read_label_names(config, reading)
    noted = dataclasses.replace(noted, remarks=(*noted.remarks, *remarks, *reading.remarks))
    return noted if names is None else dataclasses.replace(noted, class_names=names)


def _compared(noted: Metadata, path: Path) -> Metadata:
    """The metadata of a note, with what the folder's JSON says: who edits that expects that it is followed."""
    try:
        found = _of_folder(path)
    except CheckpointError as error:
        reason = printable(str(error).rpartition("Received: ")[2].partition(". ")[0])
        line = f"set aside the folder's JSON ({reason}), where {path.name} and its note are followed"
        return dataclasses.replace(noted, remarks=(*noted.remarks, line))
    said = found.fields | {name: found.sizes.get(name) for name in _NUMBERS} | {"num_heads": found.num_heads}
    if found.preprocessing is not None and noted.preprocessing is not None:
        said |= {"mean": found.preprocessing.mean, "std": found.preprocessing.std}
    return dataclasses.replace(noted, overruled={name: value for name, value in said.items() if value is not None})


def _json(path: Path) -> tuple[dict, list[str]]:
    """The object in a JSON file, empty without one, and a line if there is something else."""
    if not os.path.lexists(path):
        return {}, []
    reading = Reading(path.name)
    return reading.part("text", lambda: json_object(path, _MOST_BYTES), empty={}), reading.remarks


def make_note(
    config: dict[str, Any],
    tensors: Mapping[str, np.ndarray],
    num_heads: int | None,
    preprocessing: Preprocessing | None,
    grid: Pair | None,
    layout: str,
    class_names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """The note in files that this package writes; of a folder without the class names, which its JSON has."""
    parts = {name: value for name, value in infer_fields(tensors, num_heads).items() if name not in NOTED_FIELDS}
    blocks = {path.partition("/")[0] for path in tensors if path.startswith("block_")}
    note: dict[str, Any] = {
        "dialect": layout,
        "parts": {n: value for n, value in parts.items() if n not in _OF_BLOCKS} | {"num_layers": len(blocks)},
        "config": {name: config[name] for name in NOTED_FIELDS if name in config},
        "num_heads": num_heads,
        "preprocessing": None if preprocessing is None else dataclasses.asdict(preprocessing),
    }
    note |= {} if grid is None else {"position_grid": list(grid)}
    return note if class_names is None else note | {"class_names": list(class_names)}


def read_note(note: dict, path: Path) -> Metadata:
    """What a note of this package says.

    Raises:
        CheckpointError: for an activation that is not computed here.
    """
    reading = Reading("the file's note")
    config = reading.part("config", lambda: current_arguments(check_object(note["config"])), empty={})
    preprocessing, grid = note.get("preprocessing"), note.get("position_grid")
    fields = {name: config[name] for name in NOTED_FIELDS if name in config}
    if "activation" in fields:
        fields["activation"] = parse_activation(fields["activation"], f"the note of {path}")
    return Metadata(
        fields=reading.fields(fields),
        layout=str(note.get("dialect")),
        num_heads=reading.count("num_heads", note.get("num_heads")),
        sizes=reading.part("parts", lambda: check_object(note.get("parts", {})), empty={}),
        grid=None
        if grid is None
        else reading.part("position_grid", lambda: parse_size(check_grid("position_grid", grid))),
        preprocessing=None
        if preprocessing is None
        else reading.preprocessing(lambda: Preprocessing(**check_object(preprocessing))),
        class_names=reading.class_names("class_names", lambda: note.get("class_names")),
        remarks=tuple(reading.remarks),
        is_note=True,
    )
