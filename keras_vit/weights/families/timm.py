"""The layouts of timm's Vision Transformers: kernels as torch has them, and query, key and value in one matrix.

Two are image towers of language models: that of Qwen3-VL and Qwen3.5 (arXiv:2511.21631), and DeepSeek-V4's. The tokens
are those of timm's `forward_features`: what merges patches after them for the language model is left out.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from keras_vit.config.position_tables import square_grid
from keras_vit.weights.families.dense_heads import OF_MMSEG, HeadLayout, without
from keras_vit.weights.families.layout import ANY, IMAGENET_PHOTOS, PLAIN_PARTS, Arrays, Folder, Layout, Makers
from keras_vit.weights.families.renames import TORCH, Layers
from keras_vit.weights.metadata.timm import timm_files, timm_snippet, tower_files
from keras_vit.weights.read import CheckpointError

_BACKBONE = "patch_embed.backbone."
_MLP: Layers = {"mlp/dense_1": "mlp.fc1", "mlp/dense_2": "mlp.fc2"}
TOKENS: Layers = {
    "class_token/token": "cls_token",
    "distillation_token/token": "dist_token",
    "position_embedding/table": "pos_embed",
    "patch_embedding/projection": "patch_embed.proj",
    "register_tokens/tokens": "reg_token",
    "pre_norm": "norm_pre",
    "encoder_norm": "norm",
    "pooled_norm": "fc_norm",
    "head": "head",
    "head_distillation": "head_dist",
}
ATTENTION_POOLING: Layers = {
    "probe": "latent",
    "attention/query": "q",
    ("attention/key", "attention/value"): "kv",
    "attention/out": "proj",
    "norm": "norm",
    **_MLP,
}


def _with_stem(names: Collection[str]) -> Callable[[str], str]:
    """In timm a root without stages is the backbone itself, and not its `stem`."""
    return lambda name: re.sub(rf"^({re.escape(_BACKBONE)})(conv|norm)\.", r"\1stem.\2.", name)


def _written_names(names: Collection[str]) -> Callable[[str], str]:
    has_stages = any(name.startswith(f"{_BACKBONE}stages.") for name in names)
    stem = f"{_BACKBONE}stem." if has_stages else _BACKBONE
    others = {f"{_BACKBONE}stem.": stem, ".mlp.fc12.": ".mlp.fc1.", ".mlp.fc3.": ".mlp.fc2."}
    return lambda name: functools.reduce(lambda found, pair: found.replace(*pair), others.items(), name)


def add_prefix_rows(arrays: Arrays, num_patches: int | None) -> Arrays:
    """Gives the table a row for each prefix token but the registers, whatever rows timm's `no_embed_class` left it.

    Rows of registers are added to the registers. Without `num_patches`, the patches are the square number of rows that
    one of the three ways leaves.
    """
    table, prefix = arrays.get("pos_embed"), sum(name in arrays for name in ("cls_token", "dist_token"))
    registers = arrays["reg_token"].shape[1] if "reg_token" in arrays else 0
    if table is None or table.ndim != 3 or not prefix + registers:
        return arrays
    others = [*dict.fromkeys((prefix, 0, prefix + registers))]  # rows that are not the patches'
    left = [table.shape[1] - rows for rows in others]
    fitting = [
        rows for rows, n in zip(others, left, strict=True) if (n == num_patches if num_patches else square_grid(n))
    ]
    if not fitting or fitting[0] == prefix:
        return arrays
    if fitting[0] == 0:
        zeros = np.zeros((1, prefix, table.shape[2]), table.dtype)
        return arrays | {"pos_embed": np.concatenate([zeros, table], axis=1)}  # (1, T, D)
    own, of_registers, patches = np.split(table, [prefix, prefix + registers], axis=1)
    placed = {"pos_embed": np.concatenate([own, patches], axis=1), "reg_token": arrays["reg_token"] + of_registers}
    return arrays | placed


def _refuse_perception_encoder(makers: Makers) -> Makers:
    """Refuses to write what would be read as a Perception Encoder: only it has these parts together."""
    if "norm_pre.weight" in makers and ("norm.weight" not in makers or "attn_pool.latent" in makers):
        raise CheckpointError(
            "in timm's layout a LayerNorm before the blocks, with attention pooling or without a last one, is a "
            "Perception Encoder, which has rotary positions.\n"
            f"Received: norm_pre, norm {'norm.weight' in makers}, attn_pool {'attn_pool.latent' in makers}. Save it in "
            "the layout 'timm_pe' or 'timm_pe_core'."
        )
    return makers


def _rename_gated_mlp(arrays: Arrays, num_patches: int | None) -> Arrays:
    """Other names for a gated MLP, which in timm has those of a plain one, and twice the rows in its first kernel."""
    first, second = arrays.get("blocks.0.mlp.fc1.weight"), arrays.get("blocks.0.mlp.fc2.weight")
    if first is None or second is None or first.shape[:1] != (2 * second.shape[-1],):
        return arrays
    return {re.sub(r"(blocks\.\d+\.mlp\.)fc([12])\.", _gated_name, name): array for name, array in arrays.items()}


def _gated_name(match: re.Match) -> str:
    return match[1] + {"1": "fc12.", "2": "fc3."}[match[2]]


def fold_prefix_rows(makers: Makers) -> Makers:
    """Adds the rows of prefix tokens to the tokens where there are registers, which have no rows in timm's table."""
    table, prefix = makers.get("pos_embed"), [name for name in ("cls_token", "dist_token") if name in makers]
    if table is None or "reg_token" not in makers:
        return makers
    placed = {name: functools.partial(_placed, makers[name], table, row) for row, name in enumerate(prefix)}
    return makers | placed | {"pos_embed": lambda: table()[:, len(prefix) :]}


