"""Heads of boxes: of detection tokens, as YOLOS has it (arXiv:2106.00666), and of patches and texts, of OWL-ViT."""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_positive_int
from keras_vit.config.flops import product
from keras_vit.config.heads import BOXES, CLASS_EMBEDDINGS, LOGITS, OBJECTNESS
from keras_vit.layers.configurable import CompositeLayer
from keras_vit.layers.dense_heads.linear import kernel_flops
from keras_vit.layers.norms import layer_norm


@keras.saving.register_keras_serializable("keras_vit")
class BoxHead(CompositeLayer):
    """A class and a box for each detection token, each by three dense layers with ReLU between.

    Args:
        outputs: K, classes; one more stands for none.
        num_tokens: N, detection tokens.
        first: tokens before them.

    Call arguments:
        tokens: `(B, T, D)` after the last LayerNorm.

    Returns:
        A dict: `logits` `(B, N, K + 1)`, the last class is none, and `boxes` `(B, N, 4)`: centre x and y, width and
        height, in 0 to 1.

    Source: arXiv:2106.00666, section 3.1.

    Example:
        >>> head = keras_vit.layers.BoxHead(outputs=3, num_tokens=5)
        >>> found = head(np.ones((1, 1 + 5 + 6, 12), "float32"))
        >>> {name: tuple(each.shape) for name, each in found.items()}
        {'logits': (1, 5, 4), 'boxes': (1, 5, 4)}
    """

    def __init__(self, outputs: int, num_tokens: int, first: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.outputs, self.num_tokens = (
            check_positive_int("outputs", outputs),
            check_positive_int("num_tokens", num_tokens),
        )
        self.first = first
        self.class_layers: list = []
        self.box_layers: list = []

    def build(self, input_shape: Shape) -> None:
        size, dtype = int(input_shape[-1] or 0), self.dtype_policy
        for kind, count in (("class", self.outputs + 1), ("box", 4)):
            made = [
                keras.layers.Dense(width, dtype=dtype, name=f"{kind}_{number}")
                for number, width in enumerate((size, size, count), start=1)
            ]
            setattr(self, f"{kind}_layers", made)
        layers = (*self.class_layers, *self.box_layers)
        self.build_sublayers(*((layer, (None, self.num_tokens, size)) for layer in layers))

    def call(self, tokens: Tensor) -> dict[str, Tensor]:
        tokens = tokens[:, self.first : self.first + self.num_tokens]
        classes, boxes = (_apply(layers, tokens) for layers in (self.class_layers, self.box_layers))
        return {LOGITS: classes, BOXES: ops.sigmoid(boxes)}

    def flops(self, h: int, w: int) -> int:
        return kernel_flops((*self.class_layers, *self.box_layers), self.num_tokens)

    def compute_output_shape(self, input_shape: Shape) -> dict[str, Shape]:
        of_tokens = (input_shape[0], self.num_tokens)
        return {LOGITS: (*of_tokens, self.outputs + 1), BOXES: (*of_tokens, 4)}


def _apply(layers: list, x: Tensor) -> Tensor:
    for number, layer in enumerate(layers):
        x = layer(ops.relu(x) if number else x)
    return x


@keras.saving.register_keras_serializable("keras_vit")
class OpenBoxHead(CompositeLayer):
    """A box for each patch, and its likeness to each of several texts, whose embeddings are weights that do not learn.

    Args:
        outputs: Q, texts.
        embedding_size: E, of texts.
        patch_size: P, side of a patch in pixels.
        objectness: whether a further number says how likely a box holds anything, as in OWLv2.
        layer_norm_epsilon: added to the variance in the LayerNorm of patches.

    Call arguments:
        inputs: a list: tokens `(B, 1 + N, D)` after the last LayerNorm, the class token first, and the images
            `(B, H, W, C)`, of which only H and W are read.

    Returns:
        A dict: `logits` `(B, N, Q)`, `boxes` `(B, N, 4)`: centre x and y, width and height, in 0 to 1, and
        `class_embeddings` `(B, N, E)` of length 1; with `objectness` also `objectness` `(B, N)`.

    Source: arXiv:2205.06230, section 3.1; objectness: arXiv:2306.09683, section 3.2.

    Example:
        >>> head = keras_vit.layers.OpenBoxHead(3, embedding_size=5, patch_size=16)
        >>> tokens = np.ones((2, 1 + 6, 12), "float32")
        >>> {name: tuple(each.shape) for name, each in head([tokens, images]).items()}
        {'logits': (2, 6, 3), 'boxes': (2, 6, 4), 'class_embeddings': (2, 6, 5)}
    """

    def __init__(
        self,
        outputs: int,
        embedding_size: int,
        patch_size: int,
        objectness: bool = False,
        layer_norm_epsilon: float = 1e-5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.outputs = check_positive_int("outputs", outputs)
        self.embedding_size = check_positive_int("embedding_size", embedding_size)
        self.patch_size = check_positive_int("patch_size", patch_size)
        self.objectness, self.layer_norm_epsilon = objectness, layer_norm_epsilon
        dtype = self.dtype_policy
        self.norm = layer_norm(dtype, "norm", layer_norm_epsilon)
        sizes = {"class_embedding": embedding_size, "logit_shift": 1, "logit_scale": 1}
        self.class_layers = [keras.layers.Dense(size, dtype=dtype, name=name) for name, size in sizes.items()]
        self.box_layers: list = []
        self.objectness_layers: list = []

    def build(self, input_shape: Sequence[Shape]) -> None:
        size, dtype = int(input_shape[0][-1] or 0), self.dtype_policy
        for kind, count in (("box", 4), *((("objectness", 1),) if self.objectness else ())):
            made = [
                keras.layers.Dense(width, dtype=dtype, name=f"{kind}_{number}")
                for number, width in enumerate((size, size, count), start=1)
            ]
            setattr(self, f"{kind}_layers", made)
        shape = (self.outputs, self.embedding_size)
        self.queries = self.add_weight(name="queries", shape=shape, initializer="random_normal", trainable=False)
        layers = (self.norm, *self.class_layers, *self.box_layers, *self.objectness_layers)
        self.build_sublayers(*((layer, (None, None, size)) for layer in layers))

    def call(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        tokens, images = inputs
        features = self.norm(tokens[:, 1:] * tokens[:, :1])
        boxes = _with_gelu(self.box_layers, features)
        found = {BOXES: ops.sigmoid(boxes + self._grid(images, boxes.dtype))} | self._classes(features)
        if self.objectness:
            found[OBJECTNESS] = _with_gelu(self.objectness_layers, features)[..., 0]
        return {name: found[name] for name in (LOGITS, BOXES, CLASS_EMBEDDINGS, OBJECTNESS) if name in found}

    def _classes(self, features: Tensor) -> dict[str, Tensor]:
        embedding, shift, scale = (layer(features) for layer in self.class_layers)
        embedding, queries = _unit(embedding), _unit(ops.cast(self.queries, embedding.dtype))
        cosines = ops.matmul(embedding, ops.transpose(queries))
        return {LOGITS: (cosines + shift) * (ops.elu(scale) + 1), CLASS_EMBEDDINGS: embedding}

    def _grid(self, images: Tensor, dtype: Any) -> Tensor:
        """`(N, 4)`: what brings a box of zeros to the lower right corner of its patch, with the sides of a patch."""
        height, width = (side // self.patch_size for side in ops.shape(images)[1:3])
        rows, columns = (ops.cast(ops.arange(n, dtype="int32") + 1, "float32") for n in (height, width))
        h, w = ops.cast(height, "float32"), ops.cast(width, "float32")
        ones = ops.ones_like(ops.expand_dims(rows, 1) * columns)  # (h, w)
        parts = [ones * (columns / w), ones * ops.expand_dims(rows / h, 1), ones / w, ones / h]
        places = ops.reshape(ops.stack(parts, axis=-1), (-1, 4))
        return ops.cast(ops.log(places + _NEAR_ZERO) - ops.log(1 - places + _NEAR_ZERO), dtype)

    def flops(self, h: int, w: int) -> int:
        layers = (*self.class_layers, *self.box_layers, *self.objectness_layers)
        return kernel_flops(layers, h * w) + product(h * w, self.embedding_size, self.outputs)

    def compute_output_shape(self, input_shape: Sequence[Shape]) -> dict[str, Shape]:
        batch, tokens, _ = input_shape[0]
        patches = (batch, tokens and tokens - 1)
        shapes = {LOGITS: (*patches, self.outputs), BOXES: (*patches, 4)}
        shapes |= {CLASS_EMBEDDINGS: (*patches, self.embedding_size)}
        return shapes | ({OBJECTNESS: patches} if self.objectness else {})


_NEAR_ZERO, _LEAST_LENGTH = 1e-4, 1e-6  # in the authors' code


def _with_gelu(layers: list, x: Tensor) -> Tensor:
    for number, layer in enumerate(layers):
        x = layer(ops.gelu(x, approximate=False) if number else x)
    return x


def _unit(x: Tensor) -> Tensor:
    return x / (ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True)) + _LEAST_LENGTH)
