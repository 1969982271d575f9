"""What a file tells of its model, with what stands beside it and what the table of published weights knows of it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from keras_vit.config.encoders import ENCODERS
from keras_vit.config.vit import SIZES, ViTConfig
from keras_vit.weights.checkpoint import Checkpoint, read_checkpoint
from keras_vit.weights.dialects import DIALECTS
from keras_vit.weights.reader import CheckpointError
from keras_vit.weights.resolve import WeightsFile

# Of the config of a published encoder: what its file decides, and not its record.
_OF_THE_FILE = (*SIZES, "class_token", "representation_size", "resnet_stages", "resnet_width_factor")


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


def read_source(source: WeightsFile, is_resnet: bool = False) -> Checkpoint:
    """The checkpoint of a file, with what the table of published weights knows of it.

    Raises:
        CheckpointError: if the file holds a model of another kind, or not what the table says.
    """
    checkpoint, record = read_checkpoint(source.path), source.record
    if checkpoint.is_resnet != is_resnet:
        wanted, other = ("a ResNet baseline", "build") if is_resnet else ("a Vision Transformer", "build_resnet")
        raise CheckpointError(
            f"the file must hold {wanted}.\nReceived: {source.path}, which looks like {checkpoint.looks_like()}. "
            f"Pass it to `keras_vit.{other}`."
        )
    if record is not None and (checkpoint.classes or 0) != record.classes:
        raise CheckpointError(
            f"the file of {record.name!r} for {record.model} must have {record.classes} classes, so this is "
            f"another file.\nReceived: {source.path} with {checkpoint.classes or 0}."
        )
    if record is None:
        preprocessing = checkpoint.preprocessing or DIALECTS[checkpoint.dialect].preprocessing
        return dataclasses.replace(checkpoint, preprocessing=preprocessing)
    # The table has been compared with the papers, so it overrules the file's note.
    fields = checkpoint.recorded_fields | dict(record.fields)
    if record.variant in ENCODERS:
        fields |= {name: value for name, value in record.config.as_dict().items() if name not in _OF_THE_FILE}
    heads = record.config.num_heads if isinstance(record.config, ViTConfig) else None
    return dataclasses.replace(
        checkpoint,
        recorded_fields=fields,
        num_heads=checkpoint.num_heads or heads,
        preprocessing=record.preprocessing,
        remarks=(),
    )
