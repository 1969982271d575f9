"""The names of transformers' ViT and DeiT, translated to our weight paths and back.

Files on the Hugging Face hub have the names of transformers 4 (`encoder.layer.0.attention.attention.query`),
which transformers 5 still reads and we write; the names of transformers 5 in memory
(`layers.0.attention.q_proj`) are read too. Kernels are torch's: (out, in).
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np

from keras_vit.weights.dialects.timm import to_ours, to_torch, torch_leaf
from keras_vit.weights.reader import CheckpointError

_EMBEDDINGS = {  # ours: theirs
    "class_token/token": "embeddings.cls_token",
    "distillation_token/token": "embeddings.distillation_token",
    "position_embedding/table": "embeddings.position_embeddings",
}
_LAYERS = {
    "patch_embedding/projection": "embeddings.patch_embeddings.projection",
    "encoder_norm": "layernorm",
    "pre_logits": "pooler.dense",  # tanh of a dense layer on the class token, in both
}
_BLOCK_LAYERS = {  # ours: (transformers 4, transformers 5)
    "norm_1": ("layernorm_before", "layernorm_before"),
    "attention/query": ("attention.attention.query", "attention.q_proj"),
    "attention/key": ("attention.attention.key", "attention.k_proj"),
    "attention/value": ("attention.attention.value", "attention.v_proj"),
    "attention/out": ("attention.output.dense", "attention.o_proj"),
    "norm_2": ("layernorm_after", "layernorm_after"),
    "mlp/dense_1": ("intermediate.dense", "mlp.fc1"),
    "mlp/dense_2": ("output.dense", "mlp.fc2"),
}
_HEADS = {"classifier": "head", "cls_classifier": "head", "distillation_classifier": "head_distillation"}
_UNUSED = ("embeddings.mask_token",)  # of masked pre-training; no classifier reads it


def recognise(names) -> bool:
    """Whether the names are those of transformers' ViT or DeiT."""
    return _prefix(names) is not None


def unused(names) -> tuple[str, ...]:
    """Names that stand in published files and take no part in a forward pass."""
    prefix = _prefix(names) or ""
    return tuple(name for name in names if name.removeprefix(prefix) in _UNUSED)


def from_huggingface(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`{transformers name: array}` to `{our path: array}`; names it does not know are kept as they are."""
    prefix = _prefix(arrays) or ""
    plain = {theirs: ours for ours, theirs in _EMBEDDINGS.items()}
    tensors = {}
    for name, array in arrays.items():
        layer, _, leaf = name.removeprefix(prefix).rpartition(".")
        if (path := plain.get(name.removeprefix(prefix))) is not None:
            tensors[path] = array
        elif (path := _HEADS.get(layer) or _our_layer(layer)) and leaf in ("weight", "bias"):
            norm = path.rpartition("/")[2] in ("norm_1", "norm_2", "encoder_norm")
            leaf = {"weight": "gamma", "bias": "beta"}[leaf] if norm else {"weight": "kernel"}.get(leaf, leaf)
            tensors[f"{path}/{leaf}"] = to_ours(array)
        else:
            tensors[name] = array
    return tensors


def to_huggingface(tensors: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """`{our path: array}` to pairs of transformers name and array.

    Raises:
        CheckpointError: for a path that transformers' ViT and DeiT have no name for.
    """
    distilled = "distillation_token/token" in tensors
    if "pre_logits/kernel" in tensors and "head/kernel" in tensors:
        raise CheckpointError(
            "transformers' classifier has no pre-logits: its pooler, which is the same layer, belongs to models "
            "without a head. Save as official, or build without one of the two."
        )
    prefix = "" if "head/kernel" not in tensors else "deit." if distilled else "vit."
    heads = {
        "head": "cls_classifier" if distilled else "classifier",
        "head_distillation": "distillation_classifier",
    }
    for path in tensors:
        layer, _, leaf = path.rpartition("/")
        if path in _EMBEDDINGS:
            yield f"{prefix}{_EMBEDDINGS[path]}", tensors[path]
            continue
        theirs = heads.get(layer) or _their_layer(prefix, layer)
        if theirs is None or leaf not in ("kernel", "bias", "gamma", "beta"):
            raise CheckpointError(f"transformers' ViT and DeiT have no place for this weight.\nReceived: {path}.")
        yield f"{theirs}.{torch_leaf(leaf)}", to_torch(tensors[path])


def _prefix(names):
    end = "embeddings.patch_embeddings.projection.weight"
    return next((prefix for prefix in ("vit.", "deit.", "") if f"{prefix}{end}" in names), None)


def _our_layer(layer):
    plain = {theirs: ours for ours, theirs in _LAYERS.items()}
    if layer in plain:
        return plain[layer]
    if match := re.fullmatch(r"(encoder\.layer|layers)\.(\d+)\.(.+)", layer):
        version = 0 if match[1] == "encoder.layer" else 1
        ours = {theirs[version]: ours for ours, theirs in _BLOCK_LAYERS.items()}.get(match[3])
        return ours and f"block_{int(match[2]):02}/{ours}"
    return None


def _their_layer(prefix, layer):
    if layer in _LAYERS:
        return f"{prefix}{_LAYERS[layer]}"
    if match := re.fullmatch(r"block_(\d+)/(.+)", layer):
        theirs = _BLOCK_LAYERS.get(match[2])
        return theirs and f"{prefix}encoder.layer.{int(match[1])}.{theirs[0]}"
    return None
