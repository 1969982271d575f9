"""The layouts of transformers' ViT, DeiT, I-JEPA and Pixio (arXiv:2512.15715): kernels as torch has them.

Files on the Hugging Face hub have the names of transformers 4, which version 5 still reads and we write. The names of
version 5 in memory (`layers.0.attention.q_proj`) are read too. Pixio has several class tokens with positions, pooled
as their mean.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from keras_vit.config.heads import DEPTH, SEGMENTATION
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.families.dense_heads import OF_TRANSFORMERS, HeadLayout, upernet_names, without
from keras_vit.weights.families.layout import (
    ANY,
    IMAGENET_PHOTOS,
    PLAIN_PARTS,
    SCALED,
    Arrays,
    Folder,
    Layout,
    Makers,
    ModelType,
)
from keras_vit.weights.families.renames import TORCH, Layers
from keras_vit.weights.metadata.processors import IMAGE_PROCESSOR, transformers_processor
from keras_vit.weights.metadata.record import USUAL_FIELDS, check_writable
from keras_vit.weights.read import CheckpointError

_PREFIX = r"(vit\.|deit\.|ijepa\.)?"  # of all names but those of the heads; none without a head
_CLASS_TOKEN = "embeddings.cls_token"
_PATCHES, _DISTILLATION = "embeddings.patch_embeddings.projection", "embeddings.distillation_token"
_NORMS: Layers = {"norm_1": "layernorm_before", "norm_2": "layernorm_after"}


def _read_names(names: Collection[str]) -> Callable[[str], str]:
    return lambda name: re.sub(f"^{_PREFIX}", "", name)


def _written_names(names: Collection[str]) -> Callable[[str], str]:
    """The names of ViT, DeiT, or I-JEPA without a class token, with their prefix if there is a head."""
    distilled, classifies = _DISTILLATION in names, "classifier.weight" in names
    if classifies and "pooler.dense.weight" in names:
        raise CheckpointError(
            "transformers' classifier has no pre-logits: its pooler, which is the same layer, belongs to models "
            "without a head. Save as official, or build without one of the two."
        )
    kind = "deit." if distilled else "vit." if _CLASS_TOKEN in names else "ijepa."
    prefix, two_heads = kind if classifies else "", "distillation_classifier.weight" in names

    def spelled(name: str) -> str:
        if name.startswith("classifier."):
            return f"cls_{name}" if two_heads else name
        return name if name.startswith("distillation_classifier.") else prefix + name

    return spelled


def _merge_class_tokens(arrays: Arrays, num_patches: int | None) -> Arrays:
    """DeiT's distillation token, where the one head reads the class token alone, as a second class token."""
    short = {re.sub(f"^{_PREFIX}", "", name): name for name in arrays}
    if "classifier.weight" not in short or not {_CLASS_TOKEN, _DISTILLATION} <= short.keys():
        return arrays
    tokens = np.concatenate([arrays[short[_CLASS_TOKEN]], arrays[short[_DISTILLATION]]], axis=1)
    return {name: array for name, array in arrays.items() if name != short[_DISTILLATION]} | {
        short[_CLASS_TOKEN]: tokens
    }


def _split_class_tokens(makers: Makers) -> Makers:
    """The second class token under its name there."""
    token = makers.get(_CLASS_TOKEN)
    if token is None or token().shape[1] != 2:
        return makers
    return makers | {_CLASS_TOKEN: lambda: token()[:, :1], _DISTILLATION: lambda: token()[:, 1:]}


