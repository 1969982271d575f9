"""The head of SETR with progressive upsampling: convolutions, and twice the size after each."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.dense.maps import resize
from keras_vit.layers.configurable import CompositeLayer
from keras_vit.layers.dense_heads.convolutions import ConvBatchNormReLU, convolution, sides
from keras_vit.layers.dense_heads.linear import kernel_flops
from keras_vit.layers.norms import layer_norm


@keras.saving.register_keras_serializable("keras_vit")
class SETRHead(CompositeLayer):
    """LayerNorm, convolutions with BatchNorm and ReLU, each before a bilinear resize, and a convolution to K.

    Args:
        outputs: K, classes.
        channels: of the convolutions.
        convolutions: how many there are, four in SETR-PUP.
        upsample: factor of the resize after each, of half-pixel centres.
        auxiliary: `(channels, classes)` of each head of one convolution on another tap that only training reads, kept
            for its file.

    Call arguments:
        taps: a list of one `(B, h, w, D)`.

    Returns:
        `(B, h', w', K)`, h and w times `upsample` to the power of `convolutions`.

    Source: arXiv:2012.15840, section 3.2, as mmsegmentation 1.2.2 computes it.

    Example:
        >>> head = keras_vit.layers.SETRHead(5, channels=8)
        >>> tuple(head([np.ones((1, 2, 3, 12), "float32")]).shape)
        (1, 32, 48, 5)
    """

    def __init__(
        self,
        outputs: int,
        channels: int,
        convolutions: int = 4,
        upsample: int = 2,
        auxiliary: Sequence[Sequence[int]] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.outputs, self.channels = check_positive_int("outputs", outputs), check_positive_int("channels", channels)
        self.convolutions = check_positive_int("convolutions", convolutions)
        self.upsample = check_positive_int("upsample", upsample)
        self.auxiliary = tuple(map(tuple, auxiliary))
        dtype = self.dtype_policy
        self.norm = layer_norm(dtype, "norm", 1e-6)
        self.convs = [ConvBatchNormReLU(channels, dtype=dtype, name=f"up_{i}") for i in range(convolutions)]
        self.classifier = convolution(outputs, 1, "classifier", dtype)
        self.others: list[Any] = [
            SETRHead(classes, width, 1, 4, dtype=dtype, name="auxiliary" if len(auxiliary) == 1 else f"auxiliary_{i}")
            for i, (width, classes) in enumerate(self.auxiliary)
        ]
        for layer in self.others:
            layer.trainable = False

    def build(self, input_shape: Sequence[Shape]) -> None:
        tap, wide = tuple(input_shape[0]), (None, None, None, self.channels)
        pairs: list[Any] = [(conv, wide if number else tap) for number, conv in enumerate(self.convs)]
        pairs += [(self.classifier, wide), *((layer, [tap]) for layer in self.others)]
        self.build_sublayers((self.norm, tap), *pairs)

    def call(self, taps: Sequence[Tensor], training: bool | None = None) -> Tensor:
        x = self.norm(taps[0])
        for conv in self.convs:
            x = conv(x, training=training)
            x = resize(x, sides(x, self.upsample))
        return self.classifier(x)

    def flops(self, h: int, w: int) -> int:
        places = [h * w * self.upsample ** (2 * number) for number in range(self.convolutions + 1)]
        layers = [*(conv.conv for conv in self.convs), self.classifier]
        return sum(kernel_flops([layer], count) for layer, count in zip(layers, places, strict=True))

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        batch, *grid, _ = input_shape[0]
        factor = self.upsample**self.convolutions
        return (batch, *(side and factor * side for side in grid), self.outputs)
