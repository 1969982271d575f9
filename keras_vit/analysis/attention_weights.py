"""The attention weights of every block and head, with rollout and mean attention distance.

Sources of rollout: Abnar and Zuidema, arXiv:2005.00928, section 3; arXiv:2010.11929, appendix D.7. The paper's author
averages the heads and adds the identity for the skip connection. Source of the distance: arXiv:2010.11929, figures 7
and 11.
"""

import dataclasses
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import kernels
from keras_vit.analysis.submodels import (
    check_global_attention,
    check_grid,
    patch_grid,
    prepared_batches,
    vision_transformer_in,
)
from keras_vit.annotations import Pair, Shape
from keras_vit.checks import check_number, check_positive
from keras_vit.layers import AttentionPooling
from keras_vit.layers.configurable import flatten_layers
from keras_vit.model.layer_access import encoder_blocks
from keras_vit.model.vision_transformer import VisionTransformer


@dataclasses.dataclass(frozen=True, eq=False)
class AttentionMaps:
    """The result of `attention_maps`.

    Example:
        >>> maps = keras_vit.attention_maps(model, images)
        >>> maps
        AttentionMaps(blocks=(2, 2, 3, 7, 7), grid=(2, 3), prefix_tokens=('class',))
        >>> maps.over_patches(maps.read_rows()).shape
        (2, 2, 3, 2, 3)

    Attributes:
        blocks: float32 `(L, B, A, T, T)` for blocks, images and heads. Entry (t, s) is how much token t reads from
            token s. Rows sum to 1, in half precision up to rounding.
        pooling: float32 `(B, A, N)`, weights of the patches in attention pooling; `None` for other pooling. They sum to
            1, unless `pool_prefix_tokens` includes prefix tokens.
        reading: float64 `(B, T)` with sum 1, the weight of each token of the last block in pooling. A class token has
            1, or 0.5 together with a distillation token or a mean. Mean pooling is even over the patches. Attention
            pooling is `pooling` averaged over the heads.
        grid: `(h, w)` of the patches.
        stride: pixels from one patch to the next.
        prefix_tokens: names of the tokens before the patches, in their order.
    """

    blocks: np.ndarray
    pooling: np.ndarray | None
    reading: np.ndarray
    grid: Pair
    stride: int
    prefix_tokens: tuple[str, ...]

    def __repr__(self) -> str:  # without the numbers, which are megabytes
        return f"AttentionMaps(blocks={self.blocks.shape}, grid={self.grid}, prefix_tokens={self.prefix_tokens})"

    @property
    def num_prefix_tokens(self) -> int:
        """Number of tokens before the patches."""
        return len(self.prefix_tokens)

    def rollout(self, discard: float = 0.0) -> np.ndarray:
        """Share of each patch in the model's output: float64 `(B, h, w)`; see `rollout`.

        The sum over an image is 1 minus the share of the prefix tokens, which is left out.
        """
        joint = rollout(self.blocks, discard)  # (B, T, T)
        return self.over_patches(np.einsum("bt,bts->bs", self.reading, joint))

    def read_rows(self) -> np.ndarray:
        """Attention in each block, `(L, B, A, T)`, of the pooled tokens, weighted by `reading`."""
        return np.einsum("bq,lbaqk->lbak", self.reading, self.blocks)

    def mean_distance(self) -> np.ndarray:
        """float64 `(L, A)` in pixels; see `mean_attention_distance`."""
        return mean_attention_distance(self.blocks, self.grid, self.stride, self.num_prefix_tokens)

    def over_patches(self, values: np.ndarray) -> np.ndarray:
        """Values of tokens, `(..., T)`, as a map of the patches, `(..., h, w)`."""
        patches = values[..., self.num_prefix_tokens :]
        return patches.reshape(*patches.shape[:-1], *self.grid)


def attention_maps(model: keras.Model, images: Any, batch_size: int = 8) -> AttentionMaps:
    """Gets the attention weights of all blocks and heads, by one forward pass.

    Example:
        >>> maps = keras_vit.attention_maps(model, images)
        >>> maps.blocks.shape
        (2, 2, 3, 7, 7)
        >>> maps.rollout().shape
        (2, 2, 3)

    Args:
        model: a `VisionTransformer`, or a functional model that has one among its layers. All tokens of the
            last block are computed, although usually only the class token is.
        images: `(B, H, W, C)` floats, prepared for the model.
        batch_size: images at once.

    Returns:
        `AttentionMaps` of `4 * L * A * T * T` bytes for each image: 22 MB for B/16 at 224 pixels.

    Raises:
        TypeError: for images that are not floats, or anything but a model.
        ValueError: for images of another shape, or a model without exactly one Vision Transformer. The model around it
            must be functional or sequential.

    Source: arXiv:2010.11929, equation 6.
    """
    inner = vision_transformer_in(model)
    check_global_attention(inner)
    found = []
    for _, prepared in prepared_batches(model, inner, images, batch_size):
        with kernels.record_attention() as recorded:
            inner(prepared, training=False)
        found.append([(layer, ops.convert_to_numpy(ops.cast(weights, "float32"))) for layer, weights in recorded])
    return as_maps(inner, prepared.shape, found)