def _defaults(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Which of two class tokens the head of DeiT reads."""
    tokens = tensors.get("class_token/token")
    is_deit = "head/kernel" in tensors and tokens is not None and tokens.shape[1:2] == (2,)
    return {"class_token_indices": (0,)} if is_deit else {}


def transformers_snippet(place: str, classifies: bool) -> str:
    """Python that opens a folder, or `hf:owner/name`, with transformers."""
    kind = "AutoModelForImageClassification" if classifies else "AutoModel"
    name = json.dumps(place.removeprefix("hf:"))
    return f"from transformers import {kind}\n\nmodel = {kind}.from_pretrained({name})"


def written_config(
    model_type: str, class_name: str, facts: dict[str, Any], mlp: dict[str, Any], **words: Any
) -> dict[str, Any]:
    """The config.json of a class of transformers.

    Args:
        model_type: of the class.
        class_name: its whole name.
        facts: of the architecture.
        mlp: words for the width of the MLP.
        **words: that the family has besides the usual ones.
    """
    check_writable("transformers", facts, **USUAL_FIELDS)
    (height, width), labels = facts["image_size"], facts["labels"] or [f"LABEL_{k}" for k in range(facts["classes"])]
    return {
        "model_type": model_type,
        "architectures": [class_name],
        "hidden_size": facts["hidden_size"],
        "num_hidden_layers": facts["num_layers"],
        "num_attention_heads": facts["num_heads"],
        **mlp,
        "hidden_act": "gelu_pytorch_tanh" if facts["activation"] == "gelu_tanh" else facts["activation"],
        "layer_norm_eps": facts["layer_norm_epsilon"],
        "image_size": height if height == width else [height, width],
        "patch_size": facts["patch_size"],
        "num_channels": facts["channels"],
        "qkv_bias": facts["qkv_bias"] != "none",
        **words,
        "id2label": {str(k): label for k, label in enumerate(labels)},
        "label2id": {label: k for k, label in enumerate(labels)},
    }


def _files(facts: dict[str, Any], preprocessing: Preprocessing) -> dict[str, dict]:
    """The JSON files, by name, that transformers reads: of ViT, DeiT or I-JEPA."""
    if facts["qkv_bias"] == "query_value":
        check_writable("transformers", facts, qkv_bias="all")
    has_two = facts["distilled"] or facts["fields"]["class_tokens"] == 2  # of which one head reads the first
    kind = "IJepa" if not facts["class_token"] else "DeiT" if has_two else "ViT"
    task = "Model" if not facts["classes"] else "ForImageClassification" + ("WithTeacher" if facts["distilled"] else "")
    config = written_config(kind.lower(), kind + task, facts, {"intermediate_size": facts["mlp_dim"]})
    return {"config.json": config, IMAGE_PROCESSOR: transformers_processor(preprocessing, facts["image_size"])}


_VIT_WORDS = ("intermediate_size", "qkv_bias")


def _type(class_name: str, tokens: int, **others: Any) -> ModelType:
    """A type of ViT's layout, with so many tokens before the patches."""
    words: dict[str, Any] = {"words": _VIT_WORDS, "usual": {"qkv_bias": True}, "has_one_size": True} | others
    return ModelType(class_name, ("huggingface",), read=lambda config, place: {"special_tokens": tokens}, **words)


_WITH_POOLER = (*_VIT_WORDS, "pooler_act")
TYPES = {
    "vit": _type("ViT", 1, words=_WITH_POOLER),
    "deit": _type("DeiT", 2, words=_WITH_POOLER),
    "ijepa": _type("IJepa", 0, words=_WITH_POOLER),
    "vit_mae": _type("ViTMAE", 1),
    "vit_msn": _type("ViTMSN", 1, usual={"qkv_bias": True, "layer_norm_eps": 1e-6}),  # of the others it is 1e-12
    "pixio": ModelType(
        "Pixio",
        ("huggingface_pixio",),
        (*SCALED, "qkv_bias", "n_cls_tokens"),
        {"qkv_bias": True},
        num_heads=16,
        width=1280,
    ),
}

HUGGINGFACE = Layout(
    "huggingface",
    "transformers",
    ".safetensors",
    TORCH,
    requires=(rf"{_PREFIX}embeddings\.patch_embeddings\.projection\.weight",),
    ignores=(rf"{_PREFIX}embeddings\.mask_token", r"decoder\..*"),  # of masked pre-training alone
    names={
        ("", ""): {
            "class_token/token": _CLASS_TOKEN,
            "distillation_token/token": _DISTILLATION,
            "position_embedding/table": "embeddings.position_embeddings",
            "patch_embedding/projection": _PATCHES,
            "encoder_norm": "layernorm",
            "pre_logits": "pooler.dense",  # tanh of a dense layer on the class token, in both
            "head": "classifier",
            "head_distillation": "distillation_classifier",
        },
        ("block_{block:02}/", "encoder.layer.{block}."): {
            **_NORMS,
            **{f"attention/{part}": f"attention.attention.{part}" for part in ("query", "key", "value")},
            "attention/out": "attention.output.dense",
            "mlp/dense_1": "intermediate.dense",
            "mlp/dense_2": "output.dense",
        },
    },
    also={
        ("block_{block:02}/", "layers.{block}."): {
            **_NORMS,
            **{f"attention/{part}": f"attention.{part[0]}_proj" for part in ("query", "key", "value", "out")},
            "mlp/dense_1": "mlp.fc1",
            "mlp/dense_2": "mlp.fc2",
        },
        ("", ""): {"head": "cls_classifier"},  # of DeiT
    },
    read_names=_read_names,
    written_names=_written_names,
    read_steps=(_merge_class_tokens,),
    written_steps=(_split_class_tokens,),
    defaults=_defaults,
    parts={**PLAIN_PARTS, "qkv_bias": ("all", "none"), "class_token": (True, False), "class_tokens": (1, 2)},
    activation="gelu",
    layer_norm_epsilon=1e-12,
    resize_method="bicubic",
    unsupported=("mean pooling with a class token", "head on all tokens", "model without positions"),
    folder=Folder(_files, transformers_snippet, stores_epsilon=True, has_single_side=True),
)


PIXIO = Layout(
    "huggingface_pixio",
    "transformers",
    ".safetensors",
    TORCH,
    requires=(
        *(r"embeddings\.patch_embeddings\.projection\.weight", r"embeddings\.cls_token", r"layernorm\.weight"),
        *(r"encoder\.layer\.0\.norm1\.weight", r"encoder\.layer\.0\.intermediate\.dense\.weight"),
    ),
    ignores=(r"embeddings\.mask_token", r"decoder\..*"),  # of masked pre-training
    names={
        ("", ""): {
            "class_token/token": "embeddings.cls_token",
            "position_embedding/table": "embeddings.position_embeddings",
            "patch_embedding/projection": "embeddings.patch_embeddings.projection",
            "encoder_norm": "layernorm",
        },
        ("block_{block:02}/", "encoder.layer.{block}."): {
            "norm_1": "norm1",
            **{f"attention/{part}": f"attention.attention.{part}" for part in ("query", "key", "value")},
            "attention/out": "attention.output.dense",
            "norm_2": "norm2",
            "mlp/dense_1": "intermediate.dense",
            "mlp/dense_2": "output.dense",
        },
    },
    parts={**PLAIN_PARTS, "qkv_bias": ("all", "none"), "class_tokens": ANY},
    activation="gelu",
    layer_norm_epsilon=1e-6,
    resize_method="bicubic",
    class_token_reduction="mean",
    preprocessing=IMAGENET_PHOTOS,
)

_CLASSES = ("conv_out", "batch_norm_out", "conv_auxiliary", "batch_norm_auxiliary", "auxiliary_3")
HF_DPT = HeadLayout(
    "huggingface_dpt",
    "transformers",
    "dpt",
    requires=(r"head\.head\.0\.weight", r"head\.head\.2\.weight"),
    names=without(OF_TRANSFORMERS, *_CLASSES),
    encoder=("dpt.", "backbone."),
    encoder_layouts=("huggingface", "huggingface_dinov2"),
    task=DEPTH,
    normed=False,
    taps="dpt",
    pads="",
    resize="bicubic",
    photos="minimal",
    side=384,
    resize_method="bilinear",
    rule="relu",
    unit="inverse",
)
HF_DPT_CLASSES = dataclasses.replace(
    HF_DPT,
    name="huggingface_dpt_classes",
    requires=(r"head\.head\.0\.weight", r"head\.head\.1\.weight"),
    names=without(OF_TRANSFORMERS, "out_1", "out_2"),
    task=SEGMENTATION,
    resize="bilinear",
    photos="windows",
    side=480,
    rule="",
    unit=None,
    options={"end": "classes"},
)
HF_DEPTH_ANYTHING = dataclasses.replace(
    HF_DPT,
    name="huggingface_depth_anything",
    requires=(r"head\.conv1\.weight",),
    names=without(OF_TRANSFORMERS, *_CLASSES, "before", out_1="head.conv1", out_2="head.conv2", out_3="head.conv3"),
    encoder=("backbone.",),
    encoder_layouts=("huggingface_dinov2",),
    normed=True,
    taps="even",
    resize="bilinear",
    side=518,
    resize_method=None,
    options={"exact_sizes": True, "end": "depth_of_image"},
)
HF_UPERNET = HeadLayout(
    "huggingface_upernet",
    "transformers",
    "upernet",
    requires=(r"decode_head\.psp_modules\.0\.1\.batch_norm\.weight",),
    names=upernet_names("batch_norm", "classifier", {}),
    encoder=("backbone.",) * 4,
    encoder_layouts=("huggingface_dinov2", "huggingface_dinov2_registers", "huggingface_dinov3", "huggingface_beit"),
    pads="",
    options={"neck": "none"},
)
