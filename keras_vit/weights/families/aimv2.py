"""The layouts of AIMv2 (arXiv:2411.14402): the authors', timm's and transformers'.

All have RMSNorm, a norm of patches, and a gated MLP. Transformers' may end in an attentive head.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.weights.families.clip import CLIP_PHOTOS
from keras_vit.weights.families.layout import PLAIN_PARTS, Arrays, Layout, Makers, ModelType
from keras_vit.weights.families.renames import TORCH, Layers, NoUnitAxes
from keras_vit.weights.metadata.record import classifies, unsupported_error
from keras_vit.weights.read import CheckpointError

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
_HEAD_BIASES = ("head.k_proj.bias", "head.v_proj.bias")
_OF_BLOCKS = "encoder.layers.0.attention.q_proj.bias"  # with which the head has these


def _fold_head_biases(arrays: Arrays, num_patches: int | None) -> Arrays:
    """The biases of the head's keys, which change nothing, and values, added to that of its output."""
    kernel, bias = arrays.get("head.output_proj.weight"), arrays.get("head.output_proj.bias")
    if kernel is None or bias is None:
        return arrays
    there = [name for name in (_OF_BLOCKS, *_HEAD_BIASES) if name in arrays]
    if len(there) not in (0, 3) or (there and arrays[there[-1]].shape != kernel.shape[1:]):
        raise CheckpointError(
            "the blocks, and the head's keys and values, must all have biases, or none of them.\n"
            f"Received: only {' and '.join(there)}, or one of another shape. Bring the file again."
        )
    if not there:
        return arrays
    found = {name: array for name, array in arrays.items() if name not in _HEAD_BIASES}
    return found | {"head.output_proj.bias": bias + kernel.astype("float32") @ arrays[_HEAD_BIASES[1]]}


def _add_head_biases(makers: Makers) -> Makers:
    """Biases of zeros for the keys and values of the head, which transformers wants where the blocks have biases."""
    out = makers.get("head.output_proj.bias")
    if out is None or _OF_BLOCKS not in makers:
        return makers
    return makers | dict.fromkeys(_HEAD_BIASES, lambda: np.zeros_like(out()))


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
    read_steps=(_fold_head_biases,),
    written_steps=(_add_head_biases,),
    parts={**AIMV2.parts, "attention_pooling": (True, False), "position_table": (True, False)},
    resize_method="bicubic",
    position_embedding="sincos2d_mae",  # of native sizes, which have no table
)


def _read(config: dict[str, Any], place: Path) -> dict[str, Any]:
    """The gate of the MLP, and the positions of native sizes, which are no table."""
    if config["hidden_act"] != "silu":
        raise unsupported_error("activation of a gated MLP", config["hidden_act"], place, "'silu'")
    return {"position_embedding": "sincos2d_mae"} if config.get("is_native") else {}


def _read_tower(config: dict[str, Any], place: Path) -> dict[str, Any]:
    fields = _read(config, place) | {"position_table": not config.get("is_native", False)}
    fields |= {"proj_bias": config["qkv_bias"]} if isinstance(config.get("qkv_bias"), bool) else {}
    return fields | ({} if classifies(config) else {"attention_pooling": config.get("use_head", True) is True})


_TYPE = ModelType(
    "Aimv2",
    (HF_AIMV2.name, AIMV2.name),
    ("intermediate_size", "mlp_bias", "qkv_bias"),
    {"hidden_act": "silu"},
    _read,
    epsilon="rms_norm_eps",
    num_heads=8,
    width=1024,
)
TYPES = {"aimv2": _TYPE, "aimv2_vision_model": dataclasses.replace(_TYPE, read=_read_tower)}
