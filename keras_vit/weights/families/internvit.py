"""The layouts of InternViT (arXiv:2312.14238): transformers' InternVLVisionModel, and the authors' InternVisionModel.

Neither has a last LayerNorm unless one is in the file. Vision towers are read out of files of a whole InternVL.
"""

import dataclasses
from pathlib import Path
from typing import Any

from keras_vit.weights.families.layout import IMAGENET_PHOTOS, PLAIN_PARTS, Layout, ModelType
from keras_vit.weights.families.renames import MLP, TORCH
from keras_vit.weights.metadata.record import unsupported_error

HF_INTERNVIT = Layout(
    "huggingface_internvit",
    "transformers",
    ".safetensors",
    TORCH,
    requires=(
        *(r"embeddings\.patch_embeddings\.projection\.weight", r"encoder\.layer\.0\.lambda_1"),
        r"encoder\.layer\.0\.attention\.projection_layer\.weight",
    ),
    ignores=(r"embeddings\.mask_token",),
    names={
        ("", ""): {
            "class_token/token": "embeddings.cls_token",
            "position_embedding/table": "embeddings.position_embeddings",
            "patch_embedding/projection": "embeddings.patch_embeddings.projection",
            "encoder_norm": "layernorm",
        },
        ("block_{block:02}/", "encoder.layer.{block}."): {
            "norm_1": "layernorm_before",
            **{f"attention/{part}": f"attention.{part[0]}_proj" for part in ("query", "key", "value")},
            "attention/out": "attention.projection_layer",
            "attention/query_norm": "attention.q_norm",  # of 6B
            "attention/key_norm": "attention.k_norm",
            "layer_scale_1/gamma": "lambda_1",
            "norm_2": "layernorm_after",
            **MLP,
            "layer_scale_2/gamma": "lambda_2",
        },
    },
    parts={
        **PLAIN_PARTS,
        "norm": ("layer", "rms"),
        "qkv_bias": ("all", "none"),
        "layer_scale": ("both",),
        "qk_norm": ("width", "none"),
        "final_norm": ("tokens", "none"),
    },
    activation="gelu",
    layer_norm_epsilon=1e-6,
    resize_method="bicubic",
    preprocessing=IMAGENET_PHOTOS,
)
INTERNVIT = dataclasses.replace(
    HF_INTERNVIT,
    name="internvit",
    software="the authors' InternViT",
    requires=(
        *(r"embeddings\.patch_embedding\.weight", r"embeddings\.class_embedding", r"encoder\.layers\.0\.ls1"),
        r"encoder\.layers\.0\.attn\.qkv\.weight",
    ),
    ignores=(),
    names={
        ("", ""): {
            "class_token/token": "embeddings.class_embedding",
            "position_embedding/table": "embeddings.position_embedding",
            "patch_embedding/projection": "embeddings.patch_embedding",
        },
        ("block_{block:02}/", "encoder.layers.{block}."): {
            "norm_1": "norm1",
            ("attention/query", "attention/key", "attention/value"): "attn.qkv",
            "attention/out": "attn.proj",
            "attention/query_norm": "attn.q_norm",
            "attention/key_norm": "attn.k_norm",
            "layer_scale_1/gamma": "ls1",
            "norm_2": "norm2",
            **MLP,
            "layer_scale_2/gamma": "ls2",
        },
    },
)
_NORMS = {"rms_norm": "rms", "layer_norm": "layer", True: "width", False: "none"}


def _read(config: dict[str, Any], place: Path) -> dict[str, Any]:
    if config.get("use_qk_norm") and config.get("layer_norm_eps") not in (None, 1e-6):
        known = "1e-6, which transformers always adds in the norms of queries and keys"
        raise unsupported_error("epsilon of an InternViT with `use_qk_norm`", config["layer_norm_eps"], place, known)
    norm, bias = config.get("norm_type", "layer_norm"), config.get("attention_bias")
    fields = {"norm": _NORMS.get(norm, norm), "qk_norm": _NORMS[bool(config.get("use_qk_norm"))]}
    fields |= {"final_norm": "none" if config.get("use_mean_pooling", True) else "tokens"}
    return fields | ({"qkv_bias": "all" if bias else "none"} if isinstance(bias, bool) else {})


def _read_authors(config: dict[str, Any], place: Path) -> dict[str, Any]:
    words = {"norm": "norm_type", "qk_norm": "qk_normalization"}
    return {field: _NORMS.get(config[word], config[word]) for field, word in words.items() if word in config}


_LAYOUTS = (HF_INTERNVIT.name, INTERNVIT.name)
TYPES = {
    "internvl_vision": ModelType(
        "InternVLVision",
        _LAYOUTS,
        ("intermediate_size", "use_absolute_position_embeddings"),
        read=_read,
        num_heads=16,
        width=1024,
    ),
    "intern_vit_6b": ModelType("", _LAYOUTS, ("intermediate_size", "qkv_bias"), read=_read_authors),
}
