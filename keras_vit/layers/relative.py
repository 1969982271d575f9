"""Relative positions inside of every block's attention: an ablation of appendix D.4 of arXiv:2010.11929."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.layers.configurable import ConfiguredLayer
from keras_vit.layers.positions import axis_matrix, resized_axis


@keras.saving.register_keras_serializable("keras_vit")
class RelativePositions(ConfiguredLayer):
    """What attention adds to its logits for how far a key is from the query, in patches of the reading order.

    The query is multiplied by a learned vector for each distance, as if it were one more key. Prefix tokens are at no
    distance: their rows and columns are 0. For another number of patches the vectors are interpolated linearly.

    Args:
        hidden_size: D, size of a token.
        num_heads: A; must divide `hidden_size`.
        num_patches: N, for which there are 2N - 1 distances.
        num_prefix_tokens: tokens before the patches.

    Call arguments:
        query: `(B, A, T, D/A)`, scaled as for the keys.
        places: `(B, n)` integers in [0, N), in reading order, of the patches among the tokens where some are left
            out; by default all N are there.
        num_patches: N of these images, an int or a scalar, beside `places`; by default the layer's.

    Returns:
        `(B, A, T, T)`, to be added before the softmax.

    Source: arXiv:2010.11929, section D.4: one-dimensional relative attention; its offsets are p_q - p_k, ours
    p_k - p_q.

    Example:
        >>> positions = keras_vit.layers.RelativePositions(12, 3, 6, num_prefix_tokens=1)
        >>> tuple(positions(keras.random.normal((2, 3, 7, 4))).shape)  # to the logits
        (2, 3, 7, 7)
    """

    def __init__(
        self, hidden_size: int, num_heads: int, num_patches: int, num_prefix_tokens: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.num_patches = check_positive_int("num_patches", num_patches)
        self.num_prefix_tokens = num_prefix_tokens

    def build(self, query_shape: Shape) -> None:
        normal = keras.initializers.RandomNormal(stddev=0.02)  # as the position table
        shape = (2 * self.num_patches - 1, self.hidden_size)  # row N - 1 + d is for a key d patches behind the query
        self.table = self.add_weight(name="table", shape=shape, initializer=normal)

    def call(self, query: Tensor, places: Tensor = None, num_patches: Any = None) -> Tensor:
        prefix, heads = self.num_prefix_tokens, self.num_heads
        count = ops.shape(query)[2] - prefix  # N
        if places is not None:
            count = self.num_patches if num_patches is None else num_patches
        vectors = ops.cast(self._table_for(count), query.dtype)
        vectors = ops.transpose(ops.reshape(vectors, (-1, heads, self.hidden_size // heads)), (1, 2, 0))
        logits = ops.matmul(query[:, :, prefix:], vectors)  # (B, A, N, 2N - 1)
        if places is not None:
            distances = count - 1 + places[:, None] - places[:, :, None]  # (B, n, n), of a key behind a query
            logits = ops.take_along_axis(logits, ops.repeat(distances[:, None], heads, axis=1), axis=-1)
            return ops.pad(logits, ((0, 0), (0, 0), (prefix, 0), (prefix, 0)))  # (B, A, T, T)
        # One more column, and one row less in the flat array, move each row one place further to the right than the
        # last.
        logits = ops.pad(logits, ((0, 0), (0, 0), (0, 0), (0, 1)))  # (B, A, N, 2N)
        logits = ops.reshape(logits, (-1, heads, 2 * count * count))[:, :, : (2 * count - 1) * count]
        logits = ops.reshape(logits, (-1, heads, count, 2 * count - 1))[..., count - 1 :]  # (B, A, N, N)
        return ops.pad(logits, ((0, 0), (0, 0), (prefix, 0), (prefix, 0)))  # (B, A, T, T)

    def _table_for(self, count: Any) -> Tensor:
        if isinstance(count, int) and count == self.num_patches:
            return self.table
        matrix = axis_matrix(2 * count - 1, 2 * self.num_patches - 1, "align_corners")
        return ops.matmul(matrix, ops.cast(self.table, "float32"))

    def weights_at(self, num_patches: int) -> dict[str, np.ndarray]:
        """The values of the weights by name, resized for so many patches."""
        table = ops.convert_to_numpy(self.table)
        if num_patches == self.num_patches:
            return {"table": table}
        return {"table": resized_axis(table, 2 * num_patches - 1, len(table), "align_corners")}

    def compute_output_shape(self, query_shape: Shape) -> Shape:
        return (*query_shape[:3], query_shape[2])
