"""The rows of the table that are encoders: read from `encoders.csv`, which has one line per file.

A line has what differs from the variant, how its authors prepare photos and resize positions, and whose figures these
are. What no source tells is empty. Facts of timm's copies are from its model files. Imports no Keras.
"""

import csv
import functools
import importlib.resources
import urllib.parse
from collections.abc import Mapping
from typing import Any

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.hub.weights_record import WeightsRecord, make_record, unknown_size

_HUB = "hf:"
_STATISTICS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # mean and deviation, where white is 1
    "half": ((0.5,) * 3, (0.5,) * 3),
    "none": ((0.0,) * 3, (1.0,) * 3),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "satellite": ((0.43, 0.411, 0.296), (0.213, 0.156, 0.143)),
}
_WORDS = {"True": True, "False": False, "None": None}
_NOT_LISTED = unknown_size("not listed")


@functools.cache
def encoder_records() -> tuple[WeightsRecord, ...]:
    """The records of `encoders.csv`, in its order."""
    text = importlib.resources.files(__package__).joinpath("encoders.csv").read_text("utf-8")
    return tuple(_record(line) for line in csv.DictReader(text.splitlines()))


def _record(line: dict[str, str]) -> WeightsRecord:
    file = line["file"] or line["name"]
    repository = file.removeprefix(_HUB) if file.startswith(_HUB) else None
    url = f"https://huggingface.co/{repository}/resolve/main/model.safetensors" if repository else file
    path = f"hf/{repository}/model.safetensors" if repository else urllib.parse.urlparse(file).path.lstrip("/")
    return make_record(
        line["name"],
        line["variant"],
        path,
        int(line["classes"]),
        _preprocessing(line["photos"], line["pixels"]),
        url=url,
        size=_NOT_LISTED,
        license=line["licence"],
        gated=bool(line["gated"]),
        hf_repo=repository,
        resize_method=line["resize"] or None,
        layout=line["layout"],
        parameters=int(line["parameters"]) if line["parameters"] else None,
        accuracy=float(line["accuracy"]) if line["accuracy"] else None,
        measure=line["measure"] or "top-1",
        accuracy_source=line["source"] or "none reported",
        sha256_start=line["hash"],
        note=line["note"],
        **{name: _value(word) for name, _, word in (pair.partition("=") for pair in line["fields"].split())},
    )


def _preprocessing(way: str, pixels: str) -> Preprocessing:
    """As of `"crop 0.9 bicubic imagenet"` or `"squash bilinear aliased half"`, at `"224"` or `"1024x768"` pixels."""
    resize, *words, statistics = way.split()
    height, _, width = pixels.partition("x")
    fraction = float(words.pop(0)) if resize == "crop" else 1.0
    mean, std = _STATISTICS[statistics]
    return Preprocessing(
        (int(height), int(width or height)),
        resize,
        mean,
        std,
        interpolation=words[0],
        antialias="aliased" not in words,
        crop_fraction=fraction,
    )


def _value(word: str) -> Any:
    """A value of a field, as Python writes it; a text without its marks."""
    if word in _WORDS:
        return _WORDS[word]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
