"""Images padded for whole patches, tokens as maps of patches, and maps resized to the image."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.dense.maps import resize
from keras_vit.layers.configurable import ConfiguredLayer


@keras.saving.register_keras_serializable("keras_vit")
class PadToMultiple(ConfiguredLayer):
    """Pads images with zeros to multiples of the patch.

    Args:
        multiple: pixels of a side of a patch.
        where: `"centre"` leaves the smaller half at top and left, as DINOv2 and DINOv3; `"end"` pads at bottom and
            right.

    Call arguments:
        images: `(B, H, W, C)`, prepared: zeros after normalisation.

    Returns:
        `(B, H', W', C)`, the next multiples; the images themselves where they are multiples.

    Example:
        >>> tuple(keras_vit.layers.PadToMultiple(14)(np.ones((1, 30, 28, 3))).shape)
        (1, 42, 28, 3)
    """

    def __init__(self, multiple: int, where: str = "centre", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.multiple = check_positive_int("multiple", multiple)
        check_choice("where", where, ("centre", "end"))
        self.where = where

    def call(self, images: Tensor) -> Tensor:
        for axis in (1, 2):
            side = ops.shape(images)[axis]
            if not isinstance(side, int) or side % self.multiple:
                images = self._padded(images, axis, -side % self.multiple)
        return images

    def _padded(self, images: Tensor, axis: int, missing: Any) -> Tensor:
        before = missing // 2 if self.where == "centre" else 0 * missing
        parts = [self._zeros(images, axis, before), images, self._zeros(images, axis, missing - before)]
        return ops.concatenate(parts, axis=axis)

    def _zeros(self, images: Tensor, axis: int, count: Any) -> Tensor:
        shape = list(ops.shape(images))
        shape[axis] = count
        return ops.zeros(shape, images.dtype)

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        batch, *sides, channels = input_shape
        return (batch, *(side and side + -side % self.multiple for side in sides), channels)


@keras.saving.register_keras_serializable("keras_vit")
class TapMaps(ConfiguredLayer):
    """Reshapes the tokens of several blocks to maps of the patch grid.

    The encoder's output is an input too and is not read: with it, a model whose taps skip the last LayerNorm still
    has its weights.

    Args:
        patch_size: P, side of a patch in pixels.
        num_prefix_tokens: number of tokens before the patches.
        class_token: whether the first prefix token is concatenated to the channels of each patch.

    Call arguments:
        inputs: a list: padded images `(B, H, W, C)`, the encoder's tokens, and tokens `(B, T, D)` of each tap.

    Returns:
        A list of `(B, h, w, D)` for each tap, `(B, h, w, 2 D)` with the class token.

    Example:
        >>> images, tokens = np.ones((1, 32, 48, 3)), np.ones((1, 7, 12))
        >>> taps = keras_vit.layers.TapMaps(16, 1)([images, tokens, tokens])
        >>> [tuple(tap.shape) for tap in taps]
        [(1, 2, 3, 12)]
    """

    def __init__(self, patch_size: int, num_prefix_tokens: int, class_token: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patch_size = check_positive_int("patch_size", patch_size)
        self.num_prefix_tokens = num_prefix_tokens
        self.class_token = class_token
        if class_token and not num_prefix_tokens:
            raise ValueError(
                "a head that reads the class token needs an encoder with one.\nReceived: num_prefix_tokens=0."
            )

    def call(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        images, _, *taps = inputs
        batch, height, width, _ = ops.shape(images)
        return [self._map(tokens, batch, height // self.patch_size, width // self.patch_size) for tokens in taps]

    def _map(self, tokens: Tensor, batch: Any, h: Any, w: Any) -> Tensor:
        size = tokens.shape[-1]
        maps = ops.reshape(tokens[:, self.num_prefix_tokens :], (batch, h, w, size))
        if not self.class_token:
            return maps
        first = ops.broadcast_to(tokens[:, None, :1], (batch, h, w, size))
        return ops.concatenate([maps, first], axis=-1)

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> list[Shape]:
        (batch, *sides, _), _, *taps = input_shape
        grid = [side and side // self.patch_size for side in sides]
        return [(batch, *grid, (1 + self.class_token) * int(tap[-1] or 0)) for tap in taps]


@keras.saving.register_keras_serializable("keras_vit")
class ResizeToImages(ConfiguredLayer):
    """Resizes maps to the size of images, in float32 and without antialiasing.

    Args:
        method: `"bilinear"`, or `"bicubic"` with a = -0.75.
        align_corners: whether the centres of the corner pixels stay where they are.
        multiple: P of images that were padded at bottom and right: maps get the padded size, and are cropped to the
            images. By default they get that of the images.

    Call arguments:
        inputs: a list: maps `(B, h, w, K)` or `(B, h, w)`, and images `(B, H, W, C)`.

    Returns:
        `(B, H, W, K)` or `(B, H, W)`.

    Example:
        >>> maps, images = np.ones((1, 2, 3, 5)), np.ones((1, 30, 40, 3))
        >>> tuple(keras_vit.layers.ResizeToImages()([maps, images]).shape)
        (1, 30, 40, 5)
    """

    def __init__(self, method: Any = "bilinear", align_corners: bool = False, multiple: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_choice("method", method, ("bilinear", "bicubic"))
        self.multiple = check_positive_int("multiple", multiple)
        self.method = method
        self.align_corners = align_corners

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        maps, images = inputs
        has_channels = len(maps.shape) == 4
        maps = ops.cast(maps if has_channels else maps[..., None], "float32")
        height, width = ops.shape(images)[1:3]
        size = height + -height % self.multiple, width + -width % self.multiple
        found = resize(maps, size, self.method, self.align_corners)
        found = found if self.multiple == 1 else found[:, :height, :width]
        return found if has_channels else found[..., 0]

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        maps, images = input_shape
        return (maps[0], *images[1:3], *maps[3:])
