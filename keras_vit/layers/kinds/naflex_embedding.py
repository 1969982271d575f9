"""Batches of images with grids of their own, padded to one number of patches: NaFlex, arXiv:2502.14786, section 2.4.2.

What pads has no part in the numbers: attention gives it no weight, and pooling leaves it out.
"""

from typing import Any, cast

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.layers.configurable import ConfiguredLayer, at_least_float32

_NO_WEIGHT = -1e9  # added to a logit; its exponential is 0 next to any other, and an image of padding alone has no NaN


@keras.saving.register_keras_serializable("keras_vit")
class PatchColumn(ConfiguredLayer):
    """Puts the patches of an image below each other, as an image that is one patch wide.

    Args:
        patch_size: P, side of a patch in pixels.

    Call arguments:
        patches: `(B, N, P * P * C)`, each patch by row, column and channel.

    Returns:
        `(B, N * P, P, C)`.

    Example:
        >>> column = keras_vit.layers.PatchColumn(patch_size=16)
        >>> tuple(column(np.zeros((2, 6, 768), "float32")).shape)
        (2, 96, 16, 3)
    """

    def __init__(self, patch_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patch_size = check_positive_int("patch_size", patch_size)

    def call(self, patches: Tensor) -> Tensor:
        batch, number = ops.shape(patches)[:2]
        channels = patches.shape[-1] // self.patch_size**2
        return ops.reshape(patches, (batch, number * self.patch_size, self.patch_size, channels))

    def compute_output_shape(self, patches_shape: Shape) -> Shape:
        batch, number, values = patches_shape
        rows = None if number is None else number * self.patch_size
        return (batch, rows, self.patch_size, cast(int, values) // self.patch_size**2)


@keras.saving.register_keras_serializable("keras_vit")
class PatchMask(ConfiguredLayer):
    """What blocks and pooling need to leave padding out, from which patches are there.

    Args:
        num_prefix_tokens: tokens before the patches, which are always there.

    Call arguments:
        mask: `(B, N)`, true or 1 for patches of the image, false or 0 for padding.

    Returns:
        float32 `(B, T, 1)`, 1 for tokens that are there and 0 for padding; and `(B, 1, 1, T)`, what is added to the
        logits of attention.

    Example:
        >>> mask = keras_vit.layers.PatchMask(num_prefix_tokens=1)
        >>> there, added = mask(np.array([[1, 1, 0]]))
        >>> [float(each) for each in there[0, :, 0]]
        [1.0, 1.0, 1.0, 0.0]
    """

    def __init__(self, num_prefix_tokens: int = 0, **kwargs: Any) -> None:
        super().__init__(dtype=at_least_float32(kwargs.pop("dtype", None)), **kwargs)
        self.num_prefix_tokens = num_prefix_tokens

    def call(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        there = ops.pad(ops.cast(mask, self.compute_dtype), [(0, 0), (self.num_prefix_tokens, 0)], constant_values=1)
        return ops.expand_dims(there, -1), ops.where(there[:, None, None] > 0, 0.0, _NO_WEIGHT)

    def compute_output_spec(self, mask: Tensor) -> Any:
        batch, number = mask.shape
        tokens = None if number is None else number + self.num_prefix_tokens
        shapes = ((batch, tokens, 1), (batch, 1, 1, tokens))
        return tuple(keras.KerasTensor(shape, self.compute_dtype) for shape in shapes)


@keras.saving.register_keras_serializable("keras_vit")
class ZeroPadding(ConfiguredLayer):
    """Makes the tokens of padding 0.

    Call arguments:
        tokens: `(B, T, D)`.
        there: `(B, T, 1)`, of a `PatchMask`.

    Returns:
        The shape of `tokens`.

    Example:
        >>> padding = keras_vit.layers.ZeroPadding()
        >>> tokens = padding(np.ones((1, 2, 4)), np.array([[[1.0], [0.0]]]))
        >>> [float(each) for each in tokens[0, :, 0]]
        [1.0, 0.0]
    """

    def call(self, tokens: Tensor, there: Tensor) -> Tensor:
        return tokens * ops.cast(there, tokens.dtype)

    def compute_output_shape(self, tokens_shape: Shape, there_shape: Shape) -> Shape:
        return tokens_shape
