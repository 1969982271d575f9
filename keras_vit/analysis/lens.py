"""What each patch would answer: the model's head on every token of any block.

Source: the "logit lens", nostalgebraist, 2020; for Vision Transformers Vilas et al., arXiv:2310.18969.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.analysis.features import Features, features
from keras_vit.analysis.inner import vision_transformer_in
from keras_vit.model.classifiers import has_head
from keras_vit.model.layer_lookup import head_layers, pooling, pre_logits
from keras_vit.model.vision_transformer import VisionTransformer


def logit_lens(
    model: keras.Model, images: Any, blocks: Sequence[int] = (3, 6, 9, 12), batch_size: int = 32
) -> Features:
    """The outputs that the model would give if it read one token, for every token behind some blocks.

    A token goes through the last LayerNorm, attention pooling by itself if the model has it, and the head. DeiT's
    distillation token goes through its own head, and patches through both, whose mean counts. Behind the last block the
    class token's output is the model's own; with mean pooling and no hidden layer before the head, so is the mean over
    the patches.

    Args:
        model: a `VisionTransformer` with a head, or a functional model that has one among its layers.
        images: `(B, H, W, C)` floats, as the model takes them.
        blocks: how many blocks are passed, as in `features`.
        batch_size: images at once.

    Returns:
        `Features` with `(B, h, w, K)` for the patches and `(B, P, K)` for the prefix tokens; logits, unless the head
        ends in an activation.

    Raises:
        ValueError: for a model without a head, and as `features`.
    """
    inner = vision_transformer_in(model)
    if not has_head(inner):
        raise ValueError(f"a model must have a head for what a patch answers.\nReceived: {inner.name!r} without one.")
    found = features(model, images, blocks, batch_size=batch_size)
    stages = [name for name in found.maps if name not in found.prefix_tokens]
    if stages:
        raise ValueError(f"`blocks` must be blocks, whose tokens a head can read.\nReceived: {stages}.")
    maps = {block: _outputs(inner, tokens) for block, tokens in found.maps.items()}
    return Features(maps, {block: _of_prefix(inner, tokens) for block, tokens in found.prefix_tokens.items()})


def _of_prefix(inner: VisionTransformer, tokens: np.ndarray) -> np.ndarray:
    """Class and distillation token, each by its own head where there are two."""
    heads = head_layers(inner)
    if len(heads) == 1:
        return _outputs(inner, tokens)
    return np.stack([ops.convert_to_numpy(head(tokens[:, place])) for place, head in enumerate(heads)], axis=1)


def _outputs(inner: VisionTransformer, tokens: np.ndarray) -> np.ndarray:
    """`(..., D)` to `(..., K)`."""
    x = ops.convert_to_tensor(tokens.reshape(-1, tokens.shape[-1]))
    pool, hidden = pooling(inner), pre_logits(inner)
    if inner.config.pooling == "map":
        # Twice, as Keras warns of a softmax over one; behind as many as pooling leaves out.
        x = pool(ops.repeat(x[:, None], 2 + pool.num_prefix_tokens, axis=1))
    x = x if hidden is None else hidden(x)
    answers = [ops.convert_to_numpy(head(x)) for head in head_layers(inner)]
    return np.mean(answers, axis=0).reshape(*tokens.shape[:-1], answers[0].shape[-1])
