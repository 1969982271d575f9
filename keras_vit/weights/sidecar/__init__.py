"""What stands beside the tensors: the note in our own files, and the JSON files of transformers and timm.

It says what tensors cannot: the number of heads, the activation, how images must be prepared. A part that
is there but makes no sense counts as not there, and is told in a line; what is understood and cannot be
computed here is refused.
"""

import dataclasses
import os
from pathlib import Path

from keras_vit.files import json_object
from keras_vit.weights.sidecar.facts import Reading, Sidecar
from keras_vit.weights.sidecar.note import read_note
from keras_vit.weights.sidecar.timm_config import read_timm
from keras_vit.weights.sidecar.transformers_config import read_transformers

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
    if not os.path.lexists(path):
        return {}, []
    reading = Reading(path.name)
    return reading.part("text", lambda: json_object(path, _MOST_BYTES), empty={}), reading.remarks
