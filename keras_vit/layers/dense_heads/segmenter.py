"""The mask transformer of Segmenter: class embeddings pass blocks with the patches, and masks are their cosines."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.config.flops import product
from keras_vit.layers.configurable import CompositeLayer, flatten_layers
from keras_vit.layers.dense_heads.linear import kernel_flops
from keras_vit.layers.encoder import TransformerBlock
from keras_vit.layers.norms import LayerNorm, layer_norm

_EPSILON = 1e-5  # torch's of LayerNorm, whatever the encoder's
_LEAST_LENGTH = 1e-12  # below which a vector is not divided by its length, as in mmsegmentation


@keras.saving.register_keras_serializable("keras_vit")
class MaskTransformerHead(CompositeLayer):
    """Class embeddings and patches pass blocks together; a class's logits are its cosines with each patch, normed.

    Args:
        outputs: K, classes.
        hidden_size: d, size of a token in the blocks.
        num_heads: A of the blocks; must divide `hidden_size`.
        num_layers: number of blocks.
        mlp_dim: M of the blocks; by default 4 d.

    Call arguments:
        taps: a list of one `(B, h, w, D)`.

    Returns:
        `(B, h, w, K)`, after a LayerNorm over the classes.

    Source: arXiv:2105.05633, section 3.2.

    Example:
        >>> head = keras_vit.layers.MaskTransformerHead(5, hidden_size=8, num_heads=2)
        >>> tuple(head([np.ones((1, 2, 3, 12), "float32")]).shape)
        (1, 2, 3, 5)
    """

    def __init__(
        self,
        outputs: int,
        hidden_size: int,
        num_heads: int,
        num_layers: int = 2,
        mlp_dim: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.outputs, self.hidden_size = check_positive_int("outputs", outputs), hidden_size
        self.num_heads, self.num_layers, self.mlp_dim = num_heads, check_positive_int("num_layers", num_layers), mlp_dim
        dtype = self.dtype_policy
        self.project = keras.layers.Dense(hidden_size, dtype=dtype, name="project")
        ways: dict[str, Any] = {"activation": "gelu", "layer_norm_epsilon": _EPSILON, "dtype": dtype}
        self.blocks = [
            TransformerBlock(hidden_size, num_heads, mlp_dim or 4 * hidden_size, name=f"block_{i:02}", **ways)
            for i in range(num_layers)
        ]
        self.decoder_norm = layer_norm(dtype, "decoder_norm", _EPSILON)
        self.project_patches, self.project_classes = (
            keras.layers.Dense(hidden_size, use_bias=False, dtype=dtype, name=f"project_{what}")
            for what in ("patches", "classes")
        )
        self.mask_norm = layer_norm(dtype, "mask_norm", _EPSILON)
        for layer in flatten_layers(
            self, include_self=False
        ):  # cosines of classes differ by little, which is scaled up
            if isinstance(layer, LayerNorm):
                layer.in_two_passes = True

    def build(self, input_shape: Sequence[Shape]) -> None:
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(1, self.outputs, self.hidden_size),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )
        tokens = (None, None, self.hidden_size)
        between = (*self.blocks, self.decoder_norm, self.project_patches, self.project_classes)
        self.build_sublayers(
            (self.project, (None, None, int(input_shape[0][-1] or 0))),
            *((layer, tokens) for layer in between),
            (self.mask_norm, (None, None, self.outputs)),
        )

    def call(self, taps: Sequence[Tensor], training: bool | None = None) -> Tensor:
        (maps,) = taps
        batch, h, w, width = ops.shape(maps)
        patches = self.project(ops.reshape(maps, (batch, h * w, width)))  # (B, N, d)
        classes = ops.cast(self.embeddings, patches.dtype)
        classes = ops.broadcast_to(classes, (batch, self.outputs, self.hidden_size))
        tokens = ops.concatenate([patches, classes], axis=1)  # (B, N + K, d)
        for block in self.blocks:
            tokens = block(tokens, training=training)
        tokens = self.decoder_norm(tokens)
        patches = _of_length_one(self.project_patches(tokens[:, : -self.outputs]))
        classes = _of_length_one(self.project_classes(tokens[:, -self.outputs :]))
        classes = classes - ops.mean(classes, axis=1, keepdims=True)  # which the norm over classes would subtract
        cosines = ops.matmul(patches, ops.transpose(classes, (0, 2, 1)))  # (B, N, K)
        return ops.reshape(self.mask_norm(cosines), (batch, h, w, self.outputs))

    def flops(self, h: int, w: int) -> int:
        patches, tokens = h * w, h * w + self.outputs
        in_blocks = sum(product(tokens, part.inputs, part.outputs) for block in self.blocks for part in block.parts)
        attention = len(self.blocks) * 2 * product(tokens, self.hidden_size, tokens)
        cosines = product(patches, self.hidden_size, self.outputs)
        around = kernel_flops((self.project, self.project_patches), patches)
        return in_blocks + attention + cosines + around + kernel_flops([self.project_classes], self.outputs)

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> Shape:
        return (*input_shape[0][:-1], self.outputs)


def _of_length_one(x: Tensor) -> Tensor:
    return x / ops.maximum(ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True)), _LEAST_LENGTH)
