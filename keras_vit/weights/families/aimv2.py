"""The layouts of AIMv2 (arXiv:2411.14402): the authors', timm's and transformers'.

All have RMSNorm, a norm of patches, and a gated MLP. Transformers' may end in an attentive head.
"""

import dataclasses

from keras_vit.weights.families.clip import CLIP_PHOTOS
from keras_vit.weights.families.layout import PLAIN_PARTS, Layout
from keras_vit.weights.families.renames import TORCH, Layers, NoUnitAxes

_QKV = ("attention/query", "attention/key", "attention/value")

AIMV2 = Layout(
    "aimv2",
    "the authors' AIMv2",
    ".safetensors",
    TORCH,
    requires=(r"preprocessor\.patchifier\.proj\.weight", r"trunk\.blocks\.0\.mlp\.fc3\.weight"),
    names={
        ("", ""): {
            "patch_embedding/projection": "preprocessor.patchifier.proj",
            "patch_norm": "preprocessor.patchifier.norm",
            "position_embedding/table": "preprocessor.pos_embed",
            "encoder_norm": "trunk.post_trunk_norm",
        },
        ("block_{block:02}/", "trunk.blocks.{block}."): {
            "norm_1": "norm_1",
            _QKV: "attn.qkv",
            "attention/out": "attn.proj",
            "norm_2": "norm_2",
            "mlp/gate": "mlp.fc1",
            "mlp/up": "mlp.fc3",
            "mlp/down": "mlp.fc2",
        },
    },
    parts={
        **PLAIN_PARTS,
        "patch_norm": (True,),
        "norm": ("rms",),
        "gated_mlp": (True,),
        "qkv_bias": ("none", "all"),
        "proj_bias": (False, True),
        "mlp_bias": (False, True),
        "class_token": (False,),
    },
    activation="gelu",  # which no gated MLP has
    layer_norm_epsilon=1e-5,
    resize_method="bicubic",
    preprocessing=CLIP_PHOTOS,
)
TIMM_AIMV2 = dataclasses.replace(
    AIMV2,
    name="timm_aimv2",
    software="timm",
    requires=(r"patch_embed\.proj\.weight", r"patch_embed\.norm\.weight", r"blocks\.0\.mlp\.fc1_g\.weight"),
    names={
        ("", ""): {
            "patch_embedding/projection": "patch_embed.proj",
            "patch_norm": "patch_embed.norm",
            "position_embedding/table": "pos_embed",
            "encoder_norm": "norm",
            "pooled_norm": "fc_norm",
            "head": "head",
        },
        ("block_{block:02}/", "blocks.{block}."): {
            "norm_1": "norm1",
            _QKV: "attn.qkv",
            "attention/out": "attn.proj",
            "norm_2": "norm2",
            "mlp/gate": "mlp.fc1_g",
            "mlp/up": "mlp.fc1_x",
            "mlp/down": "mlp.fc2",
        },
    },
    parts={**AIMV2.parts, "final_norm": ("tokens", "pooled")},
    resize_method="bicubic_antialias",
)
_HEAD: Layers = {"probe": "cls_token", "attention/key": "k_proj", "attention/value": "v_proj"}
HF_AIMV2 = dataclasses.replace(
    AIMV2,
    name="huggingface_aimv2",
    software="transformers",
    style=dataclasses.replace(TORCH, reshapes={**TORCH.reshapes, "table": NoUnitAxes(1)}),
    requires=(r"embeddings\.patch_embed\.weight", r"encoder\.layers\.0\.rms_norm1\.weight"),
    prefixes=("vision_model.", ""),
    ignores=(r"embeddings\.position_ids",),
    names={
        ("", ""): {
            "patch_embedding/projection": "embeddings.patch_embed",
            "patch_norm": "embeddings.rms_norm",
            "position_embedding/table": "embeddings.position_embedding.weight",
            "encoder_norm": "rms_norm",
        },
        ("block_{block:02}/", "encoder.layers.{block}."): {
            "norm_1": "rms_norm1",
            **{f"attention/{part}": f"attention.{part[0]}_proj" for part in ("query", "key", "value")},
            "attention/out": "attention.out_proj",
            "norm_2": "rms_norm2",
            **{f"mlp/{part}": f"ffn.{part}_proj" for part in ("gate", "up", "down")},
        },
        ("pooling/", "head."): {**_HEAD, "attention/out": "output_proj"},
    },
    parts={**AIMV2.parts, "attention_pooling": (True, False), "position_table": (True, False)},
    resize_method="bicubic",
    position_embedding="sincos2d_mae",  # of native sizes, which have no table
)
