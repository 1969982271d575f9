"""Queries among the tokens of an encoder, and the head that makes classes and masks of them: EoMT, arXiv:2503.19108."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.config.flops import product
from keras_vit.config.heads import CLASS_LOGITS, MASK_LOGITS
from keras_vit.dense.queries import semantic
from keras_vit.layers.configurable import CompositeLayer, ConfiguredLayer
from keras_vit.layers.dense_heads.linear import kernel_flops
from keras_vit.layers.norms import layer_norm
from keras_vit.layers.tokens import RegisterTokens


@keras.saving.register_keras_serializable("keras_vit")
class QueryTokens(RegisterTokens):
    """Puts learned queries between the prefix tokens and the patches; they have no positions.

    Args:
        count: Q, number of queries.
        num_prefix_tokens: tokens before them.

    Call arguments:
        tokens: `(B, T, D)`.

    Returns:
        `(B, T + Q, D)`.

    Source: arXiv:2503.19108, section 3.2.

    Example:
        >>> tokens = keras.random.normal((2, 7, 12))
        >>> tuple(keras_vit.layers.QueryTokens(4)(tokens).shape)
        (2, 11, 12)
    """

    def build(self, input_shape: Shape) -> None:
        first = keras.initializers.RandomNormal(stddev=1.0)  # as torch's embeddings begin
        self.queries = self.add_weight(name="queries", shape=(self.count, input_shape[-1]), initializer=first)

    def call(self, tokens: Tensor) -> Tensor:
        return self.inserted(self.queries, tokens)  # (B, T + Q, D)


@keras.saving.register_keras_serializable("keras_vit")
class MaskHead(CompositeLayer):
    """A class and a mask for each query: its product with a map of the patches that is made larger.

    The map is doubled by transposed convolutions, each with exact GELU, a convolution of each channel and LayerNorm.

    Args:
        outputs: K, classes; one more stands for none.
        num_queries: Q.
        num_prefix_tokens: tokens before the queries.
        patch_size: P, side of a patch in pixels.
        upscales: how often the map is doubled.

    Attributes:
        seed_generator: of what a training draws, of masked attention and of points; not of what the layer computes.

    Call arguments:
        inputs: a list: tokens `(B, T + Q, D)` after the last LayerNorm, and the images `(B, H, W, C)`, of which only H
            and W are read.

    Returns:
        A dict: `class_logits` `(B, Q, K + 1)`, the last class is none, and `mask_logits` `(B, h, w, Q)`, where h and w
        are those of the patches, doubled `upscales` times.

    Source: arXiv:2503.19108, section 3.2.

    Example:
        >>> head = keras_vit.layers.MaskHead(outputs=3, num_queries=4, patch_size=8)
        >>> tokens = np.ones((1, 1 + 4 + 6, 12), "float32")
        >>> images = np.ones((1, 16, 24, 3), "float32")
        >>> {name: tuple(each.shape) for name, each in head([tokens, images]).items()}
        {'class_logits': (1, 4, 4), 'mask_logits': (1, 8, 12, 4)}
    """

    def __init__(
        self,
        outputs: int,
        num_queries: int,
        num_prefix_tokens: int = 1,
        patch_size: int = 16,
        upscales: int = 2,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.outputs = check_positive_int("outputs", outputs)
        self.num_queries = check_positive_int("num_queries", num_queries)
        self.num_prefix_tokens, self.patch_size, self.upscales = num_prefix_tokens, patch_size, upscales
        self.class_head = keras.layers.Dense(outputs + 1, dtype=self.dtype_policy, name="class_head")
        self.seed_generator = keras.random.SeedGenerator()
        self.mask_layers: list = []
        self.upscale_layers: list = []

    def build(self, input_shape: Sequence[Shape]) -> None:
        size, dtype = int(input_shape[0][-1] or 0), self.dtype_policy
        self.mask_layers = [keras.layers.Dense(size, dtype=dtype, name=f"mask_{number}") for number in (1, 2, 3)]
        self.upscale_layers = [
            (
                keras.layers.Conv2DTranspose(size, 2, 2, dtype=dtype, name=f"deconv_{number}"),
                keras.layers.DepthwiseConv2D(
                    3, padding="same", use_bias=False, dtype=dtype, name=f"depthwise_{number}"
                ),
                layer_norm(dtype, f"norm_{number}"),
            )
            for number in range(self.upscales)
        ]
        queries, maps = (None, self.num_queries, size), (None, None, None, size)
        pairs = [(layer, queries) for layer in (self.class_head, *self.mask_layers)]
        self.build_sublayers(*pairs, *((layer, maps) for step in self.upscale_layers for layer in step))

    def call(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        tokens, images = inputs
        first = self.num_prefix_tokens
        queries, patches = tokens[:, first : first + self.num_queries], tokens[:, first + self.num_queries :]
        batch, height, width, _ = ops.shape(images)
        grid = (height // self.patch_size, width // self.patch_size)
        maps = ops.reshape(patches, (batch, *grid, tokens.shape[-1]))
        for deconv, depthwise, norm in self.upscale_layers:
            maps = norm(depthwise(ops.gelu(deconv(maps), approximate=False)))
        x = queries
        for number, layer in enumerate(self.mask_layers):
            x = layer(ops.gelu(x, approximate=False) if number else x)
        return {CLASS_LOGITS: self.class_head(queries), MASK_LOGITS: ops.einsum("bhwd,bqd->bhwq", maps, x)}

    def flops(self, h: int, w: int) -> int:
        found = kernel_flops((self.class_head, *self.mask_layers), self.num_queries)
        places = h * w
        for deconv, depthwise, _ in self.upscale_layers:
            found, places = found + kernel_flops([deconv], places) + kernel_flops([depthwise], 4 * places), 4 * places
        return found + product(places, self.mask_layers[-1].kernel.shape[-1], self.num_queries)

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> dict[str, Shape]:
        batch, *sides, _ = input_shape[1]
        sides = [side and side // self.patch_size * 2**self.upscales for side in sides]
        return {
            CLASS_LOGITS: (batch, self.num_queries, self.outputs + 1),
            MASK_LOGITS: (batch, *sides, self.num_queries),
        }


@keras.saving.register_keras_serializable("keras_vit")
class MaskScores(ConfiguredLayer):
    """The scores of each pixel's classes from classes and masks of queries, as `keras_vit.dense.semantic`.

    Call arguments:
        inputs: a list: `class_logits` `(B, Q, K + 1)` and `mask_logits` `(B, h, w, Q)`; and images `(B, H, W, C)`, to
            whose size the masks are resized first (bilinear).

    Returns:
        float32 `(B, H, W, K)`, or `(B, h, w, K)` without images.

    Example:
        >>> classes, masks = np.ones((1, 4, 3)), np.ones((1, 8, 12, 4))
        >>> tuple(keras_vit.layers.MaskScores()([classes, masks]).shape)
        (1, 8, 12, 2)
    """

    def call(self, inputs: Sequence[Tensor]) -> Tensor:
        classes, masks, *images = inputs
        size = tuple(ops.shape((*images, masks)[0])[1:3])
        return semantic(ops.cast(classes, "float32"), ops.cast(masks, "float32"), size)

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        classes, masks, *images = input_shape
        return (masks[0], *(*images, masks)[0][1:3], int(classes[-1] or 0) - 1)
