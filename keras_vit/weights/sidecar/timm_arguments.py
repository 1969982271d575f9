"""What `model_args` of a timm folder say of a model. Those that are not known here are refused by name.

`model_args` may have any argument of timm's classes, and one that is passed over would give other numbers from the same
weights.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.weights.sidecar.facts import not_computed

# That say nothing of what is computed at inference, or what the shapes of the tensors tell as well.
_PASSED_OVER = (
    *("num_classes", "in_chans", "mlp_ratio", "attn_pool_mlp_ratio", "swiglu_align_to", "qkv_fused", "proj_bias"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init", "head_init_scale", "dynamic_img_size", "dynamic_img_pad", "strict_img_size"),
    *("rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords", "attn_type", "no_embed_class", "final_norm"),
    *("use_abs_pos_emb", "fc_norm", "use_fc_norm", "use_post_transformer_norm", "attn_only_layer_scale"),
    *("device", "dtype", "num_features", "norm_pre"),
)
_READ = (  # by `read_timm`
    *("img_size", "patch_size", "embed_dim", "depth", "num_heads", "class_token", "global_pool", "act_layer"),
    *("pos_embed", "reg_tokens", "num_reg_tokens"),
)
# Arguments of which tensors tell the same: our field, and its value by theirs where it is no flag.
_TOLD_TWICE: Mapping[str, tuple[str, Mapping[bool, Any]]] = {
    "pre_norm": ("pre_norm", {}),
    "use_pre_transformer_norm": ("pre_norm", {}),
    "swiglu_mlp": ("gated_mlp", {}),
    "scale_mlp": ("mlp_norm", {}),
    "scale_mlp_norm": ("mlp_norm", {}),
    "scale_attn_inner": ("attention_norm", {}),
    "scale_attn_norm": ("attention_norm", {}),
    "qkv_bias": ("qkv_bias", {False: "none"}),
    "init_values": ("layer_scale", {False: "none"}),
}
_COMPUTED: Mapping[str, tuple[Any, ...]] = {  # the values that are computed here
    "use_post_norm": (False,),
    "qk_norm": (False,),
    "pool_include_prefix": (False,),
}


def check_known(arguments: Mapping[str, Any], place: Path) -> None:
    """Raises for an argument of `model_args` that changes what is computed, and is not known here.

    Args:
        arguments: `model_args`; `None` is timm's default of each.
        place: of the file, for the message.

    Raises:
        CheckpointError: that names the argument.
    """
    known = {*_PASSED_OVER, *_READ, *_TOLD_TWICE}
    for name, value in arguments.items():
        if value is not None and name not in known and value not in _COMPUTED.get(name, ()):
            raise not_computed("argument of timm's class", f"{name}={value!r}", place, "those of a plain ViT")


def told_twice(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Fields by the arguments that the tensors tell too, so that a contradiction is seen."""
    said: dict[str, Any] = {}
    for name, (field, words) in _TOLD_TWICE.items():
        value = arguments.get(name)
        if isinstance(value, bool) and (not words or value in words):
            said[field] = words[value] if words else value
    return said
