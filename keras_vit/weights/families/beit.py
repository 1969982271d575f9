"""The layouts of BEiT (arXiv:2106.08254, arXiv:2208.06366): timm's, which is the authors' too, and transformers'.

data2vec's image model (arXiv:2202.03555) has the same layers. There is no bias of keys, and relative positions have a
table in each block or one for all.
"""

import dataclasses
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from keras_vit.weights.families.dense_heads import HeadLayout, pyramid_names, upernet_names
from keras_vit.weights.families.eva import TIMM_EVA
from keras_vit.weights.families.layout import PLAIN_PARTS, Layout, ModelType
from keras_vit.weights.families.renames import TORCH
from keras_vit.weights.metadata.record import class_names

_TABLE = "relative_position_bias_table"
_PARTS = {
    **PLAIN_PARTS,
    "qkv_bias": ("query_value", "none"),
    "layer_scale": ("both", "none"),
    "relative_bias": ("blocks", "shared"),
    "final_norm": ("pooled", "tokens", "none"),
    "position_table": (True, False),
}

TIMM_BEIT = dataclasses.replace(
    TIMM_EVA,
    name="timm_beit",
    supports_post_norm=False,
    requires=(r"patch_embed\.proj\.weight", rf"(blocks\.0\.attn|rel_pos_bias)\.{_TABLE}", r"blocks\.0\.norm1\.weight"),
    forbids=(),
    ignores=("mask_token", r"lm_head\..*", r".*\.relative_position_index"),
    names={
        **TIMM_EVA.names,
        ("relative_bias_{block:02}/", "blocks.{block}.attn."): {"table": _TABLE},
        ("relative_bias_shared/", "rel_pos_bias."): {"table": _TABLE},
    },
    parts=_PARTS,
    position_embedding="none",
    folder=None,
)
_ATTENTION, _PREFIX = "attention.attention", r"(beit\.|data2vec_vision\.)?"  # of all but the head, if there is one


def _written_names(names: Collection[str]) -> Callable[[str], str]:
    """The names of BEiT: those of data2vec differ in the prefix of a model with a head."""
    classifies = "classifier.weight" in names
    return lambda name: name if name.startswith("classifier.") or not classifies else f"beit.{name}"


HF_BEIT = Layout(
    "huggingface_beit",
    "transformers",
    ".safetensors",
    TORCH,
    requires=(
        rf"{_PREFIX}embeddings\.patch_embeddings\.projection\.weight",
        rf"{_PREFIX}encoder\.layer\.0\.{_ATTENTION}\.query\.bias",
        rf"{_PREFIX}encoder\.layer\.0\.layernorm_before\.weight",
    ),
    forbids=(rf"{_PREFIX}encoder\.layer\.0\.{_ATTENTION}\.key\.bias",),  # by which ViT is another layout
    read_names=lambda names: lambda name: re.sub(f"^{_PREFIX}", "", name),
    written_names=_written_names,
    ignores=(
        *(rf"{_PREFIX}embeddings\.mask_token", r".*\.relative_position_index", r"lm_head\..*"),
        *(r"(decode|auxiliary)_head\..*", r"fpn[12]\..*"),  # of masks, which `HF_BEIT_UPERNET` reads
    ),
    names={
        ("", ""): {
            "class_token/token": "embeddings.cls_token",
            "position_embedding/table": "embeddings.position_embeddings",
            "patch_embedding/projection": "embeddings.patch_embeddings.projection",
            "encoder_norm": "layernorm",
            "pooled_norm": "pooler.layernorm",
            "head": "classifier",
        },
        ("block_{block:02}/", "encoder.layer.{block}."): {
            "norm_1": "layernorm_before",
            **{f"attention/{part}": f"{_ATTENTION}.{part}" for part in ("query", "key", "value")},
            "attention/out": "attention.output.dense",
            "layer_scale_1/gamma": "lambda_1",
            "norm_2": "layernorm_after",
            "mlp/dense_1": "intermediate.dense",
            "mlp/dense_2": "output.dense",
            "layer_scale_2/gamma": "lambda_2",
        },
        ("relative_bias_{block:02}/", "encoder.layer.{block}." + _ATTENTION + ".relative_position_bias."): {
            "table": _TABLE
        },
        ("relative_bias_shared/", "encoder.relative_position_bias."): {"table": _TABLE},
    },
    parts={**_PARTS, "qkv_bias": ("query_value",), "relative_bias": ("blocks", "shared", "none")},
    activation="gelu",
    layer_norm_epsilon=1e-12,
    resize_method="bicubic",
    bias_resize_method="bilinear",
    position_embedding="none",
)
HF_BEIT_UPERNET = HeadLayout(
    "huggingface_beit_upernet",
    "transformers",
    "upernet",
    requires=(r"decode_head\.psp_modules\.0\.1\.bn\.weight", r"fpn1\.0\.weight"),
    names=upernet_names("bn", "classifier", pyramid_names("fpn1", "fpn2")),
    encoder=("beit.",),
    encoder_layouts=(HF_BEIT.name,),
    normed=False,
    taps="thirds",
    pads="",
    side=640,
    options={"neck": "pyramid"},
)


def _read(config: dict[str, Any], place: Path) -> dict[str, Any]:
    """Pooling, scales and positions, by the words of both and what they leave out."""
    names, pools = class_names(config), config.get("use_mean_pooling", True)
    fields: dict[str, Any] = {"position_table": config.get("use_absolute_position_embeddings", False) is True}
    fields["layer_scale"] = "both" if config.get("layer_scale_init_value", 0.1) else "none"
    if not any("ForSemanticSegmentation" in name for name in names):  # which does not read it
        fields["pooling"] = "gap" if pools is True else "token" if pools is False else None
    silent = ("Data2VecVisionModel",) if pools else ()  # which may have no pooling layer, and so no norm
    if any(name.endswith(("Model", "ForImageClassification")) for name in names if name not in silent):
        fields["final_norm"] = "pooled" if pools else "tokens"
    if isinstance(blocks := config.get("use_relative_position_bias"), bool):
        tables = {"blocks": blocks, "shared": config.get("use_shared_relative_position_bias")}
        fields["relative_bias"] = " and ".join(word for word, there in tables.items() if there) or "none"
    return fields


_TYPE = ModelType("Beit", (HF_BEIT.name,), ("intermediate_size", "use_absolute_position_embeddings"), read=_read)
TYPES = {"beit": _TYPE, "data2vec-vision": dataclasses.replace(_TYPE, class_name="Data2VecVision")}
