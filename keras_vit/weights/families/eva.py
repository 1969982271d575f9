"""The layouts of timm's class `Eva`, and the authors' own of EVA-02.

EVA (arXiv:2211.07636), EVA-02 (arXiv:2303.11331), EVA-CLIP (arXiv:2303.15389), RoPE-ViT (arXiv:2403.13298) and timm's
own models with rotary positions. Files have query, key and value in one matrix or in three, and a gated MLP's first two
layers likewise. timm keeps three where the MLP has a LayerNorm inside, so such is what is written. Only the learned
frequencies of RoPE-ViT's mixed models are a tensor, `rope.freqs`, of all blocks together.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.families.layout import ANY, PLAIN_PARTS, Arrays, Folder, Makers
from keras_vit.weights.families.renames import Layers
from keras_vit.weights.families.timm import (
    ATTENTION_POOLING,
    POOL_WORDS,
    TIMM,
    TOKENS,
    add_prefix_rows,
    fold_prefix_rows,
    timm_config,
    timm_snippet,
)
from keras_vit.weights.read import CheckpointError

_QKV = ("q_proj", "k_proj", "v_proj")
_E14_WIDTHS = (15360, 1792)  # widths of EVA-02-CLIP E/14, whose names are those of EVA-CLIP g/14
_AUTHOR_NAMES = (  # (the authors' word of EVA-02, timm's)
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
    path: BLOCK[path] for path in BLOCK if not str(path).endswith(("/norm", "/gate", "/up", "/down"))
}
EVA_ENDS = ("patch_embedding/projection", "encoder_norm", "pooled_norm", "head")


def split_qkv(arrays: Arrays, num_patches: int | None) -> Arrays:
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


def _join_fused(makers: Makers) -> Makers:
    """The reverse of `split_qkv` for timm's class, whose MLP with a LayerNorm inside has all arrays separate."""
    if any(name.endswith((".mlp.norm.weight", ".attn.q_norm.weight")) for name in makers):
        return makers
    return join_gate(join_qkv(makers))


def join_gate(makers: Makers) -> Makers:
    """The gate of an MLP and its value in one matrix, whose last layer is `fc2`."""
    found: Makers = {}
    for name, make in makers.items():
        if ".mlp.fc1_g." in name:
            found[name.replace("fc1_g", "fc1")] = concatenate_lazily([make, makers[name.replace("fc1_g", "fc1_x")]])
        elif ".mlp.fc1_x." not in name:
            found[name] = make
    return found


def join_qkv(makers: Makers) -> Makers:
    """Query, key and value in one matrix; and likewise their biases, unless the key has none."""
    found: Makers = {}
    for name, make in makers.items():
        block, _, part = name.partition(".attn.")
        whole = f"{block}.attn.k_proj.bias" in makers
        if part == "q_proj.weight" or (part == "q_proj.bias" and whole):
            leaf = part.rpartition(".")[2]
            found[f"{block}.attn.qkv.{leaf}"] = concatenate_lazily([makers[f"{block}.attn.{of}.{leaf}"] for of in _QKV])
        elif part in ("q_proj.bias", "v_proj.bias") and not whole:
            found[f"{block}.attn.{part[0]}_bias"] = make
        elif not part.startswith(_QKV):
            found[name] = make
    return found


def concatenate_lazily(makers: list[Callable[[], np.ndarray]]) -> Callable[[], np.ndarray]:
    return lambda: np.concatenate([make() for make in makers])


def written_names(names: Collection[str]) -> Callable[[str], str]:
    return lambda name: name.replace(".mlp.fc3.", ".mlp.fc2.")


def _to_timm_names(arrays: Arrays, num_patches: int | None) -> Arrays:
    return {_renamed(name, dict(_AUTHOR_NAMES)): array for name, array in arrays.items()}


