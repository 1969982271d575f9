"""The layouts of BEiT (arXiv:2106.08254, arXiv:2208.06366): timm's, which is the authors' too, and transformers'.

data2vec's image model (arXiv:2202.03555) has the same layers. There is no bias of keys, and relative positions have a
table in each block or one for all.
"""

import dataclasses
import re
from collections.abc import Callable, Collection

from keras_vit.weights.families.eva import TIMM_EVA
from keras_vit.weights.families.layout import PLAIN_PARTS, Layout
from keras_vit.weights.families.renames import TORCH

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
    ignores=(rf"{_PREFIX}embeddings\.mask_token", r".*\.relative_position_index", r"lm_head\..*"),
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
