"""The config of a model that a file alone tells, with what stands beside it."""

from collections.abc import Mapping
from typing import Any

from keras_vit.config.vit import ViTConfig
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.reader import CheckpointError


def told_config(checkpoint: Checkpoint, pooling: str | None, fields: Mapping[str, Any]) -> ViTConfig:
    """The config that a file, what stands beside it, and `num_heads` among the caller's fields tell.

    Args:
        checkpoint: of a Vision Transformer.
        pooling: of the caller's, or `None` for the file's.
        fields: of `ViTConfig`, the caller's.

    Raises:
        CheckpointError: if the file has parts that are not known here, or nothing tells the number of heads.
    """
    patch_size, hidden_size, num_layers, mlp_dim, stages = checkpoint.measured()
    seen = f"Received: {checkpoint.path}, which looks like {checkpoint.looks_like()}"
    if not all((patch_size, hidden_size, num_layers, mlp_dim)):
        raise CheckpointError(
            "a model is built from a file alone if all of its parts are known here.\n"
            f"{seen}, with {len(checkpoint.unknown)} arrays of other names, as {', '.join(checkpoint.unknown[:3])}."
        )
    num_heads = checkpoint.num_heads or fields.get("num_heads")
    if num_heads is None:
        raise CheckpointError(
            "a model is built from a file alone if that, or a config.json beside it, tells the number of heads.\n"
            f"{seen}. Pass `num_heads=`."
        )
    told = {"class_token": checkpoint.has_class_token, "resnet_stages": stages} | checkpoint.fields
    told |= norm_of(checkpoint, pooling) | ({} if pooling is None else {"pooling": pooling})
    return ViTConfig(patch_size, hidden_size, num_layers, num_heads, mlp_dim, **told)


def norm_of(checkpoint: Checkpoint, pooling: str | None) -> dict[str, str]:
    """`final_norm` of a model that gives all tokens, if the file's software norms only what it pools from them."""
    norms_pooled = checkpoint.fields.get("final_norm") == "pooled" or not checkpoint.norms_tokens
    return {"final_norm": "none"} if pooling == "none" and norms_pooled else {}
