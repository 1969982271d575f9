"""The note in our own files: what no tensor tells, as fields of the config, heads and preprocessing."""

import dataclasses

from keras_vit.config.posembed import check_grid
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.sidecar.facts import Reading, Sidecar, activation_of, sides_of

NOTED_FIELDS = ("activation", "layer_norm_epsilon", "pooling", "position_embedding")


def note_of(config: dict, num_heads, preprocessing, grid) -> dict:
    """The note that our own files carry."""
    note = {
        "config": {name: config[name] for name in NOTED_FIELDS if name in config},
        "num_heads": num_heads,
        "preprocessing": None if preprocessing is None else dataclasses.asdict(preprocessing),
    }
    return note if grid is None else note | {"position_grid": list(grid)}


def read_note(note: dict, path) -> Sidecar:
    """What a note of ours says.

    Raises:
        CheckpointError: for an activation that is not computed here.
    """
    reading = Reading("the file's note")
    config = reading.part("config", lambda: _object(note["config"]), empty={})
    preprocessing, grid = note.get("preprocessing"), note.get("position_grid")
    fields = {name: config[name] for name in NOTED_FIELDS if name in config}
    if "activation" in fields:
        fields["activation"] = activation_of(fields["activation"], f"the note of {path}")
    return Sidecar(
        fields=reading.fields(fields),
        num_heads=reading.count("num_heads", note.get("num_heads")),
        grid=None
        if grid is None
        else reading.part("position_grid", lambda: sides_of(check_grid("position_grid", grid))),
        preprocessing=None if preprocessing is None else reading.preprocessing(lambda: _record(preprocessing)),
        remarks=tuple(reading.remarks),
    )


def _record(said):
    return Preprocessing(**_object(said))


def _object(said):
    if not isinstance(said, dict):
        raise TypeError(f"this must be an object.\nReceived: {said!r:.40}.")
    return said
