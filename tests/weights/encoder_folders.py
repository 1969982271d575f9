"""Small folders that the software of families wrote, with what it computes of them in float64; how tests open them."""

import functools
import json
import shutil
from pathlib import Path

import numpy as np
from conftest import GOLDEN, numpy

import keras_vit

ENCODERS = GOLDEN / "encoders"
FOLDERS = sorted(path.name for path in ENCODERS.iterdir())
ENDS = {"tokens": {"include_top": False, "pooling": "none"}, "pooled": {"include_top": False}, "logits": {}}

HEADS = {"open_clip_siglip": {"num_heads": 12}}  # of a name that timm has not, so that it may be small


@functools.cache
def expected(folder):
    with np.load(ENCODERS / folder / "expected.npz") as arrays:
        return dict(arrays)


@functools.lru_cache(8)
def built(folder, end="tokens", size="", **more):
    """Built once for the tests of a folder that follow each other; none changes it."""
    shape = expected(folder)[f"images{size}"].shape[1:]
    return keras_vit.build(weights=ENCODERS / folder, input_shape=shape, **ENDS[end] | HEADS.get(folder, {}) | more)


def difference(folder, model, end="tokens", size=""):
    arrays = expected(folder)
    wanted = arrays[end + size]
    return np.abs(numpy(model(arrays[f"images{size}"])) - wanted).max() / max(np.abs(wanted).max() / 5, 1)


def changed(tmp_path, folder, **facts):
    """A copy of a folder whose config.json says something else."""
    copy = Path(shutil.copytree(ENCODERS / folder, tmp_path / folder))
    (file,) = copy.glob("*config.json")
    config = json.loads(file.read_text())
    place = config["model_cfg"]["vision_cfg"] if "model_cfg" in config else config.get("model_args") or config
    place.update(facts)
    file.write_text(json.dumps(config))
    return copy
