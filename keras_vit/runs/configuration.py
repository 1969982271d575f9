"""What `config.json` holds: all that decides the numbers of a run."""

import dataclasses
import os
import platform
import sys

import keras
import numpy as np

from keras_vit.data.identity import identity_of
from keras_vit.data.opening import DIGITS
from keras_vit.runs.card import origin_of
from keras_vit.runs.options import is_short
from keras_vit.runs.preparation import Preparation
from keras_vit.version import __version__


def configuration_of(preparation: Preparation, data, out) -> dict:
    """The facts of a run on `data` that writes to the folder `out`."""
    model, plan = preparation.model, preparation.plan
    return {
        "versions": _versions(),
        "command": sys.argv,
        "arguments": {"data": _place_of(data), "out": str(out)} | preparation.options.facts(),
        "seed": preparation.options.seed,
        "precision": preparation.options.precision,
        "data": preparation.source.describe(),
        "data_hash": identity_of(preparation.source),
        "measured_on": preparation.split,
        "input_shape": model.input_shape[1:],
        "model": {"name": model.name, **model.config.as_dict()},
        "weights_report": model.weights_report,
        "weights_from": origin_of(preparation.options),
        "preprocessing": dataclasses.asdict(model.preprocessing),
        "recipe": dataclasses.asdict(plan.recipe),
        "plan": {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name != "recipe"},
        "changes": plan.changes(),
        "image_sizes": {str(stage.epoch): stage.image_size for stage in preparation.stages},  # from which epoch on
        "augmentation": dataclasses.asdict(preparation.augmentation),
        "devices": preparation.devices,
    }


def _versions():
    """Of all that the numbers depend on."""
    backend = keras.backend.backend()
    found = {"keras_vit": __version__, "keras": keras.__version__, "numpy": np.__version__}
    found |= {"python": platform.python_version(), "platform": platform.platform(), "backend": backend}
    for name in dict.fromkeys((backend, "tensorflow")):
        found[name] = __import__(name).__version__
    return found


def _place_of(data):
    """What a report shows of the data, such that it is found again from another folder."""
    if isinstance(data, str) and data != DIGITS and os.path.exists(data):
        return os.path.abspath(data)
    return data if is_short(data) else type(data).__name__
