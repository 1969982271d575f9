"""One published checkpoint as a record, and how many parameters its file holds."""

import dataclasses
from typing import Any

from keras_vit.config.encoders import ENCODERS, encoder, family_of
from keras_vit.config.resnets import RESNETS, ResNetConfig
from keras_vit.config.variants import VARIANTS
from keras_vit.config.vit import ViTConfig
from keras_vit.images.preprocessing import Preprocessing

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
        bytes: size of the file, or `None` if no source tells.
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
        resize_method: of the position table at another resolution, one of `keras_vit.config.posembed.RESIZE_METHODS`;
            `None` for that of the file's layout.
        hf_repo: its Hugging Face repository, if it is there.
        note: what a user should know beyond that.
        measure: what `accuracy` is of: `"top-1"` of a head, `"zero-shot"`, `"kNN"` or `"fine-tuned"`.
        parameters: of the published model, as its software counts them, or `None`.
        layout: the name of the file's layout; `""` where its content alone tells it.
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
        return dataclasses.replace(published_config(self.variant), **dict(self.fields))

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


def parameter_count(config: ViTConfig | ResNetConfig, resolution: int, classes: int) -> int:
    """Numbers in a checkpoint for square images of `resolution` pixels; 0 `classes` is no head.

    Source: the shapes of arXiv:2010.11929, section 3.1, as the official code stores them; BiT's of a `ResNetConfig`.
    """
    if isinstance(config, ResNetConfig):
        return _bit(config) + (config.features + 1) * classes
    width, mlp_dim = config.hidden_size, config.mlp_dim
    channels, count = (3, 0) if config.resnet_stages is None else _resnet(config)
    height, breadth = config.grid(resolution, resolution)
    tokens = height * breadth + config.num_prefix_tokens if config.position_embedding == "learned" else 0
    count += config.patch_size**2 * channels * width + width
    count += (tokens + config.num_prefix_tokens) * width
    count += config.num_layers * (4 * width**2 + 2 * width * mlp_dim + 9 * width + mlp_dim) + 2 * width
    features = config.representation_size or width
    if config.representation_size:
        count += (width + 1) * features
    return count + (features + 1) * classes * (2 if config.distilled else 1)


def _resnet(config: ViTConfig) -> tuple[int, int]:
    """Channels of the feature map, and the parameters of the ResNet before the transformer."""
    channels = config.resnet_width
    count = 7 * 7 * 3 * channels + 2 * channels
    for stage, blocks in enumerate(config.resnet_stages):
        inner = config.resnet_width * 2**stage
        for block in range(blocks):
            count += channels * inner + 9 * inner**2 + 4 * inner**2 + 12 * inner
            if block == 0:
                count += 4 * channels * inner + 8 * inner
            channels = 4 * inner
    return channels, count


def _bit(config: ResNetConfig) -> int:
    """Parameters of a ResNet baseline without its head; its norms stand before the convolutions."""
    channels, count = config.width, 7 * 7 * 3 * config.width + 2 * config.features
    for stage, units in enumerate(config.stages):
        inner = config.width * 2**stage
        for unit in range(units):
            count += 2 * channels + 4 * inner + channels * inner + 13 * inner**2
            if unit == 0:
                count += 4 * channels * inner
            channels = 4 * inner
    return count
