"""Where trained numbers come from and go to; nothing here builds a model."""

from keras_vit.weights.load import (
    copy_weights,
    deferred_variables,
    fill,
    load_checkpoint,
    read_checkpoint,
    save_checkpoint,
)
from keras_vit.weights.reader import CheckpointError

__all__ = [
    "CheckpointError",
    "copy_weights",
    "deferred_variables",
    "fill",
    "load_checkpoint",
    "read_checkpoint",
    "save_checkpoint",
]
