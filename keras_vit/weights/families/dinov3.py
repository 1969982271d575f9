"""The layouts of DINOv3 (arXiv:2508.10104): the authors', transformers' and timm's; and Sapiens2 (arXiv:2604.21681).

EUPE (arXiv:2603.22387) and LingBot-Vision (arXiv:2607.05247) are the same models. No tensor says the rotary positions
but the authors' `rope_embed.periods`, bfloat16 values that their class loads. They are read as weights;
`rotary_periods="computed"` takes the formula, as timm and transformers do. Sapiens2 has RMSNorm, normed queries and
keys, and keys and values that groups of heads share.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_vit.config.heads import DEPTH
from keras_vit.weights.families.dense_heads import OF_MMSEG, HeadLayout, without
from keras_vit.weights.families.dinov2 import DINOV2, add_empty_registers, drop_empty_registers
from keras_vit.weights.families.eva import (
    BLOCK,
    EVA_ENDS,
    PLAIN_BLOCK,
    TIMM_EVA,
    concatenate_lazily,
    join_gate,
    join_qkv,
    split,
    split_qkv,
)
from keras_vit.weights.families.layout import (
    ANY,
    PLAIN_PARTS,
    SQUASHED_PHOTOS,
    SWITCHED,
    Arrays,
    Makers,
    ModelType,
    Names,
)
from keras_vit.weights.families.renames import MLP, Layers
from keras_vit.weights.families.timm import TOKENS
from keras_vit.weights.metadata.record import rope_fields
from keras_vit.weights.read import CheckpointError

ROTARY: Mapping[str, Any] = {
    "rotary": "axial",
    "rotary_theta": 100.0,
    "rotary_layout": "half",
    "rotary_axes": "yx",
    "rotary_coordinates": "unit",
}
PERIODS = "rotary_positions/periods"
_QKV = ("q_proj", "k_proj", "v_proj")
_BLOCK = "block_{block:02}/"


def _defaults(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What no tensor says, and whether the periods are stored."""
    return {**ROTARY, "rotary_periods": "stored" if PERIODS in tensors else "computed"}


def _split_qkv(arrays: Arrays, num_patches: int | None) -> Arrays:
    """Query, key and value as arrays of their own, and no bias of the key where the file masks it.

    Masked biases are no part of the model.
    """
    found: Arrays = {}
    for name, array in arrays.items():
        block, _, part = name.partition(".attn.")
        if part in ("qkv.weight", "qkv.bias"):
            parts = dict(zip(_QKV, split(name, array, 3), strict=True))
            mask = arrays.get(f"{block}.attn.qkv.bias_mask") if part == "qkv.bias" else None
            if mask is not None:
                parts = _apply_bias_mask(f"{name}_mask", parts, mask)
            found |= {f"{block}.attn.{of}{part[3:]}": each for of, each in parts.items()}
        elif part != "qkv.bias_mask":
            found[name] = array
    return found


def _apply_bias_mask(name: str, parts: Arrays, mask: np.ndarray) -> Arrays:
    """The biases that a mask leaves, which is 0 for the key and 1 for query and value."""
    if not all(np.all(each == (of != "k_proj")) for of, each in zip(_QKV, split(name, mask, 3), strict=True)):
        raise CheckpointError(
            "the mask of the biases of query, key and value must be 1, 0 and 1, as DINOv3's.\n"
            f"Received: {name} with {sorted({*np.unique(mask).tolist()})[:5]}."
        )
    return {of: each for of, each in parts.items() if of != "k_proj"}


