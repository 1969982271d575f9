"""The names of timm's Vision Transformers, translated to our weight paths and back.

torch keeps dense kernels as (out, in) and convolutions as (out, in, height, width); query, key and value
are one fused matrix in the blocks, key and value in attention pooling.
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from keras_vit.config.posembed import square_grid
from keras_vit.weights.reader import CheckpointError

_PLAIN = {  # ours: theirs
    "class_token/token": "cls_token",
    "distillation_token/token": "dist_token",
    "position_embedding/table": "pos_embed",
    "pooling/probe": "attn_pool.latent",
}
_LAYERS = {  # ours: theirs; each with a kernel or gamma, and a bias or beta
    "patch_embedding/projection": "patch_embed.proj",
    "encoder_norm": "norm",
    "pre_logits": "pre_logits.fc",
    "head": "head",
    "head_distillation": "head_dist",
    "pooling/attention/query": "attn_pool.q",
    "pooling/attention/out": "attn_pool.proj",
    "pooling/norm": "attn_pool.norm",
    "pooling/mlp/dense_1": "attn_pool.mlp.fc1",
    "pooling/mlp/dense_2": "attn_pool.mlp.fc2",
}
_BLOCK_LAYERS = {
    "norm_1": "norm1",
    "attention/out": "attn.proj",
    "norm_2": "norm2",
    "mlp/dense_1": "mlp.fc1",
    "mlp/dense_2": "mlp.fc2",
}
_FUSED = {  # theirs, at the end of a name: ours, in the order of its rows
    "attn.qkv": ("query", "key", "value"),
    "attn_pool.kv": ("key", "value"),
}
_FROM_LAYERS = {theirs: ours for ours, theirs in _LAYERS.items()}
_FROM_BLOCK_LAYERS = {theirs: ours for ours, theirs in _BLOCK_LAYERS.items()}
_FROM_PLAIN = {theirs: ours for ours, theirs in _PLAIN.items()}
_STEM = "patch_embed.backbone."


def recognise(names) -> bool:
    """Whether the names are timm's."""
    return "patch_embed.proj.weight" in names


def from_timm(arrays: dict[str, np.ndarray], num_patches: int | None = None) -> dict[str, np.ndarray]:
    """`{timm name: array}` to `{our path: array}`; names it does not know are kept as they are.

    Without `num_patches`, a table of a square number of rows, beside a class token, is taken to have no row for
    it, unless the rest is square too.

    Raises:
        CheckpointError: for models that compute something else than ours from such weights.
    """
    if any(name.startswith("fc_norm.") for name in arrays):
        raise CheckpointError(
            "the file is of a timm model with `fc_norm`, which normalises after its mean pooling; here, as in the "
            "official code, the LayerNorm comes first, and the two are different functions."
        )
    tensors = {}
    for name, array in arrays.items():
        layer, _, leaf = name.rpartition(".")
        if name in _FROM_PLAIN:
            tensors[_FROM_PLAIN[name]] = array
        elif parts := _fused_paths(layer):
            for path, part in zip(parts, _split(name, array, len(parts)), strict=True):
                tensors[f"{path}/{_our_leaf(path, leaf)}"] = to_ours(part)
        elif (path := _our_layer(layer)) and leaf in ("weight", "bias"):
            tensors[f"{path}/{_our_leaf(path, leaf)}"] = to_ours(array)
        else:
            tensors[name] = array
    return _with_prefix_rows(tensors, num_patches)


