"""Published checkpoints as records: the rows of `vit.csv` (the paper's models, ResNets) and of `encoders.csv`.

A row has what differs from the variant, how its authors prepare photos, and whose figures these are; what no source
has is empty. A file is `hf:owner/repository`, perhaps with a file's name, an https URL, or a path in Google's bucket.
Sizes are from its listing in `vit_jax_augreg.ipynb` or the official README; `timm results` is `results-imagenet.csv`
of timm, and facts of its copies are from its model files. AugReg's recommended files at 224 pixels are timm's choice.
"""

import dataclasses
import functools
import re
import urllib.parse
from collections.abc import Mapping
from typing import Any

from keras_vit.config.flops import parameter_count
from keras_vit.config.rows import read_rows, values_of
from keras_vit.config.variants import ENCODERS, RESNETS, VARIANTS, ResNetConfig, encoder, family_of
from keras_vit.config.vit import ViTConfig
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.resizing import ROUNDINGS

_HUB = "hf:"
_STATISTICS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # mean and deviation, where white is 1
    "half": ((0.5,) * 3, (0.5,) * 3),
    "none": ((0.0,) * 3, (1.0,) * 3),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "histology": ((0.707223, 0.578729, 0.703617), (0.211883, 0.230117, 0.177517)),
    "satellite": ((0.43, 0.411, 0.296), (0.213, 0.156, 0.143)),
}
_UNITS = {"MiB": 2**20, "GiB": 2**30}
_LISTED = re.compile(r".*: ([\d.]+) (MiB|GiB)")
_LISTED_TOLERANCE = 2**20 // 10  # bytes; a cut file lacks more; a copy written anew by NumPy differs by less
_COMPUTED = "computed from its tensors in float32"
_COMPUTED_TOLERANCE = 0.005  # of the size: names, alignment and zip headers are estimated
_OVERHEAD_OF_AN_ARRAY = 300  # of an .npz: two zip headers, two names and the .npy header
_FAMILIES = {  # of models of the paper's kind, by what a name begins with
    "imagenet21k": "paper",
    "sam": "sharpness",
    "gsam": "sharpness",
    "big_vision-imagenet2012": "plain",
    "big_vision-imagenet21k": "flexivit",
    "flexivit-": "flexivit",
    "deit-": "deit",
    "deit3-": "deit3",
    "bit-": "bit",
    "hf:timm/": "timm_copies",
    "hf:": "transformers_copies",
}
_PERMISSIVE = ("Apache-2.0", "MIT", "CC-BY-4.0", "Apache-2.0, CC-BY-4.0")
_TERMS = {  # licence: what most users must know of it
    "CC-BY-NC-4.0": "they may not be used commercially",
    "CC-BY-NC-ND-4.0": "they may not be used commercially, and nothing made of them may be passed on",
    "fair-noncommercial-research-license": "they are for research that is not commercial",
    "apple-amlr": "they are for research",
    "dinov3-license": "it limits trade and use, and goes with every copy",
}


@dataclasses.dataclass(frozen=True)
class WeightsRecord:
    """What is known of one published checkpoint.

    Args:
        name: what users write in `weights=`, e.g. `"imagenet21k"`.
        variant: a key of `keras_vit.VARIANTS`, e.g. `"B/16"`, of `keras_vit.RESNETS`, or an encoder as `"dinov2/S14"`.
        url: where it is published, https.
        path: its place in a cache or mirror: the bucket's own path, or `hf/<owner>/<repository>/<file>`.
        bytes: size of the file, or `None` if no source has it.
        bytes_tolerance: how far the true size may be from `bytes`.
        bytes_source: where `bytes` comes from, or why there is none.
        classes: K of its head, 0 without one.
        head: `"real"` (trained), `"zero"` (all zeros, of that shape) or `"none"`.
        resolution: height in pixels of the images that its authors use it with, which are square unless
            `preprocessing` says otherwise.
        preprocessing: what images need before they enter the model.
        license: SPDX name, or the name by which the Hub knows it.
        accuracy: reported accuracy on ImageNet's validation set in percent, or `None`.
        accuracy_source: who reports it.
        fields: `ViTConfig` fields in which the model differs from the variant.
        resize_method: of the position table at another resolution, one of `RESIZE_METHODS` in
            `keras_vit.config.position_tables`; `None` for that of the file's layout.
        hf_repo: its Hugging Face repository, if it is there.
        note: what a user should know beyond that.
        measure: what `accuracy` is of: `"top-1"` of a head, `"zero-shot"`, `"kNN"` or `"fine-tuned"`.
        parameters: of the published model, as its software counts them, or `None`.
        layout: the name of the file's layout; `""` where its content alone shows it.
        gated: whether its repository gives it only to those who have agreed to its licence there.
        sha256_start: first digits of the file's sha256 as its authors publish them, or `""`.
    """

    name: str
    variant: str
    url: str
    path: str
    bytes: int | None
    bytes_tolerance: int
    bytes_source: str
    classes: int
    head: str
    resolution: int
    preprocessing: Preprocessing
    license: str
    accuracy: float | None
    accuracy_source: str
    fields: tuple[tuple[str, Any], ...] = ()
    resize_method: str | None = None
    hf_repo: str | None = None
    note: str = ""
    measure: str = "top-1"
    parameters: int | None = None
    layout: str = ""
    gated: bool = False
    sha256_start: str = ""

    @property
    def config(self) -> ViTConfig | ResNetConfig:
        """The variant's config with this checkpoint's `fields`."""
        config = published_config(self.variant)
        return dataclasses.replace(config, **dict(self.fields)) if self.fields else config

    @property
    def megabytes(self) -> str:
        """The size of the file in MB, as `"346"`; `"~344"` where no source has it, computed from the parameters.

        That is in float32, of what this package reads: a file with a text tower or an optimizer is larger.
        """
        if self.bytes is not None:
            return f"{self.bytes / 1e6:.0f}"
        size = self.preprocessing.image_size or self.resolution
        return f"~{4e-6 * (self.parameters or parameter_count(self.config, size, self.classes)):.0f}"

    @property
    def has_text(self) -> bool:
        """Whether its text tower is published too, so that `keras_vit.build_text` opens it by this name."""
        in_table = any((row["name"], row["variant"]) == (self.name, self.variant) for row in read_text_rows())
        return in_table or self.layout == "huggingface_siglip"

    @property
    def model(self) -> str:
        """What it is the weights of, for messages: `"ViT B/16"` or `"R50x1"`."""
        return display_name(self.variant)

    @property
    def family(self) -> str:
        """Whose weights it is of, as `"augreg"` or `"dinov2"`; each family has a page in the documentation."""
        if self.variant in ENCODERS:
            return family_of(self.variant)
        return next((family for start, family in _FAMILIES.items() if self.name.startswith(start)), "augreg")

    @property
    def is_flexible(self) -> bool:
        """Whether it is made for patches of any size, so that its kernel need not have the variant's."""
        return self.family == "flexivit" and self.resize_method is not None

    @property
    def terms(self) -> str:
        """What must be known before the file is used, as that trade is forbidden; `""` of a permissive licence."""
        if self.license in _PERMISSIVE and not self.gated:
            return ""
        if self.license == "unknown":
            return (
                f"The weights {self.name!r} of {self.model} have no licence that is known here: "
                "ask their authors before you use them."
            )
        known = _TERMS.get(self.license, "read it before you use them")
        place = f"https://huggingface.co/{self.hf_repo}, and log in" if self.hf_repo else "its authors' page"
        gate = f" Agree to it at {place}." if self.gated else ""
        return f"The weights {self.name!r} of {self.model} are under {self.license}: {known}.{gate}"


