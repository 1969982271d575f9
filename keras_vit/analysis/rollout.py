"""Attention rollout: how much of each input token reaches each token at the end, as arrays.

Source: Abnar and Zuidema, arXiv:2005.00928, section 3; for images arXiv:2010.11929, appendix D.7, whose author averages
the heads and adds the identity for the skip connection.
"""

import numpy as np

from keras_vit.checks import check_number


def drop_smallest(attention: np.ndarray, share: float) -> np.ndarray:
    """Attention without the smallest weights of each row, whose others are scaled so that they sum to 1 again.

    Args:
        attention: `(..., T, T)`, each row with sum 1.
        share: of each row's weights that become 0, in [0, 1); the largest always stays.

    Returns:
        float64, of the same shape.

    Raises:
        ValueError: for a share out of range.
    """
    check_number("share", share)
    if not 0 <= share < 1:
        raise ValueError(f"`share` must be in [0, 1).\nReceived: share={share}.")
    kept = np.array(attention, "float64")
    if not (kept.sum(axis=-1) > 0).all():
        raise ValueError("each row of attention must have weights, and numbers only.\nReceived: a row without.")
    count = min(int(round(share * kept.shape[-1], 6)), kept.shape[-1] - 1)  # of .29 * 100, 29
    if count:
        order = np.argsort(kept, axis=-1, kind="stable")
        np.put_along_axis(kept, order[..., :count], 0.0, axis=-1)
    return kept / kept.sum(axis=-1, keepdims=True)


def rollout(attention: np.ndarray, discard: float = 0.0) -> np.ndarray:
    """Attention through all blocks: the product of half attention and half identity, from the last to the first.

    Args:
        attention: `(L, ..., A, T, T)`, from the first block to the last, each row with sum 1. Heads are averaged.
        discard: share of each row's smallest weights to leave out first, in [0, 1).

    Returns:
        float64 `(..., T, T)`: row t says where the last block's token t comes from; each sums to 1.

    Raises:
        ValueError: for arrays of another shape, or a share out of range.
    """
    attention = check_square(attention, least=4)
    joint = np.eye(attention.shape[-1])
    for block in attention:
        mixed = drop_smallest(block.mean(axis=-3, dtype="float64"), discard)  # (..., T, T)
        joint = (mixed @ joint + joint) / 2
    return joint


def check_square(attention, least):
    """`attention` as an array; raises unless it ends in two equal axes and has `least` axes."""
    attention = np.asarray(attention)
    if attention.ndim < least or attention.shape[-1] != attention.shape[-2]:
        raise ValueError(
            "attention must be (L, ..., A, T, T): blocks, images, heads, tokens that read, tokens that are read.\n"
            f"Received: shape {attention.shape}."
        )
    return attention
