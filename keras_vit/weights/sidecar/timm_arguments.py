"""What `model_args` of a timm folder say of a model. Those that are not known here are refused by name.

`model_args` may have any argument of timm's classes, and one that is passed over would give other numbers from the same
weights.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_vit.weights.hub import config_of_timm
from keras_vit.weights.sidecar.facts import not_computed, sides_of

# That say nothing of what is computed at inference, or what the shapes of the tensors tell as well.
_PASSED_OVER = (
    *("num_classes", "in_chans", "mlp_ratio", "attn_pool_mlp_ratio", "swiglu_align_to", "qkv_fused", "proj_bias"),
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init", "head_init_scale", "dynamic_img_size", "dynamic_img_pad", "strict_img_size"),
    *("rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords", "attn_type", "no_embed_class", "final_norm"),
    *("use_abs_pos_emb", "use_post_transformer_norm", "attn_only_layer_scale", "device", "dtype"),
)
_READ = (  # by `read_timm` and below
    *("img_size", "patch_size", "embed_dim", "depth", "num_heads", "class_token", "global_pool", "act_layer"),
    *("pos_embed", "reg_tokens", "num_reg_tokens", "use_rot_pos_emb", "rope_type", "rope_temperature"),
    *(
        "num_kv_heads",
        "rope_grid_indexing",
        "rope_grid_offset",
        "rope_rotate_half",
        "ref_feat_shape",
        "attn_pool_num_heads",
        "pool_include_prefix",
        "use_post_norm",
    ),
)
# Arguments of which tensors tell the same: our field, and its value by theirs where it is no flag.
_TOLD_TWICE: Mapping[str, tuple[str, Mapping[bool, Any]]] = {
    "pre_norm": ("pre_norm", {}),
    "use_rel_pos_bias": ("relative_bias", {True: "blocks"}),
    "use_shared_rel_pos_bias": ("relative_bias", {True: "shared"}),
    "qk_norm": ("qk_norm", {True: "head", False: "none"}),
    "use_pre_transformer_norm": ("pre_norm", {}),
    "swiglu_mlp": ("gated_mlp", {}),
    "scale_mlp": ("mlp_norm", {}),
    "scale_mlp_norm": ("mlp_norm", {}),
    "scale_attn_inner": ("attention_norm", {}),
    "scale_attn_norm": ("attention_norm", {}),
    "qkv_bias": ("qkv_bias", {False: "none"}),
    "init_values": ("layer_scale", {False: "none"}),
    "fc_norm": ("final_norm", {True: "pooled"}),
    "use_fc_norm": ("final_norm", {True: "pooled"}),
}
# What the architectures of timm's class `Eva` set, by how their names begin. The last pattern that matches counts.
_EVA: Mapping[str, Mapping[str, Any]] = {
    r"eva02_": {"use_rot_pos_emb": True, "ref_feat_shape": 16},
    r"eva02_enormous_": {"use_rot_pos_emb": False, "use_post_norm": True},
    r"vit_pe_": {"use_rot_pos_emb": True, "rope_grid_indexing": "xy", "rope_grid_offset": 1.0},
    r"vit_pe_core_": {"attn_pool_num_heads": 8},
    r"vit_pe_.*_gigantic_": {"rope_grid_offset": 0.0},
    r"vit_.*_(dinov3|lingbot|sapiens2)": {
        **{"use_rot_pos_emb": True, "rope_type": "dinov3", "rope_temperature": 100.0, "rope_rotate_half": True}
    },
    r"vit_.*_rope_(mixed_)?(ape_)?\d": {
        **{"use_rot_pos_emb": True, "rope_grid_indexing": "xy", "rope_temperature": 100.0}
    },
    r"vit_.*_rope_mixed_": {"rope_type": "mixed", "rope_temperature": 10.0},
    r"vit_.*_rope_reg\d+_gap_": {"use_rot_pos_emb": True, "ref_feat_shape": 16},
    r"test_vit3$": {"global_pool": "map", "pool_include_prefix": True},
}
_OTHER_FIELDS: Mapping[str, Mapping[str, Any]] = {  # likewise
    r"vit_pe_": {"layer_norm_epsilon": 1e-5, "map_prefix": True},
    r"vit_.*_dinov3": {"layer_norm_epsilon": 1e-5, "pooling": "gap"},
    r"vit_.*_lingbot": {"layer_norm_epsilon": 1e-5},
    r"vit_.*_rpn_": {"branch_norm": "behind"},
}
_ROTARY_WORDS = {  # arguments that each tell one field of rotary positions
    "rope_temperature": "rotary_theta",
    "rope_rotate_half": "rotary_layout",
    "rope_grid_indexing": "rotary_axes",
    "rope_grid_offset": "rotary_offset",
    "ref_feat_shape": "rotary_reference",
}
_KINDS = ("cat", "mixed", "dinov3")  # of `rope_type`


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
        if value is not None and name not in known:
            raise not_computed("argument of timm's class", f"{name}={value!r}", place, "those of a plain ViT")


def computed_by_eva(architecture: str, arguments: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Fields of what timm's class `Eva` computes by the name of an architecture and `model_args`.

    Args:
        architecture: as `"eva02_base_patch14_224"`; of another class nothing is told but rotary positions.
        arguments: `model_args`.
        place: of the file, for the message.

    Raises:
        CheckpointError: for a kind of rotary positions that is not computed here.
    """
    said: dict[str, Any] = {}
    for pattern, known in _EVA.items():
        said |= known if re.match(pattern, architecture) else {}
    if sizes := re.match(r"vit_pe_.*patch(\d+)_(\d+)", architecture):
        said["ref_feat_shape"] = int(sizes[2]) // int(sizes[1])
    said |= {name: value for name, value in arguments.items() if name in _READ and value is not None}
    heads = said.get("attn_pool_num_heads")
    fields = {"map_heads": heads} if heads and said.get("global_pool", "map") == "map" else {}
    for pattern, known in _OTHER_FIELDS.items():
        fields |= known if re.match(pattern, architecture) else {}
    if said.get("pool_include_prefix"):
        if said.get("global_pool") not in ("map", "token"):
            raise not_computed("pooling", "pool_include_prefix=True", place, "the mean of the patches, or attention")
        fields |= {"map_prefix": True} if said["global_pool"] == "map" else {}
    if "use_post_norm" in said:
        fields["branch_norm"] = "behind" if said["use_post_norm"] else "before"
    if "use_rot_pos_emb" in said:
        fields |= _rotary(said, place) if said["use_rot_pos_emb"] else {"rotary": "none"}
    elif named := [word for word in _ROTARY_WORDS if word in said]:  # of an unknown architecture, which turns or not
        told = _rotary(said, place)
        fields |= {_ROTARY_WORDS[word]: told[_ROTARY_WORDS[word]] for word in named if _ROTARY_WORDS[word] in told}
    return fields


