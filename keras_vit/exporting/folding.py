"""Factors and shifts that stand beside a dense layer, computed into its kernel and bias before a file is written.

The function of the model stays the same: sums are made in float64 and rounded once. A LayerNorm keeps its mean and
deviation; its gain and shift go into the layers that read it, and the scale of queries into theirs. Pairs of channels
that lie beside each other for a rotation are laid into the two halves of their head. The last LayerNorm is folded only
where features are read behind another layer. In float32 the first kernel takes pixels as they are; float16 would drift
a tenth more so, and int8 of LiteRT half as much again.
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
from keras_vit.layers.sublayers import flatten_layers
from keras_vit.model.copies import with_dtype
from keras_vit.model.image_model import ImageModel
from keras_vit.model.layer_access import dense_parts, norm_readers, patch_embedding, rotary_layers
from keras_vit.model.precision import is_quantized


@dataclasses.dataclass(frozen=True)
class Folds:
    """Number of LayerNorms and query scales that were folded.

    Attributes:
        norms: LayerNorms, of which gain and shift are in the layers behind.
        queries: attentions, of which the scale is in the query.
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
    """A spec whose model is `folded`, if its precision is one of those in which a format folds.

    Args:
        spec: an `ExportSpec`.
        precisions: of the format, those in which it folds.
        bare: as `folded` takes it.
    """
    if spec.precision not in precisions:
        return spec
    copy, folds = folded(spec.model, bare)
    if takes_pixels(spec) and folds.norms:
        _fold_pixels(copy)
        spec = dataclasses.replace(spec, scales=False)
    return dataclasses.replace(spec, model=copy)


def takes_pixels(spec: ExportSpec) -> bool:
    """Whether a file in float32 gives the first kernel pixels as they are.

    Not a hybrid's, whose first kernel is standardised, and pads its image with zeros behind the mean. Nor that of a
    model which normalises pixels itself.
    """
    patches, config = patch_embedding(spec.model), spec.model.config
    if patches is None or config.resnet_stages is not None or config.pixel_statistics is not None:
        return False
    return patches.patch_bias and spec.takes == "pixels" and spec.precision == "float32"


def folded(model: ImageModel, bare: bool = True) -> tuple[ImageModel, Folds]:
    """A model of the same function with fewer operations, for a file.

    Args:
        model: in float32 and without LoRA; it is not changed.
        bare: whether the LayerNorms lose their weights; otherwise these are ones and zeros.

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
    """Takes the factors of every LayerScale into the kernel and the bias in front of it."""
    for found in dense_parts(model):
        if found.part.scale is not None:
            scale = getattr(found.block, found.part.scale)
            for weight in found.dense.weights:  # the last axis of both is that of channels
                value, gamma = _values(weight, scale.gamma)
                assign(weight, value * gamma)
            setattr(found.block, found.part.scale, None)


def _to_halves(model: ImageModel) -> None:
    """Orders channels of queries and keys alike, which leaves their products, so that no step interleaves pairs."""
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
    """Takes gain and shift of a norm into a dense layer that reads it; RMSNorm has no shift."""
    if norm.beta is None:
        gain, kernel = _values(norm.gamma, dense.kernel)
        assign(dense.kernel, gain[:, None] * kernel)
    else:
        _assign(dense, *behind(*_values(norm.gamma, norm.beta, dense.kernel, dense.bias)))


def count_folds(spec: ExportSpec) -> Folds:
    """What `folded_spec` folds of a spec's model."""
    norms = 0 if is_quantized(spec.model) else len(_foldable(spec.model))
    if not norms:
        return Folds()
    return Folds(norms, len(_attentions(spec.model)), takes_pixels(spec))


def behind(gain: np.ndarray, shift: np.ndarray, kernel: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and bias that give for `x` what the given ones give for `gain * x + shift`.

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
    """The norms whose shift, if there is one, finds a bias in every dense layer that reads them, and those layers."""
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
