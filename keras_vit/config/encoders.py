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
    "base16": (16, 768, 12, 12, 3072),
    "betwixt16": (16, 640, 12, 10, 2560),
    "so150m16": (16, 896, 18, 14, 2304),
    "so150m2x16": (16, 832, 21, 13, 2176),
}
_ON_PATCHES = {"position_embedding": "none", "rotary": "axial"}
_DINOV3 = _DINOV2 | _ON_PATCHES | {"layer_norm_epsilon": 1e-5, "registers": 4, "qkv_bias": "query_value"}
_MEAN = _ERF | {"pooling": "gap", "class_token": True, "final_norm": "pooled"}
_BEIT = _MEAN | {"relative_bias": "blocks", "position_embedding": "none", "layer_scale": "both"}
_BEIT |= {"qkv_bias": "query_value"}
_ON_GRID = {"rotary": "axial", "rotary_layout": "interleaved", "rotary_coordinates": "grid"}
_EVA02 = _ON_GRID | {"rotary_theta": 1e4, "rotary_reference": 16, "gated_mlp": True, "qkv_bias": "query_value"}
_PE = _CLIP | _ON_GRID | {"rotary_theta": 1e4, "rotary_axes": "xy", "rotary_offset": 1.0, "class_token": True}
_PE_MEAN = _PE | {"pooling": "gap", "final_norm": "none"}
_PE_SIZES = _sized(Ti="16", S="16", B="16", L="14") | {"G14": (14, 1536, 50, 16, 8960)}
_NO_TOKEN = {"class_token": False, "rotary_offset": 0.0}  # of PE's largest
_GIANT: Size = (16, 1536, 40, 24, 4096)


