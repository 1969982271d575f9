"""The two ResNets of arXiv:1912.11370 (BiT): the stem in front of the hybrids, and the baseline.

Both have bottlenecks with GroupNorm of 32 groups and standardised kernels. Of the stem (arXiv:2010.11929, section 4.1)
units are of version 1, with the activation after the sum, padding is TensorFlow's SAME, and epsilon 1e-6. Of the
baseline they are of version 2, with norm and activation before each convolution. Zeros stand on all four sides before
each convolution and the pooling, and epsilon is 1e-5.
"""

from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Arguments, Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.layers.configurable import ConfiguredLayer

EPSILONS_IN = ("deviation", "variance")


@keras.saving.register_keras_serializable("keras_vit")
class StdConv2D(keras.layers.Conv2D):
    """A convolution whose kernel is standardised, per output channel, to zero mean and unit deviation.

    Takes the arguments of `keras.layers.Conv2D`, and:

    Args:
        *args: as in `keras.layers.Conv2D`.
        epsilon_in: what the epsilon is added to. `"deviation"` is `(w - mean) / (std + 1e-5)`, as in the official code;
            `"variance"` is `(w - mean) / sqrt(var + 1e-10)`, as in BiT.
        **kwargs: as in `keras.layers.Conv2D`.

    Source: weight standardisation, arXiv:1903.10520.

    Example:
        >>> tuple(keras_vit.layers.StdConv2D(8, 3, padding="same")(images).shape)
        (2, 32, 48, 8)
    """

    def __init__(self, *args: Any, epsilon_in: str = "deviation", **kwargs: Any) -> None:
        check_choice("epsilon_in", epsilon_in, EPSILONS_IN)
        super().__init__(*args, **kwargs)
        self.epsilon_in = epsilon_in

    def convolution_op(self, inputs: Tensor, kernel: Tensor) -> Tensor:
        kernel = ops.cast(kernel, keras.backend.result_type(kernel.dtype, "float32"))
        mean, variance = ops.moments(kernel, axes=[0, 1, 2], keepdims=True)
        in_variance = self.epsilon_in == "variance"
        kernel = (kernel - mean) / (ops.sqrt(variance + 1e-10) if in_variance else ops.sqrt(variance) + 1e-5)
        return super().convolution_op(inputs, ops.cast(kernel, inputs.dtype))

    def get_config(self) -> Arguments:
        return {**super().get_config(), "epsilon_in": self.epsilon_in}


def std_conv(
    filters: int,
    kernel_size: int,
    strides: int,
    dtype: Any,
    name: str,
    padding: str = "same",
    epsilon_in: str = "deviation",
) -> StdConv2D:
    """A standardised convolution without bias, as every ResNet here has it."""
    return StdConv2D(
        filters,
        kernel_size,
        strides=strides,
        padding=padding,
        epsilon_in=epsilon_in,
        data_format="channels_last",
        use_bias=False,
        kernel_initializer="lecun_normal",
        dtype=dtype,
        name=name,
    )


def group_norm(dtype: Any, name: str, gamma: str = "ones", epsilon: float = 1e-6) -> keras.layers.GroupNormalization:
    """GroupNorm of 32 groups; the epsilon is the official code's."""
    return keras.layers.GroupNormalization(32, epsilon=epsilon, gamma_initializer=gamma, dtype=dtype, name=name)


