"""Folds norms, scales and the scaling of pixels into the kernels and biases of dense layers, before a file is written.

The outputs stay the same: sums are computed in float64 and rounded once. Gain and shift of a LayerNorm go into the
layers that read it, the scale of queries into their projection, LayerScale into the layer in front of it. Interleaved
rotation pairs become halves of their head. The last LayerNorm is folded only where features come after another layer.
Folding pixels raises the error of float16 by 10 % and of LiteRT's int8 by 50 %, so it is done in float32 only.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Tensor, Variable
from keras_vit.exporting.spec import ExportSpec
from keras_vit.layers import MultiHeadAttention
from keras_vit.layers.configurable import flatten_layers
from keras_vit.model.copies import with_dtype
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import (
    dense_parts,
    is_quantized,
    norm_readers,
    padded_shape,
    patch_embedding,
    rotary_layers,
    user_readers,
)


@dataclasses.dataclass(frozen=True)
class Folds:
    """Number of LayerNorms and query scales that were folded.

    Attributes:
        norms: LayerNorms whose gain and shift are in the layers that read them.
        queries: attentions whose scale is in the query projection.
        pixels: whether mean and deviation of pixels are in the patch embedding.
    """

    norms: int = 0
    queries: int = 0
    pixels: bool = False

    def __str__(self) -> str:
        if not self.norms:
            return "nothing"
        pixels = ", mean and deviation of pixels" if self.pixels else ""
        return f"gain and shift of {self.norms} LayerNorms, scale of {self.queries} queries{pixels}"


def folded_spec(spec: ExportSpec, precisions: Sequence[str], bare: bool = True) -> ExportSpec:
    """The spec with a folded model, if the format folds in its precision.

    Args:
        spec: an `ExportSpec`.
        precisions: in which the format folds.
        bare: as for `fold`.
    """
    if spec.precision not in precisions or spec.takes == "ids":
        return spec
    copy, folds = fold(spec.model, bare)
    if takes_pixels(spec) and folds.norms:
        _fold_pixels(copy)
        spec = dataclasses.replace(spec, scales=False)
    return dataclasses.replace(spec, model=copy)


def takes_pixels(spec: ExportSpec) -> bool:
    """Whether the first kernel of a float32 file takes pixels without scaling.

    A hybrid's cannot: it is standardised, and the image is padded with zeros after the mean is subtracted, as images
    of a model of pixels may be. Nor can that of a model which normalises pixels itself, or of one around an encoder
    whose images other layers read too, or which puts zeros around them before it cuts patches.
    """
    patches, config = patch_embedding(spec.model), spec.model.config
    if patches is None or config.resnet_stages is not None or config.pixel_statistics is not None:
        return False
    if patches.patch_padding:
        return False
    if padded_shape(spec.model, spec.model.input_shape[1:]) != spec.model.input_shape[1:]:
        return False
    if any(user_readers(spec.model, images) for images in (spec.model.input, patches.input)):
        return False
    return patches.patch_bias and spec.takes == "pixels" and spec.precision == "float32"


def fold(model: ImageModel, bare: bool = True) -> tuple[ImageModel, Folds]:
    """A model of the same function with fewer operations, for a file.

    Args:
        model: in float32 and without LoRA; it is not changed.
        bare: whether the folded norms lose their weights; otherwise these are ones and zeros.

    Returns:
        A copy for inference, which is neither saved nor trained, and what was folded; `model` itself where there is
        nothing to fold, as in a ResNet, or Keras has quantised it.
    """
    places = _foldable(model)
    if not places or is_quantized(model):
        return model, Folds()
    copy = with_dtype(model, "float32", unpooled_tensor)
    places = _foldable(copy)
    for norm, denses in places:
        for dense in denses:
            _fold_norm(norm, dense)
        assign(norm.gamma, np.ones(norm.gamma.shape))
        if norm.beta is not None:
            assign(norm.beta, np.zeros(norm.beta.shape))
        if bare:
            norm.gamma = norm.beta = None
    _fold_scales(copy)
    _to_halves(copy)
    attentions = _attentions(copy)
    for attention in attentions:
        for weight in attention.scaled_weights:
            assign(weight, np.asarray(weight) * attention.query_scale)
        attention.query_scale = None
    return copy, Folds(len(places), len(attentions))


def _fold_scales(model: ImageModel) -> None:
    """Folds every LayerScale into the kernel and the bias in front of it."""
    for found in dense_parts(model):
        if found.part.scale is not None:
            scale = getattr(found.block, found.part.scale)
            for weight in found.dense.weights:  # the last axis of both is that of channels
                value, gamma = _values(weight, scale.gamma)
                assign(weight, value * gamma)
            setattr(found.block, found.part.scale, None)


def _to_halves(model: ImageModel) -> None:
    """Permutes channels of queries and keys alike, so that rotation pairs are halves; products of the two stay."""
    for attention in _attentions(model):
        if attention.rotary_layout == "interleaved":
            half = attention.hidden_size // attention.num_heads // 2
            layers = attention.query, attention.key, attention.query_norm, attention.key_norm
            for weight in (weight for layer in layers if layer is not None for weight in layer.weights):
                pairs = np.asarray(weight).reshape(*weight.shape[:-1], -1, half, 2)
                assign(weight, pairs.swapaxes(-1, -2).reshape(weight.shape))
            attention.rotary_layout = "half"
    for layer in rotary_layers(model):
        layer.rotary_layout = "half"


def _fold_norm(norm: keras.layers.Layer, dense: keras.layers.Dense) -> None:
    """Folds gain and shift of a norm into a dense layer that reads it; RMSNorm has no shift."""
    if norm.beta is None:
        gain, kernel = _values(norm.gamma, dense.kernel)
        assign(dense.kernel, gain[:, None] * kernel)
    else:
        _assign(dense, *fold_affine(*_values(norm.gamma, norm.beta, dense.kernel, dense.bias)))


def count_folds(spec: ExportSpec) -> Folds:
    """What `folded_spec` folds in the model."""
    norms = 0 if spec.takes == "ids" or is_quantized(spec.model) else len(_foldable(spec.model))
    if not norms:
        return Folds()
    return Folds(norms, len(_attentions(spec.model)), takes_pixels(spec))


def fold_affine(
    gain: np.ndarray, shift: np.ndarray, kernel: np.ndarray, bias: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and bias that compute from `x` what the given ones compute from `gain * x + shift`.

    Args:
        gain: `(D,)`.
        shift: `(D,)`.
        kernel: `(D, M)`.
        bias: `(M,)`.
    """
    return gain[:, None] * kernel, bias + shift @ kernel


