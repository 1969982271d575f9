"""Which fields of a model a file's tensors leave open, so that the report of loading must name them."""


def silent(c):
    """What changes the numbers of such a model, and stands in no tensor."""
    rotary = ("", "_theta", "_layout", "_axes", "_coordinates", "_offset", "_reference")
    reads = c.pooling in ("map", "attentive")
    facts = {
        **dict.fromkeys(("layer_norm_epsilon", "pooling", "preprocessing"), True),
        "activation": not c.gated_mlp or c.pooling == "map",  # a gate's is SiLU
        **dict.fromkeys([f"rotary{name}" for name in rotary], c.rotary != "none"),
        **dict.fromkeys(("class_token_reduction", "class_token_indices"), c.class_tokens > 1 and c.pooling == "token"),
        "resize_method": c.position_embedding == "learned",
        "bias_resize_method": c.relative_bias != "none",
        "final_norm": c.pooling == "gap",
        "norm_position": c.norm_position == "post",
        "patch_padding": c.patch_padding > 0,
        "map_heads": reads,
        "pool_prefix_tokens": reads and bool(c.prefix_tokens),
    }
    return {name for name, there in facts.items() if there}
