"""BEiT's relative position bias: what each head adds to its logits for the offset of two patches (arXiv:2106.08254)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Pair, Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.config.position_tables import (
    CLASS_ROWS,
    RELATIVE_RESIZE_METHODS,
    geometric_offsets,
    linear_matrix,
    offset_matrix,
    ratios_of,
    relative_rows,
    resize_matrix,
    resize_relative_table,
)
from keras_vit.layers.configurable import ConfiguredLayer, at_least_float32


@keras.saving.register_keras_serializable("keras_vit")
class RelativeBias(ConfiguredLayer):
    """A learned number for each head and offset of two patches, and three for the class token before them.

    Computed in at least float32.

    Args:
        grid: `(h, w)` of the table.
        num_heads: A.
        patch_size: P, side of a patch in pixels of the map that the patches were cut from.
        resize_method: of the table for another grid: `"geometric_linear"`, `"geometric_cubic"` or `"bilinear"`, see
            `keras_vit.config.position_tables`.

    Call arguments:
        cut_map: `(B, H, W, ...)`, what the patches were cut from; only H and W are read.
        places: `(B, n)` integers, in reading order, of the patches that training has not left out.

    Returns:
        `(1, A, 1 + N, 1 + N)` for queries and keys, to be added to the scaled logits; in training with `places`
        `(B, A, 1 + n, 1 + n)`.

    Raises:
        ValueError: for a spline where only the graph knows the grid.

    Source: arXiv:2106.08254, section 3.1, with the table of arXiv:2103.14030, section 3.2.

    Example:
        >>> bias = keras_vit.layers.RelativeBias(grid=(2, 3), num_heads=3, patch_size=16)
        >>> tuple(bias(images).shape)
        (1, 3, 7, 7)
    """

    def __init__(
        self,
        grid: Pair,
        num_heads: int,
        patch_size: int,
        resize_method: str = "geometric_linear",
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype=at_least_float32(kwargs.pop("dtype", None)), **kwargs)
        check_choice("resize_method", resize_method, RELATIVE_RESIZE_METHODS)
        self.grid: Any = tuple(int(n) for n in grid)
        self.num_heads = check_positive_int("num_heads", num_heads)
        self.patch_size = check_positive_int("patch_size", patch_size)
        self.resize_method = resize_method

    def build(self, cut_map_shape: Shape, places_shape: Shape | None = None) -> None:
        shape = (relative_rows(self.grid), self.num_heads)
        self.table = self.add_weight(name="table", shape=shape, initializer="zeros")  # as the authors

    def call(self, cut_map: Tensor, places: Tensor = None, training: bool | None = None) -> Tensor:
        height, width = (side // self.patch_size for side in ops.shape(cut_map)[1:3])
        if places is None or not training:
            places = ops.arange(height * width, dtype="int32")
        codes = places + places // width * (width - 1)  # a row of the table is 2w - 1 offsets long
        middle = CLASS_ROWS + 2 * height * width - height - width
        index = middle + ops.expand_dims(codes, -1) - ops.expand_dims(codes, -2)  # (..., N, N)
        before = [(0, 0)] * (len(index.shape) - 1) + [(1, 0)]
        of_class = ops.pad(ops.zeros_like(index[..., :1, :]), before, constant_values=2)  # row 2 is for it to itself
        index = ops.concatenate([of_class, ops.pad(index, before, constant_values=1)], axis=-2)
        bias = ops.moveaxis(ops.take(self._table_for((height, width)), index, axis=0), -1, -3)  # (..., A, T, T)
        return bias if len(bias.shape) == 4 else ops.expand_dims(bias, 0)

    def _table_for(self, grid: Any) -> Tensor:
        """The table for a grid of ints, or of scalar tensors that only the graph knows, with the class rows first."""
        patches, of_class = self.table[:-CLASS_ROWS], self.table[-CLASS_ROWS:]
        if not all(isinstance(n, int) for n in grid) or tuple(grid) != self.grid:
            rows, columns = self._matrices(grid)
            patches = ops.reshape(patches, (2 * self.grid[0] - 1, 2 * self.grid[1] - 1, self.num_heads))
            patches = ops.einsum("ih,hwa->iwa", ops.cast(rows, patches.dtype), patches)
            patches = ops.einsum("jw,iwa->ija", ops.cast(columns, patches.dtype), patches)
        return ops.concatenate([of_class, ops.reshape(patches, (-1, self.num_heads))])

    def _matrices(self, grid: Any) -> list:
        if all(isinstance(n, int) for n in grid):
            return [offset_matrix(new, old, self.resize_method) for new, old in zip(grid, self.grid, strict=True)]
        if self.resize_method == "geometric_cubic":
            raise ValueError(
                "a spline through the table's offsets is made where the size of images is known.\n"
                'Received: images of any size, resize_method="geometric_cubic". Pass `input_shape=`, or '
                'resize_method="geometric_linear".'
            )
        same = ops.logical_and(ops.equal(grid[0], self.grid[0]), ops.equal(grid[1], self.grid[1]))
        return [self._matrix(new, old, same) for new, old in zip(grid, self.grid, strict=True)]

    def _matrix(self, new: Any, old: int, same: Tensor) -> Tensor:
        """The matrix of one axis where the graph knows the grid; a progression of ratio 1 leaves the table as it is."""
        count = 2 * new - 1
        if self.resize_method == "bilinear":
            indices = ops.cast(ops.arange(count), "float32")
            return resize_matrix(indices, ops.cast(count, "float32"), 2 * old - 1, "bilinear", ops)
        ratios = ops.convert_to_tensor(ratios_of(old))
        ratio = ops.where(same, 1.0, ops.take(ratios, ops.minimum(new, len(ratios_of(old))) - 1))
        targets = ops.cast(ops.arange(count), "float32") - ops.cast(new - 1, "float32")
        return linear_matrix(targets, geometric_offsets(ratio, old, ops), ops)

    def weights_at(self, grid: Pair, resize_method: str | None = None) -> dict[str, np.ndarray]:
        """The values of the weights by name, resized for `grid`."""
        table = ops.convert_to_numpy(self.table)
        return {"table": resize_relative_table(table, grid, self.grid, resize_method or self.resize_method)}

    def compute_output_shape(self, cut_map_shape: Shape, places_shape: Shape | None = None) -> Shape:
        height, width = cut_map_shape[1:3]
        known = places_shape is None and None not in (height, width)
        tokens = 1 + (height // self.patch_size) * (width // self.patch_size) if known else None  # type: ignore[operator]
        return (1 if places_shape is None else None, self.num_heads, tokens, tokens)
