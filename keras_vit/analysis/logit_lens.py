"""The logit lens: the output of the model's head for every single token after any block.

Source: the "logit lens", nostalgebraist, 2020; for Vision Transformers Vilas et al., arXiv:2310.18969.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.features import Features, features
from keras_vit.analysis.submodels import vision_transformer_in
from keras_vit.model.layer_access import head_layers, layers_before_head, pooling
from keras_vit.model.outputs import output_spec
from keras_vit.model.vision_transformer import VisionTransformer


def logit_lens(model: keras.Model, images: Any, blocks: Sequence[int] | None = None, batch_size: int = 32) -> Features:
    """Gets the model's output for every single token after some blocks.

    A token passes the last LayerNorm, then attention pooling if the model has it, then the head. DeiT's distillation
    token passes its own head, and patches get the mean of both heads. After the last block the class token's output
    equals the model's. With mean pooling and no hidden layer before the head, the mean over patches does.

    Example:
        >>> found = keras_vit.analysis.logit_lens(model, images)
        >>> found[2].shape, found.prefix_tokens[2].shape
        ((2, 2, 3, 3), (2, 1, 3))

    Args:
        model: a `VisionTransformer` with a head, or a functional model that has one among its layers.
        images: `(B, H, W, C)` floats, prepared for the model.
        blocks: numbers of passed blocks, as in `features`, with the same default.
        batch_size: images at once.

    Returns:
        `Features` with `(B, h, w, K)` for the patches and `(B, P, K)` for the prefix tokens; logits, unless the head
        ends in an activation.

    Raises:
        ValueError: for a model without a head, and as `features`.
    """
    inner = vision_transformer_in(model)
    if output_spec(inner).activation is None:
        raise ValueError(f"a model must have a head, to apply to each patch.\nReceived: {inner.name!r} without one.")
    found = features(model, images, blocks, batch_size=batch_size)
    stages = [name for name in found.maps if name not in found.prefix_tokens]
    if stages:
        raise ValueError(f"`blocks` must be blocks, whose tokens a head can read.\nReceived: {stages}.")
    maps = {block: _outputs(inner, tokens) for block, tokens in found.maps.items()}
    return Features(maps, {block: _of_prefix(inner, tokens) for block, tokens in found.prefix_tokens.items()})


def _of_prefix(inner: VisionTransformer, tokens: np.ndarray) -> np.ndarray:
    """Outputs of the prefix tokens; with two heads, class and distillation token have their own."""
    heads = head_layers(inner)
    if len(heads) == 1:
        return _outputs(inner, tokens)
    return np.stack([ops.convert_to_numpy(head(tokens[:, place])) for place, head in enumerate(heads)], axis=1)


def _outputs(inner: VisionTransformer, tokens: np.ndarray) -> np.ndarray:
    """`(..., D)` to `(..., K)`."""
    x = ops.convert_to_tensor(tokens.reshape(-1, tokens.shape[-1]))
    pool = pooling(inner)
    if inner.config.pooling in ("map", "attentive"):
        # The token is repeated, since Keras warns of a softmax over one, after the prefix tokens that pooling ignores.
        x = pool(ops.repeat(x[:, None], 2 + pool.num_prefix_tokens, axis=1))
    x = ops.tile(x, (1, inner.config.pooled_size // inner.config.hidden_size))  # in place of each pooled token
    for layer in layers_before_head(inner):
        x = layer(x)
    answers = [ops.convert_to_numpy(head(x)) for head in head_layers(inner)]
    return np.mean(answers, axis=0).reshape(*tokens.shape[:-1], answers[0].shape[-1])
