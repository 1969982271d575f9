"""What `config.json` holds: all that decides the numbers of a run."""

import contextlib
import dataclasses
import os
import platform
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_vit.annotations import FilePath
from keras_vit.data.opening import DIGITS
from keras_vit.data.shards.finding import find_shards
from keras_vit.data.source import fingerprint
from keras_vit.files import expand_path
from keras_vit.model.image_model import ImageModel
from keras_vit.runs.options import FinetuneOptions, is_short
from keras_vit.runs.preparation import Preparation, published_name, weights_of
from keras_vit.tasks import DEFAULT, Task
from keras_vit.version import __version__
from keras_vit.weights.download.environment import without_secrets
from keras_vit.weights.origin import read_origin, record_origin
from keras_vit.weights.registry import find_weights
from keras_vit.weights.resolve import is_url, only_variant


def configuration_of(preparation: Preparation, data: Any, out: FilePath) -> dict:
    """The facts of a run on `data` that writes to the folder `out`."""
    model, plan = preparation.model, preparation.plan
    return {
        "versions": versions(),
        "command": sys.argv,
        "arguments": {"data": _place_of(data), "out": str(out)} | preparation.options.facts(),
        **task_facts(preparation.options.found_task),
        "seed": preparation.options.seed,
        "precision": preparation.options.precision,
        "data": preparation.source.describe(),
        "data_hash": fingerprint(preparation.source),
        "measured_on": preparation.split,
        "input_shape": model.input_shape[1:],
        "model": {"name": model.name, **model.config.as_dict()},
        "weights_report": model.load_report,
        "weights_from": origin_of(preparation.options),
        "preprocessing": dataclasses.asdict(model.preprocessing),
        "recipe": dataclasses.asdict(plan.recipe),
        "plan": {field.name: getattr(plan, field.name) for field in dataclasses.fields(plan) if field.name != "recipe"},
        "changes": plan.changes(),
        "image_sizes": {str(stage.epoch): stage.image_size for stage in preparation.stages},  # from which epoch on
        "augmentation": dataclasses.asdict(preparation.augmentation),
        "devices": preparation.devices,
    }


def task_facts(task: Task) -> dict[str, Any]:
    """What a run's files say of its task; nothing of the one of earlier versions, which had no other."""
    return {} if str(task) == DEFAULT else {"task": task.facts()}


def versions() -> dict[str, str]:
    """Versions of all that the numbers depend on."""
    backend = keras.backend.backend()
    found = {"keras_vit": __version__, "keras": keras.__version__, "numpy": np.__version__}
    found |= {"python": platform.python_version(), "platform": platform.platform(), "backend": backend}
    for name in dict.fromkeys((backend, "tensorflow")):
        found[name] = __import__(name).__version__
    return found


def _place_of(data: Any) -> Any:
    """What a report shows of the data, such that it is found again from another folder."""
    if isinstance(data, str) and data != DIGITS and (expand_path(data).exists() or find_shards(data)):
        return os.path.abspath(expand_path(data))
    return data if is_short(data) else type(data).__name__


def origin_of(options: FinetuneOptions) -> dict[str, Any]:
    """Where the weights came from that training began with.

    Args:
        options: of the run.

    Returns:
        `kind`, which is `"random"`, `"model"`, `"published"` or `"file"`; of the last two `name`, and of the third
        what its record says: `license`, `url`, and `repository` if it is on the Hub. Of encoders also `family` and
        `papers`, where the record or the `config.json` beside a file tells it, and that file's `license`.
    """
    if isinstance(options.model, ImageModel):
        return {"kind": "model"}
    if (weights := weights_of(options)) is None:
        return {"kind": "random"}
    name = os.fspath(weights)
    with contextlib.suppress(ValueError):  # of a name or a variant that the table does not have
        variant = only_variant(weights) if options.start is None else published_name(options.start)
        record = find_weights(name, variant or "")
        said = {"license": record.license, "url": record.url, "repository": record.hf_repo}
        return {"kind": "published", "name": name} | said | record_origin(record)
    if name.startswith("hf:"):
        return {"kind": "file", "name": name, "repository": name[len("hf:") :].partition("@")[0]}
    if is_url(name):
        return {"kind": "file", "name": without_secrets(name)}
    return {"kind": "file", "name": Path(name).name} | read_origin(expand_path(name))
