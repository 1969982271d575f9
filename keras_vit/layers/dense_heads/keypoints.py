"""The heads of ViTPose (arXiv:2204.12484): a heatmap for each point, of four times the grid's size."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.dense.maps import resize
from keras_vit.layers.configurable import CompositeLayer
from keras_vit.layers.dense_heads.convolutions import convolution, sides
from keras_vit.layers.dense_heads.linear import batch_norm, kernel_flops

_DOUBLINGS = 2  # of the classic head


@keras.saving.register_keras_serializable("keras_vit")
class KeypointHead(CompositeLayer):
    """A heatmap for each point, by ViTPose's simple or classic head.

    Args:
        outputs: K, points.
        kind: `"simple"`, ReLU, a bilinear resize, and a convolution of 3 x 3; or `"classic"`, twice a transposed
            convolution that doubles the map, BatchNorm and ReLU, and a convolution of one pixel.
        channels: of the transposed convolutions.
        upsample: factor of the simple head's resize, of half-pixel centres.

    Call arguments:
        maps: a list of one `(B, h, w, D)`.

    Returns:
        `(B, h', w', K)`, h and w times `upsample`, in the classic head 4.

    Source: arXiv:2204.12484, section 3.1, eq. 3 and 4.

    Example:
        >>> head = keras_vit.layers.KeypointHead(17, "classic", channels=8)
        >>> tuple(head([np.ones((1, 2, 3, 12), "float32")]).shape)
        (1, 8, 12, 17)
    """

    def __init__(
        self, outputs: int, kind: str = "simple", channels: int = 256, upsample: int = 4, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_choice("kind", kind, ("simple", "classic"))
        self.outputs, self.channels = check_positive_int("outputs", outputs), check_positive_int("channels", channels)
        self.kind, self.upsample = kind, check_positive_int("upsample", upsample)
        dtype, numbers = self.dtype_policy, range(1, _DOUBLINGS + 1) if kind == "classic" else ()
        self.doublings = [
            (
                keras.layers.Conv2DTranspose(
                    *(channels, 4, 2, "same"), use_bias=False, dtype=dtype, name=f"conv_up_{number}"
                ),
                batch_norm(dtype, f"batch_norm_{number}"),
            )
            for number in numbers
        ]
        self.classifier = convolution(outputs, 1 if kind == "classic" else 3, "classifier", dtype)

    def build(self, input_shape: Sequence[Shape]) -> None:
        shape, wide = tuple(input_shape[0]), (None, None, None, self.channels)
        pairs: list[Any] = []
        for deconv, norm in self.doublings:
            pairs += [(deconv, shape), (norm, wide)]
            shape = wide
        self.build_sublayers(*pairs, (self.classifier, shape))

    def call(self, maps: Sequence[Tensor], training: bool | None = None) -> Tensor:
        x = maps[0]
        for deconv, norm in self.doublings:
            x = ops.relu(norm(deconv(x), training=training))
        if self.kind == "simple":
            x = ops.relu(x)
            x = resize(x, sides(x, self.upsample))
        return self.classifier(x)

    def flops(self, h: int, w: int) -> int:
        doublings = sum(kernel_flops([deconv], 4**number * h * w) for number, (deconv, _) in enumerate(self.doublings))
        factor = 2 ** len(self.doublings) if self.doublings else self.upsample
        return doublings + kernel_flops([self.classifier], factor**2 * h * w)

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        batch, *grid, _ = input_shape[0]
        factor = 2**_DOUBLINGS if self.kind == "classic" else self.upsample
        return (batch, *(side and factor * side for side in grid), self.outputs)
