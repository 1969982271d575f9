"""The layouts of timm's class `Eva`: EVA (arXiv:2211.07636), EVA-02 (arXiv:2303.11331) and EVA-CLIP (arXiv:2303.15389).

And the authors' own of EVA-02. Files have query, key and value in one matrix or in three, and a gated MLP's first two
layers likewise. timm keeps three where the MLP has a LayerNorm inside, so such is what is written.
"""

import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from keras_vit.weights.dialects.dialect import Arrays, Folder, Makers
from keras_vit.weights.dialects.renames import Layers
from keras_vit.weights.dialects.timm_names import ATTENTION_POOLING, TIMM, TOKENS, with_prefix_rows, without_prefix_rows
from keras_vit.weights.reader import CheckpointError
from keras_vit.weights.sidecar.eva_json import eva_files
from keras_vit.weights.sidecar.folder_json import timm_opening

_QKV = ("q_proj", "k_proj", "v_proj")
_OF_E14 = (15360, 1792)  # widths of EVA-02-CLIP E/14, whose names are those of EVA-CLIP g/14
_OF_TIMM = (  # (the authors' word of EVA-02, timm's)
    (".attn.inner_attn_ln.", ".attn.norm."),
    (".mlp.ffn_ln.", ".mlp.norm."),
    (".mlp.w12.", ".mlp.fc1."),
    (".mlp.w1.", ".mlp.fc1_g."),
    (".mlp.w2.", ".mlp.fc1_x."),
    (".mlp.w3.", ".mlp.fc2."),
)
BLOCK: Layers = {
    "norm_1": "norm1",
    "attention/query": "attn.q_proj",
    "attention/key": "attn.k_proj",
    "attention/value": "attn.v_proj",
    "attention/norm": "attn.norm",
    "attention/out": "attn.proj",
    "layer_scale_1/gamma": "gamma_1",
    "norm_2": "norm2",
    "mlp/dense_1": "mlp.fc1",
    "mlp/gate": "mlp.fc1_g",
    "mlp/up": "mlp.fc1_x",
    "mlp/norm": "mlp.norm",
    "mlp/dense_2": "mlp.fc2",
    "mlp/down": "mlp.fc3",
    "layer_scale_2/gamma": "gamma_2",
}

PLAIN_BLOCK: Layers = {
    ours: BLOCK[ours] for ours in BLOCK if not str(ours).endswith(("/norm", "/gate", "/up", "/down"))
}
EVA_ENDS = ("patch_embedding/projection", "encoder_norm", "pooled_norm", "head")


def apart(arrays: Arrays, num_patches: int | None) -> Arrays:
    """Query, key and value as arrays of their own, and the two factors of a gated MLP, whose last layer is `fc3`."""
    found: Arrays = {}
    for name, array in arrays.items():
        block, _, part = name.partition(".attn.")
        if part in ("qkv.weight", "qkv.bias"):
            found |= dict(zip((f"{block}.attn.{of}{part[3:]}" for of in _QKV), split(name, array, 3), strict=True))
        elif part in ("q_bias", "v_bias"):
            found[f"{block}.attn.{part[0]}_proj.bias"] = array
        else:
            found[name] = array
    first, second = (found.get(f"blocks.0.mlp.fc{number}.weight") for number in "12")
    packed = first is not None and second is not None and first.shape[:1] == (2 * second.shape[-1],)
    if not packed and "blocks.0.mlp.fc1_g.weight" not in found:
        return found
    for name in list(found):
        if match := re.fullmatch(r"(blocks\.\d+\.mlp\.)fc([12])\.(weight|bias)", name):
            parts = ("fc1_g", "fc1_x") if match[2] == "1" else ("fc3",)
            names = [f"{match[1]}{part}.{match[3]}" for part in parts]
            found |= dict(zip(names, split(name, found.pop(name), len(names)), strict=True))
    return found


def split(name: str, array: np.ndarray, count: int) -> list[np.ndarray]:
    if array.ndim == 0 or array.shape[0] % count:
        raise CheckpointError(
            f"a fused matrix must have {count} equal parts in its rows.\nReceived: {name}, shape {array.shape}."
        )
    return np.split(array, count)


def _together(makers: Makers) -> Makers:
    """What `apart` takes apart as timm's class has it, whose MLP with a LayerNorm inside keeps all apart."""
    if any(name.endswith((".mlp.norm.weight", ".attn.q_norm.weight")) for name in makers):
        return makers
    found: Makers = {}
    for name, make in qkv_together(makers).items():
        if ".mlp.fc1_g." in name:
            found[name.replace("fc1_g", "fc1")] = joined([make, makers[name.replace("fc1_g", "fc1_x")]])
        elif ".mlp.fc1_x." not in name:
            found[name] = make
    return found


