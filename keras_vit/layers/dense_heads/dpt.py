"""The head of Dense Prediction Transformers: taps to maps of four sizes, joined from the deepest, and an end."""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.dense.maps import resize
from keras_vit.layers.configurable import CompositeLayer
from keras_vit.layers.dense_heads.convolutions import convolution, deconvolution, sides
from keras_vit.layers.dense_heads.linear import batch_norm, kernel_flops

ENDS = ("depth", "depth_of_image", "classes", "classes_of_map")


@keras.saving.register_keras_serializable("keras_vit")
class ResidualUnit(CompositeLayer):
    """Two convolutions of 3 x 3, each after ReLU and perhaps before BatchNorm, added to what enters.

    Args:
        features: F, channels.
        use_bias: whether the convolutions have a bias.
        use_batch_norm: whether BatchNorm follows each.

    Call arguments:
        maps: `(B, h, w, F)`.

    Returns:
        `(B, h, w, F)`.

    Example:
        >>> tuple(keras_vit.layers.ResidualUnit(8)(np.ones((1, 2, 3, 8))).shape)
        (1, 2, 3, 8)
    """

    def __init__(self, features: int, use_bias: bool = True, use_batch_norm: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.features = check_positive_int("features", features)
        self.use_bias, self.use_batch_norm = use_bias, use_batch_norm
        self.filters = [convolution(features, 3, f"filter_{i}", self.dtype_policy, use_bias) for i in (1, 2)]
        self.norms = [batch_norm(self.dtype_policy, f"batch_norm_{i}") for i in (1, 2) if use_batch_norm]

    def build(self, input_shape: Shape) -> None:
        self.build_sublayers(*((layer, input_shape) for layer in (*self.filters, *self.norms)))

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        x = maps
        for number, filters in enumerate(self.filters):
            x = filters(ops.relu(x))
            x = self.norms[number](x, training=training) if self.norms else x
        return maps + x

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


@keras.saving.register_keras_serializable("keras_vit")
class Fusion(CompositeLayer):
    """Adds a map to the running one, refines it, and resizes it with aligned corners.

    Args:
        features: F, channels.
        use_bias: of the convolutions of its units.
        use_batch_norm: likewise.
        units: how many units have weights; the first map of all needs one, and files may have a second that is not
            used.
        joins: whether there is a running map; without one the first unit, if there is one, is not used.

    Call arguments:
        maps: `(B, h, w, F)`.
        running: what earlier fusions gave, or `None`. The map is resized to it where their sizes differ.
        size: `(H, W)` of the result; by default twice that of the running map.

    Returns:
        `(B, H, W, F)`.

    Example:
        >>> fusion = keras_vit.layers.Fusion(8, joins=False)
        >>> tuple(fusion(np.ones((1, 2, 3, 8))).shape)
        (1, 4, 6, 8)
    """

    def __init__(
        self,
        features: int,
        use_bias: bool = True,
        use_batch_norm: bool = False,
        units: int = 2,
        joins: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.features, self.units, self.joins = check_positive_int("features", features), units, joins
        self.use_bias, self.use_batch_norm = use_bias, use_batch_norm
        made = (self.features, use_bias, use_batch_norm)
        self.unit_1 = ResidualUnit(*made, dtype=self.dtype_policy, name="unit_1") if units == 2 else None
        self.unit_2 = ResidualUnit(*made, dtype=self.dtype_policy, name="unit_2")
        self.out = convolution(features, 1, "out", self.dtype_policy)
        if self.unit_1 is not None and not joins:
            self.unit_1.trainable = False  # no gradient reaches it

    def build(self, input_shape: Shape) -> None:
        units = (self.unit_1, self.unit_2) if self.unit_1 is not None else (self.unit_2,)
        self.build_sublayers(*((layer, input_shape) for layer in (*units, self.out)))

    def call(
        self, maps: Tensor, running: Tensor = None, size: Sequence[Any] | None = None, training: bool | None = None
    ) -> Tensor:
        x = maps
        if running is not None:
            x = resize(x, tuple(ops.shape(running)[1:3]))
            x = running + (x if self.unit_1 is None else self.unit_1(x, training=training))
        x = self.unit_2(x, training=training)
        size = sides(x, 2) if size is None else size
        return resize(self.out(x), tuple(size), align_corners=True)  # the convolution of one pixel commutes

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, *sides, channels = input_shape
        return (batch, *(side and 2 * side for side in sides), channels)


@keras.saving.register_keras_serializable("keras_vit")
class DPTHead(CompositeLayer):
    """Maps of four taps at 4, 2, 1 and 1/2 times the patch grid, joined from the deepest one, and an end.

    Args:
        channels: of the four maps before the convolutions to F.
        features: F, channels of the fusions.
        outputs: K: classes, bins, or 1.
        readout: whether patch and class token, joined in the taps, are mapped to D by a dense layer and exact GELU.
        tap_norm: whether taps have BatchNorm.
        unit_bias: whether convolutions of units have a bias.
        unit_norm: whether they have BatchNorm.
        first_units: units of the deepest fusion that have weights; of two the first is not used.
        exact_sizes: whether each fusion ends at the size of the next map, as in Depth Anything, instead of twice its
            own.
        before: `"none"`, or what stands before the end: `"relu"`, a convolution and ReLU, or `"norm"`, with BatchNorm.
        end: `"depth"`: convolution, twice the size, convolution, ReLU, and to K; `"depth_of_image"`: the same, at
            the size of the image; `"classes"`: convolution, BatchNorm, ReLU, to K, twice the size; or
            `"classes_of_map"`, to K.
        patch_size: P, for the size of the image.
        auxiliary: classes of a head on the last fusion that only training reads, kept for its file; 0 without one.
        end_width: channels before the last convolution of depths.

    Call arguments:
        taps: a list of `(B, h, w, D)`, or `(B, h, w, 2 D)` with `readout`, the first tap first.

    Returns:
        `(B, H', W', K)`.

    Source: arXiv:2103.13413, section 3; Depth Anything, arXiv:2401.10891 and 2406.09414.

    Example:
        >>> head = keras_vit.layers.DPTHead((4, 8, 12, 16), features=8, outputs=1)
        >>> tuple(head([np.ones((1, 3, 5, 12), "float32")] * 4).shape)
        (1, 64, 96, 1)
    """

    def __init__(
        self,
        channels: Sequence[int],
        features: int,
        outputs: int,
        readout: bool = False,
        tap_norm: bool = False,
        unit_bias: bool = True,
        unit_norm: bool = False,
        first_units: int = 1,
        exact_sizes: bool = False,
        before: str = "none",
        end: str = "depth",
        patch_size: int = 14,
        auxiliary: int = 0,
        end_width: int = 32,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_choice("before", before, ("none", "relu", "norm"))
        check_choice("end", end, ENDS)
        self.channels = tuple(channels)
        self.features, self.outputs = check_positive_int("features", features), check_positive_int("outputs", outputs)
        self.readout, self.tap_norm = readout, tap_norm
        self.unit_bias, self.unit_norm, self.first_units = unit_bias, unit_norm, first_units
        self.exact_sizes, self.before, self.end = exact_sizes, before, end
        self.patch_size, self.auxiliary, self.end_width = patch_size, auxiliary, end_width
        dtype, numbers = self.dtype_policy, range(4)
        self.tap_norms = [batch_norm(dtype, f"batch_norm_tap_{i}") for i in numbers] if tap_norm else []
        self.projects = [convolution(channels[i], 1, f"project_{i}", dtype) for i in numbers]
        self.resizes = [self._resize_layer(i, channels[i]) for i in numbers]
        self.levels = [convolution(features, 3, f"conv_level_{i}", dtype, bias=False) for i in numbers]
        self.fusions = [
            Fusion(features, unit_bias, unit_norm, 2 if i else first_units, i > 0, dtype=dtype, name=f"fuse_{i}")
            for i in numbers
        ]
        self.readouts: list = []
        self.ends = self._end_layers()
        self.auxiliaries = self._classifier("auxiliary", auxiliary) if auxiliary else []
        for layer in self.auxiliaries:
            layer.trainable = False

    def _resize_layer(self, number: int, channels: int) -> Any:
        """To 4, 2, 1 and 1/2 times the grid."""
        if number == 2:
            return None
        if number == 3:
            return convolution(channels, 3, "resize_3", self.dtype_policy, strides=2)
        side = 4 // (number + 1)
        return deconvolution(channels, side, f"resize_{number}", self.dtype_policy)

    def _classifier(self, name: str, outputs: int) -> list[Any]:
        return [
            convolution(self.features, 3, f"conv_{name}", self.dtype_policy, bias=False),
            batch_norm(self.dtype_policy, f"batch_norm_{name}"),
            convolution(outputs, 1, f"{name}_3", self.dtype_policy),
        ]

    def _end_layers(self) -> dict[str, Any]:
        """The layers before and of the end, by name."""
        dtype, found = self.dtype_policy, []
        if self.before != "none":
            found.append(convolution(self.features, 3, "before", dtype, bias=self.before == "relu"))
        if self.before == "norm":
            found.append(batch_norm(dtype, "batch_norm_before"))
        if self.end == "classes":
            found += self._classifier("out", self.outputs)
        elif self.end == "classes_of_map":
            found.append(convolution(self.outputs, 1, "out_3", dtype))
        else:
            found.append(convolution(self.features // 2, 3, "out_1", dtype))
            found.append(convolution(self.end_width, 3, "out_2", dtype))
            found.append(convolution(self.outputs, 1, "out_3", dtype))
        return {layer.name: layer for layer in found}

    def build(self, input_shape: Sequence[Shape]) -> None:
        size, free = int(input_shape[0][-1] or 0), (None, None, None)
        if self.readout:
            size //= 2
            self.readouts = [keras.layers.Dense(size, dtype=self.dtype_policy, name=f"readout_{i}") for i in range(4)]
        pairs: list[Any] = [(layer, (*free, 2 * size)) for layer in self.readouts]
        pairs += [(layer, (*free, size)) for layer in (*self.tap_norms, *self.projects)]
        pairs += [(each, (*free, n)) for each, n in zip(self.resizes, self.channels, strict=True) if each is not None]
        pairs += [(each, (*free, n)) for each, n in zip(self.levels, self.channels, strict=True)]
        wide = {"out_2": self.features // 2}
        if self.end.startswith("depth"):
            wide["out_3"] = self.end_width
        others = [*self.fusions, *self.ends.values(), *self.auxiliaries]
        pairs += [(layer, (*free, wide.get(layer.name, self.features))) for layer in others]
        self.build_sublayers(*pairs)

    def call(self, taps: Sequence[Tensor], training: bool | None = None) -> Tensor:
        maps = [self._level(number, tap, training) for number, tap in enumerate(taps)]
        x = None
        for number, fusion in enumerate(self.fusions):
            after = maps[2 - number] if self.exact_sizes and number < 3 else None
            size = None if after is None else tuple(ops.shape(after)[1:3])
            x = fusion(maps[3 - number], running=x, size=size, training=training)
        for name in ("before", "batch_norm_before"):
            x = self._apply(name, x, training)
        x = x if self.before == "none" else ops.relu(x)
        _, h, w, _ = ops.shape(taps[0])
        return self._finish(x, (self.patch_size * h, self.patch_size * w), training)

    def _level(self, number: int, tap: Tensor, training: bool | None) -> Tensor:
        """The map of one tap, with F channels."""
        x = ops.gelu(self.readouts[number](tap), approximate=False) if self.readout else tap
        x = self.tap_norms[number](x, training=training) if self.tap_norms else x
        x = self.projects[number](x)
        if number == 3:
            x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        return self.levels[number](x if number == 2 else self.resizes[number](x))

    def _apply(self, name: str, x: Tensor, training: bool | None) -> Tensor:
        layer = self.ends.get(name)
        if layer is None:
            return x
        return layer(x, training=training) if "norm" in name else layer(x)

    def _finish(self, x: Tensor, image: tuple[Any, Any], training: bool | None) -> Tensor:
        if self.end == "classes_of_map":
            return self._apply("out_3", x, training)
        if self.end == "classes":
            x = self._apply("batch_norm_out", self._apply("conv_out", x, training), training)
            x = self._apply("out_3", ops.relu(x), training)
            return resize(x, sides(x, 2), align_corners=True)
        x = self._apply("out_1", x, training)
        x = resize(x, image if self.end == "depth_of_image" else sides(x, 2), align_corners=True)
        return self._apply("out_3", ops.relu(self._apply("out_2", x, training)), training)

    def flops(self, h: int, w: int) -> int:
        sizes = [(4 * h, 4 * w), (2 * h, 2 * w), (h, w), (-(-h // 2), -(-w // 2))]
        found = kernel_flops((*self.readouts, *self.projects, *self.resizes[:2]), h * w)
        found += kernel_flops(self.resizes[3:], math.prod(sizes[3]))
        found += sum(kernel_flops([level], math.prod(size)) for level, size in zip(self.levels, sizes, strict=True))
        size = sizes[3]
        for number, fusion in enumerate(self.fusions):
            units = [fusion.unit_2, *([fusion.unit_1] if number and fusion.unit_1 is not None else [])]
            found += kernel_flops([fusion.out, *(each for unit in units for each in unit.filters)], math.prod(size))
            size = sizes[2 - number] if self.exact_sizes and number < 3 else (2 * size[0], 2 * size[1])
        image = (
            (self.patch_size * h, self.patch_size * w) if self.end == "depth_of_image" else (2 * size[0], 2 * size[1])
        )
        large = ("out_2", "out_3") if self.end.startswith("depth") else ()
        for name, layer in self.ends.items():
            if "norm" not in name:
                found += kernel_flops([layer], math.prod(image if name in large else size))
        return found

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        batch, *sides, _ = input_shape[0]
        factor = 16 if self.end == "classes_of_map" else 32
        if self.end == "depth_of_image":
            return (batch, *(side and side * self.patch_size for side in sides), self.outputs)
        if self.exact_sizes:  # the largest map, twice by the last fusion and twice by the end
            return (batch, *(side and side * factor // 2 for side in sides), self.outputs)
        return (batch, *(side and -(-side // 2) * factor for side in sides), self.outputs)


@keras.saving.register_keras_serializable("keras_vit")
class DepthOutput(CompositeLayer):
    """From one number of each pixel to a depth.

    Args:
        rule: `"relu"`; `"sigmoid"`, times the largest depth; or `"range"`, ReLU plus the smallest depth, and at most
            the largest.
        depth_range: smallest and largest depth, which `"relu"` does not need.

    Call arguments:
        maps: `(B, h, w, 1)`.

    Returns:
        float32 `(B, h, w)`.

    Example:
        >>> numbers = np.array([-3, 20], "float32").reshape(1, 1, 2, 1)
        >>> found = keras_vit.layers.DepthOutput("range", (1.0, 10.0))(numbers)
        >>> [float(each) for each in found[0, 0]]
        [1.0, 10.0]
    """

    def __init__(self, rule: str = "relu", depth_range: Sequence[float] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("rule", rule, ("relu", "sigmoid", "range"))
        self.rule = rule
        self.depth_range = None if depth_range is None else tuple(map(float, depth_range))

    def call(self, maps: Tensor) -> Tensor:
        x = ops.cast(maps[..., 0], "float32")
        if self.depth_range is None or self.rule == "relu":
            return ops.relu(x)
        smallest, largest = self.depth_range
        return ops.sigmoid(x) * largest if self.rule == "sigmoid" else ops.minimum(ops.relu(x) + smallest, largest)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape[:-1]