def _join_qkv(makers: Makers) -> Makers:
    """The reverse of `_split_qkv`, with zeros for masked biases."""
    found: Makers = {}
    for name, make in makers.items():
        block, _, part = name.partition(".attn.")
        if part in ("q_proj.weight", "q_proj.bias"):
            parts = [makers.get(f"{block}.attn.{of}{part[6:]}") for of in _QKV]
            empty = functools.partial(_full_like, make, 0)
            found[f"{block}.attn.qkv{part[6:]}"] = concatenate_lazily([each or empty for each in parts])
            if None in parts:
                found[f"{name.partition('q_proj')[0]}qkv.bias_mask"] = concatenate_lazily(
                    [functools.partial(_full_like, make, int(each is not None)) for each in parts]
                )
        elif not part.startswith(_QKV):
            found[name] = make
    return found


def _full_like(make: Callable[[], np.ndarray], value: int) -> np.ndarray:
    return np.full_like(make(), value)


def _read_names(names: Collection[str]) -> Callable[[str], str]:
    """The names of version 5 in memory too. A gated MLP has some of a plain one's, and gets others."""
    gated = any(name.endswith("mlp.gate_proj.weight") for name in names)

    def spelled(name: str) -> str:
        name = name.removeprefix("model.")
        return name.replace("mlp.up_", "mlp.gated_up_").replace("mlp.down_", "mlp.gated_down_") if gated else name

    return spelled


def _written_names(names: Collection[str]) -> Callable[[str], str]:
    return lambda name: name.replace("mlp.gated_", "mlp.")


_GATED: Layers = {"mlp/gate": "mlp.w1", "mlp/up": "mlp.w2", "mlp/down": "mlp.w3"}
DINOV3 = dataclasses.replace(
    DINOV2,
    name="dinov3",
    software="the authors' DINOv3",
    requires=(
        *(r"patch_embed\.proj\.weight", "storage_tokens", "cls_token", r"norm\.weight"),
        *(r"blocks\.0\.ls1\.gamma", r"blocks\.0\.attn\.qkv\.weight"),
    ),
    forbids=("pos_embed", "register_tokens"),
    ignores=("mask_token", r"local_cls_norm\..*", r"projectors\..*"),  # of pre-training
    names={
        ("", ""): {
            "class_token/token": "cls_token",
            "register_tokens/tokens": "storage_tokens",
            "patch_embedding/projection": "patch_embed.proj",
            PERIODS: "rope_embed.periods",
            "encoder_norm": "norm",
        },
        (_BLOCK, "blocks.{block}."): {
            "norm_1": "norm1",
            "attention/query": "attn.q_proj",
            "attention/key": "attn.k_proj",
            "attention/value": "attn.v_proj",
            "attention/out": "attn.proj",
            "layer_scale_1/gamma": "ls1.gamma",
            "norm_2": "norm2",
            **MLP,
            **_GATED,
            "layer_scale_2/gamma": "ls2.gamma",
        },
    },
    read_steps=(_split_qkv,),
    written_steps=(*DINOV2.written_steps, _join_qkv),
    defaults=_defaults,
    parts={**DINOV2.parts, "qkv_bias": ("query_value", "none"), "position_table": (False,)},
    layer_norm_epsilon=1e-5,
    position_embedding="none",
    preprocessing=SQUASHED_PHOTOS,
)
HF_DINOV3 = dataclasses.replace(
    DINOV3,
    name="huggingface_dinov3",
    software="transformers",
    requires=(
        *(r"embeddings\.patch_embeddings\.weight", r"embeddings\.cls_token", r"norm\.weight"),
        *(r"embeddings\.register_tokens", r"(model\.)?layer\.0\.attention\.q_proj\.weight"),
    ),
    forbids=(),
    ignores=(r"embeddings\.mask_token",),
    prefixes=("",),
    model_types=("dinov3_vit",),
    names={
        ("", ""): {
            "class_token/token": "embeddings.cls_token",
            "register_tokens/tokens": "embeddings.register_tokens",
            "patch_embedding/projection": "embeddings.patch_embeddings",
            "encoder_norm": "norm",
        },
        (_BLOCK, "layer.{block}."): {
            "norm_1": "norm1",
            **{f"attention/{part}": f"attention.{part[0]}_proj" for part in ("query", "key", "value", "out")},
            "layer_scale_1/gamma": "layer_scale1.lambda1",
            "norm_2": "norm2",
            "mlp/dense_1": "mlp.up_proj",
            "mlp/dense_2": "mlp.down_proj",
            "mlp/gate": "mlp.gate_proj",
            "mlp/up": "mlp.gated_up_proj",
            "mlp/down": "mlp.gated_down_proj",
            "layer_scale_2/gamma": "layer_scale2.lambda1",
        },
    },
    read_names=_read_names,
    written_names=_written_names,
    read_steps=(drop_empty_registers,),
    written_steps=(*DINOV2.written_steps, add_empty_registers),
    parts={
        **DINOV3.parts,
        "qkv_bias": ("all", "query_value", "none"),
        "proj_bias": (True, False),
        "mlp_bias": (True, False),
    },
)
TYPES = {
    "dinov3_vit": ModelType(
        *("DINOv3ViT", (HF_DINOV3.name,), SWITCHED, {"use_gated_mlp": False}, rope_fields), num_heads=6, width=384
    )
}
TIMM_DINOV3 = dataclasses.replace(
    TIMM_EVA,
    name="timm_dinov3",
    folder=None,
    requires=(
        r"patch_embed\.proj\.weight",
        "reg_token",
        "cls_token",
        r"blocks\.0\.gamma_1",
        r"blocks\.0\.attn\.qkv\.weight",
    ),
    forbids=("pos_embed", r".*relative_position_bias_table", r"blocks\.0\.attn\.qkv\.bias", r"norm_pre\.weight"),
    names={
        ("", ""): {path: TOKENS[path] for path in ("register_tokens/tokens", "class_token/token", *EVA_ENDS)},
        (_BLOCK, "blocks.{block}."): {
            **PLAIN_BLOCK,
            "mlp/gate": "mlp.fc1_g",
            "mlp/up": "mlp.fc1_x",
            "mlp/down": "mlp.fc3",
        },
    },
    read_steps=(split_qkv,),
    written_steps=(join_qkv,),
    defaults=_defaults,
    parts={**DINOV3.parts, "final_norm": ("tokens", "pooled")},
    layer_norm_epsilon=1e-5,
    position_embedding="none",
    normalizes_means=False,
    preprocessing=SQUASHED_PHOTOS,
)


