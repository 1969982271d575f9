"""The ResNet baseline: pre-activation bottlenecks with GroupNorm and standardised kernels.

"ResNet (BiT)" of arXiv:1912.11370, in the form of its code. Units are of version 2, with norm and activation before
each convolution. Zeros stand on all four sides before each convolution and the pooling. GroupNorm has 32 groups and
epsilon 1e-5.
"""

from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.layers.configurable import ConfiguredLayer
from keras_vit.layers.resnet_stem import StdConv2D, group_norm, halved, std_conv

NORM_EPSILON = 1e-5  # of every GroupNorm: BiT's code


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
    """One pre-activation bottleneck: convolutions 1x1, 3x3, 1x1, each behind norm and ReLU, and a skip connection.

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
        self.norm_1 = group_norm(dtype, "norm_1", epsilon=NORM_EPSILON)
        self.conv_1 = _conv(filters, 1, 1, dtype, "conv_1")
        self.norm_2 = group_norm(dtype, "norm_2", epsilon=NORM_EPSILON)
        self.conv_2 = _conv(filters, 3, strides, dtype, "conv_2")
        self.norm_3 = group_norm(dtype, "norm_3", epsilon=NORM_EPSILON)
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
