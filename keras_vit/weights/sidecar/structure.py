"""Fields that a config says and the tensors tell too, so that a file which lacks a role in every block is seen.

Biases, LayerScale and norms are known by being there. Where all of them are gone, only the config tells.
"""

import re
from collections.abc import Mapping
from typing import Any

from keras_vit.config.vit import ViTConfig
from keras_vit.weights.hub import config_of_timm

_TOLD = (
    *("patch_bias", "patch_norm", "pre_norm", "norm", "qkv_bias", "proj_bias", "mlp_bias", "gated_mlp"),
    *("attention_norm", "mlp_norm", "layer_scale", "final_norm", "registers", "rotary", "qk_norm", "relative_bias"),
)
_CHANGED_BY: Mapping[str, tuple[str, ...]] = {  # arguments of timm's classes: the fields that they may change
    "init_values": ("layer_scale",),
    "use_rot_pos_emb": ("rotary",),
    "rope_type": ("rotary",),
    "use_rel_pos_bias": ("relative_bias",),
    "use_shared_rel_pos_bias": ("relative_bias",),
    "pos_embed": ("position_table",),
    "use_abs_pos_emb": ("position_table",),
    "use_pre_transformer_norm": ("pre_norm",),
    "swiglu_mlp": ("gated_mlp",),
    "scale_mlp": ("mlp_norm",),
    "scale_mlp_norm": ("mlp_norm",),
    "scale_attn_inner": ("attention_norm",),
    "scale_attn_norm": ("attention_norm",),
    "reg_tokens": ("registers",),
    "num_reg_tokens": ("registers",),
    "global_pool": ("final_norm", "class_token", "attention_pooling"),
    "fc_norm": ("final_norm",),
    "use_fc_norm": ("final_norm",),
    "use_post_transformer_norm": ("final_norm",),
}
_PLAIN = {"patch_bias": True, "pre_norm": False, "proj_bias": True, "mlp_bias": True, "layer_scale": "none"}
_TYPES: Mapping[str, Mapping[str, Any]] = {  # `model_type` of transformers: what its class always has
    **dict.fromkeys(("vit", "deit", "ijepa", "vit_msn", "vit_mae", "pixio"), _PLAIN),
    **dict.fromkeys(("siglip_vision_model", "siglip2_vision_model"), _PLAIN | {"qkv_bias": "all"}),
    **dict.fromkeys(
        ("clip_vision_model", "metaclip_2_vision_model"),
        _PLAIN | {"qkv_bias": "all", "patch_bias": False, "pre_norm": True},
    ),
    **dict.fromkeys(
        ("dinov2", "dinov2_with_registers", "dinov3_vit", "tipsv2_vision_model", "internvl_vision"),
        _PLAIN | {"layer_scale": "both"},
    ),
    **dict.fromkeys(("beit", "data2vec-vision"), _PLAIN | {"qkv_bias": "query_value"}),
    "aimv2_vision_model": _PLAIN | {"norm": "rms", "patch_norm": True},
}
_PLAIN_NAMES = re.compile(  # of architectures of timm that no record has
    r"vit_(large|giant|gigantic)_patch14_224|vit_(base|huge|giant)_patch1[46]_gap_\d+|vit_base_patch\d+_plus_\d+"
)
_ALL_OR_NONE = {True: "all", False: "none"}


def told_by_architecture(architecture: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What timm's model of that name has, but for what `model_args` may change; `{}` for a name that is not known."""
    config, plain = config_of_timm(architecture), _PLAIN_NAMES.fullmatch(architecture)
    if config is None and not plain:
        return {}
    given = [name for name, value in arguments.items() if value is not None or name == "init_values"]
    changed = {field for name in given for field in (name, *_CHANGED_BY.get(name, ()))}
    said = _PLAIN | {"registers": 0, "gated_mlp": False} if config is None else _fields_of(config)
    return {field: value for field, value in said.items() if field not in changed}


def _fields_of(config: ViTConfig) -> dict[str, Any]:
    said = {field: getattr(config, field) for field in _TOLD} | {"class_token": config.has_class_token}
    if config.pooling != "gap":
        said["attention_pooling"] = config.pooling in ("map", "attentive")
    if config.position_embedding in ("learned", "none"):
        said["position_table"] = config.position_embedding == "learned"
    return said


def told_by_type(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers' class of that `model_type` has for this config; `{}` for one that is not known."""
    if kind == "radio":
        counts = [config.get("num_cls_tokens"), config.get("num_registers")]
        return {"special_tokens": sum(counts)} if all(type(count) is int for count in counts) else {}
    if kind not in _TYPES:
        return {}
    said = dict(_TYPES[kind])
    for word in ("mlp_bias", "proj_bias"):
        if isinstance(config.get(word), bool):
            said[word] = config[word]
    bias = config.get("attention_bias" if kind == "internvl_vision" else "qkv_bias")
    if isinstance(bias, bool) and said.get("qkv_bias") is None:
        said["qkv_bias"] = _ALL_OR_NONE[bias]
    if kind == "aimv2_vision_model" and isinstance(bias, bool):
        said["proj_bias"] = bias
    if kind in ("beit", "data2vec-vision"):
        said["layer_scale"] = "both" if config.get("layer_scale_init_value", 0.1) else "none"
        if isinstance(config.get("use_relative_position_bias"), bool):
            said |= _relative_bias(config)
    if kind == "internvl_vision":
        said |= {"norm": "rms"} if config.get("norm_type") == "rms_norm" else {"norm": "layer"}
        said |= {"qk_norm": "width" if config.get("use_qk_norm") else "none"}
    if isinstance(config.get("use_swiglu_ffn"), bool):
        said["gated_mlp"] = config["use_swiglu_ffn"]
    if kind == "clip_vision_model" and isinstance(config.get("projection_dim"), int):
        said["classes"] = config["projection_dim"]
    ratio, width = config.get("mlp_ratio"), config.get("hidden_size")
    if isinstance(ratio, (int, float)) and isinstance(width, int) and said.get("gated_mlp") is False:
        said["mlp_dim"] = round(ratio * width)
    if isinstance(config.get("intermediate_size"), int):
        said["mlp_dim"] = config["intermediate_size"]
    return said


def _relative_bias(config: Mapping[str, Any]) -> dict[str, str]:
    """BEiT's tables, in each block or one for all; of both nothing is said."""
    asked = {"blocks": config["use_relative_position_bias"], "shared": config.get("use_shared_relative_position_bias")}
    found = [word for word, there in asked.items() if there]
    return {} if len(found) == 2 else {"relative_bias": found[0] if found else "none"}