def _grouped(num_heads: int, num_layers: int) -> dict[str, tuple[int, ...]]:
    """Sapiens2: all but the first and the last 8 blocks have half as many heads of keys and values."""
    ends, middle = (num_heads,) * 8, (num_heads // 2,) * (num_layers - 16)
    return {"kv_heads": ends + middle + ends}


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
    "dinov3": EncoderFamily(
        "DINOv3",
        "DINOv3",
        ("2508.10104",),
        _sized(S="16", B="16", L="16")
        | {
            "Splus16": (16, 384, 12, 6, 1536),
            "Hplus16": (16, 1280, 32, 20, 5120),
            "7B16": (16, 4096, 40, 32, 8192),
        },
        _DINOV3,
        {"Splus16": _GATED, "Hplus16": _GATED, "7B16": _GATED | {"qkv_bias": "none"}},
    ),
    "eupe": EncoderFamily("EUPE", "EUPE", ("2603.22387",), _sized(Ti="16", S="16", B="16"), _DINOV3),
    "lingbot": EncoderFamily(
        "LingBot-Vision",
        "LingBot",
        ("2607.05247",),
        _sized(S="16", B="16", L="16") | {"g16": _GIANT},
        _DINOV3,
        {"g16": _GATED | {"qkv_bias": "none"}},
    ),
    "sapiens2": EncoderFamily(
        "Sapiens2",
        "Sapiens2",
        ("2604.21681",),
        _sized(B="16", L="16", H="16") | {"g16": (16, 1536, 40, 24, 6144), "5B16": (16, 2432, 56, 32, 9728)},
        _ERF | _ON_PATCHES | _GATED | {"norm": "rms", "qk_norm": "head", "layer_scale": "attention", "registers": 8},
        {
            "L16": _grouped(16, 24),
            "H16": _grouped(16, 32),
            "g16": _grouped(24, 40),
            "5B16": _grouped(32, 56),
        },
    ),
    "rope_vit": EncoderFamily(
        "RoPE-ViT",
        "RoPEViT",
        ("2403.13298",),
        _sized(S="16", B="16", L="16"),
        _DINOV2 | _ON_GRID | {"position_embedding": "none", "rotary_axes": "xy"},
    ),
    "eva": EncoderFamily(
        "EVA", "EVA", ("2211.07636",), _sized(L="14", g="14"), _MEAN, {"g14": {"qkv_bias": "query_value"}}
    ),
    "eva02": EncoderFamily(
        "EVA-02",
        "EVA02",
        ("2303.11331",),
        {
            "Ti14": (14, 192, 12, 3, 512),
            "S14": (14, 384, 12, 6, 1024),
            "B14": (14, 768, 12, 12, 2048),
            "L14": (14, 1024, 24, 16, 2730),
        },
        _MEAN | _EVA02,
        {"B14": {"mlp_norm": True}, "L14": {"mlp_norm": True}},
    ),
    "eva_clip": EncoderFamily(
        "EVA-CLIP",
        "EVACLIP",
        ("2303.15389",),
        {"B16": (16, 768, 12, 12, 2048), "L14": (14, 1024, 24, 16, 2730)}
        | _sized(g="14")
        | {"E14": (14, 1792, 64, 16, 15360)},
        _ERF | {"qkv_bias": "query_value"},
        dict.fromkeys(("B16", "L14"), _EVA02 | {"mlp_norm": True, "attention_norm": True})
        | {"E14": {"norm_position": "post"}},
    ),
    "beit": EncoderFamily("BEiT", "BEiT", ("2106.08254",), _sized(B="16", L="16"), _BEIT),
    "beitv2": EncoderFamily("BEiT v2", "BEiTv2", ("2208.06366",), _sized(B="16", L="16"), _BEIT),
    "beit3": EncoderFamily(
        "BEiT-3",
        "BEiT3",
        ("2208.10442",),
        _sized(B="16", L="16"),
        _MEAN | {"layer_norm_epsilon": 1e-5, "attention_norm": True, "mlp_norm": True},
    ),
    "aimv2": EncoderFamily(
        "AIMv2",
        "AIMv2",
        ("2411.14402",),
        {
            "L14": (14, 1024, 24, 8, 2816),
            "H14": (14, 1536, 24, 12, 4096),
            "1B14": (14, 2048, 24, 16, 5632),
            "3B14": (14, 3072, 24, 24, 8192),
        },
        _ERF
        | {"norm": "rms", "patch_norm": True, "layer_norm_epsilon": 1e-5, "pooling": "gap", "class_token": False}
        | {"gated_mlp": True, "qkv_bias": "none", "proj_bias": False, "mlp_bias": False},
    ),
    "pe_core": EncoderFamily(
        "Perception Encoder, core",
        "PECore",
        ("2504.13181",),
        _PE_SIZES,
        _PE | {"pooling": "map", "map_heads": 8, "pool_prefix_tokens": True},
        {"G14": _NO_TOKEN | {"pool_prefix_tokens": False, "map_mlp_dim": 6144}},
    ),
    "pe_lang": EncoderFamily(
        "Perception Encoder, language",
        "PELang",
        ("2504.13181",),
        {"L14": (14, 1024, 23, 16, 4096), "G14": (14, 1536, 47, 16, 8960)},
        _PE_MEAN | {"layer_scale": "both"},
        {"G14": _NO_TOKEN},
    ),
    "pe_spatial": EncoderFamily(
        "Perception Encoder, spatial",
        "PESpatial",
        ("2504.13181",),
        _PE_SIZES,
        _PE_MEAN,
        {"G14": _NO_TOKEN | {"layer_scale": "both"}},
    ),
    "tips": EncoderFamily(
        "TIPS and TIPSv2",
        "TIPS",
        ("2410.16512", "2604.12012"),
        _sized(S="14", B="14", L="14", So400m="14") | {"g14": (14, 1536, 40, 24, 4096)},
        {"activation": "gelu_tanh", "layer_scale": "both", "registers": 1},
        {"g14": _GATED},
    ),
    "pixio": EncoderFamily(
        "Pixio", "Pixio", ("2512.15715",), _sized(B="16", L="16", H="16"), _ERF | {"class_tokens": 8}
    ),
    "radio": EncoderFamily(
        "C-RADIO",
        "RADIO",
        ("2412.07679", "2601.17237"),
        _sized(B="16", L="16", H="16", So400m="16") | {"g16": (16, 1536, 40, 24, 6144)},
        _ERF | {"final_norm": "none", "registers": 7},
        {"B16": {"layer_scale": "both"}, "L16": {"layer_scale": "both"}, "So400m16": {"registers": 9}},
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
