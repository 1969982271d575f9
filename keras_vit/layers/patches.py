"""Image to patch tokens: section 3.1, equation 1 of arXiv:2010.11929."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit import kernels
from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_int, check_positive_int
from keras_vit.config.records import check_patch_padding, check_statistics
from keras_vit.layers.configurable import ConfiguredLayer


@keras.saving.register_keras_serializable("keras_vit")
class PixelNormalization(ConfiguredLayer):
    """Subtracts a mean and divides by a deviation, which belong to the model's function and are not trained.

    Args:
        pixel_statistics: mean and deviation of each channel, where white is 1.

    Call arguments:
        images: `(B, H, W, C)`, pixels in [0, 1].

    Returns:
        The shape of `images`.

    Source: the input conditioner of C-RADIO, arXiv:2412.07679.

    Example:
        >>> half = keras_vit.layers.PixelNormalization([[0.5] * 3, [0.5] * 3])
        >>> float(half(np.ones((1, 1, 1, 3), "float32"))[0, 0, 0, 0])
        1.0
    """

    def __init__(self, pixel_statistics: Sequence[Sequence[float]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pixel_statistics = check_statistics("pixel_statistics", pixel_statistics)

    def call(self, images: Tensor) -> Tensor:
        mean, std = (ops.convert_to_tensor(each, images.dtype) for each in self.pixel_statistics)
        return (images - mean) / std

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        channels = len(self.pixel_statistics[0])
        if input_shape[-1] != channels:
            raise ValueError(
                "images must have as many channels as `pixel_statistics` has numbers.\n"
                f"Received: {input_shape[-1]} channels, {channels} numbers."
            )
        return input_shape


@keras.saving.register_keras_serializable("keras_vit")
class PatchEmbedding(ConfiguredLayer):
    """Cuts an image into square patches and maps each patch to one token.

    A convolution with kernel and stride P: the same numbers as unfolding the image
    and multiplying by one matrix.

    Args:
        hidden_size: D, size of a token.
        patch_size: P, side of a patch in pixels.
        patch_bias: whether a bias is added to each token.
        patch_padding: zeros around the images, less than P/2: patches begin so many pixels further up and left.

    Call arguments:
        images: `(B, H, W, C)`, floats in the range the weights expect, or a feature map;
            H and W multiples of P.

    Returns:
        `(B, N, D)` with N = (H/P)(W/P), patches in reading order.

    Raises:
        ValueError: if H or W is known and no multiple of P.

    Source: arXiv:2010.11929, section 3.1, eq. 1.

    Example:
        >>> tuple(keras_vit.layers.PatchEmbedding(12, patch_size=16)(images).shape)
        (2, 6, 12)
    """

    def __init__(
        self, hidden_size: int, patch_size: int, patch_bias: bool = True, patch_padding: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        hidden_size = check_positive_int("hidden_size", hidden_size)
        patch_size = check_positive_int("patch_size", patch_size)
        self.hidden_size = hidden_size
        self.patch_size = patch_size
        self.patch_bias = patch_bias
        self.patch_padding = check_patch_padding(check_int("patch_padding", patch_padding, 0), patch_size)
        self.projection = keras.layers.Conv2D(
            hidden_size,
            patch_size,
            strides=patch_size,
            padding="valid",
            data_format="channels_last",
            use_bias=patch_bias,
            kernel_initializer="lecun_normal",
            dtype=self.dtype_policy,
            name="projection",
        )

    def build(self, input_shape: Shape) -> None:
        self._check_tiles(input_shape)
        self.projection.build(input_shape)

    def call(self, images: Tensor, training: bool | None = None) -> Tensor:
        self._check_tiles(images.shape)
        height, width = images.shape[1:3]
        if height is None or width is None:
            images = self._whole_patches_only(images)
        if padding := self.patch_padding:  # at bottom and right no patch reaches the zeros
            images = ops.pad(images[:, :-padding, :-padding], ((0, 0), (padding, 0), (padding, 0), (0, 0)))
        return kernels.patch_rows(images, self.projection, training)  # (B, N, D)

    def _whole_patches_only(self, images: Tensor) -> Tensor:
        """An error where a side known to the running graph alone is no multiple of P: a convolution would crop."""
        batch, height, width, channels = ops.shape(images)
        side = self.patch_size
        return ops.reshape(images, (batch, height // side * side, width // side * side, channels))

    def _check_tiles(self, shape: Shape) -> None:
        if len(shape) != 4:
            raise ValueError(f"`images` must have shape (B, H, W, C).\nReceived: shape {tuple(shape)}.")
        sides = [side for side in shape[1:3] if side is not None]
        if any(side % self.patch_size or side < 1 for side in sides):
            raise ValueError(
                "height and width of `images` must be multiples of `patch_size`, so that patches tile the image.\n"
                f"Received: shape {tuple(shape)}, patch_size={self.patch_size}. Resize or crop the images."
            )

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, height, width, _ = input_shape
        if height is None or width is None:
            return (batch, None, self.hidden_size)
        return (batch, (height // self.patch_size) * (width // self.patch_size), self.hidden_size)