def published_config(variant: str) -> ViTConfig | ResNetConfig:
    """The config of a key of `VARIANTS`, `RESNETS` or `ENCODERS`."""
    if variant in ENCODERS:
        return encoder(variant)
    return RESNETS[variant] if variant in RESNETS else VARIANTS[variant]


def display_name(variant: str | None) -> str:
    """A key of `VARIANTS`, `RESNETS` or `ENCODERS` in words: `"ViT B/16"`, `"R50x1"` or `"dinov2/S14"`."""
    return str(variant) if variant in RESNETS or variant in ENCODERS else f"ViT {variant}"


@functools.cache
def read_records(file: str) -> tuple[WeightsRecord, ...]:
    """The records of `vit.csv` or `encoders.csv`, which are made when they are first asked for."""
    return tuple(map(record_of_row, read_rows(__file__, file)))


@functools.cache
def read_text_rows() -> tuple[dict[str, str], ...]:
    """The rows of `text.csv`: where the text towers of image towers of the table are.

    `text` is the repository or URL of a file, or empty where the image tower's has both; `vocabulary` names one that
    stands next to no weights; `num_heads` is for files that do not say it.
    """
    return tuple(read_rows(__file__, "text.csv"))


def record_of_row(row: Mapping[str, str], uncertain_parameters: int = 0) -> WeightsRecord:
    """The record of a row.

    Args:
        row: texts by the names of columns, as in `vit.csv`.
        uncertain_parameters: how many the file may or may not hold, where its size is computed.
    """
    file = row["file"] or row["name"]
    repository = None
    if file.startswith(_HUB):
        owner, name, *own = file.removeprefix(_HUB).split("/")
        repository, stored = f"{owner}/{name}", own[0] if own else "model.safetensors"
        url, path = f"https://huggingface.co/{repository}/resolve/main/{stored}", f"hf/{repository}/{stored}"
    elif file.startswith("https:"):
        url, path = file, urllib.parse.urlparse(file).path.lstrip("/")
    else:
        url, path = "https://storage.googleapis.com/" + urllib.parse.quote(file), file
    usual, classes = published_config(row["variant"]), int(row["classes"])
    fields = tuple((name, value) for name, value in values_of(row["fields"]).items() if getattr(usual, name) != value)
    preprocessing, height = _preprocessing(row["photos"], row["pixels"]), int(row["pixels"].partition("x")[0])
    if size := row.get("size", "not listed"):  # as listed, or why it is not
        number_of_bytes, tolerance = listed_size(size)
    else:
        config = dataclasses.replace(usual, **dict(fields))
        arrays = 16 * config.num_layers + 10 if hasattr(config, "num_layers") else 10 * sum(config.stages)
        bytes_of_file = 4 * (parameter_count(config, height, classes) + uncertain_parameters / 2)
        bytes_of_file += _OVERHEAD_OF_AN_ARRAY * arrays
        tolerance = round(_COMPUTED_TOLERANCE * bytes_of_file + 2 * uncertain_parameters)
        number_of_bytes = round(bytes_of_file)
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
