"""What stands beside the tensors: the note in our own files, and the JSON files of transformers and timm.

It says what tensors cannot: the number of heads, the activation, how images must be prepared. A part that
is there but makes no sense counts as not there, and is told in a line; what is understood and cannot be
computed here is refused.
"""

import dataclasses
import json
from pathlib import Path

from keras_vit.weights.sidecar.facts import Reading, Sidecar
from keras_vit.weights.sidecar.huggingface import read_transformers
from keras_vit.weights.sidecar.note import read_note
from keras_vit.weights.sidecar.timm import read_timm

_MOST_BYTES = 4_000_000  # of a JSON file; ImageNet-21k's label lists take 1.5 MB


def read(file) -> Sidecar:
    """The sidecar of a `TensorFile`: its note if it has one of ours, else the JSON files of its folder.

    Raises:
        CheckpointError: for an activation or pooling that is not computed here.
    """
    if "config" in file.note:
        return read_note(file.note, file.path)
    if file.kind != "safetensors":
        return Sidecar()
    folder = file.path.parent
    config, remarks = _json(folder / "config.json")
    if "pretrained_cfg" in config:
        said = read_timm(config, folder)
    else:
        processor, more = _json(folder / "preprocessor_config.json")
        said, remarks = read_transformers(config, processor, folder), remarks + more
    return dataclasses.replace(said, remarks=(*remarks, *said.remarks))


def _json(path: Path) -> tuple[dict, list[str]]:
    """The object in a JSON file, empty without one, and a line if there is something else."""
    if not path.exists():
        return {}, []
    reading = Reading(path.name)
    return reading.part("text", lambda: _object_in(path), empty={}), reading.remarks


def _object_in(path):
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"the file must be small.\nReceived: {path.stat().st_size:,} bytes")
        said = json.loads(path.read_text("utf-8"))
    except (OSError, RecursionError) as error:
        raise ValueError(f"the file must be readable.\nReceived: {type(error).__name__}") from error
    if not isinstance(said, dict):
        raise ValueError(f"the file must hold an object.\nReceived: {type(said).__name__}")
    return said
