"""An encoder built again from its weights: with a config of its own, and with queries among the last blocks' tokens."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Tensor
from keras_vit.config.heads import CLASS_LOGITS, MASK_LOGITS, QUERIES
from keras_vit.config.vit import ViTConfig
from keras_vit.layers import MaskScores
from keras_vit.model.copies import float32_copy, initialize_variables, under_policy_of, uninitialized_variables
from keras_vit.model.graph import build_graph
from keras_vit.model.head import Head
from keras_vit.model.layer_access import bias_layers, position_layers, weight_paths
from keras_vit.model.vision_transformer import VisionTransformer
from keras_vit.weights.heads import HeadCheckpoint
from keras_vit.weights.read import CheckpointError

QUERY_WEIGHTS = f"{QUERIES}/queries"  # their path in a model, and among the tensors of a head


def rebuilt(
    model: VisionTransformer, images: Tensor, config: ViTConfig, queries: np.ndarray | None = None, blocks: int = 0
) -> VisionTransformer:
    """An encoder of all tokens with copies of a model's weights.

    Args:
        model: at the grid of the images.
        images: a Keras tensor `(B, H, W, C)`.
        config: of the encoder.
        queries: `(Q, D)`, which stand between prefix tokens and patches in the last blocks, or `None`.
        blocks: how many of the last blocks have them.
    """
    positions, biases = (next(iter(layers), None) for layers in (position_layers(model), bias_layers(model)))
    grid = getattr(positions or biases, "grid", None)
    rules: dict[str, Any] = {"resize_method": positions.resize_method} if positions is not None else {}
    rules |= {"bias_resize_method": biases.resize_method} if biases is not None else {}
    count = 0 if queries is None else len(queries)
    with uninitialized_variables(), under_policy_of(model):
        copy = build_graph(
            images, config, Head(0, None), grid, model.name, model.preprocessing, **rules, queries=(count, blocks)
        )
    wanted, found = weight_paths(copy), {**weight_paths(model), QUERY_WEIGHTS: queries}
    initialize_variables(
        wanted, {path: found[path] for path in wanted}, lambda value: float32_copy(ops.convert_to_numpy(value))
    )
    copy.load_report, copy.provenance = model.load_report, model.provenance
    copy.weights_layout = model.weights_layout
    return copy


def with_queries(model: VisionTransformer, found: HeadCheckpoint) -> VisionTransformer:
    """An encoder with the queries of a head's file among the tokens of its last blocks.

    Raises:
        CheckpointError: for an encoder of another family or width than the head's file is for.
    """
    row, queries, blocks = found.layout, found.tensors[QUERY_WEIGHTS], found.facts["num_blocks"]
    if found.has_encoder and model.weights_layout not in row.encoder_layouts:
        raise CheckpointError(
            f"a head of {row.software} must have an encoder of the layout {' or '.join(row.encoder_layouts)}: its "
            "files on DINOv3 are published as differences to Meta's weights, which must be added to those first.\n"
            f"Received: {found.path}, whose encoder has the layout {model.weights_layout or 'of no file'!r}."
        )
    if queries.shape[-1:] != (model.config.hidden_size,) or not 0 < blocks <= model.config.num_layers:
        raise CheckpointError(
            f"queries must be as wide as the encoder's tokens, {model.config.hidden_size}, and be in at most its "
            f"{model.config.num_layers} blocks.\n"
            f"Received: {found.path} with queries of {queries.shape} in the last {blocks}. Bring the file again."
        )
    return between_tokens(model, queries, blocks)


def between_tokens(model: VisionTransformer, queries: np.ndarray, blocks: int) -> VisionTransformer:
    """An encoder with queries `(Q, D)` among the tokens of its last blocks, and copies of a model's weights."""
    return rebuilt(model, keras.Input(model.input_shape[1:], name="images"), model.config, queries, blocks)


def mask_scores(outputs: dict[str, Tensor], images: Tensor, output_size: str) -> Tensor:
    """The scores of each pixel of the images, or of the masks' own grid."""
    given = [outputs[CLASS_LOGITS], outputs[MASK_LOGITS], *((images,) if output_size == "image" else ())]
    return MaskScores(dtype="float32", name="mask_scores")(given)
