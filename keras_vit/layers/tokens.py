"""What happens to the patch tokens before the encoder: class token and position table (equation 1), patch dropout.

In the official code the class token is prepended first and has a row of the position table of its own.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Arguments, Pair, Shape, Tensor
from keras_vit.checks import check_choice, check_rate
from keras_vit.layers.dropout import uniform
from keras_vit.posembed import RESIZE_METHODS, resize_matrix, resize_pos_embed, sincos2d


@keras.saving.register_keras_serializable("keras_vit")
class ClassToken(keras.layers.Layer):
    """Prepends one learned token to the patch tokens.

    Call arguments:
        tokens: `(B, N, D)`.

    Returns:
        `(B, 1 + N, D)`.

    Source: arXiv:2010.11929, section 3.1, x_class in eq. 1.
    """

    def build(self, input_shape: Shape) -> None:
        self.token = self.add_weight(name="token", shape=(1, 1, input_shape[-1]), initializer="zeros")

    def call(self, tokens: Tensor) -> Tensor:
        token = ops.cast(self.token, tokens.dtype)
        token = ops.broadcast_to(token, (ops.shape(tokens)[0], 1, tokens.shape[-1]))  # (B, 1, D)
        return ops.concatenate([token, tokens], axis=1)  # (B, 1 + N, D)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, num_tokens, size = input_shape
        return (batch, None if num_tokens is None else num_tokens + 1, size)


@keras.saving.register_keras_serializable("keras_vit")
class AddPositionEmbs(keras.layers.Layer):
    """Adds a position table to the tokens, resized inside the graph if another grid arrives.

    Args:
        grid: `(h, w)` of the table.
        patch_size: P, side of a patch in pixels of the map that the patches were cut from.
        num_prefix_tokens: tokens before the patches, with rows of their own: 1 with a class token.
        kind: `"learned"`, or fixed `"sincos2d"`, computed anew for each grid (zeros for prefix tokens).
        resize_method: one of `keras_vit.posembed.RESIZE_METHODS`, for learned tables.

    Call arguments:
        tokens: `(B, num_prefix_tokens + N, D)`.
        cut_map: `(B, H, W, ...)`, what the patches were cut from; only H and W are read. Without
            it the tokens must have the table's grid.

    Returns:
        The shape of `tokens`.

    Source: arXiv:2010.11929, section 3.1 (E_pos in eq. 1) and 3.2 (2-D interpolation).
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
        check_choice("kind", kind, ("learned", "sincos2d"))
        check_choice("resize_method", resize_method, RESIZE_METHODS)
        self.grid: Any = tuple(int(n) for n in grid)
        self.patch_size = patch_size
        self.num_prefix_tokens = num_prefix_tokens
        self.kind = kind
        self.resize_method = resize_method

    def build(self, tokens_shape: Shape, cut_map_shape: Shape | None = None) -> None:
        rows = self.num_prefix_tokens + self.grid[0] * self.grid[1]
        if cut_map_shape is None and tokens_shape[1] not in (None, rows):
            raise ValueError(
                "`tokens` must have `num_prefix_tokens` tokens and one per patch of `grid` if no `cut_map` is given.\n"
                f"Received: {tokens_shape[1]} tokens, num_prefix_tokens={self.num_prefix_tokens}, grid={self.grid}."
            )
        if self.kind == "learned":
            self.table = self.add_weight(
                name="table",
                shape=(1, rows, tokens_shape[-1]),
                initializer=keras.initializers.RandomNormal(stddev=0.02),  # official code; big_vision: 1/sqrt(D)
            )
        else:
            self.table = _sincos_table(self.grid, tokens_shape[-1], self.num_prefix_tokens)

    def call(self, tokens: Tensor, cut_map: Tensor = None) -> Tensor:
        grid = self.grid
        if cut_map is not None:
            grid = tuple(side // self.patch_size for side in ops.shape(cut_map)[1:3])
        return tokens + ops.cast(self._table_for(grid, tokens.shape[-1]), tokens.dtype)

    def _table_for(self, grid, size):
        """`(1, T, D)` for a grid of ints, or of scalar tensors that only the graph knows."""
        known = all(isinstance(n, int) for n in grid)
        if known and tuple(grid) == self.grid:
            return self.table
        if known and self.kind == "sincos2d":
            return _sincos_table(grid, size, self.num_prefix_tokens)
        lengths = [ops.cast(n, "float32") for n in grid]
        indices = [ops.cast(ops.arange(n), "float32") for n in grid]
        if self.kind == "sincos2d":
            prefix = ops.zeros((1, self.num_prefix_tokens, size))
            rows, columns = indices
            patches = ops.expand_dims(sincos2d(rows, columns, size, xp=ops), 0)  # (1, N, D)
            return ops.concatenate([prefix, patches], axis=1)
        table = ops.cast(self.table, "float32")
        prefix, patches = table[:, : self.num_prefix_tokens], table[:, self.num_prefix_tokens :]
        rows, columns = (
            ops.cast(resize_matrix(i, n, old, self.resize_method, ops), "float32")
            for i, n, old in zip(indices, lengths, self.grid, strict=True)
        )
        patches = ops.reshape(patches, (*self.grid, size))  # (h, w, D)
        patches = ops.einsum("ih,hwd->iwd", rows, patches)
        patches = ops.einsum("jw,iwd->ijd", columns, patches)
        return ops.concatenate([prefix, ops.reshape(patches, (1, -1, size))], axis=1)  # (1, T, D)

    def table_at(self, grid: Pair) -> Tensor:
        """The table `(1, T, D)` as NumPy for `grid`; a learned one is resized by `resize_method`."""
        if self.kind == "sincos2d":
            return _sincos_table(grid, self.table.shape[-1], self.num_prefix_tokens)
        table = ops.convert_to_numpy(self.table)
        return resize_pos_embed(
            table, grid, self.grid, num_prefix_tokens=self.num_prefix_tokens, method=self.resize_method
        )

    def compute_output_shape(self, tokens_shape: Shape, cut_map_shape: Shape | None = None) -> Shape:
        return tuple(tokens_shape)

    def get_config(self) -> Arguments:
        return {
            **super().get_config(),
            "grid": self.grid,
            "patch_size": self.patch_size,
            "num_prefix_tokens": self.num_prefix_tokens,
            "kind": self.kind,
            "resize_method": self.resize_method,
        }


def _sincos_table(grid, size, num_prefix_tokens):
    patches = sincos2d(np.arange(grid[0], dtype="float64"), np.arange(grid[1], dtype="float64"), size)
    prefix = np.zeros((num_prefix_tokens, size))
    return np.concatenate([prefix, patches])[None].astype("float32")


@keras.saving.register_keras_serializable("keras_vit")
class PatchDropout(keras.layers.Layer):
    """While training, leaves patch tokens out; which, is drawn for every example by itself.

    The tokens must know their positions already. What is kept of N patch tokens is `max(1, floor(N * (1 - rate)))`
    of them, unscaled, in no order. Otherwise the layer is the identity.

    Args:
        rate: share that is left out, in [0, 1).
        num_prefix_tokens: tokens before the patches, which always stay.

    Call arguments:
        tokens: `(B, num_prefix_tokens + N, D)`.

    Returns:
        `(B, num_prefix_tokens + kept, D)` while training, else the shape of `tokens`.

    Source: PatchDropout, arXiv:2208.07220, section 3; fast image-language pre-training, arXiv:2212.00794.
    """

    def __init__(self, rate: float, num_prefix_tokens: int = 1, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_rate("rate", rate)
        self.rate = rate
        self.num_prefix_tokens = num_prefix_tokens
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)

    def call(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        if not training or self.rate == 0:
            return tokens
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        # Numbers drawn for every patch: the first ones in their order are a set drawn without putting back.
        noise = uniform(ops.shape(patches)[:2], self.seed_generator)
        kept = ops.argsort(noise, axis=1)[:, : self._count(patches.shape[1], ops.shape(patches)[1])]  # (B, kept)
        patches = ops.take_along_axis(patches, ops.expand_dims(kept, -1), axis=1)  # (B, kept, D)
        return ops.concatenate([prefix, patches], axis=1)

    def _count(self, known, counted):
        """How many patches are kept: an int, as XLA needs it, wherever the graph knows their number."""
        if known is not None:
            return kept_patches(known, self.rate)
        return ops.maximum(1, ops.cast(ops.cast(counted, "float32") * (1 - self.rate) + 1e-3, "int32"))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, num_tokens, size = input_shape
        return (batch, num_tokens if self.rate == 0 else None, size)

    def get_config(self) -> Arguments:
        return {
            **super().get_config(),
            "rate": self.rate,
            "num_prefix_tokens": self.num_prefix_tokens,
            "seed": self.seed,
        }


def kept_patches(number, rate) -> int:
    """How many of `number` patch tokens `PatchDropout` keeps."""
    return max(1, int(number * (1 - rate) + 1e-6))  # 10 * (1 - 0.8) is 1.9999999999999996