def to_timm(tensors: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """`{our path: array}` to pairs of timm name and array.

    Raises:
        CheckpointError: for a path that timm has no name for.
    """
    if "pre_logits/kernel" in tensors:
        raise CheckpointError("timm's models have no pre-logits any more. Save as official, or build without them.")
    stem_only = not any(path.startswith("resnet_stage_") for path in tensors)
    for path in tensors:
        if path in _PLAIN:
            yield _PLAIN[path], tensors[path]
            continue
        layer, _, leaf = path.rpartition("/")
        if parts := _fused_name(layer):
            name, first = parts
            if leaf not in ("kernel", "bias"):
                raise CheckpointError(
                    f"timm has no place for this weight.\nReceived: {path}. "
                    "Save the model as .keras instead; reloading that merges LoRA, and the result can be saved here."
                )
            if layer == first[0]:
                yield f"{name}.{torch_leaf(leaf)}", np.concatenate([to_torch(tensors[f"{p}/{leaf}"]) for p in first])
            continue
        name = _timm_layer(layer, stem_only)
        if name is None or leaf not in ("kernel", "bias", "gamma", "beta"):
            raise CheckpointError(f"timm has no place for this weight.\nReceived: {path}.")
        yield f"{name}.{torch_leaf(leaf)}", to_torch(tensors[path])


def to_ours(array: np.ndarray) -> np.ndarray:
    """A torch kernel in our order of axes, as a view; vectors stay."""
    if array.ndim == 4:
        return array.transpose(2, 3, 1, 0)  # (height, width, in, out)
    return array.T if array.ndim == 2 else array


def to_torch(array: np.ndarray) -> np.ndarray:
    """Our kernel in torch's order of axes; vectors stay."""
    if array.ndim == 4:
        return array.transpose(3, 2, 0, 1)  # (out, in, height, width)
    return array.T if array.ndim == 2 else array


def torch_leaf(leaf: str) -> str:
    """`weight` or `bias`, for our kernel, gamma, bias and beta."""
    return "weight" if leaf in ("kernel", "gamma") else "bias"


def _our_leaf(path, leaf):
    norm = re.search(r"norm(_\w+)?$", path) is not None
    return {"weight": "gamma" if norm else "kernel", "bias": "beta" if norm else "bias"}.get(leaf, leaf)


def _split(name, array, parts):
    if array.ndim == 0 or array.shape[0] % parts:
        raise CheckpointError(
            f"a fused matrix must have {parts} equal parts in its rows.\nReceived: {name}, shape {array.shape}."
        )
    return np.split(array, parts)


def _fused_paths(layer):
    if match := re.fullmatch(r"blocks\.(\d+)\.(attn\.qkv)", layer):
        return [f"block_{int(match[1]):02}/attention/{part}" for part in _FUSED[match[2]]]
    return [f"pooling/attention/{part}" for part in _FUSED[layer]] if layer in _FUSED else None


def _fused_name(layer):
    if match := re.fullmatch(r"block_(\d+)/attention/(query|key|value)", layer):
        name = f"blocks.{int(match[1])}.attn.qkv"
    elif re.fullmatch(r"pooling/attention/(key|value)", layer):
        name = "attn_pool.kv"
    else:
        return None
    return name, _fused_paths(name)


def _our_layer(layer):
    if layer in _FROM_LAYERS:
        return _FROM_LAYERS[layer]
    if match := re.fullmatch(r"blocks\.(\d+)\.(.+)", layer):
        ours = _FROM_BLOCK_LAYERS.get(match[2])
        return ours and f"block_{int(match[1]):02}/{ours}"
    if match := re.fullmatch(re.escape(_STEM) + r"(?:stem\.)?(conv|norm)", layer):
        return f"resnet_root/{match[1]}"
    pattern = re.escape(_STEM) + r"stages\.(\d+)\.blocks\.(\d+)\.(?:(conv|norm)([123])|downsample\.(conv|norm))"
    if match := re.fullmatch(pattern, layer):
        stage, unit, kind, which, projection = match.groups()
        part = f"{projection}_proj" if projection else f"{kind}_{which}"
        return f"resnet_stage_{int(stage) + 1}_unit_{int(unit) + 1}/{part}"
    return None


def _timm_layer(layer, stem_only):
    if layer in _LAYERS:
        return _LAYERS[layer]
    if match := re.fullmatch(r"block_(\d+)/(.+)", layer):
        theirs = _BLOCK_LAYERS.get(match[2])
        return theirs and f"blocks.{int(match[1])}.{theirs}"
    if match := re.fullmatch(r"resnet_root/(conv|norm)", layer):
        return f"{_STEM}{'' if stem_only else 'stem.'}{match[1]}"
    if match := re.fullmatch(r"resnet_stage_(\d+)_unit_(\d+)/(conv|norm)_(\d|proj)", layer):
        stage, unit, kind, which = match.groups()
        part = f"downsample.{kind}" if which == "proj" else f"{kind}{which}"
        return f"{_STEM}stages.{int(stage) - 1}.blocks.{int(unit) - 1}.{part}"
    return None


def _with_prefix_rows(tensors, num_patches):
    """Rows of zeros for the prefix tokens where the table has none (timm's `no_embed_class`)."""
    table = tensors.get("position_embedding/table")
    prefix = sum(f"{name}/token" in tensors for name in ("class_token", "distillation_token"))
    if table is None or table.ndim != 3 or not prefix:
        return tensors
    rows = table.shape[1]
    without = rows == num_patches if num_patches else not square_grid(rows - prefix) and square_grid(rows)
    if without:
        zeros = np.zeros((1, prefix, table.shape[2]), table.dtype)
        tensors["position_embedding/table"] = np.concatenate([zeros, table], axis=1)  # (1, T, D)
    return tensors
