"""The layouts of DINOv2 (arXiv:2304.07193, with registers arXiv:2309.16588) and TIPS (arXiv:2410.16512, 2604.12012).

DINOv2 with and without registers are rows of their own, since the software resizes positions by another rule. TIPS is
DINOv2's block with two class tokens, the second one as `register_tokens`, a register here. With a gated MLP its names
are DINOv2's too, whose files have another number of registers. With one register a `config.json` separates them.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np

from keras_vit.config.heads import DEPTH
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.families.dense_heads import OF_DEPTH_ANYTHING, OF_MMSEG, HeadLayout, without
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
    find_shape,
)
from keras_vit.weights.families.renames import MLP, TORCH, Layers
from keras_vit.weights.families.transformers import transformers_snippet, written_config
from keras_vit.weights.metadata.processors import IMAGE_PROCESSOR, transformers_processor
from keras_vit.weights.metadata.record import swiglu_width
from keras_vit.weights.read import CheckpointError

_REGISTERS = "register_tokens/tokens"
_TOKENS: Layers = {
    "class_token/token": "cls_token",
    "mask_token/token": "mask_token",
    "position_embedding/table": "pos_embed",
    "patch_embedding/projection": "patch_embed.proj",
    "encoder_norm": "norm",
}
_GATED: Layers = {("mlp/gate", "mlp/up"): "mlp.w12", "mlp/down": "mlp.w3"}
_HF_GATED: Layers = {("mlp/gate", "mlp/up"): "mlp.weights_in", "mlp/down": "mlp.weights_out"}
_PHOTOS = dataclasses.replace(IMAGENET_PHOTOS, resize="crop", crop_fraction=224 / 256)


def _zeros_of(class_token: Callable[[], np.ndarray]) -> np.ndarray:
    return np.zeros_like(class_token()[0])  # (1, D)


def _add_mask_token(makers: Makers) -> Makers:
    """Adds zeros as the token of masked pre-training, without which the software opens no file, if there is none."""
    if any(name.endswith("mask_token") for name in makers):
        return makers
    for name, make in makers.items():
        if name.endswith("cls_token"):
            mask = name.replace("cls_token", "mask_token")
            return makers | {mask: functools.partial(_zeros_of, make)}
    return makers


DINOV2 = Layout(
    "dinov2",
    "the authors' DINOv2",
    ".safetensors",
    TORCH,
    requires=(
        *(r"patch_embed\.proj\.weight", "mask_token", "cls_token", r"norm\.weight"),
        *(r"blocks\.0\.ls1\.gamma", r"blocks\.0\.attn\.qkv\.bias"),
    ),
    forbids=("register_tokens",),
    ignores=("mask_token",),  # of masked pre-training
    names={
        ("", ""): _TOKENS,
        ("block_{block:02}/", "blocks.{block}."): {
            "norm_1": "norm1",
            ("attention/query", "attention/key", "attention/value"): "attn.qkv",
            "attention/out": "attn.proj",
            "layer_scale_1/gamma": "ls1.gamma",
            "norm_2": "norm2",
            **MLP,
            **_GATED,
            "layer_scale_2/gamma": "ls2.gamma",
        },
    },
    written_steps=(_add_mask_token,),
    parts={
        **PLAIN_PARTS,
        "layer_scale": ("both",),
        "gated_mlp": (False, True),
        "registers": ANY,
        "prefix_rows": ("all", "class"),
    },
    activation="gelu",
    layer_norm_epsilon=1e-6,
    resize_method="bicubic_offset",
    preprocessing=_PHOTOS,
)
DINOV2_REGISTERS = dataclasses.replace(
    DINOV2,
    name="dinov2_registers",
    requires=(*DINOV2.requires, "register_tokens"),
    forbids=(r"blocks\.0\.mlp\.c_fc\.weight",),  # TIPS
    names={**DINOV2.names, ("", ""): {**_TOKENS, _REGISTERS: "register_tokens"}},
    resize_method="bicubic_antialias",
)

_PREFIX = r"(dinov2(_with_registers)?\.)?"  # of all but the classifier, if there is one


def _written_names(prefix: str) -> Callable[[Collection[str]], Callable[[str], str]]:
    """The names of the encoder, which have a prefix in a model with a classifier."""

    def written(names: Collection[str]) -> Callable[[str], str]:
        classifies = "classifier.weight" in names
        return lambda name: name if name.startswith("classifier.") or not classifies else prefix + name

    return written


def drop_empty_registers(arrays: Arrays, num_patches: int | None) -> Arrays:
    """transformers has an array of no registers."""
    ends = ("register_tokens", "storage_tokens")
    return {name: array for name, array in arrays.items() if array.size or not name.endswith(ends)}


def add_empty_registers(makers: Makers) -> Makers:
    """Adds an array of no registers, which transformers wants."""
    for token, name in (("embeddings.cls_token", "embeddings.register_tokens"), ("cls_token", "storage_tokens")):
        if token in makers:
            return {name: lambda make=makers[token]: make()[:, :0]} | makers
    return makers


_EMBEDDINGS: Layers = {
    "class_token/token": "embeddings.cls_token",
    "mask_token/token": "embeddings.mask_token",
    "position_embedding/table": "embeddings.position_embeddings",
    "patch_embedding/projection": "embeddings.patch_embeddings.projection",
    "encoder_norm": "layernorm",
    "head": "classifier",
}


def _files(facts: dict[str, Any], preprocessing: Preprocessing) -> dict[str, dict]:
    """The JSON files, by name, that transformers reads, with or without registers."""
    width, mlp_dim, gated = facts["hidden_size"], facts["mlp_dim"], facts["gated_mlp"]
    ratios = [4, mlp_dim / width, 1.5 * mlp_dim / width]
    width_of = swiglu_width if gated else int
    ratio = next((ratio for ratio in ratios if width_of(int(width * ratio)) == mlp_dim), None)
    if ratio is None or facts["qkv_bias"] == "query_value":
        raise CheckpointError(
            "the config.json of transformers' DINOv2 says the MLP by its share of the width, and has all biases or "
            f"none.\nReceived: mlp_dim={mlp_dim}, width {width}, qkv_bias={facts['qkv_bias']!r}. Write a .safetensors "
            "file instead of a folder."
        )
    kind = "dinov2_with_registers" if facts["registers"] else "dinov2"
    task = "ForImageClassification" if facts["classes"] else "Model"
    mlp = {"mlp_ratio": int(ratio) if ratio == int(ratio) else ratio}
    words = {"use_swiglu_ffn": gated} | ({"num_register_tokens": facts["registers"]} if facts["registers"] else {})
    config = written_config(kind, TYPES[kind].class_name + task, facts, mlp, **words)
    processor = transformers_processor(preprocessing, preprocessing.image_size or facts["image_size"])
    return {"config.json": config, IMAGE_PROCESSOR: processor}


_WORDS = (*SCALED, "qkv_bias")
_TIPSV2 = ModelType("Tipsv2", ("huggingface_tipsv2", "dinov2_registers"), (*_WORDS, "num_register_tokens"))
TYPES = {
    "dinov2": ModelType("Dinov2", ("huggingface_dinov2",), _WORDS, {"qkv_bias": True}),
    "dinov2_with_registers": ModelType(
        "Dinov2WithRegisters", ("huggingface_dinov2_registers",), (*_WORDS, "num_register_tokens"), {"qkv_bias": True}
    ),
    "dinov2_registers": ModelType("", ("dinov2_registers",), SCALED),  # which a user writes for a file without metadata
    **dict.fromkeys(("tipsv2", "tipsv2_vision_model"), _TIPSV2),
}
HF_DINOV2 = dataclasses.replace(
    DINOV2,
    name="huggingface_dinov2",
    software="transformers",
    requires=(
        *(rf"{_PREFIX}embeddings\.patch_embeddings\.projection\.weight", rf"{_PREFIX}embeddings\.cls_token"),
        *(rf"{_PREFIX}layernorm\.weight", rf"{_PREFIX}encoder\.layer\.0\.layer_scale1\.lambda1"),
    ),
    forbids=(rf"{_PREFIX}embeddings\.register_tokens",),
    ignores=(rf"{_PREFIX}embeddings\.mask_token",),
    read_names=lambda names: lambda name: re.sub(f"^{_PREFIX}", "", name),
    written_names=_written_names("dinov2."),
    classifier={"pooling": "token_gap"},
    parts={**DINOV2.parts, "qkv_bias": ("all", "none")},
    names={
        ("", ""): _EMBEDDINGS,
        ("block_{block:02}/", "encoder.layer.{block}."): {
            "norm_1": "norm1",
            **{f"attention/{part}": f"attention.attention.{part}" for part in ("query", "key", "value")},
            "attention/out": "attention.output.dense",
            "layer_scale_1/gamma": "layer_scale1.lambda1",
            "norm_2": "norm2",
            **MLP,
            **_HF_GATED,
            "layer_scale_2/gamma": "layer_scale2.lambda1",
        },
    },
    resize_method="bicubic",
    folder=Folder(_files, transformers_snippet, stores_epsilon=True, has_single_side=True),
)
HF_DINOV2_REGISTERS = dataclasses.replace(
    HF_DINOV2,
    name="huggingface_dinov2_registers",
    requires=(*HF_DINOV2.requires, rf"{_PREFIX}embeddings\.register_tokens"),
    forbids=(),
    read_steps=(drop_empty_registers,),
    written_steps=(*HF_DINOV2.written_steps, add_empty_registers),
    written_names=_written_names("dinov2_with_registers."),
    names={**HF_DINOV2.names, ("", ""): {**_EMBEDDINGS, _REGISTERS: "embeddings.register_tokens"}},
    resize_method="bicubic_antialias",
)


def _has_one_register(arrays: Iterable[str]) -> bool:
    """Whether there are the tokens of TIPS, or an MLP that DINOv2 does not have."""
    shape = find_shape(arrays, "register_tokens")
    return shape is None or shape[1:-1] == (1,) or any(".c_fc." in name for name in arrays)


_BLOCK = ("block_{block:02}/", "blocks.{block}.")
HF_TIPSV2 = dataclasses.replace(
    DINOV2_REGISTERS,
    name="huggingface_tipsv2",
    software="transformers",
    model_types=("tipsv2_vision_model", "tipsv2"),
    like=("dinov2_registers",),
    fits=_has_one_register,
    requires=tuple(name for name in DINOV2_REGISTERS.requires if "qkv" not in name),
    forbids=(r"blocks\.0\.mlp\.fc1\.weight",),
    names={
        **DINOV2_REGISTERS.names,
        _BLOCK: {
            **DINOV2_REGISTERS.names[_BLOCK],
            "mlp/dense_1": "mlp.c_fc",
            "mlp/dense_2": "mlp.c_proj",
        },
    },
    resize_method="bilinear_antialias",
    preprocessing=Preprocessing(image_size=None, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), antialias=True),
)
TIPS = dataclasses.replace(HF_TIPSV2, name="tips", software="the authors' TIPS", suffix=".npz", model_types=(), like=())

DINOV2_SEGMENTATION = HeadLayout(
    "dinov2_segmentation",
    "the authors' DINOv2",
    "linear",
    requires=(r"bn\.weight", r"conv_seg\.weight"),
    names={("", ""): {"batch_norm": "bn", "classifier": "conv_seg"}},
    prefix="decode_head.",
    taps="last",  # of four: their "ms"
)
DINOV2_DEPTH = HeadLayout(
    "dinov2_depth",
    "the authors' DINOv2",
    "linear",
    requires=(r"conv_depth\.weight",),
    names={("", ""): {"classifier": "conv_depth"}},
    prefix="decode_head.",
    task=DEPTH,
    normed=False,
    class_token=True,
    photos="own",
    rule="bins",
    unit="metres",
    options={"upsample": 4},
)
DINOV2_DPT = dataclasses.replace(
    DINOV2_DEPTH,
    name="dinov2_dpt",
    kind="dpt",
    requires=(r"conv_depth\.head\.0\.weight",),
    names=without(OF_MMSEG, "batch_norm_before"),
    rule="range",
    options={"before": "relu"},
)
DEPTH_ANYTHING = HeadLayout(
    "depth_anything",
    "the authors' Depth Anything",
    "dpt",
    requires=(r"scratch\.output_conv1\.weight",),
    names=OF_DEPTH_ANYTHING,
    prefix="depth_head.",
    encoder=("pretrained.",),
    encoder_layouts=("dinov2",),
    task=DEPTH,
    pads="",
    photos="lower_bound",
    side=518,
    rule="relu",
    unit="inverse",
    options={"exact_sizes": True, "end": "depth_of_image"},
)
