"""Linear heads on maps of patches, for classes of pixels or for bins of depths, and depths of such bins."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.config.flops import product
from keras_vit.dense.depth import depth_from_bins
from keras_vit.dense.maps import resize
from keras_vit.layers.configurable import CompositeLayer, ConfiguredLayer


def batch_norm(dtype: Any, name: str = "batch_norm") -> keras.layers.BatchNormalization:
    """BatchNorm with torch's constants: epsilon 1e-5, and a momentum of 0.1 for new values."""
    return keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, dtype=dtype, name=name)


def kernel_flops(layers: Iterable[keras.Layer], places: int) -> int:
    """FLOPs of dense layers and convolutions with an output at so many places; of transposed ones with an input."""
    return sum(product(places, math.prod(layer.kernel.shape), 1) for layer in layers)


@keras.saving.register_keras_serializable("keras_vit")
class LinearHead(CompositeLayer):
    """BatchNorm over the channels of all taps, joined in their order, and a convolution of one pixel.

    Args:
        outputs: K, classes or bins.
        use_batch_norm: whether there is BatchNorm.
        upsample: factor by which the outputs are resized, bilinear with half-pixel centres, before what follows. It
            commutes with the convolution, which is cheaper before.
        dropout_rate: of whole channels in training, before BatchNorm.

    Call arguments:
        maps: a list of `(B, h, w, D)`.

    Returns:
        `(B, h, w, K)`, h and w times `upsample`.

    Example:
        >>> maps = [np.ones((1, 2, 3, 12)), np.ones((1, 2, 3, 12))]
        >>> tuple(keras_vit.layers.LinearHead(5)(maps).shape)
        (1, 2, 3, 5)

    Source: the linear heads of DINOv2, arXiv:2304.07193, section 7.4, and of DINOv3, arXiv:2508.10104.
    """

    def __init__(
        self, outputs: int, use_batch_norm: bool = True, upsample: int = 1, dropout_rate: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.outputs = check_positive_int("outputs", outputs)
        self.use_batch_norm = use_batch_norm
        self.upsample = check_positive_int("upsample", upsample)
        self.dropout_rate = dropout_rate
        self.dropout = keras.layers.SpatialDropout2D(dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.batch_norm = batch_norm(self.dtype_policy) if use_batch_norm else None
        drawn = keras.initializers.RandomNormal(0, 0.01)
        self.classifier = keras.layers.Conv2D(
            outputs, 1, kernel_initializer=drawn, dtype=self.dtype_policy, name="classifier"
        )

    def build(self, input_shape: Sequence[Shape]) -> None:
        joined = self._joined_shape(input_shape)
        norm = [] if self.batch_norm is None else [(self.batch_norm, joined)]
        self.build_sublayers(*norm, (self.classifier, joined))

    def call(self, maps: Sequence[Tensor], training: bool | None = None) -> Tensor:
        x = ops.concatenate(maps, axis=-1) if len(maps) > 1 else maps[0]
        x = self.dropout(x, training=training)
        x = x if self.batch_norm is None else self.batch_norm(x, training=training)
        x = self.classifier(x)
        _, h, w, _ = ops.shape(x)
        return x if self.upsample == 1 else resize(x, (h * self.upsample, w * self.upsample))

    def flops(self, h: int, w: int) -> int:
        """FLOPs for taps of `h` x `w` patches, as `keras_vit.flops` counts them; so has every head."""
        return kernel_flops([self.classifier], h * w)

    def _joined_shape(self, maps: Sequence[Shape]) -> Shape:
        return (*maps[0][:-1], sum(int(shape[-1] or 0) for shape in maps))

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        batch, *sides, _ = input_shape[0]
        return (batch, *(side and side * self.upsample for side in sides), self.outputs)


@keras.saving.register_keras_serializable("keras_vit")
class DepthFromBins(ConfiguredLayer):
    """The expected depth over bins, as `keras_vit.dense.depth_from_bins`.

    Args:
        depth_range: depths of the first and the last bin.
        bins: `"linear"` or `"log"`, what is evenly spaced.
        normalise: `"linear"`, `"softmax"` or `"sigmoid"`, how logits become shares.

    Call arguments:
        logits: `(B, h, w, n)`.

    Returns:
        float32 `(B, h, w)`.

    Example:
        >>> logits = np.zeros((1, 1, 1, 3), "float32")
        >>> float(keras_vit.layers.DepthFromBins((1, 3))(logits)[0, 0, 0])
        2.0
    """

    def __init__(
        self, depth_range: Sequence[float], bins: Any = "linear", normalise: Any = "linear", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        low, high = map(float, depth_range)
        self.depth_range = (low, high)
        self.bins, self.normalise = bins, normalise

    def call(self, logits: Tensor) -> Tensor:
        return depth_from_bins(logits, *self.depth_range, self.bins, self.normalise)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape[:-1]
