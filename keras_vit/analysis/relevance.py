"""Class relevance: attention weighted by its gradient, through all blocks.

Source: Chefer, Gur and Wolf, "Generic Attention-model Explainability", arXiv:2103.15679, section 3: equations 5 and 6.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import kernels
from keras_vit.analysis.attention_weights import AttentionMaps, as_maps
from keras_vit.analysis.submodels import check_global_attention, prepared_batches, vision_transformer_in
from keras_vit.annotations import Pair, Tensor
from keras_vit.config.heads import SEGMENTATION
from keras_vit.model.layer_access import encoder_blocks, pooling
from keras_vit.model.outputs import output_spec
from keras_vit.model.vision_transformer import VisionTransformer


def class_relevance(
    model: keras.Model, images: Any, classes: Sequence[int] | np.ndarray | None = None, batch_size: int = 4
) -> np.ndarray:
    """Gets the relevance of each patch for a class.

    A relevance matrix R starts as the identity. Every block multiplies its attention by the gradient of the
    class's output, keeps positive values, and averages them over the heads. The product of the result and R is added
    to R. The rows of the tokens that the model reads give the map.

    Of a segmenter, the output of a class is the sum of its scores over the pixels that are given to it, or over all
    pixels if there are none, and the rows are those of the patches with these pixels.

    Example:
        >>> keras_vit.class_relevance(model, images, classes=[0, 2]).shape
        (2, 2, 3)

    Args:
        model: a `VisionTransformer` with a head, or a functional model that has one among its layers, with outputs
            `(B, K)`; or a segmenter, with `(B, H, W, K)`. Logits are best, since the gradient of a confident softmax
            vanishes.
        images: `(B, H, W, C)` floats, prepared for the model.
        classes: one index for each image; by default that of the highest output, or of the most pixels.
        batch_size: images at once.

    Returns:
        float64 `(B, h, w)`, not negative; each image has its own scale.

    Raises:
        ValueError: for a model without such outputs, classes out of range, and as `attention_maps`.
    """
    inner = vision_transformer_in(model)
    check_global_attention(inner)
    chosen = None if classes is None else _check_classes(model, classes, images)
    maps, start = [], 0
    for batch, prepared in prepared_batches(model, inner, images, batch_size):
        given = None if chosen is None else chosen[start : start + len(batch)]
        start += len(batch)
        recorded, gradients, pixels = weights_and_gradients(model, batch, given)
        maps.append(_relevance(as_maps(inner, prepared.shape, [recorded]), inner, recorded, gradients, pixels))
    return np.concatenate(maps)


def weights_and_gradients(
    model: keras.Model, images: Tensor, classes: Any = None
) -> tuple[list[tuple[Any, np.ndarray]], list[np.ndarray], np.ndarray]:
    """The attention weights of a model for images, and the gradient of a class's output by each of them.

    Args:
        model: any model with layers of this package and outputs `(B, K)`, or of a segmenter `(B, H, W, K)`.
        images: `(B, H, W, C)`.
        classes: `(B,)` integers; by default those of the highest outputs, or of the most pixels.

    Returns:
        Pairs of a layer and its weights `(B, A, Q, T)` in the order of calls, the gradients in the same order, and
        booleans `(B,)` or `(B, H, W)`: which of an image's outputs speak for its class.
    """
    with kernels.record_attention() as recorded:
        outputs = model(images, training=False)
    shapes = [tuple(each.shape) for each in keras.tree.flatten(outputs)]
    of_pixels = len(shapes[0]) == 4 and output_spec(model).head.name == SEGMENTATION
    if len(shapes) != 1 or not (len(shapes[0]) == 2 or of_pixels):
        raise ValueError(
            "a model must answer one (B, K) to speak for a class, or (B, H, W, K) of a segmenter.\n"
            f"Received: outputs {shapes}."
        )
    best = np.argmax(ops.convert_to_numpy(outputs), axis=-1)  # (B,) or (B, H, W)
    if classes is None:
        classes = [np.bincount(row).argmax() for row in best.reshape(len(best), -1)]
    classes = np.reshape(classes, (-1, *(1,) * (best.ndim - 1)))
    read = best == classes
    read |= ~read.any(axis=tuple(range(1, best.ndim)), keepdims=True)
    chosen = ops.one_hot(classes, outputs.shape[-1], dtype=outputs.dtype)
    chosen = chosen * ops.cast(read[..., None], outputs.dtype)

    def score(offsets: list) -> Tensor:
        """The sum of the chosen outputs, with an offset on each of the attention weights."""
        left = iter(offsets)
        with kernels.intercept_attention(lambda layer, weights: weights + next(left)):
            return ops.sum(model(images, training=False) * chosen)

    gradients = _gradients(score, [ops.zeros_like(weights) for _, weights in recorded])
    as_float = [(layer, _numpy(weights)) for layer, weights in recorded]
    return as_float, [_numpy(gradient) for gradient in gradients], read


def _gradients(function: Callable[[list], Tensor], at: list) -> list:
    """The gradient of a scalar function by each tensor of its argument."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(at)
            value = function(at)
        return tape.gradient(value, at, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    if keras.backend.backend() == "jax":
        import jax

        return jax.grad(function)(at)
    import torch

    at = [tensor.clone().requires_grad_() for tensor in at]
    with torch.enable_grad():
        return list(torch.autograd.grad(function(at), at, allow_unused=True, materialize_grads=True))


def _relevance(
    maps: AttentionMaps, inner: VisionTransformer, recorded: list, gradients: list, read: np.ndarray
) -> np.ndarray:
    """The relevance map `(B, h, w)` of one batch; `read` are the pixels of a segmenter's class, or `(B,)`."""
    of_layer = {id(layer): (weights, gradient) for (layer, weights), gradient in zip(recorded, gradients, strict=True)}
    joint = np.eye(maps.blocks.shape[-1])
    for block in encoder_blocks(inner):
        if id(block.attention) in of_layer:
            joint = joint + _positive(*of_layer[id(block.attention)]) @ joint  # (B, T, T)
    reading = maps.reading
    if read.ndim > 1:
        reading = np.pad(_shares_of_patches(read, maps.grid), ((0, 0), (maps.num_prefix_tokens, 0)))
    elif maps.pooling is not None:
        reading, pooled = np.zeros_like(maps.reading), _positive(*of_layer[id(pooling(inner).attention)])[:, 0]
        reading[:, -pooled.shape[-1] :] = pooled
    return maps.over_patches(np.einsum("bt,bts->bs", reading, joint))


def _shares_of_patches(pixels: np.ndarray, grid: Pair) -> np.ndarray:
    """What share of an image's pixels `(B, H, W)` lies in each patch, `(B, h * w)`; rows sum to 1."""
    lies = [np.eye(count)[np.arange(side) * count // side] for side, count in zip(pixels.shape[1:], grid, strict=True)]
    shares = np.einsum("bHW,Hh,Ww->bhw", pixels, *lies).reshape(len(pixels), -1)
    return shares / shares.sum(axis=1, keepdims=True)


def _positive(weights: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    return np.maximum(weights.astype("float64") * gradient, 0).mean(axis=1)


def _numpy(tensor: Tensor) -> np.ndarray:
    """A tensor as an array; 16-bit floats become float32, since NumPy has no bfloat16."""
    return ops.convert_to_numpy(ops.cast(tensor, "float32" if "16" in str(tensor.dtype) else tensor.dtype))


def _check_classes(model: keras.Model, classes: Sequence[int] | np.ndarray, images: Tensor) -> np.ndarray:
    chosen, count = np.asarray(classes), output_spec(model).size
    if chosen.shape != (len(images),) or chosen.dtype.kind not in "iu" or not ((chosen >= 0) & (chosen < count)).all():
        raise ValueError(
            f"`classes` must have an integer in [0, {count}) for each image.\n"
            f"Received: {chosen.dtype} of shape {chosen.shape} for {len(images)} images: {classes!r}."
        )
    return chosen