def _to_author_names(makers: Makers) -> Makers:
    """timm's names as the authors', who add a bias of query and value by itself also where the three are separate."""
    words = {new: old for old, new in reversed(_AUTHOR_NAMES)} | {".attn.q_proj.bias": ".attn.q_bias"}
    words |= {".mlp.fc3.": ".mlp.w3.", ".attn.v_proj.bias": ".attn.v_bias"}
    return {_renamed(name, words): make for name, make in makers.items()}


def _renamed(name: str, words: dict[str, str]) -> str:
    return next((name.replace(old, new) for old, new in words.items() if old in name), name)


def _defaults(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """EVA-02, the one that has a gated MLP, turns queries and keys by coordinates scaled to a grid of 16.

    EVA-02-CLIP E/14 has its norms after the branches, known only by its sizes.
    """
    pooled = {"pool_prefix_tokens": "class_token/token" in tensors} if "pooling/probe" in tensors else {}
    kernel = tensors.get("block_00/mlp/dense_2/kernel")
    if kernel is not None and kernel.shape == _E14_WIDTHS:
        return {**pooled, "norm_position": "post"}
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


# By the epsilon of their LayerNorms, for which there is no argument; all else is arguments.
_FOLDER_ARCHITECTURES = {1e-6: "eva02_base_patch14_224", 1e-5: "vit_pe_core_base_patch16_224"}


def _eva_files(facts: dict[str, Any], preprocessing: Preprocessing) -> dict[str, dict]:
    """The JSON files, by name, that timm reads; raises for a model that the class does not compute."""
    fields, rotary = facts["fields"], facts["fields"].get("rotary", "none")
    usual = {"norm": "layer", "proj_bias": True, "mlp_bias": True, "distilled": False, "activation": "gelu"}
    usual |= {"patch_bias": not facts["pre_norm"], "rotary": "none" if rotary == "none" else "axial"}
    usual |= {"rotary_coordinates": "grid"} if rotary != "none" else {}
    usual |= {"pool_prefix_tokens": facts["class_token"]} if facts["pooling"] == "map" else {}
    wrong = [f"{name}={value!r}" for name, value in fields.items() if value != usual.get(name, value)]
    if wrong or facts["layer_norm_epsilon"] not in _FOLDER_ARCHITECTURES:
        raise CheckpointError(
            "timm opens a folder of this layout as its class Eva, which computes exact GELU, an epsilon of 1e-6 or "
            "1e-5, a bias of patches unless a norm follows them, and attention pooling of all tokens.\n"
            f"Received: {', '.join(wrong)}, epsilon {facts['layer_norm_epsilon']}. Write a .safetensors file instead."
        )
    architecture = _FOLDER_ARCHITECTURES[facts["layer_norm_epsilon"]]
    return {"config.json": timm_config(facts, preprocessing, architecture, _folder_arguments(facts))}


def _folder_arguments(facts: dict[str, Any]) -> dict[str, Any]:
    """`model_args`; `None` would be the architecture's own."""
    fields, width = facts["fields"], facts["hidden_size"]
    half = 0.5  # so that timm, which rounds down, finds the width
    return {
        "img_size": list(facts["image_size"]),
        "patch_size": facts["patch_size"],
        "embed_dim": width,
        "depth": facts["num_layers"],
        "num_heads": facts["num_heads"],
        "mlp_ratio": (facts["mlp_dim"] + half) / width,
        "class_token": facts["class_token"],
        "num_reg_tokens": facts["registers"],
        "no_embed_class": bool(facts["registers"]),
        "global_pool": POOL_WORDS[facts["pooling"]],
        "attn_type": "rope" if facts["qkv_bias"] == "all" else "eva",
        "qkv_bias": facts["qkv_bias"] != "none",
        "qkv_fused": not facts["mlp_norm"],
        "swiglu_mlp": facts["gated_mlp"],
        "scale_mlp": facts["mlp_norm"],
        "scale_attn_inner": facts["attention_norm"],
        "use_post_norm": facts["norm_position"] == "post",
        "use_pre_transformer_norm": facts["pre_norm"],
        "use_post_transformer_norm": facts["final_norm"] == "tokens",
        "use_fc_norm": facts["final_norm"] == "pooled",
        **({} if facts["layer_scale"] == "none" else {"init_values": 1e-5}),
        "attn_only_layer_scale": facts["layer_scale"] == "attention",
        "attn_pool_num_heads": fields.get("map_heads") or facts["num_heads"],
        "attn_pool_mlp_ratio": ((fields.get("map_mlp_dim") or facts["mlp_dim"]) + half) / width,
        **_rotary_arguments(facts, fields),
    }


def _rotary_arguments(facts: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Arguments on rotary positions. Coordinates that are not scaled are scaled to the grid that they are of."""
    if fields.get("rotary", "none") == "none":
        return {"use_rot_pos_emb": False}
    side, grid = fields.get("rotary_reference"), [size // facts["patch_size"] for size in facts["image_size"]]
    return {
        "use_rot_pos_emb": True,
        "rope_type": "cat",
        "rope_temperature": fields["rotary_theta"],
        "rope_rotate_half": fields["rotary_layout"] == "half",
        "rope_grid_indexing": {"yx": "ij", "xy": "xy"}[fields["rotary_axes"]],
        "rope_grid_offset": fields.get("rotary_offset", 0.0),
        "ref_feat_shape": grid if side is None else [side, side],
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
    read_steps=(add_prefix_rows, split_qkv),
    written_steps=(_join_fused, fold_prefix_rows),
    defaults=_defaults,
    parts={
        **TIMM.parts,
        **dict.fromkeys(("proj_bias", "mlp_bias"), (True,)),
        "qkv_bias": ("all", "query_value", "none"),
        "layer_scale": ("both", "attention", "none"),
    },
    folder=Folder(_eva_files, timm_snippet, epsilons=(1e-5,), stores_rotary=True, always_resizes=True),
)
EVA02 = dataclasses.replace(
    TIMM_EVA,
    name="eva02",
    folder=None,
    software="the authors' EVA-02",
    supports_post_norm=False,
    requires=(*TIMM_EVA.requires[:2], r"blocks\.0\.attn\.q_bias", r"blocks\.0\.mlp\.(w1|w12)\.weight"),
    forbids=(),
    written_names=lambda names: str,
    read_steps=(_to_timm_names, *TIMM_EVA.read_steps),
    written_steps=(*TIMM_EVA.written_steps, _to_author_names),
    parts={
        **PLAIN_PARTS,
        "qkv_bias": ("query_value",),
        "gated_mlp": (True,),
        "attention_norm": (True, False),
        "mlp_norm": (True, False),
        "final_norm": ("tokens", "pooled", "none"),
    },
    resize_method="bicubic",
)
_GRID: Mapping[str, Any] = {"rotary_layout": "interleaved", "rotary_coordinates": "grid"}
AXIAL: Mapping[str, Any] = {"rotary": "axial", "rotary_theta": 100.0, "rotary_axes": "xy", **_GRID}
MIXED: Mapping[str, Any] = {"rotary": "mixed", "rotary_theta": 10.0, "rotary_axes": "xy", **_GRID}
TIMM_ROTARY: Mapping[str, Any] = {  # timm's own models
    **{"rotary": "axial", "rotary_theta": 10000.0, "rotary_axes": "yx", "rotary_reference": 16, **_GRID}
}
_FREQUENCIES = "rotary_positions_00/frequencies"
_FREQUENCIES_NAME = "rope.freqs"
_ROPE_BLOCK = ("block_{block:02}/", "blocks.{block}.")


def _split_frequencies(arrays: Arrays, num_patches: int | None) -> Arrays:
    """The learned frequencies, `(2, L, A, D/A/2)` in the file, as an array for each block."""
    found = dict(arrays)
    frequencies = found.pop(_FREQUENCIES_NAME, None)
    if frequencies is None:
        return found
    if frequencies.ndim != 4 or len(frequencies) != 2:
        raise CheckpointError(
            "the learned frequencies must be those of 2 axes, all blocks, heads and pairs of channels.\n"
            f"Received: {_FREQUENCIES_NAME}, shape {frequencies.shape}."
        )
    return found | {f"{_FREQUENCIES_NAME}.{block}.f": frequencies[:, block] for block in range(frequencies.shape[1])}


def _stack_frequencies(makers: Makers) -> Makers:
    names = [name for name in makers if name.startswith(f"{_FREQUENCIES_NAME}.")]
    if not names:
        return makers
    parts = [makers[f"{_FREQUENCIES_NAME}.{block}.f"] for block in range(len(names))]
    others = {name: make for name, make in makers.items() if name not in names}
    return others | {_FREQUENCIES_NAME: lambda: np.stack([part() for part in parts], axis=1)}


def _fold_class_row(makers: Makers) -> Makers:
    """Adds the class token's row of the table to the token, since timm's table has none."""
    token, table = makers.get("cls_token"), makers.get("pos_embed")
    if token is None or table is None:
        return makers
    return makers | {"cls_token": functools.partial(_sum_class_row, token, table), "pos_embed": lambda: table()[:, 1:]}


def _sum_class_row(token: Callable[[], np.ndarray], table: Callable[[], np.ndarray]) -> np.ndarray:
    return token() + table()[:, :1]


def _rope_defaults(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return dict(MIXED if _FREQUENCIES in tensors else AXIAL)


TIMM_ROPE = dataclasses.replace(
    TIMM_EVA,
    name="timm_rope",
    folder=None,
    requires=(r"patch_embed\.proj\.weight", "cls_token", r"blocks\.0\.gamma_1", r"blocks\.0\.attn\.qkv\.bias"),
    forbids=("reg_token", r".*relative_position_bias_table", r"norm_pre\.weight"),
    names={
        ("", ""): {path: TOKENS[path] for path in ("class_token/token", "position_embedding/table", *EVA_ENDS)},
        _ROPE_BLOCK: PLAIN_BLOCK,
        ("rotary_positions_{block:02}/", f"{_FREQUENCIES_NAME}.{{block}}."): {"frequencies": "f"},
    },
    read_steps=(add_prefix_rows, split_qkv, _split_frequencies),
    written_steps=(join_qkv, _fold_class_row, _stack_frequencies),
    defaults=_rope_defaults,
    parts={
        **PLAIN_PARTS,
        "layer_scale": ("both",),
        "final_norm": ("tokens", "pooled"),
        "position_table": (True, False),
        "prefix_rows": ("none",),
    },
    position_embedding="none",
)
TIMM_ROPE_REGISTERS = dataclasses.replace(
    TIMM_EVA,
    name="timm_rope_registers",
    folder=None,
    requires=(r"patch_embed\.proj\.weight", "reg_token", r"blocks\.0\.gamma_1", r"blocks\.0\.attn\.qkv\.weight"),
    forbids=(
        "cls_token",
        "pos_embed",
        r".*relative_position_bias_table",
        r"norm_pre\.weight",
        r"blocks\.0\.attn\.qkv\.bias",
    ),
    names={
        ("", ""): {path: TOKENS[path] for path in ("register_tokens/tokens", *EVA_ENDS)},
        _ROPE_BLOCK: PLAIN_BLOCK,
    },
    read_steps=(split_qkv,),
    written_steps=(join_qkv,),
    defaults=lambda tensors: dict(TIMM_ROTARY),
    parts={
        **PLAIN_PARTS,
        "qkv_bias": ("query_value", "none"),
        "layer_scale": ("both",),
        "final_norm": ("pooled", "tokens"),
        "registers": ANY,
        "class_token": (False,),
        "position_table": (False,),
    },
    position_embedding="none",
)
