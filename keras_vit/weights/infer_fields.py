"""Fields of a `ViTConfig` that the tensors of a file show by being there."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.config.parts import QKV_BIASES

LAST_NORMS = {"tokens": "encoder_norm", "pooled": "pooled_norm"}  # by `final_norm`
BIAS_TABLES = {"blocks": "relative_bias_00/table", "shared": "relative_bias_shared/table"}  # by `relative_bias`
_BLOCK = "block_00"
_KEY = re.compile(r"block_\d+/attention/key/kernel")
_SCALES = {"both": f"{_BLOCK}/layer_scale_2/gamma", "attention": f"{_BLOCK}/layer_scale_1/gamma"}  # by `layer_scale`
_FLAGS = {  # field: paths, of which one is there
    "pre_norm": ("pre_norm/gamma",),
    "patch_bias": ("patch_embedding/projection/bias",),
    "patch_norm": ("patch_norm/gamma",),
    "proj_bias": (f"{_BLOCK}/attention/out/bias",),
    "mlp_bias": (f"{_BLOCK}/mlp/dense_1/bias", f"{_BLOCK}/mlp/gate/bias"),
    "gated_mlp": (f"{_BLOCK}/mlp/gate/kernel",),
    "attention_norm": (f"{_BLOCK}/attention/norm/gamma",),
    "mlp_norm": (f"{_BLOCK}/mlp/norm/gamma",),
}


def infer_fields(tensors: Mapping[str, np.ndarray], num_heads: int | None) -> dict[str, Any]:
    """The fields, for a model of so many heads where that is known.

    Args:
        tensors: of a Vision Transformer, by weight path.
        num_heads: A, without which the heads of keys and values are unknown.
    """
    biases = tuple(role for role in QKV_BIASES["all"] if f"{_BLOCK}/attention/{role}/bias" in tensors)
    is_rms = f"{_BLOCK}/norm_1/gamma" in tensors and f"{_BLOCK}/norm_1/beta" not in tensors
    registers = tensors.get("register_tokens/tokens")
    pooling = "map" if "pooling/norm/gamma" in tensors else "attentive"
    return {
        **{field: any(path in tensors for path in paths) for field, paths in _FLAGS.items()},
        **({"pooling": pooling} if "pooling/probe" in tensors else {}),
        "registers": 0 if registers is None else registers.shape[1],
        "norm": "rms" if is_rms else "layer",
        "qkv_bias": next((word for word, roles in QKV_BIASES.items() if roles == biases), "all"),
        "layer_scale": next((value for value, path in _SCALES.items() if path in tensors), "none"),
        "relative_bias": next((word for word, path in BIAS_TABLES.items() if path in tensors), "none"),
        "final_norm": infer_final_norm(tensors),
        **_head_fields(tensors, num_heads),
    }


def infer_final_norm(tensors: Mapping[str, np.ndarray]) -> str:
    """`final_norm`: which of the last norms is there."""
    return next((word for word, name in LAST_NORMS.items() if f"{name}/gamma" in tensors), "none")


def _head_fields(tensors: Mapping[str, np.ndarray], num_heads: int | None) -> dict[str, Any]:
    """Over what queries are normed, and the heads of keys in each block, where some have fewer than queries."""
    kernel, gain = (tensors.get(f"{_BLOCK}/attention/{name}") for name in ("query/kernel", "query_norm/gamma"))
    if kernel is None:
        return {"qk_norm": "none", "kv_heads": None}
    width = kernel.shape[-1]
    norm = "none" if gain is None else "width" if gain.shape[-1] == width else "head"
    keys = [tensors[path].shape[-1] for path in sorted(tensors) if _KEY.fullmatch(path)]
    if num_heads is None or {*keys} == {width}:
        return {"qk_norm": norm, "kv_heads": None}
    return {"qk_norm": norm, "kv_heads": tuple(key // (width // num_heads) for key in keys)}
