"""How a model knows where its patches are: tables that are added to tokens (E_pos in equation 1).

In the official code the class token is prepended first and has a row of the position table of its own. The other kinds
are those of appendix D.4, which leaves the class token open. Here it has a vector of its own where there is a table.
Where positions are relative, no distance is added to its logits.
"""

from typing import Any, cast

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Pair, Shape, Tensor, Variable
from keras_vit.checks import check_choice
from keras_vit.config.position_tables import CROPPED, RESIZE_METHODS, resize_matrix, resize_pos_embed, sincos2d
from keras_vit.layers.configurable import ConfiguredLayer

KINDS = ("learned", "learned2d", "sincos2d")


@keras.saving.register_keras_serializable("keras_vit")
class AddPositionEmbs(ConfiguredLayer):
    """Adds a position table to the tokens, resized inside the graph if another grid arrives.

    Args:
        grid: `(h, w)` of the table.
        patch_size: P, side of a patch in pixels of the map that the patches were cut from.
        num_prefix_tokens: tokens before the patches, with rows of their own: 1 with a class token.
        kind: `"learned"`, a vector for each patch; `"learned2d"`, the first half of it for the patch's column and the
            second for its row. `"sincos2d"` is fixed, computed for each grid, and 0 for prefix tokens.
        resize_method: one of `keras_vit.config.position_tables.RESIZE_METHODS`, for learned tables.

    Call arguments:
        tokens: `(B, num_prefix_tokens + N, D)`.
        cut_map: `(B, H, W, ...)`, what the patches were cut from; only H and W are read. Without
            it the tokens must have the table's grid.
        grids: integers `(B, 2)`, `(h, w)` of each image, whose patches are the first h * w; the others are padding.

    Returns:
        The shape of `tokens`.

    Source: arXiv:2010.11929, section 3.1 (E_pos in eq. 1), 3.2 (2-D interpolation) and D.4 (kinds).

    Example:
        >>> add = keras_vit.layers.AddPositionEmbs(grid=(2, 3), patch_size=16)
        >>> tokens = keras.random.normal((2, 7, 12))
        >>> tuple(add(tokens).shape)  # a class token and 6 patches
        (2, 7, 12)
    """

    def __init__(
        self,
        grid: Pair,
        patch_size: int,
        num_prefix_tokens: int = 1,
        kind: str = "learned",
        resize_method: str = "align_corners",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("kind", kind, KINDS)
        check_choice("resize_method", resize_method, RESIZE_METHODS)
        self.grid: Any = tuple(int(n) for n in grid)
        self.patch_size = patch_size
        self.num_prefix_tokens = num_prefix_tokens
        self.kind = kind
        self.resize_method = resize_method

    def build(self, tokens_shape: Shape, cut_map_shape: Shape | None = None, grids_shape: Shape | None = None) -> None:
        rows, size = self.num_prefix_tokens + self.grid[0] * self.grid[1], cast(int, tokens_shape[-1])
        if cut_map_shape is None and grids_shape is None and tokens_shape[1] not in (None, rows):
            raise ValueError(
                "`tokens` must have `num_prefix_tokens` tokens and one per patch of `grid` if no `cut_map` is given.\n"
                f"Received: {tokens_shape[1]} tokens, num_prefix_tokens={self.num_prefix_tokens}, grid={self.grid}."
            )
        if self.kind == "learned":
            self.table = self._table("table", rows, size)
        elif self.kind == "sincos2d":
            self.table = _sincos_table(self.grid, size, self.num_prefix_tokens)
        elif size % 2:
            raise ValueError(f"half of a token is for its column, so its size must be even.\nReceived: {size}.")
        else:
            self.columns = self._table("columns", self.grid[1], size // 2)
            self.rows = self._table("rows", self.grid[0], size // 2)
            self.prefix = self._table("prefix", self.num_prefix_tokens, size) if self.num_prefix_tokens else None

    def _table(self, name: str, rows: int, size: int) -> Variable:
        normal = keras.initializers.RandomNormal(stddev=0.02)  # official code; big_vision: 1/sqrt(D)
        return self.add_weight(name=name, shape=(1, rows, size), initializer=normal)

    def call(self, tokens: Tensor, cut_map: Tensor = None, grids: Tensor = None) -> Tensor:
        if grids is not None:
            return tokens + ops.cast(self._tables_for(grids, ops.shape(tokens)[1]), tokens.dtype)
        grid = self.grid
        if cut_map is not None:
            grid = tuple(side // self.patch_size for side in ops.shape(cut_map)[1:3])
        return tokens + ops.cast(self._table_for(grid, tokens.shape[-1]), tokens.dtype)

    def _table_for(self, grid: Any, size: int) -> Tensor:
        """`(1, T, D)` for a grid of ints, or of scalar tensors that only the graph knows."""
        known = all(isinstance(n, int) for n in grid)
        if known and tuple(grid) == self.grid and self.kind != "learned2d":
            return self.table
        if known and self.kind == "sincos2d":
            return _sincos_table(grid, size, self.num_prefix_tokens)
        if self.kind == "sincos2d":
            rows, columns = (ops.cast(ops.arange(n), "float32") for n in grid)
            patches = ops.expand_dims(sincos2d(rows, columns, size, xp=ops), 0)  # (1, N, D)
            return ops.concatenate([ops.zeros((1, self.num_prefix_tokens, size)), patches], axis=1)
        ratio = max(self.grid) / ops.cast(ops.maximum(*grid), "float32")
        if self.kind == "learned2d":
            parts = (ops.cast(part, "float32") for part in (self.rows, self.columns))
            rows, columns = (
                part
                if known and n == old and self.resize_method != CROPPED
                else ops.matmul(axis_matrix(n, old, self.resize_method, 0.0, ratio), part)
                for part, n, old in zip(parts, grid, self.grid, strict=True)
            )
            prefix = None if self.prefix is None else ops.cast(self.prefix, "float32")
            return _joined(prefix, rows, columns, ops)
        table = ops.cast(self.table, "float32")
        prefix, patches = table[:, : self.num_prefix_tokens], table[:, self.num_prefix_tokens :]
        method, added = self._method_and_offset(*grid)
        rows, columns = (axis_matrix(n, old, method, added, ratio) for n, old in zip(grid, self.grid, strict=True))
        patches = ops.reshape(patches, (*self.grid, size))  # (h, w, D)
        patches = ops.einsum("ih,hwd->iwd", rows, patches)
        patches = ops.einsum("jw,iwd->ijd", columns, patches)
        return ops.concatenate([prefix, ops.reshape(patches, (1, -1, size))], axis=1)  # (1, T, D)

    def _method_and_offset(self, height: Any, width: Any) -> tuple[str, Any]:
        """The rule for grids that only the graph knows, and what it adds to their lengths in the scale."""
        if self.resize_method != "bicubic_offset":
            return self.resize_method, 0.0
        other = ops.logical_or(ops.not_equal(height, self.grid[0]), ops.not_equal(width, self.grid[1]))
        return "bicubic", 0.1 * ops.cast(other, "float32")  # a grid of the table's size stays as it is

    def _tables_for(self, grids: Tensor, num_tokens: Any) -> Tensor:
        """`(B, T, D)`, each image's table resized to its own grid; padding gets that of the first patch."""
        height, width = ops.maximum(grids[:, :1], 1), ops.maximum(grids[:, 1:], 1)  # (B, 1)
        places = ops.arange(num_tokens - self.num_prefix_tokens, dtype=grids.dtype)[None]
        places = ops.where(places < height * width, places, 0)  # (B, N)
        ratio = max(self.grid) / ops.cast(ops.maximum(height, width), "float32")
        method, added = self._method_and_offset(height, width)
        on_axes = ((places // width, height, self.grid[0]), (places % width, width, self.grid[1]))
        rows, columns = (  # (B, N, h), (B, N, w) of the table
            resize_matrix(ops.cast(i, "float32"), ops.cast(new, "float32") + added, old, method, ops, ratio)
            for i, new, old in on_axes
        )
        if self.kind == "learned2d":
            halves = [
                ops.matmul(matrix, ops.cast(part[0], "float32"))
                for matrix, part in ((columns, self.columns), (rows, self.rows))
            ]
            patches, prefix = ops.concatenate(halves, axis=-1), self.prefix  # (B, N, D)
        else:
            weights = ops.reshape(rows[..., :, None] * columns[..., None, :], (*ops.shape(places), -1))
            prefix, table = self.table[:, : self.num_prefix_tokens], self.table[0, self.num_prefix_tokens :]
            patches = ops.matmul(weights, ops.cast(table, "float32"))  # (B, N, D)
        if not self.num_prefix_tokens:
            return patches
        prefix = ops.repeat(ops.cast(prefix, "float32"), ops.shape(grids)[0], axis=0)
        return ops.concatenate([prefix, patches], axis=1)

    def table_at(self, grid: Pair) -> Tensor:
        """The table `(1, T, D)` as NumPy for `grid`; a learned one is resized by `resize_method`."""
        if self.kind == "sincos2d":
            return _sincos_table(grid, self.table.shape[-1], self.num_prefix_tokens)
        values = self.weights_at(grid)
        if self.kind == "learned":
            return values["table"]
        return _joined(values.get("prefix"), values["rows"], values["columns"], np)

    def weights_at(self, grid: Pair, resize_method: str | None = None) -> dict[str, np.ndarray]:
        """The values of the weights by name, resized for `grid`."""
        method = resize_method or self.resize_method
        values = {weight.name: ops.convert_to_numpy(weight) for weight in self.weights}
        if self.kind == "learned":
            prefix = self.num_prefix_tokens
            return {
                "table": resize_pos_embed(values["table"], grid, self.grid, num_prefix_tokens=prefix, method=method)
            }
        sides = {"rows": (grid[0], self.grid[0]), "columns": (grid[1], self.grid[1])}
        ratio = max(self.grid) / max(grid)
        return {
            name: resized_axis(v, *sides[name], method, ratio) if name in sides else v for name, v in values.items()
        }

    def compute_output_shape(
        self, tokens_shape: Shape, cut_map_shape: Shape | None = None, grids_shape: Shape | None = None
    ) -> Shape:
        return tuple(tokens_shape)


def resized_axis(values: np.ndarray, new: int, old: int, method: str, ratio: float | None = None) -> np.ndarray:
    """Vectors `(..., old, D)` interpolated to `(..., new, D)`; as they are where the grids are equal."""
    if new == old and ratio in (None, 1.0):
        return values
    matrix = resize_matrix(np.arange(new, dtype="float64"), float(new), old, method, np, ratio)
    return (matrix @ values.astype("float64")).astype(values.dtype)


def axis_matrix(new: Any, old: int, method: str, added: Any = 0.0, ratio: Any = None) -> Tensor:
    """`(new, old)` in float32, of an int or of a scalar tensor; `added` goes to the new length in the scale."""
    indices, length = ops.cast(ops.arange(new), "float32"), ops.cast(new, "float32") + added
    return ops.cast(resize_matrix(indices, length, old, method, ops, ratio), "float32")


def _joined(prefix: Tensor, rows: Tensor, columns: Tensor, xp: Any) -> Tensor:
    """`(1, T, D)`: for each patch the vector of its column, then that of its row, behind those of prefix tokens."""
    rows, columns = xp.expand_dims(rows, 2), xp.expand_dims(columns, 1)  # (1, h, 1, D/2), (1, 1, w, D/2)
    halves = [columns + xp.zeros_like(rows), rows + xp.zeros_like(columns)]
    patches = xp.reshape(xp.concatenate(halves, axis=-1), (1, -1, 2 * rows.shape[-1]))  # (1, N, D)
    return patches if prefix is None else xp.concatenate([prefix, patches], axis=1)


def _sincos_table(grid: Pair, size: int, num_prefix_tokens: int) -> np.ndarray:
    patches = sincos2d(np.arange(grid[0], dtype="float64"), np.arange(grid[1], dtype="float64"), size)
    prefix = np.zeros((num_prefix_tokens, size))
    return np.concatenate([prefix, patches])[None].astype("float32")