def _placed(token: Callable[[], np.ndarray], table: Callable[[], np.ndarray], row: int) -> np.ndarray:
    return token() + table()[:, row : row + 1]


TIMM = Layout(
    "timm",
    "timm",
    ".safetensors",
    TORCH,
    requires=(r"patch_embed\.proj\.weight",),
    like=("timm_qwen3",),
    ignores=("mask_token", "decoder_.*"),  # of masked pre-training (MAE)
    names={
        ("", ""): TOKENS,
        ("block_{block:02}/", "blocks.{block}."): {
            "norm_1": "norm1",
            ("attention/query", "attention/key", "attention/value"): "attn.qkv",
            "attention/norm": "attn.norm",
            "attention/out": "attn.proj",
            "layer_scale_1/gamma": "ls1.gamma",
            "layer_scale_2/gamma": "ls2.gamma",
            "norm_2": "norm2",
            **_MLP,
            "mlp/norm": "mlp.norm",
            ("mlp/gate", "mlp/up"): "mlp.fc12",
            "mlp/down": "mlp.fc3",
        },
        ("pooling/", "attn_pool."): ATTENTION_POOLING,
        ("resnet_root/", f"{_BACKBONE}stem."): {"conv": "conv", "norm": "norm"},
        ("resnet_stage_{stage}_unit_{unit}/", _BACKBONE + "stages.{stage-1}.blocks.{unit-1}."): {
            **{f"{kind}_{part}": f"{kind}{part}" for kind in ("conv", "norm") for part in "123"},
            **{f"{kind}_proj": f"downsample.{kind}" for kind in ("conv", "norm")},
        },
    },
    also={("", ""): {"pre_logits": "pre_logits.fc"}},  # its models have them no more
    read_names=_with_stem,
    written_names=_written_names,
    read_steps=(add_prefix_rows, _rename_gated_mlp),
    written_steps=(_refuse_perception_encoder, fold_prefix_rows),
    parts={
        **PLAIN_PARTS,
        **dict.fromkeys(("patch_bias", "pre_norm", "proj_bias", "mlp_bias", "class_token"), (True, False)),
        **dict.fromkeys(("attention_norm", "mlp_norm", "attention_pooling"), (True, False)),
        "gated_mlp": (False, True),
        "norm": ("layer", "rms"),
        "qkv_bias": ("all", "none"),
        "layer_scale": ("both", "none"),
        "final_norm": ("tokens", "pooled", "none"),
        "registers": ANY,
        "prefix_rows": ("all", "class", "none"),
    },
    activation="gelu",
    layer_norm_epsilon=1e-6,
    resize_method="bicubic_antialias",
    supports_post_norm=True,
    normalizes_means=True,
    folder=Folder(timm_files, timm_snippet, epsilons=(1e-5,), always_resizes=True),
)
_TOWER_ROTARY: Mapping[str, Any] = {
    **{"rotary": "axial", "rotary_theta": 10000.0, "rotary_layout": "half", "rotary_axes": "yx"},
    "rotary_coordinates": "grid",
}
_TOWER_BLOCK: Layers = {
    "norm_1": "norm1",
    ("attention/query", "attention/key", "attention/value"): "attn.qkv",
    "attention/out": "attn.proj",
    "norm_2": "norm2",
}
TIMM_QWEN3 = dataclasses.replace(
    TIMM,
    name="timm_qwen3",
    requires=(*TIMM.requires, "pos_embed", r"blocks\.0\.attn\.qkv\.bias", r"blocks\.0\.mlp\.fc1\.bias"),
    forbids=(
        *("cls_token", "dist_token", "reg_token", r"(fc_)?norm(_pre)?\..*", r"attn_pool\..*", r"blocks\.0\.ls1\.gamma"),
        *(r"blocks\.0\.gamma_1", r"blocks\.0\.attn\.(q_|k_)?norm\..*", r".*relative_position_bias_table"),
        r"patch_embed\.backbone\..*",
    ),
    like=(),
    ignores=(r"merger\..*",),
    names={
        ("", ""): {"position_embedding/table": "pos_embed", "patch_embedding/projection": "patch_embed.proj"},
        ("block_{block:02}/", "blocks.{block}."): {**_TOWER_BLOCK, **_MLP},
    },
    also={},
    defaults=lambda tensors: dict(_TOWER_ROTARY),
    parts={**PLAIN_PARTS, "class_token": (False,), "final_norm": ("none",), "position_table": (True,)},
    activation="gelu_tanh",
    resize_method="align_corners",
    supports_post_norm=False,
    normalizes_means=False,
    folder=Folder(
        functools.partial(tower_files, "qwen3_vit_306m_enc"), timm_snippet, stores_epsilon=True, always_resizes=True
    ),
)
TIMM_DEEPSEEK = dataclasses.replace(
    TIMM_QWEN3,
    name="timm_deepseek",
    requires=(*TIMM.requires, r"blocks\.0\.attn\.qkv\.bias", r"norm\.weight", r"blocks\.0\.mlp\.fc1\.weight"),
    forbids=(
        *("pos_embed", "cls_token", "reg_token", r"(norm|blocks\.0\.norm1)\.bias", r"blocks\.0\.mlp\.fc1\.bias"),
        *(r"norm_pre\..*", r"blocks\.0\.(ls1\.gamma|gamma_1)", r"blocks\.0\.attn\.(q_|k_)?norm\..*"),
        r"patch_embed\.(norm|backbone)\..*",
    ),
    ignores=(r"aligner\..*",),
    names={
        ("", ""): {"patch_embedding/projection": "patch_embed.proj", "encoder_norm": "norm"},
        ("block_{block:02}/", "blocks.{block}."): {
            **_TOWER_BLOCK,
            ("mlp/gate", "mlp/up"): "mlp.fc12",
            "mlp/down": "mlp.fc3",
        },
    },
    parts={
        **PLAIN_PARTS,
        "class_token": (False,),
        "norm": ("rms",),
        "gated_mlp": (True,),
        "mlp_bias": (False,),
        "position_table": (False,),
    },
    position_embedding="none",
    folder=Folder(
        functools.partial(tower_files, "deepseek_vit_412m_enc"), timm_snippet, stores_epsilon=True, always_resizes=True
    ),
)
TIMM_BEIT3 = dataclasses.replace(
    TIMM,
    name="timm_beit3",
    requires=(*TIMM.requires, r"blocks\.0\.attn\.norm\.weight", r"blocks\.0\.mlp\.norm\.weight"),
    forbids=(r"blocks\.0\.attn\.(q_bias|q_proj\.weight)",),
    supports_post_norm=False,
    parts={**PLAIN_PARTS, "attention_norm": (True,), "mlp_norm": (True,), "final_norm": ("tokens", "pooled")},
    layer_norm_epsilon=1e-5,
)

MMSEG = Layout(
    "mmseg",
    "mmsegmentation",
    ".safetensors",
    TORCH,
    requires=(r"patch_embed\.projection\.weight", "cls_token", r"layers\.0\.attn\.attn\.in_proj_weight"),
    names={
        ("", ""): {
            "class_token/token": "cls_token",
            "position_embedding/table": "pos_embed",
            "patch_embedding/projection": "patch_embed.projection",
            "encoder_norm": "ln1",
        },
        ("block_{block:02}/", "layers.{block}."): {
            "norm_1": "ln1",
            ("attention/query", "attention/key", "attention/value"): "attn.attn.in_proj",
            "attention/out": "attn.attn.out_proj",
            "norm_2": "ln2",
            "mlp/dense_1": "ffn.layers.0.0",
            "mlp/dense_2": "ffn.layers.1",
        },
    },
    read_names=lambda names: lambda name: name.replace(".in_proj_", ".in_proj."),
    written_names=lambda names: lambda name: name.replace(".in_proj.", ".in_proj_"),
    parts={**PLAIN_PARTS, "final_norm": ("tokens", "none"), "patch_bias": (True, False)},
    activation="gelu",
    layer_norm_epsilon=1e-6,
    resize_method="bicubic",
    preprocessing=IMAGENET_PHOTOS,
)
MMSEG_DPT = HeadLayout(
    "mmseg_dpt",
    "mmsegmentation",
    "dpt",
    requires=(r"conv_seg\.weight", r"convs\.0\.conv\.weight"),
    names=without(OF_MMSEG, "out_1", "out_2", out_3="conv_seg"),
    prefix="decode_head.",
    encoder=("backbone.",),
    encoder_layouts=(MMSEG.name,),
    normed=False,
    taps="dpt",
    pads=False,
    options={"before": "norm", "end": "classes_of_map"},
)