def as_maps(inner: VisionTransformer, shape: Shape, found: list) -> AttentionMaps:
    """`AttentionMaps` from recorded pairs of a layer and its weights for each batch, for images of this shape."""
    config, layers = inner.config, [block.attention for block in encoder_blocks(inner)]
    blocks = np.stack([_layer_weights(layer, found) for layer in layers])  # (L, B, A, T, T)
    pools = [part.attention for part in flatten_layers(inner) if isinstance(part, AttentionPooling)]
    pooling = _layer_weights(pools[0], found)[:, :, 0] if pools else None  # (B, A, N), or T with prefix tokens
    reading = np.zeros((blocks.shape[1], blocks.shape[-1]))
    if pooling is not None:
        reading[:, -pooling.shape[-1] :] = pooling.mean(axis=1, dtype="float64")
        pooling = pooling[..., -(reading.shape[-1] - config.num_prefix_tokens) :]
    elif config.pooled_indices:
        reading[:, config.pooled_indices] = 1 / len(config.pooled_indices)
    else:
        reading[:, config.num_prefix_tokens :] = 1 / (blocks.shape[-1] - config.num_prefix_tokens)
    if config.pooling == "token_gap":
        reading = (reading + np.eye(1, reading.shape[-1])) / 2
    return AttentionMaps(blocks, pooling, reading, patch_grid(inner, shape), config.stride, config.prefix_tokens)


def rollout(attention: np.ndarray, discard: float = 0.0) -> np.ndarray:
    """Attention through all blocks: the product of (attention + identity) / 2, from the last block to the first.

    Example:
        >>> attention = np.full((2, 1, 3, 3), 1 / 3)  # 2 blocks, 1 head, 3 tokens
        >>> keras_vit.analysis.rollout(attention).round(3)
        array([[0.5 , 0.25, 0.25],
               [0.25, 0.5 , 0.25],
               [0.25, 0.25, 0.5 ]])

    Args:
        attention: `(L, ..., A, T, T)`, from the first block to the last, each row with sum 1. Heads are averaged.
        discard: share of each row's smallest weights to leave out first, in [0, 1).

    Returns:
        float64 `(..., T, T)`: row t has the shares of the input tokens in token t of the last block, with sum 1.

    Raises:
        ValueError: for arrays of another shape, or a share out of range.
    """
    attention = _check_square(attention, least=4)
    joint = np.eye(attention.shape[-1])
    for block in attention:
        mixed = drop_smallest(block.mean(axis=-3, dtype="float64"), discard)  # (..., T, T)
        joint = (mixed @ joint + joint) / 2
    return joint


def drop_smallest(attention: np.ndarray, share: float) -> np.ndarray:
    """Attention without the smallest weights of each row; the others are scaled to a sum of 1.

    Example:
        >>> keras_vit.analysis.drop_smallest(np.array([0.2, 0.3, 0.5]), share=0.4)
        array([0.   , 0.375, 0.625])

    Args:
        attention: `(..., T, T)`, each row with sum 1.
        share: part of each row's weights that become 0, in [0, 1); the largest always stays.

    Returns:
        float64 of the same shape.

    Raises:
        ValueError: for a share out of range.
    """
    check_number("share", share)
    if not 0 <= share < 1:
        raise ValueError(f"`share` must be in [0, 1).\nReceived: share={share}.")
    kept = np.array(attention, "float64")
    if not (kept.sum(axis=-1) > 0).all():
        raise ValueError("each row of attention must have weights, and numbers only.\nReceived: a row without.")
    count = min(int(round(share * kept.shape[-1], 6)), kept.shape[-1] - 1)  # 0.29 * 100 is 28.999...
    if count:
        order = np.argsort(kept, axis=-1, kind="stable")
        np.put_along_axis(kept, order[..., :count], 0.0, axis=-1)
    return kept / kept.sum(axis=-1, keepdims=True)


def mean_attention_distance(
    attention: np.ndarray, grid: Pair, stride: float = 1.0, num_prefix_tokens: int = 0
) -> np.ndarray:
    """Mean distance in pixels between a patch and those that it reads from, weighted by attention.

    Rows and columns of prefix tokens are left out. The other weights are not scaled to a sum of 1, as in the paper
    (issue 162 of the official code).

    Example:
        >>> even = np.full((1, 1, 4, 4), 0.25)  # each of 2 x 2 patches reads all
        >>> keras_vit.analysis.mean_attention_distance(even, (2, 2), 16).round(2)
        array([[13.66]])

    Args:
        attention: `(L, ..., A, T, T)`.
        grid: `(h, w)` of the patches.
        stride: pixels from one patch to the next.
        num_prefix_tokens: number of tokens before the patches.

    Returns:
        float64 `(L, A)`, the mean over patches and images.

    Raises:
        ValueError: if the grid does not have as many patches as there are tokens.
    """
    attention = _check_square(attention, least=4)
    check_positive("stride", stride)
    height, width = check_grid(grid)
    if height * width != attention.shape[-1] - num_prefix_tokens:
        raise ValueError(
            "the patches of `grid` and `num_prefix_tokens` must be all tokens.\n"
            f"Received: grid={tuple(grid)}, num_prefix_tokens={num_prefix_tokens}, {attention.shape[-1]} tokens."
        )
    rows, columns = np.divmod(np.arange(height * width), width)
    distances = stride * np.hypot(rows[:, None] - rows, columns[:, None] - columns)  # (N, N)
    patches = attention[..., num_prefix_tokens:, num_prefix_tokens:]
    means = np.einsum("...qk,qk->...", patches, distances) / len(rows)  # (L, ..., A)
    return means.reshape(len(means), -1, means.shape[-1]).mean(axis=1)


def _check_square(attention: np.ndarray, least: int) -> np.ndarray:
    """`attention` as an array; raises unless it ends in two equal axes and has `least` axes."""
    attention = np.asarray(attention)
    if attention.ndim < least or attention.shape[-1] != attention.shape[-2]:
        raise ValueError(
            "attention must be (L, ..., A, T, T): blocks, images, heads, tokens that read, tokens that are read.\n"
            f"Received: shape {attention.shape}."
        )
    return attention


def _layer_weights(layer: keras.layers.Layer, found: list) -> np.ndarray:
    return np.concatenate([weights for batch in found for each, weights in batch if each is layer])
