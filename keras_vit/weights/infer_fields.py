"""Fields of a `ViTConfig` that the tensors of a file show by being there."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_vit.config.parts import QKV_BIASES

LAST_NORMS = {"tokens": "encoder_norm", "pooled": "pooled_norm"}  # by `final_norm`
BIAS_TABLES = {"blocks": "relative_bias_00/table", "shared": "relative_bias_shared/table"}  # by `relative_bias`
_BLOCK = "block_00"
_KEY = re.compile(r"block_\d+/attention/key/kernel")
_ROWS = re.compile(r"block_\d+/positions/rows")
_SCALES = {"both": f"{_BLOCK}/layer_scale_2/gamma", "attention": f"{_BLOCK}/layer_scale_1/gamma"}  # by `layer_scale`
_FLAGS = {  # field: paths, of which one is there
    "pre_norm": ("pre_norm/gamma",),
    "patch_bias": ("patch_embedding/projection/bias",),
    "patch_norm": ("patch_norm/gamma",),
    "position_offset": ("position_offset/token",),
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

    Raises:
        ValueError: for keys that are no whole number of heads wide.
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
        **_window_fields(tensors),
        **_head_fields(tensors, num_heads),
    }


def infer_final_norm(tensors: Mapping[str, np.ndarray]) -> str:
    """`final_norm`: which of the last norms is there."""
    return next((word for word, name in LAST_NORMS.items() if f"{name}/gamma" in tensors), "none")


def heads_of_positions(tensors: Mapping[str, np.ndarray]) -> int | None:
    """A, by the width of positions of rows, which are of each head; `None` without these."""
    table, kernel = (tensors.get(f"{_BLOCK}/{name}") for name in ("positions/rows", "attention/query/kernel"))
    if table is None or kernel is None or table.ndim != 2 or kernel.shape[-1] % max(table.shape[-1], 1):
        return None
    return kernel.shape[-1] // table.shape[-1]


def _window_fields(tensors: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Attention in windows, by the lengths of tables of positions: where there are none, they are those of the grid.

    If windows are as large as the grid, no block is known to be without them, and at this size it makes no difference.
    """
    lengths = [tensors[path].shape[0] for path in sorted(tensors) if _ROWS.fullmatch(path)]
    neck = tensors.get("neck/conv_1/kernel")
    fields: dict[str, Any] = {"neck_size": None if neck is None else neck.shape[-1]}
    if not lengths:
        return fields | {"attention": "global", "window_size": None, "global_blocks": ()}
    table = tensors.get("position_embedding/table")
    whole = max(lengths) if table is None else 2 * math.isqrt(table.shape[-2]) - 1
    others = [length for length in lengths if length != whole]
    fields |= {"attention": "windowed", "window_size": (min(others or lengths) + 1) // 2}
    numbers = tuple(number for number, length in enumerate(lengths, start=1) if length == whole)
    return fields | ({"global_blocks": numbers} if others else {})


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
    if wrong := [key for key in keys if key == 0 or key % (width // num_heads)]:
        raise ValueError(f"keys of {wrong[0]} numbers, where a head has {width // num_heads}")
    return {"qk_norm": norm, "kv_heads": tuple(key // (width // num_heads) for key in keys)}
