"""The head of UPerNet: maps of four sizes, means of the deepest over windows, and sums from the deepest upwards."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.dense.maps import adaptive_pool, resize
from keras_vit.layers.configurable import CompositeLayer
from keras_vit.layers.dense_heads.convolutions import (
    ConvBatchNormReLU,
    FCNHead,
    convolution,
    deconvolution,
    sides,
)
from keras_vit.layers.dense_heads.linear import batch_norm, kernel_flops

NECKS = ("pyramid", "multi_level", "none")
_FACTORS = (4, 2, 1)  # of the patch grid; the fourth map is half of it


@keras.saving.register_keras_serializable("keras_vit")
class TapPyramid(CompositeLayer):
    """Maps of 4, 2, 1 and 1/2 times the patch grid, one of each tap.

    Args:
        kind: `"pyramid"`, Feature2Pyramid of BEiT and MAE: transposed convolutions, the larger with BatchNorm and exact
            GELU between two, and the largest of four pixels; or `"multi_level"`, MultiLevelNeck: a convolution of one
            pixel, a bilinear resize, and a convolution of 3 x 3.
        channels: of the maps of `"multi_level"`; those of `"pyramid"` have D.

    Call arguments:
        taps: four maps `(B, h, w, D)`, at least 2 x 2, the first tap first.

    Returns:
        A list: `(B, 4 h, 4 w, D)`, `(B, 2 h, 2 w, D)`, `(B, h, w, D)` and `(B, h // 2, w // 2, D)`.

    Source: mmsegmentation 1.2.2; the pyramid is that of arXiv:2106.08254.

    Example:
        >>> maps = keras_vit.layers.TapPyramid()([np.ones((1, 3, 5, 8), "float32")] * 4)
        >>> [tuple(each.shape[1:3]) for each in maps]
        [(12, 20), (6, 10), (3, 5), (1, 2)]
    """

    def __init__(self, kind: str = "pyramid", channels: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("kind", kind, NECKS[:2])
        self.kind = kind
        self.channels = None if channels is None else check_positive_int("channels", channels)
        self.deconvolutions: list = []
        self.batch_norm = batch_norm(self.dtype_policy) if kind == "pyramid" else None
        self.laterals: list = []
        self.convolutions: list = []

    def build(self, input_shape: Sequence[Shape]) -> None:
        _check_grid(input_shape[0])
        width, dtype = int(input_shape[0][-1] or 0), self.dtype_policy
        taps = (None, None, None, width)
        if self.batch_norm is not None:
            names = ("up_0_first", "up_0_second", "up_1")
            self.deconvolutions = [deconvolution(width, 2, name, dtype) for name in names]
            self.build_sublayers(*((layer, taps) for layer in (*self.deconvolutions, self.batch_norm)))
            return
        channels = self.channels or width
        self.laterals = [convolution(channels, 1, f"lateral_{i}", dtype) for i in range(4)]
        self.convolutions = [convolution(channels, 3, f"level_{i}", dtype) for i in range(4)]
        of_level = ((layer, (None, None, None, channels)) for layer in self.convolutions)
        self.build_sublayers(*((layer, taps) for layer in self.laterals), *of_level)

    def call(self, taps: Sequence[Tensor], training: bool | None = None) -> list[Tensor]:
        _check_grid(taps[0].shape)
        if self.batch_norm is None:
            maps = [lateral(tap) for lateral, tap in zip(self.laterals, taps, strict=True)]
            maps = [resize(x, sides(x, n)) for x, n in zip(maps, _FACTORS, strict=False)] + [_halved(maps[3], "mean")]
            return [layer(x) for layer, x in zip(self.convolutions, maps, strict=True)]
        first, second, other = self.deconvolutions
        x = ops.gelu(self.batch_norm(first(taps[0]), training=training), approximate=False)
        return [second(x), other(taps[1]), taps[2], _halved(taps[3], "max")]

    def flops(self, h: int, w: int) -> int:
        if self.batch_norm is not None:
            first, second, other = self.deconvolutions
            return kernel_flops((first, other), h * w) + kernel_flops([second], 4 * h * w)
        levels = zip(self.convolutions, pyramid_places(h, w), strict=True)
        return kernel_flops(self.laterals, h * w) + sum(kernel_flops([layer], places) for layer, places in levels)

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> list[Shape]:
        batch, *grid, width = input_shape[0]
        channels = width if self.kind == "pyramid" else self.channels or width
        sizes = [[side and factor * side for side in grid] for factor in _FACTORS]
        return [(batch, *size, channels) for size in (*sizes, [side and side // 2 for side in grid])]


def pyramid_places(h: int, w: int) -> list[int]:
    """Pixels of the four maps of a pyramid."""
    return [*(factor**2 * h * w for factor in _FACTORS), (h // 2) * (w // 2)]


def _check_grid(tap: Shape) -> None:
    if 1 in tap[1:3]:
        raise ValueError(
            "maps of half the patch grid need at least two patches on each side.\n"
            f"Received: a grid of {tap[1]} x {tap[2]}. Pass larger images."
        )


def _halved(maps: Tensor, how: str) -> Tensor:
    """The largest or the mean of each 2 x 2 pixels; the mean is a bilinear resize by a factor of 1/2."""
    pool = ops.max_pool if how == "max" else ops.average_pool
    return pool(maps, 2, 2, "valid")


@keras.saving.register_keras_serializable("keras_vit")
class UPerNetHead(CompositeLayer):
    """Maps of four sizes, means of the deepest over windows, sums from the deepest upwards, and a convolution to K.

    Args:
        outputs: K, classes.
        channels: C, of the maps that are summed.
        neck: how taps become maps of four sizes: `"pyramid"` or `"multi_level"`, as for `TapPyramid`, or `"none"`, maps
            of one size, as in transformers' UPerNet on a Vision Transformer.
        neck_channels: of `"multi_level"`; by default D.
        pool_scales: numbers of windows of each axis, over which the deepest map is averaged.
        dropout_rate: of whole channels in training, before the last convolution.
        auxiliary: `(channels, classes)` of a head on one map that only training reads, kept for its file; `()` without.

    Call arguments:
        taps: four maps `(B, h, w, D)`, the first tap first.

    Returns:
        `(B, 4 h, 4 w, K)`; `(B, h, w, K)` without a neck.

    Source: arXiv:1807.10221, as mmsegmentation 1.2.2 and transformers 5.24 compute it.

    Example:
        >>> head = keras_vit.layers.UPerNetHead(5, channels=8)
        >>> tuple(head([np.ones((1, 3, 4, 12), "float32")] * 4).shape)
        (1, 12, 16, 5)
    """

    def __init__(
        self,
        outputs: int,
        channels: int,
        neck: str = "pyramid",
        neck_channels: int | None = None,
        pool_scales: Sequence[int] = (1, 2, 3, 6),
        dropout_rate: float = 0.0,
        auxiliary: Sequence[int] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("neck", neck, NECKS)
        self.outputs, self.channels = check_positive_int("outputs", outputs), check_positive_int("channels", channels)
        self.neck, self.neck_channels, self.dropout_rate = neck, neck_channels, dropout_rate
        self.pool_scales, self.auxiliary = tuple(pool_scales), tuple(auxiliary)
        dtype = self.dtype_policy
        self.levels = TapPyramid(neck, neck_channels, dtype=dtype, name="neck") if neck != "none" else None
        self.pools = [self._unit(1, f"pool_{i}") for i in range(len(self.pool_scales))]
        self.bottleneck = self._unit(3, "bottleneck")
        self.laterals = [self._unit(1, f"lateral_{i}") for i in range(3)]
        self.outs = [self._unit(3, f"fpn_{i}") for i in range(3)]
        self.fpn_bottleneck = self._unit(3, "fpn_bottleneck")
        self.dropout = keras.layers.SpatialDropout2D(dropout_rate, dtype=dtype, name="dropout")
        self.classifier = convolution(outputs, 1, "classifier", dtype)
        self.auxiliary_layer: Any = None
        if auxiliary:
            width, classes = self.auxiliary
            self.auxiliary_layer = FCNHead(classes, width, dtype=dtype, name="auxiliary")
            self.auxiliary_layer.trainable = False

    def _unit(self, size: int, name: str) -> ConvBatchNormReLU:
        return ConvBatchNormReLU(self.channels, size, dtype=self.dtype_policy, name=name)

    def build(self, input_shape: Sequence[Shape]) -> None:
        shapes = [tuple(shape) for shape in input_shape]
        pairs: list[Any] = [] if self.levels is None else [(self.levels, shapes)]
        width = int((shapes if self.levels is None else self.levels.compute_output_shape(shapes))[0][-1] or 0)
        wide = (None, None, None, self.channels)
        of_levels = [*self.pools, *self.laterals, *([self.auxiliary_layer] if self.auxiliary else [])]
        pairs += [(layer, (None, None, None, width)) for layer in of_levels]
        pairs += [(self.bottleneck, (None, None, None, width + len(self.pools) * self.channels))]
        pairs += [(layer, wide) for layer in (*self.outs, self.classifier)]
        self.build_sublayers(*pairs, (self.fpn_bottleneck, (None, None, None, 4 * self.channels)))

    def call(self, taps: Sequence[Tensor], training: bool | None = None) -> Tensor:
        levels = taps if self.levels is None else self.levels(taps, training=training)
        top = self._top(levels[3], training)
        maps = [lateral(x, training=training) for lateral, x in zip(self.laterals, levels, strict=False)] + [top]
        for number in (3, 2, 1):
            maps[number - 1] += resize(maps[number], sides(maps[number - 1]))
        maps = [out(x, training=training) for out, x in zip(self.outs, maps, strict=False)] + [top]
        maps = [maps[0], *(resize(x, sides(maps[0])) for x in maps[1:])]
        x = self.fpn_bottleneck(ops.concatenate(maps, axis=-1), training=training)
        return self.classifier(self.dropout(x, training=training))

    def _top(self, deepest: Tensor, training: bool | None) -> Tensor:
        """The deepest map, next to its means over windows."""
        size = sides(deepest)
        means = [adaptive_pool(deepest, scale) for scale in self.pool_scales]
        maps = [resize(pool(x, training=training), size) for pool, x in zip(self.pools, means, strict=True)]
        return self.bottleneck(ops.concatenate([deepest, *maps], axis=-1), training=training)

    def flops(self, h: int, w: int) -> int:
        *places, top = [h * w] * 4 if self.levels is None else pyramid_places(h, w)
        found = 0 if self.levels is None else self.levels.flops(h, w)
        found += sum(kernel_flops([pool.conv], n**2) for pool, n in zip(self.pools, self.pool_scales, strict=True))
        for lateral, out, count in zip(self.laterals, self.outs, places, strict=True):
            found += kernel_flops((lateral.conv, out.conv), count)
        return (
            found
            + kernel_flops([self.bottleneck.conv], top)
            + kernel_flops((self.fpn_bottleneck.conv, self.classifier), places[0])
        )

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        batch, *grid, _ = input_shape[0]
        factor = 1 if self.neck == "none" else 4
        return (batch, *(side and factor * side for side in grid), self.outputs)
