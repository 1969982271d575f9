"""What scales tokens channel by channel: LayerNorm, RMSNorm, and the LayerScale after a branch of a block.

LayerNorm's epsilon is 1e-6, the official code's, not Keras' 1e-3.
"""

from typing import Any

import keras
from keras import ops

from keras_vit import kernels
from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_number
from keras_vit.config.vit import ViTConfig
from keras_vit.layers.configurable import ConfiguredLayer

NORM_EPSILON = 1e-6


def layer_norm(dtype: Any, name: str, epsilon: float = NORM_EPSILON, norm: str = "layer") -> keras.layers.Layer:
    """The norm of every place in the model: `"layer"` or `"rms"`."""
    return (RMSNorm if norm == "rms" else LayerNorm)(epsilon=epsilon, dtype=dtype, name=name)


def norm_of(config: ViTConfig, name: str) -> keras.layers.Layer:
    """What every norm outside of the blocks is."""
    return layer_norm(None, name, config.layer_norm_epsilon, config.norm)


@keras.saving.register_keras_serializable("keras_vit")
class LayerNorm(keras.layers.LayerNormalization):
    """Keras' LayerNormalization, which keeps less for the backward pass of TensorFlow.

    It takes the arguments of Keras' layer. Only over the last axis, with scale and offset, does it keep less.

    Attributes:
        in_two_passes: whether the variance is the mean square of what is left without the mean, over the last axis.
            Keras takes the square of the mean from the mean square, which is quicker and loses digits.

    Call arguments:
        inputs: `(..., D)`.

    Returns:
        As `inputs`, in the precision of the layer.
    """

    in_two_passes = False

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        if self.in_two_passes:
            x = inputs - ops.mean(inputs, axis=(-1,), keepdims=True)  # OpenVINO takes no axis that is a scalar
            variance = ops.mean(ops.square(x), axis=(-1,), keepdims=True)
            return x / ops.sqrt(variance + self.epsilon) * self.gamma + self.beta
        forward = kernels.layer_norm(self, len(inputs.shape), training) or super().call
        return forward(inputs)


@keras.saving.register_keras_serializable("keras_vit")
class RMSNorm(ConfiguredLayer):
    """Divides each token by the root of its mean square, computed in at least float32, and scales the channels.

    Args:
        epsilon: added to the mean square.

    Call arguments:
        inputs: `(..., D)`.

    Returns:
        As `inputs`, in the precision of the layer.

    Source: arXiv:1910.07467, eq. 4.

    Example:
        >>> tuple(keras_vit.layers.RMSNorm()(keras.random.normal((2, 7, 12))).shape)
        (2, 7, 12)
    """

    beta = None  # it shifts nothing

    def __init__(self, epsilon: float = NORM_EPSILON, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_number("epsilon", epsilon)
        self.epsilon = epsilon

    def build(self, input_shape: Shape) -> None:
        self.gamma = self.add_weight(name="gamma", shape=(input_shape[-1],), initializer="ones")

    def call(self, inputs: Tensor) -> Tensor:
        return ops.rms_normalization(inputs, scale=self.gamma, axis=-1, epsilon=self.epsilon)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


@keras.saving.register_keras_serializable("keras_vit")
class LayerScale(ConfiguredLayer):
    """A learned factor for each channel, which lets a deep network begin near the identity.

    Args:
        init: first value of the factors.

    Call arguments:
        inputs: `(..., D)`.

    Returns:
        The shape of `inputs`.

    Source: arXiv:2103.17239, section 2.

    Example:
        >>> scale = keras_vit.layers.LayerScale(init=0.5)
        >>> float(scale(np.ones((1, 1, 4), "float32"))[0, 0, 0])
        0.5
    """

    def __init__(self, init: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_number("init", init)
        self.init = init

    def build(self, input_shape: Shape) -> None:
        first = keras.initializers.Constant(self.init)
        self.gamma = self.add_weight(name="gamma", shape=(input_shape[-1],), initializer=first)

    def call(self, inputs: Tensor) -> Tensor:
        return inputs * ops.cast(self.gamma, inputs.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape
