"""The layouts of timm's Vision Transformers: kernels as torch has them, and query, key and value in one matrix.

Two are image towers of language models: that of Qwen3-VL and Qwen3.5 (arXiv:2511.21631), and DeepSeek-V4's. The tokens
are those of timm's `forward_features`: what merges patches after them for the language model is left out.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from keras_vit.config.position_tables import square_grid
from keras_vit.images.preprocessing import Preprocessing
from keras_vit.images.resizing import CUTS_CENTRE
from keras_vit.weights.families.dense_heads import OF_MMSEG, HeadLayout, pyramid_names, upernet_names, without
from keras_vit.weights.families.layout import ANY, IMAGENET_PHOTOS, PLAIN_PARTS, Arrays, Folder, Layout, Makers
from keras_vit.weights.families.renames import MLP, TORCH, Layers
from keras_vit.weights.metadata.record import USUAL_FIELDS, check_writable, nearest_filter
from keras_vit.weights.read import CheckpointError

_BACKBONE = "patch_embed.backbone."
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
    **MLP,
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
    """Other names for a gated MLP, which in timm has those of a plain one, and twice the rows in its first kernel.

    Of `SwiGLU`, which has two kernels in place of that one, only the last has such a name.
    """
    first, second = arrays.get("blocks.0.mlp.fc1.weight"), arrays.get("blocks.0.mlp.fc2.weight")
    if "blocks.0.mlp.fc1_g.weight" in arrays:
        return {re.sub(r"(blocks\.\d+\.mlp\.)fc2\.", r"\1fc3.", name): array for name, array in arrays.items()}
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


POOLS = {"token": "token", "avg": "gap", "map": "map", "": "none"}  # timm's `global_pool`: `pooling`
POOL_WORDS = {pooling: word for word, pooling in POOLS.items()}
_POST_NORM = "vit_base_patch16_rpn_224"  # of norms after attention and MLP, for which there is no argument
_BEIT3, _CLIP = "beit3_base_patch16_224", "vit_base_patch16_clip_224"  # with an epsilon of 1e-5
_TIMM_NORMS = {  # arguments on LayerNorms that most models lack: the fields
    "pre_norm": "pre_norm",
    "scale_attn_norm": "attention_norm",
    "scale_mlp_norm": "mlp_norm",
}


def _files(facts: dict, record: Preprocessing) -> dict[str, dict]:
    """The JSON files, by name, that timm reads."""
    check_writable("timm", facts, gated_mlp=False, **USUAL_FIELDS)
    name = _timm_architecture(facts)
    arguments = {
        "img_size": list(facts["image_size"]),
        "patch_size": facts["patch_size"],
        "embed_dim": facts["hidden_size"],
        "depth": facts["num_layers"],
        "num_heads": facts["num_heads"],
        "mlp_ratio": facts["mlp_dim"] / facts["hidden_size"],
        "act_layer": facts["activation"],
    }
    if not facts["distilled"]:
        arguments |= {"global_pool": POOL_WORDS[facts["pooling"]], "class_token": facts["class_token"]}
        arguments |= {"fc_norm": facts["final_norm"] == "pooled", "final_norm": facts["final_norm"] != "none"}
        arguments |= {word: True for word, field in _TIMM_NORMS.items() if facts[field]}
        registers = facts["registers"]
        optional = {  # argument: (whether it is written, its value)
            "pre_norm": (name == _CLIP, facts["pre_norm"]),
            "qkv_bias": (name == _POST_NORM or facts["qkv_bias"] == "none", facts["qkv_bias"] != "none"),
            "init_values": (facts["layer_scale"] == "both", 1e-5),
            "reg_tokens": (registers, registers),
            "no_embed_class": (registers, True),
            "pool_include_prefix": (facts["fields"].get("pool_prefix_tokens"), True),
            "pos_embed": (not facts["positions"], "none"),
        }
        arguments |= {argument: value for argument, (is_written, value) in optional.items() if is_written}
    return {"config.json": timm_config(facts, record, name, arguments)}


def timm_config(facts: dict, record: Preprocessing, architecture: str, arguments: dict[str, Any]) -> dict:
    """What timm's `config.json` says of an architecture by its name and `model_args`."""
    return {
        "architecture": architecture,
        "num_classes": facts["classes"],
        "num_features": facts["hidden_size"],
        "model_args": arguments,
        **({"label_names": facts["labels"]} if facts["labels"] else {}),
        "pretrained_cfg": {
            "input_size": [facts["channels"], *facts["image_size"]],
            "fixed_input_size": True,
            "interpolation": nearest_filter(record),
            "crop_pct": record.crop_fraction if record.resize in CUTS_CENTRE else 1.0,
            "crop_mode": "squash" if record.resize.startswith("squash") else "center",
            "mean": list(record.mean),
            "std": list(record.std),
            "num_classes": facts["classes"],
            "pool_size": None,
            "first_conv": "patch_embed.backbone.stem.conv" if facts["resnet_stages"] else "patch_embed.proj",
            "classifier": ["head", "head_dist"] if facts["distilled"] else "head",
        },
    }


def _timm_architecture(facts: dict[str, Any]) -> str:
    names: dict[tuple[int, ...] | None, str] = {
        None: "vit_base_patch16_224",
        (): "vit_tiny_r_s16_p8_224",
        (2, 2, 2, 2): "vit_small_r26_s32_224",
    }
    names |= {(3, 4, 9): "vit_base_r50_s16_224", (3, 4, 6, 3): "vit_large_r50_s32_224"}
    is_larger = facts["layer_norm_epsilon"] == 1e-5  # for which there is no argument
    if is_larger:
        names[None] = _BEIT3 if facts["attention_norm"] and facts["mlp_norm"] else _CLIP
    if facts["norm_position"] == "post":
        names = {None: _POST_NORM}
    stages = facts["resnet_stages"]
    kinds = [stages is not None, facts["norm_position"] == "post", facts["distilled"], is_larger]
    if stages not in names or facts["root_channels"] not in (None, 64) or sum(kinds) > 1:
        raise CheckpointError(
            "timm opens a folder by the name of an architecture, and has none with this ResNet, or with two of a "
            "ResNet, norms after the branches, a distillation token and an epsilon of 1e-5.\n"
            f"Received: stages {stages}, root of {facts['root_channels']} channels, distilled={facts['distilled']}, "
            f"norm_position={facts['norm_position']!r}, layer_norm_epsilon={facts['layer_norm_epsilon']}. Write a "
            ".safetensors file instead of a folder."
        )
    return "deit_base_distilled_patch16_224" if facts["distilled"] else names[stages]


def _tower_files(architecture: str, facts: dict[str, Any], preprocessing: Preprocessing) -> dict[str, dict]:
    """As `_files`, of a tower of a language model by its architecture, without what merges its patches."""
    width, (height, side) = facts["hidden_size"], (pixels // facts["patch_size"] for pixels in facts["image_size"])
    if facts["positions"] and (height != side or facts["activation"] != "gelu_tanh"):  # the other has a gate
        raise CheckpointError(
            "timm opens a folder of this layout as a class with a square table of positions and the tanh GELU.\n"
            f"Received: a grid of ({height}, {side}), activation={facts['activation']!r}. Write a .safetensors file."
        )
    arguments = {
        "img_size": list(facts["image_size"]),
        "patch_size": facts["patch_size"],
        "embed_dim": width,
        "depth": facts["num_layers"],
        "num_heads": facts["num_heads"],
        "mlp_ratio": (facts["mlp_dim"] + 0.5) / width,  # so that timm, which rounds down, finds the width
        "norm_eps": facts["layer_norm_epsilon"],
        "rope_temperature": facts["fields"]["rotary_theta"],
        "global_pool": POOL_WORDS[facts["pooling"]],
        "out_features": 0,
        **({"pos_embed_grid_size": side} if facts["positions"] else {}),
    }
    return {"config.json": timm_config(facts, preprocessing, architecture, arguments)}


def timm_snippet(place: str, classifies: bool) -> str:
    """Python that opens a folder, or `hf:owner/name`, with timm."""
    name = place.replace("hf:", "hf-hub:") if place.startswith("hf:") else f"local-dir:{place}"
    return f"import timm\n\nmodel = timm.create_model({json.dumps(name)}, pretrained=True)"


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
            **MLP,
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
    also={
        ("", ""): {"pre_logits": "pre_logits.fc"},  # its models have them no more
        ("block_{block:02}/", "blocks.{block}."): {"mlp/gate": "mlp.fc1_g", "mlp/up": "mlp.fc1_x"},
    },
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
    folder=Folder(_files, timm_snippet, epsilons=(1e-5,), always_resizes=True),
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
        *(r"patch_embed\.backbone\..*", r"blocks\.0\.attn\.rel_pos_h"),
    ),
    like=(),
    ignores=(r"merger\..*",),
    names={
        ("", ""): {"position_embedding/table": "pos_embed", "patch_embedding/projection": "patch_embed.proj"},
        ("block_{block:02}/", "blocks.{block}."): {**_TOWER_BLOCK, **MLP},
    },
    also={},
    defaults=lambda tensors: dict(_TOWER_ROTARY),
    parts={**PLAIN_PARTS, "class_token": (False,), "final_norm": ("none",), "position_table": (True,)},
    activation="gelu_tanh",
    resize_method="align_corners",
    supports_post_norm=False,
    normalizes_means=False,
    folder=Folder(
        functools.partial(_tower_files, "qwen3_vit_306m_enc"), timm_snippet, stores_epsilon=True, always_resizes=True
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
        functools.partial(_tower_files, "deepseek_vit_412m_enc"), timm_snippet, stores_epsilon=True, always_resizes=True
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

_CLASSES: Layers = {"embeddings": "cls_emb", "decoder_norm": "decoder_norm", "mask_norm": "mask_norm"}
SEGMENTER = HeadLayout(  # whose last matrices are stored for x @ W, and not as torch's Linear
    "segmenter",
    "the authors' Segmenter",
    "segmenter",
    requires=("cls_emb", r"proj_dec\.weight", "proj_classes"),
    names={
        ("", ""): {
            **_CLASSES,
            "project": "proj_dec",
            "project_patches/kernel": "proj_patch",
            "project_classes/kernel": "proj_classes",
        },
        ("block_{block:02}/", "blocks.{block}."): {**_TOWER_BLOCK, **MLP},
    },
    prefix="decoder.",
    encoder=("encoder.",),
    encoder_layouts=(TIMM.name,),
    taps="last",
    pads="end",
    resize_method="bilinear",
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
    pads="",
    options={"before": "norm", "end": "classes_of_map"},
)
MMSEG_SEGMENTER = dataclasses.replace(
    SEGMENTER,
    name="mmseg_segmenter",
    software="mmsegmentation",
    requires=("cls_emb", r"dec_proj\.weight", r"classes_proj\.weight"),
    names={
        ("", ""): {
            **_CLASSES,
            "project": "dec_proj",
            "project_patches": "patch_proj",
            "project_classes": "classes_proj",
        },
        ("block_{block:02}/", "layers.{block}."): MMSEG.names["block_{block:02}/", "layers.{block}."],
    },
    prefix="decode_head.",
    encoder=("backbone.",),
    encoder_layouts=(MMSEG.name,),
    pads="",
    spellings={".in_proj_": ".in_proj."},
    resize_method=None,
)
_SETR: Layers = {"norm": "norm", "classifier": "conv_seg"}
_SETR_UNIT: Layers = {"conv": "conv", "batch_norm": "bn"}
MMSEG_SETR = dataclasses.replace(
    MMSEG_SEGMENTER,
    name="mmseg_setr",
    kind="setr",
    requires=(r"decode_head\.up_convs\.0\.0\.conv\.weight", r"decode_head\.norm\.weight"),
    names={
        ("", "decode_head."): _SETR,
        ("auxiliary/", "auxiliary_head."): _SETR,
        ("auxiliary_{block}/", "auxiliary_head.{block}."): _SETR,
        ("up_{block}/", "decode_head.up_convs.{block}.0."): _SETR_UNIT,
        ("auxiliary/up_0/", "auxiliary_head.up_convs.0.0."): _SETR_UNIT,
        ("auxiliary_{block}/up_0/", "auxiliary_head.{block}.up_convs.0.0."): _SETR_UNIT,
    },
    prefix="",
    normed=False,
    spellings={},
    resize_method="bilinear",
)
_MULTI_LEVEL = {"lateral": "lateral_convs", "level": "convs"}
MMSEG_UPERNET = dataclasses.replace(
    MMSEG_DPT,
    name="mmseg_upernet",
    kind="upernet",
    requires=(r"decode_head\.psp_modules\.0\.1\.bn\.weight", r"neck\.lateral_convs\.0\.conv\.weight"),
    names=upernet_names(
        "bn",
        "conv_seg",
        {f"{here}_{i}": f"neck.{there}.{i}.conv" for here, there in _MULTI_LEVEL.items() for i in range(4)},
    ),
    prefix="",
    options={"neck": "multi_level", "dropout_rate": 0.1},
)
MMSEG_UPERNET_PYRAMID = dataclasses.replace(
    MMSEG_UPERNET,
    name="mmseg_upernet_pyramid",
    requires=(MMSEG_UPERNET.requires[0], r"neck\.upsample_4x\.0\.weight"),
    names=upernet_names("bn", "conv_seg", pyramid_names("neck.upsample_4x", "neck.upsample_2x")),
    taps="thirds",
    options={"neck": "pyramid", "dropout_rate": 0.1},
)
