"""Fields that a config says and the tensors tell too, so that a file which lacks a role in every block is seen.

Biases, LayerScale and norms are known by being there. Where all of them are gone, only the config tells.
"""

from collections.abc import Mapping
from typing import Any

from keras_vit.weights.hub import config_of_timm

_TOLD = (
    *("patch_bias", "patch_norm", "pre_norm", "norm", "qkv_bias", "proj_bias", "mlp_bias", "gated_mlp"),
    *("attention_norm", "mlp_norm", "layer_scale", "final_norm", "registers"),
)
_CHANGED_BY: Mapping[str, tuple[str, ...]] = {  # arguments of timm's classes: the fields that they may change
    "init_values": ("layer_scale",),
    "use_pre_transformer_norm": ("pre_norm",),
    "swiglu_mlp": ("gated_mlp",),
    "scale_mlp": ("mlp_norm",),
    "scale_mlp_norm": ("mlp_norm",),
    "scale_attn_inner": ("attention_norm",),
    "scale_attn_norm": ("attention_norm",),
    "reg_tokens": ("registers",),
    "num_reg_tokens": ("registers",),
    "global_pool": ("final_norm", "class_token"),
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
_ALL_OR_NONE = {True: "all", False: "none"}


def told_by_architecture(architecture: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What timm's model of that name has, but for what `model_args` may change; `{}` for a name that is not known."""
    if (config := config_of_timm(architecture)) is None:
        return {}
    given = [name for name, value in arguments.items() if value is not None]
    changed = {field for name in given for field in (name, *_CHANGED_BY.get(name, ()))}
    said = {field: getattr(config, field) for field in _TOLD} | {"class_token": config.has_class_token}
    return {field: value for field, value in said.items() if field not in changed}


def told_by_type(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What transformers' class of that `model_type` has for this config; `{}` for one that is not known."""
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
    if isinstance(config.get("use_swiglu_ffn"), bool):
        said["gated_mlp"] = config["use_swiglu_ffn"]
    if isinstance(config.get("intermediate_size"), int):
        said["mlp_dim"] = config["intermediate_size"]
    return said
