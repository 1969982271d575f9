"""How far attention reaches: figures 7 (right) and 11 of arXiv:2010.11929."""

import numpy as np

from keras_vit.analysis.inner import check_grid
from keras_vit.analysis.rollout import check_square
from keras_vit.annotations import Pair
from keras_vit.checks import check_positive


def mean_attention_distance(
    attention: np.ndarray, grid: Pair, stride: float = 1.0, num_prefix_tokens: int = 0
) -> np.ndarray:
    """Mean distance in pixels between a patch and those that it reads from, weighted by attention.

    Rows and columns of prefix tokens are left out, and what remains is not scaled to a sum of 1, as the paper's author
    does it (issue 162 of the official code).

    Args:
        attention: `(L, ..., A, T, T)`.
        grid: `(h, w)` of the patches.
        stride: pixels from a patch to the next.
        num_prefix_tokens: tokens before the patches.

    Returns:
        float64 `(L, A)`, the mean over patches and images.

    Raises:
        ValueError: if the grid does not have as many patches as there are tokens.
    """
    attention = check_square(attention, least=4)
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
