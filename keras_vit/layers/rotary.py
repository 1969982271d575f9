"""Rotary positions: attention turns queries and keys of patches by angles that stand for their row and column.

A head's channels are taken in pairs, and each pair is turned as a point of the plane. The product of a query and a key
so depends on how far apart their patches are. Prefix tokens are not turned, which is an angle of 0, but for a class
token with learned angles.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice, check_flag, check_positive_int
from keras_vit.config.records import ROTARY_AXES, ROTARY_COORDINATES, ROTARY_LAYOUTS, ROTARY_PERIODS, ROTATIONS
from keras_vit.layers.configurable import ConfiguredLayer, at_least_float32


@keras.saving.register_keras_serializable("keras_vit")
class RotaryPositions(ConfiguredLayer):
    """The cosines and sines by which `rotated` turns queries and keys, for the grid that arrives.

    It computes in at least float32, whatever the precision around it. Where the image's size is known, the table is
    computed once in float64 and rounded; but one of weights is computed in every call.

    Args:
        head_dim: D/A, width of a head, a multiple of 4.
        num_heads: A, read where angles are learned, since each head has its own.
        patch_size: P, side of a patch in pixels of the map that the patches were cut from.
        num_prefix_tokens: tokens before the patches, which are not turned but for `rotary_class_angles`.
        rotary: `"axial"`: the first half of the angles is for one axis, the second for the other. `"mixed"`: each angle
            is a learned sum of both.
        rotary_theta: frequencies are `rotary_theta ** (-4 k / head_dim)`, k = 0 ... head_dim / 4 - 1. Learned ones
            begin with those.
        rotary_layout: `"half"` pairs channel j with j + head_dim / 2, `"interleaved"` 2j with 2j + 1.
        rotary_axes: `"yx"` has rows first, `"xy"` columns.
        rotary_coordinates: `"unit"` is 2 pi (2 (i + 0.5) / n - 1) for row or column i of n, `"grid"` is i.
        rotary_offset: added to i on the grid.
        rotary_reference: side r of a grid to which i is scaled as i r / n, or `None` for none.
        rotary_periods: `"computed"`, or `"stored"`: those of axial angles, 1 over their frequencies, are a weight that
            does not learn, and has those values first.
        rotary_class_angles: whether the first of the prefix tokens, the class token, is turned by learned angles, one
            for each pair of channels; for axial angles alone.

    Call arguments:
        feature_map: `(B, H, W, ...)`, what the patches were cut from; only H and W are read.
        patch_indices: `(B, n)` integers, of the patches that training keeps where some are left out.

    Returns:
        `(1, 2, T, 1, D/A)`: for each token the cosines, then the sines, negative for the first channel of a pair. The
        first axis is B where training leaves patches out, and the fourth is A where angles are learned.

    Source: axial and mixed, arXiv:2403.13298, section 3; coordinates in [-1, 1], arXiv:2508.10104, section 3.2.

    Example:
        >>> rotary = keras_vit.layers.RotaryPositions(8, num_heads=3, patch_size=16)
        >>> tuple(rotary(images).shape)  # cosine and sine
        (1, 2, 6, 1, 8)
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        patch_size: int,
        num_prefix_tokens: int = 0,
        rotary: str = "axial",
        rotary_theta: float = 100.0,
        rotary_layout: str = "half",
        rotary_axes: str = "yx",
        rotary_coordinates: str = "unit",
        rotary_offset: float = 0.0,
        rotary_reference: int | None = None,
        rotary_periods: str = "computed",
        rotary_class_angles: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(dtype=at_least_float32(kwargs.pop("dtype", None)), **kwargs)
        check_choice("rotary", rotary, ROTATIONS[1:])
        check_choice("rotary_layout", rotary_layout, ROTARY_LAYOUTS)
        check_choice("rotary_axes", rotary_axes, ROTARY_AXES)
        check_choice("rotary_coordinates", rotary_coordinates, ROTARY_COORDINATES)
        check_choice("rotary_periods", rotary_periods, ROTARY_PERIODS)
        check_flag("rotary_class_angles", rotary_class_angles)
        if rotary_class_angles and (rotary != "axial" or not num_prefix_tokens):
            raise ValueError(
                "learned angles of a class token need that token and axial angles, which all heads share.\n"
                f"Received: rotary_class_angles=True, rotary={rotary!r}, num_prefix_tokens={num_prefix_tokens}."
            )
        self.head_dim = check_positive_int("head_dim", head_dim)
        self.num_heads = num_heads
        self.patch_size = patch_size
        self.num_prefix_tokens = num_prefix_tokens
        self.rotary = rotary
        self.rotary_theta = rotary_theta
        self.rotary_layout = rotary_layout
        self.rotary_axes = rotary_axes
        self.rotary_coordinates = rotary_coordinates
        self.rotary_offset = rotary_offset
        self.rotary_reference = rotary_reference
        self.rotary_periods = rotary_periods
        self.rotary_class_angles = rotary_class_angles

    def build(self, feature_map_shape: Shape, patch_indices_shape: Shape | None = None) -> None:
        if self.rotary == "mixed":
            shape = (2, self.num_heads, self.head_dim // 2)  # of the first axis and the second one
            self.frequencies = self.add_weight(name="frequencies", shape=shape, initializer=self._first_frequencies)
        elif self.rotary_periods == "stored":
            first = 1 / self._frequencies()
            self.periods = self.add_weight(
                name="periods",
                shape=first.shape,
                initializer=lambda *_, **__: ops.cast(first, self.variable_dtype),
                trainable=False,
            )
        if self.rotary_class_angles:
            deviation = (self.head_dim // 2) ** -0.5  # as transformers' MLCD begins
            initializer = keras.initializers.RandomNormal(stddev=deviation)
            self.class_angles = self.add_weight(
                name="class_angles", shape=(self.head_dim // 2,), initializer=initializer
            )

    def call(self, feature_map: Tensor, patch_indices: Tensor = None, training: bool | None = None) -> Tensor:
        grid = tuple(side // self.patch_size for side in ops.shape(feature_map)[1:3])
        table = self.table_at(grid)  # (2, T, 1, D/A)
        if patch_indices is None or not training:
            return table[None]
        prefix = ops.broadcast_to(
            ops.arange(self.num_prefix_tokens, dtype="int32"), (ops.shape(patch_indices)[0], self.num_prefix_tokens)
        )
        rows = ops.concatenate([prefix, patch_indices + self.num_prefix_tokens], axis=1)  # (B, T)
        return ops.transpose(ops.take(table, rows, axis=1), (1, 0, 2, 3, 4))

    def table_at(self, grid: Any) -> Tensor:
        """`(2, T, 1, D/A)`, or `(2, T, A, D/A)`, for a grid of ints or of scalar tensors."""
        known = not self.weights and all(isinstance(n, int) for n in grid)
        xp: Any = np if known else ops
        rows, columns = (self._coordinates(n, xp) for n in grid)
        rows, columns = rows[:, None, None, None], columns[None, :, None, None]  # (h, 1, 1, 1), (1, w, 1, 1)
        axes = (rows, columns) if self.rotary_axes == "yx" else (columns, rows)
        if self.rotary == "mixed":
            angles = axes[0] * self.frequencies[0] + axes[1] * self.frequencies[1]  # (h, w, A, D/A/2)
        else:
            frequencies = self._frequencies() if known else ops.cast(self._frequencies(), self.compute_dtype)
            if self.rotary_periods == "stored":
                frequencies = 1 / ops.cast(self.periods, self.compute_dtype)
            parts = [axis * frequencies + 0 * other for axis, other in zip(axes, axes[::-1], strict=True)]
            angles = xp.concatenate(parts, axis=-1)  # (h, w, 1, D/A/2)
        angles = xp.reshape(angles, (-1, *angles.shape[2:]))
        prefix = [xp.zeros_like(angles[:1])] * self.num_prefix_tokens
        if self.rotary_class_angles:
            prefix[0] = ops.cast(self.class_angles, angles.dtype)[None, None]
        angles = xp.concatenate([*prefix, angles], axis=0)
        cosines, sines = xp.cos(angles), xp.sin(angles)
        pairs = [(cosines, cosines), (-sines, sines)]  # of the first channels and the second ones
        table = xp.stack([_laid_out(*pair, self.rotary_layout, xp) for pair in pairs])
        return ops.cast(table, self.compute_dtype)

    def _coordinates(self, count: Any, xp: Any) -> Tensor:
        """What stands for each row or column of so many."""
        dtype = "float64" if xp is np else self.compute_dtype
        number = xp.arange(count, dtype=dtype)
        length = float(count) if xp is np else ops.cast(count, dtype)
        if self.rotary_coordinates == "unit":
            return 2 * math.pi * (2 * (number + 0.5) / length - 1)
        number = number + self.rotary_offset
        return number if self.rotary_reference is None else number * (self.rotary_reference / length)

    def _frequencies(self) -> np.ndarray:
        """`(D/A/4,)` of one axis."""
        return self.rotary_theta ** (-4 / self.head_dim * np.arange(self.head_dim // 4, dtype="float64"))

    def _first_frequencies(self, shape: Shape, dtype: Any = None) -> Tensor:
        """Two axes at right angles for each head, turned by a random angle of the head's own."""
        turned = keras.random.uniform((self.num_heads, 1), 0, 2 * math.pi)
        lengths = np.tile(self._frequencies(), (self.num_heads, 2))
        lengths = ops.cast(lengths, turned.dtype)  # (A, D/A/2)
        angles = turned + ops.cast(np.repeat([0, math.pi / 2], self.head_dim // 4), turned.dtype)
        return ops.cast(ops.stack([lengths * ops.cos(angles), lengths * ops.sin(angles)]), dtype)

    def compute_output_spec(
        self, feature_map: Tensor, patch_indices: Tensor = None, training: bool | None = None
    ) -> Any:
        grid = [side // self.patch_size for side in feature_map.shape[1:3] if side is not None]
        tokens = self.num_prefix_tokens + math.prod(grid) if len(grid) == 2 and patch_indices is None else None
        heads = self.num_heads if self.rotary == "mixed" else 1
        batch = 1 if patch_indices is None else None
        return keras.KerasTensor((batch, 2, tokens, heads, self.head_dim), self.compute_dtype)


def rotated(x: Tensor, rotation: Tensor, layout: str) -> Tensor:
    """Queries or keys with each pair of channels (a, b) turned by its angle t: a cos t - b sin t, b cos t + a sin t.

    Args:
        x: `(B, T, A, D/A)`.
        rotation: of a `RotaryPositions`, whose precision this is computed in.
        layout: `"half"` or `"interleaved"`, that of the rotation.

    Returns:
        As `x`.

    Source: arXiv:2104.09864, eq. 34.
    """
    wide = ops.cast(x, rotation.dtype)
    if layout == "half":
        first, second = ops.split(wide, 2, axis=-1)
        other = ops.concatenate([second, first], axis=-1)
    else:
        pairs = ops.reshape(wide, (*ops.shape(wide)[:3], -1, 2))
        other = ops.reshape(ops.flip(pairs, axis=-1), ops.shape(wide))  # half the time of a stack, on a CPU
    return ops.cast(wide * rotation[:, 0] + other * rotation[:, 1], x.dtype)


def _laid_out(first: Tensor, second: Tensor, layout: str, xp: Any) -> Tensor:
    """`(T, A, D/A)` of what is for the first channels of pairs and for the second ones, `(T, A, D/A/2)` each."""
    if layout == "half":
        return xp.concatenate([first, second], axis=-1)
    return xp.reshape(xp.stack([first, second], axis=-1), (-1, *first.shape[1:-1], 2 * first.shape[-1]))
