"""The ends of a text tower: ids to tokens with their positions, what attention may read, and the text's own place.

Source: arXiv:2103.00020, section 2.4 (CLIP); arXiv:2303.15343 (SigLIP); arXiv:2410.16512 (TIPS).
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.annotations import Shape, Tensor
from keras_vit.checks import check_choice, check_positive_int
from keras_vit.config.text import TEXT_POOLINGS, TEXT_POSITIONS
from keras_vit.layers.configurable import ConfiguredLayer, at_least_float32

_NO_WEIGHT = -1e9  # its exponential is 0 next to any other logit, and float32 and bfloat16 hold it
_LONGEST_PERIOD = 10_000


@keras.saving.register_keras_serializable("keras_vit")
class TokenEmbedding(ConfiguredLayer):
    """A learned vector for each id.

    Args:
        vocabulary_size: V.
        hidden_size: D.
        scale_tokens: whether vectors are multiplied by the root of D.

    Call arguments:
        ids: int `(B, T)`, each from 0 to V - 1.

    Returns:
        `(B, T, D)`; of another id NaN, where the backend does not raise.

    Example:
        >>> layer = keras_vit.layers.TokenEmbedding(50, 12)
        >>> tuple(layer(np.zeros((2, 7), "int32")).shape)
        (2, 7, 12)
    """

    def __init__(self, vocabulary_size: int, hidden_size: int, scale_tokens: bool = False, **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        self.vocabulary_size = check_positive_int("vocabulary_size", vocabulary_size)
        self.hidden_size = check_positive_int("hidden_size", hidden_size)
        self.scale_tokens = scale_tokens

    def build(self, input_shape: Shape) -> None:
        shape, first = (self.vocabulary_size, self.hidden_size), keras.initializers.RandomNormal(stddev=0.02)
        self.embeddings = self.add_weight(name="embeddings", shape=shape, initializer=first)

    def call(self, ids: Tensor) -> Tensor:
        # Without this, -1 is the last row, and on a GPU or under XLA an id above V another one.
        ids = ops.where(ids < 0, ids - self.vocabulary_size, ids)
        is_known = ops.logical_and(ids >= 0, ids < self.vocabulary_size)[..., None]
        # An error of TensorFlow in a graph has the name of the operation, which costs an export nothing.
        with keras.name_scope(f"ids_must_be_from_0_to_{self.vocabulary_size - 1}_the_rows_of_the_token_table"):
            rows = ops.take(self.embeddings, ids, axis=0)
        tokens = ops.where(is_known, rows, np.nan)
        tokens = ops.cast(tokens, self.compute_dtype)
        return tokens * self.hidden_size**0.5 if self.scale_tokens else tokens

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return (*input_shape, self.hidden_size)


@keras.saving.register_keras_serializable("keras_vit")
class TextPositions(ConfiguredLayer):
    """Adds a vector for each place: a learned one, or sines and then cosines of the place, `"sincos"`.

    Args:
        max_length: T, the most places.
        kind: `"learned"` or `"sincos"`.

    Call arguments:
        tokens: `(B, t, D)` of at most T places.

    Returns:
        `(B, t, D)`.

    Example:
        >>> layer = keras_vit.layers.TextPositions(9)
        >>> tuple(layer(np.zeros((2, 7, 12), "float32")).shape)
        (2, 7, 12)
    """

    def __init__(self, max_length: int, kind: str = "learned", **kwargs: Any) -> None:
        super().__init__(autocast=False, **kwargs)
        check_choice("kind", kind, TEXT_POSITIONS)
        self.max_length, self.kind = check_positive_int("max_length", max_length), kind

    def build(self, input_shape: Shape) -> None:
        if self.kind == "learned":
            shape, first = (self.max_length, input_shape[-1]), keras.initializers.RandomNormal(stddev=0.01)
            self.table = self.add_weight(name="table", shape=shape, initializer=first)
        else:
            self.table = _sines_and_cosines(self.max_length, input_shape[-1] or 0)

    def call(self, tokens: Tensor) -> Tensor:
        table = ops.cast(self.table, tokens.dtype)[: ops.shape(tokens)[1]]  # (t, D)
        return tokens + table

    def compute_output_shape(self, input_shape: Shape) -> Shape:
        return input_shape


def _sines_and_cosines(length: int, size: int) -> np.ndarray:
    """`(T, D)`: sines in the first half, cosines in the second, of D/2 periods from 1 to 10,000."""
    half = size // 2
    rates = np.exp(-np.arange(half) * (math.log(_LONGEST_PERIOD) / max(half - 1, 1)))
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype("float32")


@keras.saving.register_keras_serializable("keras_vit")
class TextMask(ConfiguredLayer):
    """What is added to the logits of attention, so that no place reads what it must not.

    Args:
        causal: whether a place reads only itself and those before it.
        pad_id: id that no place reads, or `None` where padding takes part.

    Call arguments:
        ids: int `(B, T)`.

    Returns:
        float32 `(1 or B, 1, T, T)`.

    Example:
        >>> mask = keras_vit.layers.TextMask(causal=True)(np.zeros((2, 3), "int32"))
        >>> [[int(each == 0) for each in row] for row in np.asarray(mask)[0, 0]]
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """

    def __init__(self, causal: bool, pad_id: int | None = None, **kwargs: Any) -> None:
        super().__init__(dtype=at_least_float32(kwargs.pop("dtype", None)), **kwargs)
        self.causal, self.pad_id = causal, pad_id

    def call(self, ids: Tensor) -> Tensor:
        places = ops.arange(ops.shape(ids)[1], dtype="int32")
        readable = ops.ones_like(places)[:, None] * ops.ones_like(places)[None] > 0  # (T, T)
        if self.causal:
            readable = places[:, None] >= places[None]
        readable = readable[None, None]
        if self.pad_id is not None:
            readable = ops.logical_and(readable, ops.not_equal(ids, self.pad_id)[:, None, None])
        return ops.where(readable, 0.0, ops.cast(_NO_WEIGHT, self.compute_dtype))

    def compute_output_spec(self, ids: Tensor) -> Any:
        batch, length = ids.shape
        return keras.KerasTensor((1 if self.pad_id is None else batch, 1, length, length), self.compute_dtype)


@keras.saving.register_keras_serializable("keras_vit")
class TextPooling(ConfiguredLayer):
    """The vector of a text among those of its places.

    Args:
        kind: `"argmax"`, the first place of the largest id; `"end"`, the first of `end_id`; `"last"`, the last one;
            `"mean"` of all that are no padding.
        end_id: for `"end"`.
        pad_id: for `"mean"`.

    Call arguments:
        tokens: `(B, T, D)`.
        ids: int `(B, T)`.

    Returns:
        `(B, D)`, in at least float32.

    Example:
        >>> tokens, ids = np.arange(6.0).reshape(1, 3, 2), np.array([[5, 9, 0]])
        >>> pooled = keras_vit.layers.TextPooling("argmax")(tokens, ids)
        >>> [float(each) for each in pooled[0]]
        [2.0, 3.0]
    """

    def __init__(self, kind: str, end_id: int | None = None, pad_id: int = 0, **kwargs: Any) -> None:
        super().__init__(dtype=at_least_float32(kwargs.pop("dtype", None)), **kwargs)
        check_choice("kind", kind, TEXT_POOLINGS[:-1])
        self.kind, self.end_id, self.pad_id = kind, end_id, pad_id

    def call(self, tokens: Tensor, ids: Tensor) -> Tensor:
        tokens = ops.cast(tokens, self.compute_dtype)
        if self.kind == "last":
            return tokens[:, -1]
        if self.kind == "mean":
            there = ops.cast(ops.not_equal(ids, self.pad_id), tokens.dtype)[..., None]  # (B, T, 1)
            return ops.sum(tokens * there, axis=1) / ops.maximum(ops.sum(there, axis=1), 1.0)
        marks = ids if self.kind == "argmax" else ops.cast(ops.equal(ids, self.end_id), "int32")
        place = ops.argmax(marks, axis=1)  # of equals the first
        return ops.take_along_axis(tokens, ops.cast(place, "int32")[:, None, None], axis=1)[:, 0]

    def compute_output_shape(self, tokens_shape: Shape, ids_shape: Shape) -> Shape:
        return tokens_shape[0], tokens_shape[-1]
