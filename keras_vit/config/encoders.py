"""The encoders that people take features from: one row per family, with the sizes of its models.

A name is that of the family and of the size, as `"dinov2/S14"`. Sizes and fields are those of the authors' code, from
the papers that each family names. What a single file has otherwise, as registers, is in its record. Imports no Keras.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit.config.vit import ViTConfig

Size = tuple[int, int, int, int, int]  # P, D, L, A, M


@dataclasses.dataclass(frozen=True)
class EncoderFamily:
    """Models that differ in size alone.

    Attributes:
        title: as people write it.
        builder: what the names of its builders begin with.
        papers: arXiv numbers.
        sizes: `{name: (P, D, L, A, M)}`.
        fields: of `ViTConfig`, which all its models have.
        of_size: `{name of a size: fields}` that this one has besides.
    """

    title: str
    builder: str
    papers: tuple[str, ...]
    sizes: Mapping[str, Size]
    fields: Mapping[str, Any]
    of_size: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)


def _sized(**patches: str) -> dict[str, Size]:
    """Sizes of the usual widths: `B="16 32"` is `{"B16": ..., "B32": ...}`."""
    return {
        f"{name}{patch}": (int(patch), *_WIDTHS[name]) for name, all_of in patches.items() for patch in all_of.split()
    }


#              D     L   A   M
_WIDTHS = {
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "M": (512, 12, 8, 2048),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),
    "G": (1664, 48, 16, 8192),
    "So400m": (1152, 27, 16, 4304),
}
_ERF = {"activation": "gelu"}
_CLIP = _ERF | {"layer_norm_epsilon": 1e-5, "pre_norm": True, "patch_bias": False}
_DINOV2 = _ERF | {"layer_scale": "both"}
_GATED = {"gated_mlp": True}
_SBB = _DINOV2 | {"pooling": "gap", "class_token": False, "final_norm": "pooled"}
_SBB_SIZES: dict[str, Size] = {
    "wee16": (16, 256, 14, 4, 1280),
    "little16": (16, 320, 14, 5, 1792),
    "medium16": (16, 512, 12, 8, 2048),
    "mediumd16": (16, 512, 20, 8, 2048),
    "betwixt16": (16, 640, 12, 10, 2560),
    "so150m16": (16, 896, 18, 14, 2304),
    "so150m2x16": (16, 832, 21, 13, 2176),
}

FAMILIES: Mapping[str, EncoderFamily] = {
    "clip": EncoderFamily(
        "CLIP and its open copies",
        "CLIP",
        ("2103.00020", "2212.07143", "2304.14108", "2309.17425", "2309.16671", "2507.22062"),
        _sized(B="16 32", L="14", H="14", g="14", G="14") | {"B16plus": (16, 896, 12, 14, 3584)},
        _CLIP,
    ),
    "tinyclip": EncoderFamily(
        "TinyCLIP",
        "TinyCLIP",
        ("2309.12314",),
        {
            "8M16": (16, 256, 10, 4, 1024),
            "39M16": (16, 512, 12, 8, 2048),
            "40M32": (32, 512, 12, 8, 2048),
            "61M32": (32, 640, 12, 10, 2560),
        },
        _CLIP,
    ),
    "siglip": EncoderFamily(
        "SigLIP and SigLIP 2",
        "SigLIP",
        ("2303.15343", "2502.14786", "2407.07726"),
        _sized(B="16 32", L="16", So400m="14 16") | {"g16": (16, 1536, 40, 16, 6144)},
        {"activation": "gelu_tanh", "pooling": "map", "class_token": False},
    ),
    "dino": EncoderFamily("DINO", "DINO", ("2104.14294",), _sized(S="8 16", B="8 16"), _ERF),
    "mae": EncoderFamily("MAE", "MAE", ("2111.06377",), _sized(B="16", L="16", H="14"), _ERF),
    "msn": EncoderFamily("MSN", "MSN", ("2204.07141",), _sized(S="16", B="16", L="16"), _ERF),
    "ijepa": EncoderFamily(
        "I-JEPA",
        "IJEPA",
        ("2301.08243",),
        _sized(H="14 16", g="16"),
        _ERF | {"pooling": "gap", "class_token": False},
    ),
    "dinov2": EncoderFamily(
        "DINOv2",
        "DINOv2",
        ("2304.07193", "2309.16588"),
        _sized(S="14", B="14", L="14") | {"g14": (14, 1536, 40, 24, 4096)},
        _DINOV2,
        {"g14": _GATED},
    ),
    "franca": EncoderFamily(
        "Franca",
        "Franca",
        ("2507.14137",),
        _sized(B="14", L="14") | {"g14": (14, 1536, 40, 24, 4096)},
        _DINOV2,
        {"g14": _GATED},
    ),
    "deit3": EncoderFamily(
        "DeiT III", "DeiT3", ("2204.07118",), _sized(S="16", M="16", B="16", L="16", H="14"), _DINOV2
    ),
    "internvit": EncoderFamily(
        "InternViT",
        "InternViT",
        ("2312.14238",),
        {"300M14": (14, 1024, 24, 16, 4096)},
        _DINOV2 | {"final_norm": "none"},
    ),
    "sbb": EncoderFamily(
        "timm's models of odd sizes",
        "SBB",
        (),
        _SBB_SIZES,
        _SBB,
        {
            "so150m16": {"layer_scale": "none", "final_norm": "tokens"},
            "so150m2x16": {"qkv_bias": "none"},
        },
    ),
}
ENCODERS = {
    f"{name}/{size}": family.builder + size for name, family in FAMILIES.items() for size in family.sizes
}  # {name: that of its builder}


def encoder(name: str) -> ViTConfig:
    """The `ViTConfig` of a name of `ENCODERS`, as `"dinov2/S14"`."""
    family, size = FAMILIES[family_of(name)], name.partition("/")[2]
    return ViTConfig(*family.sizes[size], **{**family.fields, **family.of_size.get(size, {})})


def family_of(name: str) -> str:
    """The family in a name of `ENCODERS`."""
    return name.partition("/")[0]
