"""The rows of the table: `vit.csv` of the paper's models and of ResNets, `encoders.csv` of all others, one line a file.

A line has what differs from the variant, how its authors prepare photos and resize positions, and whose figures these
are. What no source tells is empty. A file is `hf:owner/repository`, an https URL, or a path in Google's bucket. Sizes
are from the bucket's listing in `vit_jax_augreg.ipynb` or the official README; `timm results` is timm's
`results-imagenet.csv`; facts of its copies are from its model files. At 224 pixels no official source names the
recommended files of AugReg, so these are timm's. BiT's files are from the README of google-research/big_transfer.
"""

import dataclasses
import functools
import re
import urllib.parse
from collections.abc import Mapping

from keras_vit.config.rows import read_rows, values_of
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.resizing import ROUNDINGS
from keras_vit.weights.registry.record import WeightsRecord, parameter_count, published_config

_HUB = "hf:"
_STATISTICS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # mean and deviation, where white is 1
    "half": ((0.5,) * 3, (0.5,) * 3),
    "none": ((0.0,) * 3, (1.0,) * 3),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "satellite": ((0.43, 0.411, 0.296), (0.213, 0.156, 0.143)),
}
_UNITS = {"MiB": 2**20, "GiB": 2**30}
_LISTED = re.compile(r".*: ([\d.]+) (MiB|GiB)")
_LISTED_TOLERANCE = 2**20 // 10  # bytes; a cut file lacks more; a copy written anew by NumPy differs by less
_COMPUTED = "computed from its tensors in float32"
_COMPUTED_TOLERANCE = 0.005  # of the size: names, alignment and zip headers are estimated
_BYTES_BESIDE_AN_ARRAY = 300  # of an .npz: two zip headers, two names and the .npy header


@functools.cache
def vit_records() -> tuple[WeightsRecord, ...]:
    """The records of the paper's models and of ResNets. Like all, they are made when they are first asked for."""
    return tuple(map(record_of_row, read_rows(__file__, "vit.csv")))


@functools.cache
def encoder_records() -> tuple[WeightsRecord, ...]:
    """The records of encoders."""
    return tuple(map(record_of_row, read_rows(__file__, "encoders.csv")))


def record_of_row(row: Mapping[str, str], uncertain_parameters: int = 0) -> WeightsRecord:
    """The record of a row.

    Args:
        row: texts by the names of columns, as in `vit.csv`.
        uncertain_parameters: how many the file may or may not hold, where its size is computed.
    """
    file = row["file"] or row["name"]
    repository = file.removeprefix(_HUB) if file.startswith(_HUB) else None
    if repository:
        url, path = f"https://huggingface.co/{repository}/resolve/main/model.safetensors", f"hf/{repository}"
        path += "/model.safetensors"
    elif file.startswith("https:"):
        url, path = file, urllib.parse.urlparse(file).path.lstrip("/")
    else:
        url, path = "https://storage.googleapis.com/" + urllib.parse.quote(file), file
    usual, classes = published_config(row["variant"]), int(row["classes"])
    fields = tuple((name, value) for name, value in values_of(row["fields"]).items() if getattr(usual, name) != value)
    preprocessing, height = _preprocessing(row["photos"], row["pixels"]), int(row["pixels"].partition("x")[0])
    if size := row.get("size", "not listed"):  # which a listing tells, or nobody
        number_of_bytes, tolerance = listed_size(size)
    else:
        config = dataclasses.replace(usual, **dict(fields))
        arrays = 16 * config.num_layers + 10 if hasattr(config, "num_layers") else 10 * sum(config.stages)
        bytes_of_file = 4 * (parameter_count(config, height, classes) + uncertain_parameters / 2)
        bytes_of_file += _BYTES_BESIDE_AN_ARRAY * arrays
        number_of_bytes = round(bytes_of_file)
        tolerance = round(_COMPUTED_TOLERANCE * bytes_of_file + 2 * uncertain_parameters)
    return WeightsRecord(
        name=row["name"],
        variant=row["variant"],
        url=url,
        path=path,
        bytes=number_of_bytes,
        bytes_tolerance=tolerance,
        bytes_source=size or _COMPUTED,
        classes=classes,
        head=row.get("head") or ("real" if classes else "none"),
        resolution=height,
        preprocessing=preprocessing,
        license=row["licence"],
        accuracy=float(row["accuracy"]) if row["accuracy"] else None,
        accuracy_source=row["source"] or "none reported",
        fields=fields,
        resize_method=row["resize"] or None,
        hf_repo=repository,
        note=row["note"],
        measure=row["measure"] or "top-1",
        parameters=int(row["parameters"]) if row["parameters"] else None,
        layout=row["layout"],
        gated=bool(row["gated"]),
        sha256_start=row["hash"],
    )


def listed_size(text: str) -> tuple[int | None, int]:
    """Bytes of `"bucket listing: 393.69 MiB"`, and how far off: half a unit of the last digit, or 0.1 MiB.

    Any other text is the reason why no size is known.
    """
    if not (found := _LISTED.fullmatch(text)):
        return None, 0
    number, unit = found.groups()
    decimals = len(number.partition(".")[2])
    half_digit = 0.5 * 10**-decimals * _UNITS[unit]
    return round(float(number) * _UNITS[unit]), max(int(half_digit) + 1, _LISTED_TOLERANCE)


def _preprocessing(way: str, pixels: str) -> Preprocessing:
    """As of `"crop 0.9 bicubic imagenet"` or `"squash bilinear aliased half"`, at `"224"` or `"1024x768"` pixels."""
    resize, *words, statistics = way.split()
    height, _, width = pixels.partition("x")
    kept, _, resized = words.pop(0).partition("/") if resize == "crop" else ("1", "", "")
    mean, std = _STATISTICS[statistics]
    return Preprocessing(
        (int(height), int(width or height)),
        resize,
        mean,
        std,
        interpolation=words[0],
        antialias="aliased" not in words,
        crop_fraction=float(kept) / float(resized or 1),
        rounding=next((word for word in words if word in ROUNDINGS), "timm"),
    )