def halved(side: int | None, times: int = 1) -> int | None:
    """A side after `times` strides of 2, rounded up; `None` stays unknown."""
    for _ in range(times):
        side = None if side is None else -(-side // 2)
    return side


@keras.saving.register_keras_serializable("keras_vit")
class ResNetRoot(ConfiguredLayer):
    """A 7x7 convolution and a 3x3 max-pooling, each with stride 2.

    Args:
        width: channels out, a multiple of 32.

    Call arguments:
        images: `(B, H, W, C)`.

    Returns:
        `(B, H/4, W/4, width)`.

    Source: arXiv:2010.11929, section 4.1.

    Example:
        >>> tuple(keras_vit.layers.ResNetRoot(32)(images).shape)
        (2, 8, 12, 32)
    """

    def __init__(self, width: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        width = check_positive_int("width", width)
        self.width = width
        self.conv = std_conv(width, 7, 2, self.dtype_policy, "conv")
        self.norm = group_norm(self.dtype_policy, "norm")

    def build(self, input_shape: Shape) -> None:
        self.conv.build(input_shape)
        self.norm.build((None, None, None, self.width))

    def call(self, images: Tensor) -> Tensor:
        x = ops.relu(self.norm(self.conv(images)))  # (B, H/2, W/2, width)
        return ops.max_pool(x, 3, 2, padding="same", data_format="channels_last")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, height, width, _ = input_shape
        return (batch, halved(height, 2), halved(width, 2), self.width)


@keras.saving.register_keras_serializable("keras_vit")
class ResNetUnit(ConfiguredLayer):
    """One bottleneck: convolutions 1x1, 3x3, 1x1, and a skip connection.

    Args:
        filters: F; the unit puts out 4F channels.
        strides: of the 3x3 convolution and the projection, 1 or 2.
        projection: whether the skip connection is projected, as the first unit of a stage needs.

    Call arguments:
        x: `(B, H, W, C)`; C = 4F unless projected.

    Returns:
        `(B, H/strides, W/strides, 4F)`.

    Source: arXiv:1512.03385 with the norm of arXiv:1803.08494, as section 4.1 of arXiv:2010.11929.

    Example:
        >>> x = keras.random.normal((2, 8, 12, 8))
        >>> tuple(keras_vit.layers.ResNetUnit(32, strides=2, projection=True)(x).shape)
        (2, 4, 6, 128)
    """

    def __init__(self, filters: int, strides: int = 1, projection: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        filters, strides = check_positive_int("filters", filters), check_positive_int("strides", strides)
        self.filters = filters
        self.strides = strides
        self.projection = projection
        dtype = self.dtype_policy
        self.conv_1 = std_conv(filters, 1, 1, dtype, "conv_1")
        self.norm_1 = group_norm(dtype, "norm_1")
        self.conv_2 = std_conv(filters, 3, strides, dtype, "conv_2")
        self.norm_2 = group_norm(dtype, "norm_2")
        self.conv_3 = std_conv(4 * filters, 1, 1, dtype, "conv_3")
        self.norm_3 = group_norm(dtype, "norm_3", gamma="zeros")  # official code: a new unit is the identity
        if projection:
            self.conv_proj = std_conv(4 * filters, 1, strides, dtype, "conv_proj")
            self.norm_proj = group_norm(dtype, "norm_proj")

    def build(self, input_shape: Shape) -> None:
        inner, outer = (None, None, None, self.filters), (None, None, None, 4 * self.filters)
        self.conv_1.build(input_shape)
        self.norm_1.build(inner)
        self.conv_2.build(inner)
        self.norm_2.build(inner)
        self.conv_3.build(inner)
        self.norm_3.build(outer)
        if self.projection:
            self.conv_proj.build(input_shape)
            self.norm_proj.build(outer)

    def call(self, x: Tensor) -> Tensor:
        shortcut = self.norm_proj(self.conv_proj(x)) if self.projection else x
        x = ops.relu(self.norm_1(self.conv_1(x)))
        x = ops.relu(self.norm_2(self.conv_2(x)))
        return ops.relu(self.norm_3(self.conv_3(x)) + shortcut)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, height, width, _ = input_shape
        times = self.strides - 1
        return (batch, halved(height, times), halved(width, times), 4 * self.filters)


BIT_EPSILON = 1e-5  # of every GroupNorm: BiT's code


def _conv(filters: int, kernel_size: int, strides: int, dtype: Any, name: str) -> StdConv2D:
    return std_conv(filters, kernel_size, strides, dtype, name, padding="valid", epsilon_in="variance")


def _surrounded(x: Tensor, by: int) -> Tensor:
    """`x` with that many zeros on each side; SAME would pad an even side by one more at its end than its start."""
    return ops.pad(x, ((0, 0), (by, by), (by, by), (0, 0)))


@keras.saving.register_keras_serializable("keras_vit")
class BiTRoot(ConfiguredLayer):
    """A 7x7 convolution and a 3x3 max-pooling, each with stride 2; norm and activation are the next unit's.

    The pooling sees the zeros around its input, so that none of its outputs at the border is negative.

    Args:
        width: channels out.

    Call arguments:
        images: `(B, H, W, C)`.

    Returns:
        `(B, H/4, W/4, width)`, sides rounded up.

    Source: arXiv:1912.11370, with the padding of its code.

    Example:
        >>> tuple(keras_vit.layers.BiTRoot(8)(images).shape)
        (2, 8, 12, 8)
    """

    def __init__(self, width: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.width = check_positive_int("width", width)
        self.conv = _conv(width, 7, 2, self.dtype_policy, "conv")

    def build(self, input_shape: Shape) -> None:
        self.conv.build((None, None, None, input_shape[-1]))  # its image has zeros around it, so is larger

    def call(self, images: Tensor) -> Tensor:
        x = self.conv(_surrounded(images, 3))  # (B, H/2, W/2, width)
        return ops.max_pool(_surrounded(x, 1), 3, 2, padding="valid", data_format="channels_last")

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, height, width, _ = input_shape
        return (batch, halved(height, 2), halved(width, 2), self.width)


@keras.saving.register_keras_serializable("keras_vit")
class BiTUnit(ConfiguredLayer):
    """One pre-activation bottleneck: convolutions 1x1, 3x3, 1x1, each after norm and ReLU, and a skip connection.

    Args:
        filters: F; the unit puts out 4F channels.
        strides: of the 3x3 convolution and the projection, 1 or 2.
        projection: whether the skip connection is a projection of the normed input, as the first unit of a stage needs.

    Call arguments:
        x: `(B, H, W, C)`; C is a multiple of 32, and 4F unless projected.

    Returns:
        `(B, H/strides, W/strides, 4F)`, sides rounded up.

    Source: arXiv:1603.05027, figure 1(b), with the norm of arXiv:1803.08494, as arXiv:1912.11370.

    Example:
        >>> x = keras.random.normal((2, 8, 12, 32))
        >>> tuple(keras_vit.layers.BiTUnit(32, strides=2, projection=True)(x).shape)
        (2, 4, 6, 128)
    """

    def __init__(self, filters: int, strides: int = 1, projection: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive_int("filters", filters)
        if strides not in (1, 2):
            raise ValueError(f"`strides` must be 1 or 2, of both sides.\nReceived: strides={strides!r}.")
        self.strides = strides
        self.projection = projection
        dtype = self.dtype_policy
        self.norm_1 = group_norm(dtype, "norm_1", epsilon=BIT_EPSILON)
        self.conv_1 = _conv(filters, 1, 1, dtype, "conv_1")
        self.norm_2 = group_norm(dtype, "norm_2", epsilon=BIT_EPSILON)
        self.conv_2 = _conv(filters, 3, strides, dtype, "conv_2")
        self.norm_3 = group_norm(dtype, "norm_3", epsilon=BIT_EPSILON)
        self.conv_3 = _conv(4 * filters, 1, 1, dtype, "conv_3")
        if projection:
            self.conv_proj = _conv(4 * filters, 1, strides, dtype, "conv_proj")

    def build(self, input_shape: Shape) -> None:
        inner = (None, None, None, self.filters)
        for layer in (self.norm_1, self.conv_1, *((self.conv_proj,) if self.projection else ())):
            layer.build(input_shape)
        for layer in (self.norm_2, self.conv_2, self.norm_3, self.conv_3):
            layer.build(inner)

    def call(self, x: Tensor) -> Tensor:
        y = ops.relu(self.norm_1(x))
        shortcut = self.conv_proj(y) if self.projection else x
        y = ops.relu(self.norm_2(self.conv_1(y)))
        y = ops.relu(self.norm_3(self.conv_2(_surrounded(y, 1))))
        return self.conv_3(y) + shortcut

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, height, width, _ = input_shape
        times = self.strides - 1
        return (batch, halved(height, times), halved(width, times), 4 * self.filters)