def _fold_pixels(model: ImageModel) -> None:
    """Lets the patch embedding take pixels in [0, 255] in place of scaled ones."""
    record, patches = model.preprocessing, patch_embedding(model).projection
    kernel, bias, mean, std = _values(patches.kernel, patches.bias, record.mean, record.std)
    kernel = kernel / (255 * std[:, None])  # (P, P, C, D)
    _assign(patches, kernel, bias - np.einsum("hwcd,c->d", kernel, 255 * mean))


def _foldable(model: ImageModel) -> list[tuple[keras.layers.Layer, tuple[keras.layers.Dense, ...]]]:
    """Norms that can be folded, with the layers that read them: a shift needs a bias in each of these layers."""
    return [
        (norm, denses)
        for norm, denses in norm_readers(model)
        if norm.beta is None or all(dense.use_bias for dense in denses)
    ]


def _attentions(model: ImageModel) -> list[MultiHeadAttention]:
    found = (layer for layer in flatten_layers(model) if isinstance(layer, MultiHeadAttention))
    return [layer for layer in found if layer.projects_query]


def _values(*weights: Tensor) -> list[np.ndarray]:
    return [np.asarray(weight, "float64") for weight in weights]


def _assign(dense: keras.layers.Layer, kernel: np.ndarray, bias: np.ndarray) -> None:
    assign(dense.kernel, kernel)
    assign(dense.bias, bias)


_ALIGNMENT = 64  # bytes; TensorFlow copies what begins elsewhere into its own memory


def unpooled_tensor(value: Any) -> Tensor:
    """A tensor of float32 whose memory is NumPy's, and goes with it.

    Args:
        value: array, tensor or variable, which is copied.
    """
    array = ops.convert_to_numpy(value)
    own = _aligned_buffer(4 * array.size).view("float32").reshape(array.shape)
    own[...] = array
    if keras.config.backend() != "tensorflow":
        return own
    import tensorflow as tf

    return tf.experimental.dlpack.from_dlpack(own.__dlpack__())


def assign(variable: Variable, value: Any) -> None:
    """Gives a variable of float32 a value outside of the pool; what it had before is freed."""
    variable.assign(unpooled_tensor(value))


def _aligned_buffer(size: int) -> np.ndarray:
    """So many bytes from a place that TensorFlow takes as it is."""
    room = np.empty(size + _ALIGNMENT, "uint8")
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + size]