def _rotary(said: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """The fields of rotary positions by the arguments of timm's class."""
    kind, axes = said.get("rope_type", "cat"), said.get("rope_grid_indexing", "ij")
    reference = sides_of(said.get("ref_feat_shape"))
    for word, value, known in (("rope_type", kind, _KINDS), ("rope_grid_indexing", axes, ("ij", "xy"))):
        if value not in known:
            raise not_computed("rotary position", f"{word}={value!r}", place, ", ".join(known))
    if reference is not None and reference[0] != reference[1]:
        raise not_computed("rotary position", f"ref_feat_shape={reference}", place, "scaled to a square grid")
    fields = {
        "rotary": "mixed" if kind == "mixed" else "axial",
        "rotary_theta": said.get("rope_temperature", 10000.0),
        "rotary_layout": "half" if said.get("rope_rotate_half") else "interleaved",
        "rotary_axes": "yx" if axes == "ij" else "xy",
    }
    offset = said.get("rope_grid_offset", 0.0)
    if kind == "dinov3" and offset:
        raise not_computed("rotary position", f"rope_type='dinov3', rope_grid_offset={offset}", place, "without one")
    if kind == "mixed" and said.get("rope_rotate_half"):
        raise not_computed("rotary position", "rope_type='mixed', rope_rotate_half=True", place, "in pairs")
    has_grid = kind == "cat"  # for other kinds timm passes over what is said of it
    return fields | {
        "rotary_coordinates": "unit" if kind == "dinov3" else "grid",
        "rotary_offset": offset if has_grid else 0.0,
        "rotary_reference": reference[0] if has_grid and reference is not None else None,
    }


def told_twice(arguments: Mapping[str, Any], has_plain_mlp: bool) -> dict[str, Any]:
    """Fields by the arguments that the tensors tell too, so that a contradiction is seen.

    Args:
        arguments: `model_args`.
        has_plain_mlp: whether `mlp_ratio` tells the width of the MLP, which timm changes where it is gated.
    """
    said: dict[str, Any] = {}
    for name, (field, words) in _TOLD_TWICE.items():
        value = arguments.get(name)
        if isinstance(value, bool) and (not words or value in words):
            said[field] = words[value] if words else value
    if "init_values" in arguments and arguments["init_values"] is None:
        said["layer_scale"] = "none"
    ratio, width = arguments.get("mlp_ratio"), arguments.get("embed_dim")
    if isinstance(ratio, (int, float)) and isinstance(width, int) and has_plain_mlp:
        said["mlp_dim"] = int(ratio * width + 1e-6)  # as timm cuts it; a ratio that we wrote may be a bit less
    if isinstance(arguments.get("class_token"), bool):
        said["class_token"] = arguments["class_token"]
    if isinstance(counts := arguments.get("num_kv_heads"), list):
        said["kv_heads"] = tuple(counts)
    return said


def pooled_by(architecture: str, arguments: Mapping[str, Any]) -> dict[str, str]:
    """Where timm's class for plain models has its last norm, if `model_args` change the token's pooling to the mean."""
    config = config_of_timm(architecture)
    if config is None or (config.pooling, config.rotary) != ("token", "none"):
        return {}
    if re.match(r"eva|beit|vit_pe|aimv2", architecture) or arguments.get("global_pool") != "avg":
        return {}
    return {} if isinstance(arguments.get("fc_norm"), bool) else {"final_norm": "pooled"}
