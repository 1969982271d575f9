"""Attention in windows with positions of rows and columns, and the neck after the last block: SAM, arXiv:2304.02643.

Blocks are those of ViTDet, arXiv:2203.16527, and positions those of MViTv2, arXiv:2112.01526.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import kernels
from keras_vit.annotations import Pair, Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.layers.configurable import CompositeLayer, ConfiguredLayer, recomputed
from keras_vit.layers.encoder import TransformerBlock
from keras_vit.layers.norms import layer_norm
from keras_vit.layers.positions import axis_matrix, resized_axis


@keras.saving.register_keras_serializable("keras_vit")
class AxisPositions(ConfiguredLayer):
    """What attention adds to its logits for how many rows and columns a key is from the query.

    The query is multiplied by a learned vector for the distance in rows, and by one for that in columns. On another
    grid the vectors are interpolated linearly, with half-pixel centres.

    Args:
        grid: `(h, w)` of the tables, which have 2h - 1 and 2w - 1 vectors.
        head_dim: D/A, size of a vector.

    Call arguments:
        query: `(B, A, N, D/A)`, not scaled.
        sides: `(h, w)` of the tokens; by default the layer's.

    Returns:
        `(B, A, N, N)`, to be added before the softmax.

    Source: arXiv:2112.01526, section 4.1, eq. 4.

    Example:
        >>> positions = keras_vit.layers.AxisPositions((2, 3), head_dim=4)
        >>> tuple(positions(keras.random.normal((2, 3, 6, 4))).shape)
        (2, 3, 6, 6)
    """

    def __init__(self, grid: Pair, head_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid: Any = tuple(int(n) for n in grid)
        self.head_dim = check_positive_int("head_dim", head_dim)

    def build(self, query_shape: Shape) -> None:
        sizes = {"rows": self.grid[0], "columns": self.grid[1]}
        self.rows, self.columns = (
            self.add_weight(name=name, shape=(2 * side - 1, self.head_dim), initializer="zeros")  # as the authors
            for name, side in sizes.items()
        )

    def call(self, query: Tensor, sides: Any = None) -> Tensor:
        height, width = sides or self.grid
        heads, size = query.shape[1], self.head_dim
        query = ops.reshape(query, (-1, heads, height, width, size))
        rows = ops.einsum("bahwd,hkd->bahwk", query, self._vectors(self.rows, height, query.dtype))
        columns = ops.einsum("bahwd,wkd->bahwk", query, self._vectors(self.columns, width, query.dtype))
        bias = ops.expand_dims(rows, -1) + ops.expand_dims(columns, -2)  # (B, A, h, w, h, w)
        return ops.reshape(bias, (-1, heads, height * width, height * width))

    def _vectors(self, table: Any, side: Any, dtype: Any) -> Tensor:
        """`(side, side, D/A)`: the vector of each query and key of an axis."""
        count = table.shape[0]
        if not (isinstance(side, int) and 2 * side - 1 == count):
            table = ops.matmul(axis_matrix(2 * side - 1, count, "bilinear"), ops.cast(table, "float32"))
        places = ops.arange(side, dtype="int32")
        index = ops.expand_dims(places, 1) - ops.expand_dims(places, 0) + (side - 1)
        return ops.take(ops.cast(table, dtype), index, axis=0)

    def weights_at(self, grid: Pair) -> dict[str, np.ndarray]:
        """The values of the weights by name, resized for `grid`."""
        tables = {"rows": (self.rows, grid[0]), "columns": (self.columns, grid[1])}
        return {
            name: resized_axis(ops.convert_to_numpy(table), 2 * side - 1, table.shape[0], "bilinear")
            for name, (table, side) in tables.items()
        }

    def compute_output_shape(self, query_shape: Shape) -> Shape:
        return (*query_shape[:3], query_shape[2])


@keras.saving.register_keras_serializable("keras_vit")
class WindowedBlock(TransformerBlock):
    """A transformer block whose patches attend to those of their own window, or to all, with positions of each axis.

    After its first norm the map is padded with zeros at bottom and right to whole windows. Places of padding take part
    in attention, and are cut off after it.

    Args:
        grid: `(h, w)` of the tables of positions where there are no windows.
        patch_size: P, side of a patch in pixels of the map that the patches were cut from.
        window_size: side of a window in patches; `None` for attention to all patches.
        **kwargs: as `TransformerBlock`, without other positions.

    Call arguments:
        tokens: `(B, N, D)`, patches in reading order.
        feature_map: `(B, H, W, ...)`, what the patches were cut from; only H and W are read.

    Returns:
        `(B, N, D)`.

    Source: arXiv:2203.16527, section 3.

    Example:
        >>> sizes = {"hidden_size": 12, "num_heads": 3, "mlp_dim": 48}
        >>> block = keras_vit.layers.WindowedBlock((2, 3), 16, 2, **sizes)
        >>> tuple(block(keras.random.normal((2, 6, 12)), images).shape)
        (2, 6, 12)
    """

    def __init__(self, grid: Pair, patch_size: int, window_size: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.grid: Any = tuple(int(n) for n in grid)
        self.patch_size = check_positive_int("patch_size", patch_size)
        self.window_size = None if window_size is None else check_positive_int("window_size", window_size)
        own = self.grid if window_size is None else (window_size, window_size)
        self.positions = AxisPositions(
            own, self.hidden_size // self.num_heads, dtype=self.dtype_policy, name="positions"
        )
        self.optional_inputs = ("feature_map",)
        if window_size is not None:  # zeros stand between the norm and what reads it, so it cannot be folded into that
            parts = (dataclasses.replace(part, norm=None) if part.norm == "norm_1" else part for part in self.parts)
            self.parts = tuple(parts)

    @classmethod
    def arguments(cls) -> tuple[str, ...]:
        return tuple(name for name in super().arguments() if name not in _NOT_WINDOWED)

    def build(self, tokens_shape: Shape, feature_map_shape: Shape | None = None) -> None:
        super().build(tokens_shape)
        self.build_sublayers((self.positions, (None, self.num_heads, None, self.hidden_size // self.num_heads)))

    def call(  # type: ignore[override]  # takes no rotation
        self, tokens: Tensor, feature_map: Tensor = None, training: bool | None = None
    ) -> Tensor:
        height, width = (side // self.patch_size for side in ops.shape(feature_map)[1:3])
        compute = functools.partial(self.compute, training=training, height=height, width=width)
        return recomputed(self, compute, kernels.remat(self.rematerialize, training), self.cast_input(tokens))

    if keras.backend.backend() == "torch":  # whose modules are called by this name
        forward = keras.layers.Layer.forward

    def compute(self, tokens: Tensor, training: bool | None, height: Any, width: Any) -> Tensor:
        """Equations 2 and 3, with attention in windows."""
        norm_1, norm_2 = self.norms_before
        x, side = norm_1(tokens, training=training), self.window_size
        if side is None:
            x = self._attend(x, (height, width), training)
        else:
            x = self._attend(_windows(x, height, width, side), (side, side), training)
            x = _joined(x, height, width, side)
        x = tokens + self.after_attention(x, training)
        return x + self.after_mlp(self.mlp(norm_2(x, training=training), training=training), training)

    def _attend(self, x: Tensor, sides: tuple[Any, Any], training: bool | None) -> Tensor:
        attention = self.attention
        query, key, value = attention.project(x)
        heads = ops.transpose(attention.split(query, attention.query_norm), (0, 2, 1, 3))  # (B, A, N, D/A)
        if attention.query_scale is None:  # its kernel has the scale
            heads = heads * heads.shape[-1] ** 0.5
        return attention.attend(query, key, value, training, bias=self.positions(heads, sides=sides))


_NOT_WINDOWED = ("relative_patches", "num_prefix_tokens", "rotary_layout", "use_attention_bias")


def _windows(tokens: Tensor, height: Any, width: Any, side: int) -> Tensor:
    """Tokens of each window, `(B * windows, side * side, D)`, with zeros where the map ends before the last ones."""
    size = tokens.shape[-1]
    maps = ops.reshape(tokens, (-1, height, width, size))
    for axis, length in ((1, height), (2, width)):
        if not isinstance(length, int) or length % side:
            shape = list(ops.shape(maps))
            shape[axis] = -length % side
            maps = ops.concatenate([maps, ops.zeros(shape, maps.dtype)], axis=axis)
    rows, columns = _count(height, side), _count(width, side)
    maps = ops.reshape(maps, (-1, rows, side, columns, side, size))
    return ops.reshape(ops.transpose(maps, (0, 1, 3, 2, 4, 5)), (-1, side * side, size))


def _joined(windows: Tensor, height: Any, width: Any, side: int) -> Tensor:
    """The reverse: `(B, N, D)`, without what was padded."""
    size, rows, columns = windows.shape[-1], _count(height, side), _count(width, side)
    maps = ops.transpose(ops.reshape(windows, (-1, rows, columns, side, side, size)), (0, 1, 3, 2, 4, 5))
    maps = ops.reshape(maps, (-1, rows * side, columns * side, size))[:, :height, :width]
    return ops.reshape(maps, (-1, height * width, size))


def _count(length: Any, side: int) -> Any:
    return (length + side - 1) // side


@keras.saving.register_keras_serializable("keras_vit")
class Neck(CompositeLayer):
    """Makes a map of fewer channels of all patches: two convolutions without bias, each with a LayerNorm.

    Args:
        channels: C of the map.
        patch_size: P, side of a patch in pixels of the map that the patches were cut from.

    Call arguments:
        inputs: a list: tokens `(B, N, D)`, and `(B, H, W, ...)` that the patches were cut from, of which only H and W
            are read.

    Returns:
        `(B, h, w, C)`.

    Source: arXiv:2304.02643, appendix A, image encoder.

    Example:
        >>> neck = keras_vit.layers.Neck(5, patch_size=16)
        >>> tuple(neck([np.ones((2, 6, 12), "float32"), images]).shape)
        (2, 2, 3, 5)
    """

    def __init__(self, channels: int, patch_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.channels = check_positive_int("channels", channels)
        self.patch_size = check_positive_int("patch_size", patch_size)
        dtype = self.dtype_policy
        self.conv_1, self.conv_2 = (
            keras.layers.Conv2D(channels, side, padding="same", use_bias=False, dtype=dtype, name=f"conv_{number}")
            for number, side in ((1, 1), (2, 3))
        )
        self.norm_1, self.norm_2 = (layer_norm(dtype, f"norm_{number}") for number in (1, 2))

    def build(self, input_shape: Sequence[Shape]) -> None:
        wide = (None, None, None, self.channels)
        before = (None, None, None, input_shape[0][-1])
        pairs = ((self.conv_1, before), *((layer, wide) for layer in (self.norm_1, self.conv_2, self.norm_2)))
        self.build_sublayers(*pairs)

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        tokens, images = inputs
        height, width = (side // self.patch_size for side in ops.shape(images)[1:3])
        maps = ops.reshape(tokens, (-1, height, width, tokens.shape[-1]))
        return self.norm_2(self.conv_2(self.norm_1(self.conv_1(maps))))

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        batch, *sides, _ = input_shape[1]
        return (batch, *(side and side // self.patch_size for side in sides), self.channels)
