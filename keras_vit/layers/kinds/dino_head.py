"""The head of self-distillation: class or patch tokens to logits of prototypes, in training alone."""

from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import ArgumentError, check_flag, check_positive_int
from keras_vit.layers.configurable import CompositeLayer, ConfiguredLayer, Dense
from keras_vit.selfsupervised.arrays import unit_rows

_DEVIATION = 0.02  # of kernels


@keras.saving.register_keras_serializable("keras_vit")
class DINOHead(CompositeLayer):
    """Dense layers with exact GELUs between them, a division by the length, and a product with each prototype.

    `get_weights()` has kernel and bias of each dense layer, then the prototypes' directions `(bottleneck, K)` and
    lengths `(K,)`, which start at 1 and learn.

    Args:
        prototypes: K, at least 2.
        hidden_size: width of the dense layers before the last.
        bottleneck_size: width of the last.
        num_layers: how many dense layers there are.
        weight_norm: whether prototypes are directions and lengths, as in DINOv2; else one kernel, as in DINOv3.

    Call arguments:
        tokens: `(..., D)`.

    Returns:
        Logits `(..., K)`. Lengths are divided by in float32.

    Raises:
        ValueError: for sizes out of range.

    Source: DINO, arXiv:2104.14294, appendix C; the values to start from as in the code of DINOv2.

    Example:
        >>> head = keras_vit.layers.DINOHead(8, hidden_size=16, bottleneck_size=4)
        >>> tuple(head(np.ones((2, 12))).shape)
        (2, 8)
        >>> [weight.shape for weight in head.get_weights()][-2:]
        [(4, 8), (8,)]
    """

    def __init__(
        self,
        prototypes: int,
        hidden_size: int = 2048,
        bottleneck_size: int = 256,
        num_layers: int = 3,
        weight_norm: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.prototypes = check_positive_int("prototypes", prototypes)
        if prototypes < 2:
            raise ArgumentError(f"`prototypes` must be 2 or more.\nReceived: prototypes={prototypes}.")
        self.hidden_size = check_positive_int("hidden_size", hidden_size)
        self.bottleneck_size = check_positive_int("bottleneck_size", bottleneck_size)
        self.num_layers = check_positive_int("num_layers", num_layers)
        self.weight_norm = check_flag("weight_norm", weight_norm)
        widths = (hidden_size,) * (num_layers - 1) + (bottleneck_size,)
        self.dense = [
            Dense(
                width,
                kernel_initializer=keras.initializers.TruncatedNormal(stddev=_DEVIATION),
                dtype=self.dtype_policy,
                name=f"dense_{index}",
            )
            for index, width in enumerate(widths)
        ]
        self.last = PrototypeLogits(prototypes, weight_norm, dtype=self.dtype_policy, name="prototypes")

    def build(self, input_shape: Shape) -> None:
        widths = (input_shape[-1], *(layer.units for layer in self.dense))
        shapes = [(*input_shape[:-1], width) for width in widths]
        self.build_sublayers(*zip((*self.dense, self.last), shapes, strict=True))

    def call(self, tokens: Tensor) -> Tensor:
        x = tokens
        for index, layer in enumerate(self.dense):
            x = layer(x if index == 0 else ops.gelu(x, approximate=False))
        return self.last(x)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.prototypes)


@keras.saving.register_keras_serializable("keras_vit")
class PrototypeLogits(ConfiguredLayer):
    """Vectors divided by their lengths, times prototypes.

    Args:
        prototypes: K.
        weight_norm: whether prototypes are directions and lengths; else they are one kernel.

    Call arguments:
        vectors: `(..., D)`.

    Returns:
        Logits `(..., K)`.

    Source: as of `DINOHead`.

    Example:
        >>> logits = keras_vit.layers.PrototypeLogits(8)(np.ones((2, 4)))
        >>> tuple(logits.shape)
        (2, 8)
    """

    def __init__(self, prototypes: int, weight_norm: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.prototypes, self.weight_norm = prototypes, weight_norm

    def build(self, input_shape: Shape) -> None:
        shape = (input_shape[-1], self.prototypes)
        if not self.weight_norm:
            drawn = keras.initializers.TruncatedNormal(stddev=_DEVIATION)
            self.kernel = self.add_weight(name="kernel", shape=shape, initializer=drawn)
            return
        limit = float(input_shape[-1] or 1) ** -0.5
        drawn = keras.initializers.RandomUniform(-limit, limit)
        self.directions = self.add_weight(name="directions", shape=shape, initializer=drawn)
        self.lengths = self.add_weight(name="lengths", shape=(self.prototypes,), initializer="ones")

    def call(self, vectors: Tensor) -> Tensor:
        units = unit_rows(ops.cast(vectors, "float32"))
        kernel = ops.cast(self.directions if self.weight_norm else self.kernel, "float32")
        if self.weight_norm:
            kernel = ops.transpose(unit_rows(ops.transpose(kernel))) * ops.cast(self.lengths, "float32")
        return ops.matmul(ops.cast(units, self.compute_dtype), ops.cast(kernel, self.compute_dtype))

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape[:-1], self.prototypes)
