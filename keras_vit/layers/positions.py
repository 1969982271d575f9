"""How a model knows where its patches are: tables added to tokens (E_pos in equation 1), or to attention's logits.

In the official code the class token is prepended first and has a row of the position table of its own. The other kinds
are those of appendix D.4, which leaves the class token open. Here it has a vector of its own where there is a table.
Where positions are relative, no distance is added to its logits. BEiT's bias has numbers for the class token.
"""

from typing import Any, cast

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Pair, Shape, Tensor, Variable
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.config.position_tables import (
    CLASS_ROWS,
    CROPPED,
    RELATIVE_RESIZE_METHODS,
    RESIZE_METHODS,
    geometric_offsets,
    linear_matrix,
    offset_matrix,
    ratios_of,
    relative_rows,
    resize_matrix,
    resize_pos_embed,
    resize_relative_table,
    sincos2d,
)
from keras_vit.config.records import ADDED_POSITIONS, FIXED_POSITIONS
from keras_vit.layers.configurable import ConfiguredLayer, at_least_float32

KINDS = ADDED_POSITIONS


@keras.saving.register_keras_serializable("keras_vit")
class AddPositionEmbs(ConfiguredLayer):
    """Adds a position table to the tokens, resized inside the graph if another grid arrives.

    Args:
        grid: `(h, w)` of the table.
        patch_size: P, side of a patch in pixels of the map that the patches were cut from.
        num_prefix_tokens: tokens before the patches, with rows of their own: 1 with a class token.
        kind: `"learned"`, a vector for each patch; `"learned2d"`, the first half of it for the patch's column and the
            second for its row. `"sincos2d"` and `"sincos2d_mae"` are fixed, computed for each grid, and 0 for prefix
            tokens.
        resize_method: one of `keras_vit.config.position_tables.RESIZE_METHODS`, for learned tables.

    Call arguments:
        tokens: `(B, num_prefix_tokens + N, D)`.
        feature_map: `(B, H, W, ...)`, what the patches were cut from; only H and W are read. Without
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

    def build(
        self, tokens_shape: Shape, feature_map_shape: Shape | None = None, grids_shape: Shape | None = None
    ) -> None:
        rows, size = self.num_prefix_tokens + self.grid[0] * self.grid[1], cast(int, tokens_shape[-1])
        if feature_map_shape is None and grids_shape is None and tokens_shape[1] not in (None, rows):
            raise ValueError(
                "`tokens` must have `num_prefix_tokens` tokens and one per patch of `grid` without a `feature_map`.\n"
                f"Received: {tokens_shape[1]} tokens, num_prefix_tokens={self.num_prefix_tokens}, grid={self.grid}."
            )
        if self.kind == "learned":
            self.table = self._table("table", rows, size)
        elif self.kind in FIXED_POSITIONS:
            self.table = _sincos_table(self.grid, size, self.num_prefix_tokens, self.kind)
        elif size % 2:
            raise ValueError(f"half of a token is for its column, so its size must be even.\nReceived: {size}.")
        else:
            self.columns = self._table("columns", self.grid[1], size // 2)
            self.rows = self._table("rows", self.grid[0], size // 2)
            self.prefix = self._table("prefix", self.num_prefix_tokens, size) if self.num_prefix_tokens else None

    def _table(self, name: str, rows: int, size: int) -> Variable:
        normal = keras.initializers.RandomNormal(stddev=0.02)  # official code; big_vision: 1/sqrt(D)
        return self.add_weight(name=name, shape=(1, rows, size), initializer=normal)

    def call(self, tokens: Tensor, feature_map: Tensor = None, grids: Tensor = None) -> Tensor:
        if grids is not None:
            return tokens + ops.cast(self._tables_for(grids, ops.shape(tokens)[1]), tokens.dtype)
        grid = self.grid
        if feature_map is not None:
            grid = tuple(side // self.patch_size for side in ops.shape(feature_map)[1:3])
        known = all(isinstance(n, int) for n in grid)
        if known and grid == self.grid and self.kind != "learned2d":  # the usual case: the table's own grid
            return tokens + ops.cast(self.table, tokens.dtype)
        return tokens + ops.cast(self._table_for(grid, known, tokens.shape[-1]), tokens.dtype)

    def _table_for(self, grid: Any, known: bool, size: int) -> Tensor:
        """`(1, T, D)` for another grid, of known ints or of scalar tensors that only the graph knows."""
        if known and self.kind in FIXED_POSITIONS:
            return _sincos_table(grid, size, self.num_prefix_tokens, self.kind)
        if self.kind in FIXED_POSITIONS:
            rows, columns = (ops.cast(ops.arange(n, dtype="int32"), "float32") for n in grid)
            patches = ops.expand_dims(sincos2d(rows, columns, size, ops, self.kind), 0)  # (1, N, D)
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
        patch_indices = ops.arange(num_tokens - self.num_prefix_tokens, dtype=grids.dtype)[None]
        patch_indices = ops.where(patch_indices < height * width, patch_indices, 0)  # (B, N)
        ratio = max(self.grid) / ops.cast(ops.maximum(height, width), "float32")
        method, added = self._method_and_offset(height, width)
        on_axes = ((patch_indices // width, height, self.grid[0]), (patch_indices % width, width, self.grid[1]))
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
            weights = ops.reshape(rows[..., :, None] * columns[..., None, :], (*ops.shape(patch_indices), -1))
            prefix, table = self.table[:, : self.num_prefix_tokens], self.table[0, self.num_prefix_tokens :]
            patches = ops.matmul(weights, ops.cast(table, "float32"))  # (B, N, D)
        if not self.num_prefix_tokens:
            return patches
        prefix = ops.repeat(ops.cast(prefix, "float32"), ops.shape(grids)[0], axis=0)
        return ops.concatenate([prefix, patches], axis=1)

    def table_at(self, grid: Pair) -> Tensor:
        """The table `(1, T, D)` as NumPy for `grid`; a learned one is resized by `resize_method`."""
        if self.kind in FIXED_POSITIONS:
            return _sincos_table(grid, self.table.shape[-1], self.num_prefix_tokens, self.kind)
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
        self, tokens_shape: Shape, feature_map_shape: Shape | None = None, grids_shape: Shape | None = None
    ) -> Shape:
        return tuple(tokens_shape)


@keras.saving.register_keras_serializable("keras_vit")
class PositionOffset(ConfiguredLayer):
    """Adds one learned vector to all tokens.

    Call arguments:
        tokens: `(B, N, D)`.

    Returns:
        `(B, N, D)`.

    Source: ViTPose, arXiv:2204.12484, as its code adds the position of a class token to patches.

    Example:
        >>> tokens = keras.random.normal((2, 6, 12))
        >>> tuple(keras_vit.layers.PositionOffset()(tokens).shape)
        (2, 6, 12)
    """

    def build(self, tokens_shape: Shape) -> None:
        self.token = self.add_weight(name="token", shape=(1, 1, tokens_shape[-1]), initializer="zeros")

    def call(self, tokens: Tensor) -> Tensor:
        return tokens + ops.cast(self.token, tokens.dtype)

    def compute_output_shape(self, tokens_shape: Shape) -> Shape:
        return tuple(tokens_shape)


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
        patch_indices: `(B, n)` integers in [0, N), in reading order, of the patches among the tokens where some are
            left out; by default all N are there. Or these, and the tokens before that `(B, num_prefix_tokens + N, D)`,
            of which only N is read.
        num_patches: N of these images, an int or a scalar, with `patch_indices`; by default the layer's.

    Returns:
        `(B, A, T, T)`, to be added before the softmax.

    Source: arXiv:2010.11929, section D.4: one-dimensional relative attention; its offsets are p_q - p_k, here
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
        shape = (2 * self.num_patches - 1, self.hidden_size)  # row N - 1 + d is for a key d patches after the query
        self.table = self.add_weight(name="table", shape=shape, initializer=normal)

    def call(self, query: Tensor, patch_indices: Any = None, num_patches: Any = None) -> Tensor:
        prefix, heads = self.num_prefix_tokens, self.num_heads
        count = ops.shape(query)[2] - prefix  # N
        if isinstance(patch_indices, (tuple, list)):
            patch_indices, every_token = patch_indices
            num_patches = ops.shape(every_token)[1] - prefix
        if patch_indices is not None:
            count = self.num_patches if num_patches is None else num_patches
        vectors = ops.cast(self._table_for(count), query.dtype)
        vectors = ops.transpose(ops.reshape(vectors, (-1, heads, self.hidden_size // heads)), (1, 2, 0))
        logits = ops.matmul(query[:, :, prefix:], vectors)  # (B, A, N, 2N - 1)
        if patch_indices is not None:
            distances = (
                count - 1 + patch_indices[:, None] - patch_indices[:, :, None]
            )  # (B, n, n), of a key after a query
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
        feature_map: `(B, H, W, ...)`, what the patches were cut from; only H and W are read.
        patch_indices: `(B, n)` integers, in reading order, of the patches that training has not left out.

    Returns:
        `(1, A, 1 + N, 1 + N)` for queries and keys, to be added to the scaled logits; in training with `patch_indices`
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

    def build(self, feature_map_shape: Shape, patch_indices_shape: Shape | None = None) -> None:
        shape = (relative_rows(self.grid), self.num_heads)
        self.table = self.add_weight(name="table", shape=shape, initializer="zeros")  # as the authors

    def call(self, feature_map: Tensor, patch_indices: Tensor = None, training: bool | None = None) -> Tensor:
        height, width = (side // self.patch_size for side in ops.shape(feature_map)[1:3])
        if patch_indices is None or not training:
            patch_indices = ops.arange(height * width, dtype="int32")
        codes = patch_indices + patch_indices // width * (width - 1)  # a row of the table is 2w - 1 offsets long
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
            indices = ops.cast(ops.arange(count, dtype="int32"), "float32")
            return resize_matrix(indices, ops.cast(count, "float32"), 2 * old - 1, "bilinear", ops)
        ratios = ops.convert_to_tensor(ratios_of(old))
        ratio = ops.where(same, 1.0, ops.take(ratios, ops.minimum(new, len(ratios_of(old))) - 1))
        targets = ops.cast(ops.arange(count, dtype="int32"), "float32") - ops.cast(new - 1, "float32")
        return linear_matrix(targets, geometric_offsets(ratio, old, ops), ops)

    def weights_at(self, grid: Pair, resize_method: str | None = None) -> dict[str, np.ndarray]:
        """The values of the weights by name, resized for `grid`."""
        table = ops.convert_to_numpy(self.table)
        return {"table": resize_relative_table(table, grid, self.grid, resize_method or self.resize_method)}

    def compute_output_shape(self, feature_map_shape: Shape, patch_indices_shape: Shape | None = None) -> Shape:
        height, width = feature_map_shape[1:3]
        known = patch_indices_shape is None and None not in (height, width)
        tokens = 1 + (height // self.patch_size) * (width // self.patch_size) if known else None  # type: ignore[operator]
        return (1 if patch_indices_shape is None else None, self.num_heads, tokens, tokens)


def resized_axis(values: np.ndarray, new: int, old: int, method: str, ratio: float | None = None) -> np.ndarray:
    """Vectors `(..., old, D)` interpolated to `(..., new, D)`; as they are where the grids are equal."""
    if new == old and ratio in (None, 1.0):
        return values
    matrix = resize_matrix(np.arange(new, dtype="float64"), float(new), old, method, np, ratio)
    return (matrix @ values.astype("float64")).astype(values.dtype)


def axis_matrix(new: Any, old: int, method: str, added: Any = 0.0, ratio: Any = None) -> Tensor:
    """`(new, old)` in float32, of an int or of a scalar tensor; `added` goes to the new length in the scale."""
    indices, length = ops.cast(ops.arange(new, dtype="int32"), "float32"), ops.cast(new, "float32") + added
    return ops.cast(resize_matrix(indices, length, old, method, ops, ratio), "float32")


def _joined(prefix: Tensor, rows: Tensor, columns: Tensor, xp: Any) -> Tensor:
    """`(1, T, D)`: for each patch the vector of its column, then that of its row, after those of prefix tokens."""
    rows, columns = xp.expand_dims(rows, 2), xp.expand_dims(columns, 1)  # (1, h, 1, D/2), (1, 1, w, D/2)
    halves = [columns + xp.zeros_like(rows), rows + xp.zeros_like(columns)]
    patches = xp.reshape(xp.concatenate(halves, axis=-1), (1, -1, 2 * rows.shape[-1]))  # (1, N, D)
    return patches if prefix is None else xp.concatenate([prefix, patches], axis=1)


def _sincos_table(grid: Pair, size: int, num_prefix_tokens: int, kind: str) -> np.ndarray:
    patches = sincos2d(np.arange(grid[0], dtype="float64"), np.arange(grid[1], dtype="float64"), size, kind=kind)
    prefix = np.zeros((num_prefix_tokens, size))
    return np.concatenate([prefix, patches])[None].astype("float32")