def _sapiens_defaults(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return dict(ROTARY)  # in float32; the authors' code makes the angles in bfloat16


_QK_NORMS: Layers = {f"attention/{part}_norm": f"attn.{part[0]}_norm" for part in ("query", "key")}
_ENDS = ("class_token/token", "register_tokens/tokens", "patch_embedding/projection", "encoder_norm", "head")
_NAMES: Names = {
    ("", ""): {path: name for path, name in TIMM_EVA.names["", ""].items() if path in _ENDS},
    ("block_{block:02}/", "blocks.{block}."): {
        **{path: name for path, name in BLOCK.items() if path not in ("attention/norm", "mlp/norm")},
        **_QK_NORMS,
    },
}
TIMM_SAPIENS2 = dataclasses.replace(
    TIMM_EVA,
    name="timm_sapiens2",
    requires=(
        *(r"patch_embed\.proj\.weight", "reg_token", r"blocks\.0\.attn\.q_norm\.weight"),
        r"blocks\.0\.attn\.q_proj\.weight",
    ),
    forbids=("pos_embed", r"blocks\.0\.attn\.q_norm\.bias"),
    names=_NAMES,
    defaults=_sapiens_defaults,
    parts={
        **PLAIN_PARTS,
        "norm": ("rms",),
        "gated_mlp": (True, False),
        "layer_scale": ("attention",),
        "qk_norm": ("head",),
        "registers": ANY,
        "position_table": (False,),
    },
    position_embedding="none",
    written_steps=(join_gate,),
)
_SAPIENS_NAMES = (  # (the authors' word, timm's)
    ("patch_embed.projection.", "patch_embed.proj."),
    ("storage_tokens", "reg_token"),
    (".ln1.", ".norm1."),
    (".ln2.", ".norm2."),
    (".attn.gamma.weight", ".gamma_1"),
    *((f".attn.w{letter}.", f".attn.{letter}_proj.") for letter in "qkv"),
    (".ffn.w12.", ".mlp.fc1."),
    (".ffn.w3.", ".mlp.fc2."),
)


def _to_timm_names(arrays: Arrays, num_patches: int | None) -> Arrays:
    return {_spelled(name, _SAPIENS_NAMES): array for name, array in arrays.items()}


def _to_sapiens_names(makers: Makers) -> Makers:
    """Of the authors, and of transformers, whose class writes these."""
    words = [(new, old) for old, new in _SAPIENS_NAMES] + [(".mlp.fc3.", ".ffn.w3.")]
    return {_spelled(name, words): make for name, make in makers.items()}


def _spelled(name: str, words: Iterable[tuple[str, str]]) -> str:
    last = {"ln1.weight": "norm.weight", "norm.weight": "ln1.weight"}
    return last.get(name) or next((name.replace(old, new) for old, new in words if old in name), name)


HF_SAPIENS2 = dataclasses.replace(
    TIMM_SAPIENS2,
    name="huggingface_sapiens2",
    software="transformers",
    folder=None,
    requires=(
        *(r"patch_embed\.projection\.weight", "storage_tokens", r"blocks\.0\.attn\.wq\.weight"),
        r"blocks\.0\.ffn\.w12\.weight",
    ),
    ignores=(*TIMM_SAPIENS2.ignores, r"embeddings\.mask_token"),
    model_types=("sapiens2",),
    parts={**TIMM_SAPIENS2.parts, "qk_norm": ("head", "none")},
    names={**_NAMES, ("", ""): {path: name for path, name in _NAMES["", ""].items() if path != "head"}},
    read_steps=(drop_empty_registers, _to_timm_names, *TIMM_SAPIENS2.read_steps),
    written_steps=(*TIMM_SAPIENS2.written_steps, _to_sapiens_names, add_empty_registers),
    written_names=lambda names: str,
    preprocessing=SQUASHED_PHOTOS,
)


def _read_sapiens2(config: dict[str, Any], place: Path) -> dict[str, Any]:
    of_layers = config.get("num_key_value_heads_per_layer")
    fields = rope_fields(config, place) | {"qk_norm": "head" if config.get("use_qk_norm", True) else "none"}
    return fields | ({"kv_heads": tuple(of_layers)} if isinstance(of_layers, list) else {})


TYPES["sapiens2"] = ModelType(
    "Sapiens2", (HF_SAPIENS2.name,), SWITCHED, read=_read_sapiens2, epsilon="rms_norm_eps", num_heads=16, width=1024
)
DINOV3_SEGMENTATION = HeadLayout(
    "dinov3_segmentation",
    "the authors' DINOv3",
    "linear",
    requires=(r"batchnorm_layer\.weight", r"conv\.weight"),
    names={("", ""): {"batch_norm": "batchnorm_layer", "classifier": "conv"}},
    options={"dropout_rate": 0.1},
)
DINOV3_DEPTH = dataclasses.replace(
    DINOV3_SEGMENTATION,
    name="dinov3_depth",
    requires=(r"conv_depth\.weight",),
    names={("", ""): {"batch_norm": "batchnorm_layer", "classifier": "conv_depth"}},
    task=DEPTH,
    photos="own",
    rule="bins",
    unit="metres",
    options={},
)
DINOV3_DPT = dataclasses.replace(
    DINOV3_DEPTH,
    name="dinov3_dpt",
    kind="dpt",
    requires=(r"conv_depth\.head\.0\.weight",),
    names=without(OF_MMSEG, "batch_norm_before"),
    options={"before": "relu"},
)