def qkv_together(makers: Makers) -> Makers:
    """Query, key and value in one matrix; and likewise their biases, unless the key has none."""
    found: Makers = {}
    for name, make in makers.items():
        block, _, part = name.partition(".attn.")
        whole = f"{block}.attn.k_proj.bias" in makers
        if part == "q_proj.weight" or (part == "q_proj.bias" and whole):
            leaf = part.rpartition(".")[2]
            found[f"{block}.attn.qkv.{leaf}"] = joined([makers[f"{block}.attn.{of}.{leaf}"] for of in _QKV])
        elif part in ("q_proj.bias", "v_proj.bias") and not whole:
            found[f"{block}.attn.{part[0]}_bias"] = make
        elif not part.startswith(_QKV):
            found[name] = make
    return found


def joined(makers: list[Callable[[], np.ndarray]]) -> Callable[[], np.ndarray]:
    return lambda: np.concatenate([make() for make in makers])


def written_names(names: Collection[str]) -> Callable[[str], str]:
    return lambda name: name.replace(".mlp.fc3.", ".mlp.fc2.")


def _named_by_timm(arrays: Arrays, num_patches: int | None) -> Arrays:
    return {_renamed(name, dict(_OF_TIMM)): array for name, array in arrays.items()}


def _named_by_authors(makers: Makers) -> Makers:
    """timm's names as the authors', who add a bias of query and value by itself also where the three are apart."""
    words = {theirs: ours for ours, theirs in reversed(_OF_TIMM)} | {".attn.q_proj.bias": ".attn.q_bias"}
    words |= {".mlp.fc3.": ".mlp.w3.", ".attn.v_proj.bias": ".attn.v_bias"}
    return {_renamed(name, words): make for name, make in makers.items()}


def _renamed(name: str, words: dict[str, str]) -> str:
    return next((name.replace(old, new) for old, new in words.items() if old in name), name)


def _computes(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """EVA-02, the one that has a gated MLP, turns queries and keys by coordinates scaled to a grid of 16.

    EVA-02-CLIP E/14 has its norms behind the branches, which its sizes alone tell.
    """
    pooled = {"map_prefix": "class_token/token" in tensors} if "pooling/probe" in tensors else {}
    kernel = tensors.get("block_00/mlp/dense_2/kernel")
    if kernel is not None and kernel.shape == _OF_E14:
        return {**pooled, "branch_norm": "behind"}
    if "block_00/mlp/gate/kernel" not in tensors:
        return pooled
    return pooled | {
        "rotary": "axial",
        "rotary_theta": 10000.0,
        "rotary_layout": "interleaved",
        "rotary_axes": "yx",
        "rotary_coordinates": "grid",
        "rotary_reference": 16,
    }


TIMM_EVA = dataclasses.replace(
    TIMM,
    name="timm_eva",
    requires=(r"patch_embed\.proj\.weight", "pos_embed", r"blocks\.0\.attn\.(q_bias|q_proj\.weight)"),
    forbids=(r".*relative_position_bias_table", r"blocks\.0\.mlp\.(w1|w12)\.weight"),
    ignores=("mask_token", r"lm_head\..*", r"(?!rope\.freqs$)(.*\.)?rope\..*"),
    names={
        ("", ""): TOKENS,
        ("block_{block:02}/", "blocks.{block}."): BLOCK,
        ("pooling/", "attn_pool."): ATTENTION_POOLING,
    },
    also={},
    read_names=lambda names: str,
    written_names=written_names,
    read_steps=(with_prefix_rows, apart),
    written_steps=(_together, without_prefix_rows),
    computes=_computes,
    folder=Folder(eva_files, timm_opening, epsilons=(1e-5,), says_rotary=True, always_resizes=True),
)
EVA02 = dataclasses.replace(
    TIMM_EVA,
    name="eva02",
    folder=None,
    software="the authors' EVA-02",
    norms_behind=False,
    requires=(*TIMM_EVA.requires[:2], r"blocks\.0\.attn\.q_bias", r"blocks\.0\.mlp\.(w1|w12)\.weight"),
    forbids=(),
    written_names=lambda names: str,
    read_steps=(_named_by_timm, *TIMM_EVA.read_steps),
    written_steps=(*TIMM_EVA.written_steps, _named_by_authors),
    resize_method="bicubic",
)
