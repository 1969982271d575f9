"""The JSON by which timm opens a folder as its class `Eva`: EVA, EVA-02 and Perception Encoder.

`facts` are those of `folder_json`, and `fields`, all fields of `ViTConfig` that the file decides.
"""

from typing import Any

from keras_vit.images.preprocessing import Preprocessing
from keras_vit.weights.reader import CheckpointError
from keras_vit.weights.sidecar.folder_json import POOL_WORDS, timm_config

# By the epsilon of their LayerNorms, of which no argument tells; all else is told by arguments.
_ARCHITECTURES = {1e-6: "eva02_base_patch14_224", 1e-5: "vit_pe_core_base_patch16_224"}


def eva_files(facts: dict[str, Any], preprocessing: Preprocessing) -> dict[str, dict]:
    """The JSON files, by name, that timm reads.

    Args:
        facts: of the architecture.
        preprocessing: how photos are prepared.

    Raises:
        CheckpointError: for a model that the class does not compute.
    """
    fields, rotary = facts["fields"], facts["fields"].get("rotary", "none")
    usual = {"norm": "layer", "proj_bias": True, "mlp_bias": True, "distilled": False, "activation": "gelu"}
    usual |= {"patch_bias": not facts["pre_norm"], "rotary": "none" if rotary == "none" else "axial"}
    usual |= {"rotary_coordinates": "grid"} if rotary != "none" else {}
    usual |= {"map_prefix": facts["class_token"]} if facts["pooling"] == "map" else {}
    wrong = [f"{name}={value!r}" for name, value in fields.items() if value != usual.get(name, value)]
    if wrong or facts["layer_norm_epsilon"] not in _ARCHITECTURES:
        raise CheckpointError(
            "timm opens a folder of this layout as its class Eva, which computes exact GELU, an epsilon of 1e-6 or "
            "1e-5, patches without a bias behind a first norm alone, and attention pooling of all tokens.\n"
            f"Received: {', '.join(wrong)}, epsilon {facts['layer_norm_epsilon']}. Write a .safetensors file instead."
        )
    architecture = _ARCHITECTURES[facts["layer_norm_epsilon"]]
    return {"config.json": timm_config(facts, preprocessing, architecture, _arguments(facts))}


def _arguments(facts: dict[str, Any]) -> dict[str, Any]:
    """`model_args`; `None` would be the architecture's own."""
    fields, width = facts["fields"], facts["hidden_size"]
    half = 0.5  # so that timm, which cuts off what is behind the point, finds the width
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
        "use_post_norm": facts["branch_norm"] == "behind",
        "use_pre_transformer_norm": facts["pre_norm"],
        "use_post_transformer_norm": facts["final_norm"] == "tokens",
        "use_fc_norm": facts["final_norm"] == "pooled",
        **({} if facts["layer_scale"] == "none" else {"init_values": 1e-5}),
        "attn_only_layer_scale": facts["layer_scale"] == "attention",
        "attn_pool_num_heads": fields.get("map_heads") or facts["num_heads"],
        "attn_pool_mlp_ratio": ((fields.get("map_mlp_dim") or facts["mlp_dim"]) + half) / width,
        **_rotary(facts, fields),
    }


def _rotary(facts: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
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
