"""Convolutions of dense heads: one with torch's padding, and one with BatchNorm and ReLU after it."""

from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.layers.configurable import CompositeLayer
from keras_vit.layers.dense_heads.linear import batch_norm


def convolution(filters: int, size: int, name: str, dtype: Any, bias: bool = True, strides: int = 1) -> Any:
    """A convolution; one with strides expects maps that are padded on both sides, as torch pads them."""
    padding = "valid" if strides > 1 else "same"  # where Keras would pad one side alone, and torch pads both
    return keras.layers.Conv2D(
        filters, size, strides, padding, use_bias=bias, kernel_initializer="he_uniform", dtype=dtype, name=name
    )


def deconvolution(filters: int, side: int, name: str, dtype: Any) -> Any:
    """A transposed convolution whose kernel is as large as its stride."""
    return keras.layers.Conv2DTranspose(filters, side, side, kernel_initializer="he_uniform", dtype=dtype, name=name)


@keras.saving.register_keras_serializable("keras_vit")
class ConvBatchNormReLU(CompositeLayer):
    """A convolution without bias, BatchNorm and ReLU.

    Args:
        filters: channels of the result.
        kernel_size: side of the kernel.

    Call arguments:
        maps: `(B, h, w, C)`.

    Returns:
        `(B, h, w, filters)`.

    Example:
        >>> tuple(keras_vit.layers.ConvBatchNormReLU(8)(np.ones((1, 2, 3, 5))).shape)
        (1, 2, 3, 8)
    """

    def __init__(self, filters: int, kernel_size: int = 3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.filters = check_positive_int("filters", filters)
        self.kernel_size = check_positive_int("kernel_size", kernel_size)
        self.conv = convolution(filters, kernel_size, "conv", self.dtype_policy, bias=False)
        self.batch_norm = batch_norm(self.dtype_policy)

    def build(self, input_shape: Shape) -> None:
        self.build_sublayers((self.conv, input_shape), (self.batch_norm, self.compute_output_shape(input_shape)))

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        return ops.relu(self.batch_norm(self.conv(maps), training=training))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.filters)


@keras.saving.register_keras_serializable("keras_vit")
class FCNHead(CompositeLayer):
    """Convolutions with BatchNorm and ReLU, and one of one pixel to K.

    Heads that stand next to the main one in training are of this kind.

    Args:
        outputs: K, classes.
        channels: of the convolutions.
        convolutions: how many there are.

    Call arguments:
        maps: `(B, h, w, C)`.

    Returns:
        `(B, h, w, K)`.

    Source: arXiv:1411.4038, as mmsegmentation 1.2.2 has it.

    Example:
        >>> tuple(keras_vit.layers.FCNHead(4, channels=8)(np.ones((1, 2, 3, 5))).shape)
        (1, 2, 3, 4)
    """

    def __init__(self, outputs: int, channels: int, convolutions: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.outputs, self.channels = check_positive_int("outputs", outputs), check_positive_int("channels", channels)
        self.convolutions = check_positive_int("convolutions", convolutions)
        dtype = self.dtype_policy
        self.convs = [ConvBatchNormReLU(channels, dtype=dtype, name=f"conv_{i}") for i in range(convolutions)]
        self.classifier = convolution(outputs, 1, "classifier", dtype)

    def build(self, input_shape: Shape) -> None:
        wide = (*input_shape[:-1], self.channels)
        pairs = [(conv, wide if number else input_shape) for number, conv in enumerate(self.convs)]
        self.build_sublayers(*pairs, (self.classifier, wide))

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        for conv in self.convs:
            maps = conv(maps, training=training)
        return self.classifier(maps)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.outputs)


def sides(maps: Tensor, factor: int = 1) -> tuple[Any, Any]:
    """`(h, w)` of maps times a factor, as numbers or as tensors of a graph."""
    _, h, w, _ = ops.shape(maps)
    return factor * h, factor * w
